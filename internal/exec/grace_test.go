package exec

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/exec/grace"
)

// slow is a world whose Sync returns only after the context that the test sets has ended. It calls awaited when a
// caller waits in Sync.
type slow struct {
	device.World
	until   context.Context
	awaited func()
}

func (w slow) Sync(ctx context.Context) error {
	w.awaited()
	select {
	case <-w.until.Done():
	case <-ctx.Done():
	}
	return w.World.Sync(ctx)
}

// TestGrace checks that a run that ends soon after its context leaves the program usable.
func TestGrace(t *testing.T) {
	prog := load(t, cpu.Concurrent, 0, chunked(2, ""), Options{Grace: time.Minute})
	fast := prog.im.World
	ctx, cancel := context.WithCancel(context.Background())
	prog.im.World = slow{fast, ctx, cancel}
	rs, err := prog.Run(ctx, chunkedInputs(t, 2, 1))
	if rs != nil || !errors.Is(err, context.Canceled) || !errors.Is(err, ErrLate) {
		t.Errorf("got %v, %v", rs, err)
	}
	prog.im.World = fast
	if err := programs["chunked"].runBatch(t, prog, 2, 2, 1); err != nil {
		t.Error(err)
	}
}

// TestGraceOver checks that a run that does not end is aborted at the end of the grace, or without delay if there is no
// grace, and that the run returns the context's error.
func TestGraceOver(t *testing.T) { synctest.Test(t, testGraceOver) }

func testGraceOver(t *testing.T) {
	why := errors.New("the client went away")
	for what, grace := range map[string]time.Duration{"some": 20 * time.Millisecond, "none": 0} {
		prog := load(t, cpu.Concurrent, 0, chunked(2, ""), Options{Grace: grace})
		prog.im.World = stuck{prog.im.World}
		ctx, cancel := context.WithTimeoutCause(context.Background(), 50*time.Millisecond, why)
		began := time.Now()
		_, err := prog.Run(ctx, chunkedInputs(t, 2, 1))
		took := time.Since(began)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, why) || !strings.HasPrefix(err.Error(), "the time limit was reached") || prog.Usable() {
			t.Errorf("%s: got %v, usable %v", what, err, prog.Usable())
		}
		if took < grace {
			t.Errorf("%s: aborted after %v", what, took)
		}
	}
}

// TestGraceFails checks that a failure within the grace is the error of the run, rather than the error of its context.
func TestGraceFails(t *testing.T) {
	prog := load(t, cpu.Concurrent, 0, chunked(2, ""), Options{Grace: time.Minute})
	ctx, cancel := context.WithCancel(context.Background())
	cause := errors.New("lost")
	under := prog.im.World
	prog.im.World = slow{under, ctx, func() {
		under.Abort(cause)
		cancel()
	}}
	if _, err := prog.Run(ctx, chunkedInputs(t, 2, 1)); !errors.Is(err, cause) || errors.Is(err, context.Canceled) || prog.Usable() {
		t.Errorf("got %v, usable %v", err, prog.Usable())
	}
}

// TestLateBy checks that the late context ends at the end of its grace, for the first context's reason, or when its
// cancel function is called.
func TestLateBy(t *testing.T) { synctest.Test(t, testLateBy) }

func testLateBy(t *testing.T) {
	if l, done := grace.After(context.Background(), time.Minute); l != context.Background() {
		t.Error("a context that never ends has a late context")
	} else {
		done()
	}
	first, cancel := context.WithCancel(context.Background())
	l, done := grace.After(first, 10*time.Millisecond)
	if l.Err() != nil {
		t.Error(l.Err())
	}
	cancel()
	if l.Err() != nil {
		t.Errorf("at once: %v", l.Err())
	}
	<-l.Done()
	if !errors.Is(l.Err(), context.Canceled) {
		t.Error(l.Err())
	}
	done()

	first, cancel = context.WithCancel(context.Background())
	defer cancel()
	l, done = grace.After(first, time.Minute)
	done()
	<-l.Done()
	if l.Err() == nil || first.Err() != nil {
		t.Errorf("%v, the first %v", l.Err(), first.Err())
	}
}

// TestGraceRecords checks that, if a context ends while the forms of a graph are measured, the program uses the fastest
// form.
func TestGraceRecords(t *testing.T) { synctest.Test(t, testGraceRecords) }

func testGraceRecords(t *testing.T) {
	var runs []string
	m := &waysMachine{Machine: cpu.New(cpu.Options{}), runs: &runs, slow: map[string]time.Duration{"slow": 40 * time.Millisecond, "middling": 40 * time.Millisecond}}
	prog, in := m.ranOnce(t, time.Minute)
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Millisecond)
	defer cancel()
	if _, err := prog.Run(ctx, in); !errors.Is(err, context.DeadlineExceeded) || prog.Stats().Graph != "quick" {
		t.Errorf("got %v, by graph %q", err, prog.Stats().Graph)
	}
	if err := programs["chunked"].runBatch(t, prog, 2, 2, 1); err != nil {
		t.Error(err)
	}
}

// busy is a world whose devices still work for a while when it is closed, and are then lost.
type busy struct {
	stuck
	rest time.Duration
}

func (w busy) Close() error {
	time.Sleep(w.rest)
	return errors.Join(w.World.Close(), device.ErrDeviceLost)
}

// TestClosesLater checks that a run whose devices remain busy returns after its deadline plus closesWithin, and that
// AwaitClosed reports which devices were lost.
func TestClosesLater(t *testing.T) { synctest.Test(t, testClosesLater) }

func testClosesLater(t *testing.T) {
	const deadline = 50 * time.Millisecond
	for rest, later := range map[time.Duration]bool{closesWithin / 2: false, 30 * time.Second: true} {
		prog := load(t, cpu.Concurrent, 0, chunked(2, ""), Options{})
		prog.im.World = busy{stuck{prog.im.World}, rest}
		ctx, cancel := context.WithTimeout(context.Background(), deadline)
		began := time.Now()
		_, err := prog.Run(ctx, chunkedInputs(t, 2, 1))
		took := time.Since(began)
		cancel()
		if want := deadline + min(rest, closesWithin); !errors.Is(err, context.DeadlineExceeded) || took != want {
			t.Errorf("busy for another %v: %v after %v, want the deadline's error after %v", rest, err, took, want)
		}
		if prog.Closing() != later || prog.Usable() {
			t.Errorf("busy for another %v: closing %v, usable %v", rest, prog.Closing(), prog.Usable())
		}
		err = prog.AwaitClosed()
		if !errors.Is(err, device.ErrDeviceLost) || time.Since(began) != deadline+rest {
			t.Errorf("busy for another %v: closed with %v after %v", rest, err, time.Since(began))
		}
		if prog.Closing() {
			t.Errorf("busy for another %v: still closing after AwaitClosed", rest)
		}
	}
}
