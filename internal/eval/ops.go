package eval

import (
	"fmt"
	"slices"

	"hocket.example/hocket/ir"
)

// scalar is a number in the program's text. If the number is an integer, it is stored exactly as an integer.
type scalar struct {
	f     float64
	n     int64
	isInt bool
}

// attrs holds the evaluated attributes of a tensor operation.
type attrs struct {
	axes    []int    // for sum, max, min, mean, concat, softmax and reduce_slots
	numbers []scalar // the numeric attributes, in the order of the operation's row in the table of ops
	scaled  bool     // for attention: whether the program gives the scale
	causal  bool     // for attention
	ta, tb  bool     // for matmul
	fast    bool     // for linear: fast_accum=true
	// inputDims is the number of dimensions of the first operand.
	inputDims int
	// These fields are for the table of an embedding, if the operand is only a part of the table. The field rows is the
	// number of rows of the whole table, and the field first is the index of the operand's first row in it. If the
	// field rows is 0, the operand is the whole table.
	first, rows int64
	rope        ir.Rope
	// Long operations call goOn repeatedly, and end if it returns an error. goOn may be nil.
	goOn func() error
}

// number returns numeric attribute i, or 0 if the operation has no such attribute.
func (at *attrs) number(i int) scalar {
	if i < len(at.numbers) {
		return at.numbers[i]
	}
	return scalar{isInt: true}
}

// ended returns the error of goOn, or nil if the operation may continue.
func (at *attrs) ended() error {
	if at.goOn == nil {
		return nil
	}
	return at.goOn()
}

// split describes how ranks share a contraction or sum: whether the result is a partial sum, which the array then
// holds as an unrounded total, and how many ranks contribute to it.
type split struct {
	ranks   int64
	partial bool
}

var alone = split{ranks: 1}

// compute applies a tensor operation to whole operands. The argument shape is the shape of the result, for operations
// whose operands do not determine it.
func compute(op ir.Op, at attrs, ins []*array, dt ir.DType, shape []int64, sp split) (*array, error) {
	switch op {
	case ir.OpLinear:
		return linear(at, ins, dt, sp)
	case ir.OpScales:
		return scales(at.number(0).f, ins[0], shape)
	case ir.OpQuantize:
		return quantize(ins[0], ins[1], dt)
	case ir.OpGroupedLinear:
		return groupedLinear(at, ins, dt, sp)
	case ir.OpMatmul:
		return matmul(at, ins[0], ins[1], dt, sp)
	case ir.OpSum:
		return sum(at.axes, ins[0], dt, sp)
	case ir.OpMax, ir.OpMin:
		return extreme(op, at.axes, ins[0], dt)
	case ir.OpMean:
		return mean(at.axes, ins[0], dt, sp)
	case ir.OpExpand:
		return stretched(ins[0], shape)
	case ir.OpConcat:
		return concat(ins, at.axes[0])
	case ir.OpSoftmax:
		return softmax(at.axes[0], ins[0], dt)
	case ir.OpRMSNorm, ir.OpLayerNorm:
		return norm(op == ir.OpLayerNorm, at.number(0).f, ins, dt)
	case ir.OpRMSNormDX:
		return normDX(at.number(0).f, ins, dt)
	case ir.OpRMSNormDW:
		return normDW(at.number(0).f, ins, dt, sp)
	case ir.OpAttention:
		return attention(at, ins, dt)
	case ir.OpAttentionLSE:
		return attentionLSE(at, ins, dt)
	case ir.OpAttentionDQ:
		return attentionDQ(at, ins, dt)
	case ir.OpAttentionDKV:
		return attentionDKV(at, ins, dt, sp)
	case ir.OpIndexCopy:
		return indexCopy(at.axes[0], ins)
	case ir.OpRope:
		return rope(at.rope, ins, dt)
	case ir.OpArgmax:
		return argmax(at.axes[0], ins[0])
	case ir.OpEmbedding:
		return embedding(at, ins[0], ins[1], sp)
	case ir.OpReduceSlots:
		return sumSlots(at.axes[0], ins, dt)
	case ir.OpIota:
		return counting(at, dt, shape)
	case ir.OpTopK:
		return topK(ins[0], shape)
	case ir.OpArgTopK, ir.OpArgsort:
		return sortedIndices(ins[0], shape, op == ir.OpArgTopK)
	case ir.OpTakeAlong:
		return takeAlong(ins[0], ins[1])
	case ir.OpBincount:
		return bincount(ins[0], shape)
	case ir.OpIndexAdd:
		return indexAdd(ins[0], ins[1], dt, shape, sp)
	case ir.OpFill:
		return fill(at.number(0), dt, shape)
	}
	for _, in := range ins[1:] {
		if !trailing(ins[0].shape, in.shape) {
			return nil, fmt.Errorf("%v cannot combine the shapes %v and %v", op, ins[0].shape, in.shape)
		}
	}
	switch {
	case ins[0].mag != nil:
		return pointwisePartial(op, at, ins, dt, sp.ranks)
	case dt.IsInt() || ins[0].dt.IsInt():
		return pointwiseInt(op, at, ins, dt)
	}
	return pointwise(op, at, ins, dt)
}

// trailing reports whether the dimensions of b equal the last dimensions of a. If they do, b is repeated along the
// other dimensions of a.
func trailing(a, b []int64) bool {
	return len(b) <= len(a) && slices.Equal(a[len(a)-len(b):], b)
}

func fill(v scalar, dt ir.DType, shape []int64) (*array, error) {
	out := newArray(dt, shape)
	if dt.IsInt() {
		if !v.isInt {
			return nil, fmt.Errorf("%v is not a value of type %v", dt, v.f)
		}
		for i := range out.n {
			out.n[i] = wrap(dt, v.n)
		}
		return out, nil
	}
	y, e := single(dt, v.f)
	for i := range out.f {
		out.f[i], out.e[i] = y, e
	}
	return out, nil
}

// operand returns element i of ins[k], repeated along the leading dimensions, and its bound. If there is no operand k,
// it returns zeros.
func operand(ins []*array, k int, i int64) (v, e float64) {
	if k >= len(ins) {
		return 0, 0
	}
	i %= ins[k].len()
	return ins[k].f[i], ins[k].e[i]
}

// pointwise applies an elementwise operation on float elements.
func pointwise(op ir.Op, at attrs, ins []*array, dt ir.DType) (*array, error) {
	out := newArray(dt, ins[0].shape)
	for i := range out.len() {
		a, ea := operand(ins, 0, i)
		b, eb := operand(ins, 1, i)
		var y, e float64
		switch op {
		case ir.OpAdd:
			y, e = elementwise(dt, a+b, addLoses(a, b), ea+eb)
		case ir.OpSub:
			y, e = elementwise(dt, a-b, addLoses(a, -b), ea+eb)
		case ir.OpMul:
			y, e = elementwise(dt, a*b, mulLoses(a, b), productError(a, ea, b, eb))
		case ir.OpDiv:
			y, e = quotient(dt, a, ea, b, eb)
			if b == 0 && eb == 0 && abs(a)-ea > vanishing(dt) { // a machine may treat smaller numbers as zero
				out.setInfinite(i)
			}
		case ir.OpReciprocal:
			y, e = quotient(dt, 1, 0, a, ea)
			if a == 0 && ea == 0 {
				out.setInfinite(i)
			}
		case ir.OpScale:
			c := at.number(0).f
			y, e = elementwise(dt, a*c, mulLoses(a, c), productError(a, ea, c, constantError(dt, c)))
		case ir.OpCast, ir.OpCopy, ir.OpReshard:
			y, e = converted(dt, ins[0].dt, a, ea)
		case ir.OpNeg:
			y, e = -a, ea
		case ir.OpRelu:
			y = max(a, 0)
			e = selected(y, ea)
		case ir.OpClamp:
			y, e = clamped(dt, a, ea, at.number(0).f, at.number(1).f)
		case ir.OpGelu:
			y, e = gelu(dt, a, ea)
		case ir.OpSilu:
			y, e = silu(dt, a, ea)
		case ir.OpSoftplus:
			y, e = softplus(dt, a, ea)
		case ir.OpExp:
			y, e = exponential(dt, a, ea)
		case ir.OpRsqrt:
			y, e = rsqrt(dt, a, ea)
		case ir.OpTanh:
			y, e = tanh(dt, a, ea)
		case ir.OpGeluTanh:
			y, e = geluTanh(dt, a, ea)
		case ir.OpSigmoid:
			y, e = sigmoid(dt, a, ea)
		case ir.OpSqrt:
			y, e = root(dt, a, ea)
		case ir.OpSin:
			y, e = sine(dt, a, ea)
		case ir.OpCos:
			y, e = cosine(dt, a, ea)
		case ir.OpErf:
			y, e = erf(dt, a, ea)
		case ir.OpLog:
			y, e = logarithm(dt, a, ea)
		case ir.OpFloor:
			y, e = floor(a, ea)
		case ir.OpPow:
			y, e = power(dt, a, ea, at.number(0).f)
		case ir.OpAbs:
			y, e = max(a, -a), ea
		case ir.OpMaximum:
			y = max(a, b)
			e = selected(y, max(ea, eb))
		case ir.OpMinimum:
			y = min(a, b)
			e = selected(y, max(ea, eb))
		case ir.OpLess, ir.OpLessEqual, ir.OpGreater, ir.OpGreaterEqual, ir.OpEqual, ir.OpNotEqual:
			y, e = compared(op, a, b, ea+eb, vanishing(dt))
		case ir.OpWhere:
			c, ec := operand(ins, 2, i)
			y, e = chosen(a, ea, b, eb, c, ec)
		default:
			return nil, fmt.Errorf("the evaluator has no rule for %v", op)
		}
		out.f[i], out.e[i] = y, e
		if moves(op) && ins[0].infinite != nil && ins[0].infinite[i] {
			out.setInfinite(i)
		}
	}
	return out, nil
}

// moves reports whether each element of the result of op is an element of its operand, except for its type and
// sign.
func moves(op ir.Op) bool {
	switch op {
	case ir.OpCopy, ir.OpReshard, ir.OpCast, ir.OpNeg, ir.OpAbs:
		return true
	}
	return false
}

// pointwisePartial applies an operation to the total of a partial sum, if S10 permits applying the operation to
// each contribution. Each contribution is then rounded once more.
func pointwisePartial(op ir.Op, at attrs, ins []*array, dt ir.DType, ranks int64) (*array, error) {
	out := newArray(dt, ins[0].shape)
	out.mag = make([]float64, out.len())
	for i := range out.len() {
		a, ea := operand(ins, 0, i)
		b, eb := operand(ins, 1, i)
		y, pre, mag, ints := a, ea, ins[0].mag[i], true
		if len(ins) == 2 {
			if ins[1].mag == nil || ins[1].len() != out.len() {
				return nil, fmt.Errorf("%v combines a partial sum with a tensor that is not one", op)
			}
			mag += ins[1].mag[i]
			pre += eb
		}
		switch op {
		case ir.OpAdd:
			y = a + b
		case ir.OpSub:
			y = a - b
		case ir.OpNeg:
			y = -a
		case ir.OpScale:
			c := at.number(0).f
			y, pre = a*c, productError(mag, ea, c, constantError(dt, c))
			mag *= max(c, -c)
			ints = at.number(0).isInt
		case ir.OpCopy, ir.OpReshard:
			out.f[i], out.e[i], out.mag[i] = a, ea, mag
			continue
		default:
			return nil, fmt.Errorf("%v cannot be applied to a partial sum", op)
		}
		if pre != 0 || !ints || mag > holdsIntegers(dt) {
			pre, mag = contributions(dt, pre+stepUnit(dt.Accum())*mag, mag, ranks)
		}
		out.f[i], out.e[i], out.mag[i] = y, pre, mag
	}
	return out, nil
}

// constantError bounds the error of a constant factor that a machine holds in
// its accumulator type.
func constantError(dt ir.DType, c float64) float64 {
	if acc := dt.Accum(); acc == ir.F64 || float64(float32(c)) == c {
		return 0
	}
	return unit(ir.F32) * max(c, -c) * slack
}

// converted applies the rule of cast: one rounding, or none if the new type represents every number of the old one.
func converted(to, from ir.DType, a, ea float64) (float64, float64) {
	if to == from || ea == 0 {
		y, e := single(to, a)
		return y, e + ea
	}
	return finish(to, a, ea)
}

// pointwiseInt applies an elementwise operation whose operands or result are integers.
func pointwiseInt(op ir.Op, at attrs, ins []*array, dt ir.DType) (*array, error) {
	if op == ir.OpCast {
		return castInt(ins[0], dt), nil
	}
	out := newArray(dt, ins[0].shape)
	for i := range out.len() {
		a, ea := ins[0].n[i], ins[0].e[i]
		b, eb := int64(0), 0.0
		if len(ins) > 1 {
			j := i % ins[1].len()
			b, eb = ins[1].n[j], ins[1].e[j]
		}
		y, pre := a, ea
		switch op {
		case ir.OpAdd:
			y, pre = a+b, ea+eb
		case ir.OpSub:
			y, pre = a-b, ea+eb
		case ir.OpMul:
			y, pre = a*b, productError(float64(a), ea, float64(b), eb)
		case ir.OpScale:
			if !at.number(0).isInt {
				return nil, fmt.Errorf("%v elements cannot be scaled by %v", dt, at.number(0).f)
			}
			y, pre = a*at.number(0).n, productError(float64(a), ea, at.number(0).f, 0)
		case ir.OpCopy, ir.OpReshard:
		case ir.OpNeg:
			y = -a
		case ir.OpRelu:
			y = max(a, 0)
		case ir.OpClamp:
			y = min(max(a, at.number(0).n), at.number(1).n)
		case ir.OpAbs:
			y = max(a, -a)
		case ir.OpMaximum:
			y, pre = max(a, b), max(ea, eb)
		case ir.OpMinimum:
			y, pre = min(a, b), max(ea, eb)
		case ir.OpLess, ir.OpLessEqual, ir.OpGreater, ir.OpGreaterEqual, ir.OpEqual, ir.OpNotEqual:
			if y, pre = comparedInt(op, a, b), min(ea+eb, 1); pre != 0 {
				_, pre = compared(op, float64(a), float64(b), ea+eb, 0)
			}
		case ir.OpWhere:
			j := i % ins[2].len()
			if y = ins[2].n[j]; a != 0 {
				y = b
			}
			_, pre = chosen(float64(a), ea, float64(b), eb, float64(ins[2].n[j]), ins[2].e[j])
		default:
			return nil, fmt.Errorf("%v has no integer form", op)
		}
		out.n[i], out.e[i] = integer(dt, y, pre)
	}
	return out, nil
}
