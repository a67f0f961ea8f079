package hocket

import (
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

// Export is a model that another framework wrote: a program, and of torch.export's the weights and the states that
// calls change.
type Export struct {
	open    *exported.Model
	program *Program
	files   []*Checkpoint
	unbound map[string]bool // parameters that the caller binds

	mu     sync.Mutex
	states []exportState
}

// exportState is a state that a model has on its devices.
type exportState struct {
	on    *DeviceTensor
	begin exported.Content
}

// ExportOptions choose how a model is made a program, and with which weights.
type ExportOptions struct {
	// Plan lays out parameters: tensor-parallel styles by patterns of module paths, as transformers'
	// base_model_tp_plan. docs/models.md lists the styles. A parameter without one is whole on each rank.
	Plan map[string]string
	// Ranks is the default number of ranks; 0 for 1.
	Ranks int
	// Weights are safetensors files and folders of them. Tensors that they have, by the names of the model's modules,
	// count more than the archive's.
	Weights []string
	// Unbound leaves the weights to the caller, who binds each parameter that Sources lists: Bind reads none of them.
	Unbound bool
}

// OpenExport opens an archive and makes a program of its model. The error of one that is malformed wraps ErrInput, and
// of one that hocket makes no program of ErrUnsupported.
func OpenExport(path string, o ExportOptions) (*Export, error) {
	var plan modelprogram.Plan
	for _, pattern := range slices.Sorted(maps.Keys(o.Plan)) {
		plan = append(plan, modelprogram.Rule{Pattern: pattern, Style: o.Plan[pattern]})
	}
	if err := plan.Check(); err != nil {
		return nil, fmt.Errorf("%w: plan: %w", ErrInput, err)
	}
	m, err := exported.Open(path, modelprogram.Options{Plan: plan, Ranks: o.Ranks})
	if err != nil {
		return nil, ofExport(err)
	}
	e := &Export{open: m, unbound: map[string]bool{}}
	for _, p := range m.Params {
		e.unbound[p.Name] = o.Unbound && len(p.Weights) > 0 && !p.State
	}
	if e.program, err = New(m.Info.Prog); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	for _, name := range o.Weights {
		c, err := OpenCheckpoint(name)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%w: weights: %w", ErrInput, err), e.Close())
		}
		e.files = append(e.files, c)
	}
	return e, nil
}

// IsStableHLO reports whether a text is StableHLO's, which JAX's lowered.as_text() prints.
func IsStableHLO(text string) bool { return stablehlo.Is(text) }

// ReadStableHLO makes a program of StableHLO's text. ranks is the default number of ranks, 0 for as many as the text's
// mesh has. name stands for the text in errors, which wrap ErrInput if it is malformed, and ErrUnsupported if hocket
// makes no program of it. Bind gives a model the constants of the text that are parameters of the program.
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

// ofExport says which error of the package's an import's is.
func ofExport(err error) error {
	switch {
	case errors.Is(err, torchexport.ErrUnsupported), errors.Is(err, modelprogram.ErrUnsupported),
		errors.Is(err, stablehlo.ErrUnsupported), errors.Is(err, graph.ErrTooLarge):
		return refusedImport{err}
	case errors.Is(err, torchexport.ErrMalformed), errors.Is(err, stablehlo.ErrMalformed),
		errors.Is(err, exported.ErrMismatch):
		return fmt.Errorf("%w: %w", ErrInput, err)
	}
	return err
}

// refusedImport is ErrUnsupported, whatever the machine.
type refusedImport struct{ error }

func (e refusedImport) Unwrap() []error { return []error{ErrUnsupported, e.error} }

// Program returns the program, to be loaded.
func (e *Export) Program() *Program { return e.program }

// Inputs lists the parameters that each run is given.
func (e *Export) Inputs() []string {
	var list []string
	for _, p := range e.open.Params {
		if p.Input {
			list = append(list, p.Name)
		}
	}
	return list
}

// Sources names the weights, in the tree of modules, that make each of the other parameters but for constants. Of a
// parameter that stacks layers there is one for each layer.
func (e *Export) Sources() map[string][]string {
	all := map[string][]string{}
	for _, p := range e.open.Params {
		if len(p.Weights) > 0 {
			all[p.Name] = slices.Clone(p.Weights)
		}
	}
	return all
}

// Bind gives a model that was loaded with the program its weights, and its states memory on the devices, which they
// keep from one run to the next. They begin with the archive's values. It returns the names of tensors of
// ExportOptions.Weights that the model has no use for.
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
	rank, ranks := m.rows()
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
		if err != nil {
			return nil, ofExport(err)
		}
	}
	for _, name := range used {
		delete(files, name)
	}
	return slices.Sorted(maps.Keys(files)), nil
}

// rows returns which of how many ranks this process has alone; 0 ranks where it has several.
func (m *Model) rows() (rank, ranks int) {
	w := m.machine.peers
	if w == nil || m.fn.binding.Ranks != w.Processes() {
		return 0, 0
	}
	return w.Process(), w.Processes()
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

// Reset gives the states of all models that Bind was called with the archive's values.
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

// Close closes the archive and the files of weights. Models that have these keep them.
func (e *Export) Close() error {
	err := e.open.Close()
	for _, c := range e.files {
		err = errors.Join(err, c.Close())
	}
	return err
}

// checkpointSource reads tensors of a checkpoint.
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
