// Package contents checks the contents of integer inputs before a run begins: ids of embedding and index_add, indices
// of take_along, positions of index_copy, lengths of attention, and counts of grouped_linear and of uneven collectives.
// Kernels check these values too, but only when other kernels may already have updated state.
//
// The function Of follows each integer operand of such an op through views, casts and copies on its rank to the input
// that contains it. Operands that are computed, or received from another rank, are not checked.
package contents

import (
	"encoding/binary"
	"fmt"
	"slices"

	"hocket.example/hocket/fault"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// Check checks some elements of one rank's block of an input.
type Check struct {
	Input, Part int // index of the input in the plan, and of the part in the input
	Rank        int
	Cmd         int // the first command that requires the check
	Op          ir.Op
	limit       limit
	at          []int64 // indices of the elements in the block
	casts       []ir.DType
	io          *plan.IO
	where       string
}

// limit describes the values that an op accepts.
type limit struct {
	low, high int64
	row       int64 // length of a row in which a value other than -1 may not occur twice; 0 if values may repeat
	most      int64 // largest sum of all elements; negative for no limit
	own       int   // index of the element whose limit is ownHigh; negative if there is none
	ownHigh   int64
}

// Of returns the checks of a plan's inputs for all ranks. The inputs have no absent blocks.
func Of(p *plan.Plan, inputs []plan.IO) []*Check {
	f := &finder{p: p, inputs: inputs}
	var checks []*Check
	known := map[string]bool{}
	for i := range p.Cmds {
		ref, l, ok := wants(p, &p.Cmds[i])
		if !ok {
			continue
		}
		if f.writers == nil {
			f.study()
		}
		key := fmt.Sprint(ref, l, len(f.before(i, ref))) // unrolled loops contain many commands with equal checks
		if known[key] {
			continue
		}
		known[key] = true
		if c := f.find(i, ref); c != nil {
			c.Cmd, c.Op, c.limit, c.where = i, opOf(p, &p.Cmds[i]), l, p.Where(int64(i))
			checks = append(checks, c)
		}
	}
	return checks
}

func opOf(p *plan.Plan, c *plan.Cmd) ir.Op {
	if c.Kind == plan.Collective {
		return p.Colls[c.Coll].Op
	}
	return c.Op
}

// wants returns the operand of a command whose contents are limited, and the limit; ok is false if there is none.
func wants(p *plan.Plan, c *plan.Cmd) (ref plan.Ref, l limit, ok bool) {
	l = limit{most: -1, own: -1}
	switch {
	case c.Kind == plan.Collective:
		part := &p.Colls[c.Coll].Parts[c.Part]
		if len(part.Counts) == 0 || !part.In.Present() || !part.Out.Present() {
			return ref, l, false
		}
		coll := &p.Colls[c.Coll]
		held, room := part.In.Shape[coll.Axis], part.Out.Shape[coll.Axis]
		l.high, l.most = max(held, room)+1, held
		if coll.Op == ir.OpAllGatherV {
			l.most, l.own, l.ownHigh = room, int(c.Part), held+1
		} else if coll.Op == ir.OpReduceScatterV {
			l.own, l.ownHigh = int(c.Part), room+1
		}
		return part.Counts[0], l, true
	case c.Kind != plan.Compute:
		return ref, l, false
	case c.Op == ir.OpEmbedding:
		l.high = c.Attr.Rows
		return c.Ins[0], l, true
	case c.Op == ir.OpIndexAdd:
		l.low, l.high = -1, c.Attr.Rows
		return c.Ins[1], l, true
	case c.Op == ir.OpGroupedLinear:
		l.most = c.Ins[0].Shape[0]
		l.high = l.most + 1
		return c.Ins[2], l, true
	case c.Op == ir.OpTakeAlong:
		rows := c.Ins[0].Shape
		l.high = rows[len(rows)-1]
		return c.Ins[1], l, true
	case c.Op == ir.OpIndexCopy:
		axis := c.Attr.Axes[0]
		l.low, l.high, l.row = -1, c.Outs[0].Shape[axis], c.Ins[0].Shape[axis]
		return c.Ins[1], l, true
	case c.Op == ir.OpAttention && len(c.Ins) > 3 && c.Ins[3].DType.IsInt():
		keys := c.Ins[1].Shape
		l.high = keys[len(keys)-3] + 1
		return c.Ins[3], l, true
	}
	return ref, l, false
}

// buffer identifies one rank's part of a buffer.
type buffer struct{ rank, buf int32 }

// finder finds the input of which an operand is a view or copy.
type finder struct {
	p      *plan.Plan
	inputs []plan.IO
	// by buffer: the commands, except Input, that write to it, in order; nil before the call of study
	writers map[buffer][]int
	blocks  map[buffer][2]int // by buffer: indices of the input, and of the input's part, that it contains
}

// study records which commands and inputs write each buffer.
func (f *finder) study() {
	f.writers, f.blocks = map[buffer][]int{}, map[buffer][2]int{}
	for i := range f.inputs {
		for k, part := range f.inputs[i].Parts {
			f.blocks[buffer{part.Ref.Rank, part.Ref.Buf}] = [2]int{i, k}
		}
	}
	for i := range f.p.Cmds {
		c := &f.p.Cmds[i]
		if c.Kind == plan.Input {
			continue
		}
		_, writes := f.p.Accesses(c)
		for _, w := range writes {
			b := buffer{w.Rank, w.Buf}
			f.writers[b] = append(f.writers[b], i)
		}
	}
}

// find returns a check of the elements that a command reads. It returns nil if the elements are computed.
func (f *finder) find(cmd int, ref plan.Ref) *Check {
	c := &Check{Rank: int(ref.Rank), at: offsets(ref)}
	dtype := ref.DType
	for {
		before := f.before(cmd, ref)
		for len(before) > 0 && !f.writes(before[len(before)-1], ref) {
			before = before[:len(before)-1]
		}
		if len(before) == 0 {
			return f.ofInput(c, ref, dtype)
		}
		cmd = before[len(before)-1]
		by := &f.p.Cmds[cmd]
		passes := by.Kind == plan.Copy || by.Kind == plan.Compute && by.Op == ir.OpCast
		if !passes || len(by.Ins) != 1 || len(by.Outs) != 1 || by.Ins[0].Rank != by.Outs[0].Rank ||
			!by.Ins[0].DType.IsInt() || !by.Outs[0].Dense() || by.Outs[0].DType != dtype {
			return nil
		}
		out, in := by.Outs[0], offsets(by.Ins[0])
		for i, off := range c.at {
			k := (off - out.Off) / dtype.Size()
			if k < 0 || k >= int64(len(in)) {
				return nil // another command has written the other elements
			}
			c.at[i] = in[k]
		}
		ref = by.Ins[0]
		if ref.DType != dtype {
			c.casts = append(c.casts, dtype)
			dtype = ref.DType
		}
	}
}

// before returns those commands before cmd that write to the buffer of ref.
func (f *finder) before(cmd int, ref plan.Ref) []int {
	all := f.writers[buffer{ref.Rank, ref.Buf}]
	n, _ := slices.BinarySearch(all, cmd)
	return all[:n]
}

// writes reports whether a command writes bytes of ref.
func (f *finder) writes(cmd int, ref plan.Ref) bool {
	_, writes := f.p.Accesses(&f.p.Cmds[cmd])
	return slices.ContainsFunc(writes, ref.Overlaps)
}

// ofInput completes the check c with the elements at the given offsets in the buffer of ref. It returns nil if the
// buffer does not contain an input.
func (f *finder) ofInput(c *Check, ref plan.Ref, dtype ir.DType) *Check {
	at, ok := f.blocks[buffer{ref.Rank, ref.Buf}]
	if !ok {
		return nil
	}
	c.Input, c.Part, c.io = at[0], at[1], &f.inputs[at[0]]
	block := c.io.Parts[c.Part].Ref
	if !block.Dense() || block.DType != dtype {
		return nil
	}
	for i := range c.at {
		c.at[i] = (c.at[i] - block.Off) / dtype.Size()
		if c.at[i] < 0 || c.at[i] >= block.Elements() {
			return nil
		}
	}
	return c
}

// offsets returns the byte positions of ref's elements in its buffer.
func offsets(ref plan.Ref) []int64 {
	out := []int64{ref.Off}
	for d, extent := range ref.Shape {
		next := make([]int64, 0, int64(len(out))*extent)
		for _, off := range out {
			for i := range extent {
				next = append(next, off+i*ref.Strides[d]*ref.DType.Size())
			}
		}
		out = next
	}
	return out
}

// Wrong returns an InputError if the block with the given bytes has an invalid element, and otherwise nil. If whole is
// set, the index in the error is an index in the global tensor.
func (c *Check) Wrong(block []byte, whole bool) *fault.InputError {
	l := &c.limit
	sum, first := int64(0), map[int64]int{}
	for i := range c.at {
		v, high := c.value(block, i), l.high
		if i == l.own {
			high = l.ownHigh
		}
		if v < l.low || v >= high {
			return c.wrong(i, v, high, whole, "")
		}
		if sum += v; l.most >= 0 && sum > l.most {
			return c.wrong(i, v, high, whole, fmt.Sprintf("the counts up to this one add up to %d rows, but the operand has %d", sum,
				l.most))
		}
		if l.row < 2 || v == -1 {
			continue
		}
		if int64(i)%l.row == 0 {
			clear(first)
		}
		if other, twice := first[v]; twice {
			return c.wrong(i, v, high, whole, fmt.Sprintf("element %v has the same position", c.index(other, whole)))
		}
		first[v] = i
	}
	return nil
}

// value returns element i as the op reads it.
func (c *Check) value(block []byte, i int) int64 {
	var v int64
	if c.io.DType == ir.I64 {
		v = int64(binary.LittleEndian.Uint64(block[8*c.at[i]:]))
	} else {
		v = int64(int32(binary.LittleEndian.Uint32(block[4*c.at[i]:])))
	}
	if slices.Contains(c.casts, ir.I32) {
		v = int64(int32(v))
	}
	return v
}

// index returns the position of element i in the block, or, if whole is set, in the global tensor.
func (c *Check) index(i int, whole bool) []int64 {
	part := &c.io.Parts[c.Part]
	at, index := c.at[i], make([]int64, len(part.Ref.Shape))
	for d := len(index) - 1; d >= 0; d-- {
		index[d] = at % part.Ref.Shape[d]
		at /= part.Ref.Shape[d]
		if whole {
			index[d] += part.Lo[d]
		}
	}
	return index
}

func (c *Check) wrong(i int, v, high int64, whole bool, why string) *fault.InputError {
	return &fault.InputError{Param: c.io.Name, Rank: c.Rank, Index: c.index(i, whole), Value: v, Low: c.limit.low,
		High: high, Why: why, Where: c.where}
}

// Same reports whether two checks have the same limits for the same elements of their ranks' blocks.
func (c *Check) Same(o *Check) bool {
	return c.Input == o.Input && c.limit == o.limit && slices.Equal(c.casts, o.casts) && slices.Equal(c.at, o.at)
}

// Forget makes the check accept every element.
func (c *Check) Forget() { c.at = nil }

// Name returns the name of the input.
func (c *Check) Name() string { return c.io.Name }

// Met returns the error about an element of the checked operand that a kernel has refused. element is the element's
// index in the operand; negative if unknown.
func (c *Check) Met(element, value int64, text string) *fault.InputError {
	e := &fault.InputError{Param: c.io.Name, Rank: c.Rank, Value: value, Low: c.limit.low, High: c.limit.high,
		Where: c.where, Begun: true}
	if element >= 0 && element < int64(len(c.at)) {
		e.Index = c.index(int(element), false)
	}
	if value >= e.Low && value < e.High || e.Index == nil {
		e.Why = text
	}
	return e
}

// Behind returns the check of the input that contains a command's integer operand. It returns nil if the operand is
// computed.
func Behind(p *plan.Plan, inputs []plan.IO, cmd int) *Check {
	ref, l, ok := wants(p, &p.Cmds[cmd])
	if !ok {
		return nil
	}
	f := &finder{p: p, inputs: inputs}
	f.study()
	c := f.find(cmd, ref)
	if c != nil {
		c.Cmd, c.Op, c.limit, c.where = cmd, opOf(p, &p.Cmds[cmd]), l, p.Where(int64(cmd))
	}
	return c
}
