package ir

import (
	"math"
	"testing"
)

// TestFolds: constants are folded, and neutral operands dropped.
func TestFolds(t *testing.T) {
	x := Var("x")
	for want, e := range map[string]*Expr{
		"7":                       Add(Int(3), Int(4)),
		"%x":                      Add(Int(0), Sub(Mul(Int(1), x), Int(0))),
		"1":                       Mod(Int(-7), Int(4)),
		"-2":                      FloorDiv(Int(-7), Int(4)),
		"%x * 0":                  Mul(x, Int(0)),
		"5 mod 0":                 Mod(Int(5), Int(0)),
		"9223372036854775807 + 1": Add(Int(math.MaxInt64), Int(1)),
		"extent(%x, 1)":           FloorDiv(Extent("x", 1), Int(1)),
	} {
		if got := e.String(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
