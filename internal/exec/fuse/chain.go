package fuse

import (
	"slices"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// membersMost and operandsMost limit the size of chains: longer ones would need too many registers.
const (
	membersMost  = 16
	operandsMost = 8
)

// Chain is a sequence of elementwise commands. The result of each member except the last is read only by later
// members.
type Chain struct {
	Members  []int      // command indices, in order
	Operands []plan.Ref // distinct operands from outside the chain
	// Args holds the operands of each member: a value i ≥ 0 is Operands[i], and ^i is the result of member i.
	Args [][]int
}

// Chains calls accept for the longest chain that begins at each command, in the order of each stream. If accept returns
// false, the chain that begins one command later is tried; an error ends the search and is returned.
func (f *Finder) Chains(accept func(*Chain) (bool, error)) error {
	for _, run := range f.runs() {
		for len(run) > 1 {
			n := f.longest(run)
			if n > 1 {
				ok, err := accept(f.chain(run[:n]))
				if err != nil {
					return err
				}
				if ok {
					f.take(run[:n])
					run = run[n:]
					continue
				}
			}
			run = run[1:]
		}
	}
	return nil
}

// Candidates calls visit for the chains that Chains would find if accept always returned true. It stops if visit
// returns an error.
func (f *Finder) Candidates(visit func(*Chain) error) error {
	for _, run := range f.runs() {
		for len(run) > 1 {
			n := f.longest(run)
			if n > 1 {
				if err := visit(f.chain(run[:n])); err != nil {
					return err
				}
			}
			run = run[n:]
		}
	}
	return nil
}

func (f *Finder) take(members []int) {
	for _, m := range members {
		f.taken[m] = true
	}
}

// runs returns sequences of commands that follow each other on a stream, belong to no group, may be members of a chain,
// and have results of one shape.
func (f *Finder) runs() [][]int {
	cmds := f.p.Cmds
	open := map[int32][]int{} // by stream
	var all [][]int
	finish := func(stream int32) {
		if run := open[stream]; len(run) > 1 {
			all = append(all, run)
		}
		delete(open, stream)
	}
	for i := range cmds {
		c := &cmds[i]
		run := open[c.Stream]
		if !chains(c) || f.taken[i] {
			finish(c.Stream)
			continue
		}
		if len(run) > 0 && !slices.Equal(cmds[run[0]].Outs[0].Shape, c.Outs[0].Shape) {
			finish(c.Stream)
			run = nil
		}
		open[c.Stream] = append(run, i)
	}
	for s := range f.p.Streams {
		finish(int32(s))
	}
	return all
}

// chains reports whether a command can be a member of a chain.
func chains(c *plan.Cmd) bool {
	return c.Kind == plan.Compute && c.Op.Info().Elementwise && c.Op != ir.OpFill &&
		len(c.Ins) > 0 && c.Outs[0].Elements() > 0
}

// longest returns the length of the longest chain that begins with the first command of run.
func (f *Finder) longest(run []int) int {
	best := 1
	for n := 2; n <= min(len(run), membersMost); n++ {
		if f.closed(run[:n]) {
			best = n
		}
	}
	return best
}

// closed reports whether only later members read the results of all members except the last, each exactly as it was
// written.
func (f *Finder) closed(members []int) bool {
	operands := 0
	made := map[place]plan.Ref{}
	within := map[place]int{}
	for i, m := range members {
		c := &f.p.Cmds[m]
		for _, in := range c.Ins {
			at := placeOf(in)
			within[at]++
			if out, ok := made[at]; !ok {
				operands++
			} else if !in.Same(out) {
				return false
			}
		}
		at := placeOf(c.Outs[0])
		if i == len(members)-1 {
			if _, overwrites := made[at]; overwrites {
				return false
			}
			break
		}
		if within[at] > 0 || !private(f.p, at) {
			return false
		}
		made[at] = c.Outs[0]
		within[at]++
	}
	for at := range made {
		if within[at] < 2 || within[at] != f.uses[at] {
			return false
		}
	}
	return operands <= operandsMost
}

func (f *Finder) chain(members []int) *Chain {
	c := &Chain{Members: members}
	made := map[place]int{} // by buffer: the member that writes it
	for i, m := range members {
		cmd := &f.p.Cmds[m]
		var args []int
		for _, in := range cmd.Ins {
			if j, ok := made[placeOf(in)]; ok {
				args = append(args, ^j)
				continue
			}
			at := slices.IndexFunc(c.Operands, in.Same)
			if at < 0 {
				at, c.Operands = len(c.Operands), append(c.Operands, in)
			}
			args = append(args, at)
		}
		c.Args = append(c.Args, args)
		made[placeOf(cmd.Outs[0])] = i
	}
	return c
}

// Relus calls accept for each linear or matmul whose result is read only by the relu after it, and that belongs to no
// accepted group. A GEMM can apply the relu before it rounds.
func (f *Finder) Relus(accept func(gemm, relu int) error) error {
	before := map[int32]int{} // by stream: the previous command
	for i := range f.p.Cmds {
		c := &f.p.Cmds[i]
		last, ok := before[c.Stream]
		before[c.Stream] = i
		relu := ok && !f.taken[i] && !f.taken[last] && c.Kind == plan.Compute && c.Op == ir.OpRelu
		if relu && c.Outs[0].Elements() > 0 && f.feeds(last, i) {
			if err := accept(last, i); err != nil {
				return err
			}
		}
	}
	return nil
}

// feeds reports whether only a relu reads a GEMM's result.
func (f *Finder) feeds(gemm, relu int) bool {
	b := &f.p.Cmds[gemm]
	// A GEMM with scales has no epilogue.
	if b.Kind != plan.Compute || b.Op != ir.OpLinear && b.Op != ir.OpMatmul || len(b.Ins) == 4 {
		return false
	}
	at := placeOf(b.Outs[0])
	return f.p.Cmds[relu].Ins[0].Same(b.Outs[0]) && private(f.p, at) && f.uses[at] == 2
}
