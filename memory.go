package hocket

import (
	"cmp"
	"io"

	"hocket.example/hocket/internal/compile"
	"hocket.example/hocket/internal/footprint"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/report"
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
	Line  int32  `json:"line"` // line of the text that defines the buffer; 0 if there is none
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
	plan   *plan.Plan
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
	return &MemoryPlan{Report: memoryReport(r), report: r, title: cmp.Or(opts.Strategy, "sequential"), plan: pl}, nil
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

// String returns the plan as text: every stream, every buffer with its offset, every channel and every command.
func (m *MemoryPlan) String() string { return m.plan.String() }

// WriteSVG writes a picture of the placement of the buffers of rank 0.
func (m *MemoryPlan) WriteSVG(w io.Writer) error { return report.WriteMemorySVG(w, m.picture()) }

func (m *MemoryPlan) picture() *report.MemoryPlan {
	return footprint.Picture(m.title, m.plan, m.report)
}
