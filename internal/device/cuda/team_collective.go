package cuda

import (
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

// empty reports whether there is nothing to move.
func (c *collective) empty() bool {
	return c.Op != ir.OpBarrier && !slices.ContainsFunc(c.parts, func(p part) bool { return p.reads && p.in.N > 0 || p.writes && p.out.N > 0 })
}
