package eval

import (
	"fmt"

	"hocket.example/hocket/ir"
)

// stretched repeats the elements of a to fill the given shape. Dimensions are aligned at the end, and dimensions of
// extent 1 are repeated. The contributions of a partial sum are repeated in the same way.
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
