package eval

import (
	"fmt"
	"math"
	"slices"

	"hocket.example/hocket/ir"
)

// reduceArrays reduces the ranks' tensors in team order.
func reduceArrays(red ir.Red, all []*array, anyOrder bool) (*array, error) {
	first := all[0]
	for _, a := range all {
		if a.dt != first.dt || !slices.Equal(a.shape, first.shape) {
			return nil, fmt.Errorf("the tensors of the ranks differ in type: %v%v and %v%v", first.dt, first.shape,
				a.dt, a.shape)
		}
	}
	if len(all) == 1 {
		return first, nil
	}
	out := newArray(first.dt, first.shape)
	for i := range out.len() {
		if out.n != nil {
			out.n[i], out.e[i] = reduceInt(red, all, i)
		} else {
			out.f[i], out.e[i] = reduceFloat(red, all, i, anyOrder)
		}
	}
	return out, nil
}

func reduceFloat(red ir.Red, all []*array, i int64, anyOrder bool) (float64, float64) {
	dt := all[0].dt
	if red == ir.Max || red == ir.Min {
		y, e := all[0].f[i], all[0].e[i]
		for _, a := range all[1:] {
			e = max(e, a.e[i])
			if red == ir.Max {
				y = max(y, a.f[i])
			} else {
				y = min(y, a.f[i])
			}
		}
		return y, selected(y, e)
	}
	n := int64(len(all))
	y, e, mag := contributionsAt(all, i)
	if red == ir.Sum {
		return reduced(dt, y, e, mag, n, anyOrder)
	}
	if e != 0 || mag > holdsIntegers(dt) {
		e += additions(dt, mag, n, anyOrder)
	}
	return averaged(dt, y, e, n)
}

// contributionsAt adds element i of the ranks' tensors. contributionsAt returns the total, a bound on the error of the
// sum that machines compute, and the sum of the magnitudes. The bound is 0 only if all elements are certified integers.
func contributionsAt(all []*array, i int64) (y, e, mag float64) {
	ints := true
	for _, a := range all {
		y += a.f[i]
		e += a.e[i]
		mag += math.Abs(a.f[i]) + a.e[i]
		ints = ints && a.exactInteger(i)
	}
	if !ints {
		// The bound includes the error of the evaluator's own sum. The smallest positive number is added, so that the
		// bound is not 0.
		e += gamma(int64(len(all)), unit(ir.F64))*mag + math.SmallestNonzeroFloat64
	}
	return y, e, mag
}

func reduceInt(red ir.Red, all []*array, i int64) (int64, float64) {
	y, e := all[0].n[i], all[0].e[i]
	for _, a := range all[1:] {
		switch red {
		case ir.Max:
			y, e = max(y, a.n[i]), max(e, a.e[i])
		case ir.Min:
			y, e = min(y, a.n[i]), max(e, a.e[i])
		default:
			y, e = y+a.n[i], e+a.e[i]
		}
	}
	if red == ir.Avg { // divide the sum in the accumulator, before it is rounded
		y, e = integer(ir.I64, y, e)
		y /= int64(len(all))
		if e != 0 {
			e++
		}
	}
	return integer(all[0].dt, y, e)
}
