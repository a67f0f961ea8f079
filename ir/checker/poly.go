package checker

import (
	"hocket.example/hocket/ir"
	"maps"
	"slices"
	"strconv"
)

// poly maps each monomial to its coefficient, which is never zero. A poly is not changed after it is built, so polys
// may be shared.
type poly map[monomial]int64

// monomial is a sorted list of atom numbers, encoded with four bytes each. The empty monomial is the constant term.
type monomial string

const (
	// maxMonomials and maxDegree limit the size of a polynomial. An expression that exceeds these limits becomes one
	// atom, which limits the work for one operation.
	maxMonomials = 64
	maxDegree    = 16
	atomBytes    = 4
)

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

func (p poly) equal(q poly) bool { return maps.Equal(p, q) }

// key returns a canonical text of p.
func (p poly) key() string {
	var b []byte
	for _, m := range slices.Sorted(maps.Keys(p)) {
		b = append(strconv.AppendInt(b, p[m], 10), '.')
		b = append(strconv.AppendInt(b, int64(len(m)), 10), '.')
		b = append(b, m...)
	}
	return string(b)
}

// combine applies a binary operation. combine returns false if the result is not a polynomial.
func combine(k ir.ExprKind, a, b poly) (poly, bool) {
	av, aconst := a.constValue()
	bv, bconst := b.constValue()
	if aconst && bconst {
		v, err := ir.Apply(k, av, bv)
		return constant(v), err == nil
	}
	switch k {
	case ir.ExprAdd:
		return sum(a, b, 1)
	case ir.ExprSub:
		return sum(a, b, -1)
	case ir.ExprMul:
		return product(a, b)
	case ir.ExprFloorDiv, ir.ExprCeilDiv:
		return quotient(a, b)
	case ir.ExprMod:
		if _, even := quotient(a, b); even {
			return poly{}, true
		}
	case ir.ExprMin, ir.ExprMax:
		if a.equal(b) {
			return a, true
		}
	}
	return nil, false
}

// sum returns a + sign·b.
func sum(a, b poly, sign int64) (poly, bool) {
	out := maps.Clone(a)
	for m, c := range b {
		c, err := ir.Apply(ir.ExprMul, c, sign)
		if err != nil || !out.add(m, c) {
			return nil, false
		}
	}
	return out, true
}

// add adds c·m to p, which is still being built.
func (p poly) add(m monomial, c int64) bool {
	v, err := ir.Apply(ir.ExprAdd, p[m], c)
	if err != nil {
		return false
	}
	if v == 0 {
		delete(p, m)
	} else {
		p[m] = v
	}
	return true
}

func product(a, b poly) (poly, bool) {
	if len(a)*len(b) > maxMonomials {
		return nil, false
	}
	out := poly{}
	for m, c := range a {
		for n, d := range b {
			v, err := ir.Apply(ir.ExprMul, c, d)
			mn := join(m, n)
			if err != nil || len(mn) > maxDegree*atomBytes || !out.add(mn, v) {
				return nil, false
			}
		}
	}
	return out, true
}

// join returns the product m·n. It merges two sorted lists.
func join(m, n monomial) monomial {
	out := make([]byte, 0, len(m)+len(n))
	for m != "" && n != "" {
		if m[:atomBytes] <= n[:atomBytes] {
			out, m = append(out, m[:atomBytes]...), m[atomBytes:]
		} else {
			out, n = append(out, n[:atomBytes]...), n[atomBytes:]
		}
	}
	return monomial(append(append(out, m...), n...))
}

// quotient divides a by b. quotient returns false unless b is a single monomial that divides every monomial of a.
func quotient(a, b poly) (poly, bool) {
	if len(b) != 1 {
		return nil, false
	}
	out := poly{}
	for m, c := range b {
		for n, d := range a {
			rest, ok := cut(n, m)
			v, err := ir.Apply(ir.ExprFloorDiv, d, c)
			if !ok || err != nil || d%c != 0 {
				return nil, false
			}
			out[rest] = v
		}
	}
	return out, true
}

// cut returns n divided by m. It returns false if n does not contain every atom of m.
func cut(n, m monomial) (monomial, bool) {
	out := make([]byte, 0, len(n))
	for ; n != ""; n = n[atomBytes:] {
		if m != "" && n[:atomBytes] == m[:atomBytes] {
			m = m[atomBytes:]
		} else {
			out = append(out, n[:atomBytes]...)
		}
	}
	return monomial(out), m == ""
}
