package kernels

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// attend returns the expected results of an attention and of attention_lse. Keys that a query does not see have no
// effect.
func (c gradCase) attend(q, k, v values, causal bool) (y, lse []float64) {
	y = make([]float64, len(q.vals))
	for i := range int64(len(q.vals)) / c.dh {
		h, t, b := i%c.hq, i/c.hq%c.tq, i/c.hq/c.tq
		at := func(j int64) int64 { return ((b*c.tk+j)*c.hv + h/(c.hq/c.hv)) * c.dh }
		sees := c.tk
		if causal {
			sees = t + 1 + c.tk - c.tq
		}
		weights, sum := make([]float64, sees), 0.0
		for j := range sees {
			dot := 0.0
			for d := range c.dh {
				dot += q.vals[i*c.dh+d] * k.vals[at(j)+d]
			}
			weights[j] = math.Exp(c.scale * dot)
			sum += weights[j]
		}
		for j, w := range weights {
			for d := range c.dh {
				y[i*c.dh+d] += w / sum * v.vals[at(int64(j))+d]
			}
		}
		lse = append(lse, math.Log(sum))
	}
	return y, lse
}

// compareLSE compares both results of an attention with LSE. If odd is set, one value of v that only some queries see
// is not finite.
func compareLSE(r *trial, c gradCase, dt ir.DType, l layout, causal, odd bool) {
	shape, kv := append(slices.Clone(c.lead), c.tq, c.hq, c.dh), append(slices.Clone(c.lead), c.tk, c.hv, c.dh)
	rows := shape[:len(shape)-1]
	q, k, v := noise(dt, shape...), noise(dt, kv...), noise(dt, kv...)
	slices.Reverse(v.vals)
	if odd {
		v.vals[(c.tk-2)*c.hv*c.dh+3] = math.Inf(1)
	}
	y, lse := c.attend(q, k, v, causal)
	p := Computation{Op: device.Attention{Scale: c.scale, Causal: causal, LSE: true}, Out: r.room(dt, l, shape...)}
	for _, x := range []values{q, k, v} {
		p.Ins = append(p.Ins, r.put(dt, l, x.vals, x.shape...))
	}
	p.Stored = []Operand{r.room(ir.F32, l, rows...)}
	what := fmt.Sprintf("%s %v of %v and %v, causal %v, odd %v, %s", dt, c, shape, kv, causal, odd, l.name)
	r.add(what, p, func() {
		same(r.t, what, r.vals(p.Out), y, 2*unit(dt))
		same(r.t, what+": lse", r.vals(p.Stored[0]), lse, 64*unit(ir.F32))
	})
}

// TestFlashWithLSE tests attention that also stores attention_lse, on Hopper's tensor cores and on others.
func TestFlashWithLSE(t *testing.T) {
	t.Parallel()
	for arch, kernel := range map[string]string{"sm_80": "hocket_flash_", "sm_90a": "hocket_flashHopper_"} {
		r := newTrial(t)
		hopper(r.bench)
		r.arch = arch
		for i, c := range []gradCase{{nil, 5, 130, 4, 2, 64, 0.125}, {[]int64{2}, 150, 150, 2, 2, 128, -0.25},
			{nil, 70, 390, 3, 1, 128, 0.1}, {[]int64{2, 3}, 1, 65, 8, 1, 64, 1}, {nil, 200, 200, 4, 2, 64, 0}} {
			for j, dt := range []ir.DType{ir.F16, ir.BF16} {
				compareLSE(r, c, dt, layouts[i%2*2], (i+j)%2 == 0, false)
			}
		}
		compareLSE(r, gradCase{nil, 200, 200, 4, 2, 64, 0.2}, ir.BF16, layouts[0], true, true)
		if arch == "sm_80" {
			compareLSE(r, gradCase{[]int64{2}, 70, 70, 2, 1, 80, 0.3}, ir.BF16, layouts[2], true, false)
		}
		for _, l := range r.launches {
			if s := l.code.symbol; !strings.HasPrefix(s, kernel) || !strings.HasSuffix(s, "WithLSE") {
				t.Errorf("%s: %s", arch, s)
			}
		}
		r.run()
	}
}

// TestAttentionTakesLSE checks which attentions can also store attention_lse. Other attentions are declined, or refused
// if the operands do not match.
func TestAttentionTakesLSE(t *testing.T) {
	x := func(dt ir.DType, shape ...int64) Operand { return Operand{256, dt, shape, rowMajor(shape)} }
	type given struct {
		q, k, lse Operand
		op        device.Attention
	}
	rows := x(ir.F32, 2048, 16)
	usual := given{x(ir.BF16, 2048, 16, 128), x(ir.BF16, 2048, 4, 128), rows, device.Attention{}}
	for what, c := range map[string]struct {
		change           func(*given)
		declines, refuse bool
	}{
		"a layer": {func(*given) {}, false, false}, "causal": {func(g *given) { g.op.Causal = true }, false, false},
		"fixed": {func(g *given) { g.op.Fixed = true }, true, false},
		"few blocks": {func(g *given) {
			g.q, g.k, g.lse = x(ir.BF16, 64, 16, 128), x(ir.BF16, 4096, 4, 128), x(ir.F32, 64, 16)
		}, true, false},
		"f32": {func(g *given) {
			g.q, g.k = x(ir.F32, 2048, 16, 128), x(ir.F32, 2048, 4, 128)
		}, true, false},
		"softcap": {func(g *given) { g.op.Softcap = 2 }, false, true},
		"window":  {func(g *given) { g.op.Window = 5 }, false, true},
		"rows":    {func(g *given) { g.lse = x(ir.F32, 2048, 8) }, false, true},
		"type":    {func(g *given) { g.lse = x(ir.BF16, 2048, 16) }, false, true},
	} {
		g := usual
		c.change(&g)
		g.op.Scale, g.op.LSE = 1, true
		l, err := drafted(Computation{Op: g.op, Ins: []Operand{g.q, g.k, g.k}, Stored: []Operand{g.lse}, Out: g.q},
			Target{Arch: "sm_90a"})
		declined := errors.Is(err, device.ErrUnsupported)
		if (err != nil) != (c.declines || c.refuse) || declined != c.declines || err == nil && len(l) != 1 {
			t.Errorf("%s: %v, %v", what, l, err)
		}
	}
}
