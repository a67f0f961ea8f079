package image

import (
	"slices"

	"hocket.example/hocket/internal/plan"
)

// params is what a plan's commands do with its parameters.
type params struct {
	// uploads are the commands that upload an input, a rank each; nil for an input that
	// some other command writes to. A parameter's buffer is nobody else's for as long as
	// the plan is loaded, so what was uploaded once is still there.
	uploads [][]int
	// shown tells, by input, whether others than its own rank use it, or give it to others.
	shown []bool
}

// studyParams finds the inputs that can stay on the devices.
func studyParams(p *plan.Plan, inputs, outputs []plan.IO) params {
	out := params{uploads: make([][]int, len(inputs)), shown: make([]bool, len(inputs))}
	written := make([]bool, len(inputs))
	of := map[int32]int{} // the input that a buffer is
	for i := range inputs {
		for _, part := range inputs[i].Parts {
			if j, two := of[part.Ref.Buf]; two && j != i {
				written[i], written[j] = true, true
				out.shown[i], out.shown[j] = true, true
			}
			of[part.Ref.Buf] = i
		}
	}
	for c := range p.Cmds {
		cmd := &p.Cmds[c]
		if cmd.Kind == plan.Input {
			out.uploads[cmd.IO] = append(out.uploads[cmd.IO], c)
			continue
		}
		reads, writes := p.Accesses(cmd)
		for _, w := range writes {
			if i, ok := of[w.Buf]; ok {
				written[i] = true
			}
		}
		refs := slices.Concat(reads, writes)
		for _, r := range refs {
			if i, ok := of[r.Buf]; ok && !staysOnRank(cmd, refs, &inputs[i], outputs) {
				out.shown[i] = true
			}
		}
	}
	for i := range inputs {
		if written[i] || inputs[i].Inout {
			out.uploads[i] = nil
		}
	}
	return out
}

// staysOnRank reports whether a command that uses an input, and nothing but refs, is its
// rank's own work: a computation, a copy that stays there, or what reads an inout
// parameter as the result that it is, too.
func staysOnRank(c *plan.Cmd, refs []plan.Ref, input *plan.IO, outputs []plan.IO) bool {
	switch c.Kind {
	case plan.Compute: // whose operands are its own rank's
		return true
	case plan.Copy:
		return !slices.ContainsFunc(refs, func(r plan.Ref) bool { return r.Rank != c.Rank })
	case plan.Output:
		return input.Inout && outputs[c.IO].Name == input.Name
	}
	return false
}

// fills reports whether an input's blocks are its whole buffer, dense.
func fills(p *plan.Plan, io *plan.IO) bool {
	for _, part := range io.Parts {
		if r := part.Ref; r.Off != 0 || !r.Dense() || p.Buffers[r.Buf].Bytes != r.Bytes() {
			return false
		}
	}
	return true
}

// returnsInPlace reports whether what is left of an inout parameter is where it was.
func returnsInPlace(io *plan.IO, outputs []plan.IO) bool {
	o := outputOf(io, outputs)
	return o >= 0 && slices.EqualFunc(io.Parts, outputs[o].Parts, func(in, out plan.IOPart) bool {
		return in.Ref.Same(out.Ref)
	})
}

// outputOf returns the number of the output that an inout parameter is, too; -1 for none.
func outputOf(io *plan.IO, outputs []plan.IO) int {
	return slices.IndexFunc(outputs, func(o plan.IO) bool { return io.Inout && o.Name == io.Name })
}

// lendable reports whether an input's buffer can lie outside of the arena: every rank has a
// block, which nothing but that rank uses, and no other buffer lies there.
func lendable(p *plan.Plan, io *plan.IO, shown bool) bool {
	if shown || len(io.Parts) != p.Ranks || p.Ranks == 0 {
		return false
	}
	buf := io.Parts[0].Ref.Buf
	b := &p.Buffers[buf]
	if b.Space != plan.Arena || slices.ContainsFunc(io.Parts, func(part plan.IOPart) bool { return part.Ref.Buf != buf }) {
		return false
	}
	for o := range p.Buffers {
		other := &p.Buffers[o]
		if int32(o) != buf && other.Space == plan.Arena &&
			other.Offset < b.Offset+plan.Aligned(b.Bytes) && b.Offset < other.Offset+plan.Aligned(other.Bytes) {
			return false
		}
	}
	return true
}
