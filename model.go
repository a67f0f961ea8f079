package hocket

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"hocket.example/hocket/internal/exec/plancache"
	"hocket.example/hocket/internal/exec/resident"
	"hocket.example/hocket/internal/tensor"
)

// Model is a program that is loaded on a machine. It executes one run or load at a time; other callers wait until it is
// free or their context ends.
//
// A Model consists of a function (function.go), which determines the dims of runs; the bound parameters
// (parameters.go); and a loader, which keeps plans ready to run and serves the holder of its lease (loader.go,
// lease.go).
type Model struct {
	machine *Machine
	fn      *function
	params  *parameters
	loader  *loader
}

func newModel(m *Machine, fn *function, opts LoadOptions) *Model {
	params := &parameters{fn: fn, bound: map[string]*tensor.Tensor{}, on: map[string]*DeviceTensor{},
		parts: map[string]bool{}, from: map[string]*source{}}
	return &Model{machine: m, fn: fn, params: params, loader: &loader{machine: m, fn: fn, params: params, opts: opts,
		store: resident.NewWeights(m.dev), owner: plancache.NewOwner(opts.Logger),
		leased: make(chan struct{}, 1), tuner: autotuner{machine: m, fn: fn, opts: opts, chose: map[string]string{}}}}
}

// Bind binds a parameter, such as a weight, to a tensor for all later runs. A nil tensor removes the binding. The bytes
// of the tensor must not change while it is bound: they are uploaded when a plan first runs with them, and stay on the
// devices for later runs. To change them, wait until all runs have ended and bind the tensor again. A run whose Args
// contain the parameter uses the tensor in Args instead. Bind refuses a tensor whose shape contradicts the dims of the
// model or the shapes of other bound tensors: to bind weights for other dims, remove those bindings first. An inout
// parameter has the value of the bound tensor at the start of each run, and is therefore uploaded for each run.
//
// Plans that are loaded after a parameter was bound share one copy of it on the devices, if they use it only on the
// rank that holds it. Plans for other dims then need no additional memory for weights and upload no weights. Call Bind
// before Prepare and the first Run. Plans have separate copies if they were loaded before the call, if they return the
// parameter, or if a collective or a copy to another rank reads the parameter.
func (m *Model) Bind(name string, t *Tensor) error {
	if err := m.fn.fits(name, t.host(), m.params.dimsBesides(name)); err != nil {
		return err
	}
	var weight *tensor.Tensor
	if t != nil {
		if err := t.host().Check(); err != nil {
			return fmt.Errorf("%w: %%%s: %w", ErrInput, name, err)
		}
		w := *t.host() // the pointer is new for each call, because it identifies the contents on the devices
		weight = &w
	}
	return m.params.bind(name, weight, nil)
}

// Prepare plans and loads the program for the given dims and uploads bound weights, so that the first Run with these
// dims starts without delay. The given dims are added to those of the binding, and override dims that the shapes of
// bound tensors imply. LoadOptions.Buckets rounds them up like the dims of a run. Runs may pass any parameter, so a
// parameter without a binding is an error only after BindFrom; see Rules.Inputs. If ctx ends first, Prepare returns the
// error of ctx and the load continues: the next call waits for the load or uses its result, and uploads the remaining
// weights.
func (m *Model) Prepare(ctx context.Context, dims map[string]int64) error {
	return m.told(ctx, m.prepare(ctx, dims, func(*loaded) error { return nil }))
}

// prepare implements Prepare, and calls do with the loaded plan.
func (m *Model) prepare(ctx context.Context, dims map[string]int64, do func(l *loaded) error) error {
	for name, v := range dims {
		if fixed, ok := m.fn.binding.Dims[name]; ok && fixed != v {
			return fmt.Errorf("%w: preparing %s=%d is useless: the model was loaded with %s=%d, so no run could use it",
				ErrInput, name, v, name, fixed)
		}
	}
	if err := m.params.unbound(); err != nil {
		return err
	}
	bound, done := m.params.use()
	defer done()
	weights := bound.tensors
	// The empty Args are the arguments of a run to which the caller passes no tensors.
	bare, err := m.machine.execArgs(bound.take([]Args{{}}), []map[string]*tensor.Tensor{weights})
	if err != nil {
		return err
	}
	works := bound.residents(bare)
	release, err := m.machine.tensors.Lease(ctx, slices.Collect(maps.Values(works)), nil)
	if err != nil {
		return err
	}
	t, err := m.loader.acquireWith(ctx, release)
	if err != nil {
		return err
	}
	defer t.end()
	b, err := m.bindingFor(bound, dims)
	if err != nil {
		return err
	}
	if err := m.fn.onlyFitting(works, b); err != nil {
		return err
	}
	_, err = t.use(ctx, b, works, func(l *loaded) error {
		if err := l.Program.Preload(ctx, weights); err != nil {
			return err
		}
		return do(l)
	})
	return err
}

// bindingFor returns the binding of a run that has the bound parameters and the given dims, rounded to
// LoadOptions.Buckets.
func (m *Model) bindingFor(bound *bindings, dims map[string]int64) (Binding, error) {
	if len(m.loader.opts.Buckets) > 0 {
		_, b, err := m.roundUp(bound, Args{Dims: dims})
		return b, err
	}
	b, err := bound.alone()
	if err == nil {
		maps.Copy(b.Dims, dims)
	}
	return b, err
}

// Proof returns Proved if the plan for the dims of the binding and the given dims has been proved, and Unknown
// otherwise. It plans and loads as Prepare does. The error is Diagnostics if the plan is refuted.
func (m *Model) Proof(ctx context.Context, dims map[string]int64) (VerdictKind, error) {
	kind := Unknown
	err := m.prepare(ctx, dims, func(l *loaded) error {
		kind = l.Value.proof.kind
		return nil
	})
	return kind, m.told(ctx, err)
}

// Plan returns the plan for the given dims as text: every command, and every buffer with its offset.
func (m *Model) Plan(dims map[string]int64) (string, error) {
	p, err := m.fn.unit.Plan(m.fn.merge(dims).ir())
	if err != nil {
		return "", err
	}
	return p.String(), nil
}

// Inputs lists the function's parameters with their shapes for the given dims.
func (m *Model) Inputs(dims map[string]int64) ([]Port, error) {
	bound, err := m.fn.unit.Bind(m.fn.merge(dims).ir())
	if err != nil {
		return nil, err
	}
	return portsOf(bound, m.fn.def)
}

// RandomInputs returns a tensor for every parameter. spec is "ints:SEED" (each element is -1, 0 or 1), "rand:SEED"
// (uniform in [-1, 1)), "zeros" or "arange". For ids, indices, positions, lengths and counts, "ints" and "rand" draw
// only values that the program accepts (see Port).
func (m *Model) RandomInputs(spec string) (map[string]*Tensor, error) {
	s, err := tensor.ParseSpec(spec)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInput, err)
	}
	ports, err := m.Inputs(nil)
	if err != nil {
		return nil, err
	}
	out := map[string]*Tensor{}
	for _, p := range ports {
		t, err := NewTensor(p.DType, p.Shape...)
		if err != nil {
			return nil, fmt.Errorf("%%%s: %w", p.Name, err)
		}
		s.Below, s.Ascending = p.Below, p.Ascending
		if err := tensor.Fill(t.host(), p.Name, s); err != nil {
			return nil, err
		}
		out[p.Name] = t
	}
	return out, nil
}

// Run runs the model once and returns its results. Dims that the binding fixes must agree with the shapes of the
// arguments. Other dims are set from these shapes or, if they imply no value, from the program's defaults.
//
// If ctx ends after the run has begun, Run waits for the run's end for at most LoadOptions.Grace and then aborts it on
// all ranks. An aborted run is a RunError, and the device tensors that it updates have no contents. If the run ends in
// time, Run nevertheless returns an error, but these tensors have their new contents. Both errors wrap the error of ctx.
// If the plan is still being loaded when ctx ends, the load continues in the background, as in Prepare.
func (m *Model) Run(ctx context.Context, args Args) (*Report, error) {
	reports, err := m.RunBatch(ctx, []Args{args})
	if err != nil {
		return nil, err
	}
	return reports[0], nil
}

// RunBatch runs the model once for each element of the batch. The runs are executed back to back, without a barrier or
// a host synchronisation between them (docs/language.md, S13). All runs must have the same dims.
func (m *Model) RunBatch(ctx context.Context, batch []Args) ([]*Report, error) {
	c, err := m.loader.enter()
	if err != nil {
		return nil, err
	}
	outcome := errPanicked
	defer func() { c.returns(ctx, outcome) }()
	padded, cutBack, err := m.padded(batch)
	var reports []*Report
	if err == nil {
		reports, err = m.runBatch(ctx, padded, c)
	}
	if err == nil {
		err = cutBack(reports)
	}
	outcome = err
	return reports, m.told(ctx, err) // called even without an error, to report that the call of this process has ended
}

func (m *Model) runBatch(ctx context.Context, batch []Args, c *runCall) ([]*Report, error) {
	if len(batch) == 0 {
		return nil, nil
	}
	bound, done := m.params.use()
	defer done()
	r, err := bound.request(m.machine, batch)
	if err != nil {
		return nil, err
	}
	release, err := m.machine.tensors.Lease(ctx, r.reads, r.writes)
	if err != nil {
		return nil, err
	}
	t, err := m.loader.acquireWith(ctx, release)
	if err != nil {
		return nil, err
	}
	defer t.end()
	c.starts()
	l, results, err := t.run(ctx, r)
	if err != nil {
		if l != nil {
			err = ofProved(err, l.Value.proof)
		}
		return nil, err
	}
	list := reports(l, results)
	if err := m.loader.evict(t.user); err != nil && m.loader.opts.Logger != nil { // the runs have succeeded, so an error is only logged
		m.loader.opts.Logger.Warn("unloading plans after a run", "error", err)
	}
	return list, nil
}

// Close unloads the model. Close waits for runs and loads in progress. Machine.Close aborts them: they then return
// ErrClosed, and so do calls that wait for the model.
func (m *Model) Close() error {
	m.loader.leased <- struct{}{}
	return m.closeLeased()
}

// closeIdle closes the model unless a call uses it, and reports whether it did.
func (m *Model) closeIdle() (bool, error) {
	select {
	case m.loader.leased <- struct{}{}:
		return true, m.closeLeased()
	default:
		return false, nil
	}
}

// closeLeased implements Close for a caller that has the lease, and ends the lease.
func (m *Model) closeLeased() error {
	l := m.loader
	defer func() { <-l.leased }()
	if l.closed {
		return nil
	}
	l.closed = true
	m.machine.mu.Lock()
	delete(m.machine.models, m)
	m.machine.mu.Unlock()
	return errors.Join(l.close(), m.params.close())
}
