package cuda

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/bits"
	"math/rand/v2"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/ir"
)

// earlyLine is a world of two fake GPUs with a stream on each.
type earlyLine struct {
	*testing.T
	f       *fakedriver.GPU
	w       *world
	s, far  device.Stream
	l       device.Launch
	v, rows device.View // v is a dense view; rows is one with gaps, which copy engines copy slowly
	e       device.Event
	c       device.Counters
}

func newEarlyLine(t *testing.T) *earlyLine {
	t.Helper()
	r := &earlyLine{T: t, f: fakedriver.New(t, 2)}
	must := mustOf(t)
	w, s := streamed(t, newMachine(system(r.f), Options{Kernels: r.f}), 2, "main")
	r.w, r.s, r.far = w.(*world), s[0], s[1]
	mem, err := w.Device(0).Alloc(1<<16, device.Shared)
	must(err)
	r.v = device.View{Mem: mem, DType: ir.F32, Shape: []int64{16}, Strides: []int64{1}}
	r.rows = device.View{Mem: mem, Off: 4096, DType: ir.F32, Shape: []int64{4, 4}, Strides: []int64{8, 1}}
	r.l, err = w.Device(0).Prepare(device.Kernel{Op: device.Elementwise{Op: ir.OpNeg}, Ins: []device.View{r.v}, Outs: []device.View{r.v}})
	must(err)
	r.e, err = w.Device(1).NewEvent()
	must(err)
	must(r.far.Record(r.e))
	r.c, err = w.Device(0).NewCounters(1)
	must(err)
	return r
}

func (r *earlyLine) close() {
	mustOf(r)(r.w.Sync(r.Context()))
	mustOf(r)(r.w.Close())
}

func (r *earlyLine) launch() error { return r.s.Launch(r.l) }

// early calls the functions issue, and counts the launches that may start early, by programmatic dependent launch.
func (r *earlyLine) early(issue ...func() error) int {
	r.Helper()
	clear(r.f.Called)
	for _, f := range issue {
		mustOf(r)(f())
	}
	return r.f.Called["cuLaunchKernelEx"]
}

// TestEarly checks when a kernel may start early: directly after another kernel of hocket in the same stream, and in no
// other case.
func TestEarly(t *testing.T) {
	r := newEarlyLine(t)
	defer r.close()
	other := r.v
	other.Off = 1024
	wide, gaps := r.rows, r.rows
	gaps.Off, gaps.Strides = 8192, []int64{16, 2}
	for _, tc := range []struct {
		name    string
		between func() error
		Want    int // number of launches that may start early: Want in streams, graph in a graph
		graph   int
	}{
		{"nothing", func() error { return nil }, 1, 1},
		{"a mark", func() error { return r.s.Begin(1) }, 1, 1},
		{"its end", func() error { return r.s.End(1) }, 1, 1},
		{"another kernel", r.launch, 2, 2},
		{"a copy by a kernel", func() error { return r.s.Copy(gaps, wide) }, 2, 2},
		{"a copy by an engine", func() error { return r.s.Copy(other, r.v) }, 0, 0},
		{"a signal", func() error { return r.s.Signal(r.c, 0, 1) }, 0, 1},
		{"a wait for another device", func() error {
			if err := r.far.Copy(other, r.v); err != nil {
				return err
			}
			if err := r.far.Record(r.e); err != nil {
				return err
			}
			return r.s.Wait(r.e)
		}, 0, 0},
	} {
		issue := []func() error{func() error { return r.s.Copy(other, r.v) }, r.launch, tc.between, r.launch}
		if got := r.early(issue...); got != tc.Want {
			t.Errorf("%s between two kernels: %d kernels may start early, want %d", tc.name, got, tc.Want)
		}
		mustOf(t)(r.w.Sync(t.Context()))
		if tc.name == "a mark" || tc.name == "its end" {
			continue // a graph can contain only commands whose begin and end are both recorded
		}
		var g device.Graph
		record := func() (err error) {
			g, err = r.w.Capture(func() error {
				for _, f := range issue {
					if err := f(); err != nil {
						return err
					}
				}
				return nil
			})
			return err
		}
		if got := r.early(record); got != 2*tc.graph { // recorded twice: as one graph over all devices, and as one per device
			t.Errorf("%s between two kernels of a graph: %d kernels may start early, want twice %d", tc.name, got, tc.graph)
		}
		if got := r.early(r.launch, r.launch); got != 1 {
			t.Errorf("after recording a graph, %d of two kernels may start early, want only the second", got)
		}
		if got := r.early(func() error { return g.Launch(t.Context()) }, r.launch, r.launch); got != 1 {
			t.Errorf("after the launch of a graph, %d of two kernels may start early, want only the second", got)
		}
		mustOf(t)(r.w.Sync(t.Context()))
		mustOf(t)(g.Close())
	}
}

// TestEarlyTeams checks that a kernel of a team that is alone on its devices may start early after any work. It may not
// start early if graphs with flags need space on the devices. The kernel after it may then not start early either.
func TestEarlyTeams(t *testing.T) {
	r := newEarlyLine(t)
	defer r.close()
	team, err := r.w.Device(0).Prepare(device.Kernel{Op: device.Elementwise{Op: ir.OpNeg}, Ins: []device.View{r.v}, Outs: []device.View{r.v}})
	mustOf(t)(err)
	step := team.(*launch).steps[0].(*kernelStep)
	both := func() error { return errors.Join(r.s.Launch(team), r.launch()) }
	for _, tc := range []struct {
		f           following
		Want, graph int // the graph is recorded as one over all devices and, with flags, as one per device
	}{{always, 2, 2}, {atEnd, 0, 0}} {
		step.f = tc.f
		mustOf(t)(r.s.Signal(r.c, 0, 1)) // after a signal no kernel may start early
		if got := r.early(both); got != tc.Want {
			t.Errorf("following %d: a team's kernel and another: %d may start early, want %d", tc.f, got, tc.Want)
		}
		mustOf(t)(r.w.Sync(t.Context()))
		if got := r.early(func() error {
			g, err := r.w.Capture(both)
			if err != nil {
				return err
			}
			return g.Close()
		}); got != tc.graph {
			t.Errorf("following %d: in graphs %d may start early, want %d", tc.f, got, tc.graph)
		}
	}
}

// TestNotEarly checks that no kernel starts early on devices without support for early launches, nor in graphs if
// graphs do not support them.
func TestNotEarly(t *testing.T) {
	r := newEarlyLine(t)
	defer r.close()
	r.w.m.sys.EarlyEdges = false
	if got := r.early(func() error {
		g, err := r.w.Capture(func() error { return errors.Join(r.launch(), r.launch()) })
		if err != nil {
			return err
		}
		return g.Close()
	}); got != 0 {
		t.Errorf("%d kernels may start early in graphs of a driver without support", got)
	}
	r.w.sites[0].gpu.Early = false
	var err error
	r.l, err = r.w.Device(0).Prepare(device.Kernel{Op: device.Elementwise{Op: ir.OpNeg}, Ins: []device.View{r.v}, Outs: []device.View{r.v}})
	mustOf(t)(err)
	if got := r.early(r.launch, r.launch); got != 0 {
		t.Errorf("%d kernels may start early on a device without support", got)
	}
}

// TestCloseKernels executes long chains of kernels that read and overwrite what the previous kernels wrote. The kernels
// run on one stream or on two streams alternately, as single launches or as graphs. The data are integers, so that
// rounding cannot hide an error.
func TestCloseKernels(t *testing.T) {
	f := fakedriver.New(t, 1)
	closeKernels(t, newMachine(system(f), Options{Kernels: f}), 60, 1<<10)
}

// TestCloseKernelsReal is TestCloseKernels on a GPU, with kernels of one block and of thousands of blocks.
func TestCloseKernelsReal(t *testing.T) { closeKernels(t, real(t, Options{}), 600, 1<<19) }

func closeKernels(t *testing.T, m device.Machine, count int, most int64) {
	t.Helper()
	const buffers, switching = 5, 7 // the stream changes after every 7 kernels
	must := mustOf(t)
	w, s := streamed(t, m, 1, "main")
	d := w.Device(0)
	side, err := d.NewStream(device.StreamOptions{Name: "side"})
	must(err)
	s = append(s, side)
	e, err := d.NewEvent()
	must(err)
	mem, err := d.Alloc(4*buffers*most, device.Shared)
	must(err)
	rng := rand.New(rand.NewPCG(1, uint64(count)))
	values := make([]int32, buffers*most)
	for i := range values {
		values[i] = rng.Int32()
	}
	before := littleEndian(values)
	view := func(buffer int, rows, n int64) (device.View, func(i int64) *int32) {
		at := rng.Int64N(most - 2*rows*n + 1)
		if rng.IntN(2) == 0 {
			at &^= 3 // aligned for wide accesses
		}
		at += int64(buffer) * most
		pitch := n + n*rng.Int64N(2)
		return device.View{Mem: mem, DType: ir.I32, Off: 4 * at, Shape: []int64{rows, n}, Strides: []int64{pitch, 1}},
			func(i int64) *int32 { return &values[at+i/n*pitch+i%n] }
	}
	var launches []device.Launch
	for range count {
		rows, n := int64(1+rng.IntN(4)), int64(1)<<rng.IntN(bits.Len64(uint64(most))-3)
		n = max(1, n-int64(rng.IntN(3)))
		b := rng.Perm(buffers)
		x, xAt := view(b[0], rows, n)
		y, yAt := view(b[1], rows, n)
		z, zAt := view(b[2], rows, n)
		op := ir.OpAdd
		if rng.IntN(2) == 0 {
			op = ir.OpSub
		}
		l, err := d.Prepare(device.Kernel{Op: device.Elementwise{Op: op}, Ins: []device.View{x, y}, Outs: []device.View{z}})
		must(err)
		launches = append(launches, l)
		for i := range rows * n {
			if *zAt(i) = *xAt(i) + *yAt(i); op == ir.OpSub {
				*zAt(i) = *xAt(i) - *yAt(i)
			}
		}
	}
	want := littleEndian(values)
	all := device.View{Mem: mem, DType: ir.I32, Shape: []int64{buffers * most}, Strides: []int64{1}}
	for _, streams := range []int{1, 2} {
		issue := func() error {
			at := 0
			for i, l := range launches {
				if next := i / switching % streams; next != at {
					if err := errors.Join(s[at].Record(e), s[next].Wait(e)); err != nil {
						return err
					}
					at = next
				}
				if err := s[at].Launch(l); err != nil {
					return err
				}
			}
			return nil
		}
		g, err := w.Capture(issue)
		must(err)
		for name, run := range map[string]func() error{"one by one": issue, "as a graph": func() error { return g.Launch(t.Context()) }} {
			for range 3 {
				must(s[0].Upload(all, before))
				must(w.Sync(t.Context()))
				must(run())
				must(w.Sync(t.Context()))
				got := make([]byte, len(want))
				must(s[0].Download(got, all))
				must(w.Sync(t.Context()))
				if !bytes.Equal(got, want) {
					t.Errorf("%s on %d streams: wrong result", name, streams)
				}
			}
		}
		must(g.Close())
	}
	must(w.Close())
}

func littleEndian(values []int32) []byte {
	b := make([]byte, 0, 4*len(values))
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, uint32(v))
	}
	return b
}
