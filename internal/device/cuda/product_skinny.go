package cuda

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
	// skinnyRows is the most rows of a product that hocket's kernel computes.
	skinnyRows = 16
	// skinnyLeast is how many bytes a weight has, at the least, for its kernel to be
	// looked for: fewer are read in little more than a launch takes.
	skinnyLeast = 4 << 20
	// coldBytes is how many bytes of weights a trial reads before it reads any again: more
	// than the L2 cache holds, since in a program a weight is not there either.
	coldBytes = 128 << 20
)

// skinny reports whether hocket's kernel for few rows may be chosen for g. Its bits follow
// from k alone, but not from what Fixed promises, so it is no choice there.
func (g *gemm) skinny() bool {
	return !g.fixed && g.sms == 0 && g.batch == 1 && g.m <= skinnyRows && (g.dt == ir.BF16 || g.dt == ir.F16) &&
		g.n*g.k*g.dt.Size() >= skinnyLeast && g.ak == 1 && g.bk == 1 && g.on == 1
}

// skinnyProblem is g on operands elsewhere.
func (g *gemm) skinnyProblem(out, a, b, bias nvlib.Ptr) kernels.Problem {
	matrix := func(at nvlib.Ptr, rows, cols, stride int64) kernels.Operand {
		return kernels.Operand{Addr: at, DType: g.dt, Shape: []int64{rows, cols}, Strides: []int64{stride, 1}}
	}
	p := kernels.Problem{Op: ir.OpLinear, Skinny: &kernels.Skinny{}, Out: matrix(out, g.m, g.n, g.om),
		Ins: []kernels.Operand{matrix(a, g.m, g.k, g.am), matrix(b, g.n, g.k, g.bn)}}
	if bias != 0 {
		p.Ins = append(p.Ins, kernels.Operand{Addr: bias, DType: g.dt, Shape: []int64{g.n}, Strides: []int64{1}})
	}
	p.Skinny.Constant = g.constant
	if g.relu {
		p.Skinny.Epilogue = kernels.ReluEpilogue
	}
	return p
}

// skinnyLaunch returns hocket's kernel for g; nil where it does not take g.
func (s *site) skinnyLaunch(g *gemm) (*nvlib.Launch, error) {
	if !s.w.m.opts.Skinny || !g.skinny() {
		return nil, nil
	}
	list, err := s.compileAside(g.skinnyProblem(g.out, g.a, g.b, g.bias), nil)
	switch {
	case errors.Is(err, device.ErrUnsupported):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return list[0], nil
}
