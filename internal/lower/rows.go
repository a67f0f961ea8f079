package lower

import "hocket.example/hocket/ir"

// This file determines which operations can be computed for some rows at a time. In these operations, a row of the
// result depends on the same row of one or more operands. "Rows" are the slices along one dimension. The dimension of
// the rows is the same for all values of a region.

// isGEMM reports whether s is a linear or a matmul. Only these operations take long enough to hide communication.
func isGEMM(s *ir.Stmt) bool { return s.Op == ir.OpLinear || s.Op == ir.OpMatmul }

// scaled reports whether s is a linear whose operands have scales.
func scaled(s *ir.Stmt) bool { return s.Op == ir.OpLinear && len(s.Args) == 4 }

// role says which part of an operand is needed to compute some rows of a result.
type role uint8

const (
	unusable role = iota // the operation cannot be computed by rows of this operand
	byRows               // the same rows of the operand are needed
	entire               // the whole operand is needed, whichever rows are computed
)

// operandRole returns which part of its i-th operand s needs to compute rows of its result along the dimension rows.
// The operand has dims dimensions and the result has resultDims.
func operandRole(s *ir.Stmt, i, rows, dims, resultDims int) role {
	switch {
	case s.Op == ir.OpLinear && i == 2 && scaled(s) && dims > 0 && rows < resultDims-1:
		return byRows // the scales of the operand's rows
	case s.Op == ir.OpLinear:
		return contractionRole(i, rows, dims)
	case s.Op == ir.OpMatmul:
		if i == 0 && s.Word("ta", "false") == "true" || i == 1 && dims != 2 {
			return unusable
		}
		return contractionRole(i, rows, dims)
	case s.Op == ir.OpRMSNorm, s.Op == ir.OpLayerNorm: // normalizes the last dimension; operands 1 and 2 are weights
		return contractionRole(i, rows, dims)
	case s.Op == ir.OpRMSNormDX && i == 2 && rows < dims-1:
		return byRows // the gradient of the norm's result
	case s.Op == ir.OpRMSNormDX:
		return contractionRole(i, rows, dims)
	case s.Op == ir.OpSoftmax:
		if s.Attr("axis") != nil { // views by blocks have one more dimension
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

// contractionRole returns the role of operand i of an operation that contracts the last dimension. A row of the result
// depends on the same row of the first operand and on the whole of the other operands.
func contractionRole(i, rows, dims int) role {
	switch {
	case i > 0:
		return entire
	case rows < dims-1:
		return byRows
	}
	return unusable
}

// acrossAxis handles operations for which a block of the result along the dimension rows depends on a block of the i-th
// operand along another dimension, and returns this dimension. Examples are the columns of a GEMM's result, which
// depend on rows or columns of the second operand, and the rows of a GEMM whose first operand is stored transposed.
func acrossAxis(s *ir.Stmt, i, rows, dims, resultDims int) (axis int, r role) {
	switch {
	case s.Op.Info().Elementwise && dims == resultDims:
		return rows, byRows
	case !isGEMM(s) || scaled(s): // one scale may apply to a block of several columns
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

// secondAxis returns the result of acrossAxis for the columns of a GEMM's result.
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
