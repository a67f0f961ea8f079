package ir

// The functions below build index expressions. These functions fold constants and omit neutral operands. If the folded
// value would overflow or require a division by zero, the expression is not folded, so that the checker reports it at
// its position.

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

// Mul returns a · b. A product with 0 is folded only if both factors are constant, so that an undefined factor is still
// an error.
func Mul(a, b *Expr) *Expr {
	switch {
	case a.IsInt(1):
		return b
	case b.IsInt(1):
		return a
	}
	return fold(ExprMul, a, b)
}

// Mod returns a mod b, which is never negative.
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

// Extent returns the expression for the local extent of dimension dim of %name.
func Extent(name string, dim int64) *Expr { return &Expr{Kind: ExprExtent, Name: name, Val: dim} }

// Var returns the expression for a loop variable or let.
func Var(name string) *Expr { return &Expr{Kind: ExprVar, Name: name} }

func fold(k ExprKind, a, b *Expr) *Expr {
	if a.Kind == ExprInt && b.Kind == ExprInt {
		if v, err := Apply(k, a.Val, b.Val); err == nil {
			return Int(v)
		}
	}
	return Bin(k, a, b)
}

// At returns the place %name[index].
func At(name string, index *Expr) Place { return Place{Name: name, Index: index} }

// Main returns the place of the caller's stream.
func Main() Place { return Place{Main: true} }

// ExprAttr returns the attribute "name=e". Attributes such as axis, root, index and ctas have this form.
func ExprAttr(name string, e *Expr) Attr { return Attr{Name: name, Kind: AttrExpr, Exprs: []*Expr{e}} }

// ExprsAttr returns the attribute "name=(list)". The attributes shape and perm, and the axis of a reduction, have this
// form.
func ExprsAttr(name string, list ...*Expr) Attr {
	return Attr{Name: name, Kind: AttrExprs, Exprs: list, Paren: len(list) != 1}
}

// NumberAttr returns the attribute "name=f", such as by of scale and value of fill.
func NumberAttr(name string, f float64) Attr {
	return Attr{Name: name, Kind: AttrNumber, Num: f, IsNum: true}
}

// WordAttr returns the attribute "name=word", such as op, order and engine.
func WordAttr(name, word string) Attr { return Attr{Name: name, Kind: AttrWord, Words: []string{word}} }

// Over returns the attribute "over=axes".
func Over(axes ...string) Attr {
	return Attr{Name: "over", Kind: AttrWords, Words: axes, Paren: len(axes) > 1}
}
