package cuda

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/ir"
)

// normLimit says how rows of up to so many packs were fastest between so many members:
// split over blocks up to so many rows, then a block for each up to so many. More rows
// were slower than three launches, or hardly faster, or were not measured.
type normLimit struct {
	members      int
	packs        int64
	split, whole int64
}

// normLimits are by what H200s measured (docs/measured). Everybody pushes all to all,
// with a flag for every 4 bytes, so it ends where that takes longer than two launches
// more. Rows × packs, µs of one launch in the faster layout, and of three:
//
//	            2 members    3 members      4 members
//	 1 ×  256   2.9 (4.6)    3.4 (5.6)      4.0 (5.8)
//	32 ×  256   3.8 (5.4)    4.9 (6.9)      6.1 (7.4)
//	 1 ×  512   3.7 (5.1)    4.5 (6.0)      5.0 (6.2)
//	 8 ×  512   4.2 (5.6)    5.0 (6.8)      5.7 (7.2)
//	16 ×  512   4.6 (5.8)    6.1 (7.3)      7.1 (7.8)
//	32 ×  512   5.7 (6.3)    7.7 (8.2)      9.4 (9.1)
//	 1 × 1024   4.7 (5.7)    5.9 (6.8)      6.3 (7.0)    of three and four split
//	 2 × 1024   4.9 (6.4)    6.3 (7.4)      6.8 (7.7)    of four split
//	 8 × 1024   5.2 (6.4)    7.0 (7.9)      8.5 (8.3)
//	16 × 1024   6.4 (6.8)   10.2 (8.7)     12.4 (9.7)
//	 1 × 2048   7.7 (7.5)    8.0 (8.5)      8.5 (8.8)    split
//
// Those of two are the latest: of three launches the last two begin earlier since.
var normLimits = []normLimit{
	{2, 512, 0, 32},
	{2, 1024, 0, 16},
	{3, 512, 0, 16},
	{3, 1024, 0, 8},
	{4, 256, 0, 32},
	{4, 512, 0, 8},
	{4, 1024, 2, 0},
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
	in, residual, weight, sum, out ref
	across                         bool // a result lies across an operand
}

func (n *normed) list() []*ref { return []*ref{&n.in, &n.residual, &n.weight, &n.sum, &n.out} }

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
	if l := normLimitFor(len(t.members), packs); rows > max(l.split, l.whole) {
		return nil, fmt.Errorf("a normalised sum: %w: %d rows of %d bytes among %d members; of more than %d three launches are faster, or not known to be slower",
			device.ErrUnsupported, rows, 16*packs, len(t.members), max(l.split, l.whole))
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
			r.own()
			*n.list()[k] = r
		}
		if err := n.check(&all[0], t.room(kernels.NormThreads)); err != nil {
			return nil, fmt.Errorf("a normalised sum: member %d: %w", i, err)
		}
	}
	return all, nil
}

// check compares with the first member's; room is how many blocks run at once.
func (n *normed) check(first *normed, room int) error {
	last := len(n.in.shape) - 1
	if last < 0 || n.in.dt.IsInt() || !slices.Equal(n.weight.shape, n.in.shape[last:]) {
		return fmt.Errorf("%s%v with weights %v", n.in.dt, n.in.shape, n.weight.shape)
	}
	for k, r := range n.list() {
		if r.dt != first.in.dt || r != &n.weight && !slices.Equal(r.shape, first.in.shape) {
			return fmt.Errorf("operand %d is %s%v where member 0 adds up %s%v", k, r.dt, r.shape, first.in.dt, first.in.shape)
		}
		if !r.dense() || r.addr%16 != 0 {
			return fmt.Errorf("%w: operand %d has gaps, or does not begin at a multiple of 16 bytes", device.ErrUnsupported, k)
		}
	}
	if packs := n.packs(); n.in.shape[last]*n.in.dt.Size() != packs*16 || packs > kernels.NormPacks {
		return fmt.Errorf("%w: rows of %d × %s: they are multiples of 16 bytes, up to %d", device.ErrUnsupported, n.in.shape[last], n.in.dt, 16*kernels.NormPacks)
	}
	// A thread has read its elements of a row before it writes there, and no other
	// thread reads them: results may lie where operands do. Where they lie across them
	// nobody may write before all have read, so all must run at once.
	for _, w := range []*ref{&n.sum, &n.out} {
		for _, r := range n.list() {
			switch operand := r == &n.in || r == &n.residual; {
			case r == w || !r.overlaps(w) || operand && r.same(w):
			case operand && n.rows() <= int64(room):
				n.across = true
			default:
				return fmt.Errorf("%w: a result overlaps the weights or the other result, or some of more rows than run at once", device.ErrUnsupported)
			}
		}
	}
	return nil
}

func (n *normed) rows() int64 { return n.in.n / max(n.weight.n, 1) }

// packs is how many packs of 16 bytes a row has.
func (n *normed) packs() int64 { return n.weight.bytes() / 16 }

func (t *team) PrepareNorm(n *device.Norm) ([]device.Launch, error) {
	defer t.w.alone()()
	all, err := t.worthwhile(n)
	if err != nil {
		return nil, err
	}
	launches := make([]device.Launch, len(all))
	if all[0].in.n == 0 {
		return launches, nil
	}
	steps, err := t.normSteps(n.Eps, all, t.normSplit(all[0].rows(), all[0].packs()))
	if err != nil {
		return nil, fmt.Errorf("a normalised sum: %w", err)
	}
	for i, m := range t.members {
		launches[i] = &launch{dev: m.dev, name: fmt.Sprintf("%s, add and %s", ir.OpAllReduce, ir.OpRMSNorm), steps: []step{steps[i]}, member: m, id: -1}
	}
	return launches, nil
}

// PrepareNormAhead has the compiler begin with the kernel.
func (t *team) PrepareNormAhead(n *device.Norm) {
	t.w.mu.Lock()
	defer t.w.mu.Unlock()
	all, err := t.worthwhile(n)
	if err != nil || all[0].in.n == 0 {
		return
	}
	t.foresee(func() {
		_, _ = t.normSteps(n.Eps, all, t.normSplit(all[0].rows(), all[0].packs())) // PrepareNorm tells of errors
	})
}

// normSplit returns over how many blocks a row is split: several only where all run at
// once.
func (t *team) normSplit(rows, packs int64) int64 {
	split := ceil(packs, kernels.NormThreads)
	if rows > normLimitFor(len(t.members), packs).split || split*rows > int64(t.room(kernels.NormThreads)) {
		return 1
	}
	return split
}

// normSteps returns what each member launches, where rows are split over so many
// blocks.
func (t *team) normSteps(eps float64, all []normed, split int64) ([]step, error) {
	rows := all[0].rows()
	lines, err := t.halves("ll", int64(len(all))*rows*all[0].packs()*kernels.NormLine)
	if err != nil {
		return nil, err
	}
	var read *area
	if slices.ContainsFunc(all, func(n normed) bool { return n.across }) {
		if read, err = t.halves("norm", 4*kernels.BlocksMost); err != nil {
			return nil, err
		}
	}
	blocks := min(rows, max(1, int64(t.room(kernels.NormThreads))/split)) * split
	steps := make([]step, len(all))
	for i, m := range t.members {
		n := &all[i]
		k := kernels.ReduceNorm{DType: n.in.dt, Members: len(all), Rows: int(rows), Packs: n.packs(), Split: int(split), Blocks: int(blocks), Eps: eps,
			In: n.in.addr, Residual: n.residual.addr, Weight: n.weight.addr, Sum: n.sum.addr, Out: n.out.addr, Data: lines.at, Half: lines.bytes / 2}
		if n.across {
			k.Read = read.at[i]
		}
		if steps[i], err = m.kernel(k.Meeting()); err != nil {
			return nil, err
		}
	}
	return steps, nil
}

var _ device.Normalizer = (*team)(nil)
