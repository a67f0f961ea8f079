package ir

import "fmt"

// Op is an operation or statement of the language. The row of an operation in the Op table below and its inference
// function (infer.go) define all of its properties. To add an operation, add its row and its inference function.
type Op uint8

// The operations.
const (
	InvalidOp Op = iota

	// Tensor operations.
	OpLinear // y = x·wᵀ (+ bias): x[…, K], w[N, K], bias[N] → [… , N]; with scales of both, of 8-bit types
	OpMatmul // batched a[…, M, K] · b[…, K, N]; ta, tb read the operand transposed
	OpAdd
	OpSub
	OpMul
	OpDiv
	OpNeg
	OpScale // x · by
	OpRelu
	OpGelu // x·Φ(x), computed with erf
	OpSilu // x·σ(x)
	OpExp
	OpRsqrt // 1/√x
	OpClamp // limits elements to lo..hi
	OpSoftplus
	OpTanh
	OpGeluTanh // the tanh form of gelu
	OpSigmoid
	OpSqrt
	OpSin
	OpCos
	OpErf
	OpLog
	OpFloor
	OpReciprocal
	OpPow // raises elements to a constant power
	OpAbs
	OpMaximum // the larger element of two tensors
	OpMinimum
	OpLess // 1 where a < b, and 0 elsewhere; the other comparisons likewise
	OpLessEqual
	OpGreater
	OpGreaterEqual
	OpEqual
	OpNotEqual
	OpWhere // selects elements of two tensors by a mask
	OpSum   // over the dimensions that axis= lists, which it removes
	OpMax
	OpMin
	OpMean
	OpCast // to the annotated or destination dtype
	OpCopy
	OpFill      // value=
	OpExpand    // broadcast without over=: repeats a tensor to the shape in shape=
	OpConcat    // along axis=
	OpSoftmax   // along axis=, the last by default
	OpRMSNorm   // x over its last dimension, times w
	OpRMSNormDX // the gradient of rms_norm for x
	OpRMSNormDW // the gradient of rms_norm for w
	OpLayerNorm
	OpAttention
	OpAttentionLSE // log Σ exp of the scores of attention
	OpAttentionDQ  // the gradient of attention for q
	OpAttentionDKV // the gradients of attention for k and v
	OpEmbedding
	OpIndexCopy     // copies rows to given positions of a buffer
	OpRope          // rotates pairs of a head's elements by the angles of a position
	OpArgmax        // the index of the largest element along axis=, the last by default
	OpIota          // start, start+1, … along axis=, the last by default
	OpTopK          // the k largest elements along the last dimension, largest first
	OpArgTopK       // the indices of the k largest elements
	OpArgsort       // the indices that sort the last dimension
	OpTakeAlong     // selects elements along the last dimension by their indices
	OpBincount      // the number of occurrences of each id in 0..n
	OpIndexAdd      // the sums of the rows that have the same id
	OpScales        // the scales by which quantize divides
	OpQuantize      // divides by scales and rounds to an 8-bit type
	OpGroupedLinear // a linear in which each group of rows has its own weight
	OpReduceSlots   // the sum of slots lo..hi into an accumulator
	OpReshard       // converts a value to the annotated layout

	OpLaunch // launches a user's kernel

	// Views: a view of a buffer is an alias of its memory; a view of a value names a part of the value.
	OpChunk     // block number index of count blocks along axis, of ceildiv(extent, count) rows; the last may be shorter
	OpSlice     // lo..hi along axis
	OpSelect    // the elements at one index along axis, which it removes
	OpTranspose // perm=, or the last two dimensions swapped
	OpReshape   // shape=
	OpClaim     // a value of the annotated type whose local shards are the buffer's contents
	OpLocal     // the rank's own shard of a value

	// Collectives, whose attribute over= names one or several mesh axes.
	OpAllReduce
	OpAllGather
	OpReduceScatter
	OpAllToAll
	OpBroadcast
	OpReduce
	OpGather
	OpScatter
	OpPermute
	OpAllGatherV // uneven: counts= or an operand gives the numbers of rows
	OpReduceScatterV
	OpAllToAllV

	// Transfers between two ranks.
	OpPut
	OpGet
	OpSend
	OpRecv
	OpGroup

	// Order.
	OpWait
	OpRecord
	OpSignal
	OpBarrier

	// Memory and names.
	OpAlloc
	OpFree
	OpStream
	OpEvent
	OpCounter
	OpLet

	// Control.
	OpOn
	OpFor
	OpYield
	OpIf
	OpCall
	OpReturn

	numOps
)

// Class groups operations by their syntax and by the way they are executed.
type Class uint8

// Classes of operations.
const (
	ClassTensor     Class = iota // computes a tensor from tensors of one rank
	ClassLaunch                  // launches a user's kernel on tensors of one rank
	ClassView                    // names part of a tensor
	ClassCollective              // executed by all ranks of a team together
	ClassTransfer                // between two ranks
	ClassOrder                   // orders streams
	ClassMemory                  // declares buffers, streams, events, counters, names
	ClassControl                 // has blocks, or moves control
)

// IntoRule determines whether an operation has an "into %place" clause.
type IntoRule uint8

// The rules for into clauses.
const (
	IntoNever IntoRule = iota
	IntoMay            // with into it writes a place, without it defines a value
	IntoMust
)

// AttrSpec declares one attribute of an operation.
type AttrSpec struct {
	Name     string
	Kind     AttrKind
	Required bool
	Words    []string // allowed words, for AttrWord; nil: any
	Default  float64  // value of an absent AttrNumber
	Doc      string
}

// OpInfo is a row of the Op table.
type OpInfo struct {
	Name             string
	Class            Class
	MinArgs, MaxArgs int
	Into             IntoRule
	Attrs            []AttrSpec
	Doc              string
	// Elementwise reports that every element of the result depends only on the elements of the operands at the same index.
	Elementwise bool
	// Floats reports that the operation is not defined for integers.
	Floats bool
	// Linear reports that the operation, applied to each rank's contribution to a sum, produces the contributions to the
	// result.
	Linear bool
	// Gradients holds one rule for each operand of an elementwise operation. The rule computes the operand's share of the
	// gradient from %dy, the gradient of the result. Rules are written as operations on %dy, the operands %a, %b and %c,
	// the result %y, numeric attributes of the operation such as %lo, and constants such as %0. An operand with an empty
	// rule has no gradient.
	Gradients []string
}

var (
	attrOver = AttrSpec{Name: "over", Kind: AttrWords, Required: true,
		Doc: "the mesh axis or axes whose ranks take part"}
	attrRed = AttrSpec{Name: "op", Kind: AttrWord, Required: true, Words: []string{"sum", "max", "min", "avg"},
		Doc: "the reduction"}
	attrRoot = AttrSpec{Name: "root", Kind: AttrExpr, Required: true, Doc: "the root's index in the team"}
	attrAxis = AttrSpec{Name: "axis", Kind: AttrExpr, Required: true, Doc: "the dimension, counted from 0"}
	attrAxes = AttrSpec{Name: "axis", Kind: AttrExprs, Required: true,
		Doc: "the dimension or dimensions that are reduced, counted from 0"}
	attrCat = AttrSpec{Name: "axis", Kind: AttrExpr, Doc: "the dimension that is concatenated or split; 0 by default"}

	attrK = AttrSpec{Name: "k", Kind: AttrExpr, Required: true, Doc: "the number of elements to select from each row"}

	attrCounts = AttrSpec{Name: "counts", Kind: AttrExprs,
		Doc: "the number of rows for each rank of the team; omitted if the second operand has the counts, as i32 in device memory"}

	// Hints never change a result, except order=any, which a program must request.
	attrAlgorithm = AttrSpec{Name: "algorithm", Kind: AttrWord, Doc: "the algorithm that runs the collective"}
	attrOrder     = AttrSpec{Name: "order", Kind: AttrWord, Words: []string{"rank", "any"},
		Doc: "the order of the reduction: rank (the default) adds in rank order and gives the same bits with every algorithm; any leaves the order to the algorithm"}
	attrCTAs = AttrSpec{Name: "ctas", Kind: AttrExpr, Doc: "the largest number of thread blocks that the op may use on a GPU"}
	attrSMs  = AttrSpec{Name: "sms", Kind: AttrExpr,
		Doc: "the number of multiprocessors that the op may use on a GPU; work that runs at the same time uses the others"}
	attrFastAccum = AttrSpec{Name: "fast_accum", Kind: AttrWord, Words: boolWords,
		Doc: "whether tensor cores may add all products of a sum with about 14 bits, instead of 128 at a time; for 8-bit operands without scales of blocks; false by default"}
	attrEngine = AttrSpec{Name: "engine", Kind: AttrWord, Words: []string{"ce", "sm", "auto"},
		Doc: "the unit that copies on a GPU: ce (a copy engine), sm (a kernel), or auto"}
	attrsScores = [2]AttrSpec{
		{Name: "causal", Kind: AttrWord, Words: boolWords,
			Doc: "whether query i attends only to the keys up to i + Tk - Tq; false by default"},
		{Name: "scale", Kind: AttrNumber, Doc: "the factor of the scores; 1/√Dh by default"},
	}
	attrPriority = AttrSpec{Name: "priority", Kind: AttrWord, Words: []string{"high", "normal", "low"},
		Doc: "the stream's priority"}
)

// manyArgs is larger than the number of operands of any statement.
const manyArgs = 1 << 20

func attrEps(def float64) AttrSpec {
	return AttrSpec{Name: "eps", Kind: AttrNumber, Default: def,
		Doc: fmt.Sprintf("the number that is added under the root; %g by default", def)}
}

var boolWords = []string{"true", "false"}

func collective(doc, name string, attrs ...AttrSpec) OpInfo {
	attrs = append([]AttrSpec{attrOver}, attrs...)
	return OpInfo{Name: name, Class: ClassCollective, MinArgs: 1, MaxArgs: 1, Into: IntoMay, Doc: doc,
		Attrs: append(attrs, attrAlgorithm, attrCTAs)}
}

// uneven returns the row of a collective whose blocks have different sizes along axis=.
func uneven(doc, name string, attrs ...AttrSpec) OpInfo {
	info := collective(doc, name, append(attrs, attrCounts)...)
	info.MaxArgs = 2
	return info
}

func elementwise(name string, args int, doc string, attrs ...AttrSpec) OpInfo {
	return OpInfo{Name: name, Class: ClassTensor, MinArgs: args, MaxArgs: args, Into: IntoMay, Elementwise: true,
		Attrs: attrs, Doc: doc}
}

// floats marks an elementwise operation that is not defined for integers.
func floats(i OpInfo) OpInfo { i.Floats = true; return i }

// linear marks an elementwise operation that may be applied to each contribution to a sum.
func linear(i OpInfo) OpInfo { i.Linear = true; return i }

// grads sets the Gradients of an elementwise operation.
func grads(i OpInfo, rules ...string) OpInfo { i.Gradients = rules; return i }

// geluTanhArg is twice the argument of tanh in gelu_tanh, so that gelu_tanh is a·σ(geluTanhArg).
const geluTanhArg = "(scale (mul %a, (add (scale (mul %a, %a), by=0.044715), %1)), by=1.5957691216057308)"

func view(name, doc string, attrs ...AttrSpec) OpInfo {
	return OpInfo{Name: name, Class: ClassView, MinArgs: 1, MaxArgs: 1, Into: IntoMay, Attrs: attrs, Doc: doc}
}

var opTable = [numOps]OpInfo{
	OpLinear: {Name: "linear", Class: ClassTensor, MinArgs: 2, MaxArgs: 4, Into: IntoMay,
		Attrs: []AttrSpec{attrSMs, attrFastAccum},
		Doc:   "x[…, K] · w[N, K]ᵀ (+ bias[N]) → [… , N]; if x and w have 8-bit types, followed by the scales of both, in the form that quantize takes"},
	OpMatmul: {Name: "matmul", Class: ClassTensor, MinArgs: 2, MaxArgs: 2, Into: IntoMay,
		Doc: "a[…, M, K] · b[…, K, N] → [… , M, N]",
		Attrs: []AttrSpec{
			{Name: "ta", Kind: AttrWord, Words: boolWords, Doc: "a is stored [… , K, M]"},
			{Name: "tb", Kind: AttrWord, Words: boolWords, Doc: "b is stored [… , N, K]"},
			attrSMs,
		}},
	OpAdd: grads(linear(elementwise("add", 2, "a + b")), "%dy", "%dy"),
	OpSub: grads(linear(elementwise("sub", 2, "a - b")), "%dy", "neg %dy"),
	OpMul: grads(elementwise("mul", 2, "a · b"), "mul %dy, %b", "mul %dy, %a"),
	OpDiv: grads(floats(elementwise("div", 2, "a / b")), "div %dy, %b", "neg (div (mul %dy, %y), %b)"),
	OpNeg: grads(linear(elementwise("neg", 1, "-a")), "neg %dy"),
	OpScale: grads(linear(elementwise("scale", 1, "a · by",
		AttrSpec{Name: "by", Kind: AttrNumber, Required: true, Doc: "the constant factor"})), "scale %dy, by=by"),
	OpRelu: grads(elementwise("relu", 1, "max(a, 0)"), "where (gt %y, %0), %dy, %0"),
	OpGelu: grads(floats(elementwise("gelu", 1, "a·Φ(a), Φ the normal distribution function (erf form)")),
		"mul %dy, (add (scale (add (erf (scale %a, by=0.7071067811865476)), %1), by=0.5), "+
			"(mul %a, (scale (exp (scale (mul %a, %a), by=-0.5)), by=0.3989422804014327)))"),
	OpSilu: grads(floats(elementwise("silu", 1, "a·σ(a) = a / (1 + exp(-a))")),
		"mul %dy, (add (sigmoid %a), (mul %y, (sigmoid (neg %a))))"),
	OpExp:   grads(floats(elementwise("exp", 1, "e to the power of a")), "mul %dy, %y"),
	OpRsqrt: grads(floats(elementwise("rsqrt", 1, "1 / √a")), "scale (mul %dy, (mul %y, (mul %y, %y))), by=-0.5"),
	OpClamp: grads(elementwise("clamp", 1, "min(max(a, lo), hi)",
		AttrSpec{Name: "lo", Kind: AttrNumber, Required: true, Doc: "the smallest result"},
		AttrSpec{Name: "hi", Kind: AttrNumber, Required: true,
			Doc: "the largest result; if hi is less than lo, every result is hi"}),
		"where (mul (ge %a, %lo), (le %a, %hi)), %dy, %0"),
	OpSoftplus: grads(floats(elementwise("softplus", 1, "log(1 + exp(a))")), "mul %dy, (sigmoid %a)"),
	OpTanh: grads(floats(elementwise("tanh", 1, "the hyperbolic tangent of a")),
		"mul %dy, (add (neg (mul %y, %y)), %1)"),
	OpGeluTanh: grads(floats(elementwise("gelu_tanh", 1,
		"a/2·(1 + tanh(√(2/π)·(a + 0.044715·a³))), an approximation of gelu")),
		"mul %dy, (add (sigmoid "+geluTanhArg+"), (mul (mul %y, (sigmoid (neg "+geluTanhArg+"))), "+
			"(scale (add (scale (mul %a, %a), by=0.134145), %1), by=1.5957691216057308)))"),
	OpSigmoid: grads(floats(elementwise("sigmoid", 1, "σ(a) = 1 / (1 + exp(-a))")),
		"mul %dy, (sub %y, (mul %y, %y))"),
	OpSqrt: grads(floats(elementwise("sqrt", 1, "√a")), "scale (div %dy, %y), by=0.5"),
	OpSin:  grads(floats(elementwise("sin", 1, "the sine of a, in radians")), "mul %dy, (cos %a)"),
	OpCos:  grads(floats(elementwise("cos", 1, "the cosine of a, in radians")), "neg (mul %dy, (sin %a))"),
	OpErf: grads(floats(elementwise("erf", 1, "the error function of a")),
		"mul %dy, (scale (exp (neg (mul %a, %a))), by=1.1283791670955126)"),
	OpLog:        grads(floats(elementwise("log", 1, "the natural logarithm of a")), "div %dy, %a"),
	OpFloor:      grads(floats(elementwise("floor", 1, "the largest integer that is at most a")), ""),
	OpReciprocal: grads(floats(elementwise("reciprocal", 1, "1 / a")), "neg (mul %dy, (mul %y, %y))"),
	OpPow: grads(floats(elementwise("pow", 1, "a to the power of by",
		AttrSpec{Name: "by", Kind: AttrNumber, Required: true, Doc: "the exponent"})),
		"scale (mul %dy, (pow %a, by=by-1)), by=by"),
	OpAbs: grads(elementwise("abs", 1, "the magnitude of a"), "mul %dy, (sub (gt %a, %0), (lt %a, %0))"),
	OpMaximum: grads(elementwise("maximum", 2, "the larger of a and b"),
		"mul %dy, (add (gt %a, %b), (scale (eq %a, %b), by=0.5))",
		"mul %dy, (add (lt %a, %b), (scale (eq %a, %b), by=0.5))"),
	OpMinimum: grads(elementwise("minimum", 2, "the smaller of a and b"),
		"mul %dy, (add (lt %a, %b), (scale (eq %a, %b), by=0.5))",
		"mul %dy, (add (gt %a, %b), (scale (eq %a, %b), by=0.5))"),
	OpLess:         grads(elementwise("lt", 2, "1 where a is less than b, else 0"), "", ""),
	OpLessEqual:    grads(elementwise("le", 2, "1 where a is at most b, else 0"), "", ""),
	OpGreater:      grads(elementwise("gt", 2, "1 where a is greater than b, else 0"), "", ""),
	OpGreaterEqual: grads(elementwise("ge", 2, "1 where a is at least b, else 0"), "", ""),
	OpEqual:        grads(elementwise("eq", 2, "1 where a is equal to b, else 0"), "", ""),
	OpNotEqual:     grads(elementwise("ne", 2, "1 where a is not equal to b, else 0"), "", ""),
	OpWhere: grads(elementwise("where", 3, "b where a is not 0, else c"),
		"", "where %a, %dy, %0", "where %a, %0, %dy"),
	OpSum: {Name: "sum", Class: ClassTensor, MinArgs: 1, MaxArgs: 1, Into: IntoMay, Attrs: []AttrSpec{attrAxes},
		Doc: "the sum over the dimensions axis=, which the result lacks"},
	OpMax: {Name: "max", Class: ClassTensor, MinArgs: 1, MaxArgs: 1, Into: IntoMay, Attrs: []AttrSpec{attrAxes},
		Doc: "the maximum over the dimensions axis=, which the result lacks"},
	OpMin: {Name: "min", Class: ClassTensor, MinArgs: 1, MaxArgs: 1, Into: IntoMay, Attrs: []AttrSpec{attrAxes},
		Doc: "the minimum over the dimensions axis=, which the result lacks"},
	OpMean: {Name: "mean", Class: ClassTensor, MinArgs: 1, MaxArgs: 1, Into: IntoMay, Attrs: []AttrSpec{attrAxes},
		Doc: "the mean over the dimensions axis=, which the result lacks: the sum divided by the count, rounded once"},
	OpCast: elementwise("cast", 1, "converts elements to the dtype of the annotation or destination, rounding to nearest even"),
	OpCopy: grads(elementwise("copy", 1, "a copy of the elements, in separate memory"), "%dy"),
	OpFill: {Name: "fill", Class: ClassTensor, Into: IntoMay, Elementwise: true,
		Attrs: []AttrSpec{{Name: "value", Kind: AttrNumber, Required: true, Doc: "the value of every element"}},
		Doc:   "every element is value"},
	OpExpand: {Name: "broadcast", Class: ClassTensor, MinArgs: 1, MaxArgs: 1, Into: IntoMay,
		Attrs: []AttrSpec{{Name: "shape", Kind: AttrExprs, Required: true, Doc: "the new extents"}},
		Doc:   "repeats a tensor to a larger shape: dimensions are aligned at the last one, and dimensions of extent 1 are repeated"},
	OpConcat: {Name: "concat", Class: ClassTensor, MinArgs: 1, MaxArgs: manyArgs, Into: IntoMay,
		Attrs: []AttrSpec{attrCat},
		Doc:   "concatenates the operands along axis="},
	OpSoftmax: {Name: "softmax", Class: ClassTensor, MinArgs: 1, MaxArgs: 1, Into: IntoMay,
		Attrs: []AttrSpec{{Name: "axis", Kind: AttrExpr, Doc: "the dimension along which results sum to 1; the last by default"}},
		Doc:   "exp(x - max x) / Σ exp(x - max x) along axis="},
	OpRMSNorm: {Name: "rms_norm", Class: ClassTensor, MinArgs: 2, MaxArgs: 2, Into: IntoMay,
		Attrs: []AttrSpec{attrEps(1e-6)},
		Doc:   "x[…, D] / √(mean x² + eps) · w[D]"},
	OpRMSNormDX: {Name: "rms_norm_dx", Class: ClassTensor, MinArgs: 3, MaxArgs: 3, Into: IntoMay,
		Attrs: []AttrSpec{attrEps(1e-6)},
		Doc: "r · (g - n · mean(g·n)), with r = 1/√(mean x² + eps), n = x·r and g = dy·w: " +
			"x[…, D], w[D], dy[…, D] → […, D]"},
	OpRMSNormDW: {Name: "rms_norm_dw", Class: ClassTensor, MinArgs: 2, MaxArgs: 2, Into: IntoMay,
		Attrs: []AttrSpec{attrEps(1e-6)},
		Doc:   "Σ dy·n over the rows, with n of rms_norm_dx, in f32 or f64: x[…, D], dy[…, D] → [D]"},
	OpLayerNorm: {Name: "layer_norm", Class: ClassTensor, MinArgs: 3, MaxArgs: 3, Into: IntoMay,
		Attrs: []AttrSpec{attrEps(1e-5)},
		Doc:   "(x[…, D] - mean x) / √(mean (x - mean x)² + eps) · w[D] + b[D]"},
	OpAttention: {Name: "attention", Class: ClassTensor, MinArgs: 3, MaxArgs: 5, Into: IntoMay,
		Attrs: []AttrSpec{
			attrsScores[0], attrsScores[1],
			{Name: "window", Kind: AttrNumber,
				Doc: "the number of keys to which a query attends: the last ones of those that it may attend to; all by default"},
			{Name: "softcap", Kind: AttrNumber,
				Doc: "limits a scaled score s to softcap · tanh(s / softcap); no limit by default"},
		},
		Doc: "softmax(scale · q·kᵀ)·v for each head: q[…, Tq, Hq, Dh], k and v[…, Tk, Hkv, Dh] → […, Tq, Hq, Dh]; Hq/Hkv heads of q share one head of k and v; with n[…] or n[…, Tq] only the first n keys are used; a mask[…, Tq, Tk] or mask[Tq, Tk], the last operand, is added to scores"},
	OpAttentionLSE: {Name: "attention_lse", Class: ClassTensor, MinArgs: 2, MaxArgs: 2, Into: IntoMay,
		Attrs: attrsScores[:],
		Doc:   "log Σ exp(scale · q·kᵀ) over the keys to which a query attends, in f32 or f64: q and k of attention → […, Tq, Hq]"},
	OpAttentionDQ: {Name: "attention_dq", Class: ClassTensor, MinArgs: 6, MaxArgs: 6, Into: IntoMay,
		Attrs: attrsScores[:],
		Doc: "scale · ds·k, with ds = p·(dy·vᵀ - delta) and p = exp(scale · q·kᵀ - lse): q, k and v of attention, " +
			"dy[…, Tq, Hq, Dh], lse[…, Tq, Hq] of attention_lse, delta[…, Tq, Hq] = Σ y·dy over Dh → […, Tq, Hq, Dh]"},
	OpAttentionDKV: {Name: "attention_dkv", Class: ClassTensor, MinArgs: 6, MaxArgs: 6, Into: IntoMay,
		Attrs: attrsScores[:],
		Doc: "scale · dsᵀ·q, and then pᵀ·dy, with operands, p and ds of attention_dq; " +
			"the gradients of heads of q that share one head of k and v are added → [2, …, Tk, Hkv, Dh]"},
	OpEmbedding: {Name: "embedding", Class: ClassTensor, MinArgs: 2, MaxArgs: 2, Into: IntoMay,
		Attrs: []AttrSpec{
			{Name: "first", Kind: AttrExpr,
				Doc: "the id of the first row, if the operand holds only a part of the table's rows; ids outside of the part give zeros"},
			{Name: "of", Kind: AttrExpr, Doc: "the number of rows of the whole table, with first="},
		},
		Doc: "selects the rows of table[V, D] with the indices ids[…] → […, D]"},
	OpIndexCopy: {Name: "index_copy", Class: ClassTensor, MinArgs: 2, MaxArgs: 2, Into: IntoMust,
		Attrs: []AttrSpec{{Name: "axis", Kind: AttrExpr,
			Doc: "the dimension of the destination in which positions are counted; 0 by default"}},
		Doc: "copies row j of rows[…, R, …] to position at[…, j] or at[j] of the destination along axis; -1 skips a row (index_copy %rows, %at into %cache, axis=1)"},
	OpRope: {Name: "rope", Class: ClassTensor, MinArgs: 2, MaxArgs: 3, Into: IntoMay,
		Attrs: []AttrSpec{
			{Name: "theta", Kind: AttrNumber, Default: 10000, Doc: "the base of the frequencies; 10000 by default"},
			{Name: "factor", Kind: AttrNumber,
				Doc: "Llama 3 scaling: the divisor of the frequencies whose wavelengths are long; no scaling by default"},
			{Name: "low", Kind: AttrNumber, Default: 1, Doc: "Llama 3 scaling: wavelengths of more than original/low positions are long; 1 by default"},
			{Name: "high", Kind: AttrNumber, Default: 4,
				Doc: "Llama 3 scaling: wavelengths of less than original/high positions are not scaled; 4 by default"},
			{Name: "original", Kind: AttrNumber, Default: 8192,
				Doc: "Llama 3 scaling: the context length of the unscaled model; 8192 by default"},
			{Name: "scale", Kind: AttrNumber, Default: 1,
				Doc: "the factor of cosines and sines; 1 by default"},
		},
		Doc: "rotates elements i and i + Dh/2 of each head of x[…, T, H, Dh] by the angle at[…, t]·theta^(-2i/Dh), or at[t]; with freqs[R], f32, it rotates elements i and i + R by at[…, t]·freqs[i] and leaves elements from 2R on unchanged"},
	OpArgmax: {Name: "argmax", Class: ClassTensor, MinArgs: 1, MaxArgs: 1, Into: IntoMay,
		Attrs: []AttrSpec{{Name: "axis", Kind: AttrExpr, Doc: "the dimension that is searched, which the result lacks; the last by default"}},
		Doc:   "the index along axis= of the largest element, as i32; the first one if several are equal"},
	OpIota: {Name: "iota", Class: ClassTensor, Into: IntoMay,
		Attrs: []AttrSpec{{Name: "axis", Kind: AttrExpr,
			Doc: "the dimension along which elements increase by 1; the last by default"},
			{Name: "start", Kind: AttrNumber, Doc: "the first element; 0 by default"}},
		Doc: "start, start + 1, … along axis="},
	OpTopK: {Name: "topk", Class: ClassTensor, MinArgs: 1, MaxArgs: 1, Into: IntoMay, Attrs: []AttrSpec{attrK},
		Doc: "the k largest elements of each row x[…, N] → […, K], largest first"},
	OpArgTopK: {Name: "argtopk", Class: ClassTensor, MinArgs: 1, MaxArgs: 1, Into: IntoMay, Attrs: []AttrSpec{attrK},
		Doc: "the indices, i32, of the k largest elements of each row x[…, N] → […, K], largest first; equal elements keep their order"},
	OpArgsort: {Name: "argsort", Class: ClassTensor, MinArgs: 1, MaxArgs: 1, Into: IntoMay,
		Doc: "the indices, i32, that sort each row x[…, N], smallest first; equal elements keep their order"},
	OpTakeAlong: {Name: "take_along", Class: ClassTensor, MinArgs: 2, MaxArgs: 2, Into: IntoMay,
		Doc: "selects elements of each row of x[…, N] with the indices at[…, K] → […, K]"},
	OpBincount: {Name: "bincount", Class: ClassTensor, MinArgs: 1, MaxArgs: 1, Into: IntoMay,
		Attrs: []AttrSpec{{Name: "n", Kind: AttrExpr, Required: true,
			Doc: "the number of ids: ids from 0 to n - 1 are counted, others are ignored"}},
		Doc: "the number of times that each id from 0 to n - 1 occurs in ids[…] → i32[n]"},
	OpIndexAdd: {Name: "index_add", Class: ClassTensor, MinArgs: 2, MaxArgs: 2, Into: IntoMay,
		Attrs: []AttrSpec{{Name: "n", Kind: AttrExpr, Required: true, Doc: "the number of rows of the result"}},
		Doc: "row i of the result is the sum of the rows of x[…, D] whose id in ids[…] is i, or 0 if no row has this id → [n, D]; " +
			"a row with id -1 is skipped"},
	OpScales: {Name: "scales", Class: ClassTensor, MinArgs: 1, MaxArgs: 1, Into: IntoMay,
		Attrs: []AttrSpec{
			{Name: "block", Kind: AttrExprs,
				Doc: "the elements that share a scale: 1 for a row, (1, 128) or (128, 128) for a block; by default all elements share one"},
			{Name: "max", Kind: AttrNumber, Default: 448,
				Doc: "the number to which the largest magnitude is scaled; 448 by default, 57344 for f8e5m2"},
		},
		Doc: "for each block the largest |x| / max, or 1e-12 if that is larger, in f32"},
	OpQuantize: {Name: "quantize", Class: ClassTensor, MinArgs: 2, MaxArgs: 2, Into: IntoMay,
		Doc: "x / s, limited to the largest number of the result's type, which is f8e4m3 by default; the scales s of x[…, K] are f32[], " +
			"f32[…] for rows, f32[…, ceildiv(K, 128)] for blocks or, for w[N, K], f32[ceildiv(N, 128), ceildiv(K, 128)]"},
	OpGroupedLinear: {Name: "grouped_linear", Class: ClassTensor, MinArgs: 3, MaxArgs: 3, Into: IntoMay,
		Doc: "x[T, K] · w[E, N, K]ᵀ → [T, N]: the first counts[0] rows by w[0], the next counts[1] by w[1], …; the remaining rows of the result are zeros"},
	OpReduceSlots: {Name: "reduce_slots", Class: ClassTensor, MinArgs: 1, MaxArgs: 1, Into: IntoMust,
		Attrs: []AttrSpec{attrCat, {Name: "resume", Kind: AttrWord, Words: boolWords,
			Doc: "whether to add to the destination's contents; false by default"}},
		Doc: "the sum of slots lo..hi along axis, in order (reduce_slots %x, axis=0, lo..hi into %acc)"},
	OpReshard: {Name: "reshard", Class: ClassTensor, MinArgs: 1, MaxArgs: 1,
		Doc: "the same value in the annotated layout"},

	OpLaunch: {Name: "launch", Class: ClassLaunch, MinArgs: 1, MaxArgs: manyArgs,
		Attrs: []AttrSpec{{Name: "grid", Kind: AttrExprs, Required: true, Doc: "the number of thread blocks, in one to three dimensions"},
			{Name: "block", Kind: AttrExprs, Required: true, Doc: "the number of threads of a block, in one to three dimensions"},
			{Name: "shared", Kind: AttrExpr, Doc: "bytes of dynamic shared memory of a block; 0 by default"}},
		Doc: "runs a kernel from a file in the program's directory or below; arguments are tensors that it reads, writes (into) or updates (inout), and numbers " +
			"(launch \"scale.cu\":scale(%x, into %y, N, f32 0.5), grid=ceildiv(N, 256), block=256)"},

	OpChunk: view("chunk", "block I of C along axis: ceildiv(extent, C) rows, the last blocks may be shorter or empty (chunk %x, axis=0, I of C)", attrAxis),
	OpSlice: view("slice", "rows lo..hi along axis (slice %x, axis=0, lo..hi)", attrAxis),
	OpSelect: view("select", "the elements at one index along axis, without that dimension", attrAxis,
		AttrSpec{Name: "index", Kind: AttrExpr, Required: true, Doc: "the index"}),
	OpTranspose: view("transpose", "the dimensions in the order perm=; without perm=, the last two are swapped",
		AttrSpec{Name: "perm", Kind: AttrExprs, Doc: "result dimension i is operand dimension perm[i]"}),
	OpReshape: view("reshape", "the same elements, in row-major order, with another shape",
		AttrSpec{Name: "shape", Kind: AttrExprs, Required: true, Doc: "the new extents"}),
	OpClaim: {Name: "claim", Class: ClassView, MinArgs: 1, MaxArgs: 1,
		Doc: "the value of the annotated type whose local shards are the buffer's contents"},
	OpLocal: {Name: "local", Class: ClassView, MinArgs: 1, MaxArgs: 1,
		Doc: "the rank's own shard of a value, as a local tensor that is read-only"},

	OpAllReduce: collective("every rank gets the reduction of all ranks' tensors", "all_reduce", attrRed,
		attrOrder),
	OpAllGather: collective("every rank gets all ranks' tensors concatenated along axis", "all_gather", attrCat),
	OpReduceScatter: collective("rank i gets block i along axis of the reduction of all ranks' tensors",
		"reduce_scatter", attrRed, attrCat, attrOrder),
	OpAllToAll: collective("sends block j along split to rank j, and concatenates the received blocks along concat", "all_to_all",
		AttrSpec{Name: "split", Kind: AttrExpr, Doc: "the dimension that is split; 0 by default"},
		AttrSpec{Name: "concat", Kind: AttrExpr, Doc: "the dimension in which received blocks are concatenated; 0 by default"}),
	OpBroadcast: collective("every rank gets the root's tensor", "broadcast", attrRoot),
	OpReduce: collective("the root gets the reduction of all ranks' tensors", "reduce", attrRed, attrRoot,
		attrOrder),
	OpGather:  collective("the root gets all ranks' tensors concatenated along axis", "gather", attrRoot, attrCat),
	OpScatter: collective("rank i gets block i along axis of the root's tensor", "scatter", attrRoot, attrCat),
	OpPermute: collective("each rank sends its tensor to rank to, and receives the tensor of rank from", "permute",
		AttrSpec{Name: "to", Kind: AttrExpr, Required: true, Doc: "the team index of the rank to send to"},
		AttrSpec{Name: "from", Kind: AttrExpr, Required: true, Doc: "the team index of the rank to receive from"}),
	OpAllGatherV:     uneven("every rank gets the first counts[i] rows along axis of each rank i's tensor, concatenated in rank order and followed by zeros", "all_gatherv", attrCat),
	OpReduceScatterV: uneven("divides the rows along axis of the reduction of all ranks' tensors in rank order: rank i gets the next counts[i] rows, followed by zeros", "reduce_scatterv", attrRed, attrCat, attrOrder),
	OpAllToAllV:      uneven("each rank sends its rows along axis in rank order, counts[i] rows to rank i, and concatenates the received rows in rank order, followed by zeros", "all_to_allv", attrCat),

	OpPut: {Name: "put", Class: ClassTransfer, MinArgs: 1, MaxArgs: 1, Into: IntoMust,
		Attrs: []AttrSpec{attrEngine, attrCTAs},
		Doc:   "writes a tensor into the peer's copy of a symmetric buffer"},
	OpGet: {Name: "get", Class: ClassTransfer, MinArgs: 1, MaxArgs: 1, Into: IntoMust,
		Attrs: []AttrSpec{attrEngine, attrCTAs},
		Doc:   "reads the peer's copy of a symmetric buffer"},
	OpSend:  {Name: "send", Class: ClassTransfer, MinArgs: 1, MaxArgs: 1, Doc: "sends a tensor to the peer, which receives it with recv"},
	OpRecv:  {Name: "recv", Class: ClassTransfer, MinArgs: 1, MaxArgs: 1, Doc: "receives the tensor that the peer sends with send"},
	OpGroup: {Name: "group", Class: ClassTransfer, Doc: "sends and recvs that are posted together and complete together"},

	OpWait: {Name: "wait", Class: ClassOrder, MinArgs: 1, MaxArgs: 1,
		Doc: "makes the current stream wait for a stream, an event or a counter"},
	OpRecord: {Name: "record", Class: ClassOrder, MinArgs: 1, MaxArgs: 1,
		Doc: "the event captures the current stream's work so far"},
	OpSignal: {Name: "signal", Class: ClassOrder, MinArgs: 1, MaxArgs: 1,
		Doc: "raises the peer's counter by one, after the current stream's work so far"},
	OpBarrier: {Name: "barrier", Class: ClassOrder, Attrs: []AttrSpec{attrOver},
		Doc: "no rank continues before all ranks have arrived"},

	OpAlloc: {Name: "alloc", Class: ClassMemory, Doc: "a buffer of local storage, or an array of them"},
	OpFree:  {Name: "free", Class: ClassMemory, MinArgs: 1, MaxArgs: 1, Doc: "ends the lifetime of a buffer, in text order"},
	OpStream: {Name: "stream", Class: ClassMemory, Attrs: []AttrSpec{attrPriority},
		Doc: "a stream, or an array of them"},
	OpEvent: {Name: "event", Class: ClassMemory, Doc: "an event, or an array of them"},
	OpCounter: {Name: "counter", Class: ClassMemory,
		Doc: "a counter that peers raise, or an array of them; 0 at the start of each run"},
	OpLet: {Name: "let", Class: ClassMemory, Doc: "names an index expression"},

	OpOn: {Name: "on", Class: ClassControl, MinArgs: 1, MaxArgs: 1,
		Doc: "issues the ops of the block to the stream"},
	OpFor: {Name: "for", Class: ClassControl, MaxArgs: manyArgs,
		Doc: "a half-open loop with step 1, which may carry values (%y = for %i in 0..L carry %h = %x { … yield %z })"},
	OpYield: {Name: "yield", Class: ClassControl, MaxArgs: manyArgs,
		Doc: "passes values to the loop's next iteration or, after the last iteration, to the loop's results"},
	OpIf:     {Name: "if", Class: ClassControl, Doc: "a conditional, possibly rank-dependent"},
	OpCall:   {Name: "call", Class: ClassControl, MaxArgs: manyArgs, Doc: "inlines a function"},
	OpReturn: {Name: "return", Class: ClassControl, MaxArgs: manyArgs, Doc: "the function's results"},
}

var opByName = func() map[string]Op {
	m := make(map[string]Op, numOps)
	for op := InvalidOp + 1; op < numOps; op++ {
		m[opTable[op].Name] = op
	}
	m[opTable[OpBroadcast].Name] = OpBroadcast
	return m
}()

// Info returns op's row of the Op table, or an empty row if op is not an operation.
func (op Op) Info() *OpInfo {
	if op >= numOps {
		op = InvalidOp
	}
	return &opTable[op]
}

// String returns the operation's name in programs: "all_reduce".
func (op Op) String() string {
	if op == InvalidOp || op >= numOps {
		return "invalid"
	}
	return opTable[op].Name
}

// Valid reports whether op is an operation.
func (op Op) Valid() bool { return op > InvalidOp && op < numOps }

// Uneven reports whether op is a collective that has counts.
func (op Op) Uneven() bool {
	return op == OpAllGatherV || op == OpReduceScatterV || op == OpAllToAllV
}

// Ops lists all operations in table order.
func Ops() []Op {
	ops := make([]Op, 0, numOps-1)
	for op := InvalidOp + 1; op < numOps; op++ {
		ops = append(ops, op)
	}
	return ops
}

// ParseOp returns the operation called name. For "broadcast" ParseOp returns the collective. Without over= the word
// denotes OpExpand, which the parser detects.
func ParseOp(name string) (Op, bool) {
	op, ok := opByName[name]
	return op, ok
}

// Numbers lists the operation's numeric attributes, in the order of Attrs.Numbers.
func (i *OpInfo) Numbers() []AttrSpec {
	var list []AttrSpec
	for _, a := range i.Attrs {
		if a.Kind == AttrNumber {
			list = append(list, a)
		}
	}
	return list
}

// AttrSpec returns the declaration of attribute name, or nil.
func (i *OpInfo) AttrSpec(name string) *AttrSpec {
	for k := range i.Attrs {
		if i.Attrs[k].Name == name {
			return &i.Attrs[k]
		}
	}
	return nil
}
