package gemm

import (
	"errors"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// A product of few rows takes as long as its weight takes to read. Hocket has a kernel
// for it, which is timed beside cuBLASLt's algorithms.

const (
	// skinnyRows is the most rows of a product that hocket's kernel is timed for, and skinnySlice how many a block of
	// it has: where there are more, the weight comes from memory once and then from the cache.
	skinnyRows, skinnySlice = 64, 32
	// skinnyLeast is how many bytes a weight has, at the least, for its kernel to be
	// looked for: fewer are read in little more than a launch takes.
	skinnyLeast = 4 << 20
	// coldBytes is how many bytes of weights a trial reads before it reads any again: more
	// than the L2 cache holds, since in a program a weight is not there either.
	coldBytes = 128 << 20
)

// skinny reports whether hocket's kernel for few rows may be chosen for g, by what it takes.
func (g *Problem) skinny() bool {
	return !g.Fixed && g.SMs == 0 && g.M <= skinnyRows && g.N*g.K*g.DType.Size() >= skinnyLeast && g.plain()
}

// plain reports whether g is one product of matrices whose elements have no gaps, of a type that hocket's kernel has.
func (g *Problem) plain() bool {
	return !g.scaled() && g.Batch == 1 && (g.DType == ir.BF16 || g.DType == ir.F16) && g.Ak == 1 && g.Bk == 1 && g.On == 1
}

// skinnyProblem is g on operands elsewhere.
func (g *Problem) skinnyProblem(out, a, b, bias nvlib.Ptr) kernels.Skinny {
	matrix := func(at nvlib.Ptr, rows, cols, stride int64) kernels.Operand {
		return kernels.Operand{Addr: at, DType: g.DType, Shape: []int64{rows, cols}, Strides: []int64{stride, 1}}
	}
	p := kernels.Skinny{Constant: g.Constant, Sliced: g.M > skinnySlice, Out: matrix(out, g.M, g.N, g.Om),
		Ins: []kernels.Operand{matrix(a, g.M, g.K, g.Am), matrix(b, g.N, g.K, g.Bn)}}
	if bias != 0 {
		p.Ins = append(p.Ins, kernels.Operand{Addr: bias, DType: g.DType, Shape: []int64{g.N}, Strides: []int64{1}})
	}
	if g.Relu {
		p.Epilogue = kernels.ReluEpilogue
	}
	return p
}

// skinnyLaunch returns hocket's kernel for g; nil where it does not take g.
func (h *Host) skinnyLaunch(g *Problem) (*nvlib.Launch, error) {
	if !h.skinny || !g.skinny() {
		return nil, nil
	}
	return h.compileSkinny(g)
}

func (h *Host) compileSkinny(g *Problem) (*nvlib.Launch, error) {
	list, err := h.site.CompileAside(g.skinnyProblem(g.Out, g.A, g.B, g.Bias))
	switch {
	case errors.Is(err, device.ErrUnsupported):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return list[0], nil
}

// PrepareRows returns launches of hocket's kernel for few rows that together compute p, of any number of rows, each
// with the bits that it has alone. It returns none if there would be more than most, or if the kernel does not take p.
// If the rows of x are dense, the latter depends on the weight, the bias and the stride of the result's elements, not
// on the number of rows.
func (h *Host) PrepareRows(p Product, relu, constant bool, most int) ([]*nvlib.Launch, error) {
	p.Merge()
	if last := p.Dims[len(p.Dims)-1]; p.bias != 0 && last.bias != 1 && last.N > 1 {
		return nil, nil
	}
	items := p.items()
	if len(items) > most {
		return nil, nil
	}
	var list []*nvlib.Launch
	for _, g := range items {
		g.Relu, g.Constant = relu, constant
		var l *nvlib.Launch
		var err error
		if g.plain() {
			l, err = h.compileSkinny(&g)
		}
		if l == nil || err != nil {
			for _, l := range list {
				l.Free()
			}
			return nil, err
		}
		list = append(list, l)
	}
	return list, nil
}
