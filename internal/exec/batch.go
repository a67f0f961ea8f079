package exec

import (
	"context"
	"fmt"
	"slices"
	"time"

	"hocket.example/hocket/internal/exec/grace"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/internal/trace"
)

// Result is what one run gave.
type Result struct {
	// Outputs by name, as global tensors, owned by the caller.
	Outputs map[string]*tensor.Tensor
	// Local are, by output and rank, the blocks of this process's ranks, where other processes have
	// ranks, too; nil where they do not. They are owned by the caller, and may be parts of Outputs.
	Local map[string]map[int]*tensor.Tensor
	// Trace of this run; nil unless asked for.
	Trace *trace.Trace
	// Issue is what the host took to issue the whole batch that the run is of.
	Issue time.Duration
	// Algorithms are those of the collectives, by their index in the plan.
	// Callers must not change it.
	Algorithms []string
	// Detours says which devices are apart and why (see device.Status); empty where
	// none are.
	Detours []string
	// Guesses names the products that run by a guess (see device.Status).
	Guesses []string
	// PassedOver says why a tuned table of collectives that there is was not used.
	PassedOver string
}

// Run runs the program once. inputs are the global tensors by parameter name;
// they are read until Run returns.
func (p *Program) Run(ctx context.Context, inputs map[string]*tensor.Tensor) (*Result, error) {
	rs, err := p.RunBatch(ctx, []Args{{In: inputs}}, nil)
	if err != nil {
		return nil, err
	}
	return rs[0], nil
}

// RunBatch runs the program once for each element, back to back, with no host
// synchronisation between the runs (S13), and returns their results in order. The
// caller has leases of all device tensors among the arguments.
//
// Runs take from weights what they are not given. What all runs of the batch take of
// them is uploaded before it, and stays on the devices until a batch is given something else.
// Inout parameters are uploaded for each run nevertheless. A batch with the weights of the one before looks
// at none of them.
//
// A failed run makes the program unusable, and device tensors that the batch was to
// write hold nothing any more. Wrong inputs, a context that has already ended, or ends
// within Options.Grace of the run's end, and a MismatchError do not: of a run that ended
// well, but late, device tensors hold what it wrote.
func (p *Program) RunBatch(ctx context.Context, batch []Args, weights *Weights) ([]*Result, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.broken != nil {
		return nil, p.broken
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("before the run: %w", err)
	}
	if len(batch) == 0 {
		return nil, nil
	}
	var results []*Result
	p.recorder.begin(p.run, len(batch))
	lost, err := p.do(ctx, func() (err error) {
		results, err = p.runBatch(ctx, batch, weights)
		return err
	})
	p.recorder.end(err)
	if lost {
		return nil, spoiled(batch, err)
	}
	return results, err
}

// spoiled is the error of a batch that was given up: the devices may still be at it.
func spoiled(batch []Args, err error) error {
	into := false
	for _, a := range batch {
		for _, t := range a.DeviceOut {
			t.SetContents(false)
			t.Fail(err)
		}
		into = into || len(a.Into) > 0
	}
	if into || updates(batch) {
		err = &SpoiledError{err}
	}
	return err
}

// runBatch is RunBatch for a program that can run.
func (p *Program) runBatch(ctx context.Context, batch []Args, weights *Weights) ([]*Result, error) {
	defer p.trimFrames()
	if err := p.rest(ctx); err != nil {
		return nil, fmt.Errorf("before the run: %w", err)
	}
	if err := p.admit(ctx, batch, weights); err != nil {
		return nil, err
	}
	if err := p.announce(len(batch)); err != nil {
		return nil, p.breakDown(err)
	}
	setContents(batch, false)
	first := p.run // trials of graphs are runs too
	issued, ended, err := p.runAdmitted(ctx, len(batch))
	if err != nil {
		if err = p.breakDown(err); p.spoils || updates(batch) {
			err = &SpoiledError{err}
		}
		return nil, err
	}
	results, err := p.collect(first, len(batch))
	setContents(batch, err == nil) // whatever ctx did: the runs have ended well
	if ended != nil && err == nil {
		return nil, fmt.Errorf("the run ended well, but not before its context: %w", ended)
	}
	if err != nil {
		return nil, err
	}
	detours := p.im.World.Detours()
	for _, r := range results {
		r.Issue, r.Algorithms, r.Detours = issued, p.im.Algorithms, detours
		r.Guesses, r.PassedOver = p.im.Guesses, p.im.PassedOver
	}
	return results, nil
}

// admit checks a batch's arguments and makes ready what its runs need.
func (p *Program) admit(ctx context.Context, batch []Args, weights *Weights) error {
	_, known, err := p.look(batch, weights)
	if err == nil && !known {
		err = p.bring(ctx, batch, weights)
	}
	if err != nil {
		return err
	}
	return p.prepareRuns(ctx, len(batch))
}

// look checks a batch's arguments and lays them ready. It looks at some inputs alone if all others are as the batch
// before has left them, which known says.
func (p *Program) look(batch []Args, weights *Weights) (ins []int, known bool, err error) {
	ins, known = p.unsettled(batch, weights)
	if !known {
		p.settled = settled{}
	}
	return ins, known, p.fillFrames(batch, weights, ins)
}

// bring uploads what stays on the devices of a batch's arguments.
func (p *Program) bring(ctx context.Context, batch []Args, weights *Weights) error {
	take := func(name string) *tensor.Tensor { return batch[0].host(name, weights) }
	if err := p.uploadWeights(ctx, take); err != nil {
		return err
	}
	if !slices.ContainsFunc(batch, func(a Args) bool { return a.gives(weights) }) {
		p.settle(weights)
	}
	return nil
}

// announce tells other processes which runs come now. One that runs something else is an error that
// ends both.
func (p *Program) announce(k int) error {
	if p.peers == nil {
		return nil
	}
	return p.peers.Step(fmt.Sprintf("%d runs of %s, plan %.16s", k, p.im.Plan.Func, p.hash))
}

// runAdmitted issues k runs and waits for them: as long as ctx lasts, and the grace.
// ended is ctx's error once they have ended well.
func (p *Program) runAdmitted(ctx context.Context, k int) (issued time.Duration, ended, err error) {
	if p.opts.ProfileRange && p.run > 0 {
		if err := p.im.World.Profile(p.profiled); err != nil {
			return 0, nil, err
		}
		defer func() {
			if stopped := p.im.World.Profile(nil); err == nil {
				err = stopped
			}
		}()
	}
	late, done := grace.After(ctx, p.opts.Grace)
	defer done()
	began := time.Now()
	err = p.issueWhole(late, k)
	issued = time.Since(began)
	if err == nil {
		err = p.im.World.Sync(late)
	}
	if p.gather != nil {
		for i := 0; err == nil && i < k; i++ {
			err = p.gather.gather(late, p.frames[i])
		}
	}
	return issued, ctx.Err(), err
}

// prepareRuns has ready what k runs need that stays for those to come. If ctx ends meanwhile the
// runs do not begin, and the program can still run: were it given up, deadlines shorter than
// this takes would have it begin again for ever. Only a batch without grace has it given up.
func (p *Program) prepareRuns(ctx context.Context, k int) error {
	wait := grace.Transfer
	if p.opts.Grace <= 0 {
		wait = 0
	}
	late, done := grace.After(ctx, wait)
	defer done()
	err := p.stage(k)
	if err == nil {
		err = p.record(late)
	}
	if err != nil {
		return p.breakDown(err)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("before the run, while it was made ready: %w", err)
	}
	return nil
}

// collect makes the results of k runs that have ended.
func (p *Program) collect(first int64, k int) ([]*Result, error) {
	results := make([]*Result, k)
	for i := range results {
		outs, err := p.frames[i].outputs()
		if err != nil {
			if k > 1 {
				err = fmt.Errorf("run %d of %d: %w", i+1, k, err)
			}
			return nil, err
		}
		results[i] = &Result{Outputs: outs, Local: p.localBlocks(p.frames[i])}
	}
	if p.tracer != nil {
		p.addTraces(results, first)
	}
	return results, nil
}
