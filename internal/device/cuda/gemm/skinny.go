package gemm

import (
	"errors"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// A GEMM with few rows takes as long as the reads of its weight from memory. Hocket's own kernel for such GEMMs is
// timed together with cuBLASLt's algorithms.

const (
	// skinnyRows is the largest number of rows for which hocket's kernel is timed. skinnySlice is the number of rows
	// that a thread block computes. For the first skinnySlice rows, the weight is read from memory; for further rows,
	// from the L2 cache.
	skinnyRows, skinnySlice = 64, 32
	// skinnyLeast is the smallest size of a weight, in bytes, for which hocket's kernel is considered. Reading a
	// smaller weight takes little longer than a launch.
	skinnyLeast = 4 << 20
)

// skinny reports whether hocket's kernel for few rows is a candidate for g.
func (g *Problem) skinny() bool {
	return !g.Fixed && g.SMs == 0 && g.M <= skinnyRows && g.N*g.K*g.DType.Size() >= skinnyLeast && g.plain()
}

// plain reports whether g is a single matrix product, of a type that hocket's kernel supports, with contiguous elements
// in each row.
func (g *Problem) plain() bool {
	return !g.scaled() && g.Batch == 1 && (g.DType == ir.BF16 || g.DType == ir.F16) && g.Ak == 1 && g.Bk == 1 && g.On == 1
}

// skinnyProblem returns g in the form in which hocket's kernel for few rows is compiled, on operands at the given
// addresses.
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

// skinnyLaunch returns hocket's kernel for g; nil if the kernel is not a candidate or does not support g.
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

// PrepareRows returns launches of hocket's kernel for few rows that together compute p, which may have any number of
// rows. Each row has the same bits as if it were computed alone. PrepareRows returns nil if more than most launches
// would be needed, or if the kernel does not support p. If the rows of x are dense, whether the kernel supports p
// depends on the weight, the bias and the strides of the result's elements, but not on the number of rows.
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
