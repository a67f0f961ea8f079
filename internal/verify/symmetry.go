package verify

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// This file proves a program on many ranks by what one of them does.
//
// Ranks lie on a grid, and G are the grid's translations, which wrap around: a
// commutative group that takes every rank to every other in exactly one way. An
// action of G is chosen on all that a rank has: for t in G, Φt takes rank r to
// r+t, the n-th command, stream or event of r to the n-th of r+t, and the bytes
// of each buffer and the elements of each counter to themselves or, turned by
// t along an axis, to others of the same buffer or counter (rotation.go). Each Φt is
// one to one, and Φs after Φt is Φs+t.
//
// Suppose that the text of every rank ρ+t is Φt of the text of rank ρ. Then Φt
// of the text of any rank is that of another: Φt is an automorphism of the
// program. It follows:
//
//  1. Matching. The k-th collective, send, recv or signal of a rank goes to the
//     team, lane or element that is Φt of ρ's, so it meets what is Φt of what
//     ρ's meets.
//  2. Order. Commands executed by all ranks in step, each as soon as it can,
//     execute all that can ever be: what can execute does not depend on the
//     order of those before, and is the same on all ranks. If ρ gets stuck, all
//     do; else none. And a command of rank r+t is known to a stream of rank s+t
//     exactly where that of r is known to that of s. So ρ's vector clocks,
//     translated, are all ranks'.
//  3. Conflicts. Two accesses to a byte of rank ρ+t are Φt of two accesses to a
//     byte of ρ, and ordered as those are. So the accesses to ρ's memory, by ρ
//     and by others, stand for all.
//
// Consecutive waits on a stream, with nothing between, are compared as a set: their order changes neither what is known
// after them nor whether they end. So are consecutive signals: each makes known what was done before the first of them,
// and no memory is accessed between.
//
// Nothing of this is assumed. Every rank is unrolled and compared with ρ, command by command and operand by operand
// (alike.go); a rank that differs makes the verdict Unknown. The layout is not covered: here each buffer has its own
// bytes. Shared bytes are proved for the plan, which every run has.

// Symmetry is what Symmetric asks of a program.
type Symmetry struct {
	// Grid has the sizes of the axes on which all ranks lie in order, the last
	// axis fastest.
	Grid []int64
	// Unroller makes an unroller of ranks, for one goroutine: p holds what ranks
	// have in common, with the same numbers whoever is unrolled first after rank 0.
	Unroller func() (p *plan.Plan, unroll func(rank int) (*plan.Rank, error), err error)
	// MinCommands is how many commands all ranks must have at the least: with fewer a plan
	// is as fast, and its proof says more.
	MinCommands int
	// Prog is the program that is unrolled; see Options.Prog.
	Prog *ir.Program
}

// maxSymmetric bounds how many commands of all ranks are compared.
const maxSymmetric = 50_000_000

// SymmetryProof is what was found out about a program whose ranks do the same.
type SymmetryProof struct {
	// Result is as of a plan, with an excerpt of the commands where a fault is
	// shown. It is Unknown where ranks differ.
	*Result
	// Commands is how many commands all ranks have.
	Commands int
	// Differing are ranks that do not do what rank 0 does, at most maxDiffering of them. With fewer the
	// program may still be refuted (lone.go).
	Differing []int32

	compared bool // ranks were, or what they were to be compared by could not be learned
}

// unroller is Symmetry.Unroller.
type unroller func() (p *plan.Plan, unroll func(rank int) (*plan.Rank, error), err error)

// Symmetric checks a program by one rank, if all do the same. The error is an
// unroller's: what is wrong with a single rank.
func Symmetric(s Symmetry) (*SymmetryProof, error) {
	g := newGrid(s.Grid)
	out, err := symmetricAs(g, 0, s.Unroller, s)
	if err != nil || out.Verdict != Unknown || !out.compared || len(out.Differing) > 0 &&
		len(out.Differing) < maxDiffering {
		return out, err
	}
	// Rank 0 may be the one that differs: another for it, as far off as there is.
	half := int32(g.n / 2)
	if again, err := symmetricAs(g, half, g.from(half, s.Unroller), s); err == nil &&
		again.Verdict == Refuted {
		return again, nil
	}
	return out, nil
}

// symmetricAs takes rank base for rank 0; with another than 0 nothing is proved.
func symmetricAs(g *grid, base int32, unroll unroller, of Symmetry) (*SymmetryProof, error) {
	q := &quotient{grid: g, base: base, prog: of.Prog}
	p, one, err := unroll()
	if err != nil {
		return nil, err
	}
	first, err := one(0)
	if err != nil {
		return nil, err
	}
	out := &SymmetryProof{Result: &Result{}, Commands: q.grid.n * len(first.Cmds)}
	if q.grid.n < 2 || out.Commands < of.MinCommands || out.Commands > maxSymmetric {
		out.Reason = fmt.Sprintf("all ranks have %d commands", out.Commands)
		return out, nil
	}
	q.p, q.rep = p, newLikeness(q.grid, p, first)
	if q.rep.fail(); q.rep.why == "" {
		out.compared = true
		q.rep.why, err = q.rep.learn(unroll)
	}
	if err != nil {
		return nil, err
	}
	if q.rep.why == "" {
		q.rep.why, out.Differing, err = q.rep.compareAll(unroll)
	}
	if err != nil {
		return nil, err
	}
	if q.rep.why == "" && base == 0 {
		out.Result = q.check()
		return out, nil
	}
	if n := len(out.Differing); n > 0 && n < maxDiffering {
		few, err := q.unrolled(unroll, out.Differing)
		if err != nil {
			return nil, err
		}
		if out.Result = q.refute(few); out.Verdict == Refuted {
			return out, nil
		}
	}
	out.Reason = "ranks do not all do the same: " + q.rep.why
	return out, nil
}

// from calls rank base rank 0, and all others by what takes it to them.
func (g *grid) from(base int32, unroll unroller) unroller {
	return func() (*plan.Plan, func(int) (*plan.Rank, error), error) {
		p, one, err := unroll()
		if err != nil {
			return nil, nil, err
		}
		teams := map[*int][]int{}
		return p, func(rank int) (*plan.Rank, error) {
			r, err := one(int(g.add(int32(rank), base, 1)))
			if err != nil {
				return nil, err
			}
			g.rename(r, base, teams)
			return r, nil
		}, nil
	}
}

// rename takes base from all ranks that a rank's commands name.
func (g *grid) rename(r *plan.Rank, base int32, teams map[*int][]int) {
	r.Rank = g.add(r.Rank, base, -1)
	ref := func(x *plan.Ref) {
		if x.Present() {
			x.Rank = g.add(x.Rank, base, -1)
		}
	}
	refs := func(xs []plan.Ref) {
		for i := range xs {
			ref(&xs[i])
		}
	}
	for i := range r.Cmds {
		c := &r.Cmds[i]
		c.Rank = r.Rank
		if c.Kind == plan.Signal || c.Kind == plan.Copy && c.Peer >= 0 {
			c.Peer = g.add(c.Peer, base, -1)
		}
		refs(c.Ins)
		refs(c.Outs)
	}
	for i := range r.Joins {
		j := &r.Joins[i]
		k := &j.Team[0]
		if teams[k] == nil {
			for _, x := range j.Team {
				teams[k] = append(teams[k], int(g.add(int32(x), base, -1)))
			}
		}
		j.Team = teams[k]
		ref(&j.Part.In)
		ref(&j.Part.Out)
		refs(j.Part.Counts)
	}
	for i := range r.Ends {
		r.Ends[i].Peer = g.add(r.Ends[i].Peer, base, -1)
		ref(&r.Ends[i].Ref)
	}
	refs(r.Inputs)
	refs(r.Outputs)
}

// unrolled returns what some ranks do, with the sites that only they have.
func (q *quotient) unrolled(unroll unroller, ranks []int32) ([]*plan.Rank, error) {
	var out []*plan.Rank
	for _, r := range ranks {
		p, one, err := unroll()
		if err != nil {
			return nil, err
		}
		if _, err := one(0); err != nil {
			return nil, err
		}
		common := len(p.Sites)
		x, err := one(int(r))
		if err != nil {
			return nil, err
		}
		for i := range x.Cmds {
			if c := &x.Cmds[i]; int(c.Site) >= common {
				c.Site += int32(len(q.p.Sites) - common)
			}
		}
		q.p.Sites = append(q.p.Sites, p.Sites[common:]...)
		out = append(out, x)
	}
	return out, nil
}

// learn chooses the rotations by the neighbours of the first rank along each axis.
func (a *likeness) learn(unroll unroller) (string, error) {
	_, one, err := unroll()
	if err != nil {
		return "", err
	}
	if _, err := one(0); err != nil {
		return "", err
	}
	for axis := range a.grid.sizes {
		if a.grid.sizes[axis] < 2 {
			continue
		}
		// The next rank along the axis, or if that does something else the one before.
		stride := a.grid.stride(axis)
		next, err := one(int(stride))
		if err != nil {
			return "", err
		}
		if why := a.guess(axis, a.rank, next); why != "" {
			before, err := one(int(a.grid.add(0, stride, -1)))
			if err != nil {
				return "", err
			}
			if a.guess(axis, before, a.rank) != "" {
				return why, nil
			}
		}
	}
	a.unraised()
	return a.settle(), nil
}

// unraised gives counters that nobody raises the rotations of one that has the same share
// for each rank: whoever waits for it then waits for ever, on all ranks.
func (a *likeness) unraised() {
	raised := make([]bool, len(a.counters))
	for i := range a.rank.Cmds {
		if c := &a.rank.Cmds[i]; c.Kind == plan.Signal {
			raised[c.Counter] = true
		}
	}
	for k := range a.counters {
		share := int64(a.p.Counters[k].Len) / int64(a.grid.n)
		for axis, n := range a.grid.sizes {
			if !raised[k] && share > 0 && n > 1 {
				a.counters[k] = append(a.counters[k], rotation{axis, int64(a.grid.stride(axis)) * share, int64(n)})
			}
		}
	}
}

// compareAll compares every rank with the first.
func (a *likeness) compareAll(unroll unroller) (why string, ranks []int32, err error) {
	var next, failed atomic.Int64
	var mu sync.Mutex
	var wg sync.WaitGroup
	work := func() error {
		p, one, err := unroll()
		if err != nil {
			return err
		}
		if _, err := one(0); err != nil {
			return err
		}
		c := a.comparer(p)
		for failed.Load() < maxDiffering {
			r := int(next.Add(1))
			if r >= a.grid.n {
				return nil
			}
			other, err := one(r)
			if err != nil {
				return err
			}
			if w := c.differs(other); w != "" {
				failed.Add(1)
				mu.Lock()
				if why == "" {
					why = w
				}
				ranks = append(ranks, int32(r))
				mu.Unlock()
			}
		}
		return nil
	}
	for range min(runtime.GOMAXPROCS(0), a.grid.n-1) {
		wg.Go(func() {
			if e := work(); e != nil {
				failed.Add(maxDiffering)
				mu.Lock()
				if err == nil {
					err = e
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return why, ranks, err
}

// maxDiffering is how many ranks may differ before no more are looked at.
const maxDiffering = 4

// grid is the group of translations: its elements are the ranks, as what takes
// rank 0 to them.
type grid struct {
	n     int
	sizes []int32
	coord [][]int32 // by axis and rank
}

func newGrid(sizes []int64) *grid {
	g := &grid{n: 1}
	for _, n := range sizes {
		g.n *= int(n)
		g.sizes = append(g.sizes, int32(n))
	}
	for axis, n := range g.sizes {
		c := make([]int32, g.n)
		for r := range c {
			c[r] = int32(r) / g.stride(axis) % n
		}
		g.coord = append(g.coord, c)
	}
	return g
}

func (g *grid) stride(axis int) int32 {
	s := int32(1)
	for _, n := range g.sizes[axis+1:] {
		s *= n
	}
	return s
}

// add returns r+t; with sign -1 r-t.
func (g *grid) add(r, t, sign int32) int32 {
	out := int32(0)
	for axis, n := range g.sizes {
		c := (g.coord[axis][r] + sign*g.coord[axis][t] + n) % n
		out = out*n + c
	}
	return out
}

// row returns x+t for every x.
func (g *grid) row(t int32) []int32 {
	out := make([]int32, g.n)
	for x := range out {
		out[x] = g.add(int32(x), t, 1)
	}
	return out
}

// rooted reports whether a collective treats one member unlike the others.
func rooted(op ir.Op) bool {
	return op == ir.OpBroadcast || op == ir.OpReduce || op == ir.OpGather || op == ir.OpScatter
}
