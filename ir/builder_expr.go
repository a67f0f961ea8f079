package ir

// The functions below build index expressions. Constants are folded and
// neutral operands dropped, unless the result would overflow or divide by zero:
// then the expression is kept, for the checker to refuse at its place.

// Add returns a + b.
func Add(a, b *Expr) *Expr {
	switch {
	case a.IsInt(0):
		return b
	case b.IsInt(0):
		return a
	}
	return fold(ExprAdd, a, b)
}

// Sub returns a - b.
func Sub(a, b *Expr) *Expr {
	if b.IsInt(0) {
		return a
	}
	return fold(ExprSub, a, b)
}

// Mul returns a · b. A product with 0 is folded for constants only, so that
// an undefined factor stays an error.
func Mul(a, b *Expr) *Expr {
	switch {
	case a.IsInt(1):
		return b
	case b.IsInt(1):
		return a
	}
	return fold(ExprMul, a, b)
}

// Mod returns a mod b, never negative.
func Mod(a, b *Expr) *Expr { return fold(ExprMod, a, b) }

// CeilDiv returns a / b rounded up.
func CeilDiv(a, b *Expr) *Expr {
	if b.IsInt(1) {
		return a
	}
	return fold(ExprCeilDiv, a, b)
}

// FloorDiv returns a / b rounded down.
func FloorDiv(a, b *Expr) *Expr {
	if b.IsInt(1) {
		return a
	}
	return fold(ExprFloorDiv, a, b)
}

// MinOf returns the lesser of a and b.
func MinOf(a, b *Expr) *Expr { return fold(ExprMin, a, b) }

// MaxOf returns the greater of a and b.
func MaxOf(a, b *Expr) *Expr { return fold(ExprMax, a, b) }

// Rank returns the evaluating rank's coordinate along axis.
func Rank(axis string) *Expr { return &Expr{Kind: ExprRank, Name: axis} }

// Size returns the number of ranks along axis.
func Size(axis string) *Expr { return &Expr{Kind: ExprSize, Name: axis} }

// Extent returns the local extent of dimension dim of %name.
func Extent(name string, dim int64) *Expr { return &Expr{Kind: ExprExtent, Name: name, Val: dim} }

// DimRef names a dim.
func DimRef(name string) *Expr { return &Expr{Kind: ExprName, Name: name} }

// Var names a loop variable or let.
func Var(name string) *Expr { return &Expr{Kind: ExprVar, Name: name} }

func fold(k ExprKind, a, b *Expr) *Expr {
	if a.Kind == ExprInt && b.Kind == ExprInt {
		if v, err := apply(k, a.Val, b.Val); err == nil {
			return Int(v)
		}
	}
	return Bin(k, a, b)
}
