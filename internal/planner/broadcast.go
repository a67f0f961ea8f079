package planner

import (
	"slices"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// readThrough removes broadcasts whose results only elementwise kernels read. A kernel that reads the result of a
// broadcast is changed to read the operand of the broadcast instead, with a stride of 0 in the repeated dimensions. A
// copy of a part of a broadcast, such as a rank's shard, becomes a broadcast of that part.
//
// A kernel then reads the operand later than the broadcast did. Reading the operand instead is safe if the kernel is on
// the stream of the broadcast, and if the operand's buffer has at most one writer, which is on that stream and comes
// earlier: the next run writes the operand after the kernel.
func readThrough(p *plan.Plan) {
	if !slices.ContainsFunc(p.Cmds, func(c plan.Cmd) bool { return repeats(&c) }) {
		return
	}
	uses := map[plannedUse]*bufferAccesses{}
	for i := range p.Cmds {
		reads, writes := p.Accesses(&p.Cmds[i])
		for k, r := range slices.Concat(reads, writes) {
			of := plannedUse{r.Rank, r.Buf}
			if uses[of] == nil {
				uses[of] = &bufferAccesses{}
			}
			if u := uses[of]; k < len(reads) {
				u.readers = append(u.readers, i)
			} else {
				u.writers = append(u.writers, i)
			}
		}
	}
	dropped := make([]bool, len(p.Cmds))
	for i := range p.Cmds {
		c := &p.Cmds[i]
		if !repeats(c) || p.Buffers[c.Outs[0].Buf].Role != plan.RoleValue {
			continue
		}
		in, out := c.Ins[0], c.Outs[0]
		from, to := uses[plannedUse{in.Rank, in.Buf}], uses[plannedUse{out.Rank, out.Buf}]
		late := func(n int) bool { return n > i || p.Cmds[n].Stream != c.Stream }
		other := func(n int) bool { return p.Cmds[n].Stream != c.Stream || !readsParts(&p.Cmds[n], out) }
		if len(to.readers) == 0 || len(to.writers) > 1 || len(from.writers) > 1 || slices.ContainsFunc(from.writers, late) ||
			slices.ContainsFunc(to.readers, other) {
			continue
		}
		for _, n := range to.readers {
			r := &p.Cmds[n]
			r.Ins = slices.Clone(r.Ins)
			for k, x := range r.Ins {
				if at, ok := partOf(x, out); ok {
					r.Ins[k] = in
					r.Ins[k].Shape = x.Shape
					for d, first := range at {
						r.Ins[k].Off += first * in.Strides[d] * in.DType.Size()
					}
				}
			}
			if r.Kind == plan.Copy {
				r.Kind, r.Op = plan.Compute, ir.OpExpand
			}
		}
		from.readers = append(from.readers, to.readers...)
		dropped[i] = true
	}
	remove(p, dropped)
}

// bufferAccesses holds the indices of the commands that access one rank's copy of a buffer.
type bufferAccesses struct{ readers, writers []int }

// repeats reports whether c is a broadcast of a tensor of its own rank.
func repeats(c *plan.Cmd) bool {
	return c.Kind == plan.Compute && c.Op == ir.OpExpand && c.Ins[0].Rank == c.Rank && c.Outs[0].Rank == c.Rank
}

// readsParts reports whether c is an elementwise kernel, or a copy within a rank, that reads no part of r except by
// operands for which partOf is true.
func readsParts(c *plan.Cmd, r plan.Ref) bool {
	if !(c.Kind == plan.Compute && c.Op.Info().Elementwise) &&
		!(c.Kind == plan.Copy && c.Peer < 0 && c.Outs[0].Rank == c.Rank) {
		return false
	}
	return !slices.ContainsFunc(c.Ins, func(x plan.Ref) bool {
		_, ok := partOf(x, r)
		return x.Overlaps(r) && !ok
	})
}

// partOf reports whether x is a rectangular part of the dense tensor r, with the same dimensions, and returns the
// indices in r of its first element.
func partOf(x, r plan.Ref) (first []int64, ok bool) {
	if x.Rank != r.Rank || x.Buf != r.Buf || x.DType != r.DType || !r.Dense() || !slices.Equal(x.Strides, r.Strides) {
		return nil, false
	}
	left := (x.Off - r.Off) / r.DType.Size()
	for d, stride := range r.Strides {
		at := left / max(stride, 1)
		if left -= at * stride; at < 0 || at+x.Shape[d] > r.Shape[d] {
			return nil, false
		}
		first = append(first, at)
	}
	return first, left == 0
}
