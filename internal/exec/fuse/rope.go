package fuse

import (
	"slices"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// partsMost is the largest number of parts of a group of ropes: queries, keys and values, and one more. keptMost is the
// largest number of positions of their index_copies, because each thread block checks all positions.
const partsMost, keptMost = 4, 256

// Ropes is a group of ropes and index_copies of the same tokens, such as those of queries, keys and values. The
// commands are consecutive on a stream. All ropes have the same angles, and all index_copies the same positions. If an
// index_copy of the group is the only other command that uses the result of a rope, the launch does not store this
// result. No part reads or writes memory in which another part stores its result.
type Ropes struct {
	Members []int // command indices, in order
	Parts   []RopePart
}

// RopePart holds the commands that compute one result. An index_copy after a rope copies the rope's result.
type RopePart struct{ Rope, Copy int } // -1 for none

// Ropes calls accept for each group of at least two ropes and index_copies.
func (f *Finder) Ropes(accept func(*Ropes) error) error {
	for _, cmds := range f.streams() {
		for at := 0; at < len(cmds); {
			r := f.ropesAt(cmds[at:])
			if r == nil {
				at++
				continue
			}
			if err := accept(r); err != nil {
				return err
			}
			at += len(r.Members)
		}
	}
	return nil
}

// ropesAt returns the longest group that begins with the first of a stream's commands; nil if there is none.
func (f *Finder) ropesAt(cmds []int) *Ropes {
	n := 0
	for n < min(len(cmds), 2*partsMost) && f.rotatesOrCopies(cmds[n]) && f.together(cmds[0], cmds[n]) {
		n++
	}
	for ; n > 1; n-- {
		if r := f.ropes(cmds[:n]); r != nil {
			return r
		}
	}
	return nil
}

// rotatesOrCopies reports whether a command is a rope or an index_copy that can be part of a group.
func (f *Finder) rotatesOrCopies(cmd int) bool {
	c := &f.p.Cmds[cmd]
	if c.Kind != plan.Compute || c.Op != ir.OpRope && c.Op != ir.OpIndexCopy || f.taken[cmd] {
		return false
	}
	x, n := c.Ins[0], len(c.Ins[0].Shape)
	if n < 3 || x.Elements() == 0 || x.DType.IsInt() || x.Shape[n-1] < 2 {
		return false
	}
	return c.Op == ir.OpRope || slices.Equal(c.Attr.Axes, []int{n - 3}) && c.Ins[1].Elements() <= keptMost
}

// together reports whether the operands of two commands differ at most in the number of heads.
func (f *Finder) together(a, b int) bool {
	x, y := f.p.Cmds[a].Ins[0], f.p.Cmds[b].Ins[0]
	n := len(x.Shape)
	return x.DType == y.DType && len(y.Shape) == n && slices.Equal(x.Shape[:n-2], y.Shape[:n-2]) &&
		x.Shape[n-1] == y.Shape[n-1]
}

// ropes returns the group of the given commands; nil if one launch cannot execute them.
func (f *Finder) ropes(cmds []int) *Ropes {
	r := &Ropes{Members: cmds}
	for i, cmd := range cmds {
		c := &f.p.Cmds[cmd]
		if slices.ContainsFunc(cmds[:i], func(o int) bool { return !alike(&f.p.Cmds[o], c) }) {
			return nil
		}
		part := slices.IndexFunc(r.Parts, func(p RopePart) bool {
			return c.Op == ir.OpIndexCopy && p.Copy < 0 && f.onlyCopied(p.Rope, c.Ins[0])
		})
		switch {
		case part >= 0:
			r.Parts[part].Copy = cmd
		case c.Op == ir.OpRope:
			r.Parts = append(r.Parts, RopePart{cmd, -1})
		default:
			r.Parts = append(r.Parts, RopePart{-1, cmd})
		}
	}
	if len(r.Parts) > partsMost {
		return nil
	}
	for i, p := range r.Parts {
		_, out := f.operands(p)
		for j, q := range r.Parts {
			if ins, other := f.operands(q); f.meets(out, ins...) || i != j && f.meets(out, other) {
				return nil
			}
		}
	}
	return r
}

// operands returns the tensors that the launch reads and stores for a part.
func (f *Finder) operands(p RopePart) (ins []plan.Ref, out plan.Ref) {
	if p.Rope >= 0 {
		c := &f.p.Cmds[p.Rope]
		ins, out = c.Ins, c.Outs[0]
	}
	if p.Copy >= 0 {
		c := &f.p.Cmds[p.Copy]
		if out = c.Outs[0]; p.Rope >= 0 {
			return append(ins[:len(ins):len(ins)], c.Ins[1]), out
		}
		ins = c.Ins[:2] // the last operand is the result's memory
	}
	return ins, out
}

// onlyCopied reports whether a command's result is x, which only one other command uses.
func (f *Finder) onlyCopied(cmd int, x plan.Ref) bool {
	return f.p.Cmds[cmd].Outs[0].Same(x) && private(f.p, placeOf(x)) && f.uses[placeOf(x)] == 2
}

// alike reports whether two commands may be in one group: ropes must have the same angles, and index_copies the same
// positions and results with the same number of rows.
func alike(a, b *plan.Cmd) bool {
	switch {
	case a.Op != b.Op:
		return true
	case a.Op == ir.OpIndexCopy:
		row := len(a.Outs[0].Shape) - 3
		return a.Ins[1].Same(b.Ins[1]) && a.Outs[0].Shape[row] == b.Outs[0].Shape[row]
	}
	return slices.Equal(a.Attr.Numbers, b.Attr.Numbers) && slices.EqualFunc(a.Ins[1:], b.Ins[1:], plan.Ref.Same)
}
