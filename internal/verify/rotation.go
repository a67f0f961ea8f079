package verify

import (
	"slices"

	"hocket.example/hocket/internal/plan"
)

// rotation describes how a translation of ranks along an axis permutes the numbers 0, 1, …, which are the bytes of
// a buffer or the elements of a counter. The numbers are divided into periods of size·step numbers, where size is
// the size of the axis. Each period is divided into size steps. A translation by c along the axis rotates each
// period by c steps.
type rotation struct {
	axis       int
	step, size int64
}

func (r *rotation) period() int64 { return r.step * r.size }

// rotations are applied one after the other. Settled rotations commute: the period of each divides the step of the
// next.
type rotations []rotation

// guessed returns the rotation that takes the number from to the number to for a translation by one step along an axis.
func guessed(axis int, size, from, to int64) (rotation, bool) {
	step := to - from
	if step < 0 {
		if step = -step; step%(size-1) != 0 {
			return rotation{}, false
		}
		step /= size - 1
	}
	return rotation{axis, step, size}, step > 0
}

// settle sorts rotations by step. It returns false if they do not commute, or if a period does not divide n, the number
// of bytes or elements.
func (rs rotations) settle(n int64) bool {
	slices.SortFunc(rs, func(a, b rotation) int { return compare3(a.step, b.step) })
	for i := range rs {
		if n%rs[i].period() != 0 || i > 0 && rs[i].step%rs[i-1].period() != 0 {
			return false
		}
	}
	return true
}

// turn returns the number to which translation t takes x or, if sign is -1, the number that t takes to x.
func (rs rotations) turn(g *grid, x int64, t, sign int32) int64 {
	for i := range rs {
		r := &rs[i]
		p := r.period()
		by := int64(sign*g.coord[r.axis][t]) * r.step
		x += ((x%p+by)%p+p)%p - x%p
	}
	return x
}

// movers returns those rotations of a buffer that move a tensor in it as a whole. The other rotations must map the
// set of the tensor's bytes to itself. If a rotation does neither, movers returns false: the rotated bytes are then
// not those of a tensor of the same shape.
func (rs rotations) movers(p *plan.Plan, ref *plan.Ref) (moving rotations, ok bool) {
	if len(rs) == 0 {
		return nil, true
	}
	g, some := regionOf(p, ref)
	if !some {
		return nil, ref.Off == 0 // an empty tensor has no bytes
	}
	if g.rough {
		return nil, false
	}
	off := g.off - p.Buffers[ref.Buf].Offset
	for i := range rs {
		switch rs[i].acts(&g, off) {
		case moves:
			moving = append(moving, rs[i])
		case breaks:
			return nil, false
		}
	}
	return moving, true
}

// These constants are the ways in which a rotation can act on a set of bytes.
const (
	breaks = iota // neither of the following
	keeps         // the set is mapped to itself
	moves         // the set lies within one step, so it is moved as a whole
)

// acts determines how a rotation acts on the bytes of a region that begins at offset off of its buffer. It examines the
// region's runs, which repeat with increasing strides. If the runs fill whole periods, the rotation maps the set to
// itself. If the next stride is a whole period or more, the rotation moves the set, provided that the set lies within
// one step.
func (r *rotation) acts(g *region, off int64) int {
	p := r.period()
	width := g.run
	full := false
	if width >= p {
		if width%p != 0 || off%p != 0 {
			return breaks
		}
		full = true
	}
	for i, n := range g.n {
		s := g.str[i]
		switch {
		case n <= 1 || s%p == 0:
		case full || s > r.step:
			return breaks
		case n*s >= p:
			// The set has the same bytes in every step if each step consists of whole strides, n strides are whole periods, and
			// the part that is repeated lies within one stride.
			if r.step%s != 0 || n*s%p != 0 || off%p+width > s {
				return breaks
			}
			full = true
		default:
			width += (n - 1) * s
		}
	}
	switch {
	case full:
		return keeps
	case off%r.step+width <= r.step:
		return moves
	}
	return breaks
}
