package cuda

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/kernels"
)

// normLimit says up to how many rows of up to so many packs one launch is faster than
// three between so many members. More rows were slower, or hardly faster, or were not
// measured.
type normLimit struct {
	members     int
	packs, rows int64
}

// normLimits are by what H200s measured (docs/measured). Everybody pushes all to all,
// so it ends where that takes longer than two launches more.
var normLimits = []normLimit{
	{2, 1024, 32},
	{2, 2048, 1},
	{3, 1024, 32},
	{4, 512, 32},
	{4, 1024, 16},
}

// normLimitFor returns the limits of rows of so many packs between so many members, of
// the next more there are limits for; zeros where there are none.
func normLimitFor(members int, packs int64) normLimit {
	for _, l := range normLimits {
		if members <= l.members && packs <= l.packs {
			return l
		}
	}
	return normLimit{}
}

// normed is a device.NormPart whose views are resolved.
type normed struct {
	in, residual, weight, sum, out strided.View
	across                         bool // a result lies across an operand
}

func (n *normed) list() []*strided.View {
	return []*strided.View{&n.in, &n.residual, &n.weight, &n.sum, &n.out}
}

// check compares with the first member's; room is how many blocks run at once.
func (n *normed) check(first *normed, room int) error {
	last := len(n.in.Shape) - 1
	if last < 0 || n.in.DType.IsInt() || !slices.Equal(n.weight.Shape, n.in.Shape[last:]) {
		return fmt.Errorf("%s%v with weights %v", n.in.DType, n.in.Shape, n.weight.Shape)
	}
	if err := spares(n.in.DType); err != nil {
		return err
	}
	for k, r := range n.list() {
		if r.DType != first.in.DType || r != &n.weight && !slices.Equal(r.Shape, first.in.Shape) {
			return fmt.Errorf("operand %d is %s%v where member 0 adds up %s%v", k, r.DType, r.Shape, first.in.DType, first.in.Shape)
		}
		if !r.Dense() || r.Addr%16 != 0 {
			return fmt.Errorf("%w: operand %d has gaps, or does not begin at a multiple of 16 bytes", device.ErrUnsupported, k)
		}
	}
	if packs := n.packs(); n.in.Shape[last]*n.in.DType.Size() != packs*16 || packs > kernels.NormPacks {
		return fmt.Errorf("%w: rows of %d × %s: they are multiples of 16 bytes, up to %d", device.ErrUnsupported, n.in.Shape[last], n.in.DType, 16*kernels.NormPacks)
	}
	// A thread has read its elements of a row before it writes there, and no other
	// thread reads them: results may lie where operands do. Where they lie across them
	// nobody may write before all have read, so all must run at once.
	for _, w := range []*strided.View{&n.sum, &n.out} {
		for _, r := range n.list() {
			switch operand := r == &n.in || r == &n.residual; {
			case r == w || !r.Overlaps(w) || operand && r.Same(w):
			case operand && n.rows() <= int64(room):
				n.across = true
			default:
				return fmt.Errorf("%w: a result overlaps the weights or the other result, or some of more rows than run at once", device.ErrUnsupported)
			}
		}
	}
	return nil
}

func (n *normed) rows() int64 { return n.in.N / max(n.weight.N, 1) }

// packs is how many packs of 16 bytes a row has.
func (n *normed) packs() int64 { return n.weight.Bytes() / 16 }

// normRoom returns how many blocks for rows of so many packs run at once.
func normRoom(t teamFacts, packs int64) int { return t.Room(kernels.NormThreads(packs)) }

// normPlan is one launch on each member.
func normPlan(t teamFacts, eps float64, all []normed) *collPlan {
	rows, p := all[0].rows(), &collPlan{}
	var lines, read area
	p.resting(int64(len(all))*rows*all[0].packs()*16, func(a area) { lines = a })
	if slices.ContainsFunc(all, func(n normed) bool { return n.across }) {
		p.halves("norm", 4*kernels.BlocksMost, func(a area) { read = a })
	}
	blocks := min(rows, int64(normRoom(t, all[0].packs())))
	p.Launches = func() ([][]action, error) {
		list := make([][]action, len(all))
		for i := range all {
			n := &all[i]
			k := kernels.ReduceNorm{DType: n.in.DType, Members: len(all), Rows: int(rows), Packs: n.packs(), Blocks: int(blocks), Eps: eps,
				In: n.in.Addr, Residual: n.residual.Addr, Weight: n.weight.Addr, Sum: n.sum.Addr, Out: n.out.Addr, Data: lines.At, Half: lines.half()}
			if n.across {
				k.Read, k.ReadHalf = read.At[i], read.half()
			}
			list[i] = []action{meetKernel{k.Meeting()}}
		}
		return list, nil
	}
	return p
}

// worthwhile returns nil where all, which were checked, are faster as one launch.
func worthwhile(t teamFacts, all []normed) error {
	rows, packs := all[0].rows(), all[0].packs()
	if l := normLimitFor(t.Members(), packs); rows > l.rows {
		return fmt.Errorf("a normalised sum: %w: %d rows of %d bytes among %d members; of more than %d three launches are faster, or not known to be slower",
			device.ErrUnsupported, rows, 16*packs, t.Members(), l.rows)
	}
	return nil
}
