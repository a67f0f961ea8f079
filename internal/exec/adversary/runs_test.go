package adversary

import (
	"slices"
	"testing"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// TestRunsOf checks that runsOf yields one interval for each contiguous part of a tensor with gaps, unless there are
// too many parts.
func TestRunsOf(t *testing.T) {
	for _, c := range []struct {
		off            int64
		shape, strides []int64
		want           []int64
	}{
		{8, nil, nil, []int64{8, 12}},
		{0, []int64{2, 3}, []int64{3, 1}, []int64{0, 24}},
		{4, []int64{2, 1, 2}, []int64{3, 9, 1}, []int64{4, 12, 16, 24}},
		{0, []int64{2, 2}, []int64{1, 4}, []int64{0, 4, 16, 20, 4, 8, 20, 24}},
		{0, []int64{2, 0}, []int64{3, 1}, nil},
		{0, []int64{1 << 17}, []int64{2}, []int64{0, 1<<20 - 4}},
	} {
		var got []int64
		for lo, hi := range runsOf(plan.Ref{DType: ir.F32, Off: c.off, Shape: c.shape, Strides: c.strides}) {
			got = append(got, lo, hi)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
