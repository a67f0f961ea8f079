package ir

// This file declares the abstract syntax of a program, which the parser builds, the printer prints and passes rewrite.
// Names are strings without "%". Check finds the symbols that names denote, and stores them in Info.

// Pos is a position in the source text. Line and Col count from 1; Col counts bytes. The zero Pos marks syntax that a
// pass made.
type Pos struct{ Line, Col int32 }

// Valid reports whether p is a position in a text.
func (p Pos) Valid() bool { return p.Line > 0 }

// Name is the definition of a name.
type Name struct {
	Pos  Pos
	Text string
}

// Comment is one comment. Text holds the text after "//", without trailing blanks.
type Comment struct {
	Pos  Pos
	Text string
	// Blank reports that an empty line precedes the comment. Blank is never set for the first comment of Lead or Tail.
	// Comments.Blank and Block.TailBlank report that empty line instead.
	Blank bool
}

// Comments holds the comments of a declaration or statement.
type Comments struct {
	// Lead holds the comment lines above the statement.
	Lead []Comment
	// Blank reports that an empty line precedes Lead, or the statement if Lead is empty.
	Blank bool
	// Gap reports that an empty line separates Lead from the statement.
	Gap bool
	// Trail is the comment at the end of the statement's last line. For a statement with a block Trail is the comment
	// after the opening brace.
	Trail string
	// HasTrail distinguishes an empty trailing comment from none.
	HasTrail bool
}

// Program is one source file.
type Program struct {
	// File names the source in diagnostics.
	File string
	// Source is the text to which positions refer. It may be empty.
	Source string

	Dims   []*Dim
	Meshes []*Mesh
	Funcs  []*Func

	// Order lists the declarations in the order of the text, for printing. Passes that add declarations may leave Order
	// nil; then dims precede meshes, and meshes precede functions.
	Order []Decl
	// End holds the comments after the last declaration.
	End []Comment

	// Files holds the contents of the files that launches name, keyed by the file name in the launch. Neither Parse nor
	// Check reads these files.
	Files map[string][]byte
}

// Decl is a declaration: a *Dim, *Mesh or *Func.
type Decl interface{ declPos() Pos }

func (d *Dim) declPos() Pos  { return d.Pos }
func (m *Mesh) declPos() Pos { return m.Pos }
func (f *Func) declPos() Pos { return f.Pos }

// Func returns the function called name, or nil.
func (p *Program) Func(name string) *Func {
	for _, f := range p.Funcs {
		if f.Name == name {
			return f
		}
	}
	return nil
}

// Entry returns the function that a Binding with the given Func selects: the last one if name is empty. It returns nil
// if there is none.
func (p *Program) Entry(name string) *Func {
	if name == "" && len(p.Funcs) > 0 {
		return p.Funcs[len(p.Funcs)-1]
	}
	return p.Func(name)
}

// Dim is the declaration of a dim, such as "dim T = 64".
type Dim struct {
	Pos      Pos
	Name     string
	Default  int64
	HasValue bool
	// Least and Most limit the values for which an imported model is valid. The text of a program cannot express Least
	// and Most. Most is 0 if there is no upper limit.
	Least, Most int64
	Comments    Comments
}

// Mesh is the declaration of a mesh. Without a device list, as in "mesh dp[2] tp[4]", the mesh is the main mesh. With a
// device list, as in "mesh d[2] = {0 2}", the mesh consists of those ranks. The last axis varies fastest.
type Mesh struct {
	Pos     Pos
	Axes    []MeshAxis
	Devices []int64 // nil for the main mesh
	// HasDevices distinguishes an empty list from none.
	HasDevices bool
	Comments   Comments
}

// MeshAxis is one axis of a mesh and its size.
type MeshAxis struct {
	Pos  Pos
	Name string
	Size *Expr
}

// Func is one function.
type Func struct {
	Pos      Pos
	Name     string
	Params   []*Param
	Results  []*Type
	Refines  Name // zero if none
	Body     *Block
	Comments Comments
}

// Param is a parameter of a function: "%x: type" or "%x: inout type".
type Param struct {
	Pos   Pos
	Name  string
	Inout bool
	Type  *Type
}

// Block is a list of statements between braces.
type Block struct {
	Stmts []*Stmt
	// End is the position of the closing brace.
	End Pos
	// Tail holds the comments between the last statement and the brace.
	Tail []Comment
	// TailBlank reports that an empty line precedes Tail.
	TailBlank bool
}

// Walk calls f for every statement of b and of the blocks in it, in text order.
func (b *Block) Walk(f func(*Stmt)) {
	if b == nil || f == nil {
		return
	}
	for _, s := range b.Stmts {
		f(s)
		s.Body.Walk(f)
		s.Else.Walk(f)
	}
}

// EachExpr calls f with the place of every expression of s, which may be nil, but not of those in the blocks of s.
func (s *Stmt) EachExpr(f func(e **Expr)) {
	if s.Type != nil {
		for i := range s.Type.Dims {
			f(&s.Type.Dims[i].Extent)
		}
	}
	for i := range s.Exprs {
		f(&s.Exprs[i])
	}
	for i := range s.Attrs {
		for k := range s.Attrs[i].Exprs {
			f(&s.Attrs[i].Exprs[k])
		}
	}
	for i := range s.Args {
		f(&s.Args[i].Index)
	}
	if s.Into != nil {
		f(&s.Into.Index)
	}
	if s.Peer != nil {
		f(&s.Peer.Index)
	}
	f(&s.Count)
}

// Stmt is one statement. Its Op determines which fields are used:
//
//	tensor, view, collective  Results[0] [Type] = Op Args Exprs Attrs, or Op Args Into Attrs
//	chunk                     Exprs = index, count      (chunk %x, axis=0, %i of C)
//	slice reduce_slots        Exprs = lo, hi            (slice %x, axis=0, lo..hi)
//	alloc                     Results[0] = alloc Count Type Flags
//	stream event counter      Results[0], Count
//	free record               Args[0]
//	launch                    Launch; Args = its tensors, Exprs = its integers, in the order of the parameters
//	on                        Args[0] (may be main), Body
//	wait                      Args[0] (may be main); Exprs[0] = minimum value of the counter
//	put                       Args[0], Into, Peer        (put %x into %to at tp[e])
//	get                       Args[0], Peer, Into        (get %x at tp[e] into %y)
//	signal                    Args[0], Peer
//	send recv                 Args[0], Peer
//	barrier                   Attrs over=
//	group                     Body
//	let                       Results[0], Exprs[0]
//	for                       Results[0], Exprs = lo, hi; Streams; Body; for carried values: Args = initial values,
//	                          Carry = names in the body, Results[1:] = names after the loop
//	yield                     Args
//	if                        Exprs = left, right; Cmp; Body; Else
//	call                      Results, Callee, Args
//	return                    Args
type Stmt struct {
	Op      Op
	Pos     Pos // position of the operation's name; for let, of the first result
	Results []Name
	Type    *Type // annotation of the result, or the type that alloc allocates
	Args    []Place
	Into    *Place
	Attrs   []Attr
	Exprs   []*Expr
	Count   *Expr // length in alloc[n], stream[n], event[n] or counter[n]; nil for a single object
	Peer    *Peer
	Cmp     Cmp
	Streams int64 // the n of for … stream(n); 0 if absent
	Carry   []Name
	Callee  Name
	Launch  *Launch
	Flags   AllocFlags
	Body    *Block
	Else    *Block
	// Nested reports that the statement was written as an operand of a later statement, in the form %w[%l] or (OP
	// args). Operand k of the statement whose result is %y has the name %y.k. The printer writes the statement in its
	// operand position if that is still possible.
	Nested bool

	Comments Comments
}

// Launch describes the kernel that a launch statement runs, and its arguments: "scale.cu":scale(%x, into %y, N).
type Launch struct {
	Pos    Pos
	File   string
	Kernel Name
	Params []LaunchParam
}

// LaunchParam is one argument of a launched kernel.
type LaunchParam struct {
	Pos  Pos
	Kind LaunchKind
	// At is the index of the argument's tensor in Args, or of its expression in Exprs. At is -1 if the argument is the
	// number Num.
	At    int
	DType DType // type of the argument if it is a number
	Num   float64
}

// LaunchKind says whether a kernel reads, writes or updates an argument, or receives it as a number.
type LaunchKind uint8

// The kinds of arguments of a launch.
const (
	LaunchReads   LaunchKind = iota // %x
	LaunchWrites                    // into %x
	LaunchUpdates                   // inout %x: reads and writes
	LaunchNumber                    // N, i64 N, f32 0.5
)

// Reads reports whether the kernel reads the argument's tensor.
func (k LaunchKind) Reads() bool { return k == LaunchReads || k == LaunchUpdates }

// Writes reports whether the kernel writes the argument's tensor.
func (k LaunchKind) Writes() bool { return k == LaunchWrites || k == LaunchUpdates }

// Name returns the name under which a Go function that replaces the kernel is registered: "scale.cu:scale".
func (l *Launch) Name() string { return l.File + ":" + l.Kernel.Text }

// Operand returns how the kernel uses operand i of the statement.
func (l *Launch) Operand(i int) LaunchKind {
	for _, p := range l.Params {
		if p.Kind != LaunchNumber && p.At == i {
			return p.Kind
		}
	}
	return LaunchReads
}

// AllocFlags holds the words after an alloc's type.
type AllocFlags uint8

// Flags of alloc.
const (
	// Symmetric buffers exist on every rank of the team, at the same offset, so that peers can access them with put and
	// get.
	Symmetric AllocFlags = 1 << iota
	// Zero buffers contain zeros after their alloc, which writes the zeros on the current stream.
	Zero
	// Host buffers are allocated in pinned host memory.
	Host
)

// Cmp is the comparison operator of an if.
type Cmp uint8

// The comparison operators.
const (
	EQ Cmp = iota
	NE
	LT
	LE
	GT
	GE
)

// String returns the operator: "==".
func (c Cmp) String() string { return [...]string{"==", "!=", "<", "<=", ">", ">="}[c] }

// Holds reports whether the comparison of a and b is true.
func (c Cmp) Holds(a, b int64) bool {
	switch c {
	case EQ:
		return a == b
	case NE:
		return a != b
	case LT:
		return a < b
	case LE:
		return a <= b
	case GT:
		return a > b
	}
	return a >= b
}

// Place is an operand: "%x", an element of an array "%x[e]", or "main".
type Place struct {
	Pos   Pos
	Name  string // empty for main
	Index *Expr  // nil if there is no index
	Main  bool
}

// Peer selects one rank along an axis: "AXIS[e]".
type Peer struct {
	Pos   Pos
	Axis  string
	Index *Expr
}

// AttrKind determines the field of an Attr that holds its value.
type AttrKind uint8

// Kinds of attribute values.
const (
	AttrNone AttrKind = iota
	AttrExpr          // one expression, Exprs[0]: axis=0, root=%i+1
	// a list of expressions, Exprs: axis=(0, 1), shape=(T, 4); a single one may be without parentheses
	AttrExprs
	AttrNumber // a number, Num if IsNum is set, else Exprs[0]: value=0.5, value=%i
	AttrWord   // one word, Words[0]: op=sum
	AttrWords  // one or several words, Words: over=tp, over=(dp, tp)
)

// Attr is an attribute "name=value". The Op table determines its Kind.
type Attr struct {
	Pos   Pos
	Name  string
	Kind  AttrKind
	Exprs []*Expr
	Words []string
	Num   float64
	IsNum bool
	// Paren reports that a list was written in parentheses.
	Paren bool
}

// Attr returns the attribute called name, or nil.
func (s *Stmt) Attr(name string) *Attr {
	for i := range s.Attrs {
		if s.Attrs[i].Name == name {
			return &s.Attrs[i]
		}
	}
	return nil
}

// Word returns the first word of attribute name, or def if the attribute is absent.
func (s *Stmt) Word(name, def string) string {
	if a := s.Attr(name); a != nil && len(a.Words) > 0 {
		return a.Words[0]
	}
	return def
}

// Over returns the axes of the attribute over=, in order, or nil if it is absent.
func (s *Stmt) Over() []string {
	if a := s.Attr("over"); a != nil {
		return a.Words
	}
	return nil
}

// Type is a tensor type: "bf16[T/tp, K] partial(tp, sum) @d".
type Type struct {
	Pos     Pos
	DType   DType
	Dims    []Dimension
	Partial []Partial
	Mesh    string // the axis after "@", which identifies the mesh; empty for the main mesh
}

// Dimension holds one dimension's extent and the mesh axes over which it is split, major axis first.
type Dimension struct {
	Extent *Expr
	Axes   []string
}

// Partial says that a value is the reduction, by Red, of contributions. Each rank along Axis holds only its own
// contribution.
type Partial struct {
	Axis string
	Red  Red
}

// Red is a reduction operator.
type Red uint8

// Reductions.
const (
	NoRed Red = iota
	Sum
	Max
	Min
	Avg
)

// String returns the name of the reduction in programs: "sum".
func (r Red) String() string { return [...]string{"none", "sum", "max", "min", "avg"}[r] }

// ParseRed returns the reduction called name.
func ParseRed(name string) (Red, bool) {
	for r := Sum; r <= Avg; r++ {
		if r.String() == name {
			return r, true
		}
	}
	return NoRed, false
}
