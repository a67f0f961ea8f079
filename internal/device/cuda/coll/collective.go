package coll

import (
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/ir"
)

// Collective is a device.Collective whose views are resolved to addresses.
type Collective struct {
	*device.Collective
	Operands []Part // by member
}

// Part holds the operands of one member.
type Part struct {
	In, Out       strided.View
	Reads, Writes bool
}

// Empty reports whether the collective moves no elements.
func (c *Collective) Empty() bool {
	return c.Op != ir.OpBarrier && !slices.ContainsFunc(c.Operands, func(p Part) bool { return p.Reads && p.In.N > 0 || p.Writes && p.Out.N > 0 })
}

// Whole is the axis of an operand that is not split into blocks.
const Whole = -1 << 31

// InAxis returns the dimension along which inputs are split into blocks.
func InAxis(c *Collective) int {
	switch c.Op {
	case ir.OpReduceScatter, ir.OpScatter:
		return c.Axis
	case ir.OpAllToAll:
		return c.Split
	}
	return Whole
}

// OutAxis returns the dimension along which received blocks are joined to the result.
func OutAxis(c *Collective) int {
	switch c.Op {
	case ir.OpAllGather, ir.OpGather, ir.OpAllToAll:
		return c.Axis
	}
	return Whole
}
