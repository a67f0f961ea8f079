// Package buckets pads the tensors of a run to sizes that several runs share, and removes the padding from results.
package buckets

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"hocket.example/hocket/fault"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// Buckets are the sizes to which dims are rounded up: for each dim, by its name, a list in ascending order.
type Buckets map[string][]int64

// New returns the given buckets, each list sorted, and an error if a list is unusable or its name is no dim of the
// program.
func New(info *ir.Info, buckets map[string][]int64) (Buckets, error) {
	out := Buckets{}
	for _, name := range slices.Sorted(maps.Keys(buckets)) {
		out[name] = slices.Sorted(slices.Values(buckets[name]))
		switch {
		case info.Dims[name] == nil:
			return nil, fmt.Errorf("%w: buckets of %s, which is no dim of the program; its dims are %s", fault.ErrInput, name,
				strings.Join(slices.Sorted(maps.Keys(info.Dims)), ", "))
		case len(out[name]) == 0:
			return nil, fmt.Errorf("%w: the list of buckets of %s is empty", fault.ErrInput, name)
		case out[name][0] < 1:
			return nil, fmt.Errorf("%w: a bucket of %s is %d; the least is 1", fault.ErrInput, name, out[name][0])
		}
	}
	return out, nil
}

// Extents holds the dims of a run, and the same dims rounded up.
type Extents struct {
	is, up *ir.Bound
	// Dims holds the rounded values of all dims that have buckets.
	Dims map[string]int64
}

// Round rounds up the dims of a binding, except those that are fixed and those larger than all of their buckets.
func (b Buckets) Round(info *ir.Info, bind ir.Binding, fixed func(dim string) bool) (e Extents, ds ir.Diagnostics) {
	if e.is, ds = ir.Resolve(info, bind); ds.HasErrors() {
		return e, ds
	}
	e.Dims = map[string]int64{}
	for name, values := range b {
		v, known := e.is.Dims[name]
		if !known || fixed(name) {
			continue
		}
		if at, _ := slices.BinarySearch(values, v); at < len(values) {
			v = values[at]
		}
		e.Dims[name] = v
	}
	bind.Dims = maps.Clone(bind.Dims)
	maps.Copy(bind.Dims, e.Dims)
	e.up, ds = ir.Resolve(info, bind)
	return e, ds
}

// Pad returns the tensor of a parameter with zeros at the end of each dimension that is rounded up, or t itself. Pad
// pads positions with -1: index_copy skips these rows, and would write over row 0 otherwise.
func (e Extents) Pad(p *ir.Param, t *tensor.Tensor, positions bool) (*tensor.Tensor, error) {
	is, up, err := e.shapes(p.Name, p.Type)
	switch {
	case err != nil:
		return nil, err
	case !slices.Equal(is, t.Shape):
		return nil, fmt.Errorf("%w: %%%s is %s, want %s%v", fault.ErrInput, p.Name, t, p.Type.DType, is)
	case slices.Equal(is, up):
		return t, nil
	}
	full, err := tensor.New(t.DType, up)
	if err != nil {
		return nil, fmt.Errorf("%w: %%%s padded to its bucket: %w", fault.ErrInput, p.Name, err)
	}
	if positions {
		for i := range full.Data { // -1 as an integer of any size
			full.Data[i] = 0xff
		}
	}
	return full, tensor.Paste(full, t, make([]int64, len(is)))
}

// Cut copies a result to the tensor into, without the elements that padding added. If into is nil, Cut creates a
// tensor.
func (e Extents) Cut(name string, typ *ir.Type, t, into *tensor.Tensor) (*tensor.Tensor, error) {
	is, _, err := e.shapes(name, typ)
	if err == nil && into == nil {
		into, err = tensor.New(t.DType, is)
	}
	if err != nil {
		return nil, err
	}
	if !slices.Equal(into.Shape, is) || into.DType != t.DType || into.Check() != nil {
		return nil, fmt.Errorf("%w: result %%%s is %s%v, and the tensor to receive it is %s", fault.ErrInput, name, t.DType,
			is, into)
	}
	at := make([]int64, len(is))
	return into, tensor.CopyBox(into, at, t, at, is)
}

// shapes returns the shape of a parameter or result with the dims of the run, and its shape with the dims rounded up.
func (e Extents) shapes(name string, t *ir.Type) (is, up []int64, err error) {
	is, err = e.is.GlobalShape(t, e.is.Env(0, nil))
	up, larger := e.up.GlobalShape(t, e.up.Env(0, nil))
	if err = errors.Join(err, larger); err != nil {
		return nil, nil, fmt.Errorf("%w: %%%s: %w", fault.ErrInput, name, err)
	}
	for i, n := range up {
		if n < is[i] {
			return nil, nil, fmt.Errorf("%w: %%%s: buckets would round dimension %d, %s, down from %d to %d", fault.ErrInput,
				name, i, t.Dims[i].Extent, is[i], n)
		}
	}
	return is, up, nil
}

// Counts reports whether an extent of a parameter depends on a dim.
func Counts(p *ir.Param, dim string) (found bool) {
	for _, d := range p.Type.Dims {
		d.Extent.Walk(func(e *ir.Expr) { found = found || e.Kind == ir.ExprName && e.Name == dim })
	}
	return found
}
