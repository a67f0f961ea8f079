package ir

// SymKind is the kind of object that a name denotes.
type SymKind uint8

// The kinds of symbols.
const (
	// SymValue is an immutable global value. The Type of a SymValue includes its layout over the mesh.
	SymValue SymKind = iota
	// SymBuffer is mutable local storage, a view of such storage (then Base is set), or the local result of an operation
	// with a local operand. Its Type is local.
	SymBuffer
	SymStream
	SymEvent
	SymCounter
	SymIndex // a loop variable or let
)

// String returns the name of the kind that diagnostics use.
func (k SymKind) String() string {
	return [...]string{"a value", "a buffer", "a stream", "an event", "a counter", "an index"}[k]
}

// Sym holds the results of Check for one name.
type Sym struct {
	Kind SymKind
	Name string
	Pos  Pos
	// Type is the type of a value (global, with layout) or of a buffer (with local extents). The extents of Type are
	// expressions over the dims, loop variables, lets and ranks in scope.
	Type *Type
	// Signature is the declared type of an inout parameter, whose Type is local.
	Signature *Type
	// Count is the length of an array. Count is nil for a single object.
	Count *Expr
	// Def is the defining statement. Def is nil for a parameter.
	Def   *Stmt
	Param *Param
	// Base is the symbol that owns the memory of a view. For a view of a view, Base is the owner of the innermost one.
	// Base is nil if the symbol owns its memory.
	Base *Sym
	// RankDependent reports that the value of an index may differ between ranks.
	RankDependent bool
	// Claimed reports that a claim statement made a value from this buffer.
	Claimed bool
}

// Root returns the symbol that owns s's memory.
func (s *Sym) Root() *Sym {
	if s.Base != nil {
		return s.Base
	}
	return s
}

// ReadOnly reports whether s must not be written: s is a value, or a view of a value.
func (s *Sym) ReadOnly() bool { return s.Root().Kind == SymValue }

// CheckKind is the relation that a Constraint requires.
type CheckKind uint8

// The relations of constraints.
const (
	CheckEqual    CheckKind = iota // A == B
	CheckMultiple                  // A is a multiple of B
	CheckAtMost                    // A <= B
	CheckLess                      // A < B
)

// Broken returns a message which says that the relation between a and b does not hold. x and y are a and b as text.
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

// Constraint is a relation that could not be decided symbolically. Bind checks constraints that depend only on
// dims. Bound.CheckStmt checks the others, once for each execution of the statement, when the program is unrolled.
type Constraint struct {
	Pos  Pos
	Rel  CheckKind
	A, B *Expr
	// Message describes the error if the relation does not hold. The values of both sides are appended to the message.
	Message string
	Help    string
	// Late reports that the constraint can only be checked for an instance of the statement. The other constraints, and
	// all conditions around their statements, depend only on dims and mesh sizes.
	Late bool
}

// Info holds the results of Check for a program.
type Info struct {
	Prog *Program
	// Dims holds every dim, whether declared explicitly or by its use as the extent of a parameter.
	Dims map[string]*Dim
	// Params[f] lists the symbols of f's parameters.
	Params map[*Func][]*Sym
	// Results[s] lists the symbols that statement s defines, in order.
	Results map[*Stmt][]*Sym
	// Operands[s] lists the symbols of s.Args, in order. The entry for main is nil.
	Operands map[*Stmt][]*Sym
	// Into[s] is the symbol of s.Into.
	Into map[*Stmt]*Sym
	// Needs[s], where present, holds for each operand of an operation on values, a call or a return the type to which the
	// operand must be resharded first, or nil where no reshard is needed. A program without Needs is explicit: every
	// operation works on local shards.
	Needs map[*Stmt][]*Type
	// Natural[s], where present, is the layout of the operation's result before the result is resharded to the annotated
	// layout.
	Natural map[*Stmt]*Type
	// Constraints[s] lists the constraints of s that remain to be checked.
	Constraints map[*Stmt][]Constraint
	// SigConstraints lists the constraints of a function's parameter and result types.
	SigConstraints map[*Func][]Constraint
}

// Explicit reports whether no statement of the program needs a reshard.
func (in *Info) Explicit() bool { return len(in.Needs) == 0 && len(in.Natural) == 0 }
