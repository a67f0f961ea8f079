package schedule_test

import (
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/longtest"
	"hocket.example/hocket/internal/schedule"
	"hocket.example/hocket/internal/schedule/mscclpp"
)

// TestAnyNumberOfLaunches compares the verdict for any number of launches with that of 24 launches, for small schedules
// of the corpus, for copies without one synchronization, and for copies with one signal more. Some of these give a
// counter more signals than waits, so their errors may occur only after many launches.
func TestAnyNumberOfLaunches(t *testing.T) {
	dir, verdicts := corpus(t)
	files, n, later := map[string]schedule.File{}, 0, 0
	for _, name := range []string{"acknowledged", "double_broadcast"} {
		files[name] = readPlan(t, "testdata/"+name+".json")
	}
	for _, name := range sortedKeys(verdicts) {
		files[name] = readAny(t, dir, name)
	}
	for _, name := range sortedKeys(files) {
		f := files[name]
		if len(f.Syncs()) > longtest.Of(8, 32) {
			continue
		}
		list := []schedule.File{f}
		for _, at := range f.Syncs() {
			list = append(list, f.Without(at))
			m, ok := f.(*mscclpp.File)
			if !ok || at.Inner > 0 {
				continue
			}
			m = m.Clone()
			ops := &m.GPUs[at.Rank].Threadblocks[at.Block].Ops
			if o := (*ops)[at.Index]; o.Name == "signal" || o.Name == "sem_release" {
				*ops = slices.Insert(*ops, at.Index, o)
				list = append(list, m)
			}
		}
		for i, f := range list {
			p, err := f.Plan()
			if err != nil {
				t.Fatal(name, err)
			}
			many := schedule.Check(p, schedule.Options{Launches: 2})
			if many.Verdict == schedule.Undecided {
				continue
			}
			n++
			if two := schedule.Simulate(p, 2); two.Verdict == schedule.OK && many.Verdict != schedule.OK {
				later++
			}
			if all := schedule.Simulate(p, 24); (all.Verdict == schedule.OK) != (many.Verdict == schedule.OK) {
				t.Errorf("%s, copy %d: %s, and of 24 launches %s\n%v\n%v", name, i, many.Verdict, all.Verdict,
					many.Findings, all.Findings)
			}
		}
	}
	t.Logf("%d schedules, of which two launches of %d have no error that later ones have", n, later)
	if n < 100 || later < 2 {
		t.Error("too few")
	}
}

// TestDoubleScratch checks a broadcast by packets into a scratch memory of two halves, of which successive launches use
// different ones. Readers send no signals back, so the third launch can overwrite data of the first launch before they
// are read.
func TestDoubleScratch(t *testing.T) {
	f := readPlan(t, "testdata/double_broadcast.json")
	if r := check(t, f, 1); r.Verdict != schedule.OK {
		t.Error(r.Verdict, r.Findings)
	}
	r := check(t, f, 2)
	if r.Verdict != schedule.Race || !strings.Contains(r.Findings[0].String(),
		"rank 0, tb 0 has completed no operation of launch 3") {
		t.Error(r.Verdict, r.Findings)
	}
	// The same three launches in one plan, with the halves as two chunks, have the same fault.
	once := f.Clone()
	once.DoubleScratch = false
	for r := range once.GPUs {
		g := &once.GPUs[r]
		tb := &g.Threadblocks[0]
		g.InputChunks, g.OutputChunks, g.ScratchChunks = new(3), new(3), new(2)
		ops := tb.Ops
		tb.Ops = nil
		for launch := range 3 {
			for _, o := range ops {
				at := func(list []mscclpp.Chunk) []mscclpp.Chunk {
					c := list[0]
					if c.Index = new(launch); c.Type == "s" || c.Buffer != nil {
						c.Index = new(launch % 2)
					}
					return []mscclpp.Chunk{c}
				}
				o.Src, o.Dst = at(o.Src), at(o.Dst)
				tb.Ops = append(tb.Ops, o, mscclpp.Op{Name: "nop"})
			}
		}
	}
	if r := check(t, once, 1); r.Verdict == schedule.OK {
		t.Error("the three launches in one plan:", r.Verdict, r.Findings)
	}
}

// TestLeftSignals adds acknowledgements to a broadcast that needs one. The additional signals remain in the counter, so
// after some launches the wait returns before the data were read. One plan that consists of these launches has a race.
func TestLeftSignals(t *testing.T) {
	signal := mscclpp.Op{Name: "signal", ChannelIDs: []int{0}, ChannelType: "memory"}
	f := readPlan(t, "testdata/acknowledged.json")
	if r := check(t, f, 2); r.Verdict != schedule.OK || len(r.Warnings) > 0 {
		t.Fatal(r.Verdict, r.Findings, r.Warnings)
	}
	more := f.Clone()
	tb := &more.GPUs[1].Threadblocks[0]
	tb.Ops = append(tb.Ops, signal)
	one := check(t, more, 1)
	const left = "memory channel 0 of rank 0 (from rank 1) has 1 more signal than waits"
	if one.Verdict != schedule.OK || len(one.Warnings) != 1 || !strings.HasPrefix(one.Warnings[0].Message, left) {
		t.Error(one.Verdict, one.Findings, one.Warnings)
	}
	if r := check(t, more, 2); r.Verdict != schedule.Race || !strings.Contains(r.Findings[0].Lines[0], left) {
		t.Error(r.Verdict, r.Findings)
	}
	thrice := more.Clone()
	for r := range thrice.GPUs {
		tb := &thrice.GPUs[r].Threadblocks[0]
		tb.Ops = append(append(append([]mscclpp.Op(nil), tb.Ops...), tb.Ops...), tb.Ops...)
	}
	if r := check(t, thrice, 1); r.Verdict != schedule.Race {
		t.Error(r.Verdict, r.Findings)
	}
	// Signals that no wait needs do no harm.
	idle := f.Clone()
	idle.GPUs[0].Threadblocks[0].Ops = append(idle.GPUs[0].Threadblocks[0].Ops, signal)
	for i := range idle.GPUs {
		tb := &idle.GPUs[i].Threadblocks[0]
		tb.Channels = []mscclpp.ChannelID{{Type: "memory", IDs: []int{0, 1}}}
		idle.GPUs[i].Channels = []mscclpp.Channel{{Type: "memory", ConnectedTo: []int{1 - i, 1 - i}}}
	}
	tb = &idle.GPUs[0].Threadblocks[0]
	tb.Ops[len(tb.Ops)-1].ChannelIDs = []int{1}
	if r := check(t, idle, 2); r.Verdict != schedule.OK || len(r.Warnings) != 1 {
		t.Error(r.Verdict, r.Findings, r.Warnings)
	}
}

// TestFallingCounter checks a plan that acquires a semaphore more often than it releases it: the initial value suffices
// for two launches.
func TestFallingCounter(t *testing.T) {
	f := readPlan(t, "testdata/acknowledged.json").Clone()
	f.GPUs[0].Semaphores = []mscclpp.Semaphore{{Init: new(2)}}
	tb := &f.GPUs[0].Threadblocks[0]
	tb.Ops = append(tb.Ops, mscclpp.Op{Name: "sem_acquire", Semaphores: []int{0}})
	if r := check(t, f, 1); r.Verdict != schedule.OK || len(r.Warnings) != 1 {
		t.Error(r.Verdict, r.Findings, r.Warnings)
	}
	r := check(t, f, 2)
	if r.Verdict != schedule.Deadlock ||
		!strings.Contains(r.Findings[0].Message, "ends 1 below its initial value in each launch") {
		t.Error(r.Verdict, r.Findings)
	}
}
