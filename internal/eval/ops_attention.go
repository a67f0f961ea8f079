package eval

import (
	"fmt"
	"math"
	"slices"

	"hocket.example/hocket/ir"
)

// attention computes softmax(scale · q·kᵀ)·v for each leading index and head. If lengths are given, only that many
// first keys of each sequence are used. The result of a query that uses no key is zero.
func attention(at attrs, ins []*array, dt ir.DType) (*array, error) {
	q, k, v := ins[0], ins[1], ins[2]
	n := len(q.shape)
	if n < 3 || len(k.shape) != n || !slices.Equal(k.shape, v.shape) || !slices.Equal(q.shape[:n-3], k.shape[:n-3]) ||
		q.shape[n-1] != k.shape[n-1] || k.shape[n-2] == 0 || q.shape[n-2]%k.shape[n-2] != 0 {
		return nil, fmt.Errorf("attention cannot combine the shapes %v, %v and %v", q.shape, k.shape, v.shape)
	}
	h := heads{tq: q.shape[n-3], tk: k.shape[n-3], hq: q.shape[n-2], hkv: k.shape[n-2], dh: q.shape[n-1], dt: dt,
		causal: at.causal}
	if h.scale = at.number(0).f; !at.scaled {
		h.scale = ir.AttentionScale(h.dh)
	}
	h.window, h.cap = int64(at.number(1).f), at.number(2).f
	if last := len(ins) - 1; last > 2 && ins[last].n == nil {
		h.mask, ins = ins[last], ins[:last]
	}
	if len(ins) == 4 {
		h.lengths, h.perQuery = ins[3], len(ins[3].shape) == n-2
		for _, v := range h.lengths.n {
			if v < 0 || v > h.tk {
				return nil, &finding{"range",
					fmt.Sprintf("length %d is outside 0 to %d, the keys that are kept", v, h.tk), "a length counts keys"}
			}
		}
	}
	out := newArray(dt, q.shape)
	for b := range elements(q.shape[:n-3]) {
		for i := range h.tq {
			if err := at.ended(); err != nil {
				return nil, err
			}
			for head := range h.hq {
				h.query(out, q, k, v, b, i, head)
			}
		}
	}
	return out, nil
}

// heads holds the extents of an attention.
type heads struct {
	tq, tk, hq, hkv, dh int64
	dt                  ir.DType
	scale               float64
	causal              bool
	window              int64   // 0 for all keys
	cap                 float64 // 0 for none
	lengths             *array  // numbers of keys of each sequence or, if perQuery is set, of each query; nil for all keys
	perQuery            bool
	mask                *array // masks of the sequences, or one mask for all; nil for none
}

// sees returns the number of keys that query i of batch b uses, and reports whether this number is certain.
func (h heads) sees(b, i int64) (n int64, known bool) {
	n, known = h.tk, true
	if h.lengths != nil {
		at := b
		if h.perQuery {
			at = b*h.tq + i
		}
		n, known = h.lengths.n[at], h.lengths.e[at] == 0
	}
	if h.causal {
		n = max(0, min(n, i+1+n-h.tq))
	}
	return n, known
}

// query computes the result of query i of one head of batch b.
func (h heads) query(out, q, k, v *array, b, i, head int64) {
	sees, known := h.sees(b, i)
	from := ((b*h.tq+i)*h.hq + head) * h.dh
	key := func(j int64) int64 { return ((b*h.tk+j)*h.hkv + head/(h.hq/h.hkv)) * h.dh }
	first := int64(0)
	if h.window > 0 {
		first = max(0, sees-h.window)
	}
	x, ex := make([]float64, sees-first), make([]float64, sees-first)
	for j := range x {
		x[j], ex[j] = h.capped(h.score(q, k, from, key(first+int64(j))))
		if h.mask != nil {
			at := (b*h.tq+i)*h.tk + first + int64(j)
			x[j], ex[j] = h.masked(x[j], ex[j], at%h.mask.len())
		}
	}
	hide(x, ex)
	if sees == 0 && known {
		return // zeros
	}
	w, ok := weigh(h.dt, x, ex)
	ok = ok && known
	for d := range h.dh {
		y, pre := h.mixed(w, v, func(j int64) int64 { return key(first+j) + d })
		if !ok {
			pre = inf
		}
		out.f[from+d], out.e[from+d] = finish(h.dt, y, pre)
	}
}

// score returns the scaled product of a query and a key. A machine may scale the query or the key before it multiplies.
func (h heads) score(q, k *array, p, r int64) (x, ex float64) {
	s := sumOf{acc: h.dt.Accum(), n: h.dh, ints: true}
	for d := range h.dh {
		a, b := q.f[p+d], k.f[r+d]
		s.y += a * b
		s.abs += math.Abs(a * b)
		s.prop += productError(a, q.e[p+d], b, k.e[r+d])
		s.ints = s.ints && q.exactInteger(p+d) && k.exactInteger(r+d)
	}
	pre := 0.0
	if !s.exact(s.acc) {
		pre = s.inRank()
	}
	u := stepUnit(s.acc)
	return s.y * h.scale, productError(s.abs, pre, h.scale,
		constantError(h.dt, h.scale)) + 2*u*(s.abs+pre)*math.Abs(h.scale)
}

// capped applies a soft cap to a score. The slope of the cap is between 0 and 1. A machine may divide by the cap or
// multiply by its inverse.
func (h heads) capped(x, ex float64) (float64, float64) {
	if h.cap == 0 {
		return x, ex
	}
	y := h.cap * math.Tanh(x/h.cap)
	lost := 4*stepUnit(h.dt.Accum())*math.Abs(x) + 2*constantError(h.dt, h.cap)
	return y, min(ex+lost, 2*h.cap) + (steps(h.dt)+4*stepUnit(h.dt.Accum()))*math.Abs(y) + vanishing(h.dt)*(1+h.cap)
}

// masked returns a score plus an element of the mask.
func (h heads) masked(x, ex float64, at int64) (float64, float64) {
	m, e := h.mask.f[at], h.mask.e[at]
	if math.IsInf(m, -1) && e == 0 {
		return m, 0
	}
	return x + m, ex + e + 2*stepUnit(h.dt.Accum())*(math.Abs(x)+math.Abs(m)+ex+e)
}

// hide sets a score to minus infinity if it is so far below the largest score that its weight is zero on every
// machine.
func hide(x, ex []float64) {
	top := math.Inf(-1)
	for j, v := range x {
		top = max(top, v-ex[j])
	}
	for j, v := range x {
		if v+ex[j] < top-2000 {
			x[j], ex[j] = math.Inf(-1), 0
		}
	}
}

// mixed returns the mean of values, weighted by w. A machine may first round the weights to the type of the
// operands. An error in the weights changes the mean by at most the distance between the mean and the value that is
// farthest from it.
func (h heads) mixed(w weights, v *array, at func(j int64) int64) (y, pre float64) {
	for j, p := range w.p {
		y += p * v.f[at(int64(j))]
	}
	var moved, farthest, off, offMost, lost, lostMost, mag, tiny float64
	for j, p := range w.most {
		i := at(int64(j))
		a, e := math.Abs(v.f[i])+v.e[i], v.e[i]
		if p == 0 {
			tiny += vanishing(h.dt) * a
			continue
		}
		rel := w.rel[j] + unit(h.dt)*(1+w.rel[j])
		far := math.Abs(v.f[i] - y)
		moved, farthest = moved+w.e[j]*far, max(farthest, far)
		off, offMost = off+p*e, max(offMost, e)
		lost, lostMost = lost+p*rel*a, max(lostMost, rel*a)
		mag = max(mag, a*(1+rel))
		tiny += (ulp(h.dt, 0) + vanishing(h.dt)) * a
	}
	pre = min(moved, farthest) + min(off, offMost) + min(lost, lostMost)
	return y, pre + gamma(int64(len(w.p))+2, stepUnit(h.dt.Accum()))*mag + tiny + vanishing(h.dt)
}
