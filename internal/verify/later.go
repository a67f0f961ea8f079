package verify

import (
	"fmt"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// Later describes a variant of a proved plan. In the variant, the waits of one statement are issued later, after the
// work that followed them on their streams. The variant is also proved, so this work does not need the waits.
type Later struct {
	Plan *plan.Plan
	// Finding reports the waits as a warning of lost overlap.
	Finding Finding
}

// LaterWaits returns the proved plans that result from moving the waits of one statement after the next work on their
// streams. The plan p must be proved. If source is not nil, only waits in the text of source are moved. Waits that a
// strategy inserted are not moved.
func LaterWaits(p *plan.Plan, source *ir.Program) []Later {
	w := writtenIn(source)
	var out []Later
	trials := 0
	for _, c := range firstOfSites(p) {
		site := p.Cmds[c].Site
		if !isWait(&p.Cmds[c]) || p.Sites[site].Op != ir.OpWait || !w.has(&p.Sites[site]) {
			continue
		}
		if trials += runs * len(p.Cmds); trials > maxTrials {
			break
		}
		q, wait, work := behindWork(p, site)
		if work < 0 || Plan(q, Options{FaultsOnly: true}).Verdict != Proved {
			continue
		}
		ix := &index{p: p}
		out = append(out, Later{q, Finding{
			Warning: true, Kind: KindOverlap, Count: 1,
			Acts: []Act{{Cmd: wait}, {Cmd: work, What: "does not depend on the wait"}},
			Message: fmt.Sprintf("lost overlap: %s delays %s (%s), which does not need to wait",
				p.Sites[site].Text, subject(ix, Act{Cmd: work}), place(ix, Act{Cmd: work})),
			Help: fmt.Sprintf("move the wait after %s", line(ix, Act{Cmd: work})),
		}})
	}
	return out
}

// isWait reports whether a command waits for an event or a counter.
func isWait(c *plan.Cmd) bool { return c.Kind == plan.WaitEvent || c.Kind == plan.WaitCounter }

// behindWork moves the waits of a statement after the next command on their streams that computes or communicates. The
// result wait is the first wait that was moved, and work is the command after which it is now. The result work is -1 if
// no wait was moved.
func behindWork(p *plan.Plan, site int32) (q *plan.Plan, wait, work int32) {
	out := *p
	out.Cmds = make([]plan.Cmd, 0, len(p.Cmds))
	held := map[int32][]int32{} // for each stream: the waits that are being moved
	wait, work = -1, -1
	for i := range p.Cmds {
		c := &p.Cmds[i]
		if c.Site == site && isWait(c) {
			held[c.Stream] = append(held[c.Stream], int32(i))
			continue
		}
		out.Cmds = append(out.Cmds, *c)
		switch c.Kind {
		case plan.Compute, plan.Copy, plan.Collective, plan.Group:
			for _, w := range held[c.Stream] {
				if work < 0 {
					wait, work = w, int32(i)
				}
				out.Cmds = append(out.Cmds, p.Cmds[w])
			}
			delete(held, c.Stream)
		}
	}
	for st := range p.Streams {
		for _, w := range held[int32(st)] {
			out.Cmds = append(out.Cmds, p.Cmds[w])
		}
	}
	return &out, wait, work
}
