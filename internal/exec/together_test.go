package exec

import (
	"testing"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// TestMeets has rank 1 wait, before its share of a collective, for what rank 0
// does before or after its own.
func TestMeets(t *testing.T) {
	share := func(r int32) plan.Cmd { return plan.Cmd{Kind: plan.Collective, Rank: r, Stream: r, Part: r} }
	signal := plan.Cmd{Kind: plan.Signal, Peer: 1}
	wait := plan.Cmd{Kind: plan.WaitCounter, Rank: 1, Stream: 1, Value: 1}
	send := plan.Cmd{Kind: plan.Group, Group: []plan.P2P{{Send: true}}}
	recv := plan.Cmd{Kind: plan.Group, Rank: 1, Stream: 1, Group: []plan.P2P{{}}}
	record := plan.Cmd{Kind: plan.Record, Stream: 2}
	behind := plan.Cmd{Kind: plan.WaitEvent}
	for name, tc := range map[string]struct {
		op   ir.Op
		cmds []plan.Cmd
		want bool
	}{
		"before":       {ir.OpBroadcast, []plan.Cmd{wait, signal, share(0), share(1)}, true},
		"after":        {ir.OpBroadcast, []plan.Cmd{share(0), signal, wait, share(1)}, false},
		"after, late":  {ir.OpPermute, []plan.Cmd{wait, share(0), share(1), signal}, false},
		"not rooted":   {ir.OpAllReduce, []plan.Cmd{share(0), signal, wait, share(1)}, true}, // a deadlock anyway
		"group before": {ir.OpGather, []plan.Cmd{recv, send, share(1), share(0)}, true},
		"group after":  {ir.OpGather, []plan.Cmd{share(0), recv, send, share(1)}, false},
		"event":        {ir.OpScatter, []plan.Cmd{record, behind, share(0), share(1)}, true},
		"no member":    {ir.OpReduce, []plan.Cmd{share(0)}, false},
	} {
		p := &plan.Plan{Ranks: 2, Streams: make([]plan.Stream, 3), Cmds: tc.cmds, Colls: []plan.Coll{{Op: tc.op, Parts: make([]plan.CollPart, 2)}}}
		if got := meets(p); got != tc.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}
