// Package memoryplan plans the memory of a program, fits the plan into a budget, compares it with PyTorch's allocator,
// and draws it, for the command "hocket memory".
package memoryplan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"hocket.example/hocket/internal/compile"
	"hocket.example/hocket/internal/exec/image"
	"hocket.example/hocket/internal/footprint"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/report"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/internal/verify"
	"hocket.example/hocket/ir"
)

// Plan is the plan of a program with a report about its memory.
type Plan struct {
	Report *footprint.Report
	title  string
	unit   *compile.Unit
	plan   *plan.Plan
}

// Of lowers a checked program for the binding b, and plans it.
func Of(p *ir.Program, opts compile.Options, b ir.Binding) (*Plan, error) {
	u, err := compile.Of(p, opts)
	if err != nil {
		return nil, err
	}
	pl, err := u.Plan(b)
	if err != nil {
		return nil, err
	}
	r, err := footprint.OfPlan(pl)
	if err != nil {
		return nil, err
	}
	return &Plan{Report: r, title: cmp.Or(opts.Strategy, "sequential"), unit: u, plan: pl}, nil
}

// Wait is a wait that Fit has inserted: the first write of the buffer Behind waits for the last use of the buffer
// Before. MicroSec is the predicted cost of the wait in microseconds.
type Wait struct {
	Before   string  `json:"before"`
	Behind   string  `json:"behind"`
	MicroSec float64 `json:"us"`
}

// Fit describes how a plan was changed to fit into a budget.
type Fit struct {
	Waits []Wait `json:"waits"`
	// Before and After are the predicted times of a run before and after the change, in microseconds.
	Before float64 `json:"us_before"`
	After  float64 `json:"us_after"`
}

// Fit inserts waits into the plan until it needs at most budget bytes. It considers pairs of large buffers that can be
// live at the same time, and selects the pair whose wait has the lowest predicted cost per byte saved. The selection is
// greedy, so a better set of waits may exist. The changed plan is proved like any other plan. If waits are not
// sufficient, the error wraps image.ErrBudget and p is the smallest plan that was found.
func (p *Plan) Fit(ctx context.Context, budget int64) (*Fit, error) {
	q, waits, before, after, serr := p.unit.Squeeze(ctx, p.plan, budget)
	if serr != nil && !errors.Is(serr, compile.ErrBudget) {
		return nil, serr
	}
	fit := &Fit{Before: before, After: after, Waits: []Wait{}}
	for _, w := range waits {
		fit.Waits = append(fit.Waits, Wait{q.Buffers[w.Before].Name, q.Buffers[w.Behind].Name, w.Time})
	}
	if v := verify.Plan(q, verify.Options{FaultsOnly: true, Stop: ctx.Err}); v.Verdict != verify.Proved {
		return nil, fmt.Errorf("the plan with %d inserted waits is not proved: %s\n%w", len(waits), v.Reason,
			v.Diagnostics(p.unit.Source.Prog))
	}
	r, err := footprint.OfPlan(q)
	if err != nil {
		return nil, err
	}
	p.plan, p.Report = q, r
	if serr != nil {
		return fit, fmt.Errorf("%w of %s: the plan needs %s, and no added wait reduces that", image.ErrBudget,
			tensor.Size(budget), tensor.Size(r.Peak))
	}
	return fit, nil
}

// Simulate runs the program on a simulation of PyTorch's caching allocator: see footprint.Simulate.
func (p *Plan) Simulate(policy string, speed footprint.Speed) (*footprint.Simulation, error) {
	return footprint.Simulate(p.plan, policy, speed)
}

// WriteViz writes the plan in the format of PyTorch's memory snapshots, for PyTorch's memory viewer. Each rank appears
// as a device.
func (p *Plan) WriteViz(w io.Writer) error { return footprint.WriteViz(w, p.plan) }

// WriteSVG writes a picture of the placement of the buffers of rank 0.
func (p *Plan) WriteSVG(w io.Writer) error { return report.WriteMemorySVG(w, p.picture()) }

func (p *Plan) picture() *report.MemoryPlan { return footprint.Picture(p.title, p.plan, p.Report) }

// WriteHTML writes a self-contained page that shows pictures of the plans side by side. There is at least one.
func WriteHTML(w io.Writer, title string, plans ...*Plan) error {
	var list []*report.MemoryPlan
	for _, p := range plans {
		list = append(list, p.picture())
	}
	return report.WriteMemory(w, title, list)
}
