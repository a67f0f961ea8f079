package comm

import (
	"context"
	"slices"
	"testing"

	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/ir"
)

// TestEveryWaitMatters removes each wait from a chain of collectives of each schedule, and checks that some order of
// execution then gives a wrong result. If all members wait for each other's data, these waits may imply the waits for a
// half of staging or slots. If only some members wait for each other's data, the waits for a half of staging or slots
// must matter too.
func TestEveryWaitMatters(t *testing.T) {
	seeds := int64(400)
	if testing.Short() || *onCUDA {
		t.Skip("this test needs thousands of runs in orders that the scheduled CPU machine draws")
	}
	const n = 3
	for _, name := range Schedules() {
		for _, op := range []ir.Op{ir.OpAllReduce, ir.OpAllGather, ir.OpReduceScatter, ir.OpAllToAll, ir.OpBroadcast, ir.OpPermute} {
			s := spec{op: op, red: ir.Sum, dt: ir.F32, n: n, shape: []int64{7, 3}, shift: 1, algo: name, shared: true}
			specs := []spec{s, s, s}
			first := chainOf(t, 0, specs)
			if first == nil {
				continue
			}
			tried, missed := 0, 0
			for i := range specs {
				for k, st := range first.ch.plans[i][1] {
					if st.kind != stepAwait {
						continue
					}
					if implied := st.elem >= n && op != ir.OpBroadcast && op != ir.OpPermute; implied {
						continue
					}
					tried++
					without := func(ch *Channel) { ch.plans[i][1] = slices.Delete(slices.Clone(ch.plans[i][1]), k, k+1) }
					if !someSeedShows(t, seeds, specs, without) {
						missed++
						t.Errorf("%s by %s: no wrong result without member 1's wait %d of instance %d, for counter %d", op, name, k, i, st.elem)
					}
				}
			}
			t.Logf("%s by %s: %d of %d waits matter", op, name, tried-missed, tried)
		}
	}
}

// chainOf returns a rig for the specs if every spec runs with its pinned algorithm; otherwise nil.
func chainOf(t *testing.T, seed int64, specs []spec) *rig {
	w := open(t, cpu.Scheduled, seed, specs[0].n)
	r := newRig(t, w, "s", teamOf(specs[0].n), specs)
	if r.ch.Algorithm(0) != specs[0].algo {
		return nil
	}
	return r
}

// someSeedShows reports whether, after a change to the steps of the channel, some order of execution gives a wrong
// result or a deadlock.
func someSeedShows(t *testing.T, seeds int64, specs []spec, change func(*Channel)) bool {
	for seed := range seeds {
		r := chainOf(t, seed, specs)
		change(r.ch)
		for run := range int64(3) {
			for i := range specs {
				r.issue(i, run)
			}
		}
		if r.ch.world.Sync(context.Background()) != nil || r.differs() {
			return true
		}
	}
	return false
}

// differs reports whether any result is wrong.
func (r *rig) differs() bool {
	for _, j := range r.jobs {
		for me, want := range j.s.want(j.ins) {
			if want != nil && !slices.Equal(j.got[me].Data, want.Data) {
				return true
			}
		}
	}
	return false
}
