package exec

import (
	"context"
	"errors"
	"fmt"
	"time"

	"hocket.example/hocket/internal/exec/blocks"
	"hocket.example/hocket/internal/exec/grace"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/internal/trace"
)

// ErrLate is wrapped by the error of a run that succeeded after its context had ended.
var ErrLate = errors.New("the run succeeded, but only after its context had ended")

// Result is the outcome of one run.
type Result struct {
	// Outputs holds global tensors by output name; the caller owns them.
	Outputs map[string]*tensor.Tensor
	// Local holds, by output and rank, the blocks of this process's ranks if other processes have ranks too, and is nil
	// otherwise. The caller owns the blocks, which may be parts of Outputs.
	Local map[string]map[int]*tensor.Tensor
	// Trace is the trace of this run; nil unless Options.Trace is set.
	Trace *trace.Trace
	// Issue is the time that the host needed to issue the run's whole batch.
	Issue time.Duration
	// Algorithms holds the algorithm of each collective, by its index in the plan. Callers must not change it.
	Algorithms []string
	// Detours lists the devices without peer access, with the reason (see device.Status); empty if there are none.
	Detours []string
	// Guesses names the GEMMs whose algorithm was not timed (see device.Status).
	Guesses []string
	// PassedOver is the reason why an existing tuned table of collectives was not used; empty if the table was used.
	PassedOver string
}

// Run runs the program once. inputs holds the global tensors by parameter name, which are read until Run returns.
func (p *Program) Run(ctx context.Context, inputs map[string]*tensor.Tensor) (*Result, error) {
	rs, err := p.RunBatch(ctx, []Args{{In: inputs}}, nil)
	if err != nil {
		return nil, err
	}
	return rs[0], nil
}

// RunBatch executes a batch that will not be repeated with the same arguments.
func (p *Program) RunBatch(ctx context.Context, runs []Args, weights *Weights) ([]*Result, error) {
	return p.Execute(ctx, &Batch{runs, weights})
}

// Execute runs the program once for each run of a batch, without host synchronisation between the runs (S13), and
// returns their results in order. The caller must hold leases of all device tensors among the arguments.
//
// Arguments that a run does not set are taken from the batch's weights. Weights that all runs of the batch use are
// uploaded before the batch, and remain on the devices until a batch has other weights. Weights of inout parameters
// are nevertheless uploaded for each run. A batch with the same Weights as the previous one does not check the weights
// again. If the same batch is executed again and its other arguments are all on the devices, its arguments are not
// checked or bound again.
//
// A failed run makes the program unusable, and device tensors that the batch writes then have no contents. The
// following errors do not make the program unusable: wrong inputs, a context.Context that has already ended or that
// ends less than Options.Grace before the end of the run, and a MismatchError. After a run that succeeded but exceeded
// its deadline, device tensors hold its results.
func (p *Program) Execute(ctx context.Context, batch *Batch) ([]*Result, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.broken != nil {
		return nil, p.broken
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("before the run: %w", err)
	}
	if len(batch.Runs) == 0 {
		return nil, nil
	}
	var results []*Result
	p.flight.begin(p.issuer.run, len(batch.Runs))
	lost, err := p.do(ctx, func(late context.Context) (err error) {
		results, err = p.execute(ctx, late, batch)
		return err
	})
	p.flight.end(err)
	if lost {
		return nil, spoiled(batch.Runs, err)
	}
	return results, err
}

// spoiled returns the error of a batch that was aborted while the devices may still execute it.
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

// execute implements Execute for a usable program. late is a context.Context that ends Options.Grace after ctx.
func (p *Program) execute(ctx, late context.Context, batch *Batch) ([]*Result, error) {
	runs := batch.Runs
	defer p.binder.trim()
	if err := p.rest(ctx); err != nil {
		return nil, fmt.Errorf("before the run: %w", err)
	}
	if err := p.admit(ctx, late, batch); err != nil {
		return nil, err
	}
	if err := p.announce(len(runs)); err != nil {
		return nil, p.breakDown(err)
	}
	setContents(runs, false)
	first := p.issuer.run // trial launches of graphs are counted as runs, too
	issued, err := p.runAdmitted(late, len(runs))
	ended := ctx.Err()
	if err != nil {
		if err = p.breakDown(err); p.binder.spoils || updates(runs) {
			err = &SpoiledError{err}
		}
		return nil, err
	}
	results, err := p.collect(first, len(runs))
	setContents(runs, err == nil) // done even if ctx has ended, because the runs have succeeded
	if ended != nil && err == nil {
		return nil, fmt.Errorf("%w: %w", ErrLate, ended)
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

// admit checks a batch's arguments and prepares its runs. Inputs that are unchanged since the previous batch are not
// checked. If b is the previous batch, no inputs are checked.
func (p *Program) admit(ctx, late context.Context, b *Batch) error {
	ins, known := p.weights.unsettled(b.Runs, b.Weights)
	kept := known && !p.recorder.wanted() && p.binder.keeps(b)
	if !kept {
		if err := p.binder.bind(b.Runs, b.Weights, ins); err != nil {
			return err
		}
	}
	if ended, err := p.inputs.check(late, b, ins); ended {
		return p.breakDown(err)
	} else if err != nil || kept {
		return err
	}
	if !known {
		if err := p.bring(ctx, b.Runs, b.Weights); err != nil {
			return err
		}
	}
	err := p.prepareRuns(ctx, len(b.Runs))
	if err == nil {
		p.binder.keep(b)
	}
	return err
}

// bring uploads those arguments of a batch that stay on the devices between runs.
func (p *Program) bring(ctx context.Context, batch []Args, weights *Weights) error {
	err := p.upload(ctx, func(name string) *tensor.Tensor { return batch[0].host(name, weights) })
	if err == nil {
		p.weights.settle(batch, weights)
	}
	return err
}

// upload uploads the parameters that stay on the devices and have not been uploaded yet. It finishes one parameter
// before it begins the next, so that at most one is copied in host memory to split it into blocks. The world is idle.
// If ctx ends, upload stops before the next parameter, and the program remains usable. If the program became unusable,
// callers with deadlines shorter than the upload would make it start the upload again and again.
func (p *Program) upload(ctx context.Context, take func(name string) *tensor.Tensor) error {
	for i, t := p.weights.missing(0, take); i >= 0; i, t = p.weights.missing(i+1, take) {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("before the run, during the upload of weights: %w", err)
		}
		p.weights.contents[i].Forget()
		if err := p.issuer.upload(ctx, i, t); err != nil {
			return p.breakDown(err)
		}
		p.weights.contents[i].Set(t)
	}
	return nil
}

// Preload uploads weights before the batches that use them; see RunBatch.
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
	_, err := p.do(ctx, func(context.Context) error {
		if err := p.rest(ctx); err != nil {
			return err
		}
		p.weights.settled = settled{}
		p.weights.decide([]Args{{In: weights}}, NewWeights(weights), p.weights.all)
		if p.issuer.tracer != nil { // early uploads do not belong to the trace of a run
			defer p.issuer.tracer.forget()
		}
		return p.upload(ctx, func(name string) *tensor.Tensor { return weights[name] })
	})
	return err
}

// announce sends a description of the next runs to the other processes. If a process announces different runs, all
// processes get an error, and the world ends.
func (p *Program) announce(k int) error {
	if p.peers == nil {
		return nil
	}
	what := "run"
	if k > 1 {
		what = fmt.Sprint(k, " runs")
	}
	what += " of " + p.title
	if p.inputs.sum != 0 {
		what += fmt.Sprintf(", integer inputs with checksum %08x", p.inputs.sum)
	}
	return p.peers.Step(what)
}

// runAdmitted issues k runs and waits for them. It stops waiting when the context late ends.
func (p *Program) runAdmitted(late context.Context, k int) (issued time.Duration, err error) {
	if p.opts.ProfileRange && p.issuer.run > 0 {
		if err := p.im.World.Profile(symbolizer{p.im}.profiled); err != nil {
			return 0, err
		}
		defer func() {
			if stopped := p.im.World.Profile(nil); err == nil {
				err = stopped
			}
		}()
	}
	began := time.Now()
	err = p.issuer.within(late, func() error { // a single call of World.Batch issues all runs
		return p.im.World.Batch(func() error { return p.issuer.runs(p.binder.frames[:k]) })
	})
	issued = time.Since(began)
	if err == nil {
		err = p.im.World.Sync(late)
	}
	if p.gather != nil {
		for i := 0; err == nil && i < k; i++ {
			err = p.gather.gather(late, p.binder.frames[i])
		}
	}
	return issued, err
}

// prepareRuns prepares the resources that k runs need and that later runs reuse. If ctx ends meanwhile, the runs do not
// begin, and the program remains usable. If the program became unusable, callers with deadlines shorter than the
// preparation would make it start again and again. If the batch has no grace, the program becomes unusable.
func (p *Program) prepareRuns(ctx context.Context, k int) error {
	wait := grace.Transfer
	if p.opts.Grace <= 0 {
		wait = 0
	}
	late, done := grace.After(ctx, wait)
	defer done()
	err := p.staging.reserve(p.binder.frames[:k])
	if err == nil {
		err = p.recorder.record(late, p.binder.frames[0])
	}
	if err != nil {
		return p.breakDown(err)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("before the run, during its preparation: %w", err)
	}
	return nil
}

// collect assembles the results of k runs that have ended.
func (p *Program) collect(first int64, k int) ([]*Result, error) {
	results := make([]*Result, k)
	for i := range results {
		f := p.binder.frames[i]
		outs, err := f.outputs()
		if err != nil {
			if k > 1 {
				err = fmt.Errorf("run %d of %d: %w", i+1, k, err)
			}
			return nil, err
		}
		results[i] = &Result{Outputs: outs}
		if p.peers != nil {
			results[i].Local = f.local(p.im.World.Local)
		}
	}
	if p.issuer.tracer != nil {
		for i, t := range p.issuer.tracer.traces(first, k) {
			results[i].Trace = t
		}
	}
	return results, nil
}
