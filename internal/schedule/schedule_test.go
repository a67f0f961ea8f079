package schedule_test

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/schedule"
	"hocket.example/hocket/internal/schedule/msccl"
	"hocket.example/hocket/internal/schedule/mscclpp"
)

// exchange returns an all-reduce of two ranks. Each rank puts the other rank's half of its input into the other's
// scratch, signals, waits, adds its own half, and puts the sum into the other's output.
func exchange(t *testing.T) *mscclpp.File {
	return readPlan(t, "../../examples/schedules/exchange.json")
}

func pairXML(t *testing.T) *msccl.File {
	t.Helper()
	text, err := os.ReadFile("testdata/pair.xml")
	if err != nil {
		t.Fatal(err)
	}
	f, err := msccl.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func check(t *testing.T, f schedule.File, launches int) *schedule.Report {
	t.Helper()
	p, err := f.Plan()
	if err != nil {
		t.Fatal(err)
	}
	return schedule.Check(p, schedule.Options{Launches: launches})
}

func at(rank, tb, op int) schedule.Place { return schedule.Place{Rank: rank, Block: tb, Index: op} }

// TestDeletions removes each synchronization of the exchange. The comments explain why the plan has the expected
// result.
func TestDeletions(t *testing.T) {
	f := exchange(t)
	for launches := 1; launches <= 2; launches++ {
		if r := check(t, f, launches); r.Verdict != schedule.OK || len(r.Warnings) > 0 {
			t.Fatalf("%d launches: %s %v %v", launches, r.Verdict, r.Findings, r.Warnings)
		}
	}
	for _, c := range []struct {
		op        int
		one, both schedule.Verdict
		edge      string
	}{
		{1, schedule.Race, schedule.Race, ""},               // the put is not released, and operation re reads its data
		{2, schedule.Deadlock, schedule.Deadlock, ""},       // the other rank waits twice, but gets only one signal
		{3, schedule.Race, schedule.Race, ""},               // operation re reads scratch while it is being written
		{4, schedule.Race, schedule.Race, ""},               // the put is ordered only before the thread that waits
		{7, schedule.OK, schedule.Race, "edge-race"},        // the other rank's stream reads data that are not released
		{8, schedule.Deadlock, schedule.Deadlock, ""},       // as 2
		{9, schedule.OK, schedule.Race, "edge-race"},        // the kernel ends while the other rank still writes
		{10, schedule.OK, schedule.OK, string(schedule.OK)}, // the kernel's end joins the threads
	} {
		m := f.Without(at(0, 0, c.op))
		r := check(t, m, 1)
		if r.Verdict != c.one {
			t.Errorf("without op %d: %s, want %s: %v", c.op, r.Verdict, c.one, r.Findings)
		}
		if c.edge != "" && edgeOf(r) != c.edge {
			t.Errorf("without op %d: %s, want %s: %v", c.op, edgeOf(r), c.edge, r.Warnings)
		}
		if got := check(t, m, 2).Verdict; got != c.both {
			t.Errorf("without op %d, two launches: %s, want %s", c.op, got, c.both)
		}
	}
}

// TestFixRestores checks that one insertion repairs each deletion that makes the plan incorrect.
func TestFixRestores(t *testing.T) {
	for _, f := range []schedule.File{exchange(t), pairXML(t)} {
		for _, place := range f.Syncs() {
			m := f.Without(place)
			r := check(t, m, 1)
			if r.Verdict == schedule.OK {
				continue
			}
			fix, proof, ok := schedule.Fix(m, r, schedule.Options{})
			if !ok || proof.Verdict != schedule.OK || fix.Text == "" {
				t.Errorf("without %s: no repair of %v", place, r.Findings)
				continue
			}
			// The repaired file is the same after writing and reading.
			text, err := fix.File.Encode()
			if err != nil {
				t.Fatal(err)
			}
			again := reread(t, text)
			if got := check(t, again, 1); got.Verdict != schedule.OK {
				t.Errorf("without %s, with %s, written and read: %s", place, fix.Text, got.Verdict)
			}
		}
	}
}

// TestFixChoosesThePlace checks that a wait is inserted at the latest place that suffices, and that the text says what
// it delays. In the exchange without its first wait, op 4 is the barrier after which the sum reads the peer's data.
func TestFixChoosesThePlace(t *testing.T) {
	f := exchange(t).Clone()
	f.GPUs[0].Threadblocks[0].Ops[3] = mscclpp.Op{Name: "nop"}
	for launches := 1; launches <= 2; launches++ {
		fix, _, ok := schedule.Fix(f, check(t, f, launches), schedule.Options{Launches: launches})
		const want = "rank 0, tb 0, before op 4: wait of memory channel 0, which delays 7 of the block's 11 operations"
		if !ok || fix.Text != want {
			t.Errorf("%d launches: %q, want %q", launches, fix.Text, want)
		}
	}
}

// TestFixRelaxedSignals checks that a relaxed signal or wait in a long block is replaced, although single insertions at
// all places of the block are more than are tried.
func TestFixRelaxedSignals(t *testing.T) {
	wants := map[int]string{2: "rank 0, tb 0, op 2 (rlxsignal) becomes signal",
		3: "rank 0, tb 0, op 3 (rlxwait) becomes wait"}
	for op, name := range map[int]string{2: "rlxsignal", 3: "rlxwait"} {
		f := exchange(t).Clone()
		f.GPUs[0].Threadblocks[0].Ops[op].Name = name
		for r := range f.GPUs {
			tb := &f.GPUs[r].Threadblocks[0]
			tb.Ops = append(tb.Ops, slices.Repeat([]mscclpp.Op{{Name: "nop"}}, 150)...)
		}
		r := check(t, f, 2)
		if r.Verdict != schedule.Race {
			t.Fatal(name, r.Verdict, r.Findings)
		}
		fix, proof, ok := schedule.Fix(f, r, schedule.Options{Launches: 2})
		if !ok || proof.Verdict != schedule.OK || fix.Text != wants[op] {
			t.Errorf("%s: %v %q, want %q", name, ok, fix.Text, wants[op])
		}
	}
}

func reread(t *testing.T, text []byte) schedule.File {
	t.Helper()
	if msccl.IsAlgorithm(string(text)) {
		f, err := msccl.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	f, err := mscclpp.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestRedundant checks that the only redundant synchronizations of the exchange are the last barriers of the ranks.
func TestRedundant(t *testing.T) {
	f := exchange(t)
	got, err := schedule.Redundant(t.Context(), f, check(t, f, 1), schedule.Options{})
	if err != nil || got.Looked != 16 || got.All != 16 || got.Interleavings != 16 || len(got.Places) != 2 ||
		got.Places[0].Index != 10 || got.Places[1].Index != 10 {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestPair checks an all-reduce in XML with two blocks for each rank. The plan needs its only dependence, a connection
// needs its peer, and a wait for a step that does not signal never ends.
func TestPair(t *testing.T) {
	f := pairXML(t)
	if r := check(t, f, 2); r.Verdict != schedule.OK {
		t.Fatal(r.Verdict, r.Findings)
	}
	if r := check(t, f.Without(at(1, 1, 0)), 1); r.Verdict != schedule.Race || r.Findings[0].Places[0].Rank != 1 {
		t.Error(r.Verdict, r.Findings)
	}
	mute := f.Clone()
	mute.Step(at(0, 0, 1)).HasDep = 0
	if r := check(t, mute, 1); r.Verdict != schedule.Deadlock {
		t.Error(r.Verdict, r.Findings)
	}
	short := f.Clone()
	short.GPUs[0].TBs[0].Steps = short.GPUs[0].TBs[0].Steps[1:]
	short.GPUs[0].TBs[0].Steps[0].S = 0
	short.GPUs[0].TBs[1].Steps[0].Dep = 0
	if r := check(t, short, 1); r.Verdict != schedule.Deadlock ||
		!strings.Contains(r.Findings[0].String(), "rank 1, tb 0, op 1") {
		t.Error(r.Verdict, r.Findings)
	}
}

// TestWrongNamesTheContribution checks that the report of a sum with a wrong chunk names the contributions that are
// missing and those that are in excess.
func TestWrongNamesTheContribution(t *testing.T) {
	f := exchange(t).Clone()
	f.GPUs[0].Threadblocks[0].Ops[5].Src[1] = f.GPUs[0].Threadblocks[0].Ops[5].Src[0]
	r := check(t, f, 1)
	if r.Verdict != schedule.Wrong {
		t.Fatal(r.Verdict, r.Findings)
	}
	const want = "output chunk 0 of rank 0 after all_reduce: lacks input chunk 0 of rank 1; has instead input chunk 0 of rank 0"
	if got := r.Findings[0].Message; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	f = exchange(t).Clone()
	f.GPUs[0].Threadblocks[0].Ops[0].Src[0].Index = new(5)
	if r := check(t, f, 1); r.Verdict != schedule.Wrong ||
		!strings.Contains(r.Findings[0].Message, "outside the input buffer of rank 0") {
		t.Error(r.Verdict, r.Findings)
	}
}

// TestNamesOfCells checks that packets are named by the index that the file has, although they take twice the memory,
// and that the report of a wait names the message of the XML file.
func TestNamesOfCells(t *testing.T) {
	f := readPlan(t, "testdata/double_broadcast.json")
	f.GPUs[1].ScratchChunks = new(4)
	f.GPUs[0].Threadblocks[0].Ops[0].Dst[0].Index = new(3)
	f.GPUs[1].Threadblocks[0].Ops[0].Src[0].Index = new(3)
	const want = "rank 0, tb 0, op 0 (ppkt) writes scratch chunk 3 of rank 1 (packets) while rank 1, tb 0, op 0 (upkt) reads it"
	if r := check(t, f, 2); r.Verdict != schedule.Race || r.Findings[0].Message != want {
		t.Errorf("%s %v, want %s", r.Verdict, r.Findings, want)
	}
	silent := pairXML(t).Clone()
	silent.GPUs[1].TBs[0].Send = -1
	for i := range silent.GPUs[1].TBs[0].Steps {
		if s := &silent.GPUs[1].TBs[0].Steps[i]; s.Type == "s" {
			s.Type, s.Count = "nop", 0
		}
	}
	const waits = "waits for message 1 of the connection from rank 1 to rank 0 on channel 0, which has had 0"
	if r := check(t, silent, 2); r.Verdict != schedule.Deadlock || !strings.Contains(r.Findings[0].String(), waits) {
		t.Errorf("%s %v, want %s", r.Verdict, r.Findings, waits)
	}
}

// TestWrongSizes checks that a check and a run both refute a plan whose outputs have another size than its collective's
// result, and that they name the sizes.
func TestWrongSizes(t *testing.T) {
	scatter := exchange(t).Clone() // an all_reduce of 2 ranks with 2 chunks, so a reduce_scatter has 1 chunk
	scatter.Collective, scatter.InPlace = "reducescatter", new(false)
	for r := range scatter.GPUs {
		scatter.GPUs[r].InputChunks, scatter.GPUs[r].OutputChunks = new(2), new(2)
	}
	if r := check(t, scatter, 1); r.Verdict != schedule.Wrong ||
		!strings.HasSuffix(r.Findings[0].Message, " has 2 output chunks, and reduce_scatter gives it 1") {
		t.Error(r.Verdict, r.Findings)
	}
	p, err := scatter.Plan()
	if err != nil {
		t.Fatal(err)
	}
	in := schedule.Inputs(p, 2, 1)
	got, err := schedule.Run(t.Context(), p, in, 2, 1)
	if err != nil {
		t.Fatal(err)
	}
	const want = "rank 0 has 2 output chunks, but reduce_scatter of 2 input chunks for each rank gives it 1"
	if err := schedule.Differ(p, got.Memory, in); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	double := exchange(t).Clone()
	double.InPlace = new(true)
	double.GPUs[1].InputChunks, double.GPUs[1].OutputChunks = new(2), new(4)
	if r := check(t, double, 1); r.Verdict != schedule.Wrong ||
		!strings.HasPrefix(r.Findings[0].Message,
			"rank 1 has input_chunks 2 and output_chunks 4, but the two must be equal") {
		t.Error(r.Verdict, r.Findings)
	}
	gather := pairXML(t).Clone()
	gather.Coll, gather.Chunks = "allgather", 1
	if _, err := gather.Plan(); err == nil ||
		!strings.HasPrefix(err.Error(), "nchunksperloop is 1, but all_gather of 2 ranks needs a multiple of 2") {
		t.Error(err)
	}
}

// TestPacketsReadAsData checks that a plan that reads packets as plain data is refuted, since half of a packet consists
// of flags. The plan is the exchange with packets in place of the first put; its signal and barriers still order the
// put before the reads.
func TestPacketsReadAsData(t *testing.T) {
	f := exchange(t).Clone()
	for r := range f.GPUs {
		f.GPUs[r].ScratchChunks = new(2)
		f.GPUs[r].Threadblocks[0].Ops[0].Name = "ppkt"
	}
	for launches := 1; launches <= 2; launches++ {
		r := check(t, f, launches)
		const want = "rank 1, tb 0, op 5 (re) reads scratch chunk 0 of rank 1 as data, and rank 0, tb 0, op 0 (ppkt) writes " +
			"packets there"
		if r.Verdict != schedule.Wrong || r.Findings[0].Message != want {
			t.Errorf("%d launches: %s: %v, want %q", launches, r.Verdict, r.Findings, want)
		}
	}
	p, err := f.Plan()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := schedule.Lower(p); err == nil || !strings.Contains(err.Error(), "as data") {
		t.Errorf("it is lowered: %v", err)
	}
	in := schedule.Inputs(p, 2, 1)
	got, err := schedule.Run(t.Context(), p, in, 2, 1)
	if err != nil {
		t.Fatal(err)
	}
	if schedule.Differ(p, got.Memory, in) == nil {
		t.Error("a run reads the data of packets without their flags")
	}
}

// TestSharedCounterIsUndecided checks that the result is undecided if two blocks wait for one channel, since timing
// determines which block takes which signal.
func TestSharedCounterIsUndecided(t *testing.T) {
	f := exchange(t).Clone()
	tb := f.GPUs[0].Threadblocks[0]
	wait := mscclpp.Op{Name: "wait", ChannelIDs: []int{0}, ChannelType: "memory"}
	f.GPUs[0].Threadblocks = append(f.GPUs[0].Threadblocks,
		mscclpp.Threadblock{ID: new(1), Channels: tb.Channels, Ops: []mscclpp.Op{wait}})
	g := &f.GPUs[1].Threadblocks[0]
	g.Ops = append(g.Ops, mscclpp.Op{Name: "signal", ChannelIDs: []int{0}, ChannelType: "memory"})
	if r := check(t, f, 1); r.Verdict == schedule.OK {
		t.Error("a wait of the first block may find the signal taken by the second, and the plan is called ok")
	}
}

// TestRunRefutes checks that random interleavings detect the wrong result of a plan that lacks one of its barriers or
// waits.
func TestRunRefutes(t *testing.T) {
	for _, op := range []int{1, 3, 4} {
		p, err := exchange(t).Without(at(0, 0, op)).Plan()
		if err != nil {
			t.Fatal(err)
		}
		in, seen := schedule.Inputs(p, 4, 1), false
		for seed := range uint64(4000) {
			got, err := schedule.Run(context.Background(), p, in, 4, seed)
			if err != nil {
				t.Fatal(err)
			}
			if seen = schedule.Differ(p, got.Memory, in) != nil; seen {
				break
			}
		}
		if !seen {
			t.Errorf("without op %d: 4000 interleavings are right", op)
		}
	}
	p, _ := exchange(t).Without(at(1, 0, 2)).Plan()
	if _, err := schedule.Run(context.Background(), p, schedule.Inputs(p, 1, 1), 1, 1); err == nil ||
		!strings.Contains(err.Error(), "deadlock") {
		t.Error("without a signal it ends:", err)
	}
}

// TestOneInterleavingIsNotEnough checks plans that are correct if blocks and threads execute in order. In the first
// plan, two blocks share a port channel, so the signal for which one waits may belong to the other's put. In the second
// plan, a packet is written twice, so its reader may read either. In the third plan, packets and plain elements begin
// at the same cell, but are processed by different threads after the first element.
func TestOneInterleavingIsNotEnough(t *testing.T) {
	for _, name := range []string{"shared_port", "packet_twice", "packet_width", "packet_threads", "packet_signal"} {
		if r := check(t, readPlan(t, "testdata/"+name+".json"), 1); r.Verdict != schedule.Race {
			t.Errorf("%s: %s, want race: %v", name, r.Verdict, r.Findings)
		}
	}
}
