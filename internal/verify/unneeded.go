package verify

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// maxTrials limits the number of commands that are checked to find unneeded waits.
const maxTrials = 5_000_000

// unneeded lists waits and barriers that other waits do not imply, but that the plan does not need: the plan is also
// proved without them, because the accesses that they order never conflict. If all listed and all implied statements
// are removed together, the plan is still proved. Only waits and barriers in the set w are listed.
func unneeded(ix *index, implied []Finding, w written) []Finding {
	p := ix.p
	out := map[int32]bool{} // sites whose waits and barriers are removed
	for i := range implied {
		out[p.Cmds[implied[i].Acts[0].Cmd].Site] = true
	}
	proved := func() bool { return Plan(leftOut(p, out), Options{FaultsOnly: true}).Verdict == Proved }
	if !proved() {
		return nil
	}
	var found []Finding
	trials := 0
	for _, c := range firstOfSites(p) {
		site := p.Cmds[c].Site
		s := &p.Sites[site]
		if out[site] || s.Op != ir.OpWait && s.Op != ir.OpBarrier || !w.has(s) {
			continue
		}
		if trials += runs * len(p.Cmds); trials > maxTrials {
			break
		}
		if out[site] = true; !proved() {
			delete(out, site)
			continue
		}
		found = append(found, Finding{
			Warning: true, Kind: KindRedundant, Acts: []Act{{Cmd: c}}, Count: 1,
			Message: fmt.Sprintf("not needed: %s orders no accesses that conflict, and the program is proved without it", s.Text),
			Help:    "remove it; all waits and barriers that are listed as redundant or not needed can be removed together",
		})
	}
	return found
}

// firstOfSites returns the first wait or collective of each site.
func firstOfSites(p *plan.Plan) []int32 {
	var out []int32
	seen := map[int32]bool{}
	for i := range p.Cmds {
		c := &p.Cmds[i]
		ordering := c.Kind == plan.WaitEvent || c.Kind == plan.WaitCounter || c.Kind == plan.Collective
		if ordering && !seen[c.Site] {
			seen[c.Site] = true
			out = append(out, int32(i))
		}
	}
	return out
}

// LeftOut returns the plan without the waits and barriers of the statements to which the given commands belong. It is
// used to measure the cost of these statements; the resulting plan may be incorrect.
func LeftOut(p *plan.Plan, cmds ...int32) *plan.Plan {
	sites := map[int32]bool{}
	for _, c := range cmds {
		sites[p.Cmds[c].Site] = true
	}
	return leftOut(p, sites)
}

// leftOut returns the plan without the waits and barriers of the given statements.
func leftOut(p *plan.Plan, sites map[int32]bool) *plan.Plan {
	q := *p
	barriers := map[int32]bool{}
	q.Cmds = slices.DeleteFunc(slices.Clone(p.Cmds), func(c plan.Cmd) bool {
		if !sites[c.Site] {
			return false
		}
		if c.Kind == plan.Collective {
			barriers[c.Coll] = true
		}
		return c.Kind == plan.WaitEvent || c.Kind == plan.WaitCounter || c.Kind == plan.Collective
	})
	if len(barriers) == 0 {
		return &q
	}
	// Removing a barrier lowers the positions of the later commands, both in the list of commands and in their channel.
	q.Colls = nil
	to := make([]int32, len(p.Colls))
	next := make([]int32, len(p.Channels))
	for i := range p.Colls {
		if barriers[int32(i)] {
			continue
		}
		c := p.Colls[i]
		to[i], c.Seq = int32(len(q.Colls)), next[c.Channel]
		next[c.Channel]++
		q.Colls = append(q.Colls, c)
	}
	for i := range q.Cmds {
		if q.Cmds[i].Kind == plan.Collective {
			q.Cmds[i].Coll = to[q.Cmds[i].Coll]
		}
	}
	return &q
}
