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
	buckets map[string][]int64
}

// rounded adds to sizes the dims of one run that have buckets, and returns these dims rounded up. A dim larger than
// all of its buckets is left unchanged.
func (b padding) rounded(a Args, sizes map[string]int64) (map[string]int64, error) {
	up := map[string]int64{}
	for name, v := range a.Dims {
		if _, fixed := b.fn.binding.Dims[name]; !fixed && b.buckets[name] != nil {
			sizes[name], up[name] = v, b.bucket(name, v)
		}
	}
	for _, p := range b.fn.def.Params {
		t := a.In[p.Name]
		if t == nil || len(t.Shape) != len(p.Type.Dims) {
			continue // runBatch reports missing and misshapen tensors
		}
		for i, d := range p.Type.Dims {
			name := b.of(d)
			if name == "" {
				continue
			}
			if have, ok := sizes[name]; ok && have != t.Shape[i] {
				return nil, fmt.Errorf("%w: dimension %d of %%%s is %d, and %s is %d in another parameter",
					ErrInput, i, p.Name, t.Shape[i], name, have)
			}
			sizes[name], up[name] = t.Shape[i], b.bucket(name, t.Shape[i])
		}
	}
	return up, nil
}

// bucket returns the smallest bucket of a dim that is at least v; v if there is none.
func (b padding) bucket(name string, v int64) int64 {
	at := slices.IndexFunc(b.buckets[name], func(b int64) bool { return b >= v })
	if at < 0 {
		return v
	}
	return b.buckets[name][at]
}

// of returns the name of a dimension's dim, if it has buckets and the binding does not fix it.
func (b padding) of(d ir.Dimension) string {
	if d.Extent.Kind != ir.ExprName || b.buckets[d.Extent.Name] == nil {
		return ""
	}
	if _, fixed := b.fn.binding.Dims[d.Extent.Name]; fixed {
		return ""
	}
	return d.Extent.Name
}

func (b padding) padded(a Args, up map[string]int64) (Args, error) {
	if len(a.DeviceIn)+len(a.DeviceOut) > 0 {
		return a, fmt.Errorf("%w: LoadOptions.Buckets pads host tensors only, and this run has device tensors", ErrInput)
	}
	out := Args{In: map[string]*Tensor{}, Dims: maps.Clone(a.Dims)}
	for name := range out.Dims {
		if v, ok := up[name]; ok {
			out.Dims[name] = v
		}
	}
	for name, t := range a.In {
		out.In[name] = t
		p := b.fn.param(name)
		if p == nil || t == nil || t.host().Check() != nil || len(t.Shape) != len(p.Type.Dims) {
			continue
		}
		shape := slices.Clone(t.Shape)
		for i, d := range p.Type.Dims {
			if n := b.of(d); n != "" {
				shape[i] = up[n]
			}
		}
		if slices.Equal(shape, t.Shape) {
			continue
		}
		larger, err := tensor.New(t.DType, shape)
		if err != nil {
			return a, fmt.Errorf("%w: %%%s padded to its bucket: %w", ErrInput, name, err)
		}
		copyCorner(larger, t.host(), t.Shape)
		out.In[name] = (*Tensor)(larger)
	}
	return out, nil
}

// cutBack cuts the results to the sizes that the arguments had.
func (b padding) cutBack(r *Report, sizes map[string]int64, into map[string]*Tensor) error {
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
		shape := slices.Clone(t.Shape)
		for i, d := range types[k].Dims {
			if n := b.of(d); n != "" {
				shape[i] = min(shape[i], sizes[n])
			}
		}
		dst := into[name].host()
		if into[name] == nil {
			var err error
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
