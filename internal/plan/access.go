package plan

import "slices"

// Accesses returns the tensors that a command reads and the tensors that it writes. For a collective, the result
// contains only the tensors of the rank that executes the command: the parts of the other members are separate
// commands.
func (p *Plan) Accesses(c *Cmd) (reads, writes []Ref) {
	switch c.Kind {
	case Compute, Copy:
		return c.Ins, c.Outs
	case Collective:
		part := &p.Colls[c.Coll].Parts[c.Part]
		if part.Out.Present() {
			writes = []Ref{part.Out}
		}
		return part.Reads(), writes
	case Group:
		for _, t := range c.Group {
			if t.Send {
				reads = append(reads, p.Pairs[t.Pair].Src)
			} else {
				writes = append(writes, p.Pairs[t.Pair].Dst)
			}
		}
	case Input:
		writes = []Ref{p.Inputs[c.IO].Of(c.Rank).Ref}
	case Output:
		reads = []Ref{p.Outputs[c.IO].Of(c.Rank).Ref}
	}
	return reads, writes
}

// Touches returns all tensors that a command reads or writes.
func (p *Plan) Touches(c *Cmd) []Ref {
	reads, writes := p.Accesses(c)
	return slices.Concat(reads, writes)
}

// Of returns the block of the parameter or result that a rank holds, or nil if it holds none.
func (io *IO) Of(rank int32) *IOPart {
	for k := range io.Parts {
		if part := &io.Parts[k]; part.Ref.Present() && part.Ref.Rank == rank {
			return part
		}
	}
	return nil
}

// Held returns a copy of ios. In the copy, ranks that hold no block have no part.
func Held(ios []IO) []IO {
	kept := slices.Clone(ios)
	for i := range kept {
		kept[i].Parts = slices.DeleteFunc(slices.Clone(kept[i].Parts), func(part IOPart) bool { return !part.Ref.Present() })
	}
	return kept
}

// Same reports whether two references refer to the same elements of the same buffer.
func (r Ref) Same(o Ref) bool {
	return r.Rank == o.Rank && r.Buf == o.Buf && r.DType == o.DType && r.Off == o.Off &&
		slices.Equal(r.Shape, o.Shape) && slices.Equal(r.Strides, o.Strides)
}

// Overlaps reports whether two tensors may share bytes of a buffer. It compares only their spans.
func (r Ref) Overlaps(o Ref) bool {
	if r.Rank != o.Rank || r.Buf != o.Buf {
		return false
	}
	lo, hi := r.Span()
	olo, ohi := o.Span()
	return lo < ohi && olo < hi
}
