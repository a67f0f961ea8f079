package hocket

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"hocket.example/hocket/internal/checkpoint"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// Checkpoint is an open checkpoint: its files are mapped into memory, and nothing but their
// headers is read before it is used. The files must not change while they are mapped: what is
// written there changes weights, and the system ends a process that reads a file past where it
// was cut off.
type Checkpoint struct {
	open *checkpoint.Checkpoint

	mu   sync.Mutex
	held int // by the caller, by models with weights of it, and by what reads these
	shut bool
}

// OpenCheckpoint opens a safetensors file, the index of a sharded checkpoint, or a directory:
// that of a sharded checkpoint, with its model.safetensors.index.json, or one whose
// safetensors files hold the tensors between them. Files that an index names lie beside it;
// symbolic links are followed, as caches of checkpoints consist of them.
func OpenCheckpoint(path string) (*Checkpoint, error) {
	c, err := checkpoint.Open(path)
	if err != nil {
		return nil, err
	}
	return &Checkpoint{open: c, held: 1}, nil
}

// Names returns the tensors' names, sorted.
func (c *Checkpoint) Names() []string {
	return c.open.Names()
}

// Header returns a tensor without its Data: what type it has.
func (c *Checkpoint) Header(name string) (*Tensor, error) {
	t, err := c.open.Header(name)
	return (*Tensor)(t), err
}

// Tensor reads a tensor.
func (c *Checkpoint) Tensor(name string) (*Tensor, error) {
	if err := c.hold(); err != nil {
		return nil, err
	}
	t, err := c.open.View(name)
	if err == nil {
		t = t.Clone()
	}
	return (*Tensor)(t), errors.Join(err, c.release())
}

// Close closes the checkpoint: Tensor and BindFrom fail from then on. Files that models have
// weights of stay mapped until the last of these models is closed.
func (c *Checkpoint) Close() error {
	c.mu.Lock()
	shut := c.shut
	c.shut = true
	c.mu.Unlock()
	if shut {
		return nil
	}
	return c.release()
}

func (c *Checkpoint) hold() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shut {
		return errors.New("the checkpoint is closed")
	}
	c.held++
	return nil
}

// share holds a checkpoint that is held already, though its caller may have closed it.
func (c *Checkpoint) share() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held++
}

func (c *Checkpoint) release() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held--; c.held > 0 {
		return nil
	}
	return c.open.Close()
}

// Rules say how the tensors of a checkpoint become a model's weights.
type Rules struct {
	// Weights says what parameters are made of. A parameter without a rule is the tensor of its
	// name, if there is one.
	Weights []WeightRule
	// Inputs are the parameters that are no weights: what each run is given, or BindDevice sets.
	// Prepare refuses a model of which another parameter is not bound.
	Inputs []string
}

// WeightRule makes one parameter of tensors. In this order, each tensor is transposed and cut,
// those of a layer are concatenated, layers are stacked, and elements converted.
type WeightRule struct {
	Param string
	// From names the tensors. In "model.layers.*.mlp.up_proj.weight" the * stands for the
	// numbers of layers from 0, as many as the checkpoint has of that prefix; layers are stacked
	// along a new first dimension. Several tensors are concatenated along Axis.
	From []string
	// Transpose swaps the last two dimensions of each tensor.
	Transpose bool
	// Axis is the dimension that is cut and concatenated, of a tensor as it is once transposed.
	Axis int
	// Lo and Hi cut rows Lo to Hi along Axis out of each tensor. Where Hi is 0 it is the end.
	Lo, Hi int64
	// Cast allows a conversion to the parameter's type, which rounds.
	Cast bool
}

// BindFrom binds weights from a checkpoint, as Bind does. All of them are checked by the headers
// before any is read, and none is bound if one is missing or has a shape that does not go with the
// others and the program. Tensors that are a parameter as they are stay mapped; of others a copy
// is made. It returns the names of tensors that nothing uses.
func (m *Model) BindFrom(c *Checkpoint, rules Rules) (unused []string, err error) {
	if err := c.hold(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.release())
		}
	}()
	planned, err := m.planWeights(c.open, rules)
	if err != nil {
		return nil, err
	}
	headers := map[string]*tensor.Tensor{}
	used := map[string]bool{}
	for name, w := range planned {
		headers[name] = &w.Tensor
		for _, n := range w.Names {
			used[n] = true
		}
	}
	if err := m.checkWeights(headers); err != nil {
		return nil, err
	}
	bound := map[string]*tensor.Tensor{}
	for _, name := range slices.Sorted(maps.Keys(planned)) {
		if bound[name], err = planned[name].Read(); err != nil {
			return nil, fmt.Errorf("%%%s: %w", name, err)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, fmt.Errorf("the model is %w", ErrClosed)
	}
	m.snapshot = nil
	for name, t := range bound {
		delete(m.on, name)
		m.bound[name] = t
	}
	m.inputs = slices.Clone(rules.Inputs)
	m.weighted = true
	m.checkpoints = append(m.checkpoints, c)
	return slices.DeleteFunc(c.open.Names(), func(n string) bool { return used[n] }), nil
}

// planWeights finds what each parameter is made of.
func (m *Model) planWeights(c *checkpoint.Checkpoint, rules Rules) (map[string]*checkpoint.Weight, error) {
	params := map[string]*ir.Param{}
	for _, p := range m.fn.Params {
		params[p.Name] = p
	}
	given := map[string]bool{}
	var errs []error
	for _, name := range rules.Inputs {
		if params[name] == nil {
			errs = append(errs, fmt.Errorf("%w: input %%%s: %s has no such parameter", ErrInput, name, m.fn.Name))
		}
		given[name] = true
	}
	planned := map[string]*checkpoint.Weight{}
	plan := func(r WeightRule) {
		switch {
		case params[r.Param] == nil:
			errs = append(errs, fmt.Errorf("%w: %%%s: %s has no such parameter", ErrInput, r.Param, m.fn.Name))
			return
		case given[r.Param]:
			errs = append(errs, fmt.Errorf("%w: %%%s has two rules, or is an input", ErrInput, r.Param))
			return
		}
		given[r.Param] = true
		rule := checkpoint.Rule{From: r.From, Transpose: r.Transpose, Axis: r.Axis, Lo: r.Lo, Hi: r.Hi, Cast: r.Cast}
		w, err := c.Plan(rule, params[r.Param].Type.DType)
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
	for _, p := range m.fn.Params {
		if !given[p.Name] && slices.Contains(names, p.Name) {
			plan(WeightRule{Param: p.Name, From: []string{p.Name}})
		}
	}
	return planned, errors.Join(errs...)
}

// checkWeights reports shapes that no dims could make right.
func (m *Model) checkWeights(headers map[string]*tensor.Tensor) error {
	wrong := m.misfits(headers)
	if len(wrong) == 0 {
		return nil
	}
	// Perhaps it is one weight, stored the other way round.
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		n := len(headers[name].Shape)
		if n < 2 {
			continue
		}
		turned := maps.Clone(headers)
		t := &tensor.Tensor{DType: headers[name].DType, Shape: slices.Clone(headers[name].Shape)}
		t.Shape[n-1], t.Shape[n-2] = t.Shape[n-2], t.Shape[n-1]
		turned[name] = t
		if len(m.misfits(turned)) == 0 {
			wrong = []string{fmt.Sprintf("%%%s is %s, and %s would fit: is it transposed? set Transpose in its rule",
				name, headers[name], t)}
			break
		}
	}
	return fmt.Errorf("%w: weights do not fit: %s", ErrInput, strings.Join(wrong, "; "))
}

// misfits compares shapes with what parameters are for the dims that shapes and the binding say.
func (m *Model) misfits(headers map[string]*tensor.Tensor) (wrong []string) {
	type source struct {
		v    int64
		from string
	}
	dims := map[string]source{}
	for name, v := range m.binding.Dims {
		dims[name] = source{v, "the binding"}
	}
	for _, p := range m.fn.Params {
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
			if _, defined := m.binding.Defines[name]; defined || d.Extent.Kind != ir.ExprName {
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
	b := m.merge(nil)
	for name, s := range dims {
		b.Dims[name] = s.v
	}
	known, ds := ir.Dims(m.unit.Source, b.ir())
	if ds.HasErrors() { // other parameters have dims that no weight says: those of the weights are enough
		known = b.Dims
	}
	for _, p := range m.fn.Params {
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

// dimsOnly evaluates expressions of dims alone.
type dimsOnly map[string]int64

func (d dimsOnly) Dim(name string) (int64, bool)  { v, ok := d[name]; return v, ok }
func (dimsOnly) Var(string) (int64, bool)         { return 0, false }
func (dimsOnly) Rank(string) (int64, bool)        { return 0, false }
func (dimsOnly) Size(string) (int64, bool)        { return 0, false }
func (dimsOnly) Extent(string, int) (int64, bool) { return 0, false }

// unbound reports weights that BindFrom was to bind and that nothing did.
func (m *Model) unbound() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.weighted {
		return nil
	}
	var missing []string
	for _, p := range m.fn.Params {
		if m.bound[p.Name] == nil && m.on[p.Name] == nil && !slices.Contains(m.inputs, p.Name) {
			missing = append(missing, "%"+p.Name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("%w: nothing is bound to %s: give each a rule or Bind it, or name it in Rules.Inputs if runs "+
		"bring it", ErrInput, strings.Join(missing, ", "))
}
