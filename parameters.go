package hocket

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"hocket.example/hocket/internal/exec"
	"hocket.example/hocket/internal/exec/resident"
	"hocket.example/hocket/internal/tensor"
)

// parameters are a model's, bound for all runs to come.
type parameters struct {
	fn *function

	mu     sync.Mutex // of what follows
	closed bool
	bound  map[string]*tensor.Tensor
	on     map[string]*DeviceTensor // bound, too
	// snapshot is what is bound, for runs; nil once that has changed.
	snapshot *bindings
	// Of BindFrom: the checkpoints that weights are mapped from, whether there are any, and which
	// parameters are no weights.
	checkpoints []*Checkpoint
	weighted    bool
	inputs      []string
}

// bind binds one of the two to a parameter; none takes what is bound back.
func (p *parameters) bind(name string, t *tensor.Tensor, d *DeviceTensor) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.snapshot = nil
	delete(p.bound, name)
	delete(p.on, name)
	if t != nil {
		p.bound[name] = t
	}
	if d != nil {
		p.on[name] = d
	}
}

// bindFrom binds weights of a checkpoint, which it holds from then on; inputs are the parameters that are no weights.
func (p *parameters) bindFrom(c *Checkpoint, weights map[string]*tensor.Tensor, inputs []string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return fmt.Errorf("the model is %w", ErrClosed)
	}
	for name, t := range weights {
		delete(p.on, name)
		p.bound[name] = t
	}
	p.snapshot, p.inputs, p.weighted, p.checkpoints = nil, slices.Clone(inputs), true, append(p.checkpoints, c)
	return nil
}

// close lets go of all.
func (p *parameters) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed, p.snapshot = true, nil
	clear(p.bound)
	var errs []error
	for _, c := range p.checkpoints {
		errs = append(errs, c.release())
	}
	p.checkpoints = nil
	return errors.Join(errs...)
}

// current is what is bound now.
func (p *parameters) current() *bindings {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.snapshot == nil {
		b := &bindings{fn: p.fn, tensors: maps.Clone(p.bound), on: maps.Clone(p.on), inout: map[string]bool{}}
		b.weights = exec.NewWeights(b.tensors)
		for name := range b.on {
			b.inout[name] = p.fn.param(name).Inout
		}
		if dims, err := b.alone(); err == nil {
			b.dims = dims.Dims
		}
		p.snapshot = b
	}
	return p.snapshot
}

// hold are the bound parameters at this moment, for what does not lease the model: their bytes
// stay until release, though the model is closed.
func (p *parameters) hold() (weights map[string]*tensor.Tensor, release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	held := slices.Clone(p.checkpoints)
	for _, c := range held {
		c.share()
	}
	return maps.Clone(p.bound), func() {
		for _, c := range held {
			_ = c.release() // unmapping what is mapped does not fail
		}
	}
}

// unbound reports weights that BindFrom was to bind and that nothing did.
func (p *parameters) unbound() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.weighted {
		return nil
	}
	var missing []string
	for _, param := range p.fn.def.Params {
		name := param.Name
		if p.bound[name] == nil && p.on[name] == nil && !slices.Contains(p.inputs, name) {
			missing = append(missing, "%"+name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("%w: nothing is bound to %s: give each a rule or Bind it, or name it in Rules.Inputs if runs "+
		"bring it", ErrInput, strings.Join(missing, ", "))
}

// bindings is what Bind and BindDevice had set at a moment. It is never changed, so that runs share it, and know
// weights that they have looked at before: what a run costs does not grow with their number.
type bindings struct {
	fn      *function
	tensors map[string]*tensor.Tensor
	weights *exec.Weights // tensors
	on      map[string]*DeviceTensor
	inout   map[string]bool // of on
	// dims are the binding's and those that the shapes of all of them say, where these agree; else nil.
	dims map[string]int64
	// last is the request before, if the like may come again.
	last atomic.Pointer[request]
}

// alone binds dims to the shapes of all that is bound.
func (b *bindings) alone() (Binding, error) {
	return b.fn.dimsOf(shapes(Args{DeviceIn: b.on}, b.tensors))
}

// take adds bound device tensors to what runs are given.
func (b *bindings) take(batch []Args) []Args {
	if len(b.on) == 0 {
		return batch
	}
	batch = slices.Clone(batch)
	for i := range batch {
		batch[i] = b.with(batch[i])
	}
	return batch
}

func (b *bindings) with(a Args) Args {
	in, out := make(map[string]*DeviceTensor, len(b.on)+len(a.DeviceIn)),
		make(map[string]*DeviceTensor, len(b.on)+len(a.DeviceOut))
	for name, d := range b.on {
		_, host := a.In[name]
		_, dev := a.DeviceIn[name]
		if host || dev {
			continue
		}
		in[name] = d
		if b.inout[name] && a.Out[name] == nil && a.DeviceOut[name] == nil {
			out[name] = d
		}
	}
	maps.Copy(in, a.DeviceIn)
	maps.Copy(out, a.DeviceOut)
	a.DeviceIn, a.DeviceOut = in, out
	return a
}

// residents are the bound tensors that all runs of a batch take their parameters from and,
// where they are inout, leave them in, and use for nothing else.
func (b *bindings) residents(batch []exec.Args) map[string]*resident.DeviceTensor {
	all := map[string]*resident.DeviceTensor{}
	for name, d := range b.on {
		otherwise := func(r exec.Args) bool { return !r.UsesOnlyAs(d.t, name, b.inout[name]) }
		if len(batch) > 0 && !slices.ContainsFunc(batch, otherwise) {
			all[name] = d.t
		}
	}
	return all
}

// binding binds dims as dimsOf does, to the shapes of a run's tensors and of bound ones, and then to the run's dims.
// full is the run with bound tensors on the devices.
func (b *bindings) binding(given, full Args) (Binding, error) {
	out, err := b.shaped(given, full)
	if err != nil {
		return out, err
	}
	return out, b.fn.setDims(out, given.Dims)
}

// shaped is binding by shapes alone.
func (b *bindings) shaped(given, full Args) (Binding, error) {
	if dims, ok := b.dimsBeside(given); ok {
		out := b.fn.binding
		out.Dims = dims
		return out, nil
	}
	in, err := arguments(full, b.tensors)
	if err != nil {
		return Binding{}, err
	}
	return b.fn.dimsOf(shapes(full, in))
}

// dimsBeside adds to the dims that all bound tensors say those of what a run is given besides: false where it takes
// the place of what is bound, or says something else than that, so that it matters which is asked first.
func (b *bindings) dimsBeside(a Args) (map[string]int64, bool) {
	if b.dims == nil || len(a.InLocal) > 0 {
		return nil, false
	}
	dims := maps.Clone(b.dims)
	add := func(name string, shape []int64) bool {
		if b.tensors[name] != nil || b.on[name] != nil {
			return false
		}
		p := b.fn.param(name)
		if p == nil || len(p.Type.Dims) != len(shape) {
			return false
		}
		for k, d := range p.Type.Dims {
			if !b.fn.free(d) {
				continue
			}
			if v, ok := dims[d.Extent.Name]; ok && v != shape[k] {
				return false
			}
			dims[d.Extent.Name] = shape[k]
		}
		return true
	}
	for name, t := range a.In {
		if !add(name, t.Shape) {
			return nil, false
		}
	}
	for name, d := range a.DeviceIn {
		if !add(name, d.header().Shape) {
			return nil, false
		}
	}
	return dims, true
}
