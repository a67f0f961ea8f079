package sim

import (
	"slices"

	"hocket.example/hocket/internal/machine"
	"hocket.example/hocket/ir"
)

// Op describes the part of an operation that one rank computes.
type Op struct {
	Name string `json:"name"`
	// M, N and K are a GEMM's extents; K is 0 for other operations.
	M, N, K int64
	DType   ir.DType
	// Scaled says whether a GEMM has 8-bit operands with scales, and Blocks whether the scales are by blocks.
	Scaled, Blocks bool
	// FastAccum is the attribute of such a GEMM.
	FastAccum bool
	// Bytes is how many bytes the operation reads and writes.
	Bytes int64
	// Reduces says whether the operation reduces over a dimension, as a sum or a norm does.
	Reduces bool
}

// Tensor is an operand or a result, with the extents of the rank's shard.
type Tensor struct {
	Shape []int64
	DType ir.DType
	// Bytes is the size of its elements. Elements that are broadcast count once.
	Bytes int64
}

// NewOp describes an operation. If ta is set, the first operand of a matmul is transposed.
// Attention is described as one GEMM with the same number of multiplications: queries times keys,
// and scores times values. If attention has an operand of lengths, all keys are counted, since the
// lengths are known only at run time.
func NewOp(op ir.Op, in []Tensor, out Tensor, ta bool) Op {
	o := Op{Name: op.String(), DType: out.DType}
	sizes := make([]int64, len(in))
	for i, t := range in {
		sizes[i] = t.Bytes
	}
	reads, written := Touched(op, sizes, out.Bytes)
	o.Bytes = written
	for _, n := range reads {
		o.Bytes += n
	}
	switch op {
	case ir.OpLinear, ir.OpMatmul:
		x := in[0].Shape
		if o.N, o.K = last(out.Shape, 1), last(x, 1); ta {
			o.K = last(x, 2)
		}
		o.M = rows(out.Shape)
		if o.Scaled = len(in) == 4; o.Scaled {
			o.DType, o.Blocks = in[0].DType, blocks(in)
			o.Scaled = o.DType.IsFloat8() // otherwise w is converted to the type of x
		}
	case ir.OpGroupedLinear:
		o.M, o.N, o.K = in[0].Shape[0], out.Shape[1], in[0].Shape[1]
	case ir.OpAttention:
		q := in[0].Shape
		o.M, o.N, o.K = rows(q), 2*last(q, 1), last(in[1].Shape, 3)
	case ir.OpAttentionLSE, ir.OpAttentionDQ, ir.OpAttentionDKV:
		q := in[0].Shape
		o.DType = in[0].DType
		o.M, o.N, o.K = rows(q), attentionProducts(op)*last(q, 1), last(in[1].Shape, 3)
	case ir.OpScales, ir.OpSum, ir.OpMax, ir.OpMin, ir.OpMean, ir.OpReduceSlots:
		o.Reduces = true
	}
	return o
}

// blocks reports whether a scale of an operand of a linear belongs to a block, and not to a row or the whole operand.
// The operands are x, w and their scales.
func blocks(in []Tensor) bool {
	return len(in[2].Shape) == len(in[0].Shape) || len(in[3].Shape) == len(in[1].Shape)
}

// attentionProducts returns how many matrix products with keys or values an attention operation
// needs.
func attentionProducts(op ir.Op) int64 {
	switch op {
	case ir.OpAttentionLSE:
		return 1
	case ir.OpAttentionDQ:
		return 3
	case ir.OpAttentionDKV:
		return 4
	}
	return 2
}

// last returns the extent of the i-th dimension from the end.
func last(shape []int64, i int) int64 { return shape[len(shape)-i] }

// rows returns the product of all extents but the last.
func rows(shape []int64) int64 {
	n := int64(1)
	for _, e := range shape[:len(shape)-1] {
		n *= e
	}
	return n
}

// Touched returns the number of bytes that an operation reads of each operand and writes of its result. The arguments
// in and out are the full sizes. Operations that use only a part of an operand are defined here and nowhere else.
func Touched(op ir.Op, in []int64, out int64) (reads []int64, written int64) {
	reads, written = slices.Clone(in), out
	switch op {
	case ir.OpEmbedding: // reads one row of the table for each id
		reads[1] = min(reads[1], out)
	case ir.OpIndexCopy: // reads rows and positions; in a plan, the destination is also an operand
		reads, written = reads[:2], min(out, reads[0])
	}
	return reads, written
}

// scaled returns the kind of a GEMM of 8-bit operands.
func (o *Op) scaled() machine.Scaled { return machine.Scaled{Blocks: o.Blocks, FastAccum: o.FastAccum} }

// Time returns how long the operation takes when it runs alone, in microseconds.
func (o *Op) Time(m *machine.Description) float64 {
	switch {
	case o.Scaled && o.K > 0:
		return max(m.ScaledTime(o.scaled(), o.M, o.N, o.K), m.TouchTime(o.Bytes))
	case o.K > 0:
		return max(m.GEMMTime(o.DType, o.M, o.N, o.K), m.TouchTime(o.Bytes))
	case o.Reduces:
		return m.ReduceTime(o.Bytes)
	}
	return m.TouchTime(o.Bytes)
}

// partTime returns the time of the operation for one of several parts of its rows. The time is limited so that all
// parts together do not take less time than the whole. The measured times alone do not ensure this, because GEMMs of
// two sizes were measured in different runs.
func (o *Op) partTime(parts int64, m *machine.Description) float64 {
	part := *o
	part.M, part.Bytes = (o.M+parts-1)/parts, o.Bytes/parts
	return max(part.Time(m), o.Time(m)/float64(parts))
}
