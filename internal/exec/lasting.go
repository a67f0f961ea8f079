package exec

import (
	"context"
	"slices"

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
	// holds are the tensors, by input, whose bytes are on the devices; nil for what is
	// not known to be anybody's.
	holds []*tensor.Tensor
	// rests tells, by input block, what this batch's runs do not upload.
	rests []bool
}

// watchWrites finds the inputs that can last.
func (p *Program) watchWrites() error {
	l := &p.lasting
	l.uploads, l.holds = make([][]int, len(p.inputs)), make([]*tensor.Tensor, len(p.inputs))
	blocks, of := 0, map[int32]int{} // the input that a buffer is
	for i := range p.inputs {
		blocks += len(p.inputs[i].Parts)
		for _, part := range p.inputs[i].Parts {
			of[part.Ref.Buf] = i
		}
	}
	l.rests = make([]bool, blocks)
	written := make([]bool, len(p.inputs))
	for c := range p.plan.Cmds {
		cmd := &p.plan.Cmds[c]
		if cmd.Kind == plan.Input {
			l.uploads[cmd.IO] = append(l.uploads[cmd.IO], c)
			continue
		}
		_, writes := p.accessed(cmd)
		for _, w := range writes {
			if i, ok := of[w.Buf]; ok {
				written[i] = true
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
			l.holds[i] = nil
		}
		for range p.inputs[i].Parts {
			if l.rests[b] && !rests {
				p.staged = 0 // transfers that nothing was staged for
			}
			l.rests[b] = rests
			b++
		}
	}
}

// settle uploads what rests and is not on the devices yet. It waits for one parameter
// before the next, so that no more of them than one is copied to cut it into blocks. The
// world is at rest.
func (p *Program) settle(ctx context.Context, in map[string]*tensor.Tensor) error {
	l, b := &p.lasting, 0
	base := p.run * int64(len(p.cmds))
	for i := range p.inputs {
		io := &p.inputs[i]
		first := b
		b += len(io.Parts)
		t := in[io.Name]
		if len(io.Parts) == 0 || !l.rests[first] || l.holds[i] == t {
			continue
		}
		l.holds[i] = nil
		f := &frame{in: make([][]byte, b), held: make([]*tensor.Tensor, b)}
		for j := range io.Parts {
			if err := f.cut(first+j, t, &io.Parts[j]); err != nil {
				return err
			}
		}
		for _, c := range l.uploads[i] {
			if err := p.mark(&p.cmds[c], base+int64(c), 0, f); err != nil {
				return p.issueError(err, base+int64(c))
			}
		}
		if err := p.world.Sync(ctx); err != nil {
			return err
		}
		l.holds[i] = t
	}
	return nil
}
