package image

import (
	"slices"

	"hocket.example/hocket/internal/plan"
)

// params holds the properties of a plan's parameters that depend on its commands.
type params struct {
	// uploads holds the commands that upload an input, one for each rank; nil for an input that another command writes to.
	// While the plan is loaded, nothing else uses a parameter's buffer, so an uploaded parameter remains there.
	uploads [][]int
	// shown reports, by input, whether the input is used by commands of other ranks or by commands that pass it to
	// other ranks.
	shown []bool
}

// studyParams finds the inputs that can remain on the devices.
func studyParams(p *plan.Plan, inputs, outputs []plan.IO) params {
	out := params{uploads: make([][]int, len(inputs)), shown: make([]bool, len(inputs))}
	written := make([]bool, len(inputs))
	of := map[int32]int{} // by buffer: the input that the buffer contains
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

// staysOnRank reports whether a command uses an input, by the given refs, only on the command's own rank. Such a
// command is a computation, a copy within the rank, or the download of an inout parameter's result.
func staysOnRank(c *plan.Cmd, refs []plan.Ref, input *plan.IO, outputs []plan.IO) bool {
	switch c.Kind {
	case plan.Compute: // operands of a computation are on the command's own rank
		return true
	case plan.Copy:
		return !slices.ContainsFunc(refs, func(r plan.Ref) bool { return r.Rank != c.Rank })
	case plan.Output:
		return input.Inout && outputs[c.IO].Name == input.Name
	}
	return false
}

// fills reports whether each block of an input is dense and occupies its whole buffer.
func fills(p *plan.Plan, io *plan.IO) bool {
	for _, part := range io.Parts {
		if r := part.Ref; r.Off != 0 || !r.Dense() || p.Buffers[r.Buf].Bytes != r.Bytes() {
			return false
		}
	}
	return true
}

// returnsInPlace reports whether an inout parameter, as a result, is at the same location as the input.
func returnsInPlace(io *plan.IO, outputs []plan.IO) bool {
	o := outputOf(io, outputs)
	return o >= 0 && slices.EqualFunc(io.Parts, outputs[o].Parts, func(in, out plan.IOPart) bool {
		return in.Ref.Same(out.Ref)
	})
}

// outputOf returns the index of the output with the new value of an inout parameter; -1 if the parameter is not inout.
func outputOf(io *plan.IO, outputs []plan.IO) int {
	return slices.IndexFunc(outputs, func(o plan.IO) bool { return io.Inout && o.Name == io.Name })
}

// lendable reports whether an input's buffer can be outside the arena: every rank has a block that only this rank uses,
// and no other buffer shares the block's bytes.
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
