package plan

import (
	"testing"

	"hocket.example/hocket/ir"
)

// TestMeets uses plans in which rank 1 waits, before its part of a collective, for a command that rank 0 executes
// before or after its part.
func TestMeets(t *testing.T) {
	share := func(r int32) Cmd { return Cmd{Kind: Collective, Rank: r, Stream: r, Part: r} }
	signal := Cmd{Kind: Signal, Peer: 1}
	wait := Cmd{Kind: WaitCounter, Rank: 1, Stream: 1, Value: 1}
	send := Cmd{Kind: Group, Group: []P2P{{Send: true}}}
	recv := Cmd{Kind: Group, Rank: 1, Stream: 1, Group: []P2P{{}}}
	record := Cmd{Kind: Record, Stream: 2}
	behind := Cmd{Kind: WaitEvent}
	for name, tc := range map[string]struct {
		op   ir.Op
		cmds []Cmd
		want bool
	}{
		"before":       {ir.OpBroadcast, []Cmd{wait, signal, share(0), share(1)}, true},
		"after":        {ir.OpBroadcast, []Cmd{share(0), signal, wait, share(1)}, false},
		"after, late":  {ir.OpPermute, []Cmd{wait, share(0), share(1), signal}, false},
		"not rooted":   {ir.OpAllReduce, []Cmd{share(0), signal, wait, share(1)}, true}, // a deadlock anyway
		"group before": {ir.OpGather, []Cmd{recv, send, share(1), share(0)}, true},
		"group after":  {ir.OpGather, []Cmd{share(0), recv, send, share(1)}, false},
		"event":        {ir.OpScatter, []Cmd{record, behind, share(0), share(1)}, true},
		"no member":    {ir.OpReduce, []Cmd{share(0)}, false},
	} {
		p := &Plan{Ranks: 2, Streams: make([]Stream, 3), Cmds: tc.cmds, Colls: []Coll{{Op: tc.op, Parts: make([]CollPart, 2)}}}
		if got := p.Meets(); got != tc.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}
