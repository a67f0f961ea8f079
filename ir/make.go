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

// FloorDiv returns a / b rounded down.
func FloorDiv(a, b *Expr) *Expr {
	if b.IsInt(1) {
		return a
	}
	return fold(ExprFloorDiv, a, b)
}

// Rank returns the evaluating rank's coordinate along axis.
func Rank(axis string) *Expr { return &Expr{Kind: ExprRank, Name: axis} }

// Size returns the number of ranks along axis.
func Size(axis string) *Expr { return &Expr{Kind: ExprSize, Name: axis} }

// Extent returns the local extent of dimension dim of %name.
func Extent(name string, dim int64) *Expr { return &Expr{Kind: ExprExtent, Name: name, Val: dim} }

// Var names a loop variable or let.
func Var(name string) *Expr { return &Expr{Kind: ExprVar, Name: name} }

func fold(k ExprKind, a, b *Expr) *Expr {
	if a.Kind == ExprInt && b.Kind == ExprInt {
		if v, err := Apply(k, a.Val, b.Val); err == nil {
			return Int(v)
		}
	}
	return Bin(k, a, b)
}

// At is the place %name[index].
func At(name string, index *Expr) Place { return Place{Name: name, Index: index} }

// Main is the caller's stream.
func Main() Place { return Place{Main: true} }

// ExprAttr is "name=e": axis, root, index, ctas and the like.
func ExprAttr(name string, e *Expr) Attr { return Attr{Name: name, Kind: AttrExpr, Exprs: []*Expr{e}} }

// ExprsAttr is "name=(list)": shape, perm, axis of a reduction.
func ExprsAttr(name string, list ...*Expr) Attr {
	return Attr{Name: name, Kind: AttrExprs, Exprs: list, Paren: len(list) != 1}
}

// NumberAttr is "name=f": by of scale, value of fill.
func NumberAttr(name string, f float64) Attr {
	return Attr{Name: name, Kind: AttrNumber, Num: f, IsNum: true}
}

// WordAttr is "name=word": op, order, engine and the like.
func WordAttr(name, word string) Attr { return Attr{Name: name, Kind: AttrWord, Words: []string{word}} }

// Over is "over=axes".
func Over(axes ...string) Attr {
	return Attr{Name: "over", Kind: AttrWords, Words: axes, Paren: len(axes) > 1}
}
