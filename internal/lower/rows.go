package lower

import "hocket.example/hocket/ir"

// This file determines which operations can be computed some rows at a time: in these operations, a row of the result
// depends on the same row of one or more operands. "Rows" are the indices of one dimension, which is the same in all
// values of a region.

// isGEMM reports whether s is an operation that takes long enough to overlap with communication.
func isGEMM(s *ir.Stmt) bool { return s.Op == ir.OpLinear || s.Op == ir.OpMatmul }

// scaled reports whether s is a linear whose operands have scales.
func scaled(s *ir.Stmt) bool { return s.Op == ir.OpLinear && len(s.Args) == 4 }

// role describes how an operand is used in a computation by rows.
type role uint8

const (
	unusable role = iota // the operation cannot be computed by rows of this operand
	byRows               // the same rows of it are needed
	entire               // all of it is needed, for any row
)

// operandRole returns which part of its i-th operand s needs to compute rows of its result along the dimension rows.
// The operand has dims dimensions and the result has resultDims.
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

// contractionRole returns the role of an operand of an operation that contracts the last dimension: rows of the first
// operand give the rows of the result, and the other operands are needed entire.
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

// secondAxis returns the result of acrossAxis for the columns of a product.
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

// pure reports whether s only computes a value, or defines a local tensor, from other values. A pure statement may be
// moved past statements that do not use its result.
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
