package exec

import (
	"context"
	"fmt"
	"slices"
	"time"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
)

// lasting is what stays on the devices from run to run: the parameters whose tensors
// do, weights, where no command writes to them. A parameter's buffer is nobody else's
// for as long as the plan is loaded, so what was uploaded once is still there.
type lasting struct {
	// uploads are the commands that upload an input, a rank each; nil for an input that
	// some other command writes to.
	uploads [][]int
	// shown tells, by input, whether others than its own rank use it, or give it to others.
	shown []bool
	// holds tells, by input, what is on the devices.
	holds []*holding
	// rests tells, by input block, what this batch's runs do not upload.
	rests []bool
}

// findLasting finds the inputs that can last.
func (p *Program) findLasting() error {
	l := &p.lasting
	l.uploads, l.holds = make([][]int, len(p.inputs)), make([]*holding, len(p.inputs))
	l.shown = make([]bool, len(p.inputs))
	written := make([]bool, len(p.inputs))
	blocks, of := 0, map[int32]int{} // the input that a buffer is
	for i := range p.inputs {
		blocks += len(p.inputs[i].Parts)
		l.holds[i] = &holding{}
		for _, part := range p.inputs[i].Parts {
			if j, two := of[part.Ref.Buf]; two && j != i {
				written[i], written[j] = true, true
				l.shown[i], l.shown[j] = true, true
			}
			of[part.Ref.Buf] = i
		}
	}
	l.rests = make([]bool, blocks)
	for c := range p.plan.Cmds {
		cmd := &p.plan.Cmds[c]
		if cmd.Kind == plan.Input {
			l.uploads[cmd.IO] = append(l.uploads[cmd.IO], c)
			continue
		}
		reads, writes := p.accessed(cmd)
		for _, w := range writes {
			if i, ok := of[w.Buf]; ok {
				written[i] = true
			}
		}
		refs := slices.Concat(reads, writes)
		for _, r := range refs {
			if i, ok := of[r.Buf]; ok && !p.alone(cmd, refs, i) {
				l.shown[i] = true
			}
		}
	}
	for i := range p.inputs {
		if written[i] || p.inputs[i].Inout {
			l.uploads[i] = nil
		}
	}
	return nil
}

// alone reports whether a command that uses input i, and nothing but refs, is its rank's own
// work: a computation, a copy that stays there, or what reads the input as the result that
// it is, too.
func (p *Program) alone(c *plan.Cmd, refs []plan.Ref, i int) bool {
	switch c.Kind {
	case plan.Compute: // whose operands are its own rank's
		return true
	case plan.Copy:
		return !slices.ContainsFunc(refs, func(r plan.Ref) bool { return r.Rank != c.Rank })
	case plan.Output:
		return p.inputs[i].Inout && p.outputs[c.IO].Name == p.inputs[i].Name
	}
	return false
}

// rest decides what the runs of a batch do not upload: what lasts and is the same in
// all of them. What they upload the devices no longer hold for those to come.
func (p *Program) rest(batch []map[string]*tensor.Tensor, weights map[string]*tensor.Tensor) {
	l, b := &p.lasting, 0
	for i := range p.inputs {
		name := p.inputs[i].Name
		t := weights[name]
		other := func(in map[string]*tensor.Tensor) bool { return in[name] != t }
		rests := t != nil && l.uploads[i] != nil && !slices.ContainsFunc(batch, other)
		if !rests {
			l.holds[i].forget()
		}
		for range p.inputs[i].Parts {
			l.rests[b] = rests || p.residents[i] != nil
			b++
		}
	}
}

// Hold uploads weights ahead of the batches that will be given them; see RunBatchWith.
func (p *Program) Hold(ctx context.Context, weights map[string]*tensor.Tensor) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.broken != nil {
		return p.broken
	}
	var wrong []string
	for i := range p.inputs {
		if t := weights[p.inputs[i].Name]; t != nil {
			wrong = append(wrong, wrongInput(&p.inputs[i], t)...)
		}
	}
	if err := inputError(wrong); err != nil {
		return err
	}
	p.rest([]map[string]*tensor.Tensor{weights}, weights)
	if p.tracer != nil { // uploads ahead are no part of a run's trace
		defer p.tracer.recorder.Drain(p.describe)
	}
	return p.settle(ctx, weights)
}

// settle uploads what rests and is not on the devices yet. It waits for one parameter
// before the next, so that no more of them than one is copied to cut it into blocks. The
// world is at rest. If ctx ends, it ends between two parameters, and the program can still
// run: were the world given up as in a run, deadlines shorter than this takes would have it
// begin again for ever.
func (p *Program) settle(ctx context.Context, in map[string]*tensor.Tensor) error {
	l, b := &p.lasting, 0
	for i := range p.inputs {
		io := &p.inputs[i]
		first := b
		b += len(io.Parts)
		if len(io.Parts) == 0 || !l.rests[first] || p.residents[i] != nil || l.holds[i].is(in[io.Name]) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("before the run, while weights are uploaded: %w", err)
		}
		l.holds[i].forget()
		if err := p.bring(ctx, i, first, in[io.Name]); err != nil {
			return p.breakDown(err)
		}
		l.holds[i].set(in[io.Name])
	}
	return nil
}

// transferGrace is how long what is copied or tried outside of runs may take when the context has
// ended; then the world is given up, as in a run.
var transferGrace = time.Minute

// bring uploads input i, whose blocks begin with that one, and waits until it is there, a
// while longer than ctx lasts. In a trace it is part of the run to come.
func (p *Program) bring(ctx context.Context, i, block int, t *tensor.Tensor) error {
	parts := p.inputs[i].Parts
	f := &frame{in: make([][]byte, block+len(parts)), held: make([]*tensor.Tensor, block+len(parts))}
	for j := range parts {
		if err := f.cut(block+j, t, &parts[j]); err != nil {
			return err
		}
	}
	late, cancel := lateBy(ctx, transferGrace)
	defer cancel()
	base := p.run * int64(len(p.cmds))
	err := p.within(late, func() error {
		for _, c := range p.lasting.uploads[i] {
			if err := p.mark(&p.cmds[c], base+int64(c), 0, f); err != nil {
				return p.issueError(err, base+int64(c))
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return p.world.Sync(late)
}
