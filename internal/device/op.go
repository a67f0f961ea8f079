package device

import (
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/ir"
)

// Kernel is a computation on one device: Op of Ins into Outs. There is one result unless the kind of Op says otherwise.
// Ins may be peers' memory where Reaches says so.
type Kernel struct {
	Op   Op
	Ins  []View
	Outs []View
}

// Op is what a kernel computes: one of the types of this file, each of which is a kind of kernels and has the fields
// that its kernels depend on. Machines switch on the type, and return ErrUnsupported for kinds that they do not have.
type Op interface {
	code() ir.Op
}

// Elementwise computes each element of the result from the elements of Ins at the same index, by an operation of
// package pointwise. Ins have the result's shape and type.
type Elementwise struct {
	Op      ir.Op
	Numbers []ir.Number // in the order of the operation's row
}

// Zeros fills the result with zeros.
func Zeros() Elementwise {
	return Elementwise{Op: ir.OpFill, Numbers: []ir.Number{ir.Whole(0)}}
}

// Cast converts its operand to the result's type.
type Cast struct{}

// Chain computes several elementwise operations, of which the last gives the result. Ins have the result's shape. It is
// for machines with Caps.Chains, which may decline some with ErrUnsupported.
type Chain struct{ Links []Link }

// Link is one operation of a chain: elementwise, a cast or a copy. Its result is rounded to DType, as if it had been
// stored, so that a chain computes the bits that its links would one after another.
type Link struct {
	Op ir.Op
	// Args are its operands: i is Ins[i], ^i the result of link i, an earlier one.
	Args    []int
	DType   ir.DType // of the result
	Numbers []ir.Number
}

// SiluMul is the chain that gates linears of a type: silu of the first operand times the second.
func SiluMul(dt ir.DType) Chain {
	return Chain{Links: []Link{{Op: ir.OpSilu, Args: []int{0}, DType: dt},
		{Op: ir.OpMul, Args: []int{^0, 1}, DType: dt}}}
}

// Copy copies its operand. Op is copy, expand or an operation that names part of a tensor, whose work is in the
// operand's strides. The shapes are equal, except those of a reshape, which have the same number of elements.
type Copy struct{ Op ir.Op }

// Concat puts Ins one after another along an axis.
type Concat struct{ Axis int }

// IndexCopy writes rows along Axis, Ins[0], to the positions Ins[1] of the result, which is Ins[2], too.
type IndexCopy struct{ Axis int }

// Embedding looks up rows of a table, Ins[1], by ids, Ins[0]. The table is the rows from First on of one of Rows rows.
// Ids of rows that it lacks give zeros; ids outside 0..Rows are a Fault.
type Embedding struct{ First, Rows int64 }

// ReduceAxes is the sum, max, min or mean over axes, which disappear.
type ReduceAxes struct {
	Op   ir.Op
	Axes []int
}

// ReduceSlots is the sum along an axis, which disappears, added to Ins[1] if there is one. The result has the type of
// the operand or of its accumulator.
type ReduceSlots struct{ Axis int }

// ReduceOperands is the reduction of all Ins elementwise, in their order. It accumulates in the type's accumulator
// (S11) and rounds once; avg divides by len(Ins) before it rounds.
type ReduceOperands struct{ Red ir.Red }

// Argmax is the index, i32, of the first of the largest elements along an axis, which disappears.
type Argmax struct{ Axis int }

// Iota counts along Axis: Start + First + i at index i. Ins are none.
type Iota struct {
	Axis  int
	Start ir.Number
	First int64
}

// Sorted orders each row along the last axis: for OpTopK the result is the largest elements, largest first, as many as
// it has room for, and for OpArgTopK their indices, i32. For OpArgsort it is the indices of all elements, i32, smallest
// first. Of equal elements the one with the lower index comes first. A NaN is larger than any number.
type Sorted struct{ Op ir.Op }

// TakeAlong is elements of each row along the last axis of Ins[0] by their indices, Ins[1]. An index that there is not
// is a Fault.
type TakeAlong struct{}

// IndexAdd is the sums of the rows of x[…, D] that have one id in ids[…]. The result has the rows from First on of Rows
// rows. Ids of other rows, and -1, add nothing; ids outside -1..Rows are a fault. Sums are in the order of the rows.
type IndexAdd struct{ First, Rows int64 }

// Bincount counts how often each index of the result, i32[N], is an element of its operand.
type Bincount struct{}

// Softmax is exp(x) / sum(exp(x)) along an axis.
type Softmax struct{ Axis int }

// RMSNorm divides rows along the last axis of Ins[0] by the root of their mean square, and multiplies by Ins[1].
type RMSNorm struct{ Eps float64 }

// LayerNorm makes rows along the last axis of Ins[0] have mean 0 and variance 1, multiplies by Ins[1] and adds Ins[2].
type LayerNorm struct{ Eps float64 }

// Rope turns pairs of elements of each head of Ins[0] [..., T, H, Dh] by the angles of the positions Ins[1]. Ins[2], if
// there is one, is the angle of each pair at position 1, f32[R]: elements i and i + R are a pair, and those from 2R on
// stay.
type Rope struct{ ir.Rope }

// Attention is softmax(Scale * q kT) v, of q, k and v, and optionally of lengths: how many keys there are, for each
// sequence or each query. Lengths of more keys than k has are a Fault. Last there may be a mask, [..., Tq, Tk] or [Tq,
// Tk] of floating-point numbers, which is added to the scores of all heads.
type Attention struct {
	Scale float64
	// Causal says that query i sees the keys up to i + Tk - Tq.
	Causal bool
	// Window is how many of the last keys that it would see a query sees; 0 for all.
	Window int64
	// Softcap replaces a score s by Softcap * tanh(s / Softcap); 0 for none.
	Softcap float64
	// Fixed computes each query with bits that depend on what it sees alone: not on how many queries there are.
	Fixed bool
}

// AttentionGrad is attention_lse of q and k, and attention_dq and attention_dkv of q, k, v, dy, lse and delta.
type AttentionGrad struct {
	Op     ir.Op
	Scale  float64
	Causal bool // as of Attention
}

// Product is how a linear or a matmul is computed.
type Product struct {
	// Relu gives the larger of the result and 0: the bits of a relu of what would have been stored. It is for machines
	// with Caps.Chains, which may decline some with ErrUnsupported.
	Relu bool
	// Fixed computes each row with bits that depend on that row and the other operand alone: not on how many rows there
	// are, nor on measurements. SMs is then ignored.
	Fixed bool
	// Timed makes it a *TrialError if there is no memory to find the fastest algorithm in. Otherwise the library's
	// first guess is taken then; see Status.Guesses.
	Timed bool
	// SMs is the number of multiprocessors that the algorithm is chosen for; 0 for all.
	SMs int
}

// Linear is x[..., K] w[N, K]T + bias[N], of x, w and optionally a bias; or, of 8-bit types, of x, w and the scales of
// both, f32.
type Linear struct {
	Product
	// Constant says that no command writes w while this one waits for the commands before it: w may be read before
	// those end.
	Constant bool
}

// Scales are what Quantize divides blocks of its operand by, f32: the largest magnitude divided by Max, and at least
// 1e-12. GrainOf says which elements share a scale.
type Scales struct{ Max float64 }

// Quantize divides Ins[0] by its scales, Ins[1], and rounds to an 8-bit type what is then moved between the type's
// largest numbers.
type Quantize struct{}

// GroupedLinear is x[T, K] w[E, N, K]T by groups of rows: counts, Ins[2], says how many rows of x each expert has, one
// expert after another. w has those from First on. Rows of other experts and rows that no count has give zeros. Counts
// below 0, or of more rows than there are, are a Fault.
type GroupedLinear struct{ First int64 }

// Matmul is a[..., M, K] b[..., K, N]; TA and TB say that an operand is read with its last two axes exchanged.
type Matmul struct {
	Product
	TA, TB bool
}

// Linears is several linears of one x without a bias: Ins are x and the weights, Outs a result for each. It is for
// machines with Caps.Chains, which decline with ErrUnsupported what they are not faster at.
type Linears struct {
	// Gated says that there are two linears, and a third result: silu of the first times the second, with the bits that
	// it has if both, and the silu, are stored. The first two results need not be stored.
	Gated bool
	// Constant, Fixed and Timed are as in Linear.
	Constant, Fixed, Timed bool
}

// UnevenMove gives a member its result of an all_gatherv or all_to_allv along an axis. Ins are all members' operands
// and then all members' counts, i32, all dense, as the result is. Counts that do not fit (see Share) are a Fault: then
// the result is undefined, and nothing else is written.
type UnevenMove struct {
	Op           ir.Op
	Axis, Member int
}

// UnevenReduce is UnevenMove for a reduce_scatterv.
type UnevenReduce struct {
	Red          ir.Red
	Axis, Member int
}

// UserKernel is a kernel of the user's, of dense Ins and Outs: CUDA C++ (a file's name ends with .cu), PTX (.ptx) or a
// cubin.
type UserKernel struct {
	File, Entry string
	Code        []byte
	Grid, Block [3]int64
	Shared      int64 // bytes of dynamic shared memory
	Params      []UserParam
	// Checked has the kernel work on copies, with poison around them and in what it only writes: undeclared
	// reads show in results, undeclared writes as a Fault.
	Checked bool
}

// UserParam is an argument: Ins[In], Outs[Out], one that is both, or a number.
type UserParam struct {
	In, Out int      // -1 for none
	DType   ir.DType // of a number: i32, i64, f32, f64
	Bits    uint64   // an integer, or the bits of an f64
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
func (LayerNorm) code() ir.Op       { return ir.OpLayerNorm }
func (Rope) code() ir.Op            { return ir.OpRope }
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

// Code returns the operation of programs that op computes: the last of a chain, and all_reduce for ReduceOperands.
func Code(op Op) ir.Op { return op.code() }

// Name is the name of op in messages: "add", "silu+mul", "reduction sum".
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

// Name is what a function that stands in for the kernel is registered under.
func (u *UserKernel) Name() string { return u.File + ":" + u.Entry }

// OpOf returns the computation that an operation of a program is, with its attributes. An operation that has no kind of
// its own is Elementwise, by its row of package pointwise; machines refuse what has none. Launches of the user's
// kernels are a UserKernel instead.
func OpOf(op ir.Op, a ir.Attrs) Op {
	axis := -1 // which machines refuse
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
		return Linear{Product: Product{SMs: a.SMs}}
	case ir.OpScales:
		return Scales{Max: a.Number(0).Float}
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

// own returns op without slices of the caller's, who may change them before the kernel runs.
func own(op Op) Op {
	switch op := op.(type) {
	case Elementwise:
		op.Numbers = slices.Clone(op.Numbers)
		return op
	case Chain:
		op.Links = slices.Clone(op.Links)
		return op
	case ReduceAxes:
		op.Axes = slices.Clone(op.Axes)
		return op
	}
	return op
}

// Reaches reports whether operands may be peers' memory.
func (k *Kernel) Reaches() bool {
	switch k.Op.(type) {
	case ReduceOperands, UnevenMove, UnevenReduce:
		return true
	}
	return false
}

// AxisIn returns why a tensor of a rank has no such axis.
func AxisIn(axis, rank int) error {
	if axis < 0 || axis >= rank {
		return fmt.Errorf("axis %d of a tensor of rank %d", axis, rank)
	}
	return nil
}

// CheckSorted returns why a result of a type and shape is not what s makes of rows of type in.
func CheckSorted(s Sorted, in, out ir.DType, rows, shape []int64) error {
	last, want := len(rows)-1, ir.I32
	if s.Op == ir.OpTopK {
		want = in
	}
	if out != want || last < 0 || len(shape) != len(rows) || !slices.Equal(rows[:last], shape[:last]) ||
		shape[last] > rows[last] ||
		s.Op == ir.OpArgsort && shape[last] != rows[last] {
		return fmt.Errorf("%s of %s%v into %s%v", s.Op, in, rows, out, shape)
	}
	return nil
}

// CheckTakeAlong returns why a result of a shape is not elements of rows by so many indices.
func CheckTakeAlong(rows, indices, shape []int64) error {
	last := len(rows) - 1
	if last < 0 || !slices.Equal(indices, shape) || len(shape) != len(rows) ||
		!slices.Equal(rows[:last], shape[:last]) {
		return fmt.Errorf("elements of rows %v by %v into %v", rows, indices, shape)
	}
	return nil
}

// CheckGrouped returns why x, w and counts of these shapes do not make a grouped linear of shape out.
func CheckGrouped(g GroupedLinear, out []int64, ins [][]int64) error {
	if len(ins) == 3 && len(ins[0]) == 2 && len(ins[1]) == 3 && len(ins[2]) == 1 {
		x, w, counts := ins[0], ins[1], ins[2]
		if slices.Equal(out, []int64{x[0], w[1]}) && x[1] == w[2] && g.First >= 0 && g.First <= counts[0]-w[0] {
			return nil
		}
	}
	return fmt.Errorf("a grouped linear of %v with experts from %d on into %v", ins, g.First, out)
}

// CheckIndexAdd returns why operands do not make a of a result. The first operand and the result have types.
func CheckIndexAdd(a IndexAdd, out, x, ids ir.DType, shape, rows, at []int64) error {
	last := len(rows) - 1
	if out != x || !ids.IsInt() || len(shape) != 2 || last < 0 || !slices.Equal(at, rows[:last]) || shape[1] != rows[last] {
		return fmt.Errorf("rows of %s%v by %s%v into %s%v", x, rows, ids, at, out, shape)
	}
	if a.First < 0 || a.First > a.Rows-shape[0] {
		return fmt.Errorf("rows %d to %d of %d", a.First, a.First+shape[0], a.Rows)
	}
	return nil
}

// CheckAttentionGrad returns why operands do not make a of a result. Operands have types and shapes.
func CheckAttentionGrad(a AttentionGrad, out ir.DType, shape []int64, types []ir.DType, ins [][]int64) error {
	bad := func() error {
		return fmt.Errorf("%s of %s%v into %s%v", a.Op, types, ins, out, shape)
	}
	if want := map[bool]int{true: 2, false: 6}[a.Op == ir.OpAttentionLSE]; len(ins) != want {
		return fmt.Errorf("%d operands of %s, %d are needed", len(ins), a.Op, want)
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
		return fmt.Errorf("the first of %d queries see none of %d keys", q[n-3], k[n-3])
	}
	return nil
}

// AttentionExtras returns which operands of an attention, of these types, are lengths and a mask; -1 for none.
func AttentionExtras(types []ir.DType) (lengths, mask int, err error) {
	lengths, mask = -1, -1
	for i := 3; i < len(types); i++ {
		switch {
		case types[i].IsInt() && i == 3:
			lengths = i
		case !types[i].IsInt() && i == len(types)-1 && types[i] == types[0]:
			mask = i
		default:
			return lengths, mask, fmt.Errorf("operand %d of an attention of %s is %s", i, types[0], types[i])
		}
	}
	return lengths, mask, nil
}
