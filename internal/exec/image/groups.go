package image

import (
	"errors"
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/exec/fuse"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// group prepares launches that execute several commands, if the machine has such kernels. The launch of a group
// replaces the group's last command, or the all_reduce of a norm. The other commands of the group get no launch.
func (b *builder) group() error {
	im := b.im
	im.Groups = map[int]*Group{}
	if im.Caps.ScaleColumns {
		im.columns = fuse.ScalesByColumns(im.Plan)
	}
	if im.Caps.Chains && !im.opts.NoChains {
		finder := fuse.NewFinder(im.Plan)
		if err := finder.Joints(b.takeJoint); err != nil {
			return err
		}
		b.precompileGroups(finder)
		if err := finder.Chains(b.takeChain); err != nil {
			return err
		}
		if err := finder.Relus(b.takeRelu); err != nil {
			return err
		}
		if err := finder.Quantizes(b.takeQuantize); err != nil {
			return err
		}
		err := finder.Attentions(func(attention, lse int) error {
			_, err := b.launchFor([]int{attention, lse}, func(b *builder) device.Kernel {
				return attentionKernel(b, attention, lse)
			})
			return err
		})
		if err != nil {
			return err
		}
		err = finder.Ropes(func(r *fuse.Ropes) error {
			_, err := b.launchFor(r.Members, func(b *builder) device.Kernel { return ropesKernel(b, r) })
			return err
		})
		if err != nil {
			return err
		}
	}
	b.takeNorms()
	return nil
}

func (b *builder) takeChain(c *fuse.Chain) (bool, error) {
	return b.launchFor(c.Members, func(b *builder) device.Kernel { return b.chainKernel(c) })
}

func (b *builder) takeJoint(j *fuse.Joint) (bool, error) {
	return b.launchFor(j.Members(), func(b *builder) device.Kernel { return b.jointKernel(j) })
}

// jointKernel returns the kernel that computes several linears of one operand.
func (b *builder) jointKernel(j *fuse.Joint) device.Kernel {
	p := b.im.Plan
	last := &p.Cmds[j.Linears[len(j.Linears)-1]]
	op := device.Linears{Gated: j.Gate != nil, Constant: true, Fixed: b.im.opts.Fixed, Timed: b.im.opts.Timed}
	k := device.Kernel{Ins: b.im.Views(last.Ins[0])}
	var scales []device.View
	if op.Scaled = len(last.Ins) == 4; op.Scaled {
		scales = b.im.Views(last.Ins[2])
	}
	for _, m := range j.Linears {
		c := &p.Cmds[m]
		k.Ins = append(k.Ins, b.im.View(c.Ins[1]))
		k.Outs = append(k.Outs, b.im.View(c.Outs[0]))
		if op.Scaled {
			scales = append(scales, b.im.View(c.Ins[3]))
		}
		op.Constant = op.Constant && b.constantWeight(c)
	}
	k.Ins = append(k.Ins, scales...)
	if op.Gated {
		k.Outs = append(k.Outs, b.im.View(p.Cmds[j.Gate[1]].Outs[0]))
	}
	k.Op = op
	return k
}

func (b *builder) takeRelu(gemm, relu int) error {
	_, err := b.launchFor([]int{gemm, relu}, func(b *builder) device.Kernel {
		k := b.kernel(&b.im.Plan.Cmds[gemm])
		switch op := k.Op.(type) {
		case device.Linear:
			op.Relu = true
			k.Op = op
		case device.Matmul:
			op.Relu = true
			k.Op = op
		}
		k.Outs = b.im.Views(b.im.Plan.Cmds[relu].Outs...)
		return k
	})
	return err
}

func (b *builder) takeQuantize(scales, quantize int) error {
	_, err := b.launchFor([]int{scales, quantize}, func(b *builder) device.Kernel {
		k := b.kernel(&b.im.Plan.Cmds[quantize])
		k.Op = device.Quantize{Max: device.OpOf(ir.OpScales, b.im.Plan.Cmds[scales].Attr).(device.Scales).Max}
		return k
	})
	return err
}

// attentionKernel returns the kernel that computes an attention and attention_lse of the same queries and keys.
func attentionKernel(b *builder, attention, lse int) device.Kernel {
	k := b.kernel(&b.im.Plan.Cmds[attention])
	op := k.Op.(device.Attention)
	op.LSE = true
	k.Op, k.Outs = op, append(b.im.Views(b.im.Plan.Cmds[lse].Outs...), k.Outs...)
	return k
}

// ropesKernel returns the kernel that computes ropes and index_copies.
func ropesKernel(b *builder, r *fuse.Ropes) device.Kernel {
	var op device.Ropes
	var ins, outs, angles, rows []plan.Ref
	for _, part := range r.Parts {
		at := device.RopePart{Rotates: part.Rope >= 0, Keeps: part.Copy >= 0}
		var in, out plan.Ref
		if at.Keeps {
			c := &b.im.Plan.Cmds[part.Copy]
			in, out, rows = c.Ins[0], c.Outs[0], c.Ins[1:2]
		}
		if at.Rotates {
			c := &b.im.Plan.Cmds[part.Rope]
			op.Rope, in, angles = device.Rope{Rope: c.Attr.Rope()}, c.Ins[0], c.Ins[1:]
			if !at.Keeps {
				out = c.Outs[0]
			}
		}
		op.Parts, ins, outs = append(op.Parts, at), append(ins, in), append(outs, out)
	}
	return device.Kernel{Op: op, Ins: b.im.Views(slices.Concat(ins, angles, rows)...), Outs: b.im.Views(outs...)}
}

// chainKernel returns the kernel that computes the commands of a chain.
func (b *builder) chainKernel(chain *fuse.Chain) device.Kernel {
	p := b.im.Plan
	op := device.Chain{Stored: chain.Stored}
	for i, m := range chain.Members {
		c := &p.Cmds[m]
		op.Links = append(op.Links, device.Link{
			Op: c.Op, Args: chain.Args[i], DType: c.Outs[0].DType, Numbers: c.Attr.Numbers})
	}
	return device.Kernel{Op: op, Ins: b.im.Views(chain.Operands...), Outs: b.im.Views(chain.Results(p)...)}
}

// launchFor prepares a launch of the kernel that replaces the last command of a group; the other commands get no
// launch. The result is false if the machine declines the kernel.
func (b *builder) launchFor(members []int, kernel func(*builder) device.Kernel) (bool, error) {
	im := b.im
	last := members[len(members)-1]
	c := &im.Plan.Cmds[last]
	l, err := im.World.Device(int(c.Rank)).Prepare(kernel(b))
	switch {
	case errors.Is(err, device.ErrUnsupported):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("%s: %w", im.Plan.Where(int64(last)), err)
	}
	for _, m := range members {
		im.Cmds[m] = Command{Kind: plan.Compute, Stream: im.Streams[c.Stream]}
	}
	im.Cmds[last].Launch, im.Cmds[last].Marked = l, true
	b.together(members).kernel = kernel
	return true, nil
}

func (b *builder) together(members []int) *Group {
	g := &Group{Members: members, Name: fuse.Name(b.im.Plan, members)}
	for _, m := range members {
		b.im.Groups[m] = g
	}
	return g
}

// takeNorms removes the commands that the launches of all_reduces include. It must be called after the launches of
// all_reduces were prepared.
func (b *builder) takeNorms() {
	im, joined := b.im, 0
	for i, n := range b.found {
		coll := &im.Plan.Colls[i]
		if !im.channels[coll.Channel].Normed(int(coll.Seq)) {
			continue
		}
		joined++
		for _, m := range n.Members {
			b.together([]int{m.Reduce, m.Add, m.Norm})
			for _, c := range []int{m.Add, m.Norm} {
				im.Cmds[c] = Command{Kind: plan.Compute, Stream: im.Streams[im.Plan.Cmds[c].Stream]}
			}
		}
	}
	im.opts.Logger.Debug("all_reduces followed by an add and a rms_norm", "found", len(b.found), "joined", joined)
}

// On machines that compile kernels, the compilations for a program start before the first kernel is prepared, so that
// they run concurrently.

// precompiledMost is the largest number of commands that precompilation considers. Loops are unrolled, so most later
// commands use the same kernels as earlier ones.
const precompiledMost = 4096

var errEnough = errors.New("enough commands were considered")

// precompile starts the compilation of k on rank's device.
func (b *builder) precompile(rank int32, k device.Kernel) {
	b.im.World.Device(int(rank)).PrepareAhead(k)
}

// precompileGroups starts the compilation of groups. It assumes that the machine accepts every chain, every attention
// with attention_lse, and all ropes.
func (b *builder) precompileGroups(finder *fuse.Finder) {
	if !b.im.Caps.Precompile {
		return
	}
	looked := 0
	_ = finder.Candidates(func(c *fuse.Chain) error {
		b.precompile(b.im.Plan.Cmds[c.Members[0]].Rank, b.chainKernel(c))
		if looked += len(c.Members); looked >= precompiledMost {
			return errEnough
		}
		return nil
	})
	looked = 0
	_ = finder.Attentions(func(attention, lse int) error {
		b.precompile(b.im.Plan.Cmds[attention].Rank, attentionKernel(b, attention, lse))
		if looked += 2; looked >= precompiledMost {
			return errEnough
		}
		return nil
	})
	looked = 0
	_ = finder.Ropes(func(r *fuse.Ropes) error {
		b.precompile(b.im.Plan.Cmds[r.Members[0]].Rank, ropesKernel(b, r))
		if looked += len(r.Members); looked >= precompiledMost {
			return errEnough
		}
		return nil
	})
}

// precompileRest starts the compilation of commands that belong to no group.
func (b *builder) precompileRest() {
	if !b.im.Caps.Precompile {
		return
	}
	for i := range min(len(b.im.Plan.Cmds), precompiledMost) {
		c := &b.im.Plan.Cmds[i]
		if c.Kind == plan.Compute && b.im.Groups[i] == nil && writes(c) {
			b.precompile(c.Rank, b.kernel(c))
		}
	}
}

// kernel returns the kernel of a compute command.
func (b *builder) kernel(c *plan.Cmd) device.Kernel {
	ins := b.im.Views(c.Ins...)
	if c.Op == ir.OpMatmul {
		ins[1] = repeated(ins[1], ins[0].Shape)
	}
	return device.Kernel{Op: b.op(c), Ins: ins, Outs: b.im.Views(c.Outs...)}
}

// constantWeight reports whether the weight of a linear, and its scales, are constant while the linear and the kernels
// directly before it run.
func (b *builder) constantWeight(c *plan.Cmd) bool {
	constant := func(r plan.Ref) bool {
		return b.im.stored(r.Buf) || b.im.unwritten(r.Buf) && b.im.late[c.Stream]
	}
	return constant(c.Ins[1]) && (len(c.Ins) < 4 || constant(c.Ins[3]))
}

// op returns the operation of a compute command, including the options that affect how it is computed.
func (b *builder) op(c *plan.Cmd) device.Op {
	if c.Op == ir.OpLaunch {
		return b.user(c)
	}
	opts := &b.im.opts
	switch op := device.OpOf(c.Op, c.Attr).(type) {
	case device.Linear:
		op.Constant, op.Fixed, op.Timed = b.constantWeight(c), opts.Fixed, opts.Timed
		return op
	case device.Matmul:
		op.Fixed, op.Timed = opts.Fixed, opts.Timed
		return op
	case device.Attention:
		op.Fixed = opts.Fixed
		return op
	default:
		return op
	}
}

// user returns the user's kernel that a command launches.
func (b *builder) user(c *plan.Cmd) *device.UserKernel {
	l := &b.im.Plan.Launches[c.Launch-1]
	k := &b.im.Plan.Kernels[l.Kernel]
	u := &device.UserKernel{File: k.File, Entry: k.Name, Code: k.Code, Grid: l.Grid, Block: l.Block, Shared: l.Shared,
		Checked: b.im.opts.CheckLaunches}
	for _, p := range l.Params {
		u.Params = append(u.Params, device.UserParam{In: int(p.In), Out: int(p.Out), DType: p.DType, Bits: p.Bits})
	}
	return u
}

// writes reports whether a command has a result with elements.
func writes(c *plan.Cmd) bool {
	return slices.ContainsFunc(c.Outs, func(r plan.Ref) bool { return r.Elements() > 0 })
}

// repeated returns a matmul's second operand with the batch dimensions of the first operand, whose shape is like. If
// the second operand is a single matrix, it is repeated with stride 0, because devices require operands of equal rank.
func repeated(b device.View, like []int64) device.View {
	extra := len(like) - len(b.Shape)
	if extra <= 0 {
		return b
	}
	b.Shape = slices.Concat(like[:extra], b.Shape)
	b.Strides = slices.Concat(make([]int64, extra), b.Strides)
	return b
}
