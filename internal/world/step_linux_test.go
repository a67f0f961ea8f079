package world

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func stacks() string {
	b := make([]byte, 1<<20)
	return string(b[:runtime.Stack(b, true)])
}

// fail runs f in each process of a world, after all have joined. f must end the world; fail returns
// the error of each process.
func fail(t *testing.T, o Options, f func(w *World) error) []error {
	t.Helper()
	errs := make([]error, o.Size)
	var all, joined sync.WaitGroup
	joined.Add(o.Size)
	for r := range o.Size {
		all.Go(func() {
			o := o
			o.Rank = r
			w, err := Join(context.Background(), o)
			joined.Done()
			joined.Wait()
			if err != nil {
				t.Error(err)
				return
			}
			defer w.Leave()
			if err := f(w); err != nil {
				w.Abort(err)
			}
			select {
			case <-w.Done():
				errs[r] = w.Err()
			case <-time.After(limit):
				t.Errorf("rank %d: the world has not ended", r)
			}
		})
	}
	all.Wait()
	return errs
}

// TestSteps checks that, if the steps of two processes differ, both report the values of both,
// whichever process is first.
func TestSteps(t *testing.T) {
	for _, tc := range []struct {
		name  string
		steps [3][]string
		want  string
	}{
		{"other plan", [3][]string{{"load a", "run a"}, {"load a", "run b"}, {"load a", "run a"}}, "step 3: "},
		{"other order", [3][]string{{"load a", "load b"}, {"load b", "load a"}, {"load a", "load b"}}, "step 2: "},
		{"other count", [3][]string{{"run a 4"}, {"run a 4"}, {"run a 8"}}, "step 2: "},
		{"long", [3][]string{{strings.Repeat("x", 500) + "a"}, {strings.Repeat("x", 500) + "a"},
			{strings.Repeat("x", 500) + "b"}}, "step 2: "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			errs := fail(t, options(t, 3), func(w *World) error {
				for i, s := range tc.steps[w.Process()] {
					time.Sleep(time.Duration((w.Process()*7+i*3)%5) * time.Millisecond)
					if err := w.Step(s); err != nil {
						return err
					}
				}
				return nil
			})
			for r, err := range errs {
				var d *DisagreeError
				if !errors.As(err, &d) || !strings.Contains(err.Error(), "ranks disagree on "+tc.want) ||
					len(d.Values) != 3 {
					t.Errorf("rank %d: %v", r, err)
				} else if (d.Odd() < 0) != (len(d.Groups()) != 2) || len(d.Groups()) < 2 {
					t.Errorf("rank %d: the error does not say which step differs: %v", r, err)
				}
			}
		})
	}
}

// TestStepDoesNotAllocate checks that a step whose call is that of the previous step allocates nothing, because eager
// collectives are steps.
func TestStepDoesNotAllocate(t *testing.T) {
	inOne(t, options(t, 1), func(w *World) error {
		var err error
		n := 1.0
		for range 10 { // goroutines of earlier tests may allocate, too
			n = min(n, testing.AllocsPerRun(1000, func() {
				w.Calls("all_reduce of bf16[524288] sum", "train.py:33")
				err = errors.Join(err, w.Step("all_reduce of bf16[524288] sum"))
			}))
		}
		if n != 0 {
			t.Error("a step allocates")
		}
		return err
	})
}

// TestStepsAgree checks that processes with equal steps never disagree, even if one is many steps ahead of the other.
func TestStepsAgree(t *testing.T) {
	inOne(t, options(t, 3), func(w *World) error {
		for i := range 5000 {
			if err := w.Step(fmt.Sprint("batch ", i)); err != nil {
				return err
			}
			w.At(i)
			if w.Process() == 1 && i%1000 == 0 {
				time.Sleep(time.Millisecond)
			}
		}
		_, err := w.Agree(context.Background(), "end", nil)
		return err
	})
}

// TestAgreementsDiffer checks that the difference is reported if processes call Agree for different steps, or if one
// calls Agree and the other Step.
func TestAgreementsDiffer(t *testing.T) {
	for name, second := range map[string]func(w *World) error{
		"agreement": func(w *World) error { _, err := w.Agree(context.Background(), "run", nil); return err },
		"step":      func(w *World) error { return w.Step("run") },
	} {
		t.Run(name, func(t *testing.T) {
			errs := fail(t, options(t, 2), func(w *World) error {
				if w.Process() == 1 {
					return second(w)
				}
				_, err := w.Agree(context.Background(), "load", nil)
				return err
			})
			for r, err := range errs {
				if want := "ranks disagree on step 2: rank 0 has load, rank 1 has run"; err == nil ||
					err.Error() != want {
					t.Errorf("rank %d: %v, want %q", r, err, want)
				}
			}
		})
	}
}

// TestAbsent checks, for every kind of wait, that the error names a process that is alive but does not perform the
// action for which others wait.
func TestAbsent(t *testing.T) {
	ctx := context.Background()
	for _, tc := range []struct {
		name string
		wait func(w *World) error
		want string
	}{
		{"agree", func(w *World) error { _, err := w.Agree(ctx, "load", nil); return err },
			`did not reach step 3 (load) within 500ms, in step 2 (begin) at command 7; the limit is HOCKET_STALL_TIMEOUT, or stall_timeout`},
		{"import", func(w *World) error { _, err := w.Import(ctx, 1, "arena"); return err },
			`did not export "arena" within 500ms, in step 2 (begin) at command 7; the limit is HOCKET_STALL_TIMEOUT, or stall_timeout`},
		{"counter", func(w *World) error {
			c, err := w.NewCounters("c", 1)
			if err != nil {
				return err
			}
			defer c.Close()
			if err := w.Step("run"); err != nil {
				return err
			}
			return c.Wait(ctx, 0, 1, 1)
		}, `did not begin step 3 (run) within 500ms, in step 2 (begin) at command 7; the limit is HOCKET_STALL_TIMEOUT, or stall_timeout`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			o := options(t, 2)
			o.StallTimeout = 500 * time.Millisecond
			errs := fail(t, o, func(w *World) error {
				if err := w.Step("begin"); err != nil {
					return err
				}
				if w.Process() == 1 {
					w.At(7)
					return nil
				}
				for w.mesh.page.recordedAt(1) != 7 {
					time.Sleep(time.Millisecond)
				}
				return tc.wait(w)
			})
			for r, err := range errs {
				var p *PeerError
				if !errors.As(err, &p) || p.Rank != 1 || !strings.HasSuffix(p.Why, tc.want) {
					t.Errorf("rank %d: %v, want %q", r, err, tc.want)
				}
			}
		})
	}
}

// TestSlow checks that processes wait longer than the stall timeout T for a process that makes progress.
func TestSlow(t *testing.T) {
	t.Parallel()
	o := options(t, 2)
	o.StallTimeout = time.Second
	inOne(t, o, func(w *World) error {
		ctx := context.Background()
		mine, err := w.NewCounters("c", 1)
		if err != nil {
			return err
		}
		defer mine.Close()
		theirs, err := w.MapCounters(ctx, 1-w.Process(), "c")
		if err != nil {
			return err
		}
		defer theirs.Close()
		agree := func() error { _, err := w.Agree(ctx, "load", nil); return err }
		for _, meeting := range []struct{ wait, come func() error }{
			{agree, agree},
			{func() error { _, err := w.Map(ctx, 1, "arena"); return err },
				func() error { return w.Share("arena", mine.segment) }},
			{func() error { return errors.Join(w.Step("batch"), mine.Wait(ctx, 0, 1, 1)) },
				func() error { theirs.Add(0, 1); return w.Step("batch") }},
		} {
			if w.Process() == 0 {
				if err := meeting.wait(); err != nil {
					return err
				}
				continue
			}
			for i := range 12 {
				time.Sleep(200 * time.Millisecond)
				w.At(i + 1)
			}
			if err := meeting.come(); err != nil {
				return err
			}
		}
		return agree()
	})
}

// recordedAt returns the command that a process has reached.
func (p *page) recordedAt(rank int) uint64 { return word(p.slot(rank), slotAt).Load() }

// TestLeft checks that a wait for a process that has left ends immediately.
func TestLeft(t *testing.T) {
	ctx := context.Background()
	for name, wait := range map[string]func(w *World, c *Counters) error{
		"agree":   func(w *World, _ *Counters) error { _, err := w.Agree(ctx, "load", nil); return err },
		"import":  func(w *World, _ *Counters) error { _, err := w.Import(ctx, 1, "arena"); return err },
		"export":  func(w *World, c *Counters) error { return w.Share("arena", c.segment, 1) },
		"counter": func(w *World, c *Counters) error { return c.Wait(ctx, 0, 2, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			inOne(t, options(t, 2), func(w *World) error {
				if w.Process() == 1 {
					c, err := w.MapCounters(ctx, 0, "c")
					if err != nil {
						return err
					}
					defer c.Close()
					c.Add(0, 1)
					return nil
				}
				c, err := w.NewCounters("c", 1)
				if err != nil {
					return err
				}
				defer c.Close()
				if name == "export" { // this succeeds only if the process is known to have left
					waitFor(t, func() bool { return w.mesh.hasLeft(1) })
				}
				if err := c.Wait(ctx, 0, 1, 1); err != nil {
					return err // the process raised the counter before it left
				}
				var p *PeerError
				if err := wait(w, c); !errors.As(err, &p) || p.Rank != 1 || !strings.Contains(p.Why, "left the world") {
					t.Errorf("got %v", err)
				}
				if name == "agree" { // a failed Agree ends the world
					return errEnded
				}
				return w.Err()
			})
		})
	}
}

// TestWaitContext ends a wait for a counter by its context. The world must remain usable.
func TestWaitContext(t *testing.T) {
	inOne(t, options(t, 2), func(w *World) error {
		c, err := w.NewCounters("c", 1)
		if err != nil {
			return err
		}
		defer c.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		defer cancel()
		if err := c.Wait(ctx, 0, 1, 1-w.Process()); !errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("got %v", err)
		}
		return w.Same(context.Background(), "end", "x")
	})
}

// TestPause checks that a process that is stopped for less than the stall timeout T is not blamed. The run must
// continue normally.
func TestPause(t *testing.T) {
	phases := []string{"linked", "within ready", "joined", "exported", "batch", "done"}
	if testing.Short() {
		phases = []string{"ready", "batch"}
	}
	for _, phase := range phases {
		t.Run(phase, func(t *testing.T) {
			t.Parallel()
			o := options(t, 3)
			f := start(t, o, "life", func(rank int) []string {
				if rank == 1 {
					return []string{faultVariable + "=stop " + phase}
				}
				return nil
			})
			f.waitStopped(1, limit)
			time.Sleep(time.Second)
			f.command[1].Process.Signal(syscall.SIGCONT)
			for r := range o.Size {
				if code := f.wait(r, limit); code != 0 {
					t.Errorf("rank %d exits %d: %s", r, code, f.out[r].String())
				}
			}
			f.empty()
		})
	}
}

// TestHalfAbort kills a process that has begun to end the world but has not yet written the cause.
func TestHalfAbort(t *testing.T) {
	o := options(t, 3)
	f := start(t, o, "quarrel", func(rank int) []string {
		if rank == 2 {
			return []string{faultVariable + "=kill within abort"}
		}
		return nil
	})
	for r := range 2 {
		code := f.wait(r, limit)
		if out := f.out[r].String(); code != exitFailed || !strings.HasPrefix(out, "peer 2: ") {
			t.Errorf("rank %d exits %d: %s", r, code, out)
		}
	}
}

func init() {
	// quarrel lets the last process end the world.
	children["quarrel"] = func(ctx context.Context, o Options) error {
		w, err := Join(ctx, o)
		if err != nil {
			return err
		}
		defer w.Leave()
		if o.Rank == o.Size-1 {
			w.Abort(errors.New("out of memory"))
		}
		<-w.Done()
		return w.Err()
	}
}

// TestReasons checks that a process that leaves is reported with its error, or, if it has no error, with its last call.
// A process that continues after all others have left is reported as the one that differs. The test runs within a node,
// and with each process on a separate node.
func TestReasons(t *testing.T) {
	for _, tc := range []struct {
		name string
		one  func(w *World) error // the action of process 1 in place of the step that the others begin
		want string
	}{
		{"error", func(w *World) error { w.Failed(errors.New("no data")); return nil },
			"rank 1: left the world before g(x) at b.py:2: no data"},
		{"mended", func(w *World) error { w.Failed(errors.New("no data")); w.Failed(nil); return nil },
			"rank 1: left the world before g(x) at b.py:2: its program ended; its last call was f(x) at a.py:1"},
		{"goes on", func(w *World) error {
			w.Calls("h(x)", "c.py:3")
			_, err := w.Agree(context.Background(), "more", nil)
			return err
		}, "ranks disagree on the next call: rank 1 called h(x) at c.py:3, the others (ranks 0, 2) have no more calls"},
	} {
		for _, apart := range []bool{false, true} {
			t.Run(fmt.Sprint(tc.name, " ", apart), func(t *testing.T) {
				goesOn := tc.name == "goes on"
				f := func(w *World) error {
					w.Calls("f(x)", "a.py:1")
					_, err := w.Agree(context.Background(), "run", nil)
					switch {
					case err != nil: // another process may already have reported the end of the world
					case w.Process() == 1:
						err = tc.one(w)
					case !goesOn:
						w.Calls("g(x)", "b.py:2")
						_, err = w.Agree(context.Background(), "end", nil)
					}
					if (w.Process() == 1) != goesOn {
						return nil // leaves the world
					}
					if unplaced(err) != tc.want {
						return fmt.Errorf("got %v, want %s", err, tc.want)
					}
					return errEnded
				}
				if apart {
					inNodes(t, nodes(t, 1, 1, 1), f)
				} else {
					inOne(t, options(t, 3), f)
				}
			})
		}
	}
}
