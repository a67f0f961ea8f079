package ir

// Builder makes programs from Go. What it makes is checked where every program
// is, by Check; a wrong program is built like a right one.
type Builder struct{ prog *Program }

// NewBuilder starts an empty program; file names it in diagnostics.
func NewBuilder(file string) *Builder { return &Builder{prog: &Program{File: file}} }

// Program returns what was built so far.
func (b *Builder) Program() *Program { return b.prog }

// Dim declares a dim without a default and returns the expression that names it.
func (b *Builder) Dim(name string) *Expr {
	b.prog.Dims = append(b.prog.Dims, &Dim{Name: name})
	return DimRef(name)
}

// DimDefault declares a dim with a default value.
func (b *Builder) DimDefault(name string, v int64) *Expr {
	b.prog.Dims = append(b.prog.Dims, &Dim{Name: name, Default: v, HasValue: true})
	return DimRef(name)
}

// Mesh declares the main mesh; the last axis varies fastest.
func (b *Builder) Mesh(axes ...MeshAxis) {
	b.prog.Meshes = append(b.prog.Meshes, &Mesh{Axes: axes})
}

// SubMesh declares a mesh of some of the main mesh's ranks.
func (b *Builder) SubMesh(ranks []int64, axes ...MeshAxis) {
	b.prog.Meshes = append(b.prog.Meshes, &Mesh{Axes: axes, Devices: ranks, HasDevices: true})
}

// Axis is an axis of a mesh: "tp[4]".
func Axis(name string, size *Expr) MeshAxis { return MeshAxis{Name: name, Size: size} }

// Func declares a function whose body is what body appends. refines may be empty.
func (b *Builder) Func(name string, params []*Param, results []*Type, refines string, body func(*BlockBuilder)) *Func {
	f := &Func{Name: name, Params: params, Results: results, Refines: Name{Text: refines}, Body: build(body)}
	b.prog.Funcs = append(b.prog.Funcs, f)
	return f
}

// In is a parameter that is only read.
func In(name string, t *Type) *Param { return &Param{Name: name, Type: t} }

// InOut is a parameter that the function may write.
func InOut(name string, t *Type) *Param { return &Param{Name: name, Type: t, Inout: true} }

// Tensor is a tensor type with the given dimensions.
func Tensor(d DType, dims ...Dimension) *Type { return &Type{DType: d, Dims: dims} }

// Dimn is a dimension of a type, split over axes, major first, if there are any.
func Dimn(extent *Expr, axes ...string) Dimension { return Dimension{Extent: extent, Axes: axes} }

// BlockBuilder appends statements to a block. Its methods return what the
// statement names, for use as an operand.
type BlockBuilder struct{ block *Block }

// NewBlockBuilder appends to a block that is there already, as passes do.
func NewBlockBuilder(b *Block) *BlockBuilder { return &BlockBuilder{block: b} }

// build returns the block that body appends; an empty one for nil.
func build(body func(*BlockBuilder)) *Block {
	b := &Block{}
	if body != nil {
		body(&BlockBuilder{block: b})
	}
	return b
}

// Append adds a statement made by hand.
func (b *BlockBuilder) Append(s *Stmt) { b.block.Stmts = append(b.block.Stmts, s) }

// define appends s as the definition of %name.
func (b *BlockBuilder) define(name string, s *Stmt) Place {
	s.Results = []Name{{Text: name}}
	b.Append(s)
	return V(name)
}

// Value appends "%name = op args, attrs", with the type if t is not nil.
func (b *BlockBuilder) Value(name string, t *Type, op Op, args []Place, attrs ...Attr) Place {
	return b.define(name, &Stmt{Op: op, Type: t, Args: args, Attrs: attrs})
}

// Do appends "op args into %into, attrs"; a zero into is left out.
func (b *BlockBuilder) Do(op Op, into Place, args []Place, attrs ...Attr) {
	s := &Stmt{Op: op, Args: args, Attrs: attrs}
	if into.Name != "" {
		s.Into = &into
	}
	b.Append(s)
}

// Chunk appends "%name = chunk of, axis=axis, index of count".
func (b *BlockBuilder) Chunk(name string, of Place, axis int64, index, count *Expr) Place {
	return b.define(name, &Stmt{Op: OpChunk, Args: []Place{of}, Exprs: []*Expr{index, count}, Attrs: []Attr{ExprAttr("axis", Int(axis))}})
}

// Slice appends "%name = slice of, axis=axis, lo..hi".
func (b *BlockBuilder) Slice(name string, of Place, axis int64, lo, hi *Expr) Place {
	return b.define(name, &Stmt{Op: OpSlice, Args: []Place{of}, Exprs: []*Expr{lo, hi}, Attrs: []Attr{ExprAttr("axis", Int(axis))}})
}

// Alloc appends "%name = alloc[count] t flags"; a nil count makes one buffer.
func (b *BlockBuilder) Alloc(name string, count *Expr, t *Type, flags AllocFlags) Place {
	return b.define(name, &Stmt{Op: OpAlloc, Count: count, Type: t, Flags: flags})
}

// Declare appends "%name = op[count] attrs" for a stream, event or counter.
func (b *BlockBuilder) Declare(name string, op Op, count *Expr, attrs ...Attr) Place {
	return b.define(name, &Stmt{Op: op, Count: count, Attrs: attrs})
}

// Let appends "let %name = e" and returns the variable.
func (b *BlockBuilder) Let(name string, e *Expr) *Expr {
	b.define(name, &Stmt{Op: OpLet, Exprs: []*Expr{e}})
	return Var(name)
}

// WaitAtLeast appends "wait counter >= least".
func (b *BlockBuilder) WaitAtLeast(counter Place, least *Expr) {
	b.Append(&Stmt{Op: OpWait, Args: []Place{counter}, Exprs: []*Expr{least}})
}

// Transfer appends put, get, signal, send or recv with the peer axis[index];
// a zero into is left out.
func (b *BlockBuilder) Transfer(op Op, what, into Place, axis string, index *Expr, attrs ...Attr) {
	b.Do(op, into, []Place{what}, attrs...)
	b.block.Stmts[len(b.block.Stmts)-1].Peer = &Peer{Axis: axis, Index: index}
}

// On appends "on stream { body }".
func (b *BlockBuilder) On(stream Place, body func(*BlockBuilder)) {
	b.Append(&Stmt{Op: OpOn, Args: []Place{stream}, Body: build(body)})
}

// Group appends "group { body }".
func (b *BlockBuilder) Group(body func(*BlockBuilder)) {
	b.Append(&Stmt{Op: OpGroup, Body: build(body)})
}

// For appends "for %name in lo..hi stream(streams) { body }"; no stream(…) for 0.
func (b *BlockBuilder) For(name string, lo, hi *Expr, streams int64, body func(*BlockBuilder, *Expr)) {
	inner := build(func(b *BlockBuilder) { body(b, Var(name)) })
	b.define(name, &Stmt{Op: OpFor, Exprs: []*Expr{lo, hi}, Streams: streams, Body: inner})
}

// If appends "if left cmp right { then } else { other }"; other may be nil.
func (b *BlockBuilder) If(left *Expr, cmp Cmp, right *Expr, then, other func(*BlockBuilder)) {
	s := &Stmt{Op: OpIf, Exprs: []*Expr{left, right}, Cmp: cmp, Body: build(then)}
	if other != nil {
		s.Else = build(other)
	}
	b.Append(s)
}

// Call appends "%results = call callee args".
func (b *BlockBuilder) Call(results []string, callee string, args ...Place) {
	s := &Stmt{Op: OpCall, Callee: Name{Text: callee}, Args: args}
	for _, r := range results {
		s.Results = append(s.Results, Name{Text: r})
	}
	b.Append(s)
}

// Return appends "return places".
func (b *BlockBuilder) Return(places ...Place) { b.Append(&Stmt{Op: OpReturn, Args: places}) }

// V is the place %name.
func V(name string) Place { return Place{Name: name} }

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
func Over(axes ...string) Attr { return Attr{Name: "over", Kind: AttrWords, Words: axes} }
