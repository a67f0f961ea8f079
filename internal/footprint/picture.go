package footprint

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/report"
	"hocket.example/hocket/internal/tensor"
)

// Picture returns the layout of rank 0's memory as data for pages and pictures. The argument title names the strategy.
func Picture(title string, p *plan.Plan, r *Report) *report.MemoryPlan {
	ranks := "ranks"
	if p.Ranks == 1 {
		ranks = "rank"
	}
	out := &report.MemoryPlan{Title: title, Subject: fmt.Sprintf("%s on %d %s", p.Func, p.Ranks, ranks), Peak: r.Peak,
		Bound: r.Bound, Sequential: r.Sequential, Reserved: r.Reserved}
	lives, ops := Lives(p, 0)
	for _, op := range ops {
		out.Commands = append(out.Commands, op.Text)
	}
	for _, l := range lives {
		out.Buffers = append(out.Buffers, report.Buffer{Name: l.Name, Role: l.Role.String(), Line: l.Line,
			Offset: l.Offset, Bytes: l.Bytes, Span: plan.Aligned(l.Bytes), Begin: l.Begin, End: l.End})
	}
	held := slices.Clone(r.AtPeak)
	slices.SortStableFunc(held, func(a, b Held) int { return cmp.Compare(b.Bytes, a.Bytes) })
	for _, h := range held[:min(len(held), mostHeld)] {
		out.AtBound = append(out.AtBound, report.Buffer{Name: h.Name, Bytes: h.Bytes, Line: h.Line})
	}
	return out
}

const (
	// mostHeld is the largest number of buffers that a page lists, and mostSites is the largest number of call sites
	// that it lists.
	mostHeld, mostSites = 12, 100
)

// WriteSnapshotHTML writes a page about snapshots: for each device the memory that was reserved, allocated and waiting
// after each allocation, and the call sites that had allocated the memory that waited at the peak.
func WriteSnapshotHTML(w io.Writer, title string, devices []*Explanation) error {
	var list []report.Device
	verdict := ""
	for i, x := range devices {
		d := report.Device{Title: fmt.Sprintf("device %d", x.Device), Curves: report.Curves{Plan: x.Peak,
			Axis: fmt.Sprintf("allocations of the program, 0 to %d", x.Blocks)}}
		for k, name := range []string{"reserved", "allocated", "waiting for other streams"} {
			d.Curves.Curves = append(d.Curves.Curves, NewCurve(name, x.Curve, func(p Point) int64 {
				return []int64{p.Reserved, p.Held, p.Waiting}[k]
			}))
		}
		for _, s := range x.WaitingBySite[:min(len(x.WaitingBySite), mostSites)] {
			d.Sites = append(d.Sites, report.Site{Name: s.Name(), Bytes: s.Bytes, Blocks: s.Blocks})
		}
		list = append(list, d)
		if i == 0 || x.ReservedPeak > devices[0].ReservedPeak {
			verdict = x.verdict()
		}
	}
	return report.WriteSnapshot(w, title, verdict, list)
}

// verdict returns a text that compares the reserved memory with the necessary memory.
func (x *Explanation) verdict() string {
	s := fmt.Sprintf("Device %d: the allocator reserved %s", x.Device, tensor.Size(x.ReservedPeak))
	if x.Planned() {
		s += fmt.Sprintf("; a plan for the same lifetimes needs %s", tensor.Size(x.Peak))
	}
	if x.Waiting > 0 {
		s += fmt.Sprintf("; up to %s waited for other streams", tensor.Size(x.Waiting))
	}
	return s + "."
}

// NewCurve returns the curve of the values that the function of returns for the points.
func NewCurve(name string, points []Point, of func(Point) int64) report.Curve {
	c := report.Curve{Name: name}
	for _, p := range points {
		c.At, c.Bytes = append(c.At, p.At), append(c.Bytes, of(p))
	}
	return c
}
