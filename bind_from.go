package hocket

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"hocket.example/hocket/internal/checkpoint"
	"hocket.example/hocket/internal/modelprogram"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// BindFrom binds weights from a checkpoint, as Bind does for one parameter. It checks the headers of all tensors before
// it reads any tensor. If a tensor is missing, or its shape does not fit the other tensors and the program, BindFrom
// binds nothing. A weight that equals a tensor of the checkpoint stays mapped from the file; all other weights are
// copies. If each of several processes drives one rank, each process copies only its rank's part of a weight.
// Reference, Compare and Explore then return ErrUnsupported, unless Args.In has these weights. BindFrom returns the
// names of the tensors that no rule uses. It returns an error if neither a rule nor a name binds any parameter.
func (m *Model) BindFrom(c *Checkpoint, rules Rules) (unused []string, err error) {
	if err := c.hold(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.release())
		}
	}()
	planned, err := m.fn.planWeights(c.open, rules)
	if err != nil {
		return nil, err
	}
	if len(planned) == 0 {
		var params []string
		for _, p := range m.fn.def.Params {
			params = append(params, p.Name)
		}
		return nil, fmt.Errorf("%w: no tensor of %s has the name of a parameter, and there are no rules: its tensors are "+
			"%s; the parameters are %s", ErrInput, c.open.Path(), modelprogram.Some(c.Names()), modelprogram.Some(params))
	}
	headers := map[string]*tensor.Tensor{}
	used := map[string]bool{}
	for name, w := range planned {
		headers[name] = &w.Tensor
		for _, n := range w.Names {
			used[n] = true
		}
	}
	if err := m.fn.checkWeights(headers); err != nil {
		return nil, err
	}
	box := m.boxes(headers)
	bound, parts := map[string]*tensor.Tensor{}, map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(planned)) {
		lo, n := box(m.fn.param(name))
		if bound[name], err = planned[name].Read(lo, n); err != nil {
			return nil, fmt.Errorf("%%%s: %w", name, err)
		}
		parts[name] = lo != nil && !planned[name].Mapped() && !slices.Equal(n, bound[name].Shape)
	}
	if err := m.params.bindFrom(c, bound, parts, rules.Inputs); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(c.open.Names(), func(n string) bool { return used[n] }), nil
}

// boxes returns a function that selects the box (a rectangular part) of a parameter that this process reads: the part
// of its only rank, or nil for the whole parameter if the process drives several ranks or if some dims are unknown.
func (m *Model) boxes(headers map[string]*tensor.Tensor) func(p *ir.Param) (lo, n []int64) {
	whole := func(*ir.Param) (lo, n []int64) { return nil, nil }
	if m.machine.peers == nil {
		return whole
	}
	b, err := m.fn.dimsOf(headers)
	if err != nil {
		return whole
	}
	bound, ds := ir.Resolve(m.fn.unit.Source, b.ir())
	if ds.HasErrors() {
		return whole
	}
	rank, one := m.machine.onlyRank(bound.Ranks)
	if !one {
		return whole
	}
	return func(p *ir.Param) (lo, n []int64) {
		n, err := bound.LocalShape(p.Type, bound.Env(rank, nil))
		switch {
		case err != nil:
			return nil, nil
		case !bound.Holds(p.Type, rank):
			return make([]int64, len(n)), make([]int64, len(n))
		}
		return bound.Offset(p.Type, n, rank), n
	}
}

// planWeights finds, for each parameter, the tensors of the checkpoint from which its weight is built.
func (f *function) planWeights(c *checkpoint.Checkpoint, rules Rules) (map[string]*checkpoint.Weight, error) {
	given := map[string]bool{}
	var errs []error
	for _, name := range rules.Inputs {
		if f.param(name) == nil {
			errs = append(errs, fmt.Errorf("%w: %%%s is listed as an input, but %s has no such parameter", ErrInput, name,
				f.def.Name))
		}
		given[name] = true
	}
	planned := map[string]*checkpoint.Weight{}
	plan := func(r WeightRule) {
		switch {
		case f.param(r.Param) == nil:
			errs = append(errs, fmt.Errorf("%w: a rule is for %%%s, but %s has no such parameter", ErrInput, r.Param,
				f.def.Name))
			return
		case given[r.Param]:
			errs = append(errs, fmt.Errorf("%w: %%%s has two rules, or a rule although it is listed as an input", ErrInput, r.Param))
			return
		}
		given[r.Param] = true
		rule := checkpoint.Rule{From: r.From, Transpose: r.Transpose, Axis: r.Axis, Lo: r.Lo, Hi: r.Hi, Cast: r.Cast}
		w, err := c.Plan(rule, f.param(r.Param).Type.DType)
		if err != nil {
			errs = append(errs, fmt.Errorf("%w: %%%s: %w", ErrInput, r.Param, err))
			return
		}
		planned[r.Param] = w
	}
	for _, r := range rules.Weights {
		plan(r)
	}
	names := c.Names()
	for _, p := range f.def.Params {
		if !given[p.Name] && slices.Contains(names, p.Name) {
			plan(WeightRule{Param: p.Name, From: []string{p.Name}})
		}
	}
	return planned, errors.Join(errs...)
}

// checkWeights returns an error if no choice of dims makes the weights' shapes fit the parameters.
func (f *function) checkWeights(headers map[string]*tensor.Tensor) error {
	wrong := f.misfits(headers)
	if len(wrong) == 0 {
		return nil
	}
	// If one weight is stored transposed, name it in the error.
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		n := len(headers[name].Shape)
		if n < 2 {
			continue
		}
		turned := maps.Clone(headers)
		t := &tensor.Tensor{DType: headers[name].DType, Shape: slices.Clone(headers[name].Shape)}
		t.Shape[n-1], t.Shape[n-2] = t.Shape[n-2], t.Shape[n-1]
		turned[name] = t
		if len(f.misfits(turned)) == 0 {
			wrong = []string{fmt.Sprintf("%%%s is %s, but its transpose, %s, would fit: its rule must transpose it",
				name, headers[name], t)}
			break
		}
	}
	return fmt.Errorf("%w: the weights do not fit the parameters: %s", ErrInput, strings.Join(wrong, "; "))
}

// misfits compares the shapes of the weights with those of the parameters, for the dims that follow from these shapes
// and the binding.
func (f *function) misfits(headers map[string]*tensor.Tensor) (wrong []string) {
	type source struct {
		v    int64
		from string
	}
	dims := map[string]source{}
	for name, v := range f.binding.Dims {
		dims[name] = source{v, "the binding"}
	}
	for _, p := range f.def.Params {
		t := headers[p.Name]
		if t == nil {
			continue
		}
		if len(t.Shape) != len(p.Type.Dims) {
			wrong = append(wrong, fmt.Sprintf("%%%s is %s, want %s", p.Name, t, p.Type))
			continue
		}
		for i, d := range p.Type.Dims {
			name := d.Extent.Name
			if !f.free(d) {
				continue
			}
			if have, ok := dims[name]; !ok {
				dims[name] = source{t.Shape[i], "%" + p.Name}
			} else if have.v != t.Shape[i] {
				wrong = append(wrong, fmt.Sprintf("%%%s is %s, want %s where %s=%d by %s",
					p.Name, t, p.Type, name, have.v, have.from))
			}
		}
	}
	if len(wrong) > 0 {
		return wrong
	}
	b := f.merge(nil)
	for name, s := range dims {
		b.Dims[name] = s.v
	}
	known, ds := ir.Dims(f.unit.Source, b.ir())
	if ds.HasErrors() { // the weights determine only some dims, so only these dims are compared
		known = b.Dims
	}
	for _, p := range f.def.Params {
		t := headers[p.Name]
		if t == nil {
			continue
		}
		for i, d := range p.Type.Dims {
			if n, err := d.Extent.Eval(dimsOnly(known)); err == nil && n != t.Shape[i] {
				wrong = append(wrong, fmt.Sprintf("%%%s is %s, want %s, where dimension %d is %d", p.Name, t, p.Type, i, n))
			}
		}
	}
	return wrong
}
