package lower

import (
	"slices"

	"hocket.example/hocket/ir"
)

// This file decides by which steps a value changes its layout on one mesh. It
// knows nothing of statements. Blocks are contiguous and a dimension's axes are
// major first, so an axis can only come and go at the minor end of a dimension.

type stepKind uint8

const (
	stepCut           stepKind = iota // axes appear on dim: each rank keeps its block
	stepReduceScatter                 // partial axes appear on dim
	stepExchange                      // axes move from dim to dimension to
	stepAllReduce                     // partial axes become whole
	stepGather                        // axes disappear from dim
)

// step changes a layout once.
type step struct {
	kind    stepKind
	axes    []string // major first
	dim, to int
	red     ir.Red
	after   *ir.Type
}

// planner goes from cur to dst. A step is taken where it can be, in the order
// of what makes the value smaller first, so that what moves later is less.
type planner struct {
	cur, dst *ir.Type
	mesh     []string // the mesh's axes, major first
	steps    []step
}

// plan returns the steps from layout src to layout dst of one mesh; none where
// they are the same. dst's partials must be among src's.
//
// It ends: cut, reduce-scatter and exchange put axes where they belong and
// nothing moves them again, a gather removes one that stands where it does not
// belong, and where none does, the next axis of any dimension is free or partial.
func plan(src, dst *ir.Type, mesh []string) []step {
	p := &planner{cur: src.Clone(), dst: dst, mesh: mesh}
	for p.cut() || p.reduceScatter() || p.exchange() || p.allReduce() || p.gather() {
	}
	return p.steps
}

// settled returns how many axes of dimension i already are where dst has them.
func (p *planner) settled(i int) int {
	have, want := p.cur.Dims[i].Axes, p.dst.Dims[i].Axes
	n := 0
	for n < len(have) && n < len(want) && have[n] == want[n] {
		n++
	}
	return n
}

// missing returns the axes that dimension i can take on now; nil where others
// must leave it first.
func (p *planner) missing(i int) []string {
	if n := p.settled(i); n == len(p.cur.Dims[i].Axes) {
		return p.dst.Dims[i].Axes[n:]
	}
	return nil
}

// astray returns the axes of dimension i that must leave it.
func (p *planner) astray(i int) []string { return p.cur.Dims[i].Axes[p.settled(i):] }

// red returns the reduction cur still owes over axis.
func (p *planner) red(axis string) ir.Red {
	for _, q := range p.cur.Partial {
		if q.Axis == axis {
			return q.Red
		}
	}
	return ir.NoRed
}

// onDim returns whether a dimension of t is split over axis.
func onDim(t *ir.Type, axis string) bool {
	return slices.ContainsFunc(t.Dims, func(d ir.Dimension) bool { return slices.Contains(d.Axes, axis) })
}

// prefix returns the longest run of axes from the first on for which ok holds.
func prefix(axes []string, ok func(string) bool) []string {
	n := 0
	for n < len(axes) && ok(axes[n]) {
		n++
	}
	return axes[:n]
}

func (p *planner) cut() bool {
	for i := range p.cur.Dims {
		run := prefix(p.missing(i), func(a string) bool { return p.red(a) == ir.NoRed && !onDim(p.cur, a) })
		if len(run) > 0 {
			p.add(i, run)
			p.push(step{kind: stepCut, dim: i, axes: run})
			return true
		}
	}
	return false
}

func (p *planner) reduceScatter() bool {
	for i := range p.cur.Dims {
		axes := p.missing(i)
		if len(axes) == 0 || p.red(axes[0]) == ir.NoRed {
			continue
		}
		red := p.red(axes[0])
		run := prefix(axes, func(a string) bool { return p.red(a) == red })
		p.add(i, run)
		p.reduce(run)
		p.push(step{kind: stepReduceScatter, dim: i, axes: run, red: red})
		return true
	}
	return false
}

func (p *planner) exchange() bool {
	for i := range p.cur.Dims {
		astray := p.astray(i)
		for k := range astray {
			run := slices.Clone(astray[k:])
			for j := range p.cur.Dims {
				want := p.missing(j)
				if j == i || len(want) < len(run) || !slices.Equal(want[:len(run)], run) {
					continue
				}
				p.drop(i, len(run))
				p.add(j, run)
				p.push(step{kind: stepExchange, dim: i, to: j, axes: run})
				return true
			}
		}
	}
	return false
}

// allReduce reduces what dst has whole, all axes of one reduction at once, so
// that the sum is rounded once.
func (p *planner) allReduce() bool {
	red := ir.NoRed
	var run []string
	for _, a := range p.mesh {
		r := p.red(a)
		if r == ir.NoRed || onDim(p.dst, a) || slices.Contains(p.dst.Partial, ir.Partial{Axis: a, Red: r}) {
			continue
		}
		if red == ir.NoRed {
			red = r
		}
		if r == red {
			run = append(run, a)
		}
	}
	if len(run) == 0 {
		return false
	}
	p.reduce(run)
	p.push(step{kind: stepAllReduce, axes: run, red: red})
	return true
}

// gather takes the minor-most axis off a dimension; those first that dst has
// nowhere, because the others may find another way once these are gone.
func (p *planner) gather() bool {
	at := -1
	for i := range p.cur.Dims {
		astray := p.astray(i)
		if len(astray) == 0 {
			continue
		}
		if !onDim(p.dst, astray[len(astray)-1]) {
			at = i
			break
		}
		if at < 0 {
			at = i
		}
	}
	if at < 0 {
		return false
	}
	astray := p.astray(at)
	axis := astray[len(astray)-1]
	p.drop(at, 1)
	p.pushGather(at, axis)
	return true
}

// pushGather joins neighbouring gathers of one dimension: the later axis is
// the major one.
func (p *planner) pushGather(dim int, axis string) {
	if n := len(p.steps); n > 0 && p.steps[n-1].kind == stepGather && p.steps[n-1].dim == dim {
		last := &p.steps[n-1]
		last.axes = append([]string{axis}, last.axes...)
		last.after = p.cur.Clone()
		return
	}
	p.push(step{kind: stepGather, dim: dim, axes: []string{axis}})
}

func (p *planner) push(s step) {
	s.after = p.cur.Clone()
	p.steps = append(p.steps, s)
}

func (p *planner) add(dim int, axes []string) {
	d := &p.cur.Dims[dim]
	d.Axes = append(slices.Clone(d.Axes), axes...)
}

func (p *planner) drop(dim, n int) {
	d := &p.cur.Dims[dim]
	d.Axes = d.Axes[:len(d.Axes)-n]
}

// reduce drops the partials of axes.
func (p *planner) reduce(axes []string) {
	p.cur.Partial = slices.DeleteFunc(p.cur.Partial, func(q ir.Partial) bool { return slices.Contains(axes, q.Axis) })
}
