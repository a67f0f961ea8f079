package fuse

import (
	"math"
	"slices"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// Chain is a sequence of elementwise commands that one kernel can compute. The kernel reads all operands before it
// stores a result, and it stores only the results that other commands need.
type Chain struct {
	Members  []int      // command indices, in order
	Operands []plan.Ref // distinct operands from outside the chain
	// Args holds the operands of each member: an entry i ≥ 0 means Operands[i], and an entry ^i means the result of
	// member i.
	Args [][]int
	// Stored holds the members, except the last, whose results are stored, as indices in Members.
	Stored []int
	// Bytes is the number of bytes that the kernel reads and writes. An element that an operand repeats, because a
	// stride is 0, counts once.
	Bytes int64
}

// Results returns the results that are stored: those of the members in Stored, and the result of the last member.
func (c *Chain) Results(p *plan.Plan) []plan.Ref {
	var out []plan.Ref
	for _, i := range append(c.Stored[:len(c.Stored):len(c.Stored)], len(c.Members)-1) {
		out = append(out, p.Cmds[c.Members[i]].Outs[0])
	}
	return out
}

// Chains divides the elementwise commands of each stream into chains that together read and write the fewest bytes, and
// calls accept for each chain, in the order of the stream. If accept returns false, the chain's members from the second
// on are divided into shorter chains. An error ends the search and is returned.
func (f *Finder) Chains(accept func(*Chain) (bool, error)) error {
	f.findRelus()
	for _, run := range f.runs() {
		if err := f.offer(run, accept); err != nil {
			return err
		}
	}
	return nil
}

// offer calls accept for the chains in one of the sequences that the method runs returns.
func (f *Finder) offer(run []int, accept func(*Chain) (bool, error)) error {
	for _, c := range f.cut(run) {
		ok, err := accept(c)
		switch {
		case err != nil:
			return err
		case ok:
			f.take(c.Members)
		default:
			if err := f.offer(c.Members[1:], accept); err != nil {
				return err
			}
		}
	}
	return nil
}

// Candidates calls visit for the chains that Chains would find if accept always returned true. Candidates stops if
// visit returns an error.
func (f *Finder) Candidates(visit func(*Chain) error) error {
	f.findRelus()
	for _, run := range f.runs() {
		for _, c := range f.cut(run) {
			if err := visit(c); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f *Finder) take(members []int) {
	for _, m := range members {
		f.taken[m] = true
	}
}

// runs returns sequences of commands that may be members of chains: they are consecutive on a stream, belong to no
// group, and have results of one shape.
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

// cut divides a sequence of commands into chains, and returns the chains with several members.
func (f *Finder) cut(run []int) []*Chain {
	if len(run) < 2 {
		return nil
	}
	steps, sizes := f.steps(run)
	var found []*Chain
	first := 0
	fits := func(first int, s Segment) bool { return f.fits(f.chain(run, steps, first, s)) }
	for _, s := range Cut(steps, sizes, fits) {
		if s.Steps > 1 {
			found = append(found, f.chain(run, steps, first, s))
		}
		first += s.Steps
	}
	return found
}

// steps converts a sequence of commands to Steps, and returns the sizes of the tensors that the commands read but do
// not write.
func (f *Finder) steps(run []int) (steps []Step, sizes []int64) {
	made := map[place]int{} // by buffer: the last step that wrote it
	type tensor struct {
		ref plan.Ref
		id  int
	}
	read := map[place][]tensor{}
	for i, m := range run {
		c := &f.p.Cmds[m]
		out := c.Outs[0]
		s := Step{Bytes: out.Bytes(), Uses: math.MaxInt}
		for _, in := range c.Ins {
			at := placeOf(in)
			k, ok := made[at]
			if ok && in.Same(f.p.Cmds[run[k]].Outs[0]) {
				s.Args = append(s.Args, ^k)
				continue
			}
			if ok { // this operand is only a part of a result, so it must be read from memory
				s.From = max(s.From, k+1)
			}
			j := slices.IndexFunc(read[at], func(t tensor) bool { return t.ref.Same(in) })
			if j < 0 {
				j = len(read[at])
				read[at] = append(read[at], tensor{in, len(sizes)})
				sizes = append(sizes, in.Distinct())
			}
			s.Args = append(s.Args, read[at][j].id)
		}
		at := placeOf(out)
		if k, ok := made[at]; ok { // one kernel may write a buffer only once
			s.From = max(s.From, k+1)
		}
		if private(f.p, at) {
			s.Uses = f.uses[at] - 1 // without this write
		}
		made[at] = i
		steps = append(steps, s)
	}
	return steps, sizes
}

// chain converts the segment that begins with step first to a Chain. run is the sequence of commands from which the
// steps were made.
func (f *Finder) chain(run []int, steps []Step, first int, s Segment) *Chain {
	c := &Chain{Members: run[first : first+s.Steps], Stored: s.Stored, Bytes: s.Bytes}
	var outside []int
	for i, m := range c.Members {
		var args []int
		for j, a := range steps[first+i].Args {
			if k := ^a - first; a < 0 && k >= 0 {
				args = append(args, ^k)
				continue
			}
			at := slices.Index(outside, a)
			if at < 0 {
				at = len(outside)
				outside, c.Operands = append(outside, a), append(c.Operands, f.p.Cmds[m].Ins[j])
			}
			args = append(args, at)
		}
		c.Args = append(c.Args, args)
	}
	return c
}

// fits reports whether one kernel may store the results of a chain. They share no bytes. A result shares bytes with an
// operand only if they are the same tensor, so that the thread that overwrites an element is the one that has read it.
func (f *Finder) fits(c *Chain) bool {
	if slices.Contains(c.Stored, 0) && f.relus[c.Members[0]] {
		// the GEMM can apply this relu and store its result; as a member of a chain, the relu would have to read the GEMM's
		// result
		return false
	}
	results := c.Results(f.p)
	for i, r := range results {
		if f.meets(r, results[i+1:]...) {
			return false
		}
		for _, o := range c.Operands {
			if f.meets(r, o) && !f.equal(r, o) {
				return false
			}
		}
	}
	return true
}

// equal reports whether two tensors of one rank have the same elements in the same order. They may be in two buffers.
func (f *Finder) equal(r, o plan.Ref) bool {
	lo, _ := f.span(r)
	olo, _ := f.span(o)
	return lo == olo && r.DType == o.DType && slices.Equal(r.Shape, o.Shape) && slices.Equal(r.Strides, o.Strides)
}

// Relus calls accept for each linear or matmul whose result is read only by the relu after it, and that belongs to no
// accepted group. A GEMM can apply a relu before it rounds its result.
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

// findRelus sets f.relus.
func (f *Finder) findRelus() {
	f.relus = map[int]bool{}
	_ = f.Relus(func(_, relu int) error {
		f.relus[relu] = true
		return nil
	})
}

// feeds reports whether the given relu is the only reader of a GEMM's result.
func (f *Finder) feeds(gemm, relu int) bool {
	b := &f.p.Cmds[gemm]
	// A GEMM with scales has no epilogue.
	if b.Kind != plan.Compute || b.Op != ir.OpLinear && b.Op != ir.OpMatmul || len(b.Ins) == 4 {
		return false
	}
	at := placeOf(b.Outs[0])
	return f.p.Cmds[relu].Ins[0].Same(b.Outs[0]) && private(f.p, at) && f.uses[at] == 2
}
