package device

import (
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/ir"
)

// Kernel is a computation on one device: Op of Ins into Outs. There is one result unless the type of Op permits more.
// Ins may be peers' memory if Reaches returns true.
type Kernel struct {
	Op   Op
	Ins  []View
	Outs []View
}

// Op is the operation of a kernel: one of the types of this file, which have the fields that their kernels depend on.
// Machines switch on the type, and return ErrUnsupported for types that they do not support.
type Op interface {
	code() ir.Op
}

// Elementwise computes each element of the result from the elements of Ins at the same index, with an operation of
// package pointwise. Ins have the result's shape and type.
type Elementwise struct {
	Op      ir.Op
	Numbers []ir.Number // in the order of the operation's attributes
}

// Zeros returns an operation that fills the result with zeros.
func Zeros() Elementwise {
	return Elementwise{Op: ir.OpFill, Numbers: []ir.Number{ir.Whole(0)}}
}

// Cast converts its operand to the result's type.
type Cast struct{}

// Chain computes several elementwise operations; the last one gives the result. Ins have the result's shape. It
// requires Caps.Chains, and machines may decline some chains with ErrUnsupported.
type Chain struct{ Links []Link }

// Link is one operation of a chain: elementwise, a cast or a copy. Its result is rounded to DType, as if it had been
// stored, so that a chain gives the same bits as separate operations.
type Link struct {
	Op ir.Op
	// Args lists its operands: i is Ins[i], ^i the result of link i, an earlier link.
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
// strides of the operand. The shapes are equal, except those of a reshape, which have the same number of elements.
type Copy struct{ Op ir.Op }

// Concat concatenates Ins along an axis.
type Concat struct{ Axis int }

// IndexCopy writes rows along Axis, Ins[0], to the positions Ins[1] of the result, which is also Ins[2].
type IndexCopy struct{ Axis int }

// Embedding selects rows of a table, Ins[1], by ids, Ins[0]. Ins[1] contains the rows from First on of a table of Rows
// rows. Ids of rows that it lacks give zeros; ids outside 0..Rows are a Fault.
type Embedding struct{ First, Rows int64 }

// ReduceAxes computes the sum, max, min or mean over axes, which the result does not have.
type ReduceAxes struct {
	Op   ir.Op
	Axes []int
}

// ReduceSlots computes the sum along an axis, which the result does not have, and adds it to Ins[1] if there is one.
// The result has the type of the operand or of its accumulator.
type ReduceSlots struct{ Axis int }

// ReduceOperands reduces all Ins elementwise, in their order. It computes in the type's accumulator (S11) and rounds
// once; avg divides by len(Ins) before it rounds.
type ReduceOperands struct{ Red ir.Red }

// Argmax computes the index, i32, of the first of the largest elements along an axis, which the result does not have.
type Argmax struct{ Axis int }

// Iota counts along Axis: Start + First + i at index i. It has no Ins.
type Iota struct {
	Axis  int
	Start ir.Number
	First int64
}

// Sorted sorts each row along the last axis. For OpTopK the result consists of the largest elements, in descending
// order, as many as fit into the result, and for OpArgTopK of their indices, i32. For OpArgsort it consists of the
// indices of all elements, i32, in ascending order of the elements. Of equal elements the one with the lower index is
// first. A NaN is larger than any number.
type Sorted struct{ Op ir.Op }

// TakeAlong selects elements of each row along the last axis of Ins[0] by their indices, Ins[1]. An index outside the
// row is a Fault.
type TakeAlong struct{}

// IndexAdd computes the sums of the rows of x[…, D] that have the same id in ids[…]. The result contains the rows from
// First on of Rows rows. Ids of other rows, and -1, add nothing; ids outside -1..Rows are a fault. Rows are added in
// their order.
type IndexAdd struct{ First, Rows int64 }

// Bincount counts, for each index of the result, i32[N], the elements of its operand that are equal to the index.
type Bincount struct{}

// Softmax computes exp(x) / sum(exp(x)) along an axis.
type Softmax struct{ Axis int }

// RMSNorm divides rows along the last axis of Ins[0] by the root of their mean square, and multiplies by Ins[1].
type RMSNorm struct{ Eps float64 }

// LayerNorm normalises rows along the last axis of Ins[0] to mean 0 and variance 1, multiplies by Ins[1] and adds
// Ins[2].
type LayerNorm struct{ Eps float64 }

// Rope rotates pairs of elements of each head of Ins[0] [..., T, H, Dh] by the angles of the positions Ins[1]. Ins[2],
// if there is one, holds the angle of each pair at position 1, f32[R]: elements i and i + R are a pair, and those from
// 2R on are copied.
type Rope struct{ ir.Rope }

// Attention computes softmax(Scale * q kT) v of q, k, v and optional lengths. Lengths are the numbers of keys for each
// sequence or each query; a length larger than the number of keys of k is a Fault. The last operand may be a mask,
// [..., Tq, Tk] or [Tq, Tk] of floating-point numbers, which is added to the scores of all heads.
type Attention struct {
	Scale float64
	// Causal means that query i sees the keys up to i + Tk - Tq.
	Causal bool
	// Window is the number of the last of these keys that a query sees; 0 for all.
	Window int64
	// Softcap replaces a score s by Softcap * tanh(s / Softcap); 0 for none.
	Softcap float64
	// Fixed computes each query with bits that depend only on the keys that it sees, and not on the number of queries.
	Fixed bool
}

// AttentionGrad computes attention_lse of q and k, or attention_dq or attention_dkv of q, k, v, dy, lse and delta.
type AttentionGrad struct {
	Op     ir.Op
	Scale  float64
	Causal bool // as in Attention
}

// Product holds options for the computation of a linear or a matmul.
type Product struct {
	// Relu computes the maximum of the result and 0, with the same bits as a separate relu. It requires Caps.Chains, and
	// machines may decline some products with ErrUnsupported.
	Relu bool
	// Fixed computes each row with bits that depend only on that row and on the other operand: neither on the number of
	// rows nor on measurements. SMs is then ignored.
	Fixed bool
	// Timed makes Prepare return a *TrialError if there is no memory to find the fastest algorithm. Otherwise the
	// library's first guess is used in this case; see Status.Guesses.
	Timed bool
	// SMs is the number of multiprocessors for which the algorithm is chosen; 0 for all.
	SMs int
}

// Linear computes x[..., K] w[N, K]T + bias[N], of x, w and optionally a bias. For 8-bit types the operands are x, w
// and the scales of both, f32.
type Linear struct {
	Product
	// Constant reports that no command writes w while this one waits for the commands before it, so that w may be read
	// before those end.
	Constant bool
}

// Scales computes the scales by which Quantize divides blocks of its operand, f32: the largest magnitude of the block
// divided by Max, and at least 1e-12. GrainOf determines which elements share a scale.
type Scales struct{ Max float64 }

// Quantize divides Ins[0] by its scales, Ins[1], and rounds the quotients to an 8-bit type. Values outside the type's
// range become its largest or smallest number.
type Quantize struct{}

// GroupedLinear computes x[T, K] w[E, N, K]T by groups of rows: counts, Ins[2], holds the number of rows of x for each
// expert, one expert after another. w contains the experts from First on. Rows of other experts, and rows that no count
// covers, give zeros. Counts below 0, or of more rows than exist, are a Fault.
type GroupedLinear struct{ First int64 }

// Matmul computes a[..., M, K] b[..., K, N]. TA and TB report that an operand is read with its last two axes exchanged.
type Matmul struct {
	Product
	TA, TB bool
}

// Linears computes several linears of one x without a bias. Ins are x and the weights, Outs one result for each. It
// requires Caps.Chains, and machines decline with ErrUnsupported if separate linears are as fast.
type Linears struct {
	// Gated reports that there are two linears and a third result: silu of the first result multiplied by the second, with
	// the same bits as if both results and the silu had been stored. The first two results need not be stored.
	Gated bool
	// Constant, Fixed and Timed are as in Linear.
	Constant, Fixed, Timed bool
}

// UnevenMove computes a member's result of an all_gatherv or all_to_allv along an axis. Ins are all members' operands,
// followed by all members' counts, i32; all of these and the result are dense. Counts that do not fit (see Share) are a
// Fault: the result is then undefined, and nothing else is written.
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
	// Checked makes the kernel work on copies that are surrounded by poison; outputs are also filled with poison.
	// Undeclared reads then change the results, and undeclared writes are a Fault.
	Checked bool
}

// UserParam is an argument: Ins[In], Outs[Out], an operand that is both, or a number.
type UserParam struct {
	In, Out int      // -1 for none
	DType   ir.DType // of a number: i32, i64, f32 or f64
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

// Code returns the operation of programs that op computes: the last one of a chain, and all_reduce for ReduceOperands.
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

// Name returns the name under which a stand-in function for the kernel is registered.
func (u *UserKernel) Name() string { return u.File + ":" + u.Entry }

// OpOf returns the computation for an operation of a program with its attributes. An operation without a type in this
// file is Elementwise; machines refuse it if package pointwise does not define it. Launches of the user's kernels are a
// UserKernel instead.
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

// own returns op with copies of the caller's slices, which the caller may change before the kernel runs.
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

// AxisIn returns an error if a tensor of the given rank has no such axis.
func AxisIn(axis, rank int) error {
	if axis < 0 || axis >= rank {
		return fmt.Errorf("axis %d is outside a tensor of rank %d", axis, rank)
	}
	return nil
}

// CheckSorted returns an error unless s of rows of type in can have a result of type out and the given shape.
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

// CheckTakeAlong returns an error unless elements of rows, selected by indices, can have the given shape.
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

// CheckIndexAdd returns an error unless the operands and the result of a fit. The arguments are the types, followed by
// the shapes, of the result, the rows and the ids.
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

// CheckAttentionGrad returns an error unless the operands and the result of a fit.
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

// AttentionExtras returns which operands of an attention are lengths and a mask, according to their types; -1 for none.
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
