package lower

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/ir"
)

// This file finds the steps that change the layout of a value on one mesh: the cheapest path through intermediate
// layouts. The search uses only types, not statements. The axes of a dimension are ordered major first, and blocks must
// remain contiguous, so a step can add or remove an axis only at the minor end of a dimension.

type stepKind uint8

const (
	stepCut           stepKind = iota // axes are added to dim: each rank keeps its block
	stepReduceScatter                 // partial axes are reduced and added to dim
	stepExchange                      // axes move from dim to dimension to
	stepAllReduce                     // partial axes are reduced
	stepGather                        // axes are removed from dim
	stepPermute                       // ranks exchange blocks: axes change their positions
)

// step describes one change of a layout.
type step struct {
	kind          stepKind
	axes          []string // major first; for a permute, all axes that change their positions
	dim, to       int
	red           ir.Red
	before, after *ir.Type
}

// planner finds the cheapest steps from one layout to another. The cost of a step is the maximum number of bytes that a
// rank receives, in units of whole tensors.
type planner struct {
	src, dst *ir.Type
	mesh     []string // the mesh's axes, major first
	sizes    map[string]float64
	exact    bool // all sizes are numbers in the text
	permutes bool // stepPermute is allowed
	// divisors[i] is a number that is certain to divide dimension i. divisors is nil if only src and dst give
	// information about divisibility.
	divisors []int64
}

// nominalSize is assumed for the size of an axis that the text leaves open, because choices must not depend on bound
// dims (S20).
const nominalSize = 4

// plan returns the steps from layout src to layout dst on the mesh called at, or nil if the layouts are equal. Every
// partial axis of dst must also be partial in src.
func (at *place) plan(src, dst *ir.Type) []step {
	return at.planner(src, dst).search().steps
}

func (at *place) planner(src, dst *ir.Type) *planner {
	p := &planner{src: src, dst: dst, mesh: at.axisNames(), sizes: map[string]float64{}, exact: true, permutes: at.main}
	for i, ax := range at.axes {
		p.sizes[ax.Name] = nominalSize
		if at.known() {
			p.sizes[ax.Name] = float64(at.sizes[i])
		} else if n, err := ax.Size.Eval(literals{}); err == nil && n > 0 {
			p.sizes[ax.Name] = float64(n)
		} else {
			p.exact = false
		}
	}
	return p
}

// node holds an intermediate layout and the path to it.
type node struct {
	t     *ir.Type
	cost  float64
	steps []step
	done  bool
}

// search returns the cheapest path to dst.
func (p *planner) search() *node {
	nodes := p.settle(func(t *ir.Type) bool { return ir.SameLayout(t, p.dst) })
	if n := nodes[len(nodes)-1]; ir.SameLayout(n.t, p.dst) {
		return n
	}
	return &node{} // unreachable: gathering all dimensions and then cutting them is always possible
}

// settle runs Dijkstra's algorithm. In each step it settles the cheapest remaining layout, until goal holds for that
// layout, and returns the settled layouts, cheapest first. Of paths with equal cost it prefers the path with the fewest
// steps, and then the path that was found first.
func (p *planner) settle(goal func(*ir.Type) bool) []*node {
	nodes := map[string]*node{layoutKey(p.src): {t: p.src.Clone()}}
	order := []*node{nodes[layoutKey(p.src)]}
	var settled []*node
	for {
		var n *node
		for _, x := range order {
			if !x.done && (n == nil || x.before(n)) {
				n = x
			}
		}
		if n == nil {
			return settled
		}
		n.done = true
		settled = append(settled, n)
		if goal(n.t) {
			return settled
		}
		for _, s := range p.moves(n.t) {
			k := layoutKey(s.after)
			s.before = n.t
			next := &node{t: s.after, cost: n.cost + p.cost(&s), steps: append(slices.Clone(n.steps), s)}
			switch old := nodes[k]; {
			case old == nil:
				nodes[k] = next
				order = append(order, next)
			case !old.done && next.before(old):
				*old = *next
			}
		}
	}
}

func (n *node) before(m *node) bool {
	const equal = 1e-9
	switch d := n.cost - m.cost; {
	case d < -equal:
		return true
	case d > equal:
		return false
	}
	return len(n.steps) < len(m.steps)
}

// layoutKey returns a map key for a layout.
func layoutKey(t *ir.Type) string {
	var b strings.Builder
	for _, d := range t.Dims {
		fmt.Fprint(&b, d.Axes, ";")
	}
	owed := slices.Clone(t.Partial)
	slices.SortFunc(owed, func(a, b ir.Partial) int { return cmp.Compare(a.Axis, b.Axis) })
	fmt.Fprint(&b, owed)
	return b.String()
}

// cost returns the maximum number of bytes that a rank receives in a step, in units of whole tensors.
func (p *planner) cost(s *step) float64 {
	n := p.parts(s.axes)
	switch s.kind {
	case stepCut:
		return 0
	case stepReduceScatter, stepExchange:
		return p.share(s.after, s.kind == stepReduceScatter, n)
	case stepAllReduce:
		return 2 * p.held(s.after) * (n - 1) / n
	case stepGather:
		return p.held(s.after) * (n - 1) / n
	}
	return p.held(s.after)
}

// share returns the cost of a reduce_scatter, in which a rank receives n-1 blocks, or of an all_to_all, in which a rank
// receives (n-1)/n of a block.
func (p *planner) share(after *ir.Type, reduces bool, n float64) float64 {
	if reduces {
		return p.held(after) * (n - 1)
	}
	return p.held(after) * (n - 1) / n
}

// held returns the fraction of the whole tensor that a rank holds.
func (p *planner) held(t *ir.Type) float64 {
	h := 1.0
	for _, d := range t.Dims {
		h /= p.parts(d.Axes)
	}
	return h
}

func (p *planner) parts(axes []string) float64 {
	n := 1.0
	for _, a := range axes {
		n *= p.sizes[a]
	}
	return n
}

// moves returns the steps that are possible from t. Steps that make the value smaller are first.
func (p *planner) moves(t *ir.Type) []step {
	var out []step
	for i := range t.Dims {
		out = append(out, p.cuts(t, i)...)
	}
	for i := range t.Dims {
		out = append(out, p.scatters(t, i)...)
	}
	for i := range t.Dims {
		out = append(out, p.exchanges(t, i)...)
	}
	out = append(out, p.reductions(t)...)
	for i := range t.Dims {
		out = append(out, p.gathers(t, i)...)
	}
	if p.permutes {
		out = append(out, p.trades(t)...)
	}
	return out
}

// allowed reports whether dimension i is certain to be divisible by the product of the sizes of axes. allowed returns
// true if src or dst splits the dimension over these axes or over more, or if the text shows it by numbers.
func (p *planner) allowed(i int, axes []string) bool {
	if subset(axes, p.src.Dims[i].Axes) || subset(axes, p.dst.Dims[i].Axes) {
		return true
	}
	if p.divisors != nil && p.divisors[i]%int64(p.parts(axes)) == 0 {
		return true
	}
	extent := p.src.Dims[i].Extent
	return p.exact && extent.Kind == ir.ExprInt && extent.Val%int64(p.parts(axes)) == 0
}

func subset(a, b []string) bool {
	return !slices.ContainsFunc(a, func(x string) bool { return !slices.Contains(b, x) })
}

// red returns the reduction by which t is partial over axis.
func red(t *ir.Type, axis string) ir.Red {
	for _, q := range t.Partial {
		if q.Axis == axis {
			return q.Red
		}
	}
	return ir.NoRed
}

// onDim reports whether a dimension of t is split over axis.
func onDim(t *ir.Type, axis string) bool {
	return slices.ContainsFunc(t.Dims, func(d ir.Dimension) bool { return slices.Contains(d.Axes, axis) })
}

// appended returns t with axes added at the minor end of dimension i.
func appended(t *ir.Type, i int, axes []string) *ir.Type {
	u := t.Clone()
	u.Dims[i].Axes = append(u.Dims[i].Axes, axes...)
	return u
}

// cuts returns the steps that append to dimension i any axes, in any order, that t is neither split nor partial over.
func (p *planner) cuts(t *ir.Type, i int) []step {
	free := func(a string) bool { return red(t, a) == ir.NoRed && !onDim(t, a) }
	var out []step
	for _, axes := range p.arrangements(i, t, free) {
		out = append(out, step{kind: stepCut, dim: i, axes: axes, after: appended(t, i, axes)})
	}
	return out
}

// scatters returns the steps that append to dimension i partial axes of one reduction.
func (p *planner) scatters(t *ir.Type, i int) []step {
	var out []step
	for _, r := range reds(t) {
		for _, axes := range p.arrangements(i, t, func(a string) bool { return red(t, a) == r }) {
			u := appended(t, i, axes)
			u.Partial = slices.DeleteFunc(u.Partial, func(q ir.Partial) bool { return slices.Contains(axes, q.Axis) })
			out = append(out, step{kind: stepReduceScatter, dim: i, axes: axes, red: r, after: u})
		}
	}
	return out
}

// reds returns the reductions by which t is partial, each once.
func reds(t *ir.Type) []ir.Red {
	var out []ir.Red
	for _, q := range t.Partial {
		if !slices.Contains(out, q.Red) {
			out = append(out, q.Red)
		}
	}
	return out
}

// arrangements returns ordered selections of axes, longest first. The selections contain only axes for which ok holds,
// and over which dimension i of t may be split in addition.
func (p *planner) arrangements(i int, t *ir.Type, ok func(string) bool) [][]string {
	var out [][]string
	var grow func(have []string)
	grow = func(have []string) {
		for _, a := range p.mesh {
			next := append(slices.Clone(have), a)
			if slices.Contains(have, a) || !ok(a) || !p.allowed(i, append(slices.Clone(t.Dims[i].Axes), next...)) {
				continue
			}
			out = append(out, next)
			grow(next)
		}
	}
	grow(nil)
	slices.SortStableFunc(out, func(a, b []string) int { return cmp.Compare(len(b), len(a)) })
	return out
}

// exchanges returns the steps that move the minor axes of dimension i to the minor end of another dimension.
func (p *planner) exchanges(t *ir.Type, i int) []step {
	var out []step
	axes := t.Dims[i].Axes
	for k := range axes {
		run := slices.Clone(axes[k:])
		for j := range t.Dims {
			if j == i || !p.allowed(j, append(slices.Clone(t.Dims[j].Axes), run...)) {
				continue
			}
			u := appended(t, j, run)
			u.Dims[i].Axes = u.Dims[i].Axes[:k]
			out = append(out, step{kind: stepExchange, dim: i, to: j, axes: run, after: u})
		}
	}
	return out
}

// reductions returns the steps that reduce partial axes. Each step reduces several axes with the same reduction at
// once, so that the sum is rounded once. The reduced axes are those that are whole in dst, or all axes that are not
// partial in dst.
func (p *planner) reductions(t *ir.Type) []step {
	var out []step
	for _, r := range reds(t) {
		owed := func(a string) bool {
			return red(t, a) == r && !slices.Contains(p.dst.Partial, ir.Partial{Axis: a, Red: r})
		}
		all := filter(p.mesh, owed)
		whole := filter(all, func(a string) bool { return !onDim(p.dst, a) })
		runs := [][]string{whole, all}
		if len(all) == len(whole) {
			runs = runs[:1]
		}
		for _, run := range runs {
			if len(run) == 0 {
				continue
			}
			u := t.Clone()
			u.Partial = slices.DeleteFunc(u.Partial, func(q ir.Partial) bool { return slices.Contains(run, q.Axis) })
			out = append(out, step{kind: stepAllReduce, axes: run, red: r, after: u})
		}
	}
	return out
}

// filter returns the elements of axes for which ok holds.
func filter(axes []string, ok func(string) bool) []string {
	var out []string
	for _, a := range axes {
		if ok(a) {
			out = append(out, a)
		}
	}
	return out
}

// gathers returns the steps that remove minor axes from dimension i.
func (p *planner) gathers(t *ir.Type, i int) []step {
	var out []step
	axes := t.Dims[i].Axes
	for k := range axes {
		u := t.Clone()
		u.Dims[i].Axes = u.Dims[i].Axes[:k]
		out = append(out, step{kind: stepGather, dim: i, axes: slices.Clone(axes[k:]), after: u})
	}
	return out
}
