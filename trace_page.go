package hocket

import (
	"errors"
	"io"
	"slices"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/report"
	"hocket.example/hocket/internal/trace"
	"hocket.example/hocket/internal/trace/account"
	"hocket.example/hocket/internal/verify"
)

// WriteHTML writes a page that shows how the time of the run was spent. The page loads nothing from the network. The
// page shows the timeline, the waits and transfers of collectives, and the text program, which was run, with the time
// of each line. The run must have been traced (LoadOptions.Trace). docs/trace.md defines the numbers.
func (r *Report) WriteHTML(w io.Writer, title, program string) error {
	if r.trace == nil || r.trace.Virtual {
		return errors.New("the run has no times: it was not traced, or ran with an explored schedule")
	}
	t := *r.trace
	t.Events = slices.Clone(t.Events) // the accounting changes the events
	return report.WriteRun(w, account.Of(&t, 0), report.Run{Title: title, Program: program})
}

// WriteHTML writes a page about a verdict that refutes a plan. The page shows the commands of two runs in issue order,
// the missing order between two of the commands, and the text program, which was checked.
func (v Verdict) WriteHTML(w io.Writer, title, program string) error {
	o := report.Run{Title: title, Program: program, Facts: "The plan is " + v.String()}
	for _, d := range v.Diagnostics {
		if len(o.Notes) > 0 {
			break // the page draws only the first finding
		}
		o.Notes = append(o.Notes, d.Message)
		for _, n := range d.Notes {
			if !n.Pos.Valid() && len(n.Message) < 300 { // the other notes are part of the drawing
				o.Notes = append(o.Notes, n.Message)
			}
			if n.Pos.Valid() {
				o.Bad = append(o.Bad, int(n.Pos.Line))
			}
		}
		if d.Pos.Valid() {
			o.Bad = append(o.Bad, int(d.Pos.Line))
		}
		if d.Help != "" {
			o.Notes = append(o.Notes, "help: "+d.Help)
		}
	}
	t := &trace.Trace{Virtual: true}
	if v.shown != nil {
		t, o.Missing = v.shown.trace, v.shown.missing
	}
	return report.WriteRun(w, account.Of(t, 0), o)
}

// counterexample is a finding as data for a page.
type counterexample struct {
	trace   *trace.Trace
	missing [][2]int
}

// maxShown is the largest number of commands in a run for which a page shows a counterexample.
const maxShown = 50_000

// show lists the commands of two runs of a plan in issue order, and marks the first two commands of the first finding.
// It returns nil if no finding has two commands or if the plan has more than maxShown commands.
func show(p *plan.Plan, findings []verify.Finding) *counterexample {
	i := slices.IndexFunc(findings, func(f verify.Finding) bool { return !f.Warning && len(f.Acts) >= 2 })
	if i < 0 || len(p.Cmds) > maxShown {
		return nil
	}
	x := &counterexample{trace: &trace.Trace{Ranks: p.Ranks, Virtual: true}}
	for run := range int64(2) {
		for k := range p.Cmds {
			c := &p.Cmds[k]
			s := p.Streams[c.Stream]
			at := run*int64(len(p.Cmds)) + int64(k)
			e := trace.Event{Rank: int(s.Rank), Stream: s.Name, Run: run, ID: int64(k), Name: c.Kind.String(),
				Class:  trace.Sync,
				Detail: p.Where(at), Start: at, End: at + 1, Group: trace.NoGroup}
			switch c.Kind {
			case plan.Compute:
				e.Class, e.Name = trace.Compute, c.Op.String()
			case plan.Collective:
				e.Class, e.Name = trace.Comm, p.Colls[c.Coll].Op.String()
			case plan.Copy, plan.Group:
				e.Class = trace.Comm
			case plan.Input, plan.Output:
				e.Class = trace.IO
			}
			x.trace.Events = append(x.trace.Events, e)
		}
	}
	acts := findings[i].Acts
	x.trace.Sort()
	find := func(a verify.Act) int {
		return slices.IndexFunc(x.trace.Events, func(e trace.Event) bool {
			return e.ID == int64(a.Cmd) && e.Run == int64(a.Run)
		})
	}
	x.missing = append(x.missing, [2]int{find(acts[0]), find(acts[1])})
	return x
}
