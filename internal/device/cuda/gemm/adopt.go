package gemm

import (
	"crypto/sha256"
	"fmt"
)

// Sum stands for a product: the same in every process that has GPUs alike.
type Sum [8]byte

// ChosenBytes is how many bytes a pick has, as it is kept.
const ChosenBytes = 72

func (st *Launch) sum() (s Sum) {
	h := sha256.Sum256([]byte(st.key()))
	copy(s[:], h[:])
	return s
}

// Chosen lists the algorithms of all products that cuBLASLt computes.
func (h *Host) Chosen() map[Sum][]byte {
	all := map[Sum][]byte{}
	for st := range h.Live {
		if st.Product != nil {
			p := Pick{Algo: st.Product.Algo(), Need: st.Need}
			all[st.sum()] = p.bytes()
		}
	}
	return all
}

// Adopt has products computed by others' algorithms, where these are other ones. Nothing of them runs.
func (h *Host) Adopt(theirs map[Sum][]byte) error {
	for st := range h.Live {
		if st.Product == nil {
			continue
		}
		b := theirs[st.sum()]
		own := Pick{Algo: st.Product.Algo(), Need: st.Need}
		if b == nil || string(b) == string(own.bytes()) {
			continue
		}
		p := st.kept(b)
		if p == nil || p.own {
			return fmt.Errorf("product %s: cuBLASLt refuses the algorithm that another process has found fastest for it; are libraries and drivers of all processes the same?", st.Problem.String())
		}
		st.Need, st.guess = p.Need, false
		st.Product = st.NewProduct(p.Algo, st.Problem.B, st.Problem.A, st.Problem.Out)
		if err := h.exercise(st, p, st.key()+" adopted"); err != nil {
			return err
		}
	}
	return nil
}
