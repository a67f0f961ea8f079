package ir

import (
	"errors"
	"fmt"
	"math/bits"
)

// Env provides the values of names in index expressions. A method returns false if the name has no value.
type Env interface {
	// Dim returns the value of a dim.
	Dim(name string) (int64, bool)
	// Var returns the value of a loop variable or let.
	Var(name string) (int64, bool)
	// Rank returns the evaluating rank's coordinate along axis.
	Rank(axis string) (int64, bool)
	// Size returns the number of ranks along axis.
	Size(axis string) (int64, bool)
	// Extent returns the local extent of dimension axis of the tensor %name.
	Extent(name string, axis int) (int64, bool)
}

// ErrOverflow reports that the value of an index expression does not fit int64.
var ErrOverflow = errors.New("the result exceeds 64 bits")

// Eval computes the value of e. The errors of Eval are ErrOverflow, a division by zero, or a name without a value.
func (e *Expr) Eval(env Env) (int64, error) {
	switch e.Kind {
	case ExprInt:
		return e.Val, nil
	case ExprName, ExprVar, ExprRank, ExprSize, ExprExtent:
		v, ok := lookUp(e, env)
		if !ok {
			return 0, fmt.Errorf("the value of %v is not known here", e)
		}
		return v, nil
	}
	a, err := e.Args[0].Eval(env)
	if err != nil {
		return 0, err
	}
	b, err := e.Args[1].Eval(env)
	if err != nil {
		return 0, err
	}
	return Apply(e.Kind, a, b)
}

func lookUp(e *Expr, env Env) (int64, bool) {
	switch e.Kind {
	case ExprName:
		return env.Dim(e.Name)
	case ExprVar:
		return env.Var(e.Name)
	case ExprRank:
		return env.Rank(e.Name)
	case ExprSize:
		return env.Size(e.Name)
	}
	return env.Extent(e.Name, int(e.Val))
}

// Apply computes a binary operation on constants.
func Apply(k ExprKind, a, b int64) (int64, error) {
	switch k {
	case ExprAdd:
		if s := a + b; (s > a) == (b > 0) {
			return s, nil
		}
		return 0, ErrOverflow
	case ExprSub:
		if d := a - b; (d < a) == (b > 0) {
			return d, nil
		}
		return 0, ErrOverflow
	case ExprMul:
		return mulChecked(a, b)
	case ExprMin:
		return min(a, b), nil
	case ExprMax:
		return max(a, b), nil
	}
	if b == 0 {
		return 0, errors.New("division by zero")
	}
	if b == -1 {
		if k == ExprMod {
			return 0, nil
		}
		return Apply(ExprSub, 0, a)
	}
	q, r := a/b, a%b
	if r != 0 && (r < 0) != (b < 0) { // q is the quotient rounded down, and r has the sign of b
		q, r = q-1, r+b
	}
	switch k {
	case ExprFloorDiv:
		return q, nil
	case ExprCeilDiv:
		if r != 0 {
			q++
		}
		return q, nil
	}
	if r < 0 { // mod is never negative, for either sign of b
		r -= b
	}
	return r, nil
}

func mulChecked(a, b int64) (int64, error) {
	hi, lo := bits.Mul64(magnitude(a), magnitude(b))
	neg := (a < 0) != (b < 0)
	switch {
	case hi != 0, lo > 1<<63, lo == 1<<63 && !neg:
		return 0, ErrOverflow
	case neg:
		return -int64(lo), nil // lo = 1<<63 wraps to itself, which is the correct result
	}
	return int64(lo), nil
}

func magnitude(a int64) uint64 {
	if a < 0 {
		return -uint64(a)
	}
	return uint64(a)
}

// Walk calls f for e and for every expression that e contains.
func (e *Expr) Walk(f func(*Expr)) {
	if e == nil {
		return
	}
	f(e)
	for _, a := range e.Args {
		a.Walk(f)
	}
}

// RankDependent reports whether the value of e may differ between ranks. The function varDepends reports whether the
// value of a variable may differ.
func (e *Expr) RankDependent(varDepends func(name string) bool) bool {
	dep := false
	e.Walk(func(x *Expr) {
		switch x.Kind {
		case ExprRank:
			dep = true
		case ExprVar, ExprExtent:
			dep = dep || varDepends(x.Name)
		}
	})
	return dep
}
