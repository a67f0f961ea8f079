package checker

import (
	"testing"

	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/irtest"
	"pgregory.net/rapid"
)

// testNormalizer returns a normalizer with dims A and B, mesh axes p of size P and q of size 2, a let %l = A + 1, and a
// loop variable %i in 0..A.
func testNormalizer() *normalizer {
	n := &normalizer{}
	n.resolve = func(e *ir.Expr) (poly, bool) {
		switch {
		case e.Kind == ir.ExprSize && e.Name == "p":
			return n.norm(irtest.DimRef("P")), true
		case e.Kind == ir.ExprSize && e.Name == "q":
			return constant(2), true
		case e.Kind == ir.ExprVar && e.Name == "l":
			return n.norm(ir.Bin(ir.ExprAdd, irtest.DimRef("A"), ir.Int(1))), true
		case e.Kind == ir.ExprVar && e.Name == "i":
			return n.leaf("loop 1", atom{expr: e, nonNegative: true, below: n.norm(irtest.DimRef("A"))}), true
		}
		return nil, false
	}
	return n
}

// assignment returns random values for the names that testNormalizer knows.
func assignment(t *rapid.T) irtest.Values {
	small := rapid.Int64Range(0, 6)
	v := irtest.Values{Dims: map[string]int64{"A": 1 + small.Draw(t, "A"), "B": small.Draw(t, "B"),
		"P": 1 + small.Draw(t, "P")}}
	v.Vars = map[string]int64{"l": v.Dims["A"] + 1, "i": rapid.Int64Range(0, v.Dims["A"]-1).Draw(t, "i"),
		"u": small.Draw(t, "u") - 3}
	v.Sizes = map[string]int64{"p": v.Dims["P"], "q": 2}
	v.Ranks = map[string]int64{"p": rapid.Int64Range(0, v.Dims["P"]-1).Draw(t, "rank p"),
		"q": rapid.Int64Range(0, 1).Draw(t, "rank q")}
	return v
}

var leaves = []*ir.Expr{irtest.DimRef("A"), irtest.DimRef("B"), irtest.DimRef("P"), ir.Var("i"), ir.Var("l"),
	ir.Var("u"), ir.Rank("p"), ir.Rank("q"),
	ir.Size("p"), ir.Size("q"),
	ir.Int(0), ir.Int(1), ir.Int(2), ir.Int(3), ir.Int(-1), ir.Int(-2), ir.Int(6)}

func drawExpr(t *rapid.T, depth int) *ir.Expr {
	if depth == 0 || rapid.IntRange(0, 3).Draw(t, "leaf") == 0 {
		return rapid.SampledFrom(leaves).Draw(t, "name")
	}
	k := ir.ExprKind(rapid.IntRange(int(ir.ExprAdd), int(ir.ExprMax)).Draw(t, "op"))
	return ir.Bin(k, drawExpr(t, depth-1), drawExpr(t, depth-1))
}

// related returns a random expression that is related to e, so that the answer is often not "unknown".
func related(t *rapid.T, e *ir.Expr) *ir.Expr {
	f := drawExpr(t, 1)
	switch rapid.IntRange(0, 5).Draw(t, "related") {
	case 0:
		return ir.Bin(ir.ExprAdd, e, f)
	case 1:
		return ir.Bin(ir.ExprSub, ir.Bin(ir.ExprAdd, f, e), f)
	case 2:
		return ir.Bin(ir.ExprMul, f, e)
	case 3:
		return ir.Bin(ir.ExprFloorDiv, ir.Bin(ir.ExprMul, e, f), f)
	case 4:
		return ir.Bin(ir.ExprAdd, ir.Bin(ir.ExprMul, e, ir.Int(2)), ir.Bin(ir.ExprSub, f, e))
	}
	return drawExpr(t, 3)
}

func TestAnswersHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := testNormalizer()
		a := drawExpr(t, 4)
		b := related(t, a)
		equal, most, multiple := n.equal(a, b), n.atMost(a, b), n.multiple(a, b)
		pa, pb := n.norm(a), n.norm(b)
		quot, divides := quotient(pa, pb)
		nonNegative, sure := n.nonNegative(pa), n.surely(pa)
		again := n.expr(pa)
		if len(pa) > maxMonomials {
			t.Fatalf("%d monomials", len(pa))
		}
		for range 12 {
			env := assignment(t)
			x, err1 := a.Eval(env)
			y, err2 := b.Eval(env)
			if err1 != nil || err2 != nil {
				continue
			}
			if equal == yes && x != y || equal == no && x == y {
				t.Fatalf("equal(%v, %v) is %d; they are %d and %d at %v", a, b, equal, x, y, env)
			}
			if most == yes && x > y || most == no && x <= y {
				t.Fatalf("atMost(%v, %v) is %d; they are %d and %d at %v", a, b, most, x, y, env)
			}
			if y != 0 && (multiple == yes && x%y != 0 || multiple == no && x%y == 0) {
				t.Fatalf("multiple(%v, %v) is %d; they are %d and %d at %v", a, b, multiple, x, y, env)
			}
			if (nonNegative || sure) && x < 0 {
				t.Fatalf("%v is said not to be negative and is %d at %v", a, x, env)
			}
			if v, err := again.Eval(env); err == nil && v != x {
				t.Fatalf("%v became %v: %d and %d at %v", a, again, x, v, env)
			}
			if divides && y != 0 {
				if q, err := n.expr(quot).Eval(env); err == nil && q*y != x {
					t.Fatalf("%v / %v is said to be %v: %d / %d, %d at %v", a, b, n.expr(quot), x, y, q, env)
				}
			}
		}
	})
}

func TestAnswers(t *testing.T) {
	type ask struct{ op, a, b string }
	for q, want := range map[ask]tri{
		{"=", "A + B", "B + A"}:                   yes,
		{"=", "(A + B) * (A - B)", "A*A - B*B"}:   yes,
		{"=", "A", "B"}:                           unknown,
		{"=", "A", "A + 1"}:                       no,
		{"=", "%l", "A + 1"}:                      yes,
		{"=", "size(q)", "2"}:                     yes,
		{"=", "floordiv(A * size(p), P)", "A"}:    yes,
		{"=", "floordiv(A, 2) * 2", "A"}:          unknown,
		{"=", "(2 * A) mod 2", "0"}:               yes,
		{"=", "min(A, B)", "min(A + 0, B)"}:       yes,
		{"=", "9223372036854775807 + A", "A + 1"}: no,
		{"=", "9223372036854775807 * A + A", "B"}: unknown,
		{"=", "floordiv(A*B, 3) * ceildiv(A, B)", "ceildiv(A, B) * floordiv(B*A, 3)"}: yes,
		// The atoms of one expression must not be confused with parts of the other's atoms.
		{"=", "(A*B mod 7) * (A mod 5)", "(A mod 7) * (A*B mod 5)"}: unknown,
		{"<=", "0", "A"}:                       yes,
		{"<=", "0", "%u"}:                      unknown,
		{"<=", "A", "A + B"}:                   yes,
		{"<=", "A + 1", "A"}:                   no,
		{"<=", "%i + 1", "A"}:                  yes,
		{"<=", "rank(p) + 1", "P"}:             yes,
		{"<=", "rank(p)*B + B", "P*B"}:         yes,
		{"<=", "(rank(p) + 1) mod P + 1", "P"}: yes,
		{"<=", "0", "(A - B) mod P"}:           yes,
		{"<=", "A", "B"}:                       unknown,
		{"<=", "P + A", "rank(p)"}:             no,
		{"<=", "0", "max(0, A - B)"}:           yes,
		{"<=", "A", "2 * %i + 2"}:              unknown,
		{"<=", "A mod (0 - P) + 1", "0 - P"}:   no,
		{"%", "A * P * 3", "size(p)"}:          yes,
		{"%", "A", "size(q)"}:                  unknown,
		{"%", "7", "size(q)"}:                  no,
		{"%", "8", "size(q)"}:                  yes,
		{"%", "4", "0"}:                        no,
		{"%", "A*4 + 8", "4"}:                  yes,
	} {
		n := testNormalizer()
		a, err1 := ir.ParseExpr(q.a)
		b, err2 := ir.ParseExpr(q.b)
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		ask := map[string]func(a, b *ir.Expr) tri{"=": n.equal, "<=": n.atMost, "%": n.multiple}[q.op]
		if got := ask(a, b); got != want {
			t.Errorf("%s %s %s: %d, want %d", q.a, q.op, q.b, got, want)
		}
	}
}

// TestNormStaysSmall checks expressions whose full expansion as polynomials would be very large.
func TestNormStaysSmall(t *testing.T) {
	wide, deep := ir.Int(0), ir.Bin(ir.ExprAdd, irtest.DimRef("A"), ir.Int(1))
	for i := range 500 {
		wide = ir.Bin(ir.ExprAdd, wide, irtest.DimRef("D"+itoa(i)))
	}
	for range 18 {
		deep = ir.Bin(ir.ExprMul, deep, deep)
	}
	sum := ir.Bin(ir.ExprMul, wide, wide)
	for _, e := range []*ir.Expr{wide, sum, deep} {
		n := &normalizer{}
		p := n.norm(e)
		if len(p) > maxMonomials {
			t.Errorf("%d monomials", len(p))
		}
		for m := range p {
			if len(m) > maxDegree*atomBytes {
				t.Errorf("a monomial of %d atoms", len(m)/atomBytes)
			}
		}
	}
}
