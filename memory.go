package hocket

import (
	"io"

	"hocket.example/hocket/internal/compile"
	"hocket.example/hocket/internal/footprint"
	"hocket.example/hocket/internal/plan"
)

// MemoryReport says what a plan takes on each rank, and what any plan of the program must take.
type MemoryReport = footprint.Report

// MemorySimulation is what a caching allocator would take for a program: a model, no measurement.
type MemorySimulation = footprint.Simulation

// MemoryPlan is where a program's buffers lie when it runs.
type MemoryPlan struct {
	Report *MemoryReport

	title string
	plan  *plan.Plan
}

// PlanMemory lowers and plans p for opts.Binding and reports on its memory. Nothing runs, and no machine is needed.
func (p *Program) PlanMemory(opts LowerOptions) (*MemoryPlan, error) {
	u, err := p.build(compile.Options{Strategy: opts.Strategy, Machine: opts.Machine})
	if err != nil {
		return nil, err
	}
	pl, err := u.Plan(opts.Binding.ir())
	if err != nil {
		return nil, err
	}
	r, err := footprint.OfPlan(pl)
	if err != nil {
		return nil, err
	}
	title := opts.Strategy
	if title == "" {
		title = "sequential"
	}
	return &MemoryPlan{Report: r, title: title, plan: pl}, nil
}

// Simulate runs the program on a simulated caching allocator of torch: policy "caching", or "deferred-free" for
// collectives on a second stream and record_stream. speed is that of host and device; its zero value an H100's.
func (m *MemoryPlan) Simulate(policy string, speed footprint.Speed) (*MemorySimulation, error) {
	return footprint.Simulate(m.plan, policy, speed)
}

// WriteViz writes the plan as a snapshot for PyTorch's memory viewer, with ranks as devices.
func (m *MemoryPlan) WriteViz(w io.Writer) error { return footprint.WriteViz(w, m.plan) }

// WriteMemoryHTML writes a self-contained page with a picture of each plan, side by side.
func WriteMemoryHTML(w io.Writer, title string, plans ...*MemoryPlan) error {
	var panels []footprint.Panel
	for _, m := range plans {
		panels = append(panels, footprint.Panel{Title: m.title, Plan: m.plan, Report: m.Report})
	}
	return footprint.WriteHTML(w, title, panels)
}
