package world

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"
)

func init() {
	children["echo"] = echo
}

// echo raises a counter of the other process whenever its own is raised.
func echo(ctx context.Context, o Options) error {
	w, err := Join(ctx, o)
	if err != nil {
		return err
	}
	defer w.Leave()
	mine, theirs, err := pair(ctx, w)
	if err != nil {
		return err
	}
	for n := uint64(1); ; n++ {
		if mine.Wait(ctx, 0, n, 1-w.Process()) != nil {
			return nil // the other process has left
		}
		theirs.Set(0, n)
	}
}

// pair makes two counters, one for each of two processes to wait for.
func pair(ctx context.Context, w *World) (mine, theirs *Counters, err error) {
	if mine, err = w.NewCounters("edge", 1); err != nil {
		return nil, nil, err
	}
	theirs, err = w.MapCounters(ctx, 1-w.Process(), "edge")
	return mine, theirs, err
}

// BenchmarkEdge measures the time in which one process raises a counter and another sees it, which is half of a round
// trip. idle/op is the median if the other process was asleep before.
func BenchmarkEdge(b *testing.B) {
	o := Options{Size: 2, ID: "bench", Dir: b.TempDir()}
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), childVariable+"=echo", "HOCKET_WORLD_SIZE=2", "HOCKET_RANK=1",
		"HOCKET_RUN_ID="+o.ID, "HOCKET_RUN_DIR="+o.Dir)
	c.Stdout, c.Stderr = os.Stderr, os.Stderr
	if err := c.Start(); err != nil {
		b.Fatal(err)
	}
	defer c.Wait()
	ctx := context.Background()
	w, err := Join(ctx, o)
	if err != nil {
		b.Fatal(err)
	}
	defer w.Leave()
	mine, theirs, err := pair(ctx, w)
	if err != nil {
		b.Fatal(err)
	}
	n := uint64(0)
	trip := func() time.Duration {
		n++
		start := time.Now()
		theirs.Set(0, n)
		if err := mine.Wait(ctx, 0, n, 1); err != nil {
			b.Fatal(err)
		}
		return time.Since(start)
	}
	for _, pause := range []time.Duration{0, time.Millisecond, 20 * time.Millisecond} {
		b.Run(fmt.Sprint("pause=", pause), func(b *testing.B) {
			var times []time.Duration
			for b.Loop() {
				time.Sleep(pause)
				times = append(times, trip()/2)
			}
			slices.Sort(times)
			b.ReportMetric(float64(times[len(times)/2].Nanoseconds()), "median-ns/edge")
			b.ReportMetric(float64(times[len(times)/10].Nanoseconds()), "p10-ns/edge")
			b.ReportMetric(float64(times[len(times)*99/100].Nanoseconds()), "p99-ns/edge")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func init() {
	// doze waits for a counter, and prints the fraction of a core that this took.
	children["doze"] = func(ctx context.Context, o Options) error {
		w, err := Join(ctx, o)
		if err != nil {
			return err
		}
		defer w.Leave()
		mine, _, err := pair(ctx, w)
		if err != nil {
			return err
		}
		begin, before := time.Now(), used()
		if err := mine.Wait(ctx, 0, 1, 0); err != nil {
			return err
		}
		fmt.Printf("%.3f", (used()-before).Seconds()/time.Since(begin).Seconds())
		return nil
	}
}

// used returns the CPU time of this process.
func used() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestWaitIsIdle checks that a waiting process hardly uses a core.
func TestWaitIsIdle(t *testing.T) {
	t.Parallel()
	o := options(t, 2)
	f := newFamily(t, o)
	f.run(1, "doze")
	ctx := context.Background()
	w, err := Join(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Leave()
	_, theirs, err := pair(ctx, w)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(3 * time.Second)
	theirs.Set(0, 1)
	if code := f.wait(1, limit); code != 0 {
		t.Fatal(f.out[1].String())
	}
	share, err := strconv.ParseFloat(f.out[1].String(), 64)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("waiting used %.1f %% of a core", share*100)
	if share > 10*0.02 {
		t.Errorf("a process that waits uses %.1f %% of a core, want at most 2 %%", share*100)
	}
}

// BenchmarkFrames sends 64 MiB over a link between two nodes of this host, in frames of the size that collectives use.
// The two processes are simulated by goroutines of this process, so both ends share its processors.
func BenchmarkFrames(b *testing.B) {
	const bytes = 64 << 20
	b.SetBytes(bytes)
	ctx := context.Background()
	sent, got := make([]byte, bytes), make([]byte, bytes)
	inNodes(b, nodes(b, 1, 1), func(w *World) error {
		wire := w.NewWires(1)
		send := func() error { return w.Send(ctx, 1, wire, sent) }
		if w.Process() == 1 {
			send = func() error {
				r, err := w.Expect(0, wire, got)
				if err != nil {
					return err
				}
				return r.Wait(ctx)
			}
		}
		for range b.N {
			if err := send(); err != nil {
				return err
			}
		}
		_, err := w.Agree(ctx, "end", nil)
		return err
	})
}
