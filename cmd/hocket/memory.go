package main

import (
	"fmt"
	"math/bits"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/hostmem"
	"hocket.example/hocket/internal/tensor"
)

// inputBytes returns the size in bytes of the given number of copies of all inputs. The size saturates instead of
// overflowing.
func inputBytes(sig *hocket.Signature, copies int) uint64 {
	total := uint64(0)
	for _, p := range sig.In {
		n := uint64(p.DType.Size()) * uint64(copies)
		for _, d := range p.Shape {
			n = mulSaturated(n, uint64(d))
		}
		if total += n; total < n {
			return ^uint64(0)
		}
	}
	return total
}

func mulSaturated(a, b uint64) uint64 {
	if hi, lo := bits.Mul64(a, b); hi == 0 {
		return lo
	}
	return ^uint64(0)
}

// affordInputs returns an error if the inputs are larger than the free memory, because the system would kill the
// process when it allocates them. If the inputs fit, affordInputs returns the memory that remains free, or 0 if that is
// unknown.
func affordInputs(sig *hocket.Signature, copies int) (int64, error) {
	need, free := inputBytes(sig, copies), hostmem.Available()
	if free == 0 {
		return 0, nil
	}
	if need > uint64(free) {
		f := &failure{code: exitMachine, kind: "memory",
			err: fmt.Errorf("out of memory: the inputs need %s, but only %s are free", sizeText(need), tensor.Size(free))}
		return 0, f.helping("reduce dims with --dim, or reduce --repeat")
	}
	return free - int64(need), nil
}

func sizeText(n uint64) string {
	if n > 1<<62 {
		return "more than 4 EiB"
	}
	return tensor.Size(int64(n))
}
