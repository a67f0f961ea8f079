package exec

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/exec/blocks"
	"hocket.example/hocket/internal/exec/resident"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
)

// ErrCapturing says that something has to be made ready, which cannot be while a stream of the caller's is captured.
var ErrCapturing = errors.New("it cannot be made ready while a graph is captured: enqueue it once before")

// Enqueue gives streams of the caller's, one for each rank of this process, one run: it begins when what they were
// given before has ended, and what they are given later begins when it has. Enqueue returns before the run has ended;
// only what a first run makes ready is waited for. While a stream is captured, as capturing says, the run becomes part
// of its graph, which may be launched for as long as the program is open, in order with other runs of it.
//
// What goes wrong in the run comes out of a later call. Arguments are as for RunBatch, but weights and what is on the
// devices are all that they may name.
func (p *Program) Enqueue(
	ctx context.Context, a Args, weights *Weights, streams []uintptr, capturing bool,
) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.broken != nil {
		return p.broken
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("before the run: %w", err)
	}
	p.recorder.begin(p.run, 1)
	lost, err := p.do(ctx, func() error { return p.enqueue(ctx, a, weights, streams, capturing) })
	p.recorder.end(err)
	if lost {
		return spoiled([]Args{a}, err)
	}
	return err
}

// openCallers opens what work on streams of the caller's takes.
func (p *Program) openCallers() error {
	if p.callers != nil {
		return nil
	}
	var err error
	p.callers, err = p.im.World.Callers()
	p.left = map[*resident.DeviceTensor]bool{}
	return err
}

// enqueue is Enqueue for a program that can run.
func (p *Program) enqueue(
	ctx context.Context, a Args, weights *Weights, streams []uintptr, capturing bool,
) error {
	defer p.trimFrames()
	if capturing && p.callers == nil {
		return ErrCapturing // opening takes streams
	}
	if err := p.openCallers(); err != nil {
		return err
	}
	if err := p.callers.Err(); err != nil {
		return p.breakDown(err)
	}
	streams, err := p.byRank(streams, capturing)
	if err != nil {
		return err
	}
	batch := []Args{a}
	ins, known, err := p.look(batch, weights)
	if err != nil {
		return err
	}
	if err := p.hostUploads(ins); err != nil {
		return err
	}
	brings := !known && p.uploads(func(name string) *tensor.Tensor { return a.host(name, weights) })
	if !capturing {
		err = p.makeReady(ctx, batch, weights, known, brings)
	} else if p.run == 0 || brings || p.tracer != nil {
		err = ErrCapturing
	} else if p.peers != nil && p.replay == nil {
		// Runs in several processes come by graph then: counters that these raise count from the beginning of one.
		p.replay, err = newReplay(p.im)
	}
	if err != nil {
		return err
	}
	if err := p.announce(1); err != nil {
		return p.breakDown(err)
	}
	if capturing {
		err = p.capture(ctx, streams)
	} else {
		err = p.within(ctx, func() error {
			return p.callers.Between(streams, func() error { return p.issue(1) })
		})
		p.inFlight, p.ended = true, nil // whoever waits now waits for this run, too
	}
	setContents(batch, err == nil)
	if err == nil {
		for _, t := range a.DeviceOut {
			p.left[t] = true
		}
		return nil
	}
	if err = p.breakDown(err); updates(batch) {
		err = &SpoiledError{err}
	}
	return err
}

// byRank are streams of this process's ranks, in their order, by rank.
func (p *Program) byRank(streams []uintptr, capturing bool) ([]uintptr, error) {
	all, n := make([]uintptr, p.im.Plan.Ranks), 0
	for r := range all {
		if !p.im.World.Local(r) {
			continue
		}
		if n < len(streams) {
			all[r] = streams[n]
		}
		n++
	}
	if capturing && n > 1 {
		return nil, fmt.Errorf("%w: a graph of the caller's with %d ranks of one process: start a process for each",
			device.ErrUnsupported, n)
	}
	if n != len(streams) {
		return nil, fmt.Errorf("%w: %d streams are given for %d ranks of this process", blocks.ErrInput, len(streams),
			n)
	}
	return all, nil
}

// capture puts a run into the caller's graph.
func (p *Program) capture(ctx context.Context, streams []uintptr) error {
	run := p.recordedRun()
	err := p.callers.CaptureInto(ctx, streams, func() error { return p.issueAll(p.im.Own, 0, run, p.frames[0]) })
	p.captured = p.captured || err == nil
	return err
}

// hostUploads names what the run laid ready would upload, of some inputs.
func (p *Program) hostUploads(ins []int) error {
	f := p.frames[0]
	for _, i := range ins {
		first := p.im.FirstBlock[p.im.Inputs[i].Name]
		for b := range p.im.Inputs[i].Parts {
			if f.in[first+b] != nil && !p.uploaded.skip[first+b] {
				return fmt.Errorf("%w: %%%s would be uploaded, for which an enqueued run cannot wait: "+
					"give its address, or bind a device tensor",
					blocks.ErrInput, p.im.Inputs[i].Name)
			}
		}
	}
	return nil
}

// makeReady has ready what stays for later runs. Only what was not ready before is waited for.
func (p *Program) makeReady(ctx context.Context, batch []Args, weights *Weights, known, brings bool) error {
	if brings || p.replay != nil && p.replay.graph == nil && p.run > 0 {
		if err := p.rest(ctx); err != nil {
			return err
		}
	}
	if !known {
		if err := p.bring(ctx, batch, weights); err != nil {
			return err
		}
	}
	return p.prepareRuns(ctx, 1)
}

// rest waits until enqueued runs have ended. Where ctx ends first they go on.
func (p *Program) rest(ctx context.Context) error {
	if !p.inFlight {
		return nil
	}
	if p.ended == nil {
		p.ended = make(chan struct{})
		go func(w device.World, ended chan struct{}) {
			defer close(ended)
			_ = w.Sync(context.Background()) // its error is the world's
		}(p.im.World, p.ended)
	}
	select {
	case <-p.ended:
	case <-ctx.Done():
		return fmt.Errorf("enqueued runs were waited for: %w", ctx.Err())
	}
	p.inFlight, p.ended = false, nil
	err := p.callers.Err()
	if err != nil {
		for t := range p.left {
			t.SetContents(false)
		}
		err = p.breakDown(err)
	}
	clear(p.left)
	return err
}

// Rest waits until enqueued runs have ended, and returns what went wrong in them.
func (p *Program) Rest(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.broken != nil {
		return p.broken
	}
	if p.callers == nil {
		return nil
	}
	_, err := p.do(ctx, func() error {
		p.inFlight = p.inFlight || p.captured // launches of graphs are not seen here
		return p.rest(ctx)
	})
	return err
}

// Captured reports whether a graph of the caller's has a run of the program, which must stay then.
func (p *Program) Captured() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.captured && p.broken == nil
}

// addressed returns views of what lies at addresses of the caller's, in place of what views has of inputs or outputs.
func (p *Program) addressed(
	views []device.View, ios []plan.IO, at map[string]map[int]uintptr, from bool,
) ([]device.View, error) {
	if len(at) == 0 {
		return views, nil
	}
	if views == nil {
		views = make([]device.View, blocksOf(ios))
	}
	b := 0
	for i := range ios {
		for k := range ios[i].Parts {
			ref := ios[i].Parts[k].Ref
			if address := at[ios[i].Name][int(ref.Rank)]; address != 0 && p.local(ref.Rank) {
				mem, err := p.callers.At(int(ref.Rank), address, ref.Bytes())
				if err != nil {
					return nil, addressError(ios[i].Name, err)
				}
				v := device.Dense(mem, ios[i].DType, ref.Shape)
				if !ref.Dense() {
					err = p.prepareCopy(ref, v, from)
				}
				if err != nil {
					return nil, fmt.Errorf("%s: %w", ios[i].Name, err)
				}
				views[b] = v
			}
			b++
		}
	}
	return views, nil
}

// addressError is one about an input or output.
func addressError(name string, err error) error {
	if errors.Is(err, device.ErrAddress) {
		return fmt.Errorf("%w: %s: %w", blocks.ErrInput, name, err)
	}
	return fmt.Errorf("%s: %w", name, err)
}

// wrongAt says what is wrong with addresses for an input or output.
func (p *Program) wrongAt(io *plan.IO, at map[int]uintptr) (wrong []string) {
	for _, rank := range slices.Sorted(maps.Keys(at)) {
		part := (*plan.IOPart)(nil)
		if rank >= 0 && rank < p.im.Plan.Ranks && p.im.World.Local(rank) {
			part = io.Of(int32(rank))
		}
		switch size := uintptr(io.DType.Size()); {
		case part == nil:
			wrong = append(wrong, fmt.Sprintf("%s: rank %d has no block of it in this process", io.Name, rank))
		case at[rank]%size != 0:
			wrong = append(wrong, fmt.Sprintf("%s: the address %#x for rank %d is no multiple of %d", io.Name, at[rank],
				rank, size))
		}
	}
	for _, part := range io.Parts {
		if r := int(part.Ref.Rank); p.im.World.Local(r) && at[r] == 0 && part.Ref.Bytes() > 0 {
			wrong = append(wrong, fmt.Sprintf("%s: there is no address for the block of rank %d, %s%v", io.Name, r,
				io.DType, part.Ref.Shape))
		}
	}
	return wrong
}

// wrongEnqueued says what of a run that is enqueued would have to do with the host's memory.
func (p *Program) wrongEnqueued(a Args) (wrong []string) {
	if !a.Enqueued {
		return nil
	}
	for name := range a.OutAt {
		if !slices.ContainsFunc(p.im.Outputs, func(io plan.IO) bool { return io.Name == name }) {
			wrong = append(wrong, fmt.Sprintf("there is no result %s", name))
		}
	}
	slices.Sort(wrong)
	for i := range p.im.Outputs {
		io := &p.im.Outputs[i]
		switch _, at := a.OutAt[io.Name]; {
		case at && a.DeviceOut[io.Name] != nil:
			wrong = append(wrong, fmt.Sprintf("result %s is to be left twice, at addresses and in a device tensor",
				io.Name))
		case at:
			wrong = append(wrong, p.wrongAt(io, a.OutAt[io.Name])...)
		case a.DeviceOut[io.Name] == nil:
			wrong = append(wrong, fmt.Sprintf("there is no place on the devices for result %s", io.Name))
		}
	}
	return wrong
}
