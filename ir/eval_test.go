package ir_test

import (
	"errors"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/irtest"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

// bigApply computes an operation in unlimited precision. bigApply returns false for a division by zero.
func bigApply(k ir.ExprKind, a, b int64) (*big.Int, bool) {
	x, y, z := big.NewInt(a), big.NewInt(b), new(big.Int)
	switch k {
	case ir.ExprAdd:
		return z.Add(x, y), true
	case ir.ExprSub:
		return z.Sub(x, y), true
	case ir.ExprMul:
		return z.Mul(x, y), true
	case ir.ExprMin:
		return big.NewInt(min(a, b)), true
	case ir.ExprMax:
		return big.NewInt(max(a, b)), true
	}
	if b == 0 {
		return nil, false
	}
	m := new(big.Int)
	z.DivMod(x, y, m) // Euclidean: m is never negative
	switch {
	case k == ir.ExprMod:
		return m, true
	case m.Sign() != 0 && (y.Sign() < 0) == (k == ir.ExprFloorDiv):
		// Euclidean division rounds down for b > 0 and up for b < 0.
		if k == ir.ExprFloorDiv {
			return z.Sub(z, big.NewInt(1)), true
		}
		return z.Add(z, big.NewInt(1)), true
	}
	return z, true
}

var extremes = []int64{0, 1, -1, 2, -2, 3, -3, 7, -7, 64, math.MaxInt32, math.MinInt32, 1 << 31, 1 << 32, -1 << 32,
	3037000499, 3037000500,
	1 << 62, -1 << 62, 1<<62 - 1, math.MaxInt64, math.MaxInt64 - 1, math.MinInt64, math.MinInt64 + 1}

func TestEvalAgainstBig(t *testing.T) {
	check := func(k ir.ExprKind, a, b int64) {
		got, err := ir.Bin(k, ir.Int(a), ir.Int(b)).Eval(irtest.NoNames{})
		want, defined := bigApply(k, a, b)
		switch {
		case !defined:
			if err == nil || errors.Is(err, ir.ErrOverflow) {
				t.Errorf("%v of %d and %d: %d, %v; want division by zero", k, a, b, got, err)
			}
		case !want.IsInt64():
			if !errors.Is(err, ir.ErrOverflow) {
				t.Errorf("%v of %d and %d: %d, %v; want overflow of %v", k, a, b, got, err, want)
			}
		case err != nil || got != want.Int64():
			t.Errorf("%v of %d and %d: %d, %v; want %v", k, a, b, got, err, want)
		}
		if k == ir.ExprMod && err == nil && got < 0 {
			t.Errorf("%d mod %d is %d", a, b, got)
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for k := ir.ExprAdd; k <= ir.ExprMax; k++ {
		for _, a := range extremes {
			for _, b := range extremes {
				check(k, a, b)
			}
		}
		for range 2000 {
			shift := r.IntN(64)
			check(k, int64(r.Uint64())>>shift, int64(r.Uint64())>>r.IntN(64))
			check(k, r.Int64N(41)-20, r.Int64N(41)-20)
		}
	}
}

func TestEvalNames(t *testing.T) {
	env := irtest.Values{Dims: map[string]int64{"T": 5}}
	if v, err := ir.Bin(ir.ExprMul, irtest.DimRef("T"), ir.Int(3)).Eval(env); v != 15 || err != nil {
		t.Errorf("T*3 is %d, %v", v, err)
	}
	for _, e := range []*ir.Expr{irtest.DimRef("K"), ir.Var("i"), ir.Rank("tp"), ir.Size("tp"), ir.Extent("x", 1)} {
		want := "the value of " + e.String() + " is not known here"
		if _, err := ir.Bin(ir.ExprAdd, ir.Int(1), e).Eval(env); err == nil || err.Error() != want {
			t.Errorf("%v: %v", e, err)
		}
	}
}
