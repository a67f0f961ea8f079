package eval

import (
	"math"

	"hocket.example/hocket/ir"
)

// The rules here are those of ops that normalise a row: softmax, which attention
// has inside, and the norms.

// weights are a softmax row: p are the weights in real arithmetic, and a machine
// that computes in the accumulator finds p[j] within p[j]·rel[j].
type weights struct{ p, rel []float64 }

// weigh is the softmax of x, known within ex. Errors of x count twice, in the
// element and in the sum. A machine loses of each exponent in proportion to x
// and to the maximum that it subtracts, which it may have scaled beforehand. ok
// is false where nothing can be said.
func weigh(dt ir.DType, x, ex []float64) (w weights, ok bool) {
	u := stepUnit(dt.Accum())
	top, worst := math.Inf(-1), 0.0
	for j, v := range x {
		top, worst = max(top, v), max(worst, ex[j])
	}
	if math.IsInf(top, 0) || top != top {
		return weights{make([]float64, len(x)), make([]float64, len(x))}, false
	}
	w = weights{make([]float64, len(x)), make([]float64, len(x))}
	grow := math.Exp(2 * worst)
	sum, lost := 0.0, 0.0
	for j, v := range x {
		if math.IsInf(v, -1) && ex[j] == 0 {
			continue // hidden: no weight on any machine
		}
		w.p[j] = math.Exp(v - top)
		w.rel[j] = math.Expm1(u*(math.Abs(v)+math.Abs(top)+2*worst) + steps(dt))
		sum += w.p[j]
		lost += w.p[j] * w.rel[j]
	}
	short := grow*lost/sum + gamma(int64(len(x)), u) + float64(len(x))*vanishing(dt)
	if !(short < 0.5) {
		return w, false
	}
	for j := range w.p {
		w.p[j] /= sum
		w.rel[j] = grow*(1+w.rel[j])*(1+2*u)/(1-short) - 1
	}
	return w, true
}

// row is a row of numbers, each with its bound.
type row struct{ x, e []float64 }

// normalised is the rule of dividing a row by the root of its mean square and
// eps, after taking its mean away if centred. Means are taken in one pass each.
// ok is false where the root may be that of nothing.
func normalised(dt ir.DType, in row, eps float64, centred bool) (z row, ok bool) {
	n, u := float64(len(in.x)), stepUnit(dt.Accum())
	if centred {
		in = centre(dt, in)
	}
	squares := sumOf{acc: dt.Accum(), n: int64(len(in.x))}
	for j, c := range in.x {
		squares.y += c * c
		squares.prop += productError(c, in.e[j], c, in.e[j])
	}
	squares.abs = squares.y
	v := squares.y/n + eps
	ev := squares.inRank()/n + 2*u*v + constantError(dt, eps)
	z = row{make([]float64, len(in.x)), make([]float64, len(in.x))}
	root := 1 / math.Sqrt(v)
	for j, c := range in.x {
		z.x[j] = c * root
	}
	if !(v > ev) {
		return z, false
	}
	most := 1 / math.Sqrt(v-ev)
	for j, c := range in.x {
		z.e[j] = productError(c, in.e[j], root, most-root+steps(dt)*most) + 2*u*math.Abs(z.x[j])
	}
	return z, true
}

// centre takes a row's mean away.
func centre(dt ir.DType, in row) row {
	u := stepUnit(dt.Accum())
	s := sumOf{acc: dt.Accum(), n: int64(len(in.x))}
	for j, v := range in.x {
		s.y, s.abs, s.prop = s.y+v, s.abs+math.Abs(v), s.prop+in.e[j]
	}
	mean := s.y / float64(s.n)
	off := s.inRank()/float64(s.n) + 2*u*math.Abs(mean)
	out := row{make([]float64, len(in.x)), make([]float64, len(in.x))}
	for j, v := range in.x {
		out.x[j] = v - mean
		out.e[j] = in.e[j] + off + 2*u*(math.Abs(v-mean)+in.e[j]+off)
	}
	return out
}
