// Package pointwise defines how machines compute the elementwise operations of the language. Each has one row: a Go
// function for the CPU machine, and a CUDA expression that package kernels writes into the sources of single
// operations, chains and epilogues. To add an operation, add its row to the Op table of package ir, its row here, and
// the evaluator's rule; ARCHITECTURE.md has an example.
package pointwise

import (
	"math"

	"hocket.example/hocket/ir"
)

// Op is one elementwise operation.
type Op struct {
	// Float computes an element from the operands' elements x and the numeric attributes c. Machines round the result to
	// the type of the result.
	Float func(x, c []float64) float64
	// Int is the corresponding function for integer types. Int is nil if ir.OpInfo.Floats is set. Results wrap on
	// overflow.
	Int func(x, c []int64) int64
	// CUDA is the same computation as a CUDA expression of type A, or of type M if Function is set. The operands are a,
	// b and c, and each numeric attribute has its name in the language. The functions that it may call are in
	// kernels/src.
	CUDA string
	// Function says that the CUDA expression is computed in type M: f32 for 16-bit types and f64 for f32 and f64, so that
	// the result is rounded once. Without it, A is the accumulator of the element type.
	Function bool
}

// Of returns the row of op, and reports whether op has a row. Cast and copy have no row, because machines implement
// them as moves of elements.
func Of(op ir.Op) (Op, bool) {
	row, ok := table[op]
	return row, ok
}

var table = map[ir.Op]Op{
	ir.OpAdd: {
		Float: func(x, _ []float64) float64 { return x[0] + x[1] },
		Int:   func(x, _ []int64) int64 { return x[0] + x[1] },
		CUDA:  "add(a, b)",
	},
	ir.OpSub: {
		Float: func(x, _ []float64) float64 { return x[0] - x[1] },
		Int:   func(x, _ []int64) int64 { return x[0] - x[1] },
		CUDA:  "sub(a, b)",
	},
	ir.OpMul: {
		Float: func(x, _ []float64) float64 { return x[0] * x[1] },
		Int:   func(x, _ []int64) int64 { return x[0] * x[1] },
		CUDA:  "mul(a, b)",
	},
	ir.OpDiv: {
		Float: func(x, _ []float64) float64 { return x[0] / x[1] },
		CUDA:  "a / b",
	},
	ir.OpNeg: {
		Float: func(x, _ []float64) float64 { return -x[0] },
		Int:   func(x, _ []int64) int64 { return -x[0] },
		CUDA:  "neg(a)",
	},
	ir.OpScale: {
		Float: func(x, c []float64) float64 { return x[0] * c[0] },
		Int:   func(x, c []int64) int64 { return x[0] * c[0] },
		CUDA:  "mul(a, by)",
	},
	ir.OpFill: {
		Float: func(_, c []float64) float64 { return c[0] },
		Int:   func(_, c []int64) int64 { return c[0] },
		CUDA:  "value",
	},
	ir.OpRelu: { // NaN stays
		Float: func(x, _ []float64) float64 { return max(x[0], 0) },
		Int:   func(x, _ []int64) int64 { return max(x[0], 0) },
		CUDA:  "most(a, (A)0)",
	},
	ir.OpClamp: { // NaN stays
		Float: func(x, c []float64) float64 { return min(max(x[0], c[0]), c[1]) },
		Int:   func(x, c []int64) int64 { return min(max(x[0], c[0]), c[1]) },
		CUDA:  "least(most(a, lo), hi)",
	},
	ir.OpSoftplus: { // the exponential of a number that is not positive does not overflow
		Float:    func(x, _ []float64) float64 { return max(x[0], 0) + math.Log1p(math.Exp(-math.Abs(x[0]))) },
		CUDA:     "most(a, (M)0) + log1pOf(expOf(a > 0 ? -a : a))",
		Function: true,
	},
	ir.OpGelu: { // x/2·erfc(-x/√2) keeps the digits of the lower tail, unlike 1+erf
		Float:    func(x, _ []float64) float64 { return x[0] / 2 * math.Erfc(-x[0]/math.Sqrt2) },
		CUDA:     "gelu(a)",
		Function: true,
	},
	ir.OpSilu: {
		Float:    func(x, _ []float64) float64 { return x[0] / (1 + math.Exp(-x[0])) },
		CUDA:     "silu(a)",
		Function: true,
	},
	ir.OpExp: {
		Float:    func(x, _ []float64) float64 { return math.Exp(x[0]) },
		CUDA:     "expOf(a)",
		Function: true,
	},
	ir.OpRsqrt: {
		Float:    func(x, _ []float64) float64 { return 1 / math.Sqrt(x[0]) },
		CUDA:     "(M)1 / sqrtOf(a)",
		Function: true,
	},
	ir.OpTanh: {
		Float:    func(x, _ []float64) float64 { return math.Tanh(x[0]) },
		CUDA:     "tanhOf(a)",
		Function: true,
	},
	ir.OpGeluTanh: { // (1 + tanh(u))/2 = σ(2u) keeps the digits of the lower tail
		Float: func(x, _ []float64) float64 {
			a := x[0]
			return a / (1 + math.Exp(-2*math.Sqrt(2/math.Pi)*(a+0.044715*a*a*a)))
		},
		CUDA:     "geluTanh(a)",
		Function: true,
	},
	ir.OpSigmoid: {
		Float:    func(x, _ []float64) float64 { return 1 / (1 + math.Exp(-x[0])) },
		CUDA:     "(M)1 / ((M)1 + expOf(-a))",
		Function: true,
	},
	ir.OpSqrt: {
		Float:    func(x, _ []float64) float64 { return math.Sqrt(x[0]) },
		CUDA:     "sqrtOf(a)",
		Function: true,
	},
	ir.OpSin: {
		Float:    func(x, _ []float64) float64 { return math.Sin(x[0]) },
		CUDA:     "sinOf(a)",
		Function: true,
	},
	ir.OpCos: {
		Float:    func(x, _ []float64) float64 { return math.Cos(x[0]) },
		CUDA:     "cosOf(a)",
		Function: true,
	},
	ir.OpErf: {
		Float:    func(x, _ []float64) float64 { return math.Erf(x[0]) },
		CUDA:     "erfOf(a)",
		Function: true,
	},
	ir.OpLog: {
		Float:    func(x, _ []float64) float64 { return math.Log(x[0]) },
		CUDA:     "logOf(a)",
		Function: true,
	},
	ir.OpFloor: {
		Float: func(x, _ []float64) float64 { return math.Floor(x[0]) },
		CUDA:  "floorOf(a)",
	},
	ir.OpReciprocal: {
		Float: func(x, _ []float64) float64 { return 1 / x[0] },
		CUDA:  "(A)1 / a",
	},
	ir.OpPow: {
		Float:    func(x, c []float64) float64 { return math.Pow(x[0], c[0]) },
		CUDA:     "powOf(a, by)",
		Function: true,
	},
	ir.OpAbs: {
		Float: func(x, _ []float64) float64 { return math.Abs(x[0]) },
		Int:   func(x, _ []int64) int64 { return max(x[0], -x[0]) },
		CUDA:  "most(a, neg(a))",
	},
	ir.OpMaximum: { // NaN stays
		Float: func(x, _ []float64) float64 { return max(x[0], x[1]) },
		Int:   func(x, _ []int64) int64 { return max(x[0], x[1]) },
		CUDA:  "most(a, b)",
	},
	ir.OpMinimum: { // NaN stays
		Float: func(x, _ []float64) float64 { return min(x[0], x[1]) },
		Int:   func(x, _ []int64) int64 { return min(x[0], x[1]) },
		CUDA:  "least(a, b)",
	},
	ir.OpLess: {
		Float: func(x, _ []float64) float64 { return truth[float64](x[0] < x[1]) },
		Int:   func(x, _ []int64) int64 { return truth[int64](x[0] < x[1]) },
		CUDA:  "(A)(a < b)",
	},
	ir.OpLessEqual: {
		Float: func(x, _ []float64) float64 { return truth[float64](x[0] <= x[1]) },
		Int:   func(x, _ []int64) int64 { return truth[int64](x[0] <= x[1]) },
		CUDA:  "(A)(a <= b)",
	},
	ir.OpGreater: {
		Float: func(x, _ []float64) float64 { return truth[float64](x[0] > x[1]) },
		Int:   func(x, _ []int64) int64 { return truth[int64](x[0] > x[1]) },
		CUDA:  "(A)(a > b)",
	},
	ir.OpGreaterEqual: {
		Float: func(x, _ []float64) float64 { return truth[float64](x[0] >= x[1]) },
		Int:   func(x, _ []int64) int64 { return truth[int64](x[0] >= x[1]) },
		CUDA:  "(A)(a >= b)",
	},
	ir.OpEqual: {
		Float: func(x, _ []float64) float64 { return truth[float64](x[0] == x[1]) },
		Int:   func(x, _ []int64) int64 { return truth[int64](x[0] == x[1]) },
		CUDA:  "(A)(a == b)",
	},
	ir.OpNotEqual: {
		Float: func(x, _ []float64) float64 { return truth[float64](x[0] != x[1]) },
		Int:   func(x, _ []int64) int64 { return truth[int64](x[0] != x[1]) },
		CUDA:  "(A)(a != b)",
	},
	ir.OpWhere: {
		Float: func(x, _ []float64) float64 {
			if x[0] != 0 {
				return x[1]
			}
			return x[2]
		},
		Int: func(x, _ []int64) int64 {
			if x[0] != 0 {
				return x[1]
			}
			return x[2]
		},
		CUDA: "a != (A)0 ? b : c",
	},
}

// truth returns 1 for true and 0 for false.
func truth[T float64 | int64](holds bool) T {
	if holds {
		return 1
	}
	return 0
}
