package devicetest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// tape records the calls of an observer, by rank and stream.
type tape struct {
	mu    sync.Mutex
	marks map[string][]note
}

type note struct {
	id    int64
	ended bool
	ns    int64
}

func (o *tape) add(rank int, stream string, n note) {
	o.mu.Lock()
	defer o.mu.Unlock()
	key := string(rune('0'+rank)) + "/" + stream
	o.marks[key] = append(o.marks[key], n)
}

func (o *tape) Began(rank int, stream string, id, ns int64) { o.add(rank, stream, note{id, false, ns}) }
func (o *tape) Ended(rank int, stream string, id, ns int64) { o.add(rank, stream, note{id, true, ns}) }

func testObserver(r *rig) {
	ranks := r.some(2)
	r.open(ranks)
	if !r.m.Caps().Traces {
		r.Skip("this world tells no times")
	}
	o := &tape{marks: map[string][]note{}}
	r.w.Observe(o)
	for rank := range ranks {
		for _, s := range []device.Stream{r.mainOf(rank), r.stream(rank, "side")} {
			v := r.zeros(rank)
			r.sync()
			r.must(s.Begin(7))
			r.chain(s, rank, v)
			r.must(s.Begin(8))
			r.chain(s, rank, v)
			r.must(s.End(8))
			r.must(s.End(7))
			r.refused("end of nothing", s.End(7))
			r.must(s.Begin(9))
			r.refused("end of another mark", s.End(7))
			r.must(s.End(9))
			r.sync()
		}
	}
	r.w.Observe(nil)
	r.must(r.mainOf(0).Begin(1))
	r.must(r.mainOf(0).End(1))
	r.sync()
	for rank := range ranks {
		for _, name := range []string{"main", "side"} {
			r.checkNotes(o.marks[string(rune('0'+rank))+"/"+name])
		}
	}
}

func (r *rig) checkNotes(got []note) {
	r.Helper()
	want := []note{{7, false, 0}, {8, false, 0}, {8, true, 0}, {7, true, 0}, {9, false, 0}, {9, true, 0}}
	if len(got) != len(want) {
		r.Fatalf("the observer was told %v", got)
	}
	for i, n := range got {
		if n.id != want[i].id || n.ended != want[i].ended {
			r.Fatalf("the observer was told %v", got)
		}
		if i > 0 && n.ns < got[i-1].ns {
			r.Errorf("time runs backwards: %v", got)
		}
	}
	if got[0].ns >= got[3].ns {
		r.Errorf("no time passed during 120 kernels: %v", got)
	}
}

func testSyncs(r *rig) {
	r.open(r.some(2))
	r.sync()
	v := r.zeros(0)
	for i := range 5 {
		r.chain(r.mainOf(0), 0, v)
		got := r.get(r.mainOf(0), v)
		r.sync()
		r.sync()
		r.equal("after a sync", got.vals(), constant(width, float64(links*(i+1))))
	}
	done, cancel := context.WithCancel(context.Background())
	cancel()
	if err := r.w.Sync(done); err != nil && !errors.Is(err, context.Canceled) {
		r.Errorf("sync with a context that has ended: %v", err)
	}
}

// quarrel makes each of two streams wait for a later operation of the other stream.
func (r *rig) quarrel() {
	r.Helper()
	ranks := r.w.Ranks()
	a, b := r.stream(0, "a"), r.stream(ranks-1, "b")
	ca, cb := r.counters(0, 1), r.counters(ranks-1, 1)
	r.must(a.Begin(11))
	r.must(a.WaitCounter(ca, 0, 1))
	r.must(a.End(11))
	r.must(a.Signal(cb, 0, 1))
	r.must(b.WaitCounter(cb, 0, 1))
	r.must(b.Signal(ca, 0, 1))
	e := r.event(ranks - 1)
	r.must(b.Record(e))
	r.must(r.stream(0, "c").Wait(e))
}

func testDeadlock(r *rig) {
	r.open(r.some(2))
	r.quarrel()
	if !r.m.Caps().Deadlocks {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := r.w.Sync(ctx); !errors.Is(err, context.DeadlineExceeded) {
			r.Errorf("after the deadline: %v", err)
		}
		return
	}
	err := r.syncs()
	var d *device.Deadlock
	if !errors.As(err, &d) {
		r.Fatalf("Sync returned %v", err)
	}
	var where []string
	for _, b := range d.Blocked {
		where = append(where, b.Stream)
		if (b.Stream == "a") != (b.ID == 11) || b.On == "" {
			r.Errorf("blocked: %+v", b)
		}
	}
	slices.Sort(where)
	if !slices.Equal(where, []string{"a", "b", "c"}) {
		r.Errorf("blocked: %v", err)
	}
	r.afterEnd()
	r.again()
}

// afterEnd checks that a world that has ended returns errors.
func (r *rig) afterEnd() {
	r.Helper()
	_, stream := r.w.Device(0).NewStream(device.StreamOptions{Name: "late"})
	for what, err := range map[string]error{"sync": r.syncs(), "stream": stream} {
		if !errors.Is(err, device.ErrAborted) {
			r.Errorf("%s after the end: %v", what, err)
		}
	}
}

// again checks that another world can be opened on the machine and used.
func (r *rig) again() {
	r.Helper()
	_ = r.w.Close()
	r.open(r.some(2))
	v := r.zeros(0)
	r.chain(r.mainOf(0), 0, v)
	r.equal("in a new world", r.contents(0, v), constant(width, links))
}

// hold prevents the world from becoming idle until the caller calls the returned function release. On a machine that
// does not report deadlocks, hold makes a stream wait for a counter that is never raised.
func (r *rig) hold() (release func()) {
	r.Helper()
	r.quarrel()
	if !r.m.Caps().Deadlocks {
		return func() {}
	}
	s := r.stream(0, "busy")
	if !r.m.Caps().HostCalls {
		r.Skip("streams cannot call the host, and the machine reports deadlocks by itself")
	}
	free := make(chan struct{})
	r.must(s.Call(func() { <-free }))
	return sync.OnceFunc(func() { close(free) })
}

func testAbort(r *rig) {
	r.open(r.some(2))
	release := r.hold()
	cause := errors.New("the test says so")
	time.AfterFunc(20*time.Millisecond, func() {
		r.w.Abort(cause)
		r.w.Abort(errors.New("a second cause"))
		release()
	})
	began := time.Now()
	err := r.syncs()
	if !errors.Is(err, device.ErrAborted) || !errors.Is(err, cause) {
		r.Errorf("Sync returned %v", err)
	}
	if took := time.Since(began); took > 5*time.Second {
		r.Errorf("the abort took %v", took)
	}
	r.afterEnd()
	r.again()
}

func testDeadline(r *rig) {
	r.open(r.some(2))
	release := r.hold()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	// The release follows well after the deadline, so that Sync notices the deadline first even on a busy host. After
	// the release the machine may report that no stream can continue.
	context.AfterFunc(ctx, func() { time.AfterFunc(300*time.Millisecond, release) })
	err := r.w.Sync(ctx)
	if !errors.Is(err, context.DeadlineExceeded) {
		r.Fatalf("Sync returned %v", err)
	}
	if r.m.Caps().Concurrent && !strings.Contains(err.Error(), "stream a") {
		r.Errorf("the error does not name the waiting streams: %v", err)
	}
	r.afterEnd()
	r.again()
}

// testOpenContext checks that a world ends when the context.Context that was passed to Open ends.
func testOpenContext(r *rig) {
	ctx, cancel := context.WithCancelCause(r.Context())
	w, err := r.m.Open(ctx, r.some(2))
	r.must(err)
	r.Cleanup(func() { _ = w.Close() })
	r.w, r.main = w, map[int]device.Stream{}
	release := r.hold()
	cause := errors.New("the server goes down")
	time.AfterFunc(20*time.Millisecond, func() { cancel(cause); time.AfterFunc(20*time.Millisecond, release) })
	err = r.syncs()
	if !errors.Is(err, context.Canceled) || !errors.Is(err, cause) || !errors.Is(err, device.ErrAborted) {
		r.Errorf("Sync returned %v", err)
	}
	r.again()
}

func testFault(r *rig) {
	r.open(r.some(2))
	rank := r.w.Ranks() - 1
	s := r.stream(rank, "faulty")
	if !r.m.Caps().HostCalls {
		r.Skip("the test cannot make work fail on this machine")
	}
	r.quarrel()
	r.must(s.Begin(3))
	r.must(s.Begin(4))
	r.must(s.Call(func() {}))
	r.must(s.End(4))
	boom := errors.New("boom")
	r.must(s.Call(func() { panic(boom) }))
	if err := s.End(3); err != nil && !errors.Is(err, boom) { // the fault may have ended the world already
		r.Fatal(err)
	}
	err := r.syncs()
	var f *device.Fault
	if !errors.As(err, &f) || !errors.Is(err, boom) {
		r.Fatalf("Sync returned %v", err)
	}
	if f.Rank != rank || f.Stream != "faulty" || f.ID != 3 {
		r.Errorf("the fault is %+v", f)
	}
	r.afterEnd()
	r.again()
}

func testClosed(r *rig) {
	r.open(1)
	d, s := r.w.Device(0), r.mainOf(0)
	v, e, c := r.zeros(0), r.event(0), r.counters(0, 1)
	k := device.Kernel{Op: device.Elementwise{Op: ir.OpNeg}, Ins: []device.View{v}, Outs: []device.View{v}}
	l, err := d.Prepare(k)
	r.must(err)
	r.sync()
	r.must(s.Record(e))
	r.must(r.w.Close())
	_, alloc := d.Alloc(1, device.Private)
	_, stream := d.NewStream(device.StreamOptions{})
	_, event := d.NewEvent()
	_, counters := d.NewCounters(1)
	_, prepare := d.Prepare(k)
	for what, err := range map[string]error{
		"alloc": alloc, "stream": stream, "event": event, "counters": counters, "prepare": prepare,
		"launch": s.Launch(l), "copy": s.Copy(v, v), "upload": s.Upload(v, make([]byte, 4*width)), "download": s.Download(make([]byte, 4*width), v),
		"record": s.Record(e), "wait": s.Wait(e), "signal": s.Signal(c, 0, 1), "wait for a counter": s.WaitCounter(c, 0, 0),
		"begin": s.Begin(1), "end": s.End(1), "sync": r.syncs(), "free": v.Mem.Free(), "close": r.w.Close(),
	} {
		r.refused(what+" in a closed world", err)
	}
	r.w.Abort(nil)
	l.Release()
	e.Release()
	c.Release()
}
