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

// earlyLine is a stream of a device, and another of the next one, on a fake.
type earlyLine struct {
	*testing.T
	f       *fakedriver.GPU
	w       *world
	s, far  device.Stream
	l       device.Launch
	v, rows device.View // dense, and one that no copy engine copies well
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

// early counts the launches of issue that may begin early.
func (r *earlyLine) early(issue ...func() error) int {
	r.Helper()
	clear(r.f.Called)
	for _, f := range issue {
		mustOf(r)(f())
	}
	return r.f.Called["cuLaunchKernelEx"]
}

// TestEarly: a kernel begins early behind another kernel of hocket's own, with
// nothing between, and not otherwise.
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
		Want    int // of launches behind it, in order of streams, and in a graph
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
			t.Errorf("%s between two kernels: %d began early, want %d", tc.name, got, tc.Want)
		}
		mustOf(t)(r.w.Sync(t.Context()))
		if tc.name == "a mark" || tc.name == "its end" {
			continue // a graph is recorded of whole commands
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
		if got := r.early(record); got != 2*tc.graph { // as one graph, and as one for each device
			t.Errorf("%s between two kernels of a graph: %d begin early, want twice %d", tc.name, got, tc.graph)
		}
		if got := r.early(r.launch, r.launch); got != 1 {
			t.Errorf("when a graph was recorded %d of two began early, want the second", got)
		}
		if got := r.early(func() error { return g.Launch(t.Context()) }, r.launch, r.launch); got != 1 {
			t.Errorf("behind a graph %d of two began early, want the second", got)
		}
		mustOf(t)(r.w.Sync(t.Context()))
		mustOf(t)(g.Close())
	}
}

// TestEarlyTeams: kernels of a team alone on its devices begin early whatever is
// before them; but not where flags want room on the devices, and then nothing begins
// early behind them either.
func TestEarlyTeams(t *testing.T) {
	r := newEarlyLine(t)
	defer r.close()
	team, err := r.w.Device(0).Prepare(device.Kernel{Op: device.Elementwise{Op: ir.OpNeg}, Ins: []device.View{r.v}, Outs: []device.View{r.v}})
	mustOf(t)(err)
	step := team.(*launch).steps[0].(*kernelStep)
	both := func() error { return errors.Join(r.s.Launch(team), r.launch()) }
	for _, tc := range []struct {
		f           following
		Want, graph int // the graph is recorded as one and as one for each device, with flags
	}{{always, 2, 2}, {atEnd, 0, 0}} {
		step.f = tc.f
		mustOf(t)(r.s.Signal(r.c, 0, 1)) // nothing may follow what is before closely
		if got := r.early(both); got != tc.Want {
			t.Errorf("following %d: a team's kernel and another: %d began early, want %d", tc.f, got, tc.Want)
		}
		mustOf(t)(r.w.Sync(t.Context()))
		if got := r.early(func() error {
			g, err := r.w.Capture(both)
			if err != nil {
				return err
			}
			return g.Close()
		}); got != tc.graph {
			t.Errorf("following %d: in graphs %d begin early, want %d", tc.f, got, tc.graph)
		}
	}
}

// TestNotEarly: nothing begins early in graphs and on devices that cannot have it so.
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
		t.Errorf("%d begin early in graphs of a driver that cannot", got)
	}
	r.w.sites[0].gpu.Early = false
	var err error
	r.l, err = r.w.Device(0).Prepare(device.Kernel{Op: device.Elementwise{Op: ir.OpNeg}, Ins: []device.View{r.v}, Outs: []device.View{r.v}})
	mustOf(t)(err)
	if got := r.early(r.launch, r.launch); got != 0 {
		t.Errorf("%d began early on a device whose kernels do not wait for the one before", got)
	}
}

// TestCloseKernels runs long chains of kernels that read and overwrite what those
// just before them wrote, on one stream and on two in turns, one by one and as
// graphs. They are of integers, where no error is lost.
func TestCloseKernels(t *testing.T) {
	f := fakedriver.New(t, 1)
	closeKernels(t, newMachine(system(f), Options{Kernels: f}), 60, 1<<10)
}

// TestCloseKernelsReal is TestCloseKernels on a GPU, with kernels of one block and of
// thousands.
func TestCloseKernelsReal(t *testing.T) { closeKernels(t, real(t, Options{}), 600, 1<<19) }

func closeKernels(t *testing.T, m device.Machine, count int, most int64) {
	t.Helper()
	const buffers, switching = 5, 7 // so many kernels in a row on one of two streams
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
			at &^= 3 // where wide accesses are possible
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
					t.Errorf("%s on %d streams: got something else", name, streams)
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
