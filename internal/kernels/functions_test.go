package kernels

import (
	"math"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// TestHalfFunctions computes functions of every f16 and bf16 value and checks them against the bounds of the reference
// evaluator: half a unit in the last place, plus the error of arithmetic in f32.
func TestHalfFunctions(t *testing.T) {
	b := newBench(t)
	exact := map[ir.Op]func(x float64) (y, lost float64){
		ir.OpGelu: func(x float64) (float64, float64) {
			return x / 2 * math.Erfc(-x/math.Sqrt2), 16 * 0x1p-24 * math.Abs(x)
		},
		ir.OpGeluTanh: func(x float64) (float64, float64) {
			return x / (1 + math.Exp(-math.Sqrt(8/math.Pi)*(x+0.044715*x*x*x))), 16*0x1p-24*math.Abs(x) + 0x1p-126
		},
		ir.OpTanh: func(x float64) (float64, float64) {
			return math.Tanh(x), 8*0x1p-23*math.Abs(math.Tanh(x)) + 0x1p-126
		},
		ir.OpSin: func(x float64) (float64, float64) {
			return math.Sin(x), 8 * 0x1p-23 * math.Abs(math.Sin(x))
		},
		ir.OpCos: func(x float64) (float64, float64) {
			return math.Cos(x), 8 * 0x1p-23 * math.Abs(math.Cos(x))
		},
		ir.OpSilu: func(x float64) (float64, float64) {
			y := x / (1 + math.Exp(-x))
			return y, 8*0x1p-23*math.Abs(y) + 4*math.Abs(x)*0x1p-126
		},
	}
	for dt, f := range map[ir.DType]struct{ digits, least int }{ir.F16: {11, -14}, ir.BF16: {8, -126}} {
		for op, of := range exact {
			const n = 1 << 16
			in, out := b.room(dt, layouts[0], n), b.room(dt, layouts[0], n)
			for i := range n {
				at := int64(in.Addr) - memoryAt + 2*int64(i)
				b.mem[at], b.mem[at+1] = byte(i), byte(i>>8)
			}
			b.add("all", Computation{Op: device.OpOf(op, ir.Attrs{}), Ins: []Operand{in}, Out: out}, func() {
				xs, ys := b.vals(in), b.vals(out)
				for i, x := range xs {
					y, lost := of(x)
					if math.IsNaN(y) {
						if !math.IsNaN(ys[i]) {
							t.Errorf("%s of %s %v is %v", op, dt, x, ys[i])
						}
						continue
					}
					_, exp := math.Frexp(y)
					unit := math.Ldexp(1, max(exp-1, f.least)-f.digits+1)
					if off := math.Abs(ys[i] - y); off > unit/2+lost {
						t.Fatalf("%s of %s %v is %v, not %v: off by %.3g units, which is %.3g of the permitted loss", op, dt, x, ys[i], y, off/unit, (off-unit/2)/lost)
					}
				}
			})
		}
	}
	b.run()
}
