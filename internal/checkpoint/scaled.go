package checkpoint

import (
	"fmt"

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

// dequantized multiplies the box of extents n at position lo of an 8-bit tensor by the tensor's scales. There is a
// single scale, one for each row, or one for each block of 128 by 128.
func (c *Checkpoint) dequantized(
	name string, t *tensor.Tensor, scale string, to ir.DType, lo, n []int64,
) (*tensor.Tensor, error) {
	s, err := c.View(scale)
	if err != nil {
		return nil, err
	}
	scales, err := tensor.ScalesOf(t, s)
	if err != nil {
		return nil, fmt.Errorf("%q cannot be the scales of %q: %w", scale, name, err)
	}
	last := len(t.Shape) - 1
	cols := scales.Cols
	out, err := tensor.New(to, n)
	if err != nil || out.Len() == 0 {
		return out, err
	}
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
		scales.Apply(vals, row, col)
		tensor.FromFloat64(out.Data[k*size:(k+1)*size], vals, to)
	}
	return out, nil
}
