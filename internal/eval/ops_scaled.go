package eval

import (
	"fmt"
	"math"
	"slices"

	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// unscaled lists the dimensions of an operand along which elements share scales. unscaled lists all dimensions or, if
// each row has a scale, all but the leading ones.
func unscaled(s *ir.Stmt, dims int) []int {
	var list []int
	switch block := s.Attr("block"); {
	case block == nil:
		for d := range dims {
			list = append(list, d)
		}
	case len(block.Exprs) == 1:
		list = []int{dims - 1}
	}
	return list
}

// scaling maps each element of a tensor to its scale.
type scaling struct {
	scales     *array
	k          int64 // elements of a row
	rows, cols int64 // numbers of rows and columns of elements that share a scale
	perRow     int64 // scales of a row of blocks
}

func (s scaling) index(row, col int64) int64 { return row/s.rows*s.perRow + col/s.cols }

// scalingOf derives from the two shapes how scales apply: one scale for the tensor, one for each row, one for each 128
// elements of a row, or one for each block of 128 by 128 elements.
func scalingOf(shape []int64, scales *array) (scaling, error) {
	s := scaling{scales: scales, k: 1, rows: 1 << 62, cols: 1 << 62}
	n := len(shape)
	if n > 0 {
		s.k = shape[n-1]
	}
	switch got := scales.shape; {
	case len(got) == 0:
		return s, nil
	case n > 0 && slices.Equal(got, shape[:n-1]):
		s.rows, s.perRow = 1, 1
		return s, nil
	case n > 0 && len(got) == n && got[n-1] == (s.k+127)/128:
		s.rows, s.cols, s.perRow = 1, 128, got[n-1]
		if slices.Equal(got[:n-1], shape[:n-1]) {
			return s, nil
		}
		s.rows = 128
		if n == 2 && got[0] == (shape[0]+127)/128 {
			return s, nil
		}
	}
	return s, fmt.Errorf("scales of shape %v for %v", scales.shape, shape)
}

// scales computes the largest magnitude of each block divided by top. Each quotient is rounded to f32.
func scales(top float64, x *array, shape []int64) (*array, error) {
	out := newArray(ir.F32, shape)
	s, err := scalingOf(x.shape, out)
	if err != nil {
		return nil, err
	}
	for i := range x.len() {
		at := s.index(i/s.k, i%s.k)
		out.f[at], out.e[at] = max(out.f[at], math.Abs(x.f[i])), max(out.e[at], x.e[i])
	}
	top = tensor.Round(ir.F32, top)
	for i, most := range out.f {
		y, e := most/top, out.e[i]
		switch {
		case math.IsInf(y, 0) || y != y:
			out.f[i], out.e[i] = y, selected(y, e)
		case e == 0: // the quotient of known numbers, rounded once
			out.f[i] = max(tensor.Round(ir.F32, y), tensor.Round(ir.F32, tensor.LeastScale))
		default:
			y, e = finish(ir.F32, y, e/top)
			out.f[i], out.e[i] = max(y, tensor.Round(ir.F32, tensor.LeastScale)), e
		}
	}
	return out, nil
}

// quantize applies the rule of x/s rounded to an 8-bit type. A machine may divide by s, or multiply by its inverse,
// with an error of a few units of its arithmetic. If the ends of the interval of possible quotients round to different
// numbers, either number is correct.
func quantize(x, by *array, dt ir.DType) (*array, error) {
	out := newArray(dt, x.shape)
	s, err := scalingOf(x.shape, by)
	if err != nil {
		return nil, err
	}
	top := formatOf(dt).max
	round := func(v float64) float64 { return tensor.Round(dt, max(min(v, top), -top)) }
	for i := range x.len() {
		at := s.index(i/s.k, i%s.k)
		scale, es := by.f[at], by.e[at]
		y := x.f[i] / scale
		if !(math.Abs(scale) > es) || y != y || math.IsInf(scale, 0) {
			out.f[i] = round(y)
			if out.e[i] = inf; y != y && x.e[i] == 0 && es == 0 {
				out.e[i] = 0
			}
			continue
		}
		pre := (x.e[i]+math.Abs(y)*es)/(math.Abs(scale)-es) + 2*stepUnit(ir.F32)*math.Abs(y)
		if math.IsInf(y, 0) {
			pre = 0
		}
		out.f[i] = round(y)
		out.e[i] = max(round(y+pre)-out.f[i], out.f[i]-round(y-pre))
	}
	return out, nil
}

const (
	// tensorCore is the number of products of 8-bit numbers that a tensor core adds to a sum in one step. The tensor
	// core aligns all terms to the largest exponent among them, and keeps coreDigits digits of each. The tensor cores
	// of Hopper work in this way: "it aligns 32 mantissa products by right-shifting based on the maximum exponent
	// before addition, uses only the highest 14 bits of each mantissa product after sign-fill right shifting, and
	// truncates bits exceeding this range" (DeepSeek-AI, DeepSeek-V3 Technical Report, arXiv:2412.19437, 3.5.2,
	// footnote). Sums have 13 bits of mantissa.
	tensorCore = 32
	coreDigits = 13
	// promoted is the number of products after which a machine adds the tensor core's sum to a sum in f32. With
	// fast_accum=true the tensor core's sum may be that of all products.
	promoted = 128
)

// coreSum is the state of a tensor core's sum: its value, and the least and the largest of its earlier values.
type coreSum struct{ sum, lo, hi, prop float64 }

// step adds products and returns how much of them, and of the sum, may be lost. The sum of the products may begin at
// any earlier step if a machine splits it, so its magnitude is at most the distance of two earlier values. Digits below
// the last one that is retained are lost: all of a smaller term, and none of a term that has no such digits.
func (c *coreSum) step(terms, errs []float64) (lost float64) {
	top := 0.0
	for i, t := range terms {
		c.sum += t
		c.prop += errs[i]
		c.lo, c.hi = min(c.lo, c.sum), max(c.hi, c.sum)
		top = max(top, math.Abs(t)+errs[i])
	}
	last := math.Ldexp(2*(max(top, c.hi-c.lo)+c.prop), -coreDigits)
	if !(last > 0) || math.IsInf(last, 0) {
		return last
	}
	_, exp := math.Frexp(last) // 2^exp is a multiple of the last retained digit
	lost = 2 * last            // the sum is aligned with the terms, and then rounded
	for i, t := range terms {
		if whole := math.Ldexp(t, -exp); errs[i] != 0 || whole != math.Trunc(whole) {
			lost += min(math.Abs(t)+errs[i], last)
		}
	}
	return lost
}

// scaledLinear computes x[…, K]·w[N, K]ᵀ, where each product is multiplied by the scales of its factors.
func scaledLinear(at attrs, ins []*array, dt ir.DType, sp split) (*array, error) {
	x, w := ins[0], ins[1]
	last := len(x.shape) - 1
	if last < 0 || len(w.shape) != 2 || x.shape[last] != w.shape[1] {
		return nil, fmt.Errorf("linear of shapes %v and %v", x.shape, w.shape)
	}
	sx, err := scalingOf(x.shape, ins[2])
	if err != nil {
		return nil, err
	}
	sw, err := scalingOf(w.shape, ins[3])
	if err != nil {
		return nil, err
	}
	m, n, k := elements(x.shape[:last]), w.shape[0], w.shape[1]
	out := newContraction(dt, append(slices.Clone(x.shape[:last]), n), sp)
	a, b := asRows(x, m, k), asRows(w, n, k)
	for p := range m {
		if err := at.ended(); err != nil {
			return nil, err
		}
		for q := range n {
			out.store(p*n+q, scaledDot(a, b, p, q, sx, sw, at.fast))
		}
	}
	return out.array, nil
}

// scaledDot returns the product of row p of a and row q of b. A product of integers is certified while tensor cores
// represent all partial sums exactly. Otherwise each step of a tensor core may lose digits. If fast is set, the tensor
// core's sum continues over the whole row.
func scaledDot(a, b rows, p, q int64, sx, sw scaling, fast bool) sumOf {
	s := sumOf{acc: ir.F32, n: a.k, ints: a.ints[p] && b.ints[q]}
	whole := 0.0
	wide := a.dt.Size() > 1 // multiplied in the type of x, with sums in f32
	var core coreSum
	var terms, errs [tensorCore]float64
	for from := int64(0); from < a.k; from += promoted {
		i, j := sx.index(p, from), sw.index(q, from)
		f, g := sx.scales.f[i], sw.scales.f[j]
		ef, eg := sx.scales.e[i], sw.scales.e[j]
		s.ints = s.ints && sx.scales.exactInteger(i) && sw.scales.exactInteger(j)
		var sum, abs, prop, lost float64
		to := min(from+promoted, a.k)
		if !fast {
			core = coreSum{}
		}
		for lo := from; lo < to; lo += tensorCore {
			n := min(to-lo, tensorCore)
			for c := range n {
				x, w, ex, ew := a.f[p*a.k+lo+c], b.f[q*b.k+lo+c], a.e[p*a.k+lo+c], b.e[q*b.k+lo+c]
				t, e := x*w, productError(x, ex, w, ew)
				terms[c], errs[c] = t, e
				sum, abs, prop = sum+t, abs+math.Abs(t), prop+e
			}
			if !wide {
				lost += core.step(terms[:n], errs[:n])
			}
		}
		core.prop += lost
		fg, efg := f*g, productError(f, ef, g, eg)
		s.y += sum * fg
		s.abs += abs * math.Abs(fg)
		s.prop += prop*(math.Abs(fg)+efg) + abs*efg
		if whole += abs; !s.ints || whole > 1<<coreDigits {
			s.prop += lost * (math.Abs(fg) + efg)
		}
		s.n += 3 // three more roundings: of the product of the scales, of its product with the sum, and of the addition
	}
	if s.ints && !wide && whole > 1<<coreDigits {
		s.ints = false
	}
	return s
}
