package hocket

import (
	"fmt"
	"maps"
	"slices"

	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// padding pads the arguments of runs to LoadOptions.Buckets.
type padding struct {
	fn      *function
	buckets map[string][]int64 // each ascends
}

// sortedBuckets returns LoadOptions.Buckets with values that ascend.
func sortedBuckets(info *ir.Info, buckets map[string][]int64) (map[string][]int64, error) {
	out := map[string][]int64{}
	for _, name := range slices.Sorted(maps.Keys(buckets)) {
		if info.Dims[name] == nil {
			return nil, fmt.Errorf("%w: LoadOptions.Buckets has %s, and the program has no such dim; its dims are %v",
				ErrInput, name, slices.Sorted(maps.Keys(info.Dims)))
		}
		out[name] = slices.Sorted(slices.Values(buckets[name]))
		if len(out[name]) > 0 && out[name][0] < 1 {
			return nil, fmt.Errorf("%w: LoadOptions.Buckets: %s=%d; a bucket is at least 1", ErrInput, name, out[name][0])
		}
	}
	return out, nil
}

// extents are the dims of a run, and these dims rounded up.
type extents struct {
	is, up  *ir.Bound
	binding Binding // of up
}

// round rounds up the dims of a run that have buckets. It leaves those unchanged that the model's binding or a bound
// parameter fixes, and those larger than all of their buckets.
func (b padding) round(bound *bindings, a Args) (e extents, err error) {
	if e.binding, err = bound.binding(a, bound.with(a)); err != nil {
		return e, err
	}
	var ds ir.Diagnostics
	if e.is, ds = ir.Resolve(b.fn.unit.Source, e.binding.ir()); ds.HasErrors() {
		return e, b.fn.blame(e.binding, ds)
	}
	e.binding.Dims = maps.Clone(e.binding.Dims)
	for name, values := range b.buckets {
		v, known := e.is.Dims[name]
		at, _ := slices.BinarySearch(values, v)
		if known && at < len(values) && !b.fixed(name, bound, a) {
			e.binding.Dims[name] = values[at]
		}
	}
	if e.up, ds = ir.Resolve(b.fn.unit.Source, e.binding.ir()); ds.HasErrors() {
		return e, b.fn.blame(e.binding, ds)
	}
	return e, nil
}

// fixed reports whether the binding, or a bound parameter that a run uses, fixes a dim.
func (b padding) fixed(dim string, bound *bindings, a Args) bool {
	_, given := b.fn.binding.Dims[dim]
	_, defined := b.fn.binding.Defines[dim]
	return given || defined || slices.ContainsFunc(b.fn.def.Params, func(p *ir.Param) bool {
		return a.In[p.Name] == nil && (bound.tensors[p.Name] != nil || bound.on[p.Name] != nil) &&
			slices.ContainsFunc(p.Type.Dims, func(d ir.Dimension) bool { return uses(d.Extent, dim) })
	})
}

// uses reports whether an expression uses a dim.
func uses(e *ir.Expr, dim string) (found bool) {
	e.Walk(func(e *ir.Expr) { found = found || e.Kind == ir.ExprName && e.Name == dim })
	return found
}

// padded pads the tensors of a run with zeros.
func (b padding) padded(a Args, e extents) (Args, error) {
	if a.onDevices() || len(a.InLocal) > 0 {
		return a, fmt.Errorf("%w: LoadOptions.Buckets pads whole host tensors only, and this run has device tensors or "+
			"blocks", ErrInput)
	}
	out := Args{In: map[string]*Tensor{}, Dims: maps.Clone(a.Dims)}
	if out.Dims == nil {
		out.Dims = map[string]int64{}
	}
	for name := range b.buckets {
		if v, ok := e.binding.Dims[name]; ok {
			out.Dims[name] = v
		}
	}
	for name, t := range a.In {
		out.In[name] = t
		p := b.fn.param(name)
		if p == nil || len(t.Shape) != len(p.Type.Dims) {
			continue // runBatch reports it
		}
		shape, err := e.is.GlobalShape(p.Type, e.is.Env(0, nil))
		if err != nil {
			return a, fmt.Errorf("%w: %%%s: %w", ErrInput, name, err)
		}
		larger, err := e.up.GlobalShape(p.Type, e.up.Env(0, nil))
		if err != nil {
			return a, fmt.Errorf("%w: %%%s padded to its bucket: %w", ErrInput, name, err)
		}
		for i, n := range shape {
			switch {
			case t.Shape[i] != n:
				return a, fmt.Errorf("%w: dimension %d of %%%s is %d, want %d as %s is %d here", ErrInput, i, name,
					t.Shape[i], n, p.Type.Dims[i].Extent, n)
			case larger[i] < n:
				return a, fmt.Errorf("%w: LoadOptions.Buckets would round dimension %d of %%%s, %s, down from %d to %d",
					ErrInput, i, name, p.Type.Dims[i].Extent, n, larger[i])
			}
		}
		if slices.Equal(shape, larger) {
			continue
		}
		full, err := tensor.New(t.DType, larger)
		if err != nil {
			return a, fmt.Errorf("%w: %%%s padded to its bucket: %w", ErrInput, name, err)
		}
		copyCorner(full, t.host(), shape)
		out.In[name] = (*Tensor)(full)
	}
	return out, nil
}

// cutBack cuts the results to the sizes that they have for the dims of the arguments.
func (b padding) cutBack(r *Report, e extents, into map[string]*Tensor) error {
	types := slices.Clone(b.fn.def.Results)
	for _, p := range b.fn.def.Params {
		if p.Inout {
			types = append(types, p.Type)
		}
	}
	for k, name := range ir.OutputNames(b.fn.def) {
		t := r.Out[name]
		if t == nil || k >= len(types) {
			continue
		}
		shape, err := e.is.GlobalShape(types[k], e.is.Env(0, nil))
		if err != nil {
			return fmt.Errorf("result %%%s: %w", name, err)
		}
		for i, n := range shape {
			if n > t.Shape[i] {
				return fmt.Errorf("%w: LoadOptions.Buckets round dimension %d of result %%%s, %s, down from %d to %d",
					ErrInput, i, name, types[k].Dims[i].Extent, n, t.Shape[i])
			}
		}
		dst := into[name].host()
		if into[name] == nil {
			if dst, err = tensor.New(t.DType, shape); err != nil {
				return err
			}
		}
		if dst.DType != t.DType || !slices.Equal(dst.Shape, shape) || dst.Check() != nil {
			return fmt.Errorf("%w: result %%%s is %s%v, and the tensor to receive it is %s", ErrInput, name,
				t.DType, shape, dst)
		}
		copyCorner(dst, t.host(), shape)
		r.Out[name] = (*Tensor)(dst)
	}
	return nil
}

// copyCorner copies the elements that lie within shape in both tensors.
func copyCorner(dst, src *tensor.Tensor, shape []int64) {
	if slices.Contains(shape, 0) {
		return
	}
	if len(shape) == 0 {
		copy(dst.Data, src.Data)
		return
	}
	row := shape[len(shape)-1] * src.DType.Size()
	at := make([]int64, len(shape)-1)
	for {
		var d, s int64
		for i, x := range append(slices.Clone(at), 0) {
			d, s = d*dst.Shape[i]+x, s*src.Shape[i]+x
		}
		d, s = d*src.DType.Size(), s*src.DType.Size()
		copy(dst.Data[d:d+row], src.Data[s:s+row])
		i := len(at) - 1
		for ; i >= 0; i-- {
			if at[i]++; at[i] < shape[i] {
				break
			}
			at[i] = 0
		}
		if i < 0 {
			return
		}
	}
}
