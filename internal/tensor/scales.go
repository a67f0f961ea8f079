package tensor

import (
	"fmt"
	"slices"
)

// scaleBlock is the number of rows, and of columns, of a block of a matrix that shares one scale.
const scaleBlock = 128

// LeastScale is the smallest scale that the operation scales returns. This limit keeps quotients by a scale finite.
const LeastScale = 1e-12

// Scales are the scales of an 8-bit tensor, which is treated as a matrix of all its rows.
type Scales struct {
	Rows, Cols int64 // of the tensor
	// High and Wide are the numbers of rows and columns that share a scale.
	High, Wide int64
	by         []float64
	across     int64 // number of scales side by side in a row
}

// ScalesOf returns the scales of t that tensor s holds: a single scale, one for each row, or one for each block of 128
// by 128. Only the type of t is used.
func ScalesOf(t, s *Tensor) (*Scales, error) {
	out := &Scales{Rows: 1, Cols: 1, across: 1}
	if last := len(t.Shape) - 1; last >= 0 {
		out.Cols = t.Shape[last]
		for _, n := range t.Shape[:last] {
			out.Rows *= n
		}
	}
	blocks := func(n int64) int64 { return (n + scaleBlock - 1) / scaleBlock }
	switch {
	case s.DType.IsInt():
		return nil, fmt.Errorf("scales cannot be %s", s)
	case s.Len() == 1:
		out.High, out.Wide = max(1, out.Rows), max(1, out.Cols)
	case s.Len() == out.Rows && len(s.Shape) > 0 && s.Shape[0] == out.Rows:
		out.High, out.Wide = 1, max(1, out.Cols)
	case len(t.Shape) == 2 && slices.Equal(s.Shape, []int64{blocks(out.Rows), blocks(out.Cols)}):
		out.High, out.Wide, out.across = scaleBlock, scaleBlock, s.Shape[1]
	default:
		return nil, fmt.Errorf("%s does not fit %s: use one scale, one for each row, or one for each block of 128 by 128", s, t)
	}
	out.by = make([]float64, s.Len())
	ToFloat64(out.by, s.Data, s.DType)
	return out, nil
}

// At returns the scale of the element in the given row and column.
func (s *Scales) At(row, col int64) float64 { return s.by[row/s.High*s.across+col/s.Wide] }

// Apply multiplies elements of a row, from column col on, by their scales.
func (s *Scales) Apply(vals []float64, row, col int64) {
	for j := range vals {
		vals[j] *= s.At(row, col+int64(j))
	}
}
