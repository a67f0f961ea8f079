package verify

import (
	"slices"

	"hocket.example/hocket/internal/plan"
)

// rotation is how a translation acts on numbers 0, 1, … (bytes of a buffer, elements
// of a counter): they fall into periods of size·step, each of as many steps as the axis is
// long, and a translation by c along the axis turns each period by c steps.
type rotation struct {
	axis       int
	step, size int64
}

func (r *rotation) period() int64 { return r.step * r.size }

// rotations act one behind the other. Settled ones commute: the period of each
// divides the step of the next.
type rotations []rotation

// guess returns the rotation that takes from to to when the translation is one
// step along an axis.
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

// settle sorts rotations; false when they do not commute, or do not fit what
// has n numbers.
func (rs rotations) settle(n int64) bool {
	slices.SortFunc(rs, func(a, b rotation) int { return compare3(a.step, b.step) })
	for i := range rs {
		if n%rs[i].period() != 0 || i > 0 && rs[i].step%rs[i-1].period() != 0 {
			return false
		}
	}
	return true
}

// turn returns where number x goes by translation t, or comes from with sign -1.
func (rs rotations) turn(g *grid, x int64, t, sign int32) int64 {
	for i := range rs {
		r := &rs[i]
		p := r.period()
		by := int64(sign*g.coord[r.axis][t]) * r.step
		x += ((x%p+by)%p+p)%p - x%p
	}
	return x
}

// movers returns those of a buffer's rotations that move a tensor in it; the
// others leave the set of its bytes as it is. False where one does neither: then
// the tensor's bytes, turned, are those of no tensor of the same shape.
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

// Ways in which a rotation acts on a set of bytes.
const (
	breaks = iota // in none of these
	keeps         // the set is the same
	moves         // the set is within one step, and so goes as a whole
)

// acts says how a rotation acts on the bytes of a region that begins at off of
// its buffer. The region's runs, repeated at rising strides, are gone through until
// they fill whole periods (the set is kept), or the next stride is a whole period or
// more (the set is moved, if it stays within one step).
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
			// All steps, each in the same places: where p is whole strides, each
			// of them within one, and n strides are whole periods.
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
