package ir

// SymKind says what a name stands for.
type SymKind uint8

// Kinds of names.
const (
	// SymValue is immutable and global: Type carries its layout over the mesh.
	SymValue SymKind = iota
	// SymBuffer is mutable local storage, or a view of some (then Base is set),
	// or the local result of an op with a local operand. Type is local.
	SymBuffer
	SymStream
	SymEvent
	SymCounter
	SymIndex // a loop variable or let
)

// String returns the kind as diagnostics name it.
func (k SymKind) String() string {
	return [...]string{"a value", "a buffer", "a stream", "an event", "a counter", "an index"}[k]
}

// Sym is what Check found out about one name.
type Sym struct {
	Kind SymKind
	Name string
	Pos  Pos
	// Type of a value (global, with layout) or buffer (local extents). Extents
	// are expressions over dims, loop variables, lets and ranks in scope.
	Type *Type
	// Signature is an inout parameter's declared type; its Type is local.
	Signature *Type
	// Count is the array's length; nil for a single one.
	Count *Expr
	// Def is the defining statement; nil for a parameter.
	Def   *Stmt
	Param *Param
	// Base is the symbol whose memory a view names; for a view of a view, the
	// innermost. nil when the symbol owns its memory.
	Base *Sym
	// RankDependent: the index's value may differ between ranks.
	RankDependent bool
	// Claimed: a value was made of this buffer by claim.
	Claimed bool
}

// Root returns the symbol that owns s's memory.
func (s *Sym) Root() *Sym {
	if s.Base != nil {
		return s.Base
	}
	return s
}

// ReadOnly reports whether s may not be written: a value, or a view of one.
func (s *Sym) ReadOnly() bool { return s.Root().Kind == SymValue }

// CheckKind is the relation a Constraint demands.
type CheckKind uint8

// Relations.
const (
	CheckEqual    CheckKind = iota // A == B
	CheckMultiple                  // A is a multiple of B
	CheckAtMost                    // A <= B
	CheckLess                      // A < B
)

// Broken says that the relation does not hold between a and b, which x and y print.
func (k CheckKind) Broken(a, b *Expr, x, y string) string {
	if a.IsInt(0) && k >= CheckAtMost {
		return "it is " + y
	}
	if k == CheckEqual {
		switch {
		case partOf(a, b):
			x, y = x+" (each rank's part)", y+" (the whole)"
		case partOf(b, a):
			x, y = x+" (the whole)", y+" (each rank's part)"
		}
	}
	return x + " " + [...]string{"is not", "is not a multiple of", "is more than", "is not less than"}[k] + " " + y
}

// partOf reports whether a is written as the extent of each rank's block of b.
func partOf(a, b *Expr) bool {
	if a.Kind != ExprFloorDiv || !SameExpr(a.Args[0], b) {
		return false
	}
	sizes := true
	a.Args[1].Walk(func(e *Expr) { sizes = sizes && (e.Kind == ExprSize || e.Kind == ExprMul) })
	return sizes
}

// Constraint is a relation that could not be decided on symbols. Those over
// dims alone are checked by Bind, the others for each instance of the
// statement, by whoever unrolls it (Bound.CheckStmt).
type Constraint struct {
	Pos  Pos
	Rel  CheckKind
	A, B *Expr
	// Message says what is wrong when it does not hold; the values are added.
	Message string
	Help    string
	// late: only an instance of the statement can check it. Early ones are over
	// dims and mesh sizes alone, and so is every condition around them.
	Late bool
}

// Info is what Check found out about a program.
type Info struct {
	Prog *Program
	// Dims holds every dim, declared or declared by use as a parameter axis.
	Dims map[string]*Dim
	// Params[f] are the symbols of f's parameters.
	Params map[*Func][]*Sym
	// Results[s] are the symbols that statement s defines, in order.
	Results map[*Stmt][]*Sym
	// Operands[s] are the symbols of s.Args, in order; nil entries for main.
	Operands map[*Stmt][]*Sym
	// Into[s] is the symbol of s.Into.
	Into map[*Stmt]*Sym
	// Needs[s], where present, has for each operand of a value op (or call,
	// or return) the type it must be resharded to first, or nil where it fits.
	// A program without Needs is explicit: every op works on local shards.
	Needs map[*Stmt][]*Type
	// Natural[s], where present, is the layout in which the op leaves its
	// result before it is resharded to the annotated one.
	Natural map[*Stmt]*Type
	// Constraints[s] are what remains to be checked for s.
	Constraints map[*Stmt][]Constraint
	// Signature constraints of a function's parameter and result types.
	SigConstraints map[*Func][]Constraint
}

// Explicit reports whether no statement of the program needs a reshard.
func (in *Info) Explicit() bool { return len(in.Needs) == 0 && len(in.Natural) == 0 }
