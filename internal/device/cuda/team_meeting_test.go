package cuda

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// TestTogether checks the order of issue of kernels that wait for each other if streams may share hardware queues. The
// kernels of one launch of a team are issued without other work between them, and before those of the team's next
// launch. A member that never issues its kernel causes a deadlock error that names it.
func TestTogether(t *testing.T) {
	for _, alone := range []bool{true, false} {
		l, w, tm := noted(t, 2, 2)
		must := mustOf(t)
		if !alone {
			_, err := w.Device(0).NewStream(device.StreamOptions{Name: "side"})
			must(err)
		}
		c := &device.Collective{Op: ir.OpAllGather}
		for r := range 2 {
			var views []device.View
			for _, n := range []int64{1 << 10, 2 << 10} {
				mem, err := w.Device(r).Alloc(4*n, device.Shared)
				must(err)
				views = append(views, device.View{Mem: mem, DType: ir.F32, Shape: []int64{n}, Strides: []int64{1}})
			}
			c.Parts = append(c.Parts, device.Part{In: views[0], Out: views[1], Reads: true, Writes: true})
		}
		launches, err := tm.Prepare(device.Tuning{Algo: "move-copy"}, c)
		must(err)
		var copies []int // number of copies issued before each waiting kernel
		for f := range l.Kernels {
			l.Kernels[f] = func(uintptr) { copies = append(copies, l.Called["cuMemcpyAsync"]) }
		}
		clear(l.Called)
		issue := func() error {
			var errs []error
			for i, r := range []int{0, 1, 1, 0} {
				errs = append(errs, tm.members[r].stream.Begin(int64(i)), tm.members[r].stream.Launch(launches[r]), tm.members[r].stream.End(int64(i)))
			}
			return errors.Join(errs...)
		}
		must(issue())
		must(w.Sync(t.Context()))
		want := []int{0, 0, 2, 4, 4, 4, 6, 8}
		if alone {
			want = []int{0, 2, 2, 4, 4, 6, 6, 8}
		}
		if !slices.Equal(copies, want) {
			t.Errorf("alone %v: copies before each kernel %v, want %v", alone, copies, want)
		}
		g, err := w.Capture(issue)
		must(err)
		if got := strings.Join(g.Forms(), " "); got != "one each" {
			t.Errorf("alone %v: forms %s", alone, got)
		}
		for form := range 2 {
			g.Choose(form)
			copies = nil
			must(g.Launch(t.Context()))
			must(w.Sync(t.Context()))
			if len(copies) != 8 {
				t.Errorf("alone %v: %d kernels in a graph, want 8", alone, len(copies))
			}
		}
		if !alone {
			must(tm.members[1].stream.Launch(launches[1]))
			var stuck *device.Deadlock
			if err := w.Sync(t.Context()); !errors.As(err, &stuck) || !strings.Contains(err.Error(), "which has not come up yet on rank 0, stream main") {
				t.Errorf("got %v", err)
			}
		}
	}
}

// TestMostWaits checks that no more streams of a device have waiting kernels than can run concurrently. The limit holds
// for kernels of teams and, if each GPU has a graph, for waits for flags.
func TestMostWaits(t *testing.T) {
	_, w, _ := noted(t, 2, 2)
	for i := range mostWaits - 1 {
		teamOf(t, w, fmt.Sprint("more ", i))
	}
	s, err := w.Device(1).NewStream(device.StreamOptions{Name: "one too many"})
	mustOf(t)(err)
	if _, err := w.OpenTeam([]device.Member{{Rank: 1, Stream: s}}); !errors.Is(err, device.ErrUnsupported) || !strings.Contains(err.Error(), "97 streams of GPU 1") {
		t.Errorf("got %v", err)
	}
	for _, streams := range []int{mostWaits, mostWaits + 1} {
		for _, graphs := range []string{"", formEach} {
			x := newExchanged(t, Options{Graphs: graphs})
			g, err := x.w.Capture(func() error {
				err := errors.Join(x.s[1].Launch(x.neg[1]), x.s[1].Signal(x.c[0], 0, 1))
				for i := range streams {
					s, open := x.w.Device(0).NewStream(device.StreamOptions{Name: fmt.Sprint("wait ", i)})
					if open != nil {
						return open
					}
					err = errors.Join(err, s.WaitCounter(x.c[0], 0, 1))
				}
				return err
			})
			switch {
			case graphs == formEach && streams > mostWaits:
				if !errors.Is(err, device.ErrUnsupported) || !strings.Contains(err.Error(), "97 streams of GPU 0") {
					t.Errorf("got %v", err)
				}
			case err != nil:
				t.Errorf("%d streams, graphs %q: %v", streams, graphs, err)
			case graphs == "":
				want := "one each"
				if streams > mostWaits {
					want = "one"
				}
				if got := strings.Join(g.Forms(), " "); got != want {
					t.Errorf("%d streams: forms %s, want %s", streams, got, want)
				}
			}
			x.must(x.w.Close())
		}
	}
}
