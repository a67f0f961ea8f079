package cuda

import (
	"math/rand/v2"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// TestImpliedWaits: of random records and waits on streams of two devices those become waits of the
// driver's that no earlier ones imply, and no others.
func TestImpliedWaits(t *testing.T) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 1))
		f := newFake(t, 2)
		must := mustOf(t)
		w, err := newMachine(f.system(), Options{Kernels: f}).Open(t.Context(), 2)
		must(err)
		const streams = 6
		var s [streams]device.Stream
		var events [streams]device.Event
		var known, told [streams][streams]int // what a stream is behind, of each; the same for its event
		for i := range s {
			s[i], err = w.Device(i % 2).NewStream(device.StreamOptions{Name: "s"})
			must(err)
			events[i], err = w.Device(i % 2).NewEvent()
			must(err)
		}
		var work [2]device.Launch
		for r := range work {
			mem, err := w.Device(r).Alloc(64, device.Private)
			must(err)
			v := []device.View{{Mem: mem, DType: ir.F32, Shape: []int64{16}, Strides: []int64{1}}}
			work[r], err = w.Device(r).Prepare(device.Kernel{Op: ir.OpNeg, Ins: v, Outs: v})
			must(err)
		}
		waits := 0
		for n := range 200 {
			i, j := rng.IntN(streams), rng.IntN(streams)
			if rng.IntN(2) == 0 || told[j][j] == 0 {
				known[i][i] = n + 1
				must(s[i].Launch(work[i%2]))
				must(s[i].Record(events[i]))
				told[i] = known[i]
				continue
			}
			clear(f.called)
			must(s[i].Wait(events[j]))
			got, want := f.called["cuStreamWaitEvent"], 1
			if known[i][j] >= told[j][j] {
				want = 0
			}
			if got != want {
				t.Fatalf("seed %d, step %d: stream %d waits for %d: %d waits of the driver's, want %d", seed, n, i, j, got, want)
			}
			waits += want
			for k, at := range told[j] {
				known[i][k] = max(known[i][k], at)
			}
		}
		if waits == 0 {
			t.Error("no waits")
		}
		must(w.Sync(t.Context()))
		must(w.Close())
	}
}
