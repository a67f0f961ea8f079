package cuda

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/ir"
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

func (t *team) SupportsNorm(n *device.Norm) error {
	t.w.mu.Lock()
	defer t.w.mu.Unlock()
	_, err := t.worthwhile(n)
	return err
}

// worthwhile resolves parts that are faster as one launch.
func (t *team) worthwhile(n *device.Norm) ([]normed, error) {
	all, err := t.norms(n.Parts)
	if err != nil {
		return nil, err
	}
	rows, packs := all[0].rows(), all[0].packs()
	if l := normLimitFor(len(t.members), packs); rows > l.rows {
		return nil, fmt.Errorf("a normalised sum: %w: %d rows of %d bytes among %d members; of more than %d three launches are faster, or not known to be slower",
			device.ErrUnsupported, rows, 16*packs, len(t.members), l.rows)
	}
	return all, nil
}

// norms resolves parts and checks that they fit each other and the kernel.
func (t *team) norms(parts []device.NormPart) ([]normed, error) {
	if err := t.w.err(); err != nil {
		return nil, err
	}
	if t.closed || len(parts) != len(t.members) || len(parts) < 2 {
		return nil, fmt.Errorf("a normalised sum: %d parts for a team of %d members (closed: %v)", len(parts), len(t.members), t.closed)
	}
	if err := t.apart(); err != nil {
		return nil, fmt.Errorf("a normalised sum: %w", err)
	}
	all := make([]normed, len(parts))
	for i, p := range parts {
		n := &all[i]
		for k, v := range []device.View{p.In, p.Residual, p.Weight, p.Sum, p.Out} {
			r, err := t.members[i].dev.resolve(v, false)
			if err != nil {
				return nil, fmt.Errorf("a normalised sum: member %d: %w", i, err)
			}
			r.Detach()
			*n.list()[k] = r
		}
		if err := n.check(&all[0], t.normRoom(n.packs())); err != nil {
			return nil, fmt.Errorf("a normalised sum: member %d: %w", i, err)
		}
	}
	return all, nil
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

func (t *team) PrepareNorm(n *device.Norm) ([]device.Launch, error) {
	defer t.w.exclusive()()
	all, err := t.worthwhile(n)
	if err != nil {
		return nil, err
	}
	launches := make([]device.Launch, len(all))
	if all[0].in.N == 0 {
		return launches, nil
	}
	steps, err := t.normSteps(n.Eps, all)
	if err != nil {
		return nil, fmt.Errorf("a normalised sum: %w", err)
	}
	what := fmt.Sprintf("%s, add and %s", ir.OpAllReduce, ir.OpRMSNorm)
	for i, m := range t.members {
		launches[i] = &launch{dev: m.dev, name: what, steps: []step{steps[i]}, member: m, id: -1}
	}
	t.together(what, launches)
	return launches, nil
}

// PrepareNormAhead has the compiler begin with the kernel.
func (t *team) PrepareNormAhead(n *device.Norm) {
	t.w.mu.Lock()
	defer t.w.mu.Unlock()
	all, err := t.worthwhile(n)
	if err != nil || all[0].in.N == 0 {
		return
	}
	t.foresee(func() {
		_, _ = t.normSteps(n.Eps, all) // PrepareNorm tells of errors
	})
}

// normRoom returns how many blocks for rows of so many packs run at once.
func (t *team) normRoom(packs int64) int { return t.room(kernels.NormThreads(packs)) }

// normSteps returns what each member launches.
func (t *team) normSteps(eps float64, all []normed) ([]step, error) {
	rows := all[0].rows()
	lines, err := t.resting(int64(len(all)) * rows * all[0].packs() * 16)
	if err != nil {
		return nil, err
	}
	var read *area
	if slices.ContainsFunc(all, func(n normed) bool { return n.across }) {
		if read, err = t.halves("norm", 4*kernels.BlocksMost); err != nil {
			return nil, err
		}
	}
	blocks := min(rows, int64(t.normRoom(all[0].packs())))
	steps := make([]step, len(all))
	for i, m := range t.members {
		n := &all[i]
		k := kernels.ReduceNorm{DType: n.in.DType, Members: len(all), Rows: int(rows), Packs: n.packs(), Blocks: int(blocks), Eps: eps,
			In: n.in.Addr, Residual: n.residual.Addr, Weight: n.weight.Addr, Sum: n.sum.Addr, Out: n.out.Addr, Data: lines.at, Half: lines.bytes / 2}
		if n.across {
			k.Read, k.ReadHalf = read.at[i], read.bytes/2
		}
		if steps[i], err = m.kernel(k.Meeting()); err != nil {
			return nil, err
		}
	}
	return steps, nil
}
