package eval

import (
	"fmt"

	"hocket.example/hocket/ir"
)

// stretched repeats a to the given shape: dimensions align at the end, and those
// of extent 1 stretch. The contributions of a partial sum repeat with it.
func stretched(a *array, shape []int64) (*array, error) {
	skip := len(shape) - len(a.shape)
	bad := skip < 0
	strides := make([]int64, len(shape))
	for i, from := range dense(a.shape).strides {
		switch {
		case bad:
		case a.shape[i] == shape[skip+i]:
			strides[skip+i] = from
		default:
			bad = a.shape[i] != 1
		}
	}
	if bad {
		return nil, fmt.Errorf("%v of shape %v to %v", ir.OpExpand, a.shape, shape)
	}
	return a.view(region{shape: shape, strides: strides}), nil
}
