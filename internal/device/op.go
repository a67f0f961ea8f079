package device

import (
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/ir"
)

// Kernel is a computation on one device: Op of Ins into Outs. Outs has one element unless the type of Op permits more.
// If Reaches returns true, Ins may be in peers' memory.
type Kernel struct {
	Op   Op
	Ins  []View
	Outs []View
}

// Op is the operation of a kernel: one of the types in this file. Their fields are the parameters with which a kernel
// is generated. Machines switch on the type, and return ErrUnsupported for types that they do not support.
type Op interface {
	code() ir.Op
}

// Elementwise computes each element of the result from the elements of Ins at the same index, with an operation of
// package pointwise. The operands Ins have the result's shape and type.
type Elementwise struct {
	Op      ir.Op
	Numbers []ir.Number // numeric constants, in the order of the operation's attributes
}

// Zeros returns an operation that fills the result with zeros.
func Zeros() Elementwise {
	return Elementwise{Op: ir.OpFill, Numbers: []ir.Number{ir.Whole(0)}}
}

// Cast converts its operand to the result's type.
type Cast struct{}

// Chain computes several elementwise operations in one kernel. Outs are the results of the links in Stored, in order,
// and the result of the last link. Ins have the shape of the results. All elements with one index are read before any
// of them is stored. Chain requires Caps.Chains, and machines may decline some chains with ErrUnsupported.
type Chain struct {
	Links []Link
	// Stored holds the links, except the last, whose results are stored, in ascending order.
	Stored []int
}

// Link is one operation of a chain: an elementwise operation, a cast or a copy. Its result is rounded to DType even if
// it is not stored, so that a chain computes the same bits as separate operations.
type Link struct {
	Op ir.Op
	// Args lists the link's operands. an entry i ≥ 0 means Ins[i]; an entry ^i means the result of the
	// earlier link i.
	Args    []int
	DType   ir.DType // of the result
	Numbers []ir.Number
}

// SiluMul returns the chain that computes silu of the first operand multiplied by the second, for operands of the given
// type.
func SiluMul(dt ir.DType) Chain {
	return Chain{Links: []Link{{Op: ir.OpSilu, Args: []int{0}, DType: dt},
		{Op: ir.OpMul, Args: []int{^0, 1}, DType: dt}}}
}

// Copy copies its operand. Op is copy, expand or an operation that selects part of a tensor; it determines only the
// strides of the operand. Operand and result have equal shapes, except for a reshape, where they have the same number
// of elements.
type Copy struct{ Op ir.Op }

// Concat concatenates Ins along an axis.
type Concat struct{ Axis int }

// IndexCopy writes the rows of Ins[0] along Axis to the positions Ins[1] of the result. The result shares its memory
// with Ins[2].
type IndexCopy struct{ Axis int }

// Embedding selects rows of a table by the ids in Ins[0]. The table has Rows rows. Ins[1] contains a part of the
// table's rows, from row First on. The result is zero for ids of rows that Ins[1] does not contain. An id outside 0 to
// Rows-1 is a Fault.
type Embedding struct{ First, Rows int64 }

// ReduceAxes computes the sum, max, min or mean over axes. The result does not contain these axes.
type ReduceAxes struct {
	Op   ir.Op
	Axes []int
}

// ReduceSlots computes the sum along an axis, which the result does not contain. If there are two operands, the sum is
// added to Ins[1]. The result has the type of the operand or of the operand's accumulator.
type ReduceSlots struct{ Axis int }

// ReduceOperands reduces all Ins elementwise, in their order. The reduction is computed in the type's accumulator (rule
// S11) and rounded once; avg divides by len(Ins) before rounding.
type ReduceOperands struct{ Red ir.Red }

// Argmax computes, as i32, the index of the largest element along an axis; of equal largest elements it selects the
// first. The result does not contain the axis.
type Argmax struct{ Axis int }

// Iota fills the result with consecutive numbers along Axis: the element at index i is Start + First + i. It has no
// Ins.
type Iota struct {
	Axis  int
	Start ir.Number
	First int64
}

// Sorted sorts each row along the last axis. For OpTopK the result contains the largest elements in descending order;
// the shape of the result determines their number. For OpArgTopK it contains the indices of these elements, as i32.
// For OpArgsort it contains the indices of all elements, as i32, in ascending order of the elements. Equal elements
// are ordered by index. A NaN is larger than any number.
type Sorted struct{ Op ir.Op }

// TakeAlong selects elements of each row of Ins[0] along the last axis. Ins[1] holds the indices of the elements. An
// index outside the row is a Fault.
type TakeAlong struct{}

// IndexAdd adds up the rows of x[…, D] that have the same id in ids[…]. The full result has Rows rows; this kernel
// computes a part of them, from row First on. Rows with ids outside that part, and with id -1, are ignored. An id
// outside -1..Rows is a Fault. Rows are added in the order of x.
type IndexAdd struct{ First, Rows int64 }

// Bincount computes result[i], an i32, as the number of elements of its operand that are equal to i.
type Bincount struct{}

// Softmax computes exp(x) / sum(exp(x)) along an axis.
type Softmax struct{ Axis int }

// RMSNorm divides each row of Ins[0] along the last axis by the root of its mean square, and multiplies it by Ins[1].
type RMSNorm struct{ Eps float64 }

// NormGrad computes rms_norm_dx of x, w and dy, or rms_norm_dw of x and dy.
type NormGrad struct {
	Op  ir.Op
	Eps float64
}

// LayerNorm normalises each row of Ins[0] along the last axis to mean 0 and variance 1, multiplies it by Ins[1] and
// adds Ins[2].
type LayerNorm struct{ Eps float64 }

// Rope rotates pairs of elements of each head of Ins[0] [..., T, H, Dh] by the angles of the positions Ins[1]. The
// optional Ins[2], f32[R], holds the angle of each pair at position 1. Elements i and i + R are a pair, and the
// elements from 2R on are copied.
type Rope struct{ ir.Rope }

// Ropes computes several ropes and index_copies of the same tokens in one kernel. There is an operand [..., T, H, Dh]
// and a result for each of Parts. The operands that follow are the positions of the ropes and optional frequencies, if
// parts are rotated, and the positions of the index_copies, if parts are kept. The bits are those of separate kernels.
// It requires Caps.Chains, and machines may decline it with ErrUnsupported.
type Ropes struct {
	Rope  Rope
	Parts []RopePart
}

// RopePart describes how a part of Ropes is computed; at least one of its fields is set.
type RopePart struct {
	Rotates bool // Rope is applied
	Keeps   bool // rows are written to positions of the result along axis -3, as by an IndexCopy
}

// Rotates reports whether Rope is applied to a part.
func (r Ropes) Rotates() bool {
	return slices.ContainsFunc(r.Parts, func(p RopePart) bool { return p.Rotates })
}

// Keeps reports whether the rows of a part are written to positions.
func (r Ropes) Keeps() bool {
	return slices.ContainsFunc(r.Parts, func(p RopePart) bool { return p.Keeps })
}

// Attention computes softmax(Scale * q kT) v. Its operands are q, k, v, optional lengths and an optional mask. Lengths
// are the numbers of keys for each sequence or each query; a length larger than the number of keys of k is a Fault.
// The mask, floating-point numbers of shape [..., Tq, Tk] or [Tq, Tk], is added to the scores of all heads.
type Attention struct {
	Scale float64
	// Causal means that query i sees the keys up to i + Tk - Tq.
	Causal bool
	// Window limits a query to the last Window of the keys that it would otherwise see; 0 means no limit.
	Window int64
	// Softcap replaces a score s by Softcap * tanh(s / Softcap); 0 leaves scores unchanged.
	Softcap float64
	// Fixed makes the bits of each query's result depend only on the query and on the keys that it sees, and not on
	// the number of queries.
	Fixed bool
	// LSE makes the kernel also compute attention_lse of q and k. Outs are then attention_lse and the result of the
	// attention, and there are no lengths and no mask. It requires Caps.Chains, and machines may decline it with
	// ErrUnsupported.
	LSE bool
}

// AttentionGrad computes attention_lse of q and k, or attention_dq or attention_dkv of q, k, v, dy, lse and delta.
type AttentionGrad struct {
	Op     ir.Op
	Scale  float64
	Causal bool // as in Attention
}

// Product holds the options of a linear or a matmul.
type Product struct {
	// Relu replaces negative elements of the result by 0, with the same bits as a separate relu. It requires
	// Caps.Chains, and machines may decline some GEMMs with ErrUnsupported.
	Relu bool
	// Fixed makes the bits of each row of the result depend only on the same row of the first operand and on the
	// second operand. The bits depend neither on the number of rows nor on measurements. SMs is then ignored.
	Fixed bool
	// Timed makes Prepare return a *TrialError if there is too little memory to time the algorithms. Without Timed,
	// the first algorithm that the library suggests is used in this case; see Status.Guesses.
	Timed bool
	// SMs is the number of multiprocessors for which Prepare chooses the algorithm; 0 means all multiprocessors of the
	// device.
	SMs int
}

// Linear computes x[..., K] w[N, K]T + bias[N], of x, w and optionally a bias. For 8-bit types the operands are x, w
// and the scales of both, f32.
type Linear struct {
	Product
	// Constant reports that preceding work that may still be running does not write w. The kernel may then read w
	// before the preceding work has finished.
	Constant bool
	// FastAccum permits a linear of 8-bit operands to accumulate a whole sum in the precision of tensor cores.
	// Otherwise sums of at most 128 products are added in f32.
	FastAccum bool
}

// Scales computes, as f32, the scales by which Quantize divides blocks of its operand. A scale is the largest
// magnitude in the block divided by Max, and at least 1e-12. GrainOf determines which elements share a scale.
type Scales struct{ Max float64 }

// Quantize divides Ins[0] by its scales, Ins[1], and rounds the quotients to an 8-bit type. Values outside the type's
// range become its largest or smallest number.
type Quantize struct {
	// Max, unless 0, makes the kernel compute the scales first, as Scales does, and write them to Ins[1]. It requires
	// Caps.Chains. Machines decline with ErrUnsupported.
	Max float64
}

// GroupedLinear multiplies groups of the rows of x[T, K] by the weights w[E, N, K]T of different experts. Ins[2] holds
// the number of rows for each expert; the groups are consecutive. w contains the experts from First on. The result is
// zero for rows of other experts, and for rows that no group contains. Negative counts, and counts whose sum exceeds
// T, are a Fault.
type GroupedLinear struct{ First int64 }

// Matmul computes a[..., M, K] b[..., K, N]. TA and TB report that an operand is read with its last two axes exchanged.
type Matmul struct {
	Product
	TA, TB bool
}

// Linears computes several linears of one x without a bias. Ins are x and the weights and, if Scaled is set, the scales
// of x and of each weight; Outs holds one result for each linear. It requires Caps.Chains, and machines decline with
// ErrUnsupported if separate linears are as fast.
type Linears struct {
	// Gated reports that there are two linears and a third result: silu of the first result multiplied by the second.
	// Its bits are the same as if both results and the silu were stored in between. A machine need not store the first
	// two results.
	Gated bool
	// Scaled reports that weights have an 8-bit type and scales.
	Scaled bool
	// Constant, Fixed and Timed have the same meaning as in Linear.
	Constant, Fixed, Timed bool
}

// Count returns the number of linears that k, whose operation is l, computes.
func (l Linears) Count(k *Kernel) int {
	if l.Scaled {
		return (len(k.Ins) - 2) / 2
	}
	return len(k.Ins) - 1
}

// UnevenMove computes one member's result of an all_gatherv or all_to_allv along an axis. Ins holds the operands of all
// members, followed by the counts of all members, which are i32. Operands and result are dense. If Share refuses the
// counts, the kernel reports a Fault. The result is then undefined, and no other memory is written.
type UnevenMove struct {
	Op           ir.Op
	Axis, Member int
}

// UnevenReduce is like UnevenMove for a reduce_scatterv.
type UnevenReduce struct {
	Red          ir.Red
	Axis, Member int
}

// UserKernel is a user's kernel with dense Ins and Outs: CUDA C++ (the file name ends with .cu), PTX (.ptx) or a cubin.
type UserKernel struct {
	File, Entry string
	Code        []byte
	Grid, Block [3]int64
	Shared      int64 // bytes of dynamic shared memory
	Params      []UserParam
	// Checked makes the kernel work on copies of its operands that are surrounded by poison; the copies of outputs are
	// also filled with poison. Undeclared reads then change the results, and undeclared writes are a Fault.
	Checked bool
}

// UserParam is one argument of the kernel: Ins[In], Outs[Out], an operand that is both, or a number.
type UserParam struct {
	In, Out int      // -1 for none
	DType   ir.DType // type of an argument that is a number: i32, i64, f32 or f64
	Bits    uint64   // value of an argument that is a number: an integer, or the bits of an f64
}

func (e Elementwise) code() ir.Op   { return e.Op }
func (Cast) code() ir.Op            { return ir.OpCast }
func (c Copy) code() ir.Op          { return c.Op }
func (Concat) code() ir.Op          { return ir.OpConcat }
func (IndexCopy) code() ir.Op       { return ir.OpIndexCopy }
func (Embedding) code() ir.Op       { return ir.OpEmbedding }
func (r ReduceAxes) code() ir.Op    { return r.Op }
func (ReduceSlots) code() ir.Op     { return ir.OpReduceSlots }
func (ReduceOperands) code() ir.Op  { return ir.OpAllReduce }
func (Argmax) code() ir.Op          { return ir.OpArgmax }
func (Iota) code() ir.Op            { return ir.OpIota }
func (s Sorted) code() ir.Op        { return s.Op }
func (TakeAlong) code() ir.Op       { return ir.OpTakeAlong }
func (Bincount) code() ir.Op        { return ir.OpBincount }
func (IndexAdd) code() ir.Op        { return ir.OpIndexAdd }
func (Softmax) code() ir.Op         { return ir.OpSoftmax }
func (RMSNorm) code() ir.Op         { return ir.OpRMSNorm }
func (n NormGrad) code() ir.Op      { return n.Op }
func (LayerNorm) code() ir.Op       { return ir.OpLayerNorm }
func (Rope) code() ir.Op            { return ir.OpRope }
func (Ropes) code() ir.Op           { return ir.OpRope }
func (Attention) code() ir.Op       { return ir.OpAttention }
func (a AttentionGrad) code() ir.Op { return a.Op }
func (Linear) code() ir.Op          { return ir.OpLinear }
func (Scales) code() ir.Op          { return ir.OpScales }
func (Quantize) code() ir.Op        { return ir.OpQuantize }
func (GroupedLinear) code() ir.Op   { return ir.OpGroupedLinear }
func (Matmul) code() ir.Op          { return ir.OpMatmul }
func (Linears) code() ir.Op         { return ir.OpLinear }
func (u UnevenMove) code() ir.Op    { return u.Op }
func (UnevenReduce) code() ir.Op    { return ir.OpReduceScatterV }
func (*UserKernel) code() ir.Op     { return ir.OpLaunch }

func (c Chain) code() ir.Op {
	if len(c.Links) == 0 {
		return ir.InvalidOp
	}
	return c.Links[len(c.Links)-1].Op
}

// Code returns the operation of programs that op implements. For a Chain it is the operation of the last link, and for
// ReduceOperands all_reduce.
func Code(op Op) ir.Op { return op.code() }

// Name returns the name of op in messages: "add", "silu+mul", "reduction sum".
func Name(op Op) string {
	switch op := op.(type) {
	case nil:
		return "no operation"
	case Chain:
		names := make([]string, len(op.Links))
		for i, l := range op.Links {
			names[i] = l.Op.String()
		}
		return strings.Join(names, "+")
	case ReduceOperands:
		if op.Red > ir.Avg {
			return "unknown reduction"
		}
		return "reduction " + op.Red.String()
	case *UserKernel:
		return op.Name()
	}
	return op.code().String()
}

// Name returns the name under which a Go function that replaces the kernel is registered.
func (u *UserKernel) Name() string { return u.File + ":" + u.Entry }

// OpOf converts an operation of a program and its attributes to an Op. An operation without a type in this file
// becomes an Elementwise, which machines refuse if package pointwise does not define it. OpOf does not handle launches
// of user kernels; these are a UserKernel.
func OpOf(op ir.Op, a ir.Attrs) Op {
	axis := -1 // machines refuse this value
	if len(a.Axes) == 1 {
		axis = a.Axes[0]
	}
	switch op {
	case ir.OpCast:
		return Cast{}
	case ir.OpCopy, ir.OpExpand:
		return Copy{Op: op}
	case ir.OpConcat:
		return Concat{Axis: axis}
	case ir.OpIndexCopy:
		return IndexCopy{Axis: axis}
	case ir.OpEmbedding:
		return Embedding{First: a.First, Rows: a.Rows}
	case ir.OpSum, ir.OpMax, ir.OpMin, ir.OpMean:
		return ReduceAxes{Op: op, Axes: a.Axes}
	case ir.OpReduceSlots:
		return ReduceSlots{Axis: axis}
	case ir.OpArgmax:
		return Argmax{Axis: axis}
	case ir.OpIota:
		return Iota{Axis: axis, Start: a.Number(0), First: a.First}
	case ir.OpTopK, ir.OpArgTopK, ir.OpArgsort:
		return Sorted{Op: op}
	case ir.OpTakeAlong:
		return TakeAlong{}
	case ir.OpBincount:
		return Bincount{}
	case ir.OpIndexAdd:
		return IndexAdd{First: a.First, Rows: a.Rows}
	case ir.OpSoftmax:
		return Softmax{Axis: axis}
	case ir.OpRMSNorm:
		return RMSNorm{Eps: a.Number(0).Float}
	case ir.OpRMSNormDX, ir.OpRMSNormDW:
		return NormGrad{Op: op, Eps: a.Number(0).Float}
	case ir.OpLayerNorm:
		return LayerNorm{Eps: a.Number(0).Float}
	case ir.OpRope:
		return Rope{Rope: a.Rope()}
	case ir.OpAttention:
		return Attention{Scale: a.Number(0).Float, Causal: a.Causal, Window: int64(a.Number(1).Float),
			Softcap: a.Number(2).Float}
	case ir.OpAttentionLSE, ir.OpAttentionDQ, ir.OpAttentionDKV:
		return AttentionGrad{Op: op, Scale: a.Number(0).Float, Causal: a.Causal}
	case ir.OpLinear:
		return Linear{Product: Product{SMs: a.SMs}, FastAccum: a.FastAccum}
	case ir.OpScales:
		return Scales{Max: float64(float32(a.Number(0).Float))}
	case ir.OpQuantize:
		return Quantize{}
	case ir.OpGroupedLinear:
		return GroupedLinear{First: a.First}
	case ir.OpMatmul:
		return Matmul{Product: Product{SMs: a.SMs}, TA: a.TA, TB: a.TB}
	}
	if op.Info().Class == ir.ClassView {
		return Copy{Op: op}
	}
	return Elementwise{Op: op, Numbers: a.Numbers}
}

// own returns op with its slices copied, because the caller may change them before the kernel runs.
func own(op Op) Op {
	switch op := op.(type) {
	case Elementwise:
		op.Numbers = slices.Clone(op.Numbers)
		return op
	case Chain:
		op.Links, op.Stored = slices.Clone(op.Links), slices.Clone(op.Stored)
		return op
	case Ropes:
		op.Parts = slices.Clone(op.Parts)
		return op
	case ReduceAxes:
		op.Axes = slices.Clone(op.Axes)
		return op
	}
	return op
}

// Reaches reports whether operands may be in peers' memory.
func (k *Kernel) Reaches() bool {
	switch k.Op.(type) {
	case ReduceOperands, UnevenMove, UnevenReduce:
		return true
	}
	return false
}

// AxisIn returns an error if a tensor of the given rank has no such axis.
func AxisIn(axis, rank int) error {
	if axis < 0 || axis >= rank {
		return fmt.Errorf("axis %d is outside a tensor of rank %d", axis, rank)
	}
	return nil
}

// CheckSorted returns an error unless s, applied to rows of type in, can have a result of type out with the given
// shape.
func CheckSorted(s Sorted, in, out ir.DType, rows, shape []int64) error {
	last, want := len(rows)-1, ir.I32
	if s.Op == ir.OpTopK {
		want = in
	}
	if out != want || last < 0 || len(shape) != len(rows) || !slices.Equal(rows[:last], shape[:last]) ||
		shape[last] > rows[last] ||
		s.Op == ir.OpArgsort && shape[last] != rows[last] {
		return fmt.Errorf("%s of %s%v cannot have the result %s%v", s.Op, in, rows, out, shape)
	}
	return nil
}

// CheckTakeAlong returns an error unless selecting elements of rows by indices can produce the given shape.
func CheckTakeAlong(rows, indices, shape []int64) error {
	last := len(rows) - 1
	if last < 0 || !slices.Equal(indices, shape) || len(shape) != len(rows) ||
		!slices.Equal(rows[:last], shape[:last]) {
		return fmt.Errorf("elements of rows %v, selected by indices of shape %v, cannot have shape %v", rows, indices, shape)
	}
	return nil
}

// CheckGrouped returns an error unless a grouped linear of x, w and counts with these shapes has the shape out.
func CheckGrouped(g GroupedLinear, out []int64, ins [][]int64) error {
	if len(ins) == 3 && len(ins[0]) == 2 && len(ins[1]) == 3 && len(ins[2]) == 1 {
		x, w, counts := ins[0], ins[1], ins[2]
		if slices.Equal(out, []int64{x[0], w[1]}) && x[1] == w[2] && g.First >= 0 && g.First <= counts[0]-w[0] {
			return nil
		}
	}
	return fmt.Errorf("a grouped linear of operands %v with experts from %d on cannot have shape %v", ins, g.First, out)
}

// CheckIndexAdd returns an error unless the types and shapes of an IndexAdd agree. out, x and ids are the types of the
// result, the rows and the ids; shape, rows and at are their shapes.
func CheckIndexAdd(a IndexAdd, out, x, ids ir.DType, shape, rows, at []int64) error {
	last := len(rows) - 1
	if out != x || !ids.IsInt() || len(shape) != 2 || last < 0 || !slices.Equal(at, rows[:last]) || shape[1] != rows[last] {
		return fmt.Errorf("cannot add rows of %s%v by ids %s%v into %s%v", x, rows, ids, at, out, shape)
	}
	if a.First < 0 || a.First > a.Rows-shape[0] {
		return fmt.Errorf("the result's rows %d to %d are outside of %d rows", a.First, a.First+shape[0], a.Rows)
	}
	return nil
}

// CheckNormGrad returns an error unless the types and shapes of the operands and the result of n agree.
func CheckNormGrad(n NormGrad, out ir.DType, shape []int64, types []ir.DType, ins [][]int64) error {
	if want := n.Op.Info().MinArgs; len(ins) != want {
		return fmt.Errorf("it has %d operands, but %s needs %d", len(ins), n.Op, want)
	}
	x, dt := ins[0], types[0]
	last := len(x) - 1
	good := last >= 0 && !dt.IsInt() && slices.Equal(ins[len(ins)-1], x)
	for _, t := range types {
		good = good && t == dt
	}
	if good && n.Op == ir.OpRMSNormDX {
		good = out == dt && slices.Equal(shape, x) && slices.Equal(ins[1], x[last:])
	} else if good {
		good = out == dt.Accum() && slices.Equal(shape, x[last:])
	}
	if !good {
		return fmt.Errorf("%s of operands %s%v cannot have the result %s%v", n.Op, types, ins, out, shape)
	}
	return nil
}

// CheckAttentionGrad returns an error unless the types and shapes of the operands and the result of a agree.
func CheckAttentionGrad(a AttentionGrad, out ir.DType, shape []int64, types []ir.DType, ins [][]int64) error {
	bad := func() error {
		return fmt.Errorf("%s of operands %s%v cannot have the result %s%v", a.Op, types, ins, out, shape)
	}
	if want := map[bool]int{true: 2, false: 6}[a.Op == ir.OpAttentionLSE]; len(ins) != want {
		return fmt.Errorf("it has %d operands, but %s needs %d", len(ins), a.Op, want)
	}
	q, k := ins[0], ins[1]
	n := len(q)
	if n < 3 || len(k) != n || !slices.Equal(q[:n-3], k[:n-3]) || q[n-1] != k[n-1] || q[n-1] == 0 || k[n-2] == 0 ||
		q[n-2]%k[n-2] != 0 {
		return bad()
	}
	for i, t := range types {
		like, dt := q, types[0]
		switch {
		case i == 1 || i == 2:
			like = k
		case i > 3:
			like, dt = q[:n-1], dt.Accum()
		}
		if t != dt || t.IsInt() || !slices.Equal(ins[i], like) {
			return bad()
		}
	}
	want, dt := q, types[0]
	switch a.Op {
	case ir.OpAttentionLSE:
		want, dt = q[:n-1], dt.Accum()
	case ir.OpAttentionDKV:
		want = append([]int64{2}, k...)
	}
	switch {
	case out != dt || !slices.Equal(shape, want):
		return bad()
	case q[n-3] > 0 && k[n-3] == 0 || a.Causal && q[n-3] > k[n-3]:
		return fmt.Errorf("causal attention with %d queries and only %d keys: the first queries would see no key", q[n-3],
			k[n-3])
	}
	return nil
}

// AttentionExtras returns the indices of the lengths and of the mask among an attention's operands, or -1 for a missing
// operand. The operands' types determine which operand is which.
func AttentionExtras(types []ir.DType) (lengths, mask int, err error) {
	lengths, mask = -1, -1
	for i := 3; i < len(types); i++ {
		switch {
		case types[i].IsInt() && i == 3:
			lengths = i
		case !types[i].IsInt() && i == len(types)-1 && types[i] == types[0]:
			mask = i
		default:
			return lengths, mask, fmt.Errorf("operand %d of an attention of type %s has the invalid type %s", i, types[0],
				types[i])
		}
	}
	return lengths, mask, nil
}
