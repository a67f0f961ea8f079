package kernels

import (
	"math"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/longtest"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// gradCase is a shape of an attention whose gradients are compared with those of the CPU machine.
type gradCase struct {
	lead           []int64
	tq, tk, hq, hv int64
	dh             int64
	scale          float64
}

// compareGrads compares attention_lse, attention_dq and attention_dkv. lse and delta are computed from the operands by
// separate arithmetic, so that the weights are those of a softmax.
func compareGrads(r *trial, c gradCase, dt ir.DType, l layout, causal bool, slack float64) {
	shape := append(slices.Clone(c.lead), c.tq, c.hq, c.dh)
	kv := append(slices.Clone(c.lead), c.tk, c.hv, c.dh)
	rows := shape[:len(shape)-1]
	q, k, v, dy := noise(dt, shape...), noise(dt, kv...), noise(dt, kv...), noise(dt, shape...)
	slices.Reverse(v.vals)
	slices.Reverse(dy.vals)
	acc := dt.Accum()
	lse, delta := values{acc, rows, nil}, values{acc, rows, nil}
	for i := range int64(len(q.vals)) / c.dh {
		h, t, b := i%c.hq, i/c.hq%c.tq, i/c.hq/c.tq
		dot := func(x, y values, j int64) (sum float64) {
			at := ((b*c.tk+j)*c.hv + h/(c.hq/c.hv)) * c.dh
			for d := range c.dh {
				sum += x.vals[i*c.dh+d] * y.vals[at+d]
			}
			return sum
		}
		sees, sum, mean := c.tk, 0.0, 0.0
		if causal {
			sees = t + 1 + c.tk - c.tq
		}
		for j := range sees {
			p := math.Exp(c.scale * dot(q, k, j))
			sum, mean = sum+p, mean+p*dot(dy, v, j)
		}
		lse.vals = append(lse.vals, tensor.Round(acc, math.Log(sum)))
		delta.vals = append(delta.vals, tensor.Round(acc, mean/sum))
	}
	for _, op := range []ir.Op{ir.OpAttentionLSE, ir.OpAttentionDQ, ir.OpAttentionDKV} {
		kernel := device.Kernel{Op: device.AttentionGrad{Op: op, Scale: c.scale, Causal: causal}}
		switch op {
		case ir.OpAttentionLSE:
			r.compare(kernel, l, 64, acc, rows, q, k)
		case ir.OpAttentionDQ:
			r.compare(kernel, l, slack, dt, shape, q, k, v, dy, lse, delta)
		default:
			r.compare(kernel, l, slack, dt, append([]int64{2}, kv...), q, k, v, dy, lse, delta)
		}
	}
}

// TestAttentionGrad tests gradients of attention without tensor cores.
func TestAttentionGrad(t *testing.T) {
	t.Parallel()
	r := newTrial(t)
	for i, c := range []gradCase{{nil, 5, 7, 4, 2, 3, 0.5}, {[]int64{2}, 3, 300, 2, 1, 8, -0.25}, {[]int64{2, 2}, 6, 6, 1, 1, 300, 0.1},
		{nil, 1, 1, 2, 2, 1, 1}} {
		for j, dt := range []ir.DType{ir.F32, ir.F64, ir.BF16} {
			compareGrads(r, c, dt, layouts[(i+j)%len(layouts)], (i+j)%2 == 0, 64)
		}
	}
	for _, l := range r.launches {
		if !strings.HasPrefix(l.code.symbol, "hocket_attention") {
			t.Errorf("%s uses tensor cores", l.code.symbol)
		}
	}
	r.run()
}

// TestFlashGradHopper tests gradients of attention on Hopper's tensor cores, with numbers of queries and keys that fill
// tiles and that do not, with fewer queries than keys, and with heads that are split into parts.
func TestFlashGradHopper(t *testing.T) {
	t.Parallel()
	r := newTrial(t)
	r.arch = "sm_90a"
	for i, c := range []gradCase{{nil, 5, 130, 4, 2, 64, 0.125}, {[]int64{2}, 150, 150, 2, 2, 128, -0.25},
		{nil, 70, 390, 3, 1, 128, 0.1}, {[]int64{2, 3}, 1, 65, 8, 1, 64, 1}, {nil, 200, 200, 4, 2, 64, 0},
		{nil, 320, 320, 2, 1, 64, 0.3}} {
		for j, dt := range []ir.DType{ir.F16, ir.BF16} {
			causal := (i+j)%2 == 0
			compareGrads(r, c, dt, layouts[i%2*2], causal, 1)
			if longtest.On() {
				compareGrads(r, c, dt, layouts[i%2*2], !causal, 1)
			}
		}
	}
	for _, l := range r.launches {
		if !strings.Contains(l.code.symbol, "Hopper_") && !strings.HasPrefix(l.code.symbol, "hocket_flashGradJoin") {
			t.Errorf("%s does not use Hopper's tensor cores", l.code.symbol)
		}
	}
	r.run()
}

// TestFlashGrad tests gradients of attention on tensor cores, with numbers of queries, keys and heads that fill tiles
// and that do not, and with heads that are split into parts.
func TestFlashGrad(t *testing.T) {
	t.Parallel()
	r := newTrial(t)
	for i, c := range []gradCase{{nil, 5, 130, 4, 2, 64, 0.125}, {[]int64{2}, 150, 150, 2, 2, 16, -0.25}, {nil, 70, 70, 3, 1, 128, 0.1},
		{[]int64{2, 3}, 1, 65, 8, 1, 32, 1}, {nil, 129, 191, 1, 1, 80, 0}, {nil, 64, 64, 2, 1, 112, 0.3}} {
		for j, dt := range []ir.DType{ir.F16, ir.BF16} {
			causal := (i+j)%2 == 0
			compareGrads(r, c, dt, layouts[i%2*2], causal, 1)
			if longtest.On() {
				compareGrads(r, c, dt, layouts[i%2*2], !causal, 1)
			}
		}
	}
	joins := false
	for _, l := range r.launches {
		joins = joins || strings.HasPrefix(l.code.symbol, "hocket_flashGradJoin")
		if !strings.HasPrefix(l.code.symbol, "hocket_flash") {
			t.Errorf("%s does not use tensor cores", l.code.symbol)
		}
	}
	if !joins {
		t.Error("no heads were split into parts")
	}
	r.run()
}
