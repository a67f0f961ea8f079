package verify

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// This file proves a program on many ranks by simulating only one of them.
//
// The ranks are placed on a grid. G is the group of the grid's translations, which wrap around at the ends of the grid.
// The group is commutative, and for any two ranks exactly one translation takes the first to the second. The proof
// chooses an action of G on all objects of the ranks: for t in G, Φt takes rank r to rank r+t, and the n-th command,
// stream or event of r to the n-th of r+t. Φt takes the bytes of each buffer and the elements of each counter to
// themselves or, rotated by t along an axis, to others of the same buffer or counter (rotation.go). Each Φt is one to
// one, and Φs after Φt is Φs+t.
//
// Suppose that, for some rank ρ and every t, Φt takes the text of ρ to the text of ρ+t. Then Φt takes the text of any
// rank to the text of another rank, so Φt is an automorphism of the program. This has three consequences:
//
//  1. Matching. Φt takes the k-th collective, send, recv or signal of ρ to that of ρ+t, together with the team, lane
//     or element that it uses. Hence Φt takes the matching operations of ρ's to the matching operations of those of
//     ρ+t.
//  2. Order. If all ranks execute commands in step, each command as soon as possible, they execute every command that
//     any execution can reach: whether a command can execute does not depend on the order of the commands before it,
//     and is the same on all ranks. If ρ is blocked forever, all ranks are; otherwise none is. A stream of rank s+t
//     knows a command of rank r+t exactly if the corresponding stream of s knows the corresponding command of r. So
//     the translated vector clocks of ρ are the vector clocks of all ranks.
//  3. Conflicts. Φt takes any two accesses to a byte of ρ to two accesses to a byte of ρ+t that are ordered in the
//     same way. So the accesses to ρ's memory, by ρ and by other ranks, represent the accesses to all memory.
//
// Consecutive waits on a stream, with no other command between them, are compared as a set: their order changes neither
// the knowledge of the stream after them nor whether they end. Consecutive signals are also compared as a set: each
// signal makes known the commands before the first signal, and no memory is accessed between them.
//
// The proof does not assume that the texts correspond. Every rank is unrolled and compared with ρ, command by command
// and operand by operand (alike.go); if a rank differs, the verdict is Unknown. The proof does not cover the layout of
// memory, because it assumes that buffers share no bytes. The sharing of bytes is checked by the proof of a plan, and
// every run has a plan.

// Symmetry holds the arguments of the function Symmetric.
type Symmetry struct {
	// Grid holds the sizes of the axes on which the ranks are placed in order. The last axis varies fastest.
	Grid []int64
	// Unroller returns a function that unrolls one rank, for use by one goroutine. The plan p holds the tables that all
	// ranks share. Once rank 0 has been unrolled, the numbers in these tables do not depend on the order in which other
	// ranks are unrolled.
	Unroller func() (p *plan.Plan, unroll func(rank int) (*plan.Rank, error), err error)
	// MinCommands is the smallest number of commands, summed over all ranks, for which Symmetric attempts a proof. For
	// fewer commands, checking a plan is as fast and proves more.
	MinCommands int
	// Prog is the program that is unrolled. Options.Prog describes its use.
	Prog *ir.Program
}

// maxSymmetric limits the number of commands, summed over all ranks, that are compared.
const maxSymmetric = 50_000_000

// SymmetryProof is the result of Symmetric.
type SymmetryProof struct {
	// Result has the same form as the result for a plan. If the result contains a fault, Result.Plan contains only the
	// commands of a few ranks. The verdict is Unknown if ranks differ.
	*Result
	// Commands is the number of commands, summed over all ranks.
	Commands int
}

// unroller is the type of Symmetry.Unroller.
type unroller func() (p *plan.Plan, unroll func(rank int) (*plan.Rank, error), err error)

// Symmetric checks a program by one of its ranks, if all ranks do the same. Symmetric returns the errors of an
// unroller, which concern a single rank.
func Symmetric(s Symmetry) (*SymmetryProof, error) {
	q := &quotient{grid: newGrid(s.Grid), prog: s.Prog}
	p, one, err := s.Unroller()
	if err != nil {
		return nil, err
	}
	first, err := one(0)
	if err != nil {
		return nil, err
	}
	out := &SymmetryProof{Result: &Result{}, Commands: q.grid.n * len(first.Cmds)}
	if q.grid.n < 2 || out.Commands < s.MinCommands || out.Commands > maxSymmetric {
		out.Reason = fmt.Sprintf("all ranks have %d commands", out.Commands)
		return out, nil
	}
	q.p, q.rep = p, newLikeness(q.grid, p, first)
	if q.rep.fail(); q.rep.why == "" {
		q.rep.why, err = q.rep.learn(s.Unroller)
	}
	if err == nil && q.rep.why == "" {
		q.rep.why, err = q.rep.compareAll(s.Unroller)
	}
	if err != nil {
		return nil, err
	}
	if q.rep.why != "" {
		out.Reason = "not all ranks execute the same commands: " + q.rep.why
		return out, nil
	}
	out.Result = q.check()
	return out, nil
}

// learn determines the rotations along each axis from the differences between the first rank and the next rank along
// that axis.
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
		// Rank 0 is compared with the next rank along the axis or, if that rank executes other commands, with the
		// previous one.
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

// unraised determines the rotations of counters that no rank raises. They are those of a counter with the same number
// of elements on each rank. A stream that waits for a counter that no rank raises waits forever, on all ranks.
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

// compareAll compares every rank with the first rank, and stops at the first that differs.
func (a *likeness) compareAll(unroll unroller) (why string, err error) {
	var next atomic.Int64
	var failed atomic.Bool
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
		for !failed.Load() {
			r := int(next.Add(1))
			if r >= a.grid.n {
				return nil
			}
			other, err := one(r)
			if err != nil {
				return err
			}
			if w := c.differs(other); w != "" {
				failed.Store(true)
				mu.Lock()
				why = w
				mu.Unlock()
			}
		}
		return nil
	}
	for range min(runtime.GOMAXPROCS(0), a.grid.n-1) {
		wg.Go(func() {
			if e := work(); e != nil {
				failed.Store(true)
				mu.Lock()
				if err == nil {
					err = e
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return why, err
}

// grid is the grid on which the ranks are placed, and the group of its translations. The translations are numbered like
// the ranks: translation r moves rank 0 to rank r.
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

// add returns r+t, or r-t if sign is -1.
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

// rooted reports whether a collective treats one member differently from the others.
func rooted(op ir.Op) bool {
	return op == ir.OpBroadcast || op == ir.OpReduce || op == ir.OpGather || op == ir.OpScatter
}
