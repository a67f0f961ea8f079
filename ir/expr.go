package ir

// ExprKind is the kind of an index expression.
type ExprKind uint8

// Kinds of index expressions.
const (
	ExprInt      ExprKind = iota // the constant Val
	ExprName                     // the dim Name
	ExprVar                      // the loop variable or let Name, without "%"
	ExprRank                     // rank(AXIS), where Name is the axis
	ExprSize                     // size(AXIS), where Name is the axis
	ExprExtent                   // extent(%v, INT), the local extent; Name is the tensor, Val the dimension
	ExprAdd                      // Args[0] + Args[1]
	ExprSub                      // Args[0] - Args[1]
	ExprMul                      // Args[0] * Args[1]
	ExprMod                      // Args[0] mod Args[1], never negative
	ExprCeilDiv                  // ceildiv(a, b)
	ExprFloorDiv                 // floordiv(a, b)
	ExprMin                      // min(a, b)
	ExprMax                      // max(a, b)
)

// Expr is an integer index expression. The values of an expression have 64 bits, and an overflow is an error.
// Expressions are never changed after they are built, so they may be shared.
type Expr struct {
	Kind ExprKind
	Pos  Pos
	Val  int64
	Name string
	Args []*Expr
}

// Int returns the constant v.
func Int(v int64) *Expr { return &Expr{Kind: ExprInt, Val: v} }

// Bin returns a binary expression.
func Bin(k ExprKind, a, b *Expr) *Expr { return &Expr{Kind: k, Pos: a.Pos, Args: []*Expr{a, b}} }

// IsInt reports whether e is the constant v.
func (e *Expr) IsInt(v int64) bool { return e != nil && e.Kind == ExprInt && e.Val == v }

// SameExpr reports whether two expressions have the same structure.
func SameExpr(a, b *Expr) bool {
	if a == b {
		return true
	}
	if a == nil || b == nil {
		return false
	}
	if a.Kind != b.Kind || a.Val != b.Val || a.Name != b.Name || len(a.Args) != len(b.Args) {
		return false
	}
	for i := range a.Args {
		if !SameExpr(a.Args[i], b.Args[i]) {
			return false
		}
	}
	return true
}
