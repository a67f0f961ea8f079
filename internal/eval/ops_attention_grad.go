package eval

import (
	"fmt"
	"math"
	"slices"

	"hocket.example/hocket/ir"
)

// gradOf holds the operands of attention_lse, attention_dq and attention_dkv. For attention_lse, v and the operands
// after it are absent.
type gradOf struct {
	heads
	q, k, v, dy, lse, delta *array
	// finite reports that all elements of all operands are finite numbers. Otherwise the result is unknown, because a
	// weight of 0 does not always remove an infinity or a NaN.
	finite bool
}

func newGradOf(op ir.Op, at attrs, ins []*array, dt ir.DType) (g gradOf, err error) {
	g.q, g.k, g.v, g.dy, g.finite = ins[0], ins[1], ins[1], ins[0], true
	if len(ins) == 6 {
		g.v, g.dy, g.lse, g.delta = ins[2], ins[3], ins[4], ins[5]
	}
	q, k, n := g.q.shape, g.k.shape, len(g.q.shape)
	if n < 3 || len(k) != n || !slices.Equal(k, g.v.shape) || !slices.Equal(q, g.dy.shape) || q[n-1] != k[n-1] ||
		!slices.Equal(q[:n-3], k[:n-3]) || k[n-2] == 0 || q[n-2]%k[n-2] != 0 {
		return g, fmt.Errorf("%s of shapes %v and %v", op, q, k)
	}
	for _, a := range ins[min(4, len(ins)):] {
		if !slices.Equal(a.shape, q[:n-1]) {
			return g, fmt.Errorf("%s of shapes %v and %v", op, q, a.shape)
		}
	}
	for _, a := range ins {
		g.finite = g.finite && !slices.ContainsFunc(a.f, func(x float64) bool { return x-x != 0 })
	}
	g.heads = heads{tq: q[n-3], tk: k[n-3], hq: q[n-2], hkv: k[n-2], dh: q[n-1], dt: dt, causal: at.causal}
	if g.scale = at.number(0).f; !at.scaled {
		g.scale = ir.AttentionScale(g.dh)
	}
	return g, nil
}

// each calls f for each query of each head. The argument r is the row of the query in lse, and sees is the number
// of keys that the query uses.
func (g gradOf) each(at attrs, f func(r, sees int64)) error {
	for r := range g.q.len() / g.dh {
		if err := at.ended(); err != nil {
			return err
		}
		i := r / g.hq % g.tq
		sees, _ := g.sees(0, i)
		f(r, sees)
	}
	return nil
}

// key returns the index of the first element of key j of the keys that row r uses.
func (g gradOf) key(r, j int64) int64 {
	return ((r/g.hq/g.tq*g.tk+j)*g.hkv + r%g.hq/(g.hq/g.hkv)) * g.dh
}

// attentionLSE computes log Σ exp of the scores of each query. Errors of the scores change it by at most the largest of
// these errors.
func attentionLSE(at attrs, ins []*array, dt ir.DType) (*array, error) {
	g, err := newGradOf(ir.OpAttentionLSE, at, ins, ins[0].dt)
	if err != nil {
		return nil, err
	}
	out := newArray(dt, g.q.shape[:len(g.q.shape)-1])
	u := stepUnit(dt)
	err = g.each(at, func(r, sees int64) {
		x, top, off := make([]float64, sees), math.Inf(-1), 0.0
		for j := range x {
			var ex float64
			x[j], ex = g.score(g.q, g.k, r*g.dh, g.key(r, int64(j)))
			top, off = max(top, x[j]), max(off, ex+4*u*(math.Abs(x[j])+ex))
		}
		sum := 0.0
		for _, v := range x {
			sum += math.Exp(v - top)
		}
		y := top + math.Log(sum)
		off += 8*u*(math.Abs(top)+off+math.Log(sum)) + 2*steps(dt) + gamma(sees+2, u) + vanishing(dt)*float64(sees)
		if out.f[r], out.e[r] = finish(dt, y, off); !g.finite {
			out.e[r] = inf
		}
	})
	return out, err
}

// known holds a number and the bound on its difference from a machine's number.
type known struct{ y, e float64 }

// weight returns exp(score - lse) for row r and a key.
func (g gradOf) weight(r, key int64) known {
	u := stepUnit(g.dt.Accum())
	s, es := g.score(g.q, g.k, r*g.dh, key)
	lse, el := g.lse.f[r], g.lse.e[r]
	p := math.Exp(s - lse)
	off := es + el + 4*u*(math.Abs(s)+math.Abs(lse)+es+el) + steps(g.dt)
	return known{p, p*math.Expm1(off) + vanishing(g.dt)}
}

// raised returns p·(dy·vᵀ - delta) for row r and a key.
func (g gradOf) raised(r, key int64, p known) known {
	u := stepUnit(g.dt.Accum())
	dp := sumOf{acc: g.dt.Accum(), n: g.dh}
	for d := range g.dh {
		a, b := g.dy.f[r*g.dh+d], g.v.f[key+d]
		dp.y, dp.abs = dp.y+a*b, dp.abs+math.Abs(a*b)
		dp.prop += productError(a, g.dy.e[r*g.dh+d], b, g.v.e[key+d])
	}
	t := dp.y - g.delta.f[r]
	off := dp.inRank() + g.delta.e[r]
	off += 4 * u * (math.Abs(dp.y) + math.Abs(g.delta.f[r]) + off)
	ds := p.y * t
	e := productError(p.y, p.e, t, off)
	return known{ds, e + 4*u*(math.Abs(ds)+e) + vanishing(g.dt)}
}

// stored returns a factor with the additional error that results if a machine rounds it to the type of the
// operands.
func (g gradOf) stored(x known) known {
	return known{x.y, x.e + unit(g.dt)*(math.Abs(x.y)+x.e) + ulp(g.dt, 0)}
}

// plus adds the term x·a[at] to a sum.
func (s *sumOf) plus(x known, a *array, at int64) {
	t := x.y * a.f[at]
	s.y, s.abs, s.n = s.y+t, s.abs+math.Abs(t), s.n+1
	s.prop += productError(x.y, x.e, a.f[at], a.e[at])
}

// scaled returns a sum that is multiplied by scale, where a machine may multiply before or after it adds the terms.
func (g gradOf) scaled(s sumOf) sumOf {
	c, u := math.Abs(g.scale), stepUnit(s.acc)
	mag := s.abs + s.prop
	s.prop = s.prop*c + mag*constantError(g.dt, g.scale) + 4*u*mag*c
	s.y, s.abs, s.n = s.y*g.scale, s.abs*c, s.n+2
	return s
}

// attentionDQ computes scale · ds·k.
func attentionDQ(at attrs, ins []*array, dt ir.DType) (*array, error) {
	g, err := newGradOf(ir.OpAttentionDQ, at, ins, dt)
	if err != nil {
		return nil, err
	}
	out := contraction{newArray(dt, g.q.shape), alone}
	err = g.each(at, func(r, sees int64) {
		sums := slices.Repeat([]sumOf{{acc: dt.Accum()}}, int(g.dh))
		for j := range sees {
			key := g.key(r, j)
			ds := g.stored(g.raised(r, key, g.weight(r, key)))
			for d := range sums {
				sums[d].plus(ds, g.k, key+int64(d))
			}
		}
		for d, s := range sums {
			g.store(out, r*g.dh+int64(d), g.scaled(s))
		}
	})
	return out.array, err
}

// store stores sum s as element i, or an unknown element if some operand is not finite.
func (g gradOf) store(out contraction, i int64, s sumOf) {
	if out.store(i, s); !g.finite {
		out.e[i] = inf
	}
}

// attentionDKV computes scale · dsᵀ·q and pᵀ·dy, in this order.
func attentionDKV(at attrs, ins []*array, dt ir.DType, sp split) (*array, error) {
	g, err := newGradOf(ir.OpAttentionDKV, at, ins, dt)
	if err != nil {
		return nil, err
	}
	out := newContraction(dt, append([]int64{2}, g.k.shape...), sp)
	n := g.k.len()
	sums := slices.Repeat([]sumOf{{acc: dt.Accum()}}, int(2*n))
	err = g.each(at, func(r, sees int64) {
		for j := range sees {
			key := g.key(r, j)
			p := g.weight(r, key)
			ds := g.stored(g.raised(r, key, p))
			p = g.stored(p)
			for d := range g.dh {
				sums[key+d].plus(ds, g.q, r*g.dh+d)
				sums[n+key+d].plus(p, g.dy, r*g.dh+d)
			}
		}
	})
	for i, s := range sums {
		if int64(i) < n {
			s = g.scaled(s)
		}
		g.store(out, int64(i), s)
	}
	return out.array, err
}
