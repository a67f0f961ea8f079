package ir

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// This file decides equality of index expressions as far as polynomials go:
// an expression becomes a sum of products of atoms (dims, variables, ranks,
// and divisions that do not come out even), and two expressions are equal when
// their polynomials are. What it cannot decide is checked when dims bind (S8).

// tri is a three-valued answer.
type tri int8

const (
	no tri = iota - 1
	unknown
	yes
)

// poly maps a monomial, its atoms sorted and joined by "·", to its coefficient.
// The empty monomial is the constant term. No coefficient is zero.
type poly map[string]int64

// normalizer turns expressions into polynomials. resolve, which may be nil,
// gives the definition of a let, a mesh axis' size or a local extent.
type normalizer struct {
	resolve func(*Expr) *Expr
}

// maxMonomials bounds a polynomial; beyond it an expression counts as one atom.
const maxMonomials = 64

func constant(v int64) poly {
	if v == 0 {
		return poly{}
	}
	return poly{"": v}
}

// constValue returns p's value when p is a constant.
func (p poly) constValue() (int64, bool) {
	switch len(p) {
	case 0:
		return 0, true
	case 1:
		v, ok := p[""]
		return v, ok
	}
	return 0, false
}

func (n *normalizer) norm(e *Expr) poly {
	switch e.Kind {
	case ExprInt:
		return constant(e.Val)
	case ExprName:
		return poly{e.Name: 1}
	case ExprVar, ExprRank, ExprSize, ExprExtent:
		if n.resolve != nil {
			if def := n.resolve(e); def != nil {
				return n.norm(def)
			}
		}
		return poly{atomName(e): 1}
	}
	a, b := n.norm(e.Args[0]), n.norm(e.Args[1])
	if out, ok := combine(e.Kind, a, b); ok && len(out) <= maxMonomials {
		return out
	}
	return poly{opaque(e.Kind, a, b): 1}
}

func atomName(e *Expr) string {
	switch e.Kind {
	case ExprRank:
		return "rank(" + e.Name + ")"
	case ExprSize:
		return "size(" + e.Name + ")"
	case ExprExtent:
		return fmt.Sprintf("extent(%%%s,%d)", e.Name, e.Val)
	}
	return "%" + e.Name
}

func opaque(k ExprKind, a, b poly) string {
	return fmt.Sprintf("{%d %s,%s}", k, a.key(), b.key())
}

// key is a canonical text of p.
func (p poly) key() string {
	var b strings.Builder
	for _, m := range slices.Sorted(maps.Keys(p)) {
		fmt.Fprintf(&b, "%+d%s", p[m], m)
	}
	return b.String()
}

// combine applies a binary operation where the result is a polynomial.
func combine(k ExprKind, a, b poly) (poly, bool) {
	av, aconst := a.constValue()
	bv, bconst := b.constValue()
	if aconst && bconst {
		v, err := apply(k, av, bv)
		return constant(v), err == nil
	}
	switch k {
	case ExprAdd:
		return sum(a, b, 1)
	case ExprSub:
		return sum(a, b, -1)
	case ExprMul:
		return product(a, b)
	case ExprFloorDiv, ExprCeilDiv:
		return quotient(a, b)
	case ExprMod:
		if _, even := quotient(a, b); even {
			return poly{}, true
		}
	case ExprMin, ExprMax:
		if a.equal(b) {
			return a, true
		}
	}
	return nil, false
}

func (p poly) equal(q poly) bool { return maps.Equal(p, q) }

func sum(a, b poly, sign int64) (poly, bool) {
	out := maps.Clone(a)
	for m, c := range b {
		c, err := mulChecked(c, sign)
		if err != nil {
			return nil, false
		}
		if c, err = apply(ExprAdd, out[m], c); err != nil {
			return nil, false
		}
		if c == 0 {
			delete(out, m)
		} else {
			out[m] = c
		}
	}
	return out, true
}

func product(a, b poly) (poly, bool) {
	if len(a)*len(b) > maxMonomials {
		return nil, false
	}
	out := poly{}
	for m, c := range a {
		for n, d := range b {
			v, err := mulChecked(c, d)
			if err != nil {
				return nil, false
			}
			next, ok := sum(out, poly{joinAtoms(m, n): v}, 1)
			if !ok {
				return nil, false
			}
			out = next
		}
	}
	return out, true
}

func joinAtoms(m, n string) string {
	switch {
	case m == "":
		return n
	case n == "":
		return m
	}
	atoms := append(strings.Split(m, "·"), strings.Split(n, "·")...)
	slices.Sort(atoms)
	return strings.Join(atoms, "·")
}

// quotient divides a by b where b is one monomial that divides every monomial
// of a. Divisors are mesh sizes and counts, which are positive.
func quotient(a, b poly) (poly, bool) {
	if len(b) != 1 {
		return nil, false
	}
	out := poly{}
	for m, c := range b {
		for n, d := range a {
			rest, ok := cutAtoms(n, m)
			if !ok || d%c != 0 {
				return nil, false
			}
			out[rest] = d / c
		}
	}
	return out, true
}

// cutAtoms removes the atoms of m from those of n.
func cutAtoms(n, m string) (string, bool) {
	if m == "" {
		return n, true
	}
	atoms := strings.Split(n, "·")
	for _, x := range strings.Split(m, "·") {
		i := slices.Index(atoms, x)
		if i < 0 {
			return "", false
		}
		atoms = slices.Delete(atoms, i, i+1)
	}
	return strings.Join(atoms, "·"), true
}

// equal decides a == b.
func (n *normalizer) equal(a, b *Expr) tri {
	if a == b || sameExpr(a, b) {
		return yes
	}
	if a.Kind == ExprInt && b.Kind == ExprInt {
		return no
	}
	d, ok := sum(n.norm(a), n.norm(b), -1)
	if !ok {
		return unknown
	}
	return zero(d)
}

func zero(d poly) tri {
	if v, ok := d.constValue(); ok {
		if v == 0 {
			return yes
		}
		return no
	}
	return unknown
}

// nonNegative reports whether e is surely at least 0: dims, sizes, ranks and
// extents are.
func (n *normalizer) nonNegative(e *Expr) bool {
	switch e.Kind {
	case ExprInt:
		return e.Val >= 0
	case ExprName, ExprRank, ExprSize, ExprExtent, ExprMod:
		return true
	case ExprVar:
		if n.resolve == nil {
			return false
		}
		def := n.resolve(e)
		return def != nil && n.nonNegative(def)
	case ExprSub:
		return false
	case ExprMax:
		return n.nonNegative(e.Args[0]) || n.nonNegative(e.Args[1])
	}
	return n.nonNegative(e.Args[0]) && n.nonNegative(e.Args[1])
}

// atMost decides a <= b.
func (n *normalizer) atMost(a, b *Expr) tri {
	if a.Kind == ExprInt && a.Val <= 0 && n.nonNegative(b) {
		return yes
	}
	d, ok := sum(n.norm(b), n.norm(a), -1)
	if !ok {
		return unknown
	}
	if v, isConst := d.constValue(); isConst {
		if v >= 0 {
			return yes
		}
		return no
	}
	return unknown
}

// multiple decides whether a is a multiple of b.
func (n *normalizer) multiple(a, b *Expr) tri {
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

// sameExpr compares structure.
func sameExpr(a, b *Expr) bool {
	if a == nil || b == nil {
		return a == b
	}
	if a.Kind != b.Kind || a.Val != b.Val || a.Name != b.Name || len(a.Args) != len(b.Args) {
		return false
	}
	for i := range a.Args {
		if !sameExpr(a.Args[i], b.Args[i]) {
			return false
		}
	}
	return true
}
