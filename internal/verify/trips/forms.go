package trips

import (
	"fmt"
	"maps"

	"hocket.example/hocket/ir"
)

// form represents an index expression as a function of long loops: the sum of loop variables and trip counts with
// constant factors, a constant, and possibly a term that has few values and repeats with the iterations.
type form struct {
	loops map[*ir.Stmt]int64 // factors of the variables of long loops
	knobs map[string]int64   // factors of trip counts
	k     int64
	small bool   // set if the sum has a bounded term: a rank, the variable of a short loop, or an expression mod n
	bad   string // the reason why the expression has no form
}

func constant(k int64) form   { return form{k: k} }
func spoiled(why string) form { return form{bad: why} }
func (f form) plain() bool    { return len(f.loops) == 0 && len(f.knobs) == 0 && f.bad == "" }
func (f form) exact() bool    { return f.plain() && !f.small }
func (f form) knobOnly() bool {
	return len(f.loops) == 0 && len(f.knobs) == 1 && f.bad == "" && !f.small
}
func (f form) oneLoop() bool   { return len(f.loops) == 1 && f.bad == "" && !f.small }
func (f form) loopCoef() int64 { return only(f.loops) }
func (f form) knobCoef() int64 { return only(f.knobs) }

func only[K comparable](m map[K]int64) int64 {
	for _, v := range m {
		return v
	}
	return 0
}

// maxConst limits the magnitude of the constants in forms, so that sums cannot overflow.
const maxConst = 1 << 40

func (f form) plus(g form, sign int64) form {
	if f.bad != "" {
		return f
	}
	if g.bad != "" {
		return g
	}
	h := form{loops: sum(f.loops, g.loops, sign), knobs: sum(f.knobs, g.knobs, sign), k: f.k + sign*g.k, small: f.small || g.small}
	if h.k > maxConst || h.k < -maxConst {
		return spoiled("a number in the index expression is too large")
	}
	return h
}

func sum[K comparable](a, b map[K]int64, sign int64) map[K]int64 {
	out := maps.Clone(a)
	for k, v := range b {
		if out == nil {
			out = map[K]int64{}
		}
		if out[k] += sign * v; out[k] == 0 {
			delete(out, k)
		}
	}
	return out
}

func (f form) times(c int64) form {
	if f.bad != "" || c == 0 {
		return form{bad: f.bad}
	}
	if c > 1<<20 || c < -1<<20 || f.k > maxConst>>20 || f.k < -maxConst>>20 {
		return spoiled("a number in the index expression is too large")
	}
	g := form{k: f.k * c, small: f.small, loops: maps.Clone(f.loops), knobs: maps.Clone(f.knobs)}
	for k := range g.loops {
		g.loops[k] *= c
	}
	for k := range g.knobs {
		g.knobs[k] *= c
	}
	return g
}

// formOf returns the form of an expression, and records the periods with which the expression repeats.
func (a *trips) formOf(e *ir.Expr) form {
	switch e.Kind {
	case ir.ExprInt:
		return a.number(e.Val)
	case ir.ExprName:
		if a.knobDims[e.Name] {
			return form{knobs: map[string]int64{e.Name: 1}}
		}
		return a.number(a.bound.Dims[e.Name])
	case ir.ExprVar:
		if f, ok := a.names[e.Name]; ok {
			return f
		}
		return spoiled("the value of %" + e.Name + " is not known")
	case ir.ExprRank:
		return form{small: true}
	case ir.ExprSize:
		n, _ := a.bound.AxisSize(e.Name)
		return constant(n)
	case ir.ExprExtent:
		t := a.shapes[e.Name]
		if t == nil || e.Val < 0 || int(e.Val) >= len(t.Dims) {
			return spoiled("an extent")
		}
		delete(a.shapes, e.Name) // the extent may refer to the tensor itself
		defer func() { a.shapes[e.Name] = t }()
		if a.formOf(t.Dims[e.Val].Extent).plain() {
			return form{small: true}
		}
		return spoiled("an extent")
	}
	x, y := a.formOf(e.Args[0]), a.formOf(e.Args[1])
	switch e.Kind {
	case ir.ExprAdd:
		return x.plus(y, 1)
	case ir.ExprSub:
		return x.plus(y, -1)
	case ir.ExprMul:
		if x.exact() {
			x, y = y, x
		}
		if y.exact() {
			return x.times(y.k)
		}
	case ir.ExprMod:
		if y.exact() && y.k > 0 && x.bad == "" && !x.exact() {
			if !x.plain() {
				a.period(y.k)
			}
			return form{small: true}
		}
	}
	if x.exact() && y.exact() {
		if v, err := (&ir.Expr{Kind: e.Kind, Args: []*ir.Expr{ir.Int(x.k), ir.Int(y.k)}}).Eval(a.bound.Env(0, nil)); err == nil {
			return a.number(v)
		}
	}
	if x.plain() && y.plain() {
		return form{small: true}
	}
	return spoiled(fmt.Sprintf("%s is not an affine function of the loop's variable", e))
}

func (a *trips) number(v int64) form {
	if v > maxConst || v < -maxConst {
		return spoiled("a number in the index expression is too large")
	}
	return constant(v)
}

// period records that an expression of the program repeats every n iterations.
func (a *trips) period(n int64) {
	l := a.every / gcd(a.every, n) * n
	if l > maxPeriod {
		a.fail("the pattern of the loop repeats only after more than %d iterations", maxPeriod)
		return
	}
	a.every = l
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// near records that the program depends on a constant distance of k iterations, either between two iterations or
// between an iteration and an end of its loop.
func (a *trips) near(k int64) {
	if k < 0 {
		k = -k
	}
	if k > maxNear {
		a.fail("iterations at a distance of %d access the same memory or wait for each other; the largest supported distance is %d", k, maxNear)
		return
	}
	a.apart = max(a.apart, k)
}
