package cuda

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/ir"
)

// exchanged is a world of two fake GPUs, of which one rank each exchanges numbers with the other. Each rank negates a
// number and sends it to the other rank, which adds it to its own. The tests record this work as graphs.
type exchanged struct {
	*testing.T
	f        *fakedriver.GPU
	w        device.World
	s        [2]device.Stream
	own, got [2]device.View
	neg, add [2]device.Launch
	c        [2]device.Counters
	told     int64 // number of signals that each counter has received so far
}

func newExchanged(t *testing.T, opts Options) *exchanged {
	t.Helper()
	f := fakedriver.New(t, 2)
	opts.Kernels = f
	w, err := newMachine(system(f), opts).Open(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	x := &exchanged{T: t, f: f, w: w}
	for r := range 2 {
		d := w.Device(r)
		var views [2]device.View
		for i := range views {
			mem, err := d.Alloc(256, device.Shared)
			x.must(err)
			views[i] = device.View{Mem: mem, DType: ir.F32, Shape: []int64{4}, Strides: []int64{1}}
		}
		x.own[r], x.got[r] = views[0], views[1]
		x.s[r], err = d.NewStream(device.StreamOptions{Name: "main"})
		x.must(err)
		x.c[r], err = d.NewCounters(1)
		x.must(err)
		x.neg[r], err = d.Prepare(device.Kernel{Op: device.Elementwise{Op: ir.OpNeg}, Ins: views[:1], Outs: views[:1]})
		x.must(err)
		x.add[r], err = d.Prepare(device.Kernel{Op: device.Elementwise{Op: ir.OpAdd}, Ins: views[:], Outs: views[:1]})
		x.must(err)
	}
	return x
}

func (x *exchanged) must(err error) {
	x.Helper()
	if err != nil {
		x.Fatal(err)
	}
}

// issue is one round of the exchange: it has a signal after numbers are sent, and a signal after they are used.
func (x *exchanged) issue() error {
	var errs []error
	for r := range 2 {
		errs = append(errs, x.s[r].Begin(int64(10+r)), x.s[r].Launch(x.neg[r]), x.s[r].Copy(x.got[1-r], x.own[r]),
			x.s[r].Signal(x.c[1-r], 0, 1), x.s[r].End(int64(10+r)))
	}
	for r := range 2 {
		errs = append(errs, x.s[r].Begin(int64(20+r)), x.s[r].WaitCounter(x.c[r], 0, x.told+1), x.s[r].Launch(x.add[r]),
			x.s[r].Signal(x.c[1-r], 0, 1), x.s[r].End(int64(20+r)))
	}
	for r := range 2 {
		errs = append(errs, x.s[r].WaitCounter(x.c[r], 0, x.told+2))
	}
	return errors.Join(errs...)
}

// TestFormsWanted checks that a program whose ranks share GPUs is recorded as one graph over all GPUs, unless another
// form is requested.
func TestFormsWanted(t *testing.T) {
	for _, c := range []struct {
		gpus, per int
		graphs    string
		Want      string
	}{{1, 1, "", "one"}, {2, 1, "", "one each"}, {2, 2, "", "one"}, {2, 2, formEach, "each"}, {2, 1, formOne, "one"}} {
		f := fakedriver.New(t, c.gpus)
		w, err := newMachine(system(f), Options{Kernels: f, RanksPerGPU: c.per, Graphs: c.graphs}).Open(t.Context(),
			c.gpus*c.per)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(formsWanted(w.(*world)), " "); got != c.Want {
			t.Errorf("%+v: forms %s", c, got)
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestGraphForms replays the same work in both forms of a graph, and counts the driver calls of each launch.
func TestGraphForms(t *testing.T) {
	x := newExchanged(t, Options{})
	captured, err := x.w.Capture(x.issue)
	x.must(err)
	g := captured
	if got := strings.Join(g.Forms(), " "); got != "one each" {
		t.Fatalf("forms %s", got)
	}
	for run := range 6 {
		g.Choose(run % 2)
		in := [2]float32{float32(run + 1), 10}
		for r := range 2 {
			x.must(x.s[r].Upload(x.own[r], floats(in[r])))
		}
		clear(x.f.Called)
		x.must(captured.Launch(t.Context()))
		if n := x.f.Called["cuGraphLaunch"]; n != 1+run%2 {
			t.Errorf("run %d: %d graphs were launched, an unexpected number", run, n)
		}
		if n := x.f.Called["cuStreamWaitEvent"]; run > 1 && n > 3 {
			t.Errorf("run %d: a launch made %d waits, an unexpected number", run, n)
		}
		var out [2][]byte
		for r := range 2 {
			out[r] = make([]byte, 16)
			x.must(x.s[r].Download(out[r], x.own[r]))
		}
		x.must(x.w.Sync(t.Context()))
		for r := range 2 {
			if want := string(floats(-in[0] - in[1])); string(out[r]) != want {
				t.Fatalf("run %d, rank %d: got %v, want %v", run, r, out[r], []byte(want))
			}
		}
	}
	x.must(g.Keep(1))
	if got := strings.Join(g.Forms(), " "); got != "each" || x.f.Live["ready graphs"] != 2 {
		t.Errorf("forms %s, %d graphs remain", got, x.f.Live["ready graphs"])
	}
	x.must(captured.Launch(t.Context()))
	x.must(x.w.Sync(t.Context()))
	x.told += 14
	x.must(x.issue()) // a round without a graph advances the counters
	x.must(x.w.Sync(t.Context()))
	x.must(captured.Close())
	x.must(captured.Close())
	x.must(x.w.Close())
}

func floats(v float32) []byte {
	b := make([]byte, 16)
	for i := range 4 {
		copy(b[4*i:], f32bytes(v))
	}
	return b
}

// TestCrowdedGraph checks that flags are not used together with kernels of teams that may occupy the whole device.
// Without flags, or with free multiprocessors, there is a graph for each GPU.
func TestCrowdedGraph(t *testing.T) {
	for _, sms := range []int{1, 50, 100} {
		flagged := sms == 1
		x := newExchanged(t, Options{})
		for _, s := range x.w.(*world).sites {
			s.gpu.SMs = sms
		}
		issue := x.issue
		if sms == 50 {
			x.w.(*world).sites[0].gpu.SMs = 1
			issue = func() error { return errors.Join(x.s[0].Launch(x.neg[0]), x.s[1].Launch(x.neg[1])) }
		}
		x.neg[0].(*launch).member = &member{stream: x.s[0].(*stream), team: &team{}}
		g, err := x.w.Capture(issue)
		x.must(err)
		want := "one each"
		if flagged {
			want = "one"
		}
		if got := strings.Join(g.Forms(), " "); got != want {
			t.Errorf("flags %v: forms %s", flagged, got)
		}
		x.must(g.Launch(t.Context()))
		x.must(x.w.Sync(t.Context()))
		x.must(x.w.Close())
	}
	x := newExchanged(t, Options{Graphs: formEach})
	x.neg[0].(*launch).member = &member{stream: x.s[0].(*stream), team: &team{}}
	if _, err := x.w.Capture(x.issue); !errors.Is(err, device.ErrUnsupported) ||
		!strings.Contains(err.Error(), "one graph over all") {
		t.Errorf("got %v", err)
	}
	x.must(x.w.Close())
}

// TestGraphAsked checks that, while a world records a graph, another world that waits for the devices may query whether
// the first is idle. The answer is that it is not idle, and the recording continues.
func TestGraphAsked(t *testing.T) {
	x := newExchanged(t, Options{})
	asked := 0
	g, err := x.w.Capture(func() error {
		err := x.issue()
		if asked++; x.w.(*world).guard.Rests() {
			t.Error("a world is reported idle while it records")
		}
		return err
	})
	x.must(err)
	x.must(g.Launch(t.Context()))
	x.must(x.w.Sync(t.Context()))
	if !x.w.(*world).guard.Rests() || asked == 0 {
		t.Errorf("asked %d times while recording; idle afterwards: %v", asked, x.w.(*world).guard.Rests())
	}
	x.must(x.w.Close())
}

// told is an observer that lists the marks (begins and ends of commands) that it is called with.
type told struct{ list []string }

func (o *told) Began(rank int, stream string, id, ns int64) {
	o.list = append(o.list, fmt.Sprintf("%d %s begins %d", rank, stream, id))
}

func (o *told) Ended(rank int, stream string, id, ns int64) {
	o.list = append(o.list, fmt.Sprintf("%d %s ends %d", rank, stream, id))
}

// TestGraphMarks checks that an observer is called for the marks within a graph after each launch, in the form that was
// launched. Of consecutive launches, only the marks of the last one are reported. The events are freed.
func TestGraphMarks(t *testing.T) {
	x := newExchanged(t, Options{})
	var o told
	x.w.Observe(&o)
	g, err := x.w.Capture(x.issue)
	x.must(err)
	var want []string
	for i, rank := range []int{0, 1, 0, 1} { // in order of issue
		id := 10*(1+i/2) + rank
		want = append(want, fmt.Sprintf("%d main begins %d", rank, id), fmt.Sprintf("%d main ends %d", rank, id))
	}
	events := 0
	for run := range 4 {
		g.Choose(run % 2)
		o.list = nil
		for range 1 + run/2 {
			x.must(g.Launch(t.Context()))
		}
		if len(o.list) > 0 {
			t.Errorf("run %d: marks reported before its end: %v", run, o.list)
		}
		x.must(x.w.Sync(t.Context()))
		if !slices.Equal(o.list, want) {
			t.Errorf("run %d: reported %v, want %v", run, o.list, want)
		}
		if n := x.f.Live["events"]; run == 1 { // both forms have run
			events = n
		} else if run > 1 && n > events {
			t.Errorf("run %d: there are %d events, before %d", run, n, events)
		}
	}
	o.list = nil
	x.must(x.w.Sync(t.Context()))
	x.must(g.Launch(t.Context()))
	x.must(g.Close())
	x.must(x.w.Sync(t.Context()))
	if len(o.list) > 0 {
		t.Errorf("reported marks without a launch, or of a closed graph: %v", o.list)
	}
	sites := x.w.(*world).sites
	if free := sites[0].clock.Idle() + sites[1].clock.Idle(); free < 12 {
		t.Errorf("%d events with timing are free, an unexpected number", free)
	}
	x.must(x.w.Close())
}

// TestFlagTimeout checks that, when a section of a graph times out waiting for a flag, the world ends with an error
// that names the rank and the mark of the wait.
func TestFlagTimeout(t *testing.T) {
	x := newExchanged(t, Options{Graphs: formEach, TeamTimeout: time.Second})
	g, err := x.w.Capture(x.issue)
	x.must(err)
	x.f.Hasty, x.f.Mute = true, true
	x.must(g.Launch(t.Context()))
	err = x.w.Sync(t.Context())
	var fault *device.Fault
	if !errors.As(err, &fault) || fault.Stream != "graphs" && fault.ID < 20 ||
		!strings.Contains(err.Error(), "gave up waiting for a flag to reach 1") ||
		!strings.Contains(err.Error(), "HOCKET_TEAM_TIMEOUT=10s to wait longer than 1s") {
		t.Fatalf("got %v", err)
	}
	x.must(x.w.Close())
}

// TestFlagAbort checks that kernels of a world's graphs stop waiting when the world ends.
func TestFlagAbort(t *testing.T) {
	x := newExchanged(t, Options{Graphs: formEach})
	g, err := x.w.Capture(x.issue)
	x.must(err)
	x.f.Mute = true
	x.must(g.Launch(t.Context()))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	var late *device.Expired
	if err := x.w.Sync(ctx); !errors.As(err, &late) || len(late.At) == 0 {
		t.Fatalf("got %v", err)
	}
	x.must(x.w.Close())
}

// TestGraphRefused checks that recording a graph in an impossible form returns an error, and that nothing stays
// allocated.
func TestGraphRefused(t *testing.T) {
	for _, call := range []string{"cuStreamBeginCapture_v2", "cuGraphInstantiateWithFlags", "cuGraphLaunch"} {
		x := newExchanged(t, Options{Graphs: formEach})
		x.f.Returns[call] = 1
		g, err := x.w.Capture(x.issue)
		if err == nil {
			err = g.Launch(t.Context())
		}
		if err == nil || !strings.Contains(err.Error(), strings.TrimSuffix(call, "_v2")) {
			t.Errorf("%s: got %v", call, err)
		}
		delete(x.f.Returns, call)
		x.must(x.w.Close())
	}
}

func f32bytes(v float32) []byte {
	return binary.LittleEndian.AppendUint32(nil, math.Float32bits(v))
}
