package ir

import "strconv"

// String returns the expression with as few parentheses as it needs.
func (e *Expr) String() string { return string(appendExpr(nil, e)) }

// String returns the type as programs write it: "bf16[T/tp, K] partial(tp, sum) @d".
func (t *Type) String() string { return string(appendType(nil, t)) }

// The binding strengths of operators.
const (
	bindSum = iota + 1
	bindProduct
	bindOperand
)

var infix = map[ExprKind]struct {
	text string
	bind int
}{
	ExprAdd: {" + ", bindSum}, ExprSub: {" - ", bindSum},
	ExprMul: {" * ", bindProduct}, ExprMod: {" mod ", bindProduct},
}

func appendExpr(b []byte, e *Expr) []byte { return appendBound(b, e, bindSum) }

// appendExprAt appends list[i], or "?" if a pass left the program incomplete.
func appendExprAt(b []byte, list []*Expr, i int) []byte {
	if i >= len(list) {
		return append(b, '?')
	}
	return appendExpr(b, list[i])
}

// appendBound appends e, in parentheses if the binding strength of its operator is below least.
func appendBound(b []byte, e *Expr, least int) []byte {
	if e == nil {
		return append(b, '?')
	}
	if e.Kind < ExprAdd || e.Kind > ExprMod {
		return appendOperand(b, e)
	}
	op := infix[e.Kind]
	if op.bind < least {
		b = append(b, '(')
	}
	b = appendBound(b, e.Args[0], op.bind)
	b = append(b, op.text...)
	b = appendBound(b, e.Args[1], op.bind+1)
	if op.bind < least {
		b = append(b, ')')
	}
	return b
}

func appendOperand(b []byte, e *Expr) []byte {
	switch e.Kind {
	case ExprInt:
		return strconv.AppendInt(b, e.Val, 10)
	case ExprName:
		return append(b, e.Name...)
	case ExprVar:
		b = append(b, '%')
		return append(b, e.Name...)
	case ExprRank:
		b = append(b, "rank("...)
		b = append(b, e.Name...)
	case ExprSize:
		b = append(b, "size("...)
		b = append(b, e.Name...)
	case ExprExtent:
		b = append(b, "extent(%"...)
		b = append(b, e.Name...)
		b = append(b, ", "...)
		b = strconv.AppendInt(b, e.Val, 10)
	default:
		b = append(b, callWord(e.Kind)...)
		b = append(b, '(')
		b = appendExprAt(b, e.Args, 0)
		b = append(b, ", "...)
		b = appendExprAt(b, e.Args, 1)
	}
	return append(b, ')')
}

// callWord returns the name of a function with two arguments.
func callWord(k ExprKind) string {
	switch k {
	case ExprCeilDiv:
		return "ceildiv"
	case ExprFloorDiv:
		return "floordiv"
	case ExprMin:
		return "min"
	case ExprMax:
		return "max"
	}
	return "?"
}

// appendIndexed prints "name[e]".
func appendIndexed(b []byte, name string, e *Expr) []byte {
	b = append(b, name...)
	b = append(b, '[')
	b = appendExpr(b, e)
	return append(b, ']')
}

func appendType(b []byte, t *Type) []byte {
	if t == nil {
		return append(b, '?')
	}
	b = append(b, t.DType.String()...)
	b = append(b, '[')
	for i, d := range t.Dims {
		b = appendComma(b, i > 0)
		b = appendExpr(b, d.Extent)
		if len(d.Axes) > 0 {
			b = append(b, '/')
			b = appendWords(b, d.Axes, false)
		}
	}
	b = append(b, ']')
	for _, p := range t.Partial {
		b = append(b, " partial("...)
		b = append(b, p.Axis...)
		b = append(b, ", "...)
		b = append(b, p.Red.String()...)
		b = append(b, ')')
	}
	if t.Mesh != "" {
		b = append(b, " @"...)
		b = append(b, t.Mesh...)
	}
	return b
}
