package nvfuser

import (
	"slices"
	"strconv"
	"strings"

	"hocket.example/hocket/ir"
)

// This file converts integer expressions of the dump to index expressions of the program.

const (
	numberOfStreams = "numberOfStreams"
	deviceIndex     = "deviceIdx.x"
	// maxInline is the maximum size of an index definition that replaces the name of the index. An index is
	// replaced in the types of the signature, where no let can define it.
	maxInline = 200
	// maxNodes is the largest number of nodes in an index expression.
	maxNodes = 500
)

// String returns the expression in a canonical notation, in which equal expressions have equal texts.
func (s *scalar) String() string {
	var b strings.Builder
	s.write(&b)
	return b.String()
}

func (s *scalar) write(b *strings.Builder) {
	switch {
	case s == nil:
	case s.op != "":
		b.WriteString(s.op)
		b.WriteByte('(')
		for i, a := range s.args {
			if i > 0 {
				b.WriteByte(',')
			}
			a.write(b)
		}
		b.WriteByte(')')
	case s.name != "":
		b.WriteString(s.name)
	default:
		b.WriteString(strconv.FormatInt(s.val, 10))
	}
}

// names is an iterator: it calls the function see with every name that occurs in s.
func (s *scalar) names(see func(*scalar)) {
	if s == nil {
		return
	}
	if s.op == "" && s.name != "" {
		see(s)
	}
	for _, a := range s.args {
		a.names(see)
	}
}

func num(pos ir.Pos, v int64) *ir.Expr { return &ir.Expr{Kind: ir.ExprInt, Pos: pos, Val: v} }

func bin(k ir.ExprKind, a, b *ir.Expr) *ir.Expr {
	e := ir.Bin(k, a, b)
	if a.Kind == ir.ExprInt && b.Kind == ir.ExprInt {
		if v, err := e.Eval(nil); err == nil {
			return num(a.Pos, v)
		}
	}
	return e
}

// scalars translates indices and extents.
type scalars struct {
	output
	// defs holds the definitions of indices, from the dump and from --define. missing holds the names that have
	// been reported as undefined. defining holds the names whose definitions are being translated.
	defs    map[string]*scalar
	missing map[string]bool
	// proposals holds a proposal for --define flags that set all missing indices.
	proposals string
	defining  map[string]bool
	inlined   int
	sizes     map[*ir.Expr]int // maps an expression to its number of nodes
	tooLarge  bool             // whether an error about an expression that is too large was reported
	// symbols maps the names in the extents of inputs to the dims that are declared for them.
	symbols    map[string]*ir.Dim
	symbolList []string
	streamsDim bool
}

// expr translates s in the current block. If s uses an index that has a definition, expr adds a let with this
// definition to the block.
func (t *scalars) expr(s *scalar) *ir.Expr {
	switch {
	case s == nil:
		return num(ir.Pos{}, 0)
	case s.isInt():
		return num(s.pos, s.val)
	case s.op == "":
		return t.name(s)
	}
	args := make([]*ir.Expr, len(s.args))
	for i, a := range s.args {
		args[i] = t.expr(a)
	}
	e := t.apply(s, args)
	if t.nodes(e) > maxNodes {
		if !t.tooLarge {
			t.errorf(s.pos, "this index expression is too large: it has more than %d nodes", maxNodes).Help =
				"nested comparisons and remainders make it large: define an index for a part of it"
		}
		t.tooLarge = true
		return num(s.pos, 0)
	}
	return e
}

// nodes returns the number of nodes of e as a tree. The translations of comparisons and remainders contain their
// operands more than once, so a tree may be much larger than the text in the dump.
func (t *scalars) nodes(e *ir.Expr) int {
	if len(e.Args) == 0 {
		return 1
	}
	n, known := t.sizes[e]
	if !known {
		n = 1
		for _, a := range e.Args {
			n += t.nodes(a)
		}
		t.sizes[e] = n
	}
	return n
}

func (t *scalars) apply(s *scalar, x []*ir.Expr) *ir.Expr {
	switch s.op {
	case "+":
		return bin(ir.ExprAdd, x[0], x[1])
	case "-":
		return bin(ir.ExprSub, x[0], x[1])
	case "*":
		return bin(ir.ExprMul, x[0], x[1])
	case "/":
		return t.truncated(ir.ExprFloorDiv, s, x)
	case "%":
		return t.truncated(ir.ExprMod, s, x)
	case "ceilDiv":
		return bin(ir.ExprCeilDiv, x[0], x[1])
	case "max", "fmax":
		return bin(ir.ExprMax, x[0], x[1])
	case "min", "fmin":
		return bin(ir.ExprMin, x[0], x[1])
	case "neg":
		return negated(x[0])
	case "abs":
		return bin(ir.ExprMax, x[0], negated(x[0]))
	case "where":
		c := t.truth(s.args[0], x[0])
		return bin(ir.ExprAdd, bin(ir.ExprMul, c, x[1]), bin(ir.ExprMul, not(c), x[2]))
	case "&&":
		return bin(ir.ExprMin, t.truth(s.args[0], x[0]), t.truth(s.args[1], x[1]))
	case "||":
		return bin(ir.ExprMax, t.truth(s.args[0], x[0]), t.truth(s.args[1], x[1]))
	case "!":
		return not(t.truth(s.args[0], x[0]))
	}
	return compared(s.op, x[0], x[1])
}

func negated(x *ir.Expr) *ir.Expr { return bin(ir.ExprSub, num(x.Pos, 0), x) }
func not(x *ir.Expr) *ir.Expr     { return bin(ir.ExprSub, num(x.Pos, 1), x) }

// compared returns an expression that is 1 if a op b is true, and 0 otherwise.
func compared(op string, a, b *ir.Expr) *ir.Expr {
	less := func(a, b *ir.Expr) *ir.Expr { // min(1, max(0, b - a))
		return bin(ir.ExprMin, num(a.Pos, 1), bin(ir.ExprMax, num(a.Pos, 0), bin(ir.ExprSub, b, a)))
	}
	switch op {
	case "<":
		return less(a, b)
	case ">":
		return less(b, a)
	case "<=":
		return not(less(b, a))
	case ">=":
		return not(less(a, b))
	}
	differ := bin(ir.ExprMax, less(a, b), less(b, a))
	if op == "!=" {
		return differ
	}
	return not(differ)
}

var comparisons = map[string]ir.Cmp{"==": ir.EQ, "!=": ir.NE, "<": ir.LT, "<=": ir.LE, ">": ir.GT, ">=": ir.GE}

// truth converts an expression that is used as a condition to an expression that is 0 or 1.
func (t *scalars) truth(s *scalar, x *ir.Expr) *ir.Expr {
	if _, ok := comparisons[s.op]; ok || s.op == "&&" || s.op == "||" || s.op == "!" {
		return x
	}
	return compared("!=", x, num(x.Pos, 0))
}

// truncated translates the operators % and / of C, which round towards zero. The operators become mod and floordiv if
// the first operand is known to be non-negative and the second is known to be positive. A negative divisor changes the
// sign of the quotient but does not change the remainder.
func (t *scalars) truncated(k ir.ExprKind, s *scalar, x []*ir.Expr) *ir.Expr {
	budget := maxInline
	switch d := t.rangeOf(s.args[1], &budget); {
	case d.hasHi && d.hi < 0:
		byPositive := t.towardsZero(k, s, []*ir.Expr{x[0], negated(x[1])})
		if k == ir.ExprFloorDiv {
			return negated(byPositive)
		}
		return byPositive
	case d.hasLo && d.lo < 0, !d.hasLo && subtracts(s.args[1]):
		t.errorf(s.pos, "the sign of the divisor is not known").Help =
			"use only numbers, extents, and variables of loops that begin at 0 or later in the divisor"
	}
	return t.towardsZero(k, s, x)
}

// subtracts reports whether an expression contains a minus. No other operator in an index can produce a negative number
// from non-negative ones.
func subtracts(s *scalar) bool {
	return s.op == "-" || s.op == "neg" || s.isInt() && s.val < 0 || slices.ContainsFunc(s.args, subtracts)
}

// towardsZero is like the method truncated, for a divisor that is positive.
func (t *scalars) towardsZero(k ir.ExprKind, s *scalar, x []*ir.Expr) *ir.Expr {
	budget := maxInline
	if r := t.rangeOf(s.args[0], &budget); r.hasLo && r.lo >= 0 {
		return bin(k, x[0], x[1])
	}
	zero := num(s.pos, 0)
	return bin(ir.ExprSub,
		bin(k, bin(ir.ExprMax, x[0], zero), x[1]),
		bin(k, bin(ir.ExprMax, negated(x[0]), zero), x[1]))
}

// name translates a name: a value that the runtime provides, a loop variable, an index with a definition, or the symbol
// of an extent.
func (t *scalars) name(s *scalar) *ir.Expr {
	switch {
	case s.name == "rank" || s.name == deviceIndex:
		return &ir.Expr{Kind: ir.ExprRank, Pos: s.pos, Name: ir.WorldAxis}
	case s.name == numberOfStreams:
		t.streamsDim = true
		return &ir.Expr{Kind: ir.ExprName, Pos: s.pos, Name: numberOfStreams}
	case t.loop(s.name) != nil:
		return &ir.Expr{Kind: ir.ExprVar, Pos: s.pos, Name: s.name}
	case t.defs[s.name] != nil:
		return t.defined(s)
	case t.symbols[s.name] != nil:
		return &ir.Expr{Kind: ir.ExprName, Pos: s.pos, Name: s.name}
	}
	t.undefined(s)
	return num(s.pos, 0)
}

// undefined reports that an index has no definition. It reports each index only once.
func (t *scalars) undefined(s *scalar) {
	if t.missing[s.name] {
		return
	}
	t.missing[s.name] = true
	d := t.errorf(s.pos, "the index %s is used but not defined", brief(s.name))
	d.Notes = append(d.Notes, ir.Note{Message: "nvFuser prints \"" + defsWord + "\" since its pull request 5327; " +
		"older dumps do not contain them"})
	proposals := t.proposals
	if !strings.Contains(proposals, " '"+s.name+"=") {
		proposals += " --define '" + brief(s.name) + "=rank'"
	}
	d.Help = "print the dump with a newer nvFuser, or define the index; for example:" + proposals
}

// defined returns the expression for an index that has a definition. Within the body of the function, the
// expression is the name of a let in the current block. In the function's signature, it is the definition itself.
func (t *scalars) defined(s *scalar) *ir.Expr {
	for b := t.blk; b != nil; b = b.parent {
		if name := b.lets[s.name]; name != "" {
			return &ir.Expr{Kind: ir.ExprVar, Pos: s.pos, Name: name}
		}
	}
	if t.defining[s.name] {
		t.errorf(s.pos, "the definition of the index %s contains the index itself", brief(s.name))
		return num(s.pos, 0)
	}
	if t.defining[s.name] = true; len(t.defining) > maxNest {
		t.errorf(s.pos, "definitions of indices refer to each other in a chain of more than %d", maxNest)
		delete(t.defining, s.name)
		return num(s.pos, 0)
	}
	e := t.expr(t.defs[s.name])
	delete(t.defining, s.name)
	if t.blk == nil {
		if t.inlined++; t.inlined > maxInline {
			t.errorf(s.pos, "the extents in the signature contain too many definitions of indices")
		}
		return e
	}
	name, pos := t.fresh(s.name), t.defs[s.name].pos
	t.blk.lets[s.name] = name
	t.define(t.blk, &ir.Stmt{Op: ir.OpLet, Pos: pos, Results: []ir.Name{{Pos: pos, Text: name}}, Exprs: []*ir.Expr{e}})
	return &ir.Expr{Kind: ir.ExprVar, Pos: s.pos, Name: name}
}

// span describes the known range of an expression's values.
type span struct {
	lo, hi       int64
	hasLo, hasHi bool
}

func exactly(v int64) span { return span{v, v, true, true} }

// small is an upper bound: sums and products of values below it cannot overflow.
const small = 1 << 30

// rangeOf returns a range that contains all values of an expression. The argument budget limits the number of visited
// nodes.
func (t *scalars) rangeOf(s *scalar, budget *int) span {
	if *budget--; *budget < 0 {
		return span{}
	}
	switch {
	case s.isInt():
		return exactly(s.val)
	case s.op == "":
		return t.rangeOfName(s, budget)
	case s.op == "neg":
		a := t.rangeOf(s.args[0], budget)
		return span{-a.hi, -a.lo, a.hasHi, a.hasLo}
	case len(s.args) != 2:
		return span{}
	}
	a, b := t.rangeOf(s.args[0], budget), t.rangeOf(s.args[1], budget)
	if max(a.lo, -a.lo, a.hi, -a.hi, b.lo, -b.lo, b.hi, -b.hi) > small {
		return span{}
	}
	positive := a.hasLo && a.lo >= 0 && b.hasLo && b.lo >= 0
	switch s.op {
	case "+":
		return span{a.lo + b.lo, a.hi + b.hi, a.hasLo && b.hasLo, a.hasHi && b.hasHi}
	case "-":
		return span{a.lo - b.hi, a.hi - b.lo, a.hasLo && b.hasHi, a.hasHi && b.hasLo}
	case "*":
		return span{a.lo * b.lo, a.hi * b.hi, positive, positive && a.hasHi && b.hasHi}
	case "%":
		return span{0, b.hi - 1, positive, positive && b.hasHi}
	case "/", "ceilDiv":
		return span{0, a.hi, positive, positive && a.hasHi}
	case "max", "fmax":
		return span{max(a.lo, b.lo), max(a.hi, b.hi), a.hasLo && b.hasLo, a.hasHi && b.hasHi}
	}
	return span{}
}

func (t *scalars) rangeOfName(s *scalar, budget *int) span {
	switch l := t.loop(s.name); {
	case s.name == "rank" || s.name == deviceIndex:
		return span{0, t.world - 1, true, true}
	case l != nil:
		from, to := t.rangeOf(l.lo, budget), t.rangeOf(l.hi, budget)
		return span{from.lo, to.hi - 1, from.hasLo, to.hasHi}
	case t.defs[s.name] != nil:
		return t.rangeOf(t.defs[s.name], budget)
	}
	return span{lo: 0, hasLo: t.symbols[s.name] != nil || s.name == numberOfStreams}
}
