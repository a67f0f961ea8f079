package pointwise

import (
	"math"
	"testing"

	"hocket.example/hocket/ir"
)

// known lists values of functions that mpmath computed with 50 digits, independently of this module.
var known = []struct {
	op      ir.Op
	x       []float64
	numbers []float64
	want    float64
}{
	{ir.OpGelu, []float64{1}, nil, 0.841344746068542948585},
	{ir.OpSilu, []float64{2}, nil, 1.76159415595576488812},
	{ir.OpSoftplus, []float64{-3}, nil, 0.0485873515737420687824},
	{ir.OpRsqrt, []float64{3}, nil, 0.577350269189625764509},
	{ir.OpTanh, []float64{0.5}, nil, 0.462117157260009758502318},
	{ir.OpTanh, []float64{-1e-9}, nil, -1.00000000000000006194826e-9},
	{ir.OpGeluTanh, []float64{1}, nil, 0.841191990608276704781996},
	{ir.OpGeluTanh, []float64{-3}, nil, -0.00363739208177301883781647},
	{ir.OpSigmoid, []float64{-2}, nil, 0.119202922022117555940271},
	{ir.OpSqrt, []float64{2}, nil, 1.41421356237309504880169},
	{ir.OpSin, []float64{1}, nil, 0.841470984807896506652502},
	{ir.OpSin, []float64{3.140625}, nil, 0.00096765343878227946499529},
	{ir.OpSin, []float64{22}, nil, -0.00885130929040387592169026},
	{ir.OpSin, []float64{1000000.0}, nil, -0.349993502171292952117652},
	{ir.OpSin, []float64{1e+22}, nil, -0.852200849767188801772706},
	{ir.OpCos, []float64{1}, nil, 0.540302305868139717400937},
	{ir.OpCos, []float64{3.140625}, nil, -0.999999531823301611704207},
	{ir.OpCos, []float64{22}, nil, -0.999960826394637126454175},
	{ir.OpCos, []float64{1000000.0}, nil, 0.936752127533144786938533},
	{ir.OpCos, []float64{1e+22}, nil, 0.523214785395138945497594},
	{ir.OpErf, []float64{0.5}, nil, 0.520499877813046537682747},
	{ir.OpErf, []float64{-2}, nil, -0.995322265018952734162069},
	{ir.OpLog, []float64{3}, nil, 1.09861228866810969139525},
	{ir.OpLog, []float64{0.9990234375}, nil, -0.000977039647826612785968075},
	{ir.OpFloor, []float64{-1.5}, nil, -2},
	{ir.OpFloor, []float64{7}, nil, 7},
	{ir.OpReciprocal, []float64{-3}, nil, -0.333333333333333333333333},
	{ir.OpPow, []float64{2}, []float64{0.5}, 1.41421356237309504880169},
	{ir.OpPow, []float64{3}, []float64{-2}, 0.111111111111111111111111},
	{ir.OpPow, []float64{-1.5}, []float64{3}, -3.375},
	{ir.OpPow, []float64{10}, []float64{-0.25}, 0.562341325190349080394951},
	{ir.OpAbs, []float64{-2.5}, nil, 2.5},
	{ir.OpMaximum, []float64{-2.5, 1.5}, nil, 1.5},
	{ir.OpMinimum, []float64{-2.5, 1.5}, nil, -2.5},
	{ir.OpLess, []float64{1, 2}, nil, 1},
	{ir.OpLess, []float64{2, 2}, nil, 0},
	{ir.OpLess, []float64{math.NaN(), 2}, nil, 0},
	{ir.OpLessEqual, []float64{1, 2}, nil, 1},
	{ir.OpLessEqual, []float64{2, 2}, nil, 1},
	{ir.OpLessEqual, []float64{math.NaN(), 2}, nil, 0},
	{ir.OpGreater, []float64{1, 2}, nil, 0},
	{ir.OpGreater, []float64{2, 2}, nil, 0},
	{ir.OpGreater, []float64{math.NaN(), 2}, nil, 0},
	{ir.OpGreaterEqual, []float64{1, 2}, nil, 0},
	{ir.OpGreaterEqual, []float64{2, 2}, nil, 1},
	{ir.OpGreaterEqual, []float64{math.NaN(), 2}, nil, 0},
	{ir.OpEqual, []float64{1, 2}, nil, 0},
	{ir.OpEqual, []float64{2, 2}, nil, 1},
	{ir.OpEqual, []float64{math.NaN(), 2}, nil, 0},
	{ir.OpNotEqual, []float64{1, 2}, nil, 1},
	{ir.OpNotEqual, []float64{2, 2}, nil, 0},
	{ir.OpNotEqual, []float64{math.NaN(), 2}, nil, 1},
	{ir.OpWhere, []float64{0, 1, 2}, nil, 2},
	{ir.OpWhere, []float64{-1, 1, 2}, nil, 1},
}

// TestKnownValues compares the Go functions with values from another source.
func TestKnownValues(t *testing.T) {
	for _, k := range known {
		row, _ := Of(k.op)
		got := row.Float(k.x, k.numbers)
		if !(math.Abs(got-k.want) <= 0x1p-50*math.Abs(k.want)) {
			t.Errorf("%s of %v, %v is %v, not %v", k.op, k.x, k.numbers, got, k.want)
		}
	}
}
