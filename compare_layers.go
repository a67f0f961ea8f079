package hocket

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"hocket.example/hocket/internal/layers"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// LayerComparison is the outcome of comparing the results of one layer with the reference. The inputs of the layer are
// the reference's results for the preceding layers.
type LayerComparison struct {
	// Name identifies the part of the function, for example "%hidden, %l=3" for one iteration of a loop. Line is the
	// line of the program at which the layer begins.
	Name string
	Line int32
	Comparison
}

// String returns a description of the layer with its largest error.
func (l LayerComparison) String() string {
	worst, _ := l.Worst()
	if len(l.Measured) == 1 {
		return fmt.Sprintf("%s (line %d): %s", l.Name, l.Line, worst.sizes())
	}
	return fmt.Sprintf("%s (line %d): %s", l.Name, l.Line, worst)
}

// CompareLayers compares the model with its reference layer by layer. A layer is either one iteration of a loop that
// carries values, or a sequence of statements between such loops. Each layer is loaded and run as a separate program,
// with the options of the model and with the inputs that the reference computed for that layer. The error bounds of a
// layer are therefore those of its own operations. If the comparison of a layer is undecided, CompareLayers compares
// the parts of the layer, down to single operations, and returns them in LayerComparison.Layers.
//
// CompareLayers returns no layers for a function that cannot be divided into layers: a function that consists of a
// single layer, a function that refines another one, or a function in which a buffer or stream is in use at every
// possible boundary of layers. Like Reference, it is slow.
func (m *Model) CompareLayers(ctx context.Context, args Args) ([]LayerComparison, error) {
	if m.fn.def.Refines.Text != "" {
		return nil, nil
	}
	in, b, release, err := m.given(args)
	if err != nil {
		return nil, err
	}
	defer release()
	bound, ds := ir.Bind(m.fn.unit.Source, b.ir())
	if ds.HasErrors() {
		return nil, m.fn.blame(b, ds)
	}
	r := layerRun{model: m, ranks: bound.Ranks, values: map[string]*tensor.Tensor{}, loaded: map[*ir.Program]*Model{}}
	for _, p := range m.fn.def.Params {
		t := in[p.Name]
		if t == nil {
			return nil, fmt.Errorf("%w: the program has no value %%%s", ErrInput, p.Name)
		}
		if p.Inout { // layers update an inout parameter
			updated := *t
			updated.Data = slices.Clone(t.Data)
			t = &updated
		}
		r.values[p.Name] = t
	}
	list, err := r.compareAll(ctx, bound, layers.Most)
	return list, errors.Join(err, r.close())
}

// layerRun compares the layers of a model one after another.
type layerRun struct {
	model  *Model
	ranks  int
	most   int                       // the argument most of layers.Split
	values map[string]*tensor.Tensor // parameters and the reference's intermediate values, by name
	loaded map[*ir.Program]*Model
}

// compareAll compares all layers of a function.
func (r *layerRun) compareAll(ctx context.Context, bound *ir.Bound, most int) ([]LayerComparison, error) {
	r.most = most
	var list []LayerComparison
	for _, l := range layers.Split(bound, most) {
		c, err := r.compare(ctx, l)
		if err != nil {
			return nil, fmt.Errorf("layer %s: %w", l.Name, err)
		}
		list = append(list, LayerComparison{Name: l.Name, Line: l.Pos.Line, Comparison: c})
	}
	return list, nil
}

// parts compares the parts of a layer on the layer's inputs.
func (r *layerRun) parts(ctx context.Context, m *Model, in map[string]*Tensor) ([]LayerComparison, error) {
	bound, ds := ir.Bind(m.fn.unit.Source, ir.Binding{Ranks: r.ranks})
	if ds.HasErrors() {
		return nil, ds
	}
	unrolled, err := layers.Unrolled(bound)
	if err != nil {
		return nil, err
	}
	for most := r.most / 4; most > 0; most /= 4 {
		inner := layerRun{model: r.model, ranks: r.ranks, values: map[string]*tensor.Tensor{},
			loaded: map[*ir.Program]*Model{}}
		for i, p := range unrolled.Func.Params {
			t := *in[bound.Func.Params[i].Name].host()
			if p.Inout {
				t.Data = slices.Clone(t.Data)
			}
			inner.values[p.Name] = &t
		}
		list, err := inner.compareAll(ctx, unrolled, most)
		if err = errors.Join(err, inner.close()); err != nil || len(list) > 0 {
			return list, err
		}
	}
	return nil, nil
}

// compare runs one layer, compares its results with the reference, and stores the reference's results for the following
// layers.
func (r *layerRun) compare(ctx context.Context, l layers.Layer) (Comparison, error) {
	m, err := r.load(l.Program)
	if err != nil {
		return Comparison{}, err
	}
	in, err := r.inputs(m.fn.def, l)
	if err != nil {
		return Comparison{}, err
	}
	rep, err := m.Run(ctx, Args{In: in})
	if err != nil {
		return Comparison{}, err
	}
	ref, err := m.Reference(ctx, Args{In: in})
	if err != nil {
		return Comparison{}, err
	}
	c := ref.Compare(rep)
	if c.Verdict == Undecided {
		parts, err := r.parts(ctx, m, in)
		if err != nil {
			return c, err
		}
		c = c.ByLayers(parts)
	}
	for i, name := range l.Out {
		r.values[name] = ref.outputs[i].Tensor
	}
	at := len(l.Out)
	for _, i := range l.In {
		if i.Inout {
			copy(rows(r.values[i.Value], i.Row).Data, ref.outputs[at].Tensor.Data)
			at++
		}
	}
	return c, nil
}

// load loads the program of a layer with the options of the model. Layers with equal programs share one loaded model.
func (r *layerRun) load(p *ir.Program) (*Model, error) {
	if m := r.loaded[p]; m != nil {
		return m, nil
	}
	program, err := New(p)
	if err != nil {
		return nil, err
	}
	program = program.Within(Limits(r.model.fn.unit.Limits()))
	opts := r.model.loader.opts
	opts.Gather, opts.Trace, opts.ProfileRange, opts.Buckets = true, false, false, nil
	m, err := r.model.machine.Load(program, Binding{Ranks: r.ranks}, opts)
	if ds := (Diagnostics)(nil); errors.As(err, &ds) && opts.Strategy != "" { // it may not apply to this layer
		opts.Strategy = ""
		m, err = r.model.machine.Load(program, Binding{Ranks: r.ranks}, opts)
	}
	if err == nil {
		r.loaded[p] = m
	}
	return m, err
}

// inputs returns the inputs of a layer.
func (r *layerRun) inputs(f *ir.Func, l layers.Layer) (map[string]*Tensor, error) {
	in := map[string]*Tensor{}
	for i, from := range l.In {
		t := r.values[from.Value]
		if t == nil {
			return nil, fmt.Errorf("the value of %%%s is not available", from.Value)
		}
		in[f.Params[i].Name] = (*Tensor)(rows(t, from.Row))
	}
	return in, nil
}

// rows returns t if row is negative. Otherwise it returns that row of t, which shares t's memory.
func rows(t *tensor.Tensor, row int64) *tensor.Tensor {
	if row < 0 {
		return t
	}
	shape := slices.Clone(t.Shape)
	each := int64(len(t.Data)) / max(shape[0], 1)
	shape[0] = 1
	return &tensor.Tensor{DType: t.DType, Shape: shape, Data: t.Data[row*each : (row+1)*each]}
}

func (r *layerRun) close() error {
	var errs []error
	for _, m := range r.loaded {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}

// ByLayers refines c with comparisons of the model's layers on the same arguments. Layers can decide a comparison that
// the error bounds of the whole model leave undecided: if all layers are right, the verdict is Within. If a layer
// differs, the verdict is Differs.
func (c Comparison) ByLayers(list []LayerComparison) Comparison {
	c.Layers = list
	if len(list) == 0 || c.Verdict == Differs {
		return c
	}
	weak := list[0]
	for _, l := range list {
		if weakest(weak.Verdict, l.Verdict) != weak.Verdict {
			weak = l
		}
	}
	switch {
	case weak.Verdict == Differs, weak.Verdict == Undecided && c.Verdict == Undecided:
		c.Verdict, c.Detail = weak.Verdict, fmt.Sprintf("layer %s (line %d): %s", weak.Name, weak.Line, weak.Detail)
	case c.Verdict == Undecided:
		worst, _ := c.Worst()
		c.Verdict, c.sizes = Within, worst.sizes()
		c.Detail = fmt.Sprintf("matches %s within rounding in each of %d layers, each run on the inputs that the reference computed",
			c.Against, len(list))
	}
	return c
}

// WorstLayer returns the layer with the largest Quotient. It returns false if there are no layers.
func (c Comparison) WorstLayer() (LayerComparison, bool) {
	if len(c.Layers) == 0 {
		return LayerComparison{}, false
	}
	quotient := func(l LayerComparison) float64 { worst, _ := l.Worst(); return worst.Quotient() }
	return slices.MaxFunc(c.Layers, func(a, b LayerComparison) int { return cmp.Compare(quotient(a), quotient(b)) }),
		true
}

// Compare runs the model once and compares its results with the reference, both as a whole and layer by layer. Compare
// reads parameters that are bound to device tensors, for example state, but does not change them.
func (m *Model) Compare(ctx context.Context, args Args) (Comparison, error) {
	if m.machine.peers != nil && !m.loader.opts.Gather {
		return Comparison{}, fmt.Errorf("%w: with several processes, only whole results can be compared: set LoadOptions.Gather",
			ErrInput)
	}
	args, err := m.onHost(ctx, args)
	if err != nil {
		return Comparison{}, err
	}
	rep, err := m.Run(ctx, args)
	if err != nil {
		return Comparison{}, err
	}
	ref, err := m.Reference(ctx, args)
	if err != nil {
		return Comparison{}, err
	}
	list, err := m.CompareLayers(ctx, args)
	return ref.Compare(rep).ByLayers(list), err
}

// onHost returns args with the contents of bound device tensors copied to host tensors.
func (m *Model) onHost(ctx context.Context, args Args) (Args, error) {
	in := maps.Clone(args.In)
	if in == nil {
		in = map[string]*Tensor{}
	}
	for name, d := range m.params.current().on {
		if in[name] != nil || args.DeviceIn[name] != nil {
			continue
		}
		t, err := d.Read(ctx)
		if err != nil {
			return args, err
		}
		in[name] = t
	}
	args.In = in
	return args, nil
}
