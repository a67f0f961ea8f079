package hocket

import (
	"context"
	"errors"
	"fmt"
	"io"

	"hocket.example/hocket/internal/compile"
	"hocket.example/hocket/internal/footprint"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/internal/verify"
)

// MemoryReport describes the memory of a plan on each rank, and the memory that every plan of the program needs at
// least, in bytes.
type MemoryReport struct {
	// Peak is the end of the last buffer, parameters included.
	Peak int64 `json:"peak"`
	// Bound is the most that can be live at once in any order of the streams: no layout is smaller.
	Bound int64 `json:"bound"`
	// Sequential is the most that is live at once in the order of the text.
	Sequential int64 `json:"sequential"`
	// Reserved is the size of the arena that is allocated on the device.
	Reserved   int64   `json:"reserved"`
	GapPercent float64 `json:"gap_percent"` // of Peak over Bound
	Buffers    int     `json:"buffers"`
	// AtPeak are buffers that can be live at once and together have size Bound.
	AtPeak []HeldBuffer `json:"at_peak"`
}

// HeldBuffer is one buffer of a MemoryReport.
type HeldBuffer struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
	Line  int32  `json:"line"` // of the text; 0 for none
}

// MemorySimulation is the memory that a caching allocator would use for a program, in bytes. It is computed from a
// model, not measured.
type MemorySimulation struct {
	Policy        string  `json:"policy"`
	ReservedPeak  int64   `json:"reserved_peak"`
	AllocatedPeak int64   `json:"allocated_peak"`
	Waiting       int64   `json:"waiting_for_streams"` // the most that waits for other streams
	Segments      int     `json:"segments"`
	HostAhead     float64 `json:"host_ahead_ms"` // of the device, at the end
	// ByRun is how many segments the allocator reserved in each run. In its steady state it reserves none.
	ByRun []int `json:"segments_by_run"`

	snapshot *footprint.Snapshot
}

// WriteViz writes the allocator's steps as a snapshot of torch's, for PyTorch's memory viewer and hocket memory.
func (s *MemorySimulation) WriteViz(w io.Writer) error { return footprint.WriteSnapshot(w, s.snapshot) }

// SimulatedSpeed is the speed of the host and the device of a simulated allocator. Zero fields mean an H100.
type SimulatedSpeed struct {
	HostSec   float64 // that the host takes to issue one op; 0 for 220 µs
	FlopsSec  float64 // of GEMMs; 0 for 650e12
	MemorySec float64 // bytes that other ops read and write; 0 for 2.5e12
	LinkSec   float64 // bytes that a collective brings a rank; 0 for 200e9
	Workspace int64   // of GEMMs, which the allocator holds; 0 for 32 MiB, -1 for none
	Runs      int     // back to back; 0 for 5
}

func memoryReport(r *footprint.Report) *MemoryReport {
	out := &MemoryReport{r.Peak, r.Bound, r.Sequential, r.Reserved, r.GapPercent, r.Buffers, nil}
	for _, h := range r.AtPeak {
		out.AtPeak = append(out.AtPeak, HeldBuffer(h))
	}
	return out
}

// MemoryPlan is the placement of a program's buffers in a run.
type MemoryPlan struct {
	Report *MemoryReport

	report *footprint.Report
	title  string
	unit   *compile.Unit
	plan   *plan.Plan
}

// MemoryWait is a wait that MemoryPlan.Fit inserted: buffer Behind is written only after the last use of Before.
// MicroSec is its predicted cost.
type MemoryWait struct {
	Before   string  `json:"before"`
	Behind   string  `json:"behind"`
	MicroSec float64 `json:"us"`
}

// MemoryFit describes how a plan was made to fit.
type MemoryFit struct {
	Waits []MemoryWait `json:"waits"`
	// Before and After are the predicted times of a run, in microseconds.
	Before float64 `json:"us_before"`
	After  float64 `json:"us_after"`
}

// Fit inserts waits into m until it needs at most budget bytes. It tries pairs of large buffers that can be live at
// once, and takes the pair whose wait is predicted to cost least for the bytes that it saves. A better choice of
// waits may exist. The plan is proved like any other. If waits do not suffice, the error wraps ErrBudget and m is the
// smallest plan found. Models do not use this plan: to run within the budget, write the waits into the program.
func (m *MemoryPlan) Fit(ctx context.Context, budget int64) (*MemoryFit, error) {
	q, waits, before, after, serr := m.unit.Squeeze(ctx, m.plan, budget)
	if serr != nil && !errors.Is(serr, compile.ErrBudget) {
		return nil, serr
	}
	fit := &MemoryFit{Before: before, After: after, Waits: []MemoryWait{}}
	for _, w := range waits {
		fit.Waits = append(fit.Waits, MemoryWait{q.Buffers[w.Before].Name, q.Buffers[w.Behind].Name, w.Time})
	}
	if v := verify.Plan(q, verify.Options{FaultsOnly: true, Stop: ctx.Err}); v.Verdict != verify.Proved {
		return nil, fmt.Errorf("the plan with %d waits is not proved: %s\n%w", len(waits), v.Reason,
			v.Diagnostics(m.unit.Source.Prog))
	}
	r, err := footprint.OfPlan(q)
	if err != nil {
		return nil, err
	}
	m.plan, m.report, m.Report = q, r, memoryReport(r)
	if serr != nil {
		return fit, fmt.Errorf("%w of %s: the plan takes %s with all waits that help", ErrBudget, tensor.Size(budget),
			tensor.Size(r.Peak))
	}
	return fit, nil
}

// PlanMemory lowers and plans p for opts.Binding and reports on its memory. Nothing runs, and no machine is needed.
func (p *Program) PlanMemory(opts LowerOptions) (*MemoryPlan, error) {
	u, err := p.build(compile.Options{Strategy: opts.Strategy, Machine: opts.Machine, Nodes: opts.Nodes})
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
	return &MemoryPlan{Report: memoryReport(r), report: r, title: title, unit: u, plan: pl}, nil
}

// Ops returns the commands of a rank in issue order, each as its statement.
func (m *MemoryPlan) Ops(rank int) []string {
	var out []string
	_, ops := footprint.Lives(m.plan, int32(rank))
	for _, op := range ops {
		out = append(out, op.Text)
	}
	return out
}

// Simulate runs the program on a simulation of torch's caching allocator. policy is "caching", or "deferred-free" for
// collectives on a second stream with record_stream; "captured-caching" and "captured" are the same two within the
// capture of a graph. Settings of PYTORCH_CUDA_ALLOC_CONF may follow: "deferred-free,expandable_segments:True". speed
// is the speed of host and device; its zero value means an H100.
func (m *MemoryPlan) Simulate(policy string, speed SimulatedSpeed) (*MemorySimulation, error) {
	s, err := footprint.Simulate(m.plan, policy, footprint.Speed(speed))
	if err != nil {
		return nil, err
	}
	return &MemorySimulation{s.Policy, s.ReservedPeak, s.AllocatedPeak, s.Waiting, s.Segments, s.HostAhead, s.ByRun,
		s.Snapshot}, nil
}

// WriteViz writes the plan as a snapshot for PyTorch's memory viewer, with ranks as devices.
func (m *MemoryPlan) WriteViz(w io.Writer) error { return footprint.WriteViz(w, m.plan) }

// String returns the plan's text: every stream, buffer and offset, channel and command.
func (m *MemoryPlan) String() string { return m.plan.String() }

// WriteSVG writes a picture of the placement of rank 0's buffers.
func (m *MemoryPlan) WriteSVG(w io.Writer) error {
	return footprint.WriteSVG(w, m.panel())
}

func (m *MemoryPlan) panel() footprint.Panel {
	return footprint.Panel{Title: m.title, Plan: m.plan, Report: m.report}
}

// WriteMemoryHTML writes a self-contained page with a picture of each plan, side by side.
func WriteMemoryHTML(w io.Writer, title string, plans ...*MemoryPlan) error {
	var panels []footprint.Panel
	for _, m := range plans {
		panels = append(panels, m.panel())
	}
	return footprint.WriteHTML(w, title, panels)
}
