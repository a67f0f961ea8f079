package ir_test

import (
	"hocket.example/hocket/ir"
	"math"
	"testing"
)

// TestFolds checks that constants are folded and neutral operands are omitted.
func TestFolds(t *testing.T) {
	x := ir.Var("x")
	for want, e := range map[string]*ir.Expr{
		"7":                       ir.Add(ir.Int(3), ir.Int(4)),
		"%x":                      ir.Add(ir.Int(0), ir.Sub(ir.Mul(ir.Int(1), x), ir.Int(0))),
		"1":                       ir.Mod(ir.Int(-7), ir.Int(4)),
		"-2":                      ir.FloorDiv(ir.Int(-7), ir.Int(4)),
		"%x * 0":                  ir.Mul(x, ir.Int(0)),
		"5 mod 0":                 ir.Mod(ir.Int(5), ir.Int(0)),
		"9223372036854775807 + 1": ir.Add(ir.Int(math.MaxInt64), ir.Int(1)),
		"extent(%x, 1)":           ir.FloorDiv(ir.Extent("x", 1), ir.Int(1)),
	} {
		if got := e.String(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
