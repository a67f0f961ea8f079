package schedule

import "fmt"

// Reach executes one launch of a plan up to a counterexample's state. It returns an error if a block does not reach its
// state, or if the operation of an access is not between the barrier that its block has reached and the next. Threads
// that signal may be ahead of their block up to its next barrier.
func Reach(p *Plan, state []Progress) error {
	s := newSim(p, 1, nil)
	until, ahead := make([]int, len(p.Blocks)), make([]int, len(p.Blocks))
	for _, g := range state {
		until[g.b] = min(g.done, len(p.Blocks[g.b].Ops))
	}
	done := map[*Op]bool{}
	for b, n := range until {
		ops := p.Blocks[b].Ops
		for n < len(ops) && ops[n].Kind != Join && ops[n].Kind != Gather {
			n++
		}
		ahead[b] = n
	}
	for _, g := range state {
		ops := p.Blocks[g.b].Ops
		if n := until[g.b]; n < len(ops) && g.Completed != ops[n].Index {
			return fmt.Errorf("%v: its block has completed %d operations", g, ops[n].Index)
		}
		if n := until[g.b]; g.Access == "" && !g.Ended && p.place(g.b, &ops[n]) != g.Place {
			return fmt.Errorf("%v: the next is %v", g, p.place(g.b, &ops[n]))
		}
		found := g.Access == "" || g.Proxy // which may be late
		for i := until[g.b]; i < ahead[g.b]; i++ {
			found = found || p.place(g.b, &ops[i]) == g.Place
		}
		if !found {
			return fmt.Errorf("%v: the operation is not the next", g)
		}
	}
	for moved := true; moved; {
		moved = false
		for b := range s.blocks {
			st, ops := &s.blocks[b], p.Blocks[b].Ops
			if st.wait.meet >= 0 && s.meets[st.wait.meet] == nil { // the last block has arrived at the barrier
				st.wait, moved = running, true
			}
			for st.wait.meet < 0 && st.pc < until[b] && s.step(b, &ops[st.pc]) {
				st.pc++
				moved = true
			}
			if st.wait.meet >= 0 {
				continue
			}
			for i := until[b]; st.pc == until[b] && i < ahead[b]; i++ {
				if !done[&ops[i]] && s.step(b, &ops[i]) {
					done[&ops[i]], moved = true, true
				}
			}
			st.wait = running
		}
	}
	for b, n := range until {
		if s.blocks[b].pc < n {
			return fmt.Errorf("block %d executes %d of %d operations of the state", b, s.blocks[b].pc, n)
		}
	}
	return nil
}

// Simulate checks exactly the given number of launches, in the first interleaving.
func Simulate(p *Plan, launches int) *Report {
	if p.Fault != nil {
		return Check(p, Options{})
	}
	return simulate(p, launches, 0).report()
}

// ScratchNames returns the names that messages use for the cells of scratch, including both halves of a double scratch.
func ScratchNames(p *Plan) []string {
	s := newSim(p, 2, nil)
	var out []string
	for c := p.ScratchBase; c < p.MessageBase; c++ {
		out = append(out, p.cellName(s.home(c), Packet))
	}
	return out
}
