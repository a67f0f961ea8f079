package gemm

import "crypto/sha256"

// Each process measures for itself, but ranks of several processes must compute products with the same algorithms. Once
// everything is prepared, the processes exchange their choices. A product for which another choice was agreed is then
// prepared again.

// Sum is a hash of everything on which a choice depends. It is the same in every process with the same kind of GPU.
type Sum [8]byte

// ChosenBytes is the size in bytes of a stored choice.
const ChosenBytes = 72

func sumOf(key string) (s Sum) {
	h := sha256.Sum256([]byte(key))
	copy(s[:], h[:])
	return s
}

// Values that are stored as the workspace size of a choice that is no algorithm.
const (
	ownNeed   = -1 // hocket's kernel
	jointNeed = -2 // one launch for linears of one x
	apartNeed = -3 // separate launches, because one launch is not faster or was not tried
)

// jointChoice returns the stored form of the choice whether linears run as one launch.
func jointChoice(joint bool) []byte {
	p := Pick{Need: apartNeed}
	if joint {
		p.Need = jointNeed
	}
	return p.bytes()
}

// Apart reports whether a choice is to run linears as separate launches. Such a choice applies to all processes,
// because a process that prepared linears separately does not join them later.
func Apart(choice []byte) bool { return string(choice) == string(jointChoice(false)) }

// Chosen returns the choices for all products, and for all groups of linears with a common input, that were prepared.
func (h *Host) Chosen() map[Sum][]byte { return h.chosen }

// Again registers prepare, which prepares a product again if Adopt changes a choice.
func (h *Host) Again(prepare func() error) { h.again = append(h.again, prepare) }

// Adopted reports whether Adopt was called. Choices do not change after that.
func (h *Host) Adopted() bool { return h.agreed != nil }

// Adopt applies the agreed choices to all products that are prepared from now on. If any choice differs from this
// process's own, Adopt also prepares the registered products again. None of them may be running. The context is
// current.
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
