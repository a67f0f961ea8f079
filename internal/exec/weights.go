package exec

import (
	"context"
	"fmt"
	"slices"

	"hocket.example/hocket/internal/exec/blocks"
	"hocket.example/hocket/internal/exec/grace"
	"hocket.example/hocket/internal/exec/image"
	"hocket.example/hocket/internal/exec/resident"
	"hocket.example/hocket/internal/tensor"
)

// uploaded is what stays on the devices from run to run: weights, where no command writes
// to them.
type uploaded struct {
	// contents tells, by input, what is on the devices.
	contents []*resident.Contents
	// skip tells, by input block, what this batch's runs do not upload.
	skip []bool
}

func newUploaded(im *image.Image) uploaded {
	u := uploaded{skip: make([]bool, blocksOf(im.Inputs))}
	for _, w := range im.Shared {
		if w != nil {
			u.contents = append(u.contents, &w.Contents)
		} else {
			u.contents = append(u.contents, &resident.Contents{})
		}
	}
	return u
}

// decideUploads decides what the runs of a batch do not upload: what stays and is the same in
// all of them. What they upload the devices no longer hold for those to come.
func (p *Program) decideUploads(batch []Args, weights *Weights, ins []int) {
	for _, i := range ins {
		name := p.im.Inputs[i].Name
		b := p.im.FirstBlock[name]
		t := weights.Tensor(name)
		other := func(a Args) bool { return a.host(name, weights) != t }
		stays := t != nil && p.im.Uploads[i] != nil && !slices.ContainsFunc(batch, other)
		if !stays {
			p.uploaded.contents[i].Forget()
		}
		for range p.im.Inputs[i].Parts {
			p.uploaded.skip[b] = stays || p.im.Residents[i] != nil
			b++
		}
	}
}

// Preload uploads weights ahead of the batches that will be given them; see RunBatch.
func (p *Program) Preload(ctx context.Context, weights map[string]*tensor.Tensor) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.broken != nil {
		return p.broken
	}
	var wrong []string
	for i := range p.im.Inputs {
		if t := weights[p.im.Inputs[i].Name]; t != nil {
			wrong = append(wrong, blocks.Wrong(&p.im.Inputs[i], t)...)
		}
	}
	if err := blocks.InputError(wrong); err != nil {
		return err
	}
	_, err := p.do(ctx, func() error {
		if err := p.rest(ctx); err != nil {
			return err
		}
		p.settled = settled{}
		p.decideUploads([]Args{{In: weights}}, NewWeights(weights), p.all)
		if p.tracer != nil { // uploads ahead are no part of a run's trace
			defer p.tracer.recorder.Drain(p.describe)
		}
		return p.uploadWeights(ctx, func(name string) *tensor.Tensor { return weights[name] })
	})
	return err
}

// uploads reports whether uploadWeights has something to do.
func (p *Program) uploads(take func(name string) *tensor.Tensor) bool {
	b := 0
	for i := range p.im.Inputs {
		first := b
		b += len(p.im.Inputs[i].Parts)
		if b > first && p.uploaded.skip[first] && p.im.Residents[i] == nil &&
			!p.uploaded.contents[i].Are(take(p.im.Inputs[i].Name)) {
			return true
		}
	}
	return false
}

// uploadWeights uploads what stays and is not on the devices yet. It waits for one parameter
// before the next, so that no more of them than one is copied to cut it into blocks. The
// world is at rest. If ctx ends, it ends between two parameters, and the program can still
// run: were the world given up as in a run, deadlines shorter than this takes would have it
// begin again for ever.
func (p *Program) uploadWeights(ctx context.Context, take func(name string) *tensor.Tensor) error {
	b := 0
	for i := range p.im.Inputs {
		io := &p.im.Inputs[i]
		first := b
		b += len(io.Parts)
		contents := p.uploaded.contents[i]
		if len(io.Parts) == 0 || !p.uploaded.skip[first] || p.im.Residents[i] != nil {
			continue
		}
		t := take(io.Name)
		if contents.Are(t) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("before the run, while weights are uploaded: %w", err)
		}
		contents.Forget()
		if err := p.upload(ctx, i, first, t); err != nil {
			return p.breakDown(err)
		}
		contents.Set(t)
	}
	return nil
}

// upload uploads input i, whose blocks begin with that one, and waits until it is there, a
// while longer than ctx lasts. In a trace it is part of the run to come.
func (p *Program) upload(ctx context.Context, i, block int, t *tensor.Tensor) error {
	parts := p.im.Inputs[i].Parts
	f := &frame{in: make([][]byte, block+len(parts))}
	for j := range parts {
		if !p.local(parts[j].Ref.Rank) {
			continue
		}
		var err error
		if f.in[block+j], _, err = blocks.Cut(t, &parts[j], nil); err != nil {
			return err
		}
	}
	late, cancel := grace.After(ctx, grace.Transfer)
	defer cancel()
	base := p.run * int64(len(p.im.Cmds))
	err := p.within(late, func() error {
		for _, c := range p.im.Uploads[i] {
			if !p.local(p.im.Plan.Cmds[c].Rank) {
				continue
			}
			if err := p.mark(c, base+int64(c), 0, f); err != nil {
				return p.issueError(err, base+int64(c))
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return p.im.World.Sync(late)
}
