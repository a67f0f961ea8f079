package capi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"hocket.example/hocket"
)

// program returns the program to load. The program is made from text, which is a program of hocket or a StableHLO
// module, or from the archive in the options.
func (o *loadOptions) program(text string) (*hocket.Program, *hocket.Export, error) {
	if o.Export == "" {
		if o.Plan != nil || o.Shard != nil || o.Weights != nil || o.Quantize != "" {
			return nil, nil, fmt.Errorf("%w: plan, shard, weights and quantize apply only to models that torch exported, but the option export is not set",
				hocket.ErrInput)
		}
		if hocket.IsStableHLO(text) {
			e, err := hocket.ReadStableHLO(o.Name, text, o.Ranks)
			if err != nil {
				return nil, nil, err
			}
			return e.Program(), e, nil
		}
		p, err := hocket.Parse(o.Name, text)
		return p, nil, err
	}
	e, err := hocket.OpenExport(o.Export, hocket.ExportOptions{Plan: o.Plan, Shard: o.Shard, Ranks: o.Ranks,
		Weights: o.Weights, Unbound: o.Unbound, Quantize: o.Quantize})
	if err != nil {
		return nil, nil, err
	}
	return e.Program(), e, nil
}

// closed closes an archive, if there is one, and joins its error to err.
func closed(e *hocket.Export, err error) error {
	if e == nil {
		return err
	}
	return errors.Join(err, e.Close())
}

// description is the JSON result of Description.
type description struct {
	Text  string `json:"text"`
	Proof string `json:"proof"` // verdict for the model's own dims
	// States are the inout parameters.
	States []string `json:"states"`
	// Extents holds, for each extent of each parameter, the name of the dim if the extent is a single dim, and "" for
	// other expressions.
	Extents map[string][]string `json:"extents"`
	// Types are the element types of parameters.
	Types map[string]string `json:"types"`
	// Declared are the types of parameters as text. Fixed holds the extents of each parameter. An extent is -1 if it
	// does not follow from the dims that the model was loaded with, or if parameters are passed as blocks and the
	// extent is split.
	Declared map[string]string  `json:"declared"`
	Fixed    map[string][]int64 `json:"fixed"`
	// Returns is like Extents, for each result that is not an inout parameter.
	Returns [][]string `json:"returns"`
	// Positions lists the parameters that index_copy uses as positions.
	Positions []string `json:"positions"`
	// Within lists dims that occur only as part of an expression in some extent. Split lists dims
	// over which parameters are split.
	Within []string `json:"within"`
	Split  []string `json:"split"`
	// The following fields are set for an export. Inputs are the parameters that each call passes. Weights maps every
	// other parameter to the names of the weights that it is assembled from. Unused lists tensors of the option weights
	// that the model does not use. Shapes holds the shapes of the archive's tensors, and Shared the other names of
	// tensors that several modules share.
	Inputs  []string            `json:"inputs,omitempty"`
	Weights map[string][]string `json:"weights,omitempty"`
	Unused  []string            `json:"unused,omitempty"`
	Shapes  map[string][]int64  `json:"shapes,omitempty"`
	Shared  map[string][]string `json:"shared,omitempty"`
	// Quantize is the form in which weights are quantized; empty for none.
	Quantize string `json:"quantize,omitempty"`
}

// Description returns, as JSON, a model's program, its proof, and the export's description of its
// parameters. The proof may take long, and is left out unless prove is set.
func (l *Library) Description(ctx context.Context, handle int64, prove bool) (string, error) {
	m, err := get[*model](l, handle)
	if err != nil {
		return "", err
	}
	d := description{Text: m.program.String(), States: m.states, Extents: m.extents, Types: m.types,
		Declared: m.declared, Fixed: m.fixed, Returns: m.returns,
		Positions: m.positions, Within: m.within, Split: m.split, Unused: m.unused}
	if prove {
		proof, err := m.m.Proof(ctx, nil)
		if err != nil {
			return "", err
		}
		d.Proof = proof.String()
	}
	if m.export != nil {
		d.Inputs, d.Weights, d.Quantize = m.export.Inputs(), m.export.Sources(), m.quantize
		d.Shapes, d.Shared = m.export.Tensors()
	}
	text, err := json.Marshal(d)
	return string(text), err
}

// gradientOptions are the options of Gradient.
type gradientOptions struct {
	Wrt  []string `json:"wrt"`
	Keep string   `json:"keep"`
}

// gradient is the JSON result of Gradient.
type gradient struct {
	Forward  string         `json:"forward"`
	Backward string         `json:"backward"`
	Results  int            `json:"results"` // number of the function's own results, which forward returns first
	Takes    []gradientTake `json:"takes"`
}

type gradientTake struct {
	Of    string `json:"of"`
	Index int    `json:"index"`
}

// Gradient returns, as JSON, the gradient of a model's function as two programs; see hocket.GradientParts.
func (l *Library) Gradient(handle int64, text string) (string, error) {
	m, err := get[*model](l, handle)
	if err != nil {
		return "", err
	}
	var o gradientOptions
	if err := options(text, &o); err != nil {
		return "", err
	}
	if keeps := []string{"", "all", "auto", "inputs"}; !slices.Contains(keeps, o.Keep) {
		return "", fmt.Errorf("%w: option keep is %q; the values are %s", hocket.ErrInput, o.Keep, strings.Join(keeps[1:], ", "))
	}
	parts, err := m.program.GradientParts(hocket.GradientOptions{Func: m.fn, Wrt: o.Wrt, Keep: o.Keep})
	if named := (*hocket.GradientNameError)(nil); errors.As(err, &named) {
		return "", fmt.Errorf("%w: %w; %s", hocket.ErrInput, err, named.Help)
	}
	if err != nil {
		return "", err
	}
	out := gradient{Forward: parts.Forward.String(), Backward: parts.Backward.String(),
		Results: len(m.program.IR().Func(m.fn).Results), Takes: []gradientTake{}}
	for _, t := range parts.Takes {
		out.Takes = append(out.Takes, gradientTake{t.Of, t.Index})
	}
	made, err := json.Marshal(out)
	return string(made), err
}

// comparison is the JSON form of a hocket comparison.
type comparison struct {
	Verdict string            `json:"verdict"`
	Detail  string            `json:"detail"`
	Results []measured        `json:"results"`
	Layers  []layerComparison `json:"layers"`
}

type layerComparison struct {
	Name    string     `json:"name"`
	Line    int32      `json:"line"`
	Verdict string     `json:"verdict"`
	Results []measured `json:"results"`
}

// measured is the error of a result. An error is null if only one of the two compared elements is finite.
type measured struct {
	Name    string   `json:"name"`
	Error   *float64 `json:"error"`
	Largest float64  `json:"largest"`
}

func comparisonOf(c hocket.Comparison) comparison {
	out := comparison{Verdict: c.Verdict.String(), Detail: c.String(), Results: measuredOf(c),
		Layers: []layerComparison{}}
	for _, l := range c.Layers {
		out.Layers = append(out.Layers, layerComparison{l.Name, l.Line, l.Verdict.String(), measuredOf(l.Comparison)})
	}
	return out
}

func measuredOf(c hocket.Comparison) []measured {
	list := []measured{}
	for _, m := range c.Measured {
		x := measured{Name: m.Name, Largest: m.Largest}
		if !math.IsInf(m.Error, 0) {
			x.Error = &m.Error
		}
		list = append(list, x)
	}
	return list
}

// checkpointOptions are the options of BindFrom.
type checkpointOptions struct {
	// Path is a safetensors file, the index of a sharded checkpoint, or a folder.
	Path  string       `json:"path"`
	Rules []weightRule `json:"rules"`
	// parameters that are not weights; null stands for all parameters without a binding
	Inputs []string `json:"inputs"`
}

type weightRule struct {
	Param     string   `json:"param"`
	From      []string `json:"from"`
	Transpose bool     `json:"transpose"`
	Axis      int      `json:"axis"`
	Lo        int64    `json:"lo"`
	Hi        int64    `json:"hi"`
	Cast      bool     `json:"cast"`
}

// loadedWeights is the JSON result of BindFrom: the parameters that it bound, and the tensors that
// no parameter uses.
type loadedWeights struct {
	Bound  []string `json:"bound"`
	Unused []string `json:"unused"`
}

// BindFrom binds weights of a checkpoint to a model's parameters. text and the result are JSON.
func (l *Library) BindFrom(handle int64, text string) (string, error) {
	m, err := get[*model](l, handle)
	if err != nil {
		return "", err
	}
	var o checkpointOptions
	if err := options(text, &o); err != nil {
		return "", err
	}
	c, err := hocket.OpenCheckpoint(o.Path)
	if err != nil {
		return "", fmt.Errorf("%w: %w", hocket.ErrInput, err)
	}
	defer c.Close()
	rules := hocket.Rules{Inputs: o.Inputs}
	names := map[string]bool{}
	for _, n := range c.Names() {
		t, err := c.Header(n)
		if err == nil && !slices.ContainsFunc(o.Rules, func(r weightRule) bool { return r.Param == n }) {
			err = m.notBlock(n, t.Shape, nil)
		}
		if err != nil {
			return "", err
		}
	}
	for _, r := range o.Rules {
		rules.Weights = append(rules.Weights, hocket.WeightRule(r))
		names[r.Param] = true
	}
	for _, n := range c.Names() {
		names[n] = true
	}
	for _, n := range m.names {
		if o.Inputs == nil && !names[n] {
			rules.Inputs = append(rules.Inputs, n)
		}
	}
	for _, n := range o.Inputs {
		delete(names, n)
	}
	out := loadedWeights{Bound: []string{}, Unused: []string{}}
	err = m.bound.bindOthers(func() ([]string, error) {
		unused, err := m.m.BindFrom(c, rules)
		if err != nil {
			return nil, err
		}
		out.Unused = append(out.Unused, unused...)
		for _, n := range m.names {
			if names[n] {
				out.Bound = append(out.Bound, n)
			}
		}
		return out.Bound, nil
	})
	if err != nil {
		return "", err
	}
	m.forget()
	data, err := json.Marshal(out)
	return string(data), err
}

// forget clears cached layouts and the cached comparison, which depend on the shapes of bound
// tensors.
func (m *model) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.known)
}

// planStats is the JSON form of hocket.PlanStats.
type planStats struct {
	Hits      int64 `json:"hits"`
	Misses    int64 `json:"misses"`
	Reloads   int64 `json:"reloads"`
	Evictions int64 `json:"evictions"`
	Plans     int   `json:"plans"`
	Bytes     int64 `json:"bytes"`
	Device    int64 `json:"device"`
	MostBytes int64 `json:"most_bytes"`
}

// PlanStats returns, as JSON, statistics of the plan cache of a model's machine.
func (l *Library) PlanStats(handle int64) (string, error) {
	m, err := get[*model](l, handle)
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(planStats(m.machine.m.Stats().Plans))
	return string(text), err
}

// Reset sets the states of a model that was loaded from an archive to the archive's values.
func (l *Library) Reset(ctx context.Context, handle int64) error {
	m, err := get[*model](l, handle)
	if err != nil || m.export == nil {
		return err
	}
	return m.export.Reset(ctx)
}

// Compare starts comparing a model with its reference, on the arguments in and the bound tensors.
// The caller waits for the number that it returns, and then calls Comparison.
func (l *Library) Compare(handle int64, lent *Loan, in []Tensor, dims string) (int64, error) {
	m, err := get[*model](l, handle)
	if err != nil {
		return 0, err
	}
	bound, err := readDims(dims)
	if err != nil {
		return 0, err
	}
	args, _, err := m.args(in, nil)
	if err != nil {
		return 0, err
	}
	args.Dims = bound
	lent.share()
	end := m.bound.begin()
	return l.background(func(ctx context.Context) error {
		defer lent.End()
		defer end()
		c, err := m.m.Compare(ctx, args)
		if err != nil {
			return err
		}
		text, err := json.Marshal(comparisonOf(c))
		m.mu.Lock()
		m.compared = string(text)
		m.mu.Unlock()
		return err
	}), nil
}

// Comparison returns the model's latest comparison as JSON.
func (l *Library) Comparison(handle int64) (string, error) {
	m, err := get[*model](l, handle)
	if err != nil {
		return "", err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.compared, nil
}
