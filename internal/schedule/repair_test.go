package schedule_test

import (
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/schedule"
	"hocket.example/hocket/internal/schedule/mscclpp"
)

// ring returns an all-gather in which each of four ranks passes chunks to its successor. Channel 0 of a rank leads to
// its successor, and channel 1 to its predecessor. All ranks wait for both neighbours at the beginning and the end.
func ring(t *testing.T) *mscclpp.File {
	t.Helper()
	const ranks = 4
	var gpus []string
	for r := range ranks {
		sync := func(name string, ids string) string {
			return fmt.Sprintf(`{"name":"%s","channel_ids":[%s],"channel_type":"memory"}`, name, ids)
		}
		nop := `{"name":"nop"}`
		ops := []string{sync("signal", "0,1"), sync("wait", "0,1"), nop, fmt.Sprintf(`{"name":"copy",
			"src_buff":[{"type":"i","index":0,"size":1}],"dst_buff":[{"type":"o","index":%d,"size":1}]}`, r), nop}
		for k := range ranks - 1 {
			c := (r + ranks - k) % ranks
			ops = append(ops, fmt.Sprintf(`{"name":"put","src_buff":[{"type":"o","index":%d,"size":1}],
				"dst_buff":[{"buffer_id":0,"index":%d,"size":1}],"channel_ids":[0],"channel_type":"memory"}`, c, c),
				nop, sync("signal", "0"), sync("wait", "1"), nop)
		}
		ops = append(ops, sync("signal", "0,1"), sync("wait", "0,1"), nop)
		gpus = append(gpus, fmt.Sprintf(`{"id":%d,"input_chunks":1,"output_chunks":4,"scratch_chunks":0,
			"channels":[{"channel_type":"memory","connected_to":[%d,%d]}],
			"remote_buffers":[{"rank":%d,"type":"o","access_channel_types":["memory"]}],"semaphores":[],
			"threadblocks":[{"id":0,"ops":[%s],"channels":[{"channel_type":"memory","channel_ids":[0,1]}],
			"remote_buffer_refs":[{"access_channel_type":"memory","remote_buffer_ids":[0]}]}]}`,
			r, (r+1)%ranks, (r+ranks-1)%ranks, (r+1)%ranks, strings.Join(ops, ",")))
	}
	f, err := mscclpp.Parse([]byte(`{"name":"ring","collective":"allgather","protocol":"Simple","inplace":false,"gpus":[` +
		strings.Join(gpus, ",") + `]}`))
	if err != nil {
		t.Fatal(err)
	}
	if r := check(t, f, 2); r.Verdict != schedule.OK || len(r.Warnings) > 0 {
		t.Fatal(r.Verdict, r.Findings, r.Warnings)
	}
	return f
}

// TestFixRing deletes each signal and wait of rank 2 in a ring. Without the signal, a block and then all others wait
// forever in some launch; without the wait, two other ranks can race. Fix must undo each deletion, although the blocks
// are so long that it cannot try insertions at all places.
func TestFixRing(t *testing.T) {
	f := ring(t)
	for r := range f.GPUs {
		tb := &f.GPUs[r].Threadblocks[0]
		tb.Ops = append(tb.Ops, slices.Repeat([]mscclpp.Op{{Name: "nop"}}, 100)...)
	}
	deadlocks, races := 0, 0
	for _, place := range f.Syncs() {
		if place.Rank != 2 || place.Name == "nop" {
			continue
		}
		m := f.Without(place)
		r := check(t, m, 2)
		switch r.Verdict {
		case schedule.OK:
			continue
		case schedule.Deadlock:
			deadlocks++
			if one := check(t, m, 1); one.Verdict == schedule.Deadlock && one.Findings[0].String() != r.Findings[0].String() {
				t.Errorf("without %v: %v, in one launch %v", place, r.Findings[0], one.Findings[0])
			}
		case schedule.Race:
			races++
		}
		fix, proof, ok := schedule.Fix(m, r, schedule.Options{Launches: 2})
		if !ok || proof.Verdict != schedule.OK {
			t.Errorf("without %v: %s; %v", place, fix.Text, r.Findings[0])
		}
	}
	if deadlocks < 3 || races < 3 {
		t.Errorf("%d deadlocks and %d races, want at least 3 of each", deadlocks, races)
	}
}

// endless is a schedule that proposes itself as a repair, again and again.
type endless struct{ schedule.File }

func (e endless) Repairs(*schedule.Report) iter.Seq[schedule.Repair] {
	return func(yield func(schedule.Repair) bool) {
		for yield(schedule.Repair{File: e.File}) {
		}
	}
}

func TestFixStops(t *testing.T) {
	f := exchange(t).Without(at(0, 0, 3))
	fix, _, ok := schedule.Fix(endless{f}, check(t, f, 1), schedule.Options{Launches: 1})
	if want := "stopped after 1000 plans, none of which is proved"; ok || fix.Text != want {
		t.Errorf("%v %q, want %q", ok, fix.Text, want)
	}
}

// TestFixDoubleScratch checks an all-gather by packets that needs no signals if launches alternate between two scratch
// buffers, since a rank that has the packets of a launch knows that its peers have read those of the launch before.
func TestFixDoubleScratch(t *testing.T) {
	f := packetGather(t)
	if r := check(t, f, 1); r.Verdict != schedule.OK {
		t.Fatal(r.Verdict, r.Findings)
	}
	r := check(t, f, 2)
	if r.Verdict != schedule.Race {
		t.Fatal(r.Verdict, r.Findings)
	}
	fix, proof, ok := schedule.Fix(f, r, schedule.Options{Launches: 2})
	if !ok || proof.Verdict != schedule.OK || !strings.Contains(fix.Text, "use_double_scratch_buffer") ||
		!fix.File.(*mscclpp.File).DoubleScratch {
		t.Errorf("%v %q", ok, fix.Text)
	}
	// The cells of both halves have the names of the file's chunks. Each rank has two chunks of packets, with two cells
	// each.
	p, err := fix.File.Plan()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]int{}
	for _, name := range schedule.ScratchNames(p) {
		names[name]++
	}
	for r := range 2 {
		for c := range 2 {
			if name := fmt.Sprintf("scratch chunk %d of rank %d (packets)", c, r); names[name] != 4 {
				t.Errorf("%d cells of %v are %s, want 2 in each half", names[name], names, name)
			}
		}
	}
}

// packetGather returns an all-gather of two ranks by packets.
func packetGather(t *testing.T) *mscclpp.File {
	t.Helper()
	var gpus []string
	for r := range 2 {
		gpus = append(gpus, fmt.Sprintf(`{"id":%d,"input_chunks":1,"output_chunks":2,"scratch_chunks":2,
			"channels":[{"channel_type":"memory","connected_to":[%d]}],
			"remote_buffers":[{"rank":%d,"type":"s","access_channel_types":["memory"]}],
			"threadblocks":[{"id":0,"ops":[
			{"name":"ppkt","src_buff":[{"type":"i","index":0,"size":1}],"dst_buff":[{"buffer_id":0,"index":%d,"size":1}],
			"channel_type":"memory"},
			{"name":"copy","src_buff":[{"type":"i","index":0,"size":1}],"dst_buff":[{"type":"o","index":%d,"size":1}]},
			{"name":"upkt","src_buff":[{"type":"s","index":%d,"size":1}],"dst_buff":[{"type":"o","index":%d,"size":1}]}],
			"channels":[{"channel_type":"memory","channel_ids":[0]}],
			"remote_buffer_refs":[{"access_channel_type":"memory","remote_buffer_ids":[0]}]}]}`, r, 1-r, 1-r, r, r, 1-r, 1-r))
	}
	f, err := mscclpp.Parse([]byte(`{"name":"gather","collective":"allgather","protocol":"LL","inplace":false,"gpus":[` +
		strings.Join(gpus, ",") + `]}`))
	if err != nil {
		t.Fatal(err)
	}
	return f
}
