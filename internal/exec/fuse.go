package exec

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// Elementwise commands that follow each other on a stream become one kernel
// where each result but the last is read by those commands only: what they hand
// on then never goes through memory. Bits stay the same, since a machine rounds
// in between as if it had been stored. Commands next to each other on a stream
// have nothing between them that another stream could wait for, so nobody sees
// that the first ones are done later.

// linksMost and operandsMost bound chains: longer ones would run out of
// registers.
const (
	linksMost    = 16
	operandsMost = 8
)

// fusion is commands of one stream, in order, of which the last one is launched
// for all.
type fusion struct {
	members []int
	name    string // of all of them: "silu+mul"
}

// fuse prepares the plan's chains, where the machine takes such kernels, and
// returns them by command: the commands that need nothing more. The last of each
// holds the launch.
func (p *Program) fuse() (map[int]*fusion, error) {
	if !p.caps.Chains || p.opts.NoChains {
		return nil, nil
	}
	finder := &chainFinder{p: p, uses: map[place]int{}}
	for i := range p.plan.Cmds {
		for _, r := range p.used(&p.plan.Cmds[i]) {
			finder.uses[place{r.Rank, r.Buf}]++
		}
	}
	runs := finder.runs()
	finder.foreseeChains(runs)
	fused := map[int]*fusion{}
	for _, run := range runs {
		for len(run) > 1 {
			n := finder.longest(run)
			if n < 2 {
				run = run[1:]
				continue
			}
			f, err := p.prepareChain(run[:n])
			if err != nil {
				return nil, err
			}
			if f == nil { // the machine declines
				run = run[1:]
				continue
			}
			for _, c := range f.members {
				fused[c] = f
			}
			run = run[n:]
		}
	}
	return fused, finder.products(fused)
}

// products adds to fused the products whose result only a relu reads, which
// follows: machines apply it before they round, which gives the same bits.
func (f *chainFinder) products(fused map[int]*fusion) error {
	p, before := f.p, map[int32]int{} // by stream: the command before
	for i := range p.plan.Cmds {
		c := &p.plan.Cmds[i]
		last, ok := before[c.Stream]
		before[c.Stream] = i
		if !ok || fused[i] != nil || c.Kind != plan.Compute || c.Op != ir.OpRelu || c.Outs[0].Elements() == 0 {
			continue
		}
		b := &p.plan.Cmds[last]
		if b.Kind != plan.Compute || b.Op != ir.OpLinear && b.Op != ir.OpMatmul {
			continue
		}
		at := place{b.Outs[0].Rank, b.Outs[0].Buf}
		if !sameRef(c.Ins[0], b.Outs[0]) || !p.private(at) || f.uses[at] != 2 {
			continue
		}
		k, err := p.kernel(b)
		if err != nil {
			return err
		}
		k.Relu = true
		if k.Outs, err = p.views(c.Outs); err != nil {
			return err
		}
		one, err := p.launchFor([]int{last, i}, k)
		if err != nil {
			return err
		}
		if one != nil {
			fused[last], fused[i] = one, one
		}
	}
	return nil
}

// chainFinder looks for chains.
type chainFinder struct {
	p    *Program
	uses map[place]int // of each tensor, by commands
}

// runs lists the commands that may be links, as far as they follow each other on
// a stream and have results of one shape.
func (f *chainFinder) runs() [][]int {
	cmds := f.p.plan.Cmds
	open := map[int32][]int{}
	var all [][]int
	for i := range cmds {
		c := &cmds[i]
		last := open[c.Stream]
		switch {
		case !f.links(c):
			if len(last) > 1 {
				all = append(all, last)
			}
			delete(open, c.Stream)
		case len(last) > 0 && !slices.Equal(cmds[last[0]].Outs[0].Shape, c.Outs[0].Shape):
			if len(last) > 1 {
				all = append(all, last)
			}
			open[c.Stream] = []int{i}
		default:
			open[c.Stream] = append(last, i)
		}
	}
	for s := range f.p.plan.Streams {
		if last := open[int32(s)]; len(last) > 1 {
			all = append(all, last)
		}
	}
	return all
}

// links reports whether a command can be a link.
func (f *chainFinder) links(c *plan.Cmd) bool {
	return c.Kind == plan.Compute && c.Op.Info().Elementwise && c.Op != ir.OpFill && len(c.Ins) > 0 && c.Outs[0].Elements() > 0
}

// longest returns how many of the commands, from the first on, make the longest
// chain.
func (f *chainFinder) longest(run []int) int {
	best := 1
	for n := 2; n <= min(len(run), linksMost); n++ {
		if f.closed(run[:n]) {
			best = n
		}
	}
	return best
}

// closed reports whether all results but the last are read by later members
// only, each as it was written, and by nobody else.
func (f *chainFinder) closed(members []int) bool {
	cmds := f.p.plan.Cmds
	operands := 0
	made := map[place]plan.Ref{}
	within := map[place]int{}
	for i, m := range members {
		c := &cmds[m]
		for _, in := range c.Ins {
			at := place{in.Rank, in.Buf}
			within[at]++
			if out, ok := made[at]; !ok {
				operands++
			} else if !sameRef(in, out) {
				return false
			}
		}
		if i == len(members)-1 {
			_, ok := made[place{c.Outs[0].Rank, c.Outs[0].Buf}]
			if ok {
				return false // it writes over a link
			}
			break
		}
		at := place{c.Outs[0].Rank, c.Outs[0].Buf}
		if within[at] > 0 || !f.p.private(at) {
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

// private reports whether only the plan's own commands see a tensor.
func (p *Program) private(at place) bool {
	b := &p.plan.Buffers[at.buf]
	return b.Space == plan.Arena && (b.Role == plan.RoleValue || b.Role == plan.RoleAlloc)
}

func sameRef(a, b plan.Ref) bool {
	return a.Rank == b.Rank && a.Buf == b.Buf && a.DType == b.DType && a.Off == b.Off && slices.Equal(a.Shape, b.Shape) && slices.Equal(a.Strides, b.Strides)
}

// prepareChain makes one kernel of commands; nil where the machine declines it.
func (p *Program) prepareChain(members []int) (*fusion, error) {
	k, err := p.chainKernel(members)
	if err != nil {
		return nil, err
	}
	return p.launchFor(members, k)
}

// chainKernel is what commands that follow each other compute together.
func (p *Program) chainKernel(members []int) (k device.Kernel, err error) {
	made := map[place]int{} // by which link
	var refs []plan.Ref
	for i, m := range members {
		c := &p.plan.Cmds[m]
		a := &c.Attr
		link := device.Link{Op: c.Op, DType: c.Outs[0].DType, Value: a.Value, Int: a.Int, HasInt: a.HasInt}
		for _, in := range c.Ins {
			if j, ok := made[place{in.Rank, in.Buf}]; ok {
				link.Args = append(link.Args, ^j)
				continue
			}
			at := slices.IndexFunc(refs, func(r plan.Ref) bool { return sameRef(r, in) })
			if at < 0 {
				at, refs = len(refs), append(refs, in)
			}
			link.Args = append(link.Args, at)
		}
		made[place{c.Outs[0].Rank, c.Outs[0].Buf}] = i
		k.Links = append(k.Links, link)
	}
	c := &p.plan.Cmds[members[len(members)-1]]
	k.Op = c.Op
	if k.Ins, err = p.views(refs); err != nil {
		return k, err
	}
	k.Outs, err = p.views(c.Outs)
	return k, err
}

// launchFor has the last of the members launch k, and the others nothing; nil
// where the machine declines k.
func (p *Program) launchFor(members []int, k device.Kernel) (*fusion, error) {
	last := members[len(members)-1]
	c := &p.plan.Cmds[last]
	l, err := p.world.Device(int(c.Rank)).Prepare(k)
	switch {
	case errors.Is(err, device.ErrUnsupported):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("%s: %w", p.where(int64(last)), err)
	}
	var names []string
	for _, m := range members {
		p.cmds[m] = command{kind: plan.Compute, stream: p.streams[c.Stream]}
		names = append(names, p.plan.Cmds[m].Op.String())
	}
	p.cmds[last].launch, p.cmds[last].marked = l, true
	return &fusion{members, strings.Join(names, "+")}, nil
}
