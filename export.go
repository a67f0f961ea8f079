package hocket

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"hocket.example/hocket/internal/exported"
	"hocket.example/hocket/internal/graph"
	"hocket.example/hocket/internal/modelprogram"
	"hocket.example/hocket/internal/stablehlo"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/internal/torchexport"
)

// Export is a model that another framework has exported, converted to a program. An export by torch.export also
// contains the weights and the states that calls change.
type Export struct {
	open    *exported.Model
	program *Program
	files   []*Checkpoint
	paths   []string        // of files
	unbound map[string]bool // parameters that the caller must bind

	mu     sync.Mutex
	states []exportState
}

// exportState is a state of the model that is stored on the devices.
type exportState struct {
	on    *DeviceTensor
	begin exported.Content
}

// ExportOptions configures how an exported model is converted to a program, and where its weights are read from.
type ExportOptions struct {
	// Plan sets the layouts of parameters. It maps patterns of module paths to tensor-parallel styles, like
	// base_model_tp_plan of transformers. docs/models.md lists the styles. Each rank holds the whole of a parameter
	// without a style. OpenExport returns an error if Plan has entries but none of them matches a weight.
	Plan map[string]string
	// Shard overrides Plan. OpenExport returns an error if an entry of Shard matches no weight.
	Shard map[string]string
	// Ranks is the default number of ranks of the program. 0 means 1.
	Ranks int
	// Weights lists safetensors files, and directories that contain them. Their tensors have the names of the model's
	// modules, and take precedence over the tensors in the archive.
	Weights []string
	// Quantize, if not empty, makes Bind quantize the weights of linears to f8e4m3, and the program quantize the
	// activations of these linears. There is one scale for each weight ("fp8-tensor"), for each row ("fp8-row"), or for
	// each 128 by 128 elements ("fp8-block").
	Quantize string
	// Unbound leaves the binding of weights to the caller, who must bind each parameter that Sources lists. Export.Bind
	// then reads no weights.
	Unbound bool
}

// OpenExport opens an archive and converts its model to a program. The error wraps ErrInput if the archive is
// malformed, and ErrUnsupported if hocket cannot convert the model.
func OpenExport(path string, o ExportOptions) (*Export, error) {
	plan, shard := modelprogram.PlanOf(o.Plan), modelprogram.PlanOf(o.Shard)
	plan = plan.With(shard)
	if err := plan.Check(); err != nil {
		return nil, fmt.Errorf("%w: plan: %w", ErrInput, err)
	}
	if err := modelprogram.CheckForm(o.Quantize); err != nil {
		return nil, fmt.Errorf("%w: quantize %w", ErrInput, err)
	}
	m, err := exported.Open(path, modelprogram.Options{Plan: plan, Ranks: o.Ranks, Quantize: o.Quantize})
	if err != nil {
		return nil, ofExport(err)
	}
	if err := cmp.Or(m.CheckShard(), m.CheckPlan(plan)); err != nil {
		return nil, errors.Join(ofExport(err), m.Close())
	}
	e := &Export{open: m, unbound: map[string]bool{}}
	for _, p := range m.Params {
		e.unbound[p.Name] = o.Unbound && len(p.Weights) > 0 && !p.State
	}
	if e.program, err = New(m.Info.Prog); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	e.program.options = []string{fmt.Sprint("plan ", o.Plan), fmt.Sprint("shard ", o.Shard), "quantize " + o.Quantize}
	for _, name := range o.Weights {
		c, err := OpenCheckpoint(name)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%w: weights: %w", ErrInput, err), e.Close())
		}
		e.files, e.paths = append(e.files, c), append(e.paths, name)
	}
	return e, nil
}

// IsStableHLO reports whether a text is a StableHLO module in the form that JAX's lowered.as_text() prints.
func IsStableHLO(text string) bool { return stablehlo.Is(text) }

// ReadStableHLO converts a StableHLO text to a program. ranks is the default number of ranks of the program; 0 means
// the size of the mesh in the text. Errors use name to identify the text. They wrap ErrInput if the text is malformed,
// and ErrUnsupported if hocket cannot convert it. Some constants of the text become parameters of the program;
// Export.Bind binds them to a model.
func ReadStableHLO(name, text string, ranks int) (*Export, error) {
	g, err := stablehlo.Read(name, text, stablehlo.Options{Ranks: ranks})
	if err != nil {
		return nil, ofExport(err)
	}
	m, err := modelprogram.Make(name, g, modelprogram.Options{Ranks: ranks})
	if err != nil {
		return nil, ofExport(err)
	}
	p, err := New(m.Info.Prog)
	return &Export{open: exported.Of(m), program: p}, err
}

// ofExport converts an error of an importer to an error of this package.
func ofExport(err error) error {
	switch {
	case errors.Is(err, torchexport.ErrUnsupported), errors.Is(err, modelprogram.ErrUnsupported),
		errors.Is(err, stablehlo.ErrUnsupported), errors.Is(err, graph.ErrTooLarge):
		return refusedImport{err}
	case errors.Is(err, torchexport.ErrMalformed), errors.Is(err, stablehlo.ErrMalformed),
		errors.Is(err, exported.ErrMismatch), errors.Is(err, modelprogram.ErrPlan):
		return fmt.Errorf("%w: %w", ErrInput, err)
	}
	return err
}

// refusedImport is an error of an import that wraps ErrUnsupported. The error does not depend on the machine.
type refusedImport struct{ error }

func (e refusedImport) Unwrap() []error { return []error{ErrUnsupported, e.error} }

// Program returns the program that was made from the exported model.
func (e *Export) Program() *Program { return e.program }

// Inputs lists the parameters that the arguments of every run must contain.
func (e *Export) Inputs() []string {
	var list []string
	for _, p := range e.open.Params {
		if p.Input {
			list = append(list, p.Name)
		}
	}
	return list
}

// Sources returns, for each parameter that is neither an input nor a constant, the names of the weights from which it
// is made, as paths in the tree of modules. A parameter that stacks layers has one name for each layer.
func (e *Export) Sources() map[string][]string { return e.open.Sources() }

// Tensors returns the shapes of the archive's tensors by name, and the other names of tensors that several modules
// share.
func (e *Export) Tensors() (shapes map[string][]int64, shared map[string][]string) {
	return e.open.Tensors()
}

// Bind binds the exported weights to a model that was loaded from the program. It also allocates device memory for the
// model's states, which keep their contents between runs and begin with the values in the archive. Bind returns the
// names of the tensors in ExportOptions.Weights that the model does not use. It returns an error if some file has no
// tensor that the model uses.
func (e *Export) Bind(ctx context.Context, m *Model) (unused []string, err error) {
	files := map[string]exported.Source{}
	for _, c := range e.files {
		for _, name := range c.Names() {
			files[name] = checkpointSource{c}
		}
	}
	contents, used, err := e.open.Contents(files, func(name string) bool { return e.unbound[name] })
	if err != nil {
		return nil, ofExport(err)
	}
	for i, c := range e.files {
		if err := e.open.CheckFile(e.paths[i], c.Names(), used); err != nil {
			return nil, ofExport(err)
		}
	}
	ranks := m.fn.binding.Ranks
	rank, one := m.machine.onlyRank(ranks)
	if !one {
		ranks = 0 // read all rows
	}
	for i := range contents {
		c := &contents[i]
		if c.Param.State {
			if err := e.bindState(ctx, m, c); err != nil {
				return nil, err
			}
			continue
		}
		t, err := c.Read(rank, ranks)
		if err == nil {
			err = m.Bind(c.Param.Name, (*Tensor)(t))
		}
		if err == nil && ranks > 1 && c.Param.Split >= 0 {
			m.params.bindPart(c.Param.Name)
		}
		if err != nil {
			return nil, ofExport(err)
		}
	}
	for _, name := range used {
		delete(files, name)
	}
	return slices.Sorted(maps.Keys(files)), nil
}

func (e *Export) bindState(ctx context.Context, m *Model, c *exported.Content) error {
	on, err := m.NewDeviceTensor(ctx, c.Param.Name, nil)
	if err == nil {
		err = m.BindDevice(c.Param.Name, on)
	}
	if err != nil {
		return err
	}
	s := exportState{on, *c}
	e.mu.Lock()
	e.states = append(e.states, s)
	e.mu.Unlock()
	return s.reset(ctx)
}

func (s *exportState) reset(ctx context.Context) error {
	t, err := s.begin.Read(0, 0)
	if err != nil {
		return ofExport(err)
	}
	return s.on.Write(ctx, (*Tensor)(t))
}

// Reset restores the states to the values in the archive, in all models that were passed to Bind.
func (e *Export) Reset(ctx context.Context) error {
	e.mu.Lock()
	states := slices.Clone(e.states)
	e.mu.Unlock()
	for _, s := range states {
		if err := s.reset(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Close closes the archive and the files of weights. Models to which they were bound stay usable.
func (e *Export) Close() error {
	err := e.open.Close()
	for _, c := range e.files {
		err = errors.Join(err, c.Close())
	}
	return err
}

// checkpointSource reads the tensors of a checkpoint for an import.
type checkpointSource struct{ *Checkpoint }

func (c checkpointSource) Header(name string) (*tensor.Tensor, error) { return c.open.Header(name) }

func (c checkpointSource) ReadAt(to []byte, name string, from int64) error {
	if err := c.hold(); err != nil {
		return err
	}
	t, err := c.open.View(name)
	if err == nil {
		copy(to, t.Data[from:])
	}
	return errors.Join(err, c.release())
}
