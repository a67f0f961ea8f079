package hocket

import (
	"fmt"
	"maps"
	"slices"

	"hocket.example/hocket/internal/compile"
	"hocket.example/hocket/internal/exec/blocks"
	"hocket.example/hocket/internal/exec/resident"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// function is the function that a model runs, together with its binding.
type function struct {
	unit      *compile.Unit
	def       *ir.Func
	binding   Binding
	places    callPlaces
	positions map[string]bool // parameters that are padded with -1 if LoadOptions.Buckets is set
	options   []string        // Program.options
}

// param returns the parameter with the given name, or nil if there is none.
func (f *function) param(name string) *ir.Param {
	i := slices.IndexFunc(f.def.Params, func(p *ir.Param) bool { return p.Name == name })
	if i < 0 {
		return nil
	}
	return f.def.Params[i]
}

// free reports whether the extent of a parameter's dimension is a dim whose value the arguments may set.
func (f *function) free(d ir.Dimension) bool {
	_, defined := f.binding.Defines[d.Extent.Name]
	return d.Extent.Kind == ir.ExprName && !defined
}

// fits returns an error if a tensor of the given type and shape cannot be an argument for the named parameter, whatever
// the values of the dims that are not given. A nil tensor fits every parameter that exists.
func (f *function) fits(name string, t *tensor.Tensor, dims map[string]int64) error {
	p := f.param(name)
	if p == nil {
		return fmt.Errorf("%w: %s has no parameter %%%s", ErrInput, f.def.Name, name)
	}
	if t == nil {
		return nil
	}
	if t.DType != p.Type.DType || len(t.Shape) != len(p.Type.Dims) {
		return fmt.Errorf("%w: %%%s is %s, but the tensor to bind is %s", ErrInput, name, p.Type, t)
	}
	for i, d := range p.Type.Dims {
		if n, err := d.Extent.Eval(dimsOnly(dims)); err == nil && n != t.Shape[i] {
			return fmt.Errorf("%w: %%%s is %s, where dimension %d is %d by the dims of the model and of its other bound "+
				"tensors, but the tensor to bind is %s", ErrInput, name, p.Type, i, n, t)
		}
	}
	return nil
}

// closed returns the error of calls on a closed model.
func (f *function) closed() error {
	return fmt.Errorf("the model of %s is %w", f.def.Name, ErrClosed)
}

// hasPort reports whether the function has a parameter or result with the given name.
func (f *function) hasPort(name string) bool {
	return f.param(name) != nil || slices.Contains(ir.OutputNames(f.def), name)
}

// merge returns the binding with the given dims added.
func (f *function) merge(dims map[string]int64) Binding {
	b := f.binding
	b.Dims = map[string]int64{}
	maps.Copy(b.Dims, f.binding.Dims)
	maps.Copy(b.Dims, dims)
	return b
}

// dimsOf returns the binding with dims set from the shapes of arguments. The shapes set every dim that is by itself the
// extent of a parameter's dimension, unless the binding fixes the dim.
func (f *function) dimsOf(in map[string]*tensor.Tensor) (Binding, error) {
	b := f.merge(nil)
	for _, p := range f.def.Params {
		t := in[p.Name]
		if t == nil || len(t.Shape) != len(p.Type.Dims) {
			continue // package exec returns an error about missing and misshapen tensors
		}
		for i, d := range p.Type.Dims {
			if !f.free(d) {
				continue
			}
			if fixed, ok := f.binding.Dims[d.Extent.Name]; ok && fixed != t.Shape[i] {
				return b, fmt.Errorf("%w: dimension %d of %%%s is %d, but the model was loaded with %s=%d",
					blocks.ErrInput, i, p.Name, t.Shape[i], d.Extent.Name, fixed)
			}
			b.Dims[d.Extent.Name] = t.Shape[i]
		}
	}
	return b, nil
}

// setDims sets, in the binding of a run, the dims that the caller of the run has given. It returns an error if they
// change a dim that the model's own binding or the shape of a tensor fixes.
func (f *function) setDims(b Binding, dims map[string]int64) error {
	for _, name := range slices.Sorted(maps.Keys(dims)) {
		if fixed, ok := f.binding.Dims[name]; ok && fixed != dims[name] {
			return fmt.Errorf("%w: the run has %s=%d, but the model was loaded with %s=%d", ErrInput, name, dims[name], name,
				fixed)
		}
		if shaped, ok := b.Dims[name]; ok && shaped != dims[name] {
			return fmt.Errorf("%w: Dims sets %s=%d, but the shapes of the run's tensors set %s=%d", ErrInput, name,
				dims[name], name, shaped)
		}
		b.Dims[name] = dims[name]
	}
	return nil
}

// onlyFitting returns the tensors whose shapes equal the shapes that their parameters have under the binding.
func (f *function) onlyFitting(on map[string]*resident.DeviceTensor, b Binding) error {
	if len(on) == 0 {
		return nil
	}
	bound, err := f.unit.Bind(b.ir())
	if err != nil {
		return f.blame(b, err)
	}
	ports, err := portsOf(bound, f.def)
	if err != nil {
		return err
	}
	for _, p := range ports {
		if d := on[p.Name]; d != nil && !slices.Equal(d.IO().Shape, p.Shape) {
			delete(on, p.Name)
		}
	}
	return nil
}

// blame wraps an error of a load in ErrInput if its cause is that the caller, or the shapes of the arguments, set
// invalid dims.
func (f *function) blame(b Binding, err error) error {
	if _, berr := f.unit.Bind(b.ir()); berr == nil || len(b.Dims) == 0 || maps.Equal(b.Dims, f.binding.Dims) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrInput, err)
}
