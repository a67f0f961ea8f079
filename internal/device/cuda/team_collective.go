package cuda

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/ir"
)

// collective is a device.Collective whose views are resolved.
type collective struct {
	*device.Collective
	parts []part // of each member
}

// part is what one member brings.
type part struct {
	in, out       strided.View
	reads, writes bool
}

// resolve checks that views are the members' own memory, of one type, and that
// no result names an element twice. What the op asks of their shapes is the
// caller's to check.
func (t *team) resolve(c *device.Collective) (*collective, error) {
	if len(c.Parts) != len(t.members) {
		return nil, fmt.Errorf("%d parts for %d members", len(c.Parts), len(t.members))
	}
	r := &collective{Collective: c}
	dt := ir.InvalidDType
	for i, m := range t.members {
		p := part{reads: c.Parts[i].Reads, writes: c.Parts[i].Writes}
		for _, side := range []struct {
			there bool
			v     device.View
			r     *strided.View
		}{{p.reads, c.Parts[i].In, &p.in}, {p.writes, c.Parts[i].Out, &p.out}} {
			if !side.there {
				continue
			}
			var err error
			if *side.r, err = m.dev.resolve(side.v, false); err != nil {
				return nil, fmt.Errorf("member %d: %w", i, err)
			}
			if dt == ir.InvalidDType {
				dt = side.r.DType
			}
			if side.r.DType != dt {
				return nil, fmt.Errorf("member %d: %s among %s", i, side.r.DType, dt)
			}
			side.r.Detach()
		}
		if p.writes && p.out.NamesTwice() {
			return nil, fmt.Errorf("member %d: the result names some element twice", i)
		}
		r.parts = append(r.parts, p)
	}
	return r, nil
}

// empty reports whether there is nothing to move.
func (c *collective) empty() bool {
	return c.Op != ir.OpBarrier && !slices.ContainsFunc(c.parts, func(p part) bool { return p.reads && p.in.N > 0 || p.writes && p.out.N > 0 })
}
