package nvfuser

import "hocket.example/hocket/ir"

// unaries and binaries map nvFuser's pointwise operations to ops of package ir.
var unaries = map[string]ir.Op{
	"relu": ir.OpRelu, "neg": ir.OpNeg, "gelu": ir.OpGelu, "silu": ir.OpSilu, "exp": ir.OpExp, "expf": ir.OpExp,
	"rsqrt": ir.OpRsqrt, "rsqrtf": ir.OpRsqrt,
	"__bfloat2float": ir.OpCast, "__float2bfloat": ir.OpCast, "__half2float": ir.OpCast, "__float2half": ir.OpCast,
}

var binaries = map[string]ir.Op{
	"+": ir.OpAdd, "-": ir.OpSub, "*": ir.OpMul, "/": ir.OpDiv,
	"add": ir.OpAdd, "sub": ir.OpSub, "mul": ir.OpMul, "div": ir.OpDiv,
}

var reductions = map[string]ir.Op{
	"reduction.add": ir.OpSum, "reduction.max": ir.OpMax, "reduction.fmax": ir.OpMax,
	"reduction.min": ir.OpMin, "reduction.fmin": ir.OpMin,
}

// knownOp reports whether the reader supports the computation with this name, which is written as a call.
func knownOp(name string) bool {
	switch name {
	case "matmul", "linear":
		return true
	}
	_, unary := unaries[name]
	_, binary := binaries[name]
	return unary || binary
}
