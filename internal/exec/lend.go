package exec

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/exec/blocks"
	"hocket.example/hocket/internal/exec/image"
)

// lender lends results to the caller. Callers get the addresses of lent results in the arena, and runs do not copy
// these results. After a run, work on the caller's streams can read the lent results until the next run, which waits
// for that work. See Image.Lendable.
type lender struct {
	im    *image.Image
	moves *moves
	names []string // results that may be lent
	known bool     // whether names is set
	lent  bool     // whether a result has been lent
}

// lendable returns the names of the results that may be lent.
func (l *lender) lendable() []string {
	if !l.known {
		l.names, l.known = l.im.Lendable(), true
	}
	return l.names
}

// lend makes a run of f leave the results that a.Lend names in place, and stores their addresses in a.Lend. Arguments
// of the run must not overlap lent results, because the run may write the results before it has read the arguments.
func (l *lender) lend(a Args, f *frame) error {
	for name := range a.Lend {
		if !slices.Contains(l.lendable(), name) {
			return fmt.Errorf("%w: result %s cannot be lent; the results that can be lent are %v", blocks.ErrInput, name,
				l.lendable())
		}
	}
	if l.lent || len(a.Lend) > 0 {
		if err := l.apart(a); err != nil {
			return err
		}
	}
	n := 0
	for i := range l.im.Outputs {
		io := &l.im.Outputs[i]
		at := a.Lend[io.Name]
		for _, part := range io.Parts {
			if rank := int(part.Ref.Rank); at != nil && l.im.World.Local(rank) {
				if f.lent == nil {
					f.lent = make([]bool, len(f.get))
				}
				v := l.im.View(part.Ref)
				f.lent[n], at[rank] = true, v.Mem.Address()+uintptr(v.Off)
				l.lent = true
			}
			n++
		}
	}
	return nil
}

// apart returns an error if an argument of the run is in memory of the arena.
func (l *lender) apart(a Args) error {
	given := l.moves.blocks(nil, l.im.Inputs, a.InAt, l.im.MovableIn, 0)
	given = l.moves.blocks(given, l.im.Outputs, a.OutAt, l.im.MovableOut, 0)
	given = l.moves.tensors(l.moves.tensors(given, a.DeviceIn, false), a.DeviceOut, true)
	for r := range l.im.Plan.Ranks {
		arena := l.im.Arena(r)
		from := arena.Address()
		for _, g := range given {
			if l.im.World.Local(r) && g.at < from+uintptr(arena.Bytes()) && from < g.end {
				return fmt.Errorf("%w: the argument of rank %d at %#x is memory of a lent result of this model, which the run "+
					"overwrites: pass a copy of it", blocks.ErrInput, r, g.at)
			}
		}
	}
	return nil
}

// Lendable returns the names of the results that Args.Lend may contain.
func (p *Program) Lendable() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.lender.lendable())
}
