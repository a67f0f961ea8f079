package cpu_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/ir"
)

// journal records the calls of an observer.
type journal struct{ lines []string }

func (j *journal) Began(rank int, stream string, id, ns int64) {
	j.lines = append(j.lines, fmt.Sprintf("%d begin %d/%s/%d", ns, rank, stream, id))
}

func (j *journal) Ended(rank int, stream string, id, ns int64) {
	j.lines = append(j.lines, fmt.Sprintf("%d end %d/%s/%d", ns, rank, stream, id))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func openScheduled(t *testing.T, seed int64, ranks int) device.World {
	t.Helper()
	w, err := cpu.New(cpu.Options{Mode: cpu.Scheduled, Seed: seed}).Open(t.Context(), ranks)
	must(t, err)
	t.Cleanup(func() { _ = w.Close() })
	return w
}

// braid runs independent chains of tasks on two streams of each of three ranks, and returns the order in which the
// tasks ran.
func braid(t *testing.T, seed int64) []string {
	w := openScheduled(t, seed, 3)
	j := &journal{}
	w.Observe(j)
	for r := range w.Ranks() {
		for _, name := range []string{"main", "worker"} {
			s, err := w.Device(r).NewStream(device.StreamOptions{Name: name})
			must(t, err)
			for id := range int64(5) {
				must(t, s.Begin(id))
				must(t, s.Call(func() {}))
				must(t, s.End(id))
			}
		}
	}
	must(t, w.Sync(context.Background()))
	return j.lines
}

func TestScheduledSameSeedSameRun(t *testing.T) {
	runs := map[string]bool{}
	for seed := range int64(20) {
		a, b := braid(t, seed), braid(t, seed)
		if len(a) != 60 {
			t.Fatalf("seed %d: %d marks observed, not 60", seed, len(a))
		}
		if !slices.Equal(a, b) {
			t.Fatalf("seed %d ran in two ways:\n%q\n%q", seed, a, b)
		}
		runs[fmt.Sprint(a)] = true
	}
	if len(runs) < 15 {
		t.Errorf("20 seeds gave only %d orders", len(runs))
	}
}

// relay fills a buffer on one stream and copies it on another; the copy waits for the fill only if wait is set. It
// returns the copied value.
func relay(t *testing.T, seed int64, wait bool) float32 {
	w := openScheduled(t, seed, 1)
	d := w.Device(0)
	mem, err := d.Alloc(512, device.Private)
	must(t, err)
	view := func(off int64) device.View {
		return device.View{Mem: mem, Off: off, DType: ir.F32, Shape: []int64{3}, Strides: []int64{1}}
	}
	main, err := d.NewStream(device.StreamOptions{Name: "main"})
	must(t, err)
	side, err := d.NewStream(device.StreamOptions{Name: "side"})
	must(t, err)
	filled, err := d.NewEvent()
	must(t, err)
	fill, err := d.Prepare(device.Kernel{Op: device.Elementwise{Op: ir.OpFill, Numbers: ir.Reals(7)}, Outs: []device.View{view(0)}})
	must(t, err)
	must(t, side.Launch(fill))
	must(t, side.Record(filled))
	if wait {
		must(t, main.Wait(filled))
	}
	must(t, main.Copy(view(256), view(0)))
	out := make([]byte, 12)
	must(t, main.Download(out, view(256)))
	must(t, w.Sync(context.Background()))
	return math.Float32frombits(binary.LittleEndian.Uint32(out))
}

// credit puts two values into one slot of a peer, which copies each value elsewhere. Only if wait is set does the
// second put wait until the slot is free. The result is the peer's copy of the first value.
func credit(t *testing.T, seed int64, wait bool) float32 {
	w := openScheduled(t, seed, 2)
	view := func(rank int, kind device.MemKind) device.View {
		mem, err := w.Device(rank).Alloc(12, kind)
		must(t, err)
		return device.View{Mem: mem, DType: ir.F32, Shape: []int64{3}, Strides: []int64{1}}
	}
	slot, got, val := view(1, device.Shared), view(1, device.Private), view(0, device.Private)
	var streams [2]device.Stream
	var raised [2]device.Counters
	for rank := range streams {
		var err error
		streams[rank], err = w.Device(rank).NewStream(device.StreamOptions{Name: "main"})
		must(t, err)
		raised[rank], err = w.Device(rank).NewCounters(1)
		must(t, err)
	}
	for round := range int64(2) {
		fill, err := w.Device(0).Prepare(device.Kernel{Op: device.Elementwise{Op: ir.OpFill, Numbers: ir.Reals(7 + float64(round))}, Outs: []device.View{val}})
		must(t, err)
		must(t, streams[0].Launch(fill))
		if wait {
			must(t, streams[0].WaitCounter(raised[0], 0, round))
		}
		must(t, streams[0].Copy(slot, val))
		must(t, streams[0].Signal(raised[1], 0, 1))
	}
	out := make([]byte, 12)
	must(t, streams[1].WaitCounter(raised[1], 0, 1))
	must(t, streams[1].Copy(got, slot))
	must(t, streams[1].Signal(raised[0], 0, 1))
	must(t, streams[1].Download(out, got))
	must(t, w.Sync(context.Background()))
	return math.Float32frombits(binary.LittleEndian.Uint32(out))
}

// TestScheduledFindsMissingWait checks that a missing wait gives a wrong result for some seed, and that with the wait
// the result is right for every seed.
func TestScheduledFindsMissingWait(t *testing.T) {
	for name, c := range map[string]struct {
		run func(t *testing.T, seed int64, wait bool) float32
		bad func(float32) bool
	}{
		"read too early":    {relay, func(v float32) bool { return v != v }},
		"written too early": {credit, func(v float32) bool { return v == 8 }},
	} {
		t.Run(name, func(t *testing.T) {
			var found [4]int
			const seeds = 80
			for seed := range int64(seeds) {
				if got := c.run(t, seed, true); got != 7 {
					t.Errorf("seed %d: %v with the wait in place", seed, got)
				}
				if got := c.run(t, seed, false); got != 7 {
					found[seed%4]++
					if !c.bad(got) {
						t.Errorf("seed %d: %v", seed, got)
					}
				}
			}
			t.Logf("strategies 0 to 3 reveal the missing wait with %v of %d seeds each", found, seeds/4)
			if found[0] == 0 || found[1] == 0 || found[2] == 0 {
				t.Errorf("not every strategy reveals the missing wait: %v", found)
			}
		})
	}
}

func TestScheduledDeadlockNamesTheHead(t *testing.T) {
	w := openScheduled(t, 1, 2)
	c, err := w.Device(1).NewCounters(4)
	must(t, err)
	s, err := w.Device(1).NewStream(device.StreamOptions{Name: "comm"})
	must(t, err)
	must(t, s.Begin(42))
	must(t, s.Signal(c, 3, 1))
	must(t, s.WaitCounter(c, 3, 2))
	must(t, s.End(42))
	err = w.Sync(context.Background())
	var d *device.Deadlock
	if !errors.As(err, &d) {
		t.Fatalf("Sync: %v", err)
	}
	want := device.Blocked{Rank: 1, Stream: "comm", ID: 42, On: "counter 3 ≥ 2 (now 1)"}
	if len(d.Blocked) != 1 || d.Blocked[0] != want {
		t.Errorf("blocked: %+v, want %+v", d.Blocked, want)
	}
}
