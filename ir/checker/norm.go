package checker

import (
	"encoding/binary"
	"hocket.example/hocket/ir"
	"maps"
	"slices"
	"strconv"
)

// This file decides whether index expressions are equal, by converting them to polynomials. A polynomial is a sum of
// products of atoms: dims, variables, ranks, and divisions whose remainder is not known to be zero. Two expressions are
// equal if their polynomials are equal. Relations that cannot be decided in this way are checked when dims are bound
// (S8). The answers hold for all values for which both expressions are defined.

// tri is the answer to a question that may be undecided.
type tri int8

const (
	no tri = iota - 1
	unknown
	yes
)

// atom is an indivisible factor in the terms of polynomials.
type atom struct {
	expr *ir.Expr
	// nonNegative reports that the value is known to be at least 0.
	nonNegative bool
	// rankDependent reports that the value may differ between ranks.
	rankDependent bool
	// below is a polynomial that is known to be greater than the value, or nil if there is none.
	below poly
}

// normalizer converts expressions to polynomials. The function resolve, which may be nil, returns the polynomial that a
// name denotes: a let, a loop variable, the size of a mesh axis, or a local extent.
type normalizer struct {
	resolve func(*ir.Expr) (poly, bool)
	numbers map[string]uint32
	atoms   []atom
	// done caches the polynomials of operations, because expressions share subexpressions. When names change their
	// meaning, forget empties done.
	done map[*ir.Expr]poly
}

// forget must be called when names may change their meaning.
func (n *normalizer) forget() {
	if len(n.done) > maxMonomials {
		n.done = nil // the builtin clear would take time proportional to the largest size that the map ever had
	}
	clear(n.done)
}

func (n *normalizer) norm(e *ir.Expr) poly {
	switch e.Kind {
	case ir.ExprInt:
		return constant(e.Val)
	case ir.ExprName:
		return n.leaf(e.Name, atom{expr: e, nonNegative: true})
	case ir.ExprRank:
		return n.rank(e)
	case ir.ExprVar, ir.ExprSize, ir.ExprExtent:
		if n.resolve != nil {
			if p, ok := n.resolve(e); ok {
				return p
			}
		}
		return n.leaf(leafKey(e), atom{expr: e, nonNegative: e.Kind != ir.ExprVar,
			rankDependent: e.Kind != ir.ExprSize})
	}
	if p, known := n.done[e]; known {
		return p
	}
	a, b := n.norm(e.Args[0]), n.norm(e.Args[1])
	out, ok := combine(e.Kind, a, b)
	if !ok || len(out) > maxMonomials {
		out = n.opaque(e, a, b)
	}
	if n.done == nil {
		n.done = map[*ir.Expr]poly{}
	}
	n.done[e] = out
	return out
}

func leafKey(e *ir.Expr) string {
	switch e.Kind {
	case ir.ExprSize:
		return "size " + e.Name
	case ir.ExprExtent:
		return "extent " + strconv.FormatInt(e.Val, 10) + " " + e.Name
	}
	return "%" + e.Name
}

// leaf returns the polynomial that consists of one atom, which is identified by its key.
func (n *normalizer) leaf(key string, a atom) poly {
	id, known := n.numbers[key]
	if !known {
		if n.numbers == nil {
			n.numbers = map[string]uint32{}
		}
		id = uint32(len(n.atoms))
		n.numbers[key] = id
		n.atoms = append(n.atoms, a)
	}
	return poly{monomial(binary.BigEndian.AppendUint32(nil, id)): 1}
}

func (n *normalizer) rank(e *ir.Expr) poly {
	key := "rank " + e.Name
	if _, known := n.numbers[key]; known {
		return n.leaf(key, atom{})
	}
	size := n.norm(&ir.Expr{Kind: ir.ExprSize, Name: e.Name})
	return n.leaf(key, atom{expr: e, nonNegative: true, rankDependent: true, below: size})
}

// opaque returns an atom for an operation that has no polynomial.
func (n *normalizer) opaque(e *ir.Expr, a, b poly) poly {
	key := "(" + strconv.Itoa(int(e.Kind)) + " " + a.key() + "," + b.key()
	if _, known := n.numbers[key]; known {
		return n.leaf(key, atom{})
	}
	out := atom{expr: e, rankDependent: n.rankDependent(a) || n.rankDependent(b)}
	an, bn := n.nonNegative(a), n.nonNegative(b)
	switch e.Kind {
	case ir.ExprMod:
		out.nonNegative = true
		if bn {
			out.below = b
		}
	case ir.ExprMax:
		out.nonNegative = an || bn
	case ir.ExprSub:
	default:
		out.nonNegative = an && bn
	}
	return n.leaf(key, out)
}

// each is an iterator: it calls f for the atoms of m until f returns false. It reports whether f returned true for all
// of them.
func (n *normalizer) each(m monomial, f func(*atom) bool) bool {
	for ; m != ""; m = m[atomBytes:] {
		if !f(&n.atoms[binary.BigEndian.Uint32([]byte(m[:atomBytes]))]) {
			return false
		}
	}
	return true
}

// rankDependent reports whether the value of p may differ between ranks.
func (n *normalizer) rankDependent(p poly) bool {
	for m := range p {
		if !n.each(m, func(a *atom) bool { return !a.rankDependent }) {
			return true
		}
	}
	return false
}

// nonNegative reports whether every term of p is known to be at least 0.
func (n *normalizer) nonNegative(p poly) bool {
	for m, c := range p {
		if c < 0 || !n.each(m, func(a *atom) bool { return a.nonNegative }) {
			return false
		}
	}
	return true
}

// surely reports whether p is known to be at least 0, either directly or after atoms in subtracted terms are replaced
// by their maximum values.
func (n *normalizer) surely(p poly) bool {
	for range 4 {
		if n.nonNegative(p) {
			return true
		}
		q, ok := n.lowered(p)
		if !ok {
			return false
		}
		p = q
	}
	return false
}

// lowered replaces one atom in one subtracted term by its maximum: -c·x·m is at least -c·(below-1)·m if m is not
// negative. It chooses the first suitable term in sorted order, so that the answer depends only on the expression.
func (n *normalizer) lowered(p poly) (poly, bool) {
	for _, m := range slices.Sorted(maps.Keys(p)) {
		if p[m] > 0 || !n.each(m, func(a *atom) bool { return a.nonNegative }) {
			continue
		}
		for i := 0; i < len(m); i += atomBytes {
			x := m[i : i+atomBytes]
			below := n.atoms[binary.BigEndian.Uint32([]byte(x))].below
			if below == nil {
				continue
			}
			most, ok1 := sum(below, constant(1), -1)
			term, ok2 := product(most, poly{m[:i] + m[i+atomBytes:]: p[m]})
			if !ok1 || !ok2 {
				continue
			}
			rest := maps.Clone(p)
			delete(rest, m)
			return sum(rest, term, 1)
		}
	}
	return nil, false
}

// equal decides whether a == b.
func (n *normalizer) equal(a, b *ir.Expr) tri {
	if a == b || ir.SameExpr(a, b) {
		return yes
	}
	if a.Kind == ir.ExprInt && b.Kind == ir.ExprInt {
		return no
	}
	d, ok := sum(n.norm(a), n.norm(b), -1)
	if !ok {
		return unknown
	}
	if v, isConst := d.constValue(); isConst {
		if v == 0 {
			return yes
		}
		return no
	}
	return unknown
}

// atMost decides whether a <= b.
func (n *normalizer) atMost(a, b *ir.Expr) tri {
	pa, pb := n.norm(a), n.norm(b)
	if d, ok := sum(pb, pa, -1); ok && n.surely(d) {
		return yes
	}
	// a > b is equivalent to a-b-1 >= 0.
	if d, ok := sum(pa, pb, -1); ok {
		if d, ok = sum(d, constant(1), -1); ok && n.surely(d) {
			return no
		}
	}
	return unknown
}

// multiple decides whether a is a multiple of b.
func (n *normalizer) multiple(a, b *ir.Expr) tri {
	pa, pb := n.norm(a), n.norm(b)
	if _, ok := quotient(pa, pb); ok {
		return yes
	}
	av, ok1 := pa.constValue()
	bv, ok2 := pb.constValue()
	if ok1 && ok2 && (bv == 0 || av%bv != 0) {
		return no
	}
	return unknown
}

// expr returns an expression that has the value of p.
func (n *normalizer) expr(p poly) *ir.Expr {
	out := ir.Int(0)
	for _, m := range slices.Sorted(maps.Keys(p)) {
		var term *ir.Expr
		n.each(m, func(a *atom) bool {
			if term == nil {
				term = a.expr
			} else {
				term = ir.Bin(ir.ExprMul, term, a.expr)
			}
			return true
		})
		c := p[m]
		switch {
		case term == nil:
			term, c = ir.Int(c), 1
		case c != 1 && c != -1:
			term, c = ir.Bin(ir.ExprMul, term, ir.Int(c)), 1
		}
		switch {
		case c == -1:
			out = ir.Bin(ir.ExprSub, out, term)
		case out.IsInt(0):
			out = term
		default:
			out = ir.Bin(ir.ExprAdd, out, term)
		}
	}
	return out
}
