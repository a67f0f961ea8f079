package hocket

import (
	"fmt"
	"maps"
	"slices"

	"hocket.example/hocket/internal/buckets"
	"hocket.example/hocket/ir"
)

// roundUp rounds dims of a run up to LoadOptions.Buckets and sets them in the run's binding. It rounds only the dims
// that neither the model's binding nor a bound parameter fixes.
func (m *Model) roundUp(bound *bindings, a Args) (e buckets.Extents, b Binding, err error) {
	if b, err = bound.binding(a, bound.with(a)); err != nil {
		return e, b, err
	}
	fixed := func(dim string) bool {
		_, given := m.fn.binding.Dims[dim]
		_, defined := m.fn.binding.Defines[dim]
		return given || defined || slices.ContainsFunc(m.fn.def.Params, func(p *ir.Param) bool {
			is := bound.tensors[p.Name] != nil || bound.on[p.Name] != nil
			return is && a.In[p.Name] == nil && buckets.Counts(p, dim)
		})
	}
	e, ds := buckets.Buckets(m.loader.opts.Buckets).Round(m.fn.unit.Source, b.ir(), fixed)
	if ds.HasErrors() {
		return e, b, m.fn.blame(b, ds)
	}
	b.Dims = maps.Clone(b.Dims)
	maps.Copy(b.Dims, e.Dims)
	return e, b, nil
}

// padded returns the batch for the rounded dims, with parameters padded. The function cutBack shortens the results of
// the runs to their sizes for the unrounded dims.
func (m *Model) padded(batch []Args) (padded []Args, cutBack func([]*Report) error, err error) {
	if len(m.loader.opts.Buckets) == 0 {
		return batch, func([]*Report) error { return nil }, nil
	}
	sizes := make([]buckets.Extents, len(batch))
	for i, a := range batch {
		if a.onDevices() || len(a.InLocal) > 0 {
			return nil, nil, fmt.Errorf("%w: LoadOptions.Buckets can pad only whole host tensors, but this run has arguments of other kinds",
				ErrInput)
		}
		if sizes[i], _, err = m.roundUp(m.params.current(), a); err != nil {
			return nil, nil, err
		}
		out := Args{In: maps.Clone(a.In), Dims: maps.Clone(sizes[i].Dims)}
		for name, v := range a.Dims {
			if _, ok := out.Dims[name]; !ok {
				out.Dims[name] = v
			}
		}
		for name, t := range a.In {
			if p := m.fn.param(name); p != nil && len(t.Shape) == len(p.Type.Dims) { // runBatch refuses tensors that do not fit
				full, err := sizes[i].Pad(p, t.host(), m.fn.positions[name])
				if err != nil {
					return nil, nil, err
				}
				out.In[name] = (*Tensor)(full)
			}
		}
		padded = append(padded, out)
	}
	types := slices.Clone(m.fn.def.Results)
	for _, p := range m.fn.def.Params {
		if p.Inout {
			types = append(types, p.Type)
		}
	}
	return padded, func(reports []*Report) error {
		for i, r := range reports {
			for k, name := range ir.OutputNames(m.fn.def) {
				if t := r.Out[name]; t != nil {
					cut, err := sizes[i].Cut(name, types[k], t.host(), batch[i].Out[name].host())
					if err != nil {
						return err
					}
					r.Out[name] = (*Tensor)(cut)
				}
			}
		}
		return nil
	}, nil
}
