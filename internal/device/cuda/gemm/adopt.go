package gemm

import "crypto/sha256"

// Each process measures algorithms for itself, but ranks of several processes must compute GEMMs with the same
// algorithms. After all GEMMs have been prepared, the processes therefore exchange their choices. If the agreed choice
// for a GEMM differs from that of this process, this process prepares the GEMM again.

// Sum identifies the choice of an algorithm: it is a hash of everything on which the choice depends. The hash is equal
// in all processes with the same kind of GPU.
type Sum [8]byte

// ChosenBytes is the size in bytes of a stored choice.
const ChosenBytes = 72

func sumOf(key string) (s Sum) {
	h := sha256.Sum256([]byte(key))
	copy(s[:], h[:])
	return s
}

// If the choice is not an algorithm of cuBLASLt, one of the following values is stored instead of the size of the
// workspace.
const (
	ownNeed   = -1 // hocket's kernel
	jointNeed = -2 // one launch for several linears of one operand
	apartNeed = -3 // separate launches, because one launch is not faster or was not tried
)

// jointChoice returns the stored form of the choice whether several linears run as one launch.
func jointChoice(joint bool) []byte {
	p := Pick{Need: apartNeed}
	if joint {
		p.Need = jointNeed
	}
	return p.bytes()
}

// Apart reports whether choice is that linears run as separate launches. If one process makes this choice, all
// processes must: a process that has prepared linears separately cannot join them later.
func Apart(choice []byte) bool { return string(choice) == string(jointChoice(false)) }

// Chosen returns the choices that this process made for all prepared GEMMs, and for all groups of linears with a common
// operand.
func (h *Host) Chosen() map[Sum][]byte { return h.chosen }

// Again registers the function prepare. Adopt calls prepare if a choice changes, to prepare a GEMM again.
func (h *Host) Again(prepare func() error) { h.again = append(h.again, prepare) }

// Adopted reports whether Adopt was called. After Adopt, choices do not change.
func (h *Host) Adopted() bool { return h.agreed != nil }

// Adopt applies the agreed choices to all GEMMs that are prepared later. If an agreed choice differs from this
// process's choice, Adopt also calls the functions registered with Again, which prepare earlier GEMMs again. None of
// these GEMMs may be running. The caller has made the context current.
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
