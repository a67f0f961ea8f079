package verify

import "hocket.example/hocket/internal/plan"

// runs is the number of consecutive runs that are checked. An order that holds between the first two runs holds between
// any two consecutive runs, because the clocks of later runs are at least as large.
const runs = 2

// index holds tables of a plan that has passed the structural checks. The later steps read them.
type index struct {
	p       *plan.Plan
	streams [][]int32   // for each stream: its commands in order, as indices in the plan's list
	pos     []int32     // for each command: its position in its stream, counted from 1
	kinds   []plan.Kind // for each command: its kind, in one byte, for fast searches in long lists
	records []int32     // for each event: the command that records it
	waits   []int32     // for each event: the number of commands that wait for it
	elems   []elem      // the elements of all counters
	elemOff []int32     // for each counter: index in elems of its first element; element e of rank r is r·Len + e later
}

// elem identifies one rank's element of a counter.
type elem struct {
	perRun int32
	stream int32 // the stream whose signals raise the element, or -1
	rank   int32 // the rank whose signals raise the element
	many   bool  // set if signals of several streams raise the element
	base   int32 // index of the element's first signal in arrays of all signals of a run
}

// elem returns the number of rank's element of a counter.
func (ix *index) elem(counter, rank, e int32) int32 {
	return ix.elemOff[counter] + rank*ix.p.Counters[counter].Len + e
}

// epoch identifies one execution of a command: the n-th command of a stream, counted from 1 over all runs. The zero
// epoch identifies no execution.
type epoch struct{ stream, pos int32 }

// act returns the act that an epoch identifies.
func (ix *index) act(e epoch) Act {
	n := int32(len(ix.streams[e.stream]))
	return Act{Cmd: ix.streams[e.stream][(e.pos-1)%n], Run: int((e.pos - 1) / n)}
}

func (ix *index) cmd(a Act) *plan.Cmd { return &ix.p.Cmds[a.Cmd] }

// refs calls the function f with every tensor that a command accesses. For a collective, it passes only the tensors of
// the rank that executes the command.
func refs(p *plan.Plan, c *plan.Cmd, f func(r *plan.Ref, write bool)) {
	visit := func(r *plan.Ref, write bool) {
		if r.Present() {
			f(r, write)
		}
	}
	switch c.Kind {
	case plan.Compute, plan.Copy:
		for i := range c.Ins {
			visit(&c.Ins[i], false)
		}
		for i := range c.Outs {
			visit(&c.Outs[i], true)
		}
	case plan.Collective:
		part := &p.Colls[c.Coll].Parts[c.Part]
		visit(&part.In, false)
		for i := range part.Counts {
			visit(&part.Counts[i], false)
		}
		visit(&part.Out, true)
	case plan.Group:
		for _, e := range c.Group {
			if e.Send {
				visit(&p.Pairs[e.Pair].Src, false)
			} else {
				visit(&p.Pairs[e.Pair].Dst, true)
			}
		}
	case plan.Input:
		visit(&p.Inputs[c.IO].Parts[c.Rank].Ref, true)
	case plan.Output:
		// The caller reads the result. The caller may overwrite the result's memory as soon as the stream main is done
		// (S14).
		visit(&p.Outputs[c.IO].Parts[c.Rank].Ref, false)
		visit(&p.Outputs[c.IO].Parts[c.Rank].Ref, true)
	}
}
