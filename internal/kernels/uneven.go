package kernels

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

const (
	// unevenMost is the largest number of members of an uneven collective.
	unevenMost = 64
	// unevenFlight is the number of pieces for which a thread has loads in flight.
	unevenFlight = 4
	// unevenBlocks is the number of thread blocks that fill a large GPU once. More thread blocks would not help,
	// because each block reads all counts from remote memory.
	unevenBlocks = 1024
)

// uneven plans the computation of one member's result of an uneven collective. The operands are those of all members,
// followed by the counts of all members; all of them are dense.
type uneven struct {
	op           ir.Op
	red          ir.Red // of a reduce_scatterv
	axis, member int
}

func (u uneven) launches(j *job) ([]launch, error) {
	n := len(j.Ins) / 2
	if err := u.check(j, n); err != nil {
		return nil, err
	}
	if j.Out.elements() == 0 {
		return nil, nil
	}
	axis, shape := u.axis, j.Out.Shape
	inner, all := Operand{Shape: shape[axis+1:]}.elements(), append(slices.Clone(j.Ins[:n]), j.Out)
	var args words
	args.addr(j.Out.Addr, j.fault)
	args.bits(j.tag)
	args.ints(int64(n), int64(u.member), Operand{Shape: shape[:axis]}.elements(), j.Ins[0].Shape[axis], shape[axis])
	c := code{files: []string{"sync", "uneven"}, args: "UnevenArgs"}
	var pieces int64 // number of pieces of a row
	if u.op == ir.OpReduceScatterV {
		pieces = c.reduces(j, u.red, inner, all)
	} else {
		pieces = c.moves(j, u.op, inner*j.Out.DType.Size(), all)
	}
	args.ints(pieces)
	for _, list := range [][]Operand{j.Ins[:n], j.Ins[n:]} {
		for _, o := range list {
			args.addr(o.Addr)
		}
		args.addr(make([]nvlib.Ptr, unevenMost-n)...)
	}
	return []launch{{blocks: min(blocksFor(ceil(j.Out.elements()/inner*pieces, unevenFlight)), unevenBlocks), args: args, code: c}}, nil
}

// moves lets the kernel c copy rows, in pieces that are as wide as the addresses permit. It returns the number of
// pieces of a row.
func (c *code) moves(j *job, op ir.Op, row int64, all []Operand) int64 {
	size := int64(16)
	for size > j.Out.DType.Size() && !multiples(size, row, all) {
		size /= 2
	}
	piece := fmt.Sprint("u", 8*size)
	if size == 16 {
		piece = "Pack<u64, 2>"
	}
	kind := map[ir.Op]string{ir.OpAllGatherV: "allGather", ir.OpAllToAllV: "allToAll"}[op]
	index := j.indexType()
	c.symbol = symbol(op.String(), fmt.Sprint("b", size), index)
	c.body = fmt.Sprintf("unevenCopy<%s, %s, %s>", kind, piece, index)
	return row / size
}

// reduces lets the kernel c reduce rows, one pack of elements at a time, and returns the number of packs of a row.
func (c *code) reduces(j *job, red ir.Red, row int64, all []Operand) int64 {
	dt := j.Out.DType
	v := 16 / dt.Size()
	for v > 1 && !multiples(v*dt.Size(), row*dt.Size(), all) {
		v /= 2
	}
	fold := map[ir.Red]string{ir.Max: "FoldMax", ir.Min: "FoldMin"}[red]
	if fold == "" {
		fold = "FoldSum"
	}
	index := j.indexType()
	c.symbol = symbol(ir.OpReduceScatterV.String(), red.String(), ctype(dt), fmt.Sprint("v", v), index)
	c.body = fmt.Sprintf("unevenReduce<%s, %s, %t, %d, %s>", ctype(dt), fold, red == ir.Avg, v, index)
	return row / v
}

// multiples reports whether the size of rows and all addresses are multiples of size.
func multiples(size, row int64, all []Operand) bool {
	return row%size == 0 && !slices.ContainsFunc(all, func(o Operand) bool { return int64(o.Addr)%size != 0 })
}

// indexType returns a 32-bit type if it can represent all indices, including those one step after the last one;
// otherwise a 64-bit type.
func (j *operands) indexType() string {
	if j.Out.elements() < 1<<29 {
		return "u32"
	}
	return "u64"
}

func (u uneven) check(j *job, n int) error {
	if n == 0 || len(j.Ins) != 2*n || u.member < 0 || u.member >= n {
		return fmt.Errorf("the collective has %d operands for member %d, but needs the operands and the counts of all members",
			len(j.Ins), u.member)
	}
	if n > unevenMost {
		return fmt.Errorf("%w: %d members, at most %d", device.ErrUnsupported, n, unevenMost)
	}
	axis := u.axis
	if err := device.AxisIn(axis, len(j.Out.Shape)); err != nil {
		return err
	}
	if u.op == ir.OpReduceScatterV && (u.red == ir.NoRed || u.red > ir.Avg) {
		return fmt.Errorf("unknown reduction %d", u.red)
	}
	for i, in := range j.Ins[:n] {
		want := slices.Clone(j.Out.Shape)
		if len(in.Shape) == len(want) {
			want[axis] = j.Ins[0].Shape[axis]
		}
		if in.DType != j.Out.DType || !slices.Equal(in.Shape, want) {
			return fmt.Errorf("operand %d is %s%v, but the result is %s%v", i, in.DType, in.Shape, j.Out.DType, j.Out.Shape)
		}
	}
	for i, c := range j.Ins[n:] {
		if c.DType != ir.I32 || !slices.Equal(c.Shape, []int64{int64(n)}) {
			return fmt.Errorf("the counts of member %d have type %s%v, but must have type i32[%d]", i, c.DType, c.Shape, n)
		}
	}
	for _, o := range append(slices.Clone(j.Ins), j.Out) {
		if !o.isDense() {
			return fmt.Errorf("%w: the tensors of an uneven collective must be contiguous", device.ErrUnsupported)
		}
	}
	return nil
}
