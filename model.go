package hocket

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"hocket.example/hocket/internal/compile"
	"hocket.example/hocket/internal/exec"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// cacheBytes is LoadOptions.Cache where that is 0.
const cacheBytes = 4 << 30

// Model is a program loaded on a machine. Runs take turns.
type Model struct {
	machine *Machine
	unit    *compile.Unit
	fn      *ir.Func
	binding Binding
	opts    LoadOptions

	mu     sync.Mutex
	bound  map[string]*Tensor
	plans  []*loaded // most recently used last
	closed bool
	held   atomic.Int64 // what the plans hold, in bytes, for other models to read
}

// loaded is a plan for one choice of dims, ready to run.
type loaded struct {
	dims map[string]int64
	plan *plan.Plan
	prog *exec.Program
	// proof says what was proved of the plan.
	proof string
	held  int64 // bytes, see LoadOptions.Cache; runs can add to it
}

// Port is a parameter or result of a model.
type Port struct {
	Name  string
	DType ir.DType
	Shape []int64
}

// Args are one run's tensors, by name, all global.
type Args struct {
	// In holds every parameter that Bind did not set.
	In map[string]*Tensor
	// Out, where it names a result, receives it; other results are made anew.
	Out map[string]*Tensor
}

// Bind sets a parameter for all runs to come: a weight. Nil takes it back.
func (m *Model) Bind(name string, t *Tensor) error {
	if !slices.ContainsFunc(m.fn.Params, func(p *ir.Param) bool { return p.Name == name }) {
		return fmt.Errorf("%s has no parameter %%%s", m.fn.Name, name)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if t == nil {
		delete(m.bound, name)
	} else {
		m.bound[name] = t
	}
	return nil
}

// Prepare plans and loads for the given dims, which override the binding's, so
// that the first Run with them does not have to.
func (m *Model) Prepare(ctx context.Context, dims map[string]int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, err := m.load(ctx, m.merge(dims))
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
// element -1, 0 or 1), "rand:SEED" (uniform in [-1, 1)), "zeros" or "arange".
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
		if err := tensor.Fill(t.host(), p.Name, s); err != nil {
			return nil, err
		}
		out[p.Name] = t
	}
	return out, nil
}

// Run runs the model once and returns its results. The dims come from the
// shapes of the arguments, then the binding, then the program's defaults.
// Cancelling ctx aborts the run on all ranks.
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
	if len(batch) == 0 {
		return nil, nil
	}
	ins, err := m.batched(batch)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	binding, err := m.dimsOf(ins[0])
	if err != nil {
		return nil, err
	}
	l, results, err := m.runLoaded(ctx, binding, ins)
	if err != nil {
		return nil, err
	}
	reports := make([]*Report, len(results))
	for i, r := range results {
		if reports[i], err = newReport(l.plan, r, batch[i].Out); err != nil {
			return nil, err
		}
		reports[i].Proof = l.proof
	}
	return reports, m.evict()
}

// runLoaded runs the plan for a binding. Its first runs take memory, too: buffers of
// transfers, a graph.
func (m *Model) runLoaded(ctx context.Context, b Binding, ins []map[string]*tensor.Tensor) (*loaded, []*exec.Result, error) {
	for {
		l, err := m.load(ctx, b)
		if err != nil {
			return nil, nil, err
		}
		results, err := l.prog.RunBatch(ctx, ins)
		m.note(l)
		if err == nil {
			return l, results, nil
		}
		if err = m.makeRoom(ctx, m.failed(l, err)); err != nil {
			return nil, nil, err
		}
	}
}

// failed unloads a program that cannot run any more; the next Run loads anew.
func (m *Model) failed(l *loaded, err error) error {
	if errors.Is(err, exec.ErrInput) {
		return err
	}
	m.plans = slices.DeleteFunc(m.plans, func(x *loaded) bool { return x == l })
	m.held.Add(-l.held)
	return errors.Join(err, l.prog.Close())
}

// batched gives the arguments of every run of a batch.
func (m *Model) batched(batch []Args) ([]map[string]*tensor.Tensor, error) {
	ins := make([]map[string]*tensor.Tensor, len(batch))
	for i, a := range batch {
		in, err := m.arguments(a)
		if err != nil {
			return nil, err
		}
		ins[i] = in
	}
	return ins, nil
}

// arguments joins bound parameters and a run's arguments.
func (m *Model) arguments(a Args) (map[string]*tensor.Tensor, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	in := map[string]*tensor.Tensor{}
	for name, t := range m.bound {
		in[name] = t.host()
	}
	for name, t := range a.In {
		if t == nil {
			return nil, fmt.Errorf("%w: %%%s is nil", exec.ErrInput, name)
		}
		in[name] = t.host()
	}
	return in, nil
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
					exec.ErrInput, i, p.Name, t.Shape[i], d.Extent.Name, fixed)
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

// load returns the loaded plan for a binding, making it if need be.
func (m *Model) load(ctx context.Context, b Binding) (*loaded, error) {
	if m.closed {
		return nil, fmt.Errorf("model: %w", ErrClosed)
	}
	for i, l := range m.plans {
		if maps.Equal(l.dims, b.Dims) {
			m.plans = append(slices.Delete(m.plans, i, i+1), l)
			return l, nil
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p, err := m.unit.Plan(b.ir())
	if err != nil {
		return nil, err
	}
	proof, err := m.provePlan(p)
	if err != nil {
		return nil, err
	}
	prog, err := m.fit(ctx, p)
	if err != nil {
		return nil, err
	}
	l := &loaded{dims: b.Dims, plan: p, prog: prog, proof: proof}
	m.plans = append(m.plans, l)
	m.note(l)
	return l, m.evict()
}

// fit loads p, and makes room for it where memory is short.
func (m *Model) fit(ctx context.Context, p *plan.Plan) (*exec.Program, error) {
	for {
		prog, err := exec.Load(m.machine.ctx, m.machine.dev, p, exec.Options{Logger: m.opts.Logger, Trace: m.opts.Trace, MaxArena: m.opts.Arena, Graph: m.opts.Graph,
			Algorithm: m.opts.Algorithm, Fixed: m.opts.FixedAlgorithms})
		if err == nil {
			return prog, nil
		}
		if err = m.makeRoom(ctx, err); err != nil {
			return nil, err
		}
	}
}

// makeRoom unloads the least recently used plan if err says that memory is short, so
// that who got it can try again. It returns err where that is not so, and where no
// plan is left. None of them runs: runs of a model take turns.
func (m *Model) makeRoom(ctx context.Context, err error) error {
	switch {
	case !errors.Is(err, ErrOutOfMemory):
		return err
	case len(m.plans) == 0:
		return m.short(err)
	}
	if cerr := errors.Join(m.unload(), ctx.Err()); cerr != nil {
		return errors.Join(err, cerr)
	}
	return nil
}

// short adds to an error about memory who else has some, and what helps.
func (m *Model) short(err error) error {
	others := int64(0)
	m.machine.mu.Lock()
	for o := range m.machine.models {
		if o != m {
			others += o.held.Load()
		}
	}
	m.machine.mu.Unlock()
	help := "load for smaller dims or on more ranks"
	if others > 0 {
		help = "close some, give them a smaller LoadOptions.Cache, or " + help
	}
	return fmt.Errorf("%w; no other plan of this model is loaded, and plans of other models of this machine hold %s: %s", err, tensor.Size(others), help)
}

// note learns what l holds by now: its first run and larger batches take more.
func (m *Model) note(l *loaded) {
	now := l.prog.Held().Bytes()
	m.held.Add(now - l.held)
	l.held = now
}

// evict unloads the least recently used plans while all together hold more than the
// bound, but not the one used last.
func (m *Model) evict() error {
	var errs []error
	for len(m.plans) > 1 && m.held.Load() > cmp.Or(m.opts.Cache, cacheBytes) {
		errs = append(errs, m.unload())
	}
	return errors.Join(errs...)
}

// unload gives up the least recently used plan.
func (m *Model) unload() error {
	l := m.plans[0]
	m.plans = m.plans[1:]
	m.held.Add(-l.held)
	return l.prog.Close()
}

// Close unloads the model.
func (m *Model) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil
	}
	m.closed = true
	m.machine.mu.Lock()
	delete(m.machine.models, m)
	m.machine.mu.Unlock()
	var errs []error
	for _, l := range m.plans {
		errs = append(errs, l.prog.Close())
	}
	m.plans = nil
	m.held.Store(0)
	return errors.Join(errs...)
}

func errShape(n int, t *tensor.Tensor) error {
	return fmt.Errorf("%d numbers do not fill %s, which has %d elements", n, t, t.Len())
}
