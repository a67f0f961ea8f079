package devicetest

import (
	"encoding/binary"
	"math"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// testHalves computes functions of every finite f16 and bf16 value. The error must be at most half a unit of the last
// place, plus the error of arithmetic in f32 by the rules of the reference evaluator.
func testHalves(r *rig) {
	r.open(1)
	formats := map[ir.DType]struct{ digits, least int }{ir.F16: {11, -14}, ir.BF16: {8, -126}}
	functions := map[ir.Op]func(x float64) (y, lost float64){
		ir.OpGelu: func(x float64) (float64, float64) {
			return x / 2 * math.Erfc(-x/math.Sqrt2), 16*0x1p-24*math.Abs(x) + 0x1p-126
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
	for dt, f := range formats {
		if !slices.Contains(r.dtypes(), dt) {
			continue
		}
		all := make([]byte, 2<<16)
		for i := range 1 << 16 {
			binary.LittleEndian.PutUint16(all[2*i:], uint16(i))
		}
		vals := make([]float64, 1<<16)
		tensor.ToFloat64(vals, all, dt)
		vals = slices.DeleteFunc(vals, func(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) })
		n := int64(len(vals))
		for op, of := range functions {
			in, out := r.put(0, given(dt, []int64{n}, vals...)), r.empty(0, dt, n)
			r.launch(r.mainOf(0), 0, device.Kernel{Op: device.OpOf(op, ir.Attrs{}), Ins: []device.View{in}, Outs: []device.View{out}})
			for i, got := range r.contents(0, out) {
				y, lost := of(vals[i])
				_, exp := math.Frexp(y)
				unit := math.Ldexp(1, max(exp-1, f.least)-f.digits+1)
				if off := math.Abs(got - y); !(off <= unit/2+lost) {
					r.Fatalf("%s of %s %v is %v, not %v: off by %.3g units of the last place", op, dt, vals[i], got, y, off/unit)
				}
			}
		}
	}
}
