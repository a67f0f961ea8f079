package planner

import (
	"fmt"

	"hocket.example/hocket/ir"

	"hocket.example/hocket/internal/plan"
)

// verifyLayout proves that a plan's memory layout is correct. verifyLayout uses only the plan, and a different method
// from the planner: it builds the order of all commands of two runs as an explicit graph, computes the transitive
// closure, and checks the commands of every two buffers that share bytes. Time and memory are quadratic.
func verifyLayout(p *plan.Plan) error {
	if err := verifyBounds(p); err != nil {
		return err
	}
	g := newOrderGraph(p)
	if err := g.close(); err != nil {
		return err
	}
	users := make([]map[int32][]int, len(p.Buffers)) // by buffer and rank: commands
	for i := range p.Cmds {
		refs(p, &p.Cmds[i], func(r *plan.Ref) {
			if users[r.Buf] == nil {
				users[r.Buf] = map[int32][]int{}
			}
			users[r.Buf][r.Rank] = append(users[r.Buf][r.Rank], i)
		})
	}
	for a := range p.Buffers {
		for b := range a {
			if !overlap(&p.Buffers[a], &p.Buffers[b]) {
				continue
			}
			for rank, x := range users[a] {
				if y := users[b][rank]; !g.alternate(x, y) && !g.alternate(y, x) {
					return fmt.Errorf("%s and %s share bytes on rank %d but are not ordered", p.Buffers[a].Name, p.Buffers[b].Name, rank)
				}
			}
		}
	}
	return nil
}

// verifyBounds checks that buffers are inside their memory space, that parameters share bytes with no buffer, and that
// every reference is inside its buffer.
func verifyBounds(p *plan.Plan) error {
	for i := range p.Buffers {
		b := &p.Buffers[i]
		end := p.ArenaBytes
		if b.Space == plan.Host {
			end = p.HostBytes
		}
		if b.Offset%plan.Align != 0 || b.Offset < 0 || b.Offset+b.Bytes > end {
			return fmt.Errorf("%s lies at %d..%d of %d bytes", b.Name, b.Offset, b.Offset+b.Bytes, end)
		}
		for j := range i {
			c := &p.Buffers[j]
			if (b.Role == plan.RoleInput || c.Role == plan.RoleInput) && overlap(b, c) {
				return fmt.Errorf("%s shares bytes with the parameter %s", b.Name, c.Name)
			}
		}
	}
	var err error
	for i := range p.Cmds {
		refs(p, &p.Cmds[i], func(r *plan.Ref) {
			if lo, hi := r.Span(); lo < 0 || hi > p.Buffers[r.Buf].Bytes {
				err = fmt.Errorf("command %d reaches bytes %d..%d of %s, which has %d", i, lo, hi, p.Buffers[r.Buf].Name, p.Buffers[r.Buf].Bytes)
			}
		})
	}
	return err
}

func overlap(a, b *plan.Buffer) bool {
	return a.Space == b.Space && a.Bytes > 0 && b.Bytes > 0 && a.Offset < b.Offset+b.Bytes && b.Offset < a.Offset+a.Bytes
}

// orderGraph is a graph with a start node and an end node for every command of every run.
type orderGraph struct {
	p     *plan.Plan
	n     int
	preds [][]int
	// past[v] is a bit set of the commands whose end precedes node v.
	past [][]uint64
}

func (g *orderGraph) start(run, cmd int) int { return 2 * (run*g.n + cmd) }
func (g *orderGraph) end(run, cmd int) int   { return 2*(run*g.n+cmd) + 1 }
func (g *orderGraph) edge(from, to int)      { g.preds[to] = append(g.preds[to], from) }

func newOrderGraph(p *plan.Plan) *orderGraph {
	g := &orderGraph{p: p, n: len(p.Cmds)}
	g.preds = make([][]int, 2*runs*g.n)
	last := map[int32]int{} // stream → end node of its last command
	signals := map[elemOf][]int{}
	for run := range runs {
		for i := range p.Cmds {
			c := &p.Cmds[i]
			g.edge(g.start(run, i), g.end(run, i))
			if prev, ok := last[c.Stream]; ok {
				g.edge(prev, g.start(run, i))
			}
			last[c.Stream] = g.end(run, i)
			if c.Kind == plan.Signal {
				k := elemOf{c.Counter, c.Peer, c.Elem}
				signals[k] = append(signals[k], g.end(run, i))
			}
		}
	}
	for run := range runs {
		g.waits(run, signals)
		g.meetings(run)
	}
	return g
}

// waits adds the edges from each record to its waits and from each signal to its waits.
func (g *orderGraph) waits(run int, signals map[elemOf][]int) {
	records := map[int32]int{}
	for i := range g.p.Cmds {
		if c := &g.p.Cmds[i]; c.Kind == plan.Record {
			records[c.Event] = i
		}
	}
	for i := range g.p.Cmds {
		c := &g.p.Cmds[i]
		switch c.Kind {
		case plan.WaitEvent:
			g.edge(g.end(run, records[c.Event]), g.end(run, i))
		case plan.WaitCounter:
			all := signals[elemOf{c.Counter, c.Rank, c.Elem}]
			for _, sig := range all[:run*len(all)/runs+int(c.Value)] {
				g.edge(sig, g.end(run, i))
			}
		}
	}
}

// meetings adds the edges between the members of collectives and between the sides of transfers.
func (g *orderGraph) meetings(run int) {
	parts := make([]map[int32]int, len(g.p.Colls))
	sides := map[[2]int32]int{}
	for i := range g.p.Cmds {
		c := &g.p.Cmds[i]
		if c.Kind == plan.Collective {
			if parts[c.Coll] == nil {
				parts[c.Coll] = map[int32]int{}
			}
			parts[c.Coll][c.Part] = i
		}
		for _, e := range c.Group {
			side := int32(0)
			if e.Send {
				side = 1
			}
			sides[[2]int32{e.Pair, side}] = i
		}
	}
	for k, members := range parts {
		for a, i := range members {
			for b, j := range members {
				if flows(&g.p.Colls[k], a, b) {
					g.edge(g.start(run, i), g.end(run, j))
				}
			}
		}
	}
	for i := range g.p.Pairs {
		src, dst := sides[[2]int32{int32(i), 1}], sides[[2]int32{int32(i), 0}]
		g.edge(g.start(run, src), g.end(run, dst))
		g.edge(g.start(run, dst), g.end(run, src))
	}
}

// flows reports whether the end of member b's part depends on the start of member a's part.
func flows(c *plan.Coll, a, b int32) bool {
	switch c.Op {
	case ir.OpBroadcast, ir.OpScatter:
		return a == c.Root
	case ir.OpReduce, ir.OpGather:
		return b == c.Root
	case ir.OpPermute:
		return c.Parts[b].From == a
	}
	return true
}

// close computes past for all nodes, in topological order.
func (g *orderGraph) close() error {
	succs := make([][]int, len(g.preds))
	missing := make([]int, len(g.preds))
	var ready []int
	for v, ps := range g.preds {
		missing[v] = len(ps)
		if len(ps) == 0 {
			ready = append(ready, v)
		}
		for _, u := range ps {
			succs[u] = append(succs[u], v)
		}
	}
	words := (runs*g.n + 63) / 64
	g.past = make([][]uint64, len(g.preds))
	done := 0
	for len(ready) > 0 {
		v := ready[len(ready)-1]
		ready = ready[:len(ready)-1]
		done++
		g.past[v] = make([]uint64, words)
		for _, u := range g.preds[v] {
			for i, x := range g.past[u] {
				g.past[v][i] |= x
			}
			if u%2 == 1 {
				g.past[v][u/2/64] |= 1 << (u / 2 % 64)
			}
		}
		for _, s := range succs[v] {
			if missing[s]--; missing[s] == 0 {
				ready = append(ready, s)
			}
		}
	}
	if done < len(g.preds) {
		return fmt.Errorf("the order of the plan's commands has a cycle")
	}
	return nil
}

// before reports whether command a of runA ends before command b of runB starts.
func (g *orderGraph) before(runA, a, runB, b int) bool {
	k := runA*g.n + a
	return g.past[g.start(runB, b)][k/64]&(1<<(k%64)) != 0
}

// alternate reports whether all of xs precede all of ys in each run and from one run to the next, and whether all of ys
// precede the xs of the next run.
func (g *orderGraph) alternate(xs, ys []int) bool {
	for _, x := range xs {
		for _, y := range ys {
			if !g.before(0, x, 0, y) || !g.before(1, x, 1, y) || !g.before(0, x, 1, y) || !g.before(0, y, 1, x) {
				return false
			}
		}
	}
	return true
}
