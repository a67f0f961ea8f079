package hocket

import (
	"maps"
	"slices"

	"hocket.example/hocket/internal/exec"
	"hocket.example/hocket/internal/exec/resident"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// bindings is what Bind and BindDevice had set at a moment. It is never changed, so that runs share it, and know
// weights that they have looked at before: what a run costs does not grow with their number.
type bindings struct {
	tensors map[string]*tensor.Tensor
	weights *exec.Weights // tensors
	on      map[string]*DeviceTensor
	inout   map[string]bool // of on
	// dims are the binding's and those that the shapes of all of them say, where these agree; else nil.
	dims map[string]int64
}

// bindings is what is bound now.
func (m *Model) bindings() *bindings {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.snapshot == nil {
		b := &bindings{tensors: maps.Clone(m.bound), on: maps.Clone(m.on), inout: map[string]bool{}}
		b.weights = exec.NewWeights(b.tensors)
		for _, p := range m.fn.Params {
			if b.on[p.Name] != nil {
				b.inout[p.Name] = p.Inout
			}
		}
		if dims, err := m.dimsOf(shapes(Args{DeviceIn: b.on}, b.tensors)); err == nil {
			b.dims = dims.Dims
		}
		m.snapshot = b
	}
	return m.snapshot
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

// bindingOf binds dims as dimsOf does, to the shapes of what a run is given and of what is bound. full is the run
// with what is bound on the devices.
func (m *Model) bindingOf(b *bindings, given, full Args) (Binding, error) {
	if dims, ok := m.dimsBeside(b, given); ok {
		out := m.binding
		out.Dims = dims
		return out, nil
	}
	in, err := arguments(full, b.tensors)
	if err != nil {
		return Binding{}, err
	}
	return m.dimsOf(shapes(full, in))
}

// dimsBeside adds to the dims that all bound tensors say those of what a run is given besides: false where it takes
// the place of what is bound, or says something else than that, so that it matters which is asked first.
func (m *Model) dimsBeside(b *bindings, a Args) (map[string]int64, bool) {
	if b.dims == nil || len(a.InLocal) > 0 {
		return nil, false
	}
	dims := maps.Clone(b.dims)
	add := func(name string, shape []int64) bool {
		if b.tensors[name] != nil || b.on[name] != nil {
			return false
		}
		i := slices.IndexFunc(m.fn.Params, func(p *ir.Param) bool { return p.Name == name })
		if i < 0 || len(m.fn.Params[i].Type.Dims) != len(shape) {
			return false
		}
		for k, d := range m.fn.Params[i].Type.Dims {
			if _, defined := m.binding.Defines[d.Extent.Name]; defined || d.Extent.Kind != ir.ExprName {
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

// resolvedDims are the values that all dims have by a binding's.
type resolvedDims struct{ of, all map[string]int64 }

// dimsFor gives the value that every dim has by a binding, which must not be changed. The caller has the lease.
func (m *Model) dimsFor(b Binding) (map[string]int64, error) {
	if m.resolved.all != nil && maps.Equal(m.resolved.of, b.Dims) {
		return m.resolved.all, nil
	}
	all, err := m.unit.Dims(b.ir())
	if err == nil {
		m.resolved = resolvedDims{maps.Clone(b.Dims), all}
	}
	return all, err
}
