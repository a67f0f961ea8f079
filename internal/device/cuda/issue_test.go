package cuda

import (
	"errors"
	"strings"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/device/cuda/timeline"
	"hocket.example/hocket/ir"
)

// line is a world of one rank with a stream and a small kernel. Tests use it to count what issuing costs.
type line struct {
	*testing.T
	f *fakedriver.GPU
	w device.World
	s device.Stream
	l device.Launch
}

func newLine(t *testing.T, f *fakedriver.GPU) *line {
	t.Helper()
	w, err := newMachine(system(f), Options{Kernels: f}).Open(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	r := &line{T: t, f: f, w: w}
	d := w.Device(0)
	mem, err := d.Alloc(64, device.Shared)
	r.must(err)
	v := device.View{Mem: mem, DType: ir.F32, Shape: []int64{16}, Strides: []int64{1}}
	r.l, err = d.Prepare(device.Kernel{Op: device.Elementwise{Op: ir.OpNeg}, Ins: []device.View{v},
		Outs: []device.View{v}})
	r.must(err)
	r.s, err = d.NewStream(device.StreamOptions{Name: "main"})
	r.must(err)
	return r
}

func (r *line) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// run issues n launches, each between its own begin mark and end mark.
func (r *line) run(n int) {
	for id := range int64(n) {
		r.must(r.s.Begin(id))
		r.must(r.s.Launch(r.l))
		r.must(r.s.End(id))
	}
}

// nobody is an observer that ignores all reports.
type nobody struct{}

func (nobody) Began(int, string, int64, int64) {}
func (nobody) Ended(int, string, int64, int64) {}

// TestCallsAnOp counts the driver calls for one launch: one cheap call to make the context current, and the launch.
// Events are recorded only for an observer.
func TestCallsAnOp(t *testing.T) {
	const n = 8 * timeline.Sparse
	for _, observed := range []bool{false, true} {
		f := fakedriver.New(t, 1)
		r := newLine(t, f)
		events := 8
		if observed {
			r.w.Observe(nobody{})
			events = n + 1 // the end of one launch and the begin of the next share an event
		}
		clear(f.Called)
		r.run(n)
		if got := f.Called["cuLaunchKernel"] + f.Called["cuLaunchKernelEx"]; got != n ||
			f.Called["cuEventRecord"] != events {
			t.Errorf("observed %v: %d launches, %d records, want %d and %d", observed, got, f.Called["cuEventRecord"],
				n, events)
		}
		clear(f.Called)
		r.must(r.w.Sync(t.Context()))
		// The stream is known to be idle, so its events need no queries. With an observer, the time of each event is
		// read once.
		if q, e := f.Called["cuEventQuery"], f.Called["cuEventElapsedTime"]; q != 0 || observed && e != n+1 ||
			!observed && e != 0 {
			t.Errorf("observed %v: %d event queries, %d event times read", observed, q, e)
		}
		clear(f.Called)
		r.run(n)
		delete(f.Called, "cuCtxSetCurrent")
		delete(f.Called, "cuLaunchKernel")
		delete(f.Called, "cuLaunchKernelEx")
		if delete(f.Called, "cuEventRecord"); len(f.Called) > 0 {
			t.Errorf("observed %v: after events were created, issuing also calls %v", observed, f.Called)
		}
		r.must(r.w.Sync(t.Context()))
		r.must(r.w.Close())
	}
}

// TestIssuedAtOnce checks that work for which another stream waits is issued before that wait, so that the wait needs
// not be held back.
func TestIssuedAtOnce(t *testing.T) {
	f := fakedriver.New(t, 1)
	r := newLine(t, f)
	other, err := r.w.Device(0).NewStream(device.StreamOptions{Name: "side"})
	r.must(err)
	e, err := r.w.Device(0).NewEvent()
	r.must(err)
	c, err := r.w.Device(0).NewCounters(1)
	r.must(err)
	for i := range int64(100) {
		r.must(r.s.Launch(r.l))
		r.must(r.s.Record(e))
		r.must(other.Wait(e))
		r.must(other.Launch(r.l))
		r.must(other.Signal(c, 0, 1))
		r.must(r.s.WaitCounter(c, 0, i+1))
		if b := r.w.(*world).flight.blocked(); len(b) > 0 {
			t.Fatalf("streams are held back: %v", b)
		}
		if got := [...]int{f.Called["cuEventRecord"], f.Called["cuStreamWaitEvent"]}; got != [...]int{2 * int(i+1),
			2 * int(i+1)} {
			t.Fatalf("after %d rounds there were %v records and waits", i+1, got)
		}
	}
	r.must(r.w.Sync(t.Context()))
	r.must(r.w.Close())
}

// TestLandingAsksNothing checks that finished transfers on a stream that is known to be idle need no event queries.
func TestLandingAsksNothing(t *testing.T) {
	f := fakedriver.New(t, 1)
	r := newLine(t, f)
	mem, err := r.w.Device(0).Alloc(64, device.Shared)
	r.must(err)
	v := device.View{Mem: mem, DType: ir.F32, Shape: []int64{4}, Strides: []int64{1}}
	r.must(r.s.Upload(v, floats(3)))
	var got [5][]byte
	for i := range got {
		got[i] = make([]byte, 16)
		r.must(r.s.Download(got[i], v))
	}
	clear(f.Called)
	r.must(r.w.Sync(t.Context()))
	if n := f.Called["cuEventQuery"]; n > 0 {
		t.Errorf("%d event queries, want none", n)
	}
	for i := range got {
		if string(got[i]) != string(floats(3)) {
			t.Errorf("download %d is %v", i, got[i])
		}
	}
	r.must(r.w.Close())
}

// TestMilestones checks error messages of faults in a world without an observer: they name two marks between which the
// fault occurred, and the streams that it may concern.
func TestMilestones(t *testing.T) {
	f := fakedriver.New(t, 1)
	r := newLine(t, f)
	r.run(40)
	f.Late["cuEventQuery"] = 1 // the second milestone is not reached
	w := r.w.(*world)
	w.mu.Lock()
	w.flight.asking(func() { tellMarks(w) })
	id, last := w.flight.streams[0].within()
	w.mu.Unlock()
	if id != 0 || last != 14 {
		t.Errorf("before the first milestone the marks are %d to %d", id, last)
	}
	other, err := r.w.Device(0).NewStream(device.StreamOptions{Name: "side"})
	r.must(err)
	r.must(other.Begin(77))
	r.must(other.Launch(r.l))
	w.mu.Lock()
	f.Mu.Lock()
	f.Late["cuEventQuery"] = 0
	f.Mu.Unlock()
	w.flight.asking(func() { tellMarks(w) })
	w.mu.Unlock()
	f.Kills["cuStreamQuery"] = 700
	err = r.w.Sync(t.Context())
	var fault *device.Fault
	if !errors.As(err, &fault) || fault.Stream != "main" || fault.ID != 31 || fault.Last != 39 {
		t.Fatalf("got %v, %+v", err, fault)
	}
	if !strings.Contains(err.Error(), "the run was not observed, so the failed work may also be that of rank 0, stream side, mark 77") {
		t.Errorf("got %v", err)
	}
	r.must(r.w.Close())
}

// TestExpiredStands checks that the error of a world that ends because its context is done includes the positions of
// its streams.
func TestExpiredStands(t *testing.T) {
	at := device.Standing{Rank: 1, Stream: "s", ID: 3, Last: 9, Does: "still runs"}
	e := &device.Expired{Err: errors.New("late"), At: make([]device.Standing, 9)}
	e.At[0] = at
	if got := e.Error(); !strings.HasPrefix(got, "late; rank 1, stream s, marks 3 to 9 still runs; ") ||
		!strings.HasSuffix(got, "; and 1 more streams") {
		t.Error(got)
	}
	for text, m := range map[string][2]int64{"": {-1, 0}, ", mark 4": {4, 0}, ", marks 4 to 6": {4, 6}} {
		if got := device.MarkText(m[0], m[1]); got != text {
			t.Errorf("%v: %q", m, got)
		}
	}
}
