package eval

import (
	"math"

	"hocket.example/hocket/ir"
)

// This file holds the rules of operations that normalise a row: softmax, which attention contains, and the norms.

// weights holds the weights of a softmax row. The field p holds the weights of the row as the evaluator has it. A
// correct machine may have another row within the bounds; its weights in real arithmetic differ from p by at most e
// and do not exceed most. A machine that computes in the accumulator type obtains these weights up to a factor of 1
// ± rel.
type weights struct{ p, e, most, rel []float64 }

// weigh returns the softmax weights of x, whose elements have the error bounds ex. The result ok is false if the
// weights have no bound.
func weigh(dt ir.DType, x, ex []float64) (w weights, ok bool) {
	n := len(x)
	w = weights{make([]float64, n), make([]float64, n), make([]float64, n), make([]float64, n)}
	top, worst := math.Inf(-1), 0.0
	for j, v := range x {
		top, worst = max(top, v), max(worst, ex[j])
	}
	if math.IsInf(top, 0) || top != top {
		return w, false
	}
	w.spread(x, ex, top)
	return w, w.lose(dt, x, top, worst)
}

// spread computes the weights and their ranges. The weight of an element is largest if the element itself is as
// large as its bound allows and all others are as small as possible.
func (w weights) spread(x, ex []float64, top float64) {
	var sum, least, most float64
	for j, v := range x {
		w.p[j] = math.Exp(v - top)
		sum += w.p[j]
		least += w.p[j] * math.Exp(-ex[j])
		most += w.p[j] * math.Exp(ex[j])
	}
	for j, t := range w.p {
		lo, hi := t*math.Exp(-ex[j]), t*math.Exp(ex[j])
		up, down := 1.0, 0.0
		if others := least - lo; others > 0 {
			up = 1 / (1 + others/hi)
		}
		if others := most - hi; lo > 0 && others >= 0 && !math.IsInf(others, 1) {
			down = 1 / (1 + others/lo)
		}
		w.p[j] = t / sum
		w.e[j] = max(up-w.p[j], w.p[j]-down, 0) + stepUnit(ir.F64)*float64(len(x))*w.p[j]
		w.most[j] = min(1, w.p[j]+w.e[j])
	}
}

// lose computes rel, which bounds the rounding errors of a machine: the error of each exponent, and the error of the
// sum. The error of an exponent is proportional to the element and to the maximum that the machine subtracts from it.
// The machine may have scaled both before it subtracts.
func (w weights) lose(dt ir.DType, x []float64, top, worst float64) bool {
	u := stepUnit(dt.Accum())
	short := gamma(int64(len(x)), u) + float64(len(x))*vanishing(dt)
	for j, v := range x {
		if w.most[j] == 0 {
			continue // hidden: the weight is zero on every machine
		}
		w.rel[j] = math.Expm1(u*(math.Abs(v)+math.Abs(top)+2*worst) + steps(dt))
		short += w.most[j] * w.rel[j]
	}
	for j := range w.rel {
		w.rel[j] = (1+w.rel[j])*(1+2*u)/(1-short) - 1
	}
	return short < 0.5
}

// row holds a row of numbers and a bound for each.
type row struct{ x, e []float64 }

// normalised applies the rule of dividing a row by the root of its mean square plus eps. If centred is set, the mean of
// the row is subtracted first. No result in a row of n elements exceeds √n on any machine. Therefore a result has a
// finite bound even if the errors of the row are as large as its elements. The function also returns the reciprocal of
// the root.
func normalised(dt ir.DType, in row, eps float64, centred bool) (row, known) {
	count, u := int64(len(in.x)), stepUnit(dt.Accum())
	n := float64(count)
	if centred {
		in = centre(dt, in)
	}
	squares := sumOf{acc: dt.Accum(), n: count}
	for j, c := range in.x {
		squares.y += c * c
		squares.prop += productError(c, in.e[j], c, in.e[j])
	}
	squares.abs = squares.y
	v, lost := squares.y/n+eps, squares.inRank()
	least := v - (lost/n + 2*u*v + constantError(dt, eps))
	root, most := 1/math.Sqrt(v), 1/math.Sqrt(least)
	limit := inf
	if eps > vanishing(dt) && !math.IsInf(lost, 1) {
		limit = math.Sqrt(n) * (1 + gamma(count, u) + steps(dt))
	}
	r := known{root, inf}
	if least > 0 {
		r.e = most - root + steps(dt)*most
	}
	z := row{make([]float64, count), make([]float64, count)}
	for j, c := range in.x {
		z.x[j], z.e[j] = c*root, inf
		if least > 0 {
			z.e[j] = productError(c, in.e[j], root, r.e) + 2*u*math.Abs(z.x[j])
		}
		z.e[j] = min(z.e[j], math.Abs(z.x[j])+limit)
	}
	return z, r
}

// centre subtracts a row's mean from each element.
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
