package hocket

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"hocket.example/hocket/internal/compile"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/exec"
	"hocket.example/hocket/internal/exec/blocks"
	"hocket.example/hocket/internal/exec/image"
	"hocket.example/hocket/internal/exec/resident"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// cacheBytes is LoadOptions.Cache where that is 0.
const cacheBytes = 4 << 30

// Model is a program loaded on a machine. It executes one run or load at a time. Other
// callers wait until their context ends.
type Model struct {
	machine *Machine
	unit    *compile.Unit
	fn      *ir.Func
	binding Binding
	opts    LoadOptions
	store   *resident.Weights // of weights, for all plans

	// leased holds one value while the model is leased. closed is set by the holder, with mu held, too.
	leased chan struct{}
	closed bool

	// planned is the plan made last, until it is loaded. It belongs to the holder of the lease.
	planned planned

	// evicted are the dims of plans that were unloaded to make room. It belongs to the plan cache.
	evicted map[string]bool
	// overhead is what plans hold beside arena and host memory, as a part of that: the most so far. It belongs to
	// the holder of the lease.
	overhead float64

	// chose are the variants that were found fastest, by all that this depends on. It belongs to the holder of the
	// lease.
	chose map[string]string
	// resolved are the dims that the last binding came to. It belongs to the holder of the lease.
	resolved resolvedDims

	mu    sync.Mutex // of what follows
	bound map[string]*tensor.Tensor
	on    map[string]*DeviceTensor // bound, too
	// snapshot is what is bound, for runs; nil once that has changed.
	snapshot *bindings
	// Of BindFrom: the checkpoints that weights are mapped from, whether there are any, and which
	// parameters are no weights.
	checkpoints []*Checkpoint
	weighted    bool
	inputs      []string
}

// planned is a plan and the dims that it is for.
type planned struct {
	dims map[string]int64
	plan *plan.Plan
}

// Port is a parameter or result of a model.
type Port struct {
	Name  string
	DType ir.DType
	Shape []int64
	// Rows, where embedding takes the elements of a parameter for ids, is how many rows its
	// smallest table has: ids are in 0..Rows. 0 elsewhere.
	Rows int64
}

// Args are one run's tensors, by name, all global.
type Args struct {
	// In holds every parameter that neither Bind nor BindDevice set.
	In map[string]*Tensor
	// InLocal gives parameters by the blocks of this process's ranks, by rank, where the machine has a
	// World of several processes, or one process that prefers it. Their dims must follow from the
	// binding, or from other parameters.
	InLocal map[string]map[int]*Tensor
	// Out, where it names a result, receives it; other results are made anew. When the run
	// fails, or its context ends first, some of it may have been written: what is in In, too,
	// is to be taken for lost then. Where several results, of one run or a batch's, have one
	// tensor the last is there.
	Out map[string]*Tensor
	// DeviceIn gives parameters from the devices, instead of In or what is bound.
	DeviceIn map[string]*DeviceTensor
	// DeviceOut leaves results on the devices; the report then lacks them. One tensor may
	// be in both: an inout parameter's that is updated in place. When the run fails, or is aborted
	// since its context and LoadOptions.Grace are over, what it was to leave anything in holds
	// nothing any more; what it only read is as before. So state that must not be lost then goes
	// from one tensor to another and back, in turns. A run that ends within the grace leaves its
	// results there, though it returns its context's error.
	DeviceOut map[string]*DeviceTensor
}

// Bind sets a parameter for all runs to come: a weight. Nil takes it back. The tensor's
// bytes must stay as they are for as long as it is bound: they are uploaded when a plan
// runs with it for the first time, and stay on the devices for the runs that follow. To
// change them, end what runs, and bind the tensor again. A run that is given the parameter in
// Args uses that instead. Parameters that are inout begin each run with the bound tensor,
// and so are uploaded for each.
//
// Plans that are loaded after a parameter was bound share its place on the devices, if they
// use it on the rank that has it: plans for other dims then take no memory for weights, and
// upload none. So bind before Prepare and the first Run. Plans that return it, or have
// a collective or a copy to another rank read it, and those loaded before, have a copy of
// their own.
func (m *Model) Bind(name string, t *Tensor) error {
	if !slices.ContainsFunc(m.fn.Params, func(p *ir.Param) bool { return p.Name == name }) {
		return fmt.Errorf("%s has no parameter %%%s", m.fn.Name, name)
	}
	if err := m.fits(name, t); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.snapshot = nil
	delete(m.on, name)
	if t == nil {
		delete(m.bound, name)
	} else {
		weight := *t.host() // who it is tells what the devices hold: another one each time
		m.bound[name] = &weight
	}
	return nil
}

// fits reports what no dims could make right of a tensor for a parameter.
func (m *Model) fits(name string, t *Tensor) error {
	i := slices.IndexFunc(m.fn.Params, func(p *ir.Param) bool { return p.Name == name })
	switch want := m.fn.Params[i].Type; {
	case t == nil:
		return nil
	case t.host().Check() != nil:
		return fmt.Errorf("%w: %%%s: %w", ErrInput, name, t.host().Check())
	case t.DType != want.DType || len(t.Shape) != len(want.Dims):
		return fmt.Errorf("%w: %%%s is %s, and the tensor to be bound to it %s", ErrInput, name, want, t)
	}
	return nil
}

// Prepare plans and loads for the given dims, beside those that the binding fixes and rather
// than those that the shapes of bound tensors say, and uploads bound weights, so that the first
// Run with them does not have to. If ctx ends meanwhile it returns that, and the load goes on: the
// next call waits for it or finds it done, and uploads what weights are left.
func (m *Model) Prepare(ctx context.Context, dims map[string]int64) error {
	return m.machine.why(ctx, m.prepare(ctx, dims))
}

func (m *Model) prepare(ctx context.Context, dims map[string]int64) error {
	for name, v := range dims {
		if fixed, ok := m.binding.Dims[name]; ok && fixed != v {
			return fmt.Errorf("%w: %s=%d is to be prepared, and the model was loaded with %s=%d: no run could use it",
				ErrInput, name, v, name, fixed)
		}
	}
	if err := m.unbound(); err != nil {
		return err
	}
	bound := m.bindings()
	weights, on := bound.tensors, bound.on
	// A run that is given nothing else.
	bare, err := m.execArgs(bound.take([]Args{{}}), []map[string]*tensor.Tensor{weights})
	if err != nil {
		return err
	}
	works := bound.residents(bare)
	release, err := m.machine.tensors.Lease(ctx, slices.Collect(maps.Values(works)), nil)
	if err != nil {
		return err
	}
	t, err := m.acquireWith(ctx, release)
	if err != nil {
		return err
	}
	defer t.end()
	b, err := m.dimsOf(shapes(Args{DeviceIn: on}, weights))
	if err != nil {
		return err
	}
	maps.Copy(b.Dims, dims)
	if err := m.onlyFitting(works, b); err != nil {
		return err
	}
	_, err = t.use(ctx, b, works, func(l *loaded) error { return l.prog.Preload(ctx, weights) })
	return err
}

// Plan returns the text of the plan for the given dims: every command, buffer
// and offset.
func (m *Model) Plan(dims map[string]int64) (string, error) {
	p, err := m.unit.Plan(m.merge(dims).ir())
	if err != nil {
		return "", err
	}
	return p.String(), nil
}

// Inputs lists the function's parameters with the shapes they have for the
// given dims.
func (m *Model) Inputs(dims map[string]int64) ([]Port, error) {
	bound, err := m.unit.Bind(m.merge(dims).ir())
	if err != nil {
		return nil, err
	}
	return portsOf(bound, m.fn)
}

// RandomInputs makes a tensor for every parameter: spec is "ints:SEED" (each
// element -1, 0 or 1), "rand:SEED" (uniform in [-1, 1)), "zeros" or "arange". Ids of
// embedding are drawn from the rows that there are.
func (m *Model) RandomInputs(spec string) (map[string]*Tensor, error) {
	s, err := tensor.ParseSpec(spec)
	if err != nil {
		return nil, err
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
		s.Below = p.Rows
		if err := tensor.Fill(t.host(), p.Name, s); err != nil {
			return nil, err
		}
		out[p.Name] = t
	}
	return out, nil
}

// Run runs the model once and returns its results. Dims that the binding gives are fixed: it
// is an error if the shapes of the arguments say something else. Others come from these
// shapes, then from the program's defaults.
// When ctx ends, a run that has begun is given LoadOptions.Grace to end by itself, and
// aborted on all ranks then; Run returns that ctx has ended. A plan that is still loaded
// then goes on being loaded, as in Prepare.
func (m *Model) Run(ctx context.Context, args Args) (*Report, error) {
	reports, err := m.RunBatch(ctx, []Args{args})
	if err != nil {
		return nil, err
	}
	return reports[0], nil
}

// RunBatch runs the model once for each element, back to back, with no barrier
// and no host synchronisation between the runs (LANGUAGE S13). All must have
// the same dims.
func (m *Model) RunBatch(ctx context.Context, batch []Args) ([]*Report, error) {
	run := m.runBatch
	if len(m.opts.Buckets) > 0 {
		run = m.runBucketed
	}
	reports, err := run(ctx, batch)
	return reports, m.machine.why(ctx, err)
}

func (m *Model) runBatch(ctx context.Context, batch []Args) ([]*Report, error) {
	if len(batch) == 0 {
		return nil, nil
	}
	bound, given0 := m.bindings(), batch[0]
	batch = bound.take(batch)
	ins, err := batched(batch, nil)
	if err != nil {
		return nil, err
	}
	runs, err := m.execArgs(batch, ins)
	if err != nil {
		return nil, err
	}
	binding, err := m.bindingOf(bound, given0, batch[0])
	if err != nil {
		return nil, err
	}
	release, err := m.lease(ctx, runs)
	if err != nil {
		return nil, err
	}
	t, err := m.acquireWith(ctx, release)
	if err != nil {
		return nil, err
	}
	defer t.end()
	l, results, err := t.run(ctx, binding, batch, given{runs, bound.weights, bound.residents(runs)})
	if err != nil {
		if l != nil {
			err = ofProved(err, l.proof)
		}
		return nil, err
	}
	reports := l.reports(results)
	if err := m.evict(t.user); err != nil && m.opts.Logger != nil { // the runs have ended well
		m.opts.Logger.Warn("unloading plans behind a run", "error", err)
	}
	return reports, nil
}

// heldWeights are the bound parameters at this moment, for what does not lease the model: their bytes
// stay until release, though the model is closed.
func (m *Model) heldWeights() (weights map[string]*tensor.Tensor, release func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	held := slices.Clone(m.checkpoints)
	for _, c := range held {
		c.share()
	}
	return maps.Clone(m.bound), func() {
		for _, c := range held {
			_ = c.release() // unmapping what is mapped does not fail
		}
	}
}

// batched gives the arguments of every run of a batch.
func batched(batch []Args, weights map[string]*tensor.Tensor) ([]map[string]*tensor.Tensor, error) {
	ins := make([]map[string]*tensor.Tensor, len(batch))
	for i, a := range batch {
		in, err := arguments(a, weights)
		if err != nil {
			return nil, err
		}
		ins[i] = in
	}
	return ins, nil
}

// arguments joins bound parameters and a run's arguments.
func arguments(a Args, weights map[string]*tensor.Tensor) (map[string]*tensor.Tensor, error) {
	in := make(map[string]*tensor.Tensor, len(weights)+len(a.In))
	maps.Copy(in, weights)
	for name, t := range a.In {
		if t == nil {
			return nil, fmt.Errorf("%w: %%%s is nil", blocks.ErrInput, name)
		}
		if err := t.host().Check(); err != nil { // else dims are believed that no bytes stand for
			return nil, fmt.Errorf("%w: %%%s: %w", blocks.ErrInput, name, err)
		}
		in[name] = t.host()
	}
	for name := range a.DeviceIn {
		if a.In[name] == nil {
			delete(in, name) // what is bound
		}
	}
	for name := range a.InLocal {
		if a.In[name] == nil {
			delete(in, name)
		}
	}
	return in, nil
}

// shapes adds to the tensors of a run what is known of those on the devices.
func shapes(a Args, in map[string]*tensor.Tensor) map[string]*tensor.Tensor {
	if len(a.DeviceIn) == 0 {
		return in
	}
	in = maps.Clone(in)
	for name, d := range a.DeviceIn {
		in[name] = d.header()
	}
	return in
}

// dimsOf binds every dim that is a parameter's bare extent to what the
// argument's shape says, where the binding does not fix it.
func (m *Model) dimsOf(in map[string]*tensor.Tensor) (Binding, error) {
	b := m.merge(nil)
	for _, p := range m.fn.Params {
		t := in[p.Name]
		if t == nil || len(t.Shape) != len(p.Type.Dims) {
			continue // exec names what is missing or misshapen
		}
		for i, d := range p.Type.Dims {
			if _, defined := b.Defines[d.Extent.Name]; defined || d.Extent.Kind != ir.ExprName {
				continue
			}
			if fixed, ok := m.binding.Dims[d.Extent.Name]; ok && fixed != t.Shape[i] {
				return b, fmt.Errorf("%w: dimension %d of %%%s is %d, and the model was loaded with %s=%d",
					blocks.ErrInput, i, p.Name, t.Shape[i], d.Extent.Name, fixed)
			}
			b.Dims[d.Extent.Name] = t.Shape[i]
		}
	}
	return b, nil
}

func (m *Model) merge(dims map[string]int64) Binding {
	b := m.binding
	b.Dims = map[string]int64{}
	maps.Copy(b.Dims, m.binding.Dims)
	maps.Copy(b.Dims, dims)
	return b
}

// load makes the loaded plan for a binding, which is busy then. The binding comes to dims.
func (m *Model) load(ctx context.Context, c *user, b Binding, key choice) (*loaded, error) {
	if err := m.chooseMeasured(b, key.dims); err != nil {
		return nil, err
	}
	p, err := m.planFor(b, key.dims)
	if err != nil {
		return nil, err
	}
	if err := m.machine.ctx.Err(); err != nil {
		return nil, err
	}
	proof, err := m.provePlan(p)
	if err != nil {
		return nil, err
	}
	if err := m.makeRoom(c, p); err != nil {
		return nil, err
	}
	prog, err := m.fit(ctx, c, p, key.resident)
	if err != nil {
		return nil, err
	}
	m.planned = planned{}
	if err := m.holds(c, p, prog.Held()); err != nil {
		return nil, errors.Join(err, prog.Close())
	}
	l := &loaded{model: m, choice: key, plan: p, prog: prog, proof: proof, held: prog.Held()}
	c.add(l)
	return l, m.evict(c)
}

// planFor plans for a binding, which comes to dims, unless such a plan is loaded or was
// made last. That ends with the machine alone: given up for a context that ends, it would begin
// again for ever.
func (m *Model) planFor(b Binding, dims map[string]int64) (*plan.Plan, error) {
	if m.planned.plan != nil && maps.Equal(m.planned.dims, dims) {
		return m.planned.plan, nil
	}
	if p := m.machine.plans.planOf(m, dims); p != nil {
		return p, nil
	}
	p, err := m.unit.PlanWithin(m.machine.ctx, b.ir())
	if err == nil {
		m.planned = planned{dims, p}
	}
	return p, err
}

// fit loads p, and makes room for it where memory is short.
func (m *Model) fit(
	ctx context.Context, c *user, p *plan.Plan, on map[string]*resident.DeviceTensor,
) (*exec.Program, error) {
	opts := exec.Options{
		Options: image.Options{Logger: m.opts.Logger, MaxArena: m.opts.Arena, Algorithm: m.opts.Algorithm,
			Fixed:         m.opts.FixedAlgorithms,
			CheckLaunches: m.opts.CheckLaunches, Timed: true, Store: m.store, Weights: map[string]bool{}, Resident: on},
		Trace: m.opts.Trace, Graph: m.opts.Graph, Grace: max(cmp.Or(m.opts.Grace, time.Second), 0),
		Gather: m.opts.Gather, ProfileRange: m.opts.ProfileRange,
	}
	if m.machine.onFailure != nil {
		opts.Failed = m.machine.failed
	}
	for name := range m.bindings().tensors {
		opts.Weights[name] = true
	}
	for {
		prog, err := exec.Load(m.machine.ctx, m.machine.dev, p, opts)
		if err == nil {
			return prog, nil
		}
		var trial *device.TrialError
		if errors.As(err, &trial) {
			opts.Timed, err = c.roomForTrial(trial)
		} else {
			err = c.room(ctx, m.machine, err)
		}
		if err != nil {
			return nil, err
		}
	}
}

// evict unloads the plans used least recently while all together hold more than the bound, but not the one used last,
// unless the cache is off or its bound a hard one.
func (m *Model) evict(c *user) error {
	bound := max(cmp.Or(m.opts.Cache, cacheBytes), 0)
	return m.unloadBeyond(c, bound, m.opts.Cache < 0 || m.opts.HardCache)
}

func (m *Model) unloadBeyond(c *user, bound int64, all bool) error {
	var errs []error
	for _, l := range c.beyond(m, bound, all) {
		errs = append(errs, l.unload("LoadOptions.Cache"))
	}
	return errors.Join(errs...)
}

// makeRoom unloads plans, where the cache's bound is a hard one, until p can be loaded within it.
func (m *Model) makeRoom(c *user, p *plan.Plan) error {
	if !m.opts.HardCache {
		return nil
	}
	bound := max(cmp.Or(m.opts.Cache, cacheBytes), 0)
	need := p.ArenaBytes + p.HostBytes
	need += int64(float64(need) * m.overhead)
	return m.unloadBeyond(c, max(bound-need, 0), true)
}

// holds is told what a plan holds once it is loaded. Where the cache's bound is a hard one it unloads others that
// have no room beside it, and refuses a plan that is larger by itself.
func (m *Model) holds(c *user, p *plan.Plan, held device.Held) error {
	if !m.opts.HardCache {
		return nil
	}
	if base := p.ArenaBytes + p.HostBytes; base > 0 {
		m.overhead = max(m.overhead, float64(held.Bytes())/float64(base)-1)
	}
	bound := max(cmp.Or(m.opts.Cache, cacheBytes), 0)
	if held.Bytes() > bound {
		return fmt.Errorf("plan %s holds %s, %w of %s, which LoadOptions.HardCache keeps", p.Func,
			tensor.Size(held.Bytes()),
			ErrBudget, tensor.Size(bound))
	}
	return m.unloadBeyond(c, bound-held.Bytes(), true)
}

// Close unloads the model. It waits for runs and loads under way, which Machine.Close
// aborts, and which then return ErrClosed, as calls do that wait for the model.
func (m *Model) Close() error {
	m.leased <- struct{}{}
	defer func() { <-m.leased }()
	if m.closed {
		return nil
	}
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.machine.mu.Lock()
	delete(m.machine.models, m)
	m.machine.mu.Unlock()
	c := m.machine.plans.enter()
	defer c.end()
	var errs []error
	for _, l := range c.remove(func(l *loaded) bool { return l.model == m }) {
		errs = append(errs, l.prog.Close())
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.bound)
	m.snapshot = nil
	for _, c := range m.checkpoints {
		errs = append(errs, c.release())
	}
	m.checkpoints = nil
	return errors.Join(errs...)
}

func errShape(n int, t *tensor.Tensor) error {
	return fmt.Errorf("%d numbers do not fill %s, which has %d elements", n, t, t.Len())
}
