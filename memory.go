package hocket

import (
	"context"
	"errors"
	"fmt"
	"io"

	"hocket.example/hocket/internal/compile"
	"hocket.example/hocket/internal/footprint"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/report"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/internal/verify"
)

// MemoryReport describes the memory of a plan on each rank, and a lower bound on the memory of every plan for the
// program. All sizes are in bytes.
type MemoryReport struct {
	// Peak is the end of the buffer with the highest address, parameters included.
	Peak int64 `json:"peak"`
	// Bound is the largest number of bytes that can be live at the same time in any order of execution that the streams
	// permit. No layout is smaller.
	Bound int64 `json:"bound"`
	// Sequential is the largest number of bytes that are live at the same time when statements execute in the order of the
	// text.
	Sequential int64 `json:"sequential"`
	// Reserved is the size of the arena that is allocated on each device.
	Reserved   int64   `json:"reserved"`
	GapPercent float64 `json:"gap_percent"` // of Peak over Bound
	Buffers    int     `json:"buffers"`
	// AtPeak lists buffers that can be live at the same time and whose sizes sum to Bound.
	AtPeak []HeldBuffer `json:"at_peak"`
}

// HeldBuffer describes one buffer in a MemoryReport.
type HeldBuffer struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
	Line  int32  `json:"line"` // of the text; 0 for none
}

// MemorySimulation describes the memory that a caching allocator would use for a program, in bytes. The numbers come
// from a simulation and are not measured.
type MemorySimulation struct {
	Policy        string  `json:"policy"`
	ReservedPeak  int64   `json:"reserved_peak"`
	AllocatedPeak int64   `json:"allocated_peak"`
	Waiting       int64   `json:"waiting_for_streams"` // the most that waits for other streams
	Segments      int     `json:"segments"`
	HostAhead     float64 `json:"host_ahead_ms"` // of the device, at the end
	// ByRun holds the number of segments that the allocator reserved in each run. In the steady state the number is 0.
	ByRun []int `json:"segments_by_run"`

	snapshot *footprint.Snapshot
}

// WriteViz writes the steps of the allocator in the format of PyTorch's memory snapshots, which PyTorch's memory viewer
// and hocket memory read.
func (s *MemorySimulation) WriteViz(w io.Writer) error { return footprint.WriteSnapshot(w, s.snapshot) }

// SimulatedSpeed describes the speed of the host and the device for a simulated allocator. A field that is 0 has the
// value for an H100.
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

// MemoryPlan describes the placement of a program's buffers in memory during a run.
type MemoryPlan struct {
	Report *MemoryReport

	report *footprint.Report
	title  string
	unit   *compile.Unit
	plan   *plan.Plan
}

// MemoryWait describes a wait that MemoryPlan.Fit inserted: the first write of the buffer Behind waits for the last use
// of the buffer Before. MicroSec is the predicted cost of the wait in microseconds.
type MemoryWait struct {
	Before   string  `json:"before"`
	Behind   string  `json:"behind"`
	MicroSec float64 `json:"us"`
}

// MemoryFit describes how a plan was changed to fit into a budget.
type MemoryFit struct {
	Waits []MemoryWait `json:"waits"`
	// Before and After are the predicted times of a run before and after the change, in microseconds.
	Before float64 `json:"us_before"`
	After  float64 `json:"us_after"`
}

// Fit inserts waits into m until it needs at most budget bytes. It considers pairs of large buffers that can be live at
// the same time, and selects the pair whose wait has the lowest predicted cost per byte saved. The selection is greedy,
// so a better set of waits may exist. The changed plan is proved like any other. If waits are not sufficient, the error
// wraps ErrBudget and m is the smallest plan that was found. Models do not use this plan: to run a model within the
// budget, write the waits into the program.
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

// PlanMemory lowers and plans p for opts.Binding and reports the memory of the plan. It runs nothing and needs no
// machine.
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

// Ops returns the commands of a rank in issue order, each in the form of a statement.
func (m *MemoryPlan) Ops(rank int) []string {
	var out []string
	_, ops := footprint.Lives(m.plan, int32(rank))
	for _, op := range ops {
		out = append(out, op.Text)
	}
	return out
}

// Simulate runs the program on a simulation of PyTorch's caching allocator. policy is "caching", or "deferred-free" for
// collectives on a second stream with record_stream; "captured-caching" and "captured" are these two policies within
// the capture of a graph. policy may continue with settings of PYTORCH_CUDA_ALLOC_CONF:
// "deferred-free,expandable_segments:True". speed is the speed of the host and the device; its zero value has the
// values for an H100.
func (m *MemoryPlan) Simulate(policy string, speed SimulatedSpeed) (*MemorySimulation, error) {
	s, err := footprint.Simulate(m.plan, policy, footprint.Speed(speed))
	if err != nil {
		return nil, err
	}
	return &MemorySimulation{s.Policy, s.ReservedPeak, s.AllocatedPeak, s.Waiting, s.Segments, s.HostAhead, s.ByRun,
		s.Snapshot}, nil
}

// WriteViz writes the plan in the format of PyTorch's memory snapshots, for PyTorch's memory viewer. Each rank appears
// as a device.
func (m *MemoryPlan) WriteViz(w io.Writer) error { return footprint.WriteViz(w, m.plan) }

// String returns the plan as text: every stream, every buffer with its offset, every channel and every command.
func (m *MemoryPlan) String() string { return m.plan.String() }

// WriteSVG writes a picture of the placement of the buffers of rank 0.
func (m *MemoryPlan) WriteSVG(w io.Writer) error { return report.WriteMemorySVG(w, m.picture()) }

func (m *MemoryPlan) picture() *report.MemoryPlan {
	return footprint.Picture(m.title, m.plan, m.report)
}

// WriteMemoryHTML writes a self-contained page that shows pictures of the plans side by side. There is at least one.
func WriteMemoryHTML(w io.Writer, title string, plans ...*MemoryPlan) error {
	var list []*report.MemoryPlan
	for _, m := range plans {
		list = append(list, m.picture())
	}
	return report.WriteMemory(w, title, list)
}
