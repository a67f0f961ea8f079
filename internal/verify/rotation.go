package verify

import (
	"slices"

	"hocket.example/hocket/internal/plan"
)

// rotation describes how a translation of ranks along an axis permutes the numbers 0, 1, …, which are the bytes of a
// buffer or the elements of a counter. The numbers are divided into periods of size·step consecutive numbers, where
// size is the size of the axis. Each period is divided into size steps. A translation by c along the axis rotates each
// period by c steps.
type rotation struct {
	axis       int
	step, size int64
}

func (r *rotation) period() int64 { return r.step * r.size }

// rotations is a list of rotations that are applied one after the other. After the method settle has returned true,
// they commute: the period of each divides the step of the next.
type rotations []rotation

// guessed returns the rotation that maps one given number to another if ranks are translated by one step along an axis.
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

// settle sorts rotations by step. The result is false if the rotations do not commute, or if a period does not divide
// n, the number of bytes or elements.
func (rs rotations) settle(n int64) bool {
	slices.SortFunc(rs, func(a, b rotation) int { return compare3(a.step, b.step) })
	for i := range rs {
		if n%rs[i].period() != 0 || i > 0 && rs[i].step%rs[i-1].period() != 0 {
			return false
		}
	}
	return true
}

// turn returns the number to which translation t maps x or, if sign is -1, the number that t maps to x.
func (rs rotations) turn(g *grid, x int64, t, sign int32) int64 {
	for i := range rs {
		r := &rs[i]
		p := r.period()
		by := int64(sign*g.coord[r.axis][t]) * r.step
		x += ((x%p+by)%p+p)%p - x%p
	}
	return x
}

// movers returns those rotations of a buffer that move a tensor in the buffer as a whole. All other rotations must map
// the set of the tensor's bytes to itself. Otherwise movers returns false, because the rotated bytes are not those of a
// tensor of the same shape.
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

// These constants are the possible effects of a rotation on a set of bytes.
const (
	breaks = iota // neither of the following
	keeps         // the set of bytes is mapped to itself
	moves         // the set of bytes lies within one step, so it is moved as a whole
)

// acts determines how a rotation acts on the bytes of a region that begins at offset off of its buffer. It examines the
// region's intervals of bytes, which repeat with increasing strides. If the intervals fill whole periods of the
// rotation, the rotation maps the region to itself. If the next stride is a multiple of the period, the rotation moves
// the region as a whole, provided that its bytes lie within one step of each period.
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
			// The region has the same bytes in every step if a step is a multiple of the stride, n strides are a
			// multiple of the period, and the part that is repeated lies within one stride.
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
