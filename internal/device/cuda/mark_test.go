package cuda

import (
	"errors"
	"math/rand/v2"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/ir"
)

// TestImpliedWaits makes random records and waits on streams of two devices. Exactly the waits that earlier waits do
// not imply must become waits of the driver.
func TestImpliedWaits(t *testing.T) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 1))
		f := fakedriver.New(t, 2)
		must := mustOf(t)
		w, err := newMachine(system(f), Options{Kernels: f}).Open(t.Context(), 2)
		must(err)
		const streams = 6
		var s [streams]device.Stream
		var events [streams]device.Event
		var known, told [streams][streams]int // by stream, and by its event: the position up to which it has waited for each stream
		for i := range s {
			s[i], err = w.Device(i % 2).NewStream(device.StreamOptions{Name: "s"})
			must(err)
			events[i], err = w.Device(i % 2).NewEvent()
			must(err)
		}
		work := negations(t, w)
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
			clear(f.Called)
			must(s[i].Wait(events[j]))
			got, want := f.Called["cuStreamWaitEvent"], 1
			if known[i][j] >= told[j][j] {
				want = 0
			}
			if got != want {
				t.Fatalf("seed %d, step %d: stream %d waits for stream %d: %d driver waits, want %d", seed, n, i, j, got, want)
			}
			waits += want
			for k, at := range told[j] {
				known[i][k] = max(known[i][k], at)
			}
		}
		if waits == 0 {
			t.Error("there were no waits")
		}
		must(w.Sync(t.Context()))
		must(w.Close())
	}
}

// TestImpliedAcross checks implied waits in graphs. In one graph over all GPUs a wait can be implied through another
// GPU. With one graph per GPU, joined by flags, a wait between streams of one GPU remains an edge of the graph, even if
// flags imply it.
func TestImpliedAcross(t *testing.T) {
	for form, want := range map[string]int{formOne: 0, formEach: 1} {
		f := fakedriver.New(t, 2)
		must := mustOf(t)
		w, s := streamed(t, newMachine(system(f), Options{Kernels: f, Graphs: form}), 2, "main")
		last, err := w.Device(0).NewStream(device.StreamOptions{Name: "last"})
		must(err)
		work := negations(t, w)
		var at [2]device.Event
		for r := range at {
			at[r], err = w.Device(r).NewEvent()
			must(err)
		}
		got := -1
		_, err = w.Capture(func() error {
			must(errors.Join(s[0].Launch(work[0]), s[0].Record(at[0])))
			must(errors.Join(s[1].Wait(at[0]), s[1].Launch(work[1]), s[1].Record(at[1])))
			must(last.Wait(at[1]))
			clear(f.Called)
			must(last.Wait(at[0]))
			got = f.Called["cuStreamWaitEvent"]
			return last.Launch(work[0])
		})
		must(err)
		if got != want {
			t.Errorf("%s: %d waits, want %d", form, got, want)
		}
		must(w.Close())
	}
}

// negations returns a launch that negates numbers, for each device.
func negations(t *testing.T, w device.World) []device.Launch {
	t.Helper()
	list := make([]device.Launch, w.Ranks())
	for r := range list {
		mem, err := w.Device(r).Alloc(64, device.Private)
		mustOf(t)(err)
		v := []device.View{{Mem: mem, DType: ir.F32, Shape: []int64{16}, Strides: []int64{1}}}
		list[r], err = w.Device(r).Prepare(device.Kernel{Op: device.Elementwise{Op: ir.OpNeg}, Ins: v, Outs: v})
		mustOf(t)(err)
	}
	return list
}
