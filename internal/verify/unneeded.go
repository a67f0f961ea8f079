package verify

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// maxTrials bounds the commands checked to find what could be left out.
const maxTrials = 5_000_000

// unneeded lists the waits and barriers that other waits do not imply, and
// without which the plan is proved nevertheless: what they order never meets.
// All that are listed, with those implied, can be left out together.
func unneeded(ix *index, implied []Finding) []Finding {
	p := ix.p
	out := map[int32]bool{} // sites left out
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
		s := p.Sites[site]
		if out[site] || s.Op != ir.OpWait && s.Op != ir.OpBarrier {
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
			Message: fmt.Sprintf("not needed: the program is proved without %s", s.Text),
			Help:    "it can be left out, with all others listed here",
		})
	}
	return found
}

// firstOfSites returns each site's first wait or collective.
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

// LeftOut returns the plan without the waits and barriers of the statements that some commands are of.
// What it is good for is what they cost; it need not be right.
func LeftOut(p *plan.Plan, cmds ...int32) *plan.Plan {
	sites := map[int32]bool{}
	for _, c := range cmds {
		sites[p.Cmds[c].Site] = true
	}
	return leftOut(p, sites)
}

// leftOut returns the plan without the waits and barriers of some statements.
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
	// Commands after a barrier move up, in the list and in its channel.
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
