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

// parameters holds the parameters of a model that are bound for all later runs.
type parameters struct {
	fn *function

	mu     sync.Mutex // guards the following fields
	closed bool
	bound  map[string]*tensor.Tensor
	on     map[string]*DeviceTensor // bound, too
	// bound parameters of which this process has read only its part; the other elements are zeros
	parts map[string]bool
	// snapshot holds the current bindings for use by runs. It is nil after a change.
	snapshot *bindings
	// BindFrom sets the following fields: the checkpoints from which bound weights are mapped, keyed by parameter; whether
	// weights were bound; and the parameters that are not weights.
	from     map[string]*source
	weighted bool
	inputs   []string
}

// source is a checkpoint from which one call of BindFrom bound weights. It stays open while any of them is bound.
type source struct {
	*Checkpoint
	weights int
}

// replaced removes the old binding of a parameter. The caller must hold mu.
func (p *parameters) replaced(name string) {
	p.snapshot = nil
	delete(p.bound, name)
	delete(p.on, name)
	delete(p.parts, name)
	s := p.from[name]
	if s == nil {
		return
	}
	delete(p.from, name)
	if s.weights--; s.weights == 0 {
		_ = s.release() // removing an existing mapping does not fail
	}
}

// bind binds a parameter to a host tensor or a device tensor. If both are nil it removes the binding.
func (p *parameters) bind(name string, t *tensor.Tensor, d *DeviceTensor) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed && (t != nil || d != nil) {
		return p.fn.closed()
	}
	p.replaced(name)
	if t != nil {
		p.bound[name] = t
	}
	if d != nil {
		p.on[name] = d
	}
	return nil
}

// bindPart records that the tensor bound to a parameter contains only the part that this process's rank holds.
func (p *parameters) bindPart(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.parts[name] = true
}

// bindFrom binds weights from a checkpoint, of which the caller has made the model a user. parts names the weights of
// which only the part for this process's rank was read. inputs names the parameters that are not weights.
func (p *parameters) bindFrom(
	c *Checkpoint, weights map[string]*tensor.Tensor, parts map[string]bool, inputs []string,
) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return p.fn.closed()
	}
	s := &source{c, len(weights)}
	for name, t := range weights {
		p.replaced(name)
		p.bound[name], p.parts[name], p.from[name] = t, parts[name], s
	}
	p.inputs, p.weighted = slices.Clone(inputs), true
	if len(weights) == 0 {
		_ = c.release() // removing an existing mapping does not fail
	}
	return nil
}

// close releases all bindings.
func (p *parameters) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed, p.snapshot = true, nil
	clear(p.bound)
	clear(p.on)
	var errs []error
	for _, s := range p.sources() {
		errs = append(errs, s.release())
	}
	clear(p.from)
	return errors.Join(errs...)
}

// sources returns the checkpoints of the bound weights. The caller must hold mu.
func (p *parameters) sources() (all []*source) {
	for _, s := range p.from {
		if !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	return all
}

// current returns the current bindings, of which only names and types may be used: see use.
func (p *parameters) current() *bindings {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now()
}

// dimsBesides returns the dims that are fixed by the model's binding and the shapes of all bound tensors except one.
func (p *parameters) dimsBesides(name string) map[string]int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	others := maps.Clone(shapes(Args{DeviceIn: p.on}, p.bound))
	delete(others, name)
	b, err := p.fn.dimsOf(others)
	if err != nil {
		return p.fn.binding.Dims
	}
	return b.Dims
}

// use returns the current bindings for a run. The bytes of mapped weights stay valid until done is called.
func (p *parameters) use() (b *bindings, done func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b = p.now()
	return b, shared(b.from)
}

// shared keeps checkpoints mapped until done is called.
func shared(all []*source) (done func()) {
	for _, s := range all {
		s.share()
	}
	return func() {
		for _, s := range all {
			_ = s.release() // removing an existing mapping does not fail
		}
	}
}

// now is like current, for a caller that holds the mutex mu.
func (p *parameters) now() *bindings {
	if p.snapshot == nil {
		b := &bindings{fn: p.fn, tensors: maps.Clone(p.bound), on: maps.Clone(p.on), from: p.sources(),
			inout: map[string]bool{}}
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

// hold returns the bound parameters as whole tensors, for use without the model's lease. Their bytes stay valid until
// release is called, even if the model is closed. hold fails if the batch needs a tensor of which only a part was read.
func (p *parameters) hold(batch ...Args) (weights map[string]*tensor.Tensor, release func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(p.parts)) {
		if p.parts[name] && slices.ContainsFunc(batch, func(a Args) bool { return a.In[name] == nil }) {
			return nil, nil, fmt.Errorf("%w: only this process's part of %%%s was read, but the evaluator and "+
				"explored schedules need the whole tensor: pass it in Args.In, or call Bind", ErrUnsupported, name)
		}
	}
	return maps.Clone(p.bound), shared(p.sources()), nil
}

// unbound returns an error that names the weights that BindFrom should have bound but that are not bound.
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
	return fmt.Errorf("%w: no tensor is bound to %s: add a rule, call Bind, or list the parameter in Rules.Inputs if each run "+
		"passes it", ErrInput, strings.Join(missing, ", "))
}

// bindings holds the parameters that Bind and BindDevice had set at one moment. It is never changed, so runs share it
// and can recognise weights from earlier runs: the cost of a run does not grow with the number of weights.
type bindings struct {
	fn      *function
	tensors map[string]*tensor.Tensor
	weights *exec.Weights // tensors
	on      map[string]*DeviceTensor
	from    []*source       // the checkpoints from which tensors were bound
	inout   map[string]bool // of on
	// dims holds the dims of the binding and of the shapes of all bound tensors. dims is nil if these contradict each
	// other.
	dims map[string]int64
	// last is the previous request, kept because the next request may be the same.
	last atomic.Pointer[request]
}

// alone returns the binding with dims set from the shapes of all bound tensors.
func (b *bindings) alone() (Binding, error) {
	return b.fn.dimsOf(shapes(Args{DeviceIn: b.on}, b.tensors))
}

// take adds the bound device tensors to the arguments of runs.
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

// residents returns the bound tensors in which a plan can work directly. All runs of the batch read a parameter from
// such a tensor, leave its new value in the tensor if it is inout, and use the tensor for nothing else.
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

// binding returns the binding of a run. It sets dims, as dimsOf does, from the shapes of the run's tensors and of bound
// tensors, and then from the run's Dims. full is the run's arguments with bound device tensors added.
func (b *bindings) binding(given, full Args) (Binding, error) {
	out, err := b.shaped(given, full)
	if err != nil {
		return out, err
	}
	return out, b.fn.setDims(out, given.Dims)
}

// shaped is like binding, but sets dims only from shapes.
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
	all := shapes(full, in)
	out, err := b.fn.dimsOf(all)
	if err != nil {
		return out, err
	}
	bound := maps.Clone(all)
	maps.DeleteFunc(bound, func(name string, _ *tensor.Tensor) bool { return given.In[name] != nil || given.DeviceIn[name] != nil })
	first, err := b.fn.dimsOf(bound)
	maps.Copy(out.Dims, first.Dims) // the error is then about an argument that contradicts bound tensors
	return out, err
}

// dimsBeside adds the dims of a run's own arguments to those of all bound tensors. It returns false if an argument
// replaces or contradicts a bound tensor, because the order of precedence then matters.
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
