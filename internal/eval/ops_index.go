package eval

import (
	"fmt"
	"math"

	"hocket.example/hocket/ir"
)

// This file holds the operations whose results are indices, or that take elements by them.

// counting counts along an axis, the last by default.
func counting(at attrs, dt ir.DType, shape []int64) (*array, error) {
	axis := len(shape) - 1
	if len(at.axes) > 0 {
		axis = at.axes[0]
	}
	start, out, inner := at.number(0), newArray(dt, shape), elements(shape[axis+1:])
	if !start.isInt && start.f == 0 { // the default
		start.isInt = true
	}
	if dt.IsInt() && !start.isInt {
		return nil, fmt.Errorf("%v elements cannot be %v", dt, start.f)
	}
	for i := range out.len() {
		along := i / inner % shape[axis]
		if dt.IsInt() {
			out.n[i] = wrap(dt, start.n+along)
			continue
		}
		y, lost := start.f+float64(along), addLoses(start.f, float64(along))
		out.f[i], out.e[i] = single(dt, y)
		out.e[i] += math.Abs(lost)
	}
	return out, nil
}
