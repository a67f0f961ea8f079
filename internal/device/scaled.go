package device

import (
	"fmt"
	"slices"

	"hocket.example/hocket/ir"
)

// ScaleBlock is the number of elements of a row that share a scale if each block has a scale. In a weight ScaleBlock is
// also the number of rows of a block.
const ScaleBlock = 128

// Grain describes which elements of a tensor share a scale. The tensor is treated as a matrix of all its rows. A scale
// belongs to a block of Rows rows and Columns columns; the last blocks may be smaller. Cols is the number of blocks
// side by side in a row of blocks.
type Grain struct{ Rows, Columns, Cols int64 }

// At returns the index of the scale of element (i, j) among the scales in row-major order.
func (g Grain) At(i, j int64) int64 { return i/g.Rows*g.Cols + j/g.Columns }

// GrainOf returns the grain of scales with shape s for a tensor of shape x: one scale for the tensor, or one for each
// row, each block of 1×128 or, in a matrix, each block of 128×128.
func GrainOf(x, s []int64) (Grain, error) {
	rows, cols := Matrix(x)
	last := len(x) - 1
	if len(s) == 0 {
		return Grain{max(1, rows), max(1, cols), 1}, nil
	}
	blocks := func(n int64) int64 { return (n + ScaleBlock - 1) / ScaleBlock }
	switch {
	case last < 0:
	case slices.Equal(s, x[:last]):
		return Grain{1, max(1, cols), 1}, nil
	case slices.Equal(s, append(slices.Clone(x[:last]), blocks(cols))):
		return Grain{1, ScaleBlock, s[last]}, nil
	case last == 1 && slices.Equal(s, []int64{blocks(rows), blocks(cols)}):
		return Grain{ScaleBlock, ScaleBlock, s[1]}, nil
	}
	return Grain{}, fmt.Errorf("scales%v of a tensor%v", s, x)
}

// Matrix returns the number of rows of a tensor, that is of vectors along its last dimension, and their length.
func Matrix(shape []int64) (rows, cols int64) {
	if len(shape) == 0 {
		return 1, 1
	}
	rows = 1
	for _, e := range shape[:len(shape)-1] {
		rows *= e
	}
	return rows, shape[len(shape)-1]
}

// CheckScales returns the grain of the scales of a tensor. x is the type of the tensor and of its shape; s is the type
// of the scales, and scales their shape. CheckScales returns an error if the scales cannot belong to the tensor.
func CheckScales(op Scales, x, s ir.DType, of, scales []int64) (Grain, error) {
	if s != ir.F32 || x.IsInt() || !(op.Max > 0) {
		return Grain{}, fmt.Errorf("cannot compute scales of type %s for values of type %s up to %g", s, x, op.Max)
	}
	return GrainOf(of, scales)
}

// CheckQuantize returns the grain of the scales by which a tensor is quantized. x, s and out are the types of the
// tensor, the scales and the result. It returns an error if these types or shapes are not supported.
func CheckQuantize(x, s, out ir.DType, of, scales, result []int64) (Grain, error) {
	if !out.IsFloat8() || s != ir.F32 || x.IsInt() || !slices.Equal(of, result) {
		return Grain{}, fmt.Errorf("cannot quantize %s%v with scales of type %s into %s%v", x, of, s, out, result)
	}
	return GrainOf(of, scales)
}

// CheckScaled returns the grains of the scales of a linear with 8-bit operands. ins holds the shapes of x, w and their
// scales. x may also have a type of 16 bits. It returns an error if the types or shapes are not supported.
func CheckScaled(k *Kernel, out []int64, ins [][]int64) (x, w Grain, err error) {
	for i, in := range k.Ins {
		wide := i == 0 && in.DType.Size() == 2
		if in.DType.IsFloat8() != (i < 2 && !wide) || i > 1 && in.DType.Size() != 4 || in.DType.IsInt() {
			return x, w, fmt.Errorf("operand %d of a linear with scales has the unsupported type %s", i, in.DType)
		}
	}
	if dt := k.Outs[0].DType; dt.IsInt() || dt.Size() != 2 && dt.Size() != 4 {
		return x, w, fmt.Errorf("a linear with scales cannot have a result of type %s", dt)
	}
	if err := CheckLinear(out, ins[:2]); err != nil {
		return x, w, err
	}
	if x, err = GrainOf(ins[0], ins[2]); err != nil {
		return x, w, err
	}
	if len(ins[2]) == 2 && x.Rows == ScaleBlock && ins[0][0] > 1 {
		return x, w, fmt.Errorf("scales%v of the input%v", ins[2], ins[0])
	}
	if w, err = GrainOf(ins[1], ins[3]); err == nil && len(ins[3]) == 2 && w.Rows == 1 && ins[1][0] > 1 {
		err = fmt.Errorf("scales%v of the weight%v", ins[3], ins[1])
	}
	return x, w, err
}
