package checkpoint

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// scale returns the name of the scales of t if t is an 8-bit tensor that becomes a weight of another type. It returns
// "" if t is not such a tensor, or if the checkpoint has no scales for t. DeepSeek and Qwen name the scales of "w"
// "w_scale_inv"; others use "w_scale".
func (c *Checkpoint) scale(name string, t *tensor.Tensor, to ir.DType) string {
	if !t.DType.IsFloat8() || to.IsFloat8() {
		return ""
	}
	for _, s := range []string{name + "_scale_inv", name + "_scale"} {
		if c.in[s] != nil {
			return s
		}
	}
	return ""
}

// dequantized multiplies the box of extents n at lo of an 8-bit tensor by its scales: a single one,
// one for each row, or one for each block of 128 by 128.
func (c *Checkpoint) dequantized(
	name string, t *tensor.Tensor, scale string, to ir.DType, lo, n []int64,
) (*tensor.Tensor, error) {
	s, err := c.View(scale)
	if err != nil {
		return nil, err
	}
	cols, rowsOf, colsOf := int64(1), int64(1), int64(1)
	last := len(t.Shape) - 1
	if last >= 0 {
		cols = max(1, t.Shape[last])
	}
	rows, wide := t.Len()/cols, int64(1)
	ceil := func(n int64) int64 { return (n + 127) / 128 }
	switch {
	case s.DType.IsInt():
		return nil, fmt.Errorf("%q is %s, which cannot be the scales of %q", scale, s, name)
	case s.Len() == 1:
		rowsOf, colsOf = max(1, rows), cols
	case s.Len() == rows && len(s.Shape) > 0 && s.Shape[0] == rows:
		colsOf = cols
	case len(t.Shape) == 2 && slices.Equal(s.Shape, []int64{ceil(rows), ceil(cols)}):
		rowsOf, colsOf, wide = 128, 128, s.Shape[1]
	default:
		return nil, fmt.Errorf("%q is %s, which does not fit as scales of %q, %s: use one scale, one for each row, or one for each block of 128 by 128",
			scale, s, name, t)
	}
	out, err := tensor.New(to, n)
	if err != nil || out.Len() == 0 {
		return out, err
	}
	by := make([]float64, s.Len())
	tensor.ToFloat64(by, s.Data, s.DType)
	col, width := int64(0), int64(1)
	if last >= 0 {
		col, width = lo[last], n[last]
	}
	vals := make([]float64, width)
	size := width * to.Size()
	for k := range out.Len() / width {
		row, of, rest := int64(0), int64(1), k // k is a row of the box, and row the corresponding row of the tensor
		for d := last - 1; d >= 0; d-- {
			row += (lo[d] + rest%n[d]) * of
			of, rest = of*t.Shape[d], rest/n[d]
		}
		at := row*cols + col
		tensor.ToFloat64(vals, t.Data[at:at+width], t.DType)
		for j := range vals {
			vals[j] *= by[row/rowsOf*wide+(col+int64(j))/colsOf]
		}
		tensor.FromFloat64(out.Data[k*size:(k+1)*size], vals, to)
	}
	return out, nil
}
