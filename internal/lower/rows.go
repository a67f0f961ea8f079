package lower

import "hocket.example/hocket/ir"

// This file knows which operations can be computed some rows at a time: those
// of which each row of the result needs the same row of one operand or more.
// "Rows" are the blocks of one dimension, the same in all values of a region.

// isGEMM reports whether s is an operation worth hiding communication under.
func isGEMM(s *ir.Stmt) bool { return s.Op == ir.OpLinear || s.Op == ir.OpMatmul }

// scaled reports whether s is a linear with scales.
func scaled(s *ir.Stmt) bool { return s.Op == ir.OpLinear && len(s.Args) == 4 }

// roles of an operand in a computation by rows.
type role uint8

const (
	unusable role = iota // the operation cannot be computed by rows of this operand
	byRows               // the same rows of it are needed
	entire               // all of it is needed, for any row
)

// operandRole says what rows of s's result along dimension rows need of its
// i-th operand, which has dims dimensions of the result's many.
func operandRole(s *ir.Stmt, i, rows, dims, resultDims int) role {
	switch {
	case s.Op == ir.OpLinear && i == 2 && scaled(s) && dims > 0 && rows < resultDims-1:
		return byRows // scales of its rows
	case s.Op == ir.OpLinear:
		return contractionRole(i, rows, dims)
	case s.Op == ir.OpMatmul:
		if i == 0 && s.Word("ta", "false") == "true" || i == 1 && dims != 2 {
			return unusable
		}
		return contractionRole(i, rows, dims)
	case s.Op == ir.OpRMSNorm, s.Op == ir.OpLayerNorm: // over the last dimension, with weights
		return contractionRole(i, rows, dims)
	case s.Op == ir.OpSoftmax:
		if s.Attr("axis") != nil { // dimensions are counted otherwise where rows are split in blocks
			return unusable
		}
		return contractionRole(i, rows, dims)
	case !s.Op.Info().Elementwise:
		return unusable
	case dims == resultDims:
		return byRows
	case resultDims-dims > rows:
		return entire // repeated along the rows
	}
	return unusable
}

// contractionRole is operandRole of what works on the last dimension: rows of
// the first operand are rows of the result, and the others are needed entire.
func contractionRole(i, rows, dims int) role {
	switch {
	case i > 0:
		return entire
	case rows < dims-1:
		return byRows
	}
	return unusable
}

// acrossAxis returns the dimension of s's i-th operand whose blocks give the blocks of the dimension rows of the
// result, for operations whose result rows are not operand rows: columns of a product, which are rows or columns of
// its second operand, or rows of a product whose first operand is stored transposed.
func acrossAxis(s *ir.Stmt, i, rows, dims, resultDims int) (axis int, r role) {
	switch {
	case s.Op.Info().Elementwise && dims == resultDims:
		return rows, byRows
	case !isGEMM(s) || scaled(s): // scales of blocks of columns are fewer
		return 0, unusable
	case rows == resultDims-1:
		return secondAxis(s, i, dims)
	case s.Word("ta", "false") == "true" && resultDims == 2:
		if i == 0 {
			return 1, byRows
		}
		return 0, entire
	}
	return 0, unusable
}

// secondAxis is acrossAxis of the columns of a product.
func secondAxis(s *ir.Stmt, i, dims int) (axis int, r role) {
	switch {
	case i == 0:
		return 0, entire
	case i > 1 || dims != 2:
		return 0, unusable
	case s.Op == ir.OpLinear, s.Word("tb", "false") == "true":
		return 0, byRows
	}
	return 1, byRows
}

// pure reports whether s only makes a value, or a local tensor, from others:
// then it may trade places with statements that do not use it.
func pure(s *ir.Stmt) bool {
	if s.Into != nil || len(s.Results) != 1 {
		return false
	}
	switch s.Op.Info().Class {
	case ir.ClassTensor, ir.ClassView, ir.ClassCollective:
		return true
	}
	return false
}
