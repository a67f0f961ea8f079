package gemm

import "crypto/sha256"

// Ranks of several processes compute by the same choices, though each process has measured for itself: once all is
// prepared they exchange what they chose, and what was chosen otherwise is prepared again.

// Sum stands for what a choice depends on: the same in every process that has GPUs alike.
type Sum [8]byte

// ChosenBytes is how many bytes a choice has, as it is kept.
const ChosenBytes = 72

func sumOf(key string) (s Sum) {
	h := sha256.Sum256([]byte(key))
	copy(s[:], h[:])
	return s
}

// Substitutes for an algorithm's needs if no algorithm was chosen.
const (
	ownNeed   = -1 // hocket's kernel
	jointNeed = -2 // one launch for linears of one x
	apartNeed = -3 // none, since it is not faster, or was not tried
)

// jointChoice is whether linears are one launch, as a choice.
func jointChoice(joint bool) []byte {
	p := Pick{Need: apartNeed}
	if joint {
		p.Need = jointNeed
	}
	return p.bytes()
}

// Apart reports whether a choice is that linears are not one launch. It holds for all processes, whoever made it:
// who prepared linears alone does not join them later.
func Apart(choice []byte) bool { return string(choice) == string(jointChoice(false)) }

// Chosen lists what was chosen for all products and linears of one x that were prepared.
func (h *Host) Chosen() map[Sum][]byte { return h.chosen }

// Again keeps what prepares something anew, if Adopt changes a choice.
func (h *Host) Again(prepare func() error) { h.again = append(h.again, prepare) }

// Adopted reports whether Adopt was called: choices do not change any more.
func (h *Host) Adopted() bool { return h.agreed != nil }

// Adopt has everything take these choices: what is prepared from now on, and, if any is another than before, what was
// prepared already. Nothing of it runs. The context is current.
func (h *Host) Adopt(theirs map[Sum][]byte) error {
	changed, again := false, h.again
	for s, own := range h.chosen {
		changed = changed || theirs[s] != nil && string(theirs[s]) != string(own)
	}
	h.agreed, h.again = theirs, nil
	for _, prepare := range again {
		if !changed {
			break
		}
		if err := prepare(); err != nil {
			return err
		}
	}
	return nil
}
