package kernels

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

func op(dt ir.DType, shape ...int64) Operand {
	return Operand{Addr: 1 << 16, DType: dt, Shape: shape, Strides: rowMajor(shape)}
}

func TestRefused(t *testing.T) {
	f, g := op(ir.F32, 2, 3), op(ir.F32, 3, 2)
	ops := func(o ...Operand) []Operand { return o }
	odd := f
	odd.Addr++
	negative := f
	negative.Strides = []int64{-3, 1}
	short := f
	short.Strides = []int64{1}
	bad := map[string]Problem{
		"0 operands":                        Computation{Op: device.Elementwise{Op: ir.OpNeg}, Out: f},
		"2 operands":                        Computation{Op: device.Elementwise{Op: ir.OpNeg}, Ins: ops(f, f), Out: f},
		"operand 1 has":                     Computation{Op: device.Elementwise{Op: ir.OpAdd}, Ins: ops(f, g), Out: f},
		"operand 0 has type i32":            Computation{Op: device.Elementwise{Op: ir.OpNeg}, Ins: ops(op(ir.I32, 2, 3)), Out: f},
		"copy f32[3 2] to":                  Computation{Op: device.Copy{Op: ir.OpCopy}, Ins: ops(g), Out: f},
		"needs contiguous operands":         Transfer{In: f, Out: Operand{Addr: 1 << 16, DType: ir.F32, Shape: []int64{2, 3}, Strides: []int64{4, 1}}, Blocks: 1},
		"copy f32[7] to":                    Computation{Op: device.Copy{Op: ir.OpReshape}, Ins: ops(op(ir.F32, 7)), Out: f},
		"shape [7]":                         Computation{Op: device.Cast{}, Ins: ops(op(ir.I32, 7)), Out: f},
		"axes [2]":                          Computation{Op: device.ReduceAxes{Op: ir.OpSum, Axes: []int{2}}, Ins: ops(f), Out: op(ir.F32, 2)},
		"axes [-1]":                         Computation{Op: device.ReduceAxes{Op: ir.OpSum, Axes: []int{-1}}, Ins: ops(f), Out: op(ir.F32, 2)},
		"axes [1 1]":                        Computation{Op: device.ReduceAxes{Op: ir.OpSum, Axes: []int{1, 1}}, Ins: ops(f), Out: op(ir.F32, 2)},
		"without axes [0]":                  Computation{Op: device.ReduceAxes{Op: ir.OpSum, Axes: []int{0}}, Ins: ops(f), Out: op(ir.F32, 2)},
		"not defined for i64":               Computation{Op: device.ReduceAxes{Op: ir.OpMean, Axes: []int{0}}, Ins: ops(op(ir.I64, 2)), Out: op(ir.I64)},
		"not defined for i32":               Computation{Op: device.Elementwise{Op: ir.OpExp}, Ins: ops(op(ir.I32, 2)), Out: op(ir.I32, 2)},
		"w must be":                         Computation{Op: device.Linear{}, Ins: ops(f, g), Out: f},
		"but [2 2] is required":             Computation{Op: device.Linear{}, Ins: ops(f, f), Out: f},
		"bias[3]":                           Computation{Op: device.Linear{}, Ins: ops(f, f, op(ir.F32, 3)), Out: op(ir.F32, 2, 2)},
		"ta=false":                          Computation{Op: device.Matmul{}, Ins: ops(f, f), Out: f},
		"ranks must":                        Computation{Op: device.Matmul{}, Ins: ops(op(ir.F32, 1, 2, 3), g), Out: op(ir.F32, 1, 2, 2)},
		"least 2":                           Computation{Op: device.Matmul{}, Ins: ops(op(ir.F32, 3), op(ir.F32, 3)), Out: op(ir.F32)},
		"0.5 is not a value of i32":         Computation{Op: device.Elementwise{Op: ir.OpFill, Numbers: ir.Reals(0.5)}, Out: op(ir.I32, 2)},
		"NaN is not a value of i64":         Computation{Op: device.Elementwise{Op: ir.OpFill, Numbers: ir.Reals(math.NaN())}, Out: op(ir.I64, 2)},
		"sum: the operation has 0 operands": Computation{Op: device.ReduceOperands{Red: ir.Sum}, Out: f},
		"sum: operand 1 has":                Computation{Op: device.ReduceOperands{Red: ir.Sum}, Ins: ops(f, g), Out: f},
		"reduction 77":                      Computation{Op: device.ReduceOperands{Red: 77}, Ins: ops(f), Out: f},
		"not a multiple":                    Computation{Op: device.Elementwise{Op: ir.OpNeg}, Ins: ops(odd), Out: f},
		"stride -3":                         Computation{Op: device.Elementwise{Op: ir.OpNeg}, Ins: ops(negative), Out: f},
		"1 strides":                         Computation{Op: device.Elementwise{Op: ir.OpNeg}, Ins: ops(f), Out: short},
		"dtype(0)":                          Computation{Op: device.Elementwise{Op: ir.OpNeg}, Ins: ops(Operand{}), Out: f},
		"rank 2":                            Computation{Op: device.Softmax{Axis: 2}, Ins: ops(f), Out: f},
		"rows have shape":                   Computation{Op: device.RMSNorm{}, Ins: ops(f, op(ir.F32, 2)), Out: f},
		"fill only 4 of 5":                  Computation{Op: device.Concat{Axis: 0}, Ins: ops(f, f), Out: op(ir.F32, 5, 3)},
		"operand 0 of shape [3 2]":          Computation{Op: device.Concat{Axis: 0}, Ins: ops(g), Out: f},
		"rows 3 to 7 of 6":                  Computation{Op: device.Embedding{First: 3, Rows: 6}, Ins: ops(op(ir.I32, 2), op(ir.F32, 4, 3)), Out: f},
		"by ids f32[2]":                     Computation{Op: device.Embedding{Rows: 6}, Ins: ops(op(ir.F32, 2), op(ir.F32, 4, 3)), Out: f},
		"would see no key":                  Computation{Op: device.Attention{Causal: true}, Ins: ops(op(ir.F32, 3, 1, 2), op(ir.F32, 2, 1, 2), op(ir.F32, 2, 1, 2)), Out: op(ir.F32, 3, 1, 2)},
		"attention: q":                      Computation{Op: device.Attention{}, Ins: ops(f, f, f), Out: f},
		"type f64 into type f32":            Computation{Op: device.ReduceSlots{Axis: 0}, Ins: ops(op(ir.F64, 4, 2, 3)), Out: f},
		"sum continues from":                Computation{Op: device.ReduceSlots{Axis: 0}, Ins: ops(op(ir.F32, 4, 2, 3), g), Out: f},
	}
	l := New(&fake{version: "1"}, nil)
	for want, p := range bad {
		if _, err := l.Steps(Target{Arch: "sm_90"}, p); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

// TestUnsupported checks problems that are valid but too large.
func TestUnsupported(t *testing.T) {
	wide := op(ir.F32, 2, 1, 1025)
	nine := Operand{Addr: 1 << 16, DType: ir.F32}
	for i := range 9 {
		nine.Shape = append(nine.Shape, 2)
		nine.Strides = append(nine.Strides, int64(math.Pow(3, float64(9-i))))
	}
	l := New(&fake{version: "1"}, nil)
	for want, p := range map[string]Computation{
		"1025 dimensions": {Op: device.Attention{}, Ins: []Operand{wide, wide, wide}, Out: wide},
		"9 dimensions":    {Op: device.Elementwise{Op: ir.OpNeg}, Ins: []Operand{nine}, Out: nine},
	} {
		_, err := l.Steps(Target{Arch: "sm_90"}, p)
		if !errors.Is(err, device.ErrUnsupported) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

// TestScratchFails checks that planning returns the error of Target.Scratch.
func TestScratchFails(t *testing.T) {
	full := errors.New("full")
	l := New(&fake{version: "1"}, nil)
	target := Target{Arch: "sm_90", Scratch: func(int64, bool) (nvlib.Ptr, error) { return 0, full }}
	for _, p := range []Computation{
		{Op: device.ReduceAxes{Op: ir.OpSum, Axes: []int{0}}, Ins: []Operand{op(ir.F32, 4000, 3)}, Out: op(ir.F32, 3)},
		{Op: device.ReduceOperands{Red: ir.Sum}, Ins: slices.Repeat([]Operand{op(ir.F32, 3)}, 65), Out: op(ir.F32, 3)},
	} {
		if _, err := l.Steps(target, p); !errors.Is(err, full) {
			t.Error(err)
		}
	}
}

// TestOrderOfSums checks that the order of additions depends on extents and strides and not on addresses. The order
// follows from a kernel's code and extents.
func TestOrderOfSums(t *testing.T) {
	in, out := op(ir.BF16, 4, 8000), op(ir.BF16, 4)
	shifted := in
	shifted.Addr += 2
	of := func(in Operand) launch {
		l, err := plan(Computation{Op: device.ReduceAxes{Op: ir.OpSum, Axes: []int{1}}, Ins: []Operand{in}, Out: out}, Target{})
		if err != nil || len(l) != 1 {
			t.Fatal(l, err)
		}
		return l[0]
	}
	a, b := of(in), of(shifted)
	if a.code.body != strings.Replace(b.code.body, "false", "true", 1) || !slices.Equal(a.args[2:], b.args[2:]) {
		t.Errorf("aligned %s %v, shifted %s %v", a.code.body, a.args, b.code.body, b.args)
	}
}

// TestTail checks that an odd extent prevents wide accesses only for the elements at its end.
func TestTail(t *testing.T) {
	x := op(ir.BF16, 10007)
	l, err := plan(Computation{Op: device.Elementwise{Op: ir.OpNeg}, Ins: []Operand{x}, Out: x}, Target{})
	if err != nil || len(l) != 2 || !strings.Contains(l[0].code.symbol, "v8") || !strings.Contains(l[1].code.symbol, "v1") {
		t.Errorf("%+v, %v", l, err)
	}
}
