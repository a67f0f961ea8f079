package planner

import (
	"slices"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// forward removes copies of kernel results. If the result %k of a kernel is used only by `copy %k into %slot`, the
// kernel is changed to write to %slot, and the copy is removed.
//
// The kernel then writes %slot earlier than the copy did. Removing the copy is safe for two reasons. First, the kernel
// and the copy are on one stream that does not wait between them. Every command that is ordered before the copy is
// therefore also ordered before the kernel. Second, no command between them accesses the memory that the copy writes.
func forward(p *plan.Plan) {
	f := forwarder{p: p}
	if !slices.ContainsFunc(p.Cmds, f.mayGo) {
		return
	}
	f.uses, f.dropped = map[plannedUse]*bufferUses{}, make([]bool, len(p.Cmds))
	for i := range p.Cmds {
		reads, writes := p.Accesses(&p.Cmds[i])
		for _, r := range reads {
			f.note(i, r)
		}
		for _, r := range writes {
			f.note(i, r)
		}
	}
	for i := range p.Cmds {
		from, ok := f.maker(i)
		if !ok {
			continue
		}
		r := &p.Cmds[from].Outs[0]
		to := p.Cmds[i].Outs[0]
		r.Buf, r.Off = to.Buf, to.Off
		f.dropped[i] = true
	}
	remove(p, f.dropped)
}

// remove removes commands. Values that no command accesses any more get no memory.
func remove(p *plan.Plan, dropped []bool) {
	at := -1
	p.Cmds = slices.DeleteFunc(p.Cmds, func(plan.Cmd) bool { at++; return dropped[at] })
	used := make([]bool, len(p.Buffers))
	for i := range p.Cmds {
		for _, r := range p.Touches(&p.Cmds[i]) {
			if r.Present() {
				used[r.Buf] = true
			}
		}
	}
	for i := range p.Buffers {
		if b := &p.Buffers[i]; b.Role == plan.RoleValue && !used[i] {
			b.Bytes = 0
		}
	}
}

// plannedUse is the map key of one rank's copy of a buffer.
type plannedUse struct{ rank, buffer int32 }

// bufferUses holds the indices of the first and the last command that access a buffer, and the number of accesses.
type bufferUses struct{ first, last, count int }

type forwarder struct {
	p       *plan.Plan
	uses    map[plannedUse]*bufferUses
	dropped []bool
}

func (f *forwarder) note(cmd int, r plan.Ref) {
	if !r.Present() {
		return
	}
	of := plannedUse{r.Rank, r.Buf}
	u := f.uses[of]
	if u == nil {
		u = &bufferUses{first: cmd}
		f.uses[of] = u
	}
	u.last = cmd
	u.count++
}

const (
	// aligned is the alignment in bytes that the destination of a forwarded result must have. Kernels are as fast at
	// this alignment as at the beginning of a buffer.
	aligned = 16
	// mostBetween is the maximum number of commands of a rank that are examined between a kernel and its copy.
	mostBetween = 256
)

// mayGo reports whether the function forward may remove command c. The command must be a copy between two dense
// tensors of its own rank, from a value to an aligned position in the arena.
func (f *forwarder) mayGo(c plan.Cmd) bool {
	if c.Kind != plan.Copy || c.Peer >= 0 {
		return false
	}
	src, dst := c.Ins[0], c.Outs[0]
	return src.Rank == c.Rank && dst.Rank == c.Rank && f.p.Buffers[src.Buf].Role == plan.RoleValue &&
		f.p.Buffers[dst.Buf].Space == plan.Arena && src.Dense() && dst.Dense() && dst.Off%aligned == 0
}

// maker returns the index of the kernel whose result command i copies, if this kernel can write directly to the
// destination of the copy. Otherwise ok is false.
func (f *forwarder) maker(i int) (from int, ok bool) {
	c := &f.p.Cmds[i]
	if !f.mayGo(*c) {
		return 0, false
	}
	src, dst := c.Ins[0], c.Outs[0]
	u := f.uses[plannedUse{src.Rank, src.Buf}]
	if u.count != 2 || u.last != i || i-u.first > mostBetween*f.p.Ranks {
		return 0, false
	}
	k := &f.p.Cmds[u.first]
	if k.Kind != plan.Compute || k.Op == ir.OpLaunch || k.Stream != c.Stream || len(k.Outs) != 1 {
		return 0, false
	}
	if out := k.Outs[0]; out.Off != src.Off || out.DType != dst.DType || !out.Dense() || out.Elements() != src.Elements() {
		return 0, false
	}
	for n := u.first; n < i; n++ {
		b := &f.p.Cmds[n]
		if b.Stream != c.Stream || f.dropped[n] {
			continue
		}
		if b.Kind != plan.Compute && b.Kind != plan.Copy || slices.ContainsFunc(f.p.Touches(b), dst.Overlaps) {
			return 0, false
		}
	}
	return u.first, true
}
