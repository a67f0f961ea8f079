package devicetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// patience is the time limit of every wait in the suite, much longer than any test takes.
const patience = 30 * time.Second

// rig is a machine under test together with an open world.
type rig struct {
	*testing.T
	m    device.Machine
	w    device.World
	main map[int]device.Stream
	// beside reports that other tests run concurrently.
	beside bool
}

// open opens a world of ranks, or skips the test if the machine has fewer ranks.
func (r *rig) open(ranks int) {
	r.Helper()
	if most := r.m.Caps().MaxRanks; most < ranks {
		r.Skipf("the test needs %d ranks, but the %s machine has %d", ranks, r.m.Name(), most)
	}
	w, err := r.m.Open(r.Context(), ranks)
	r.must(err)
	r.w, r.main = w, map[int]device.Stream{}
	r.Cleanup(func() { _ = w.Close() })
}

// some returns n, or the largest number of ranks if that is smaller.
func (r *rig) some(n int) int { return min(n, r.m.Caps().MaxRanks) }

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// refused fails unless err is an error.
func (r *rig) refused(what string, err error) {
	r.Helper()
	if err == nil {
		r.Errorf("%s: no error", what)
	}
}

// unsupported checks that the error of an operation that the machine does not support wraps ErrUnsupported.
func (r *rig) unsupported(what string, err error) {
	r.Helper()
	if !errors.Is(err, device.ErrUnsupported) {
		r.Errorf("%s: %v", what, err)
	}
}

// sub runs a subtest in the same world.
func (r *rig) sub(name string, f func(*rig)) {
	r.Run(name, func(t *testing.T) {
		f(&rig{T: t, m: r.m, w: r.w, main: r.main, beside: r.beside})
	})
}

// dtypes returns the types with which the machine computes; allTypes also includes the types that it can only move.
func (r *rig) dtypes() []ir.DType   { return slices.DeleteFunc(r.allTypes(), ir.DType.IsFloat8) }
func (r *rig) allTypes() []ir.DType { return slices.Clone(r.m.Caps().DTypes) }

func (r *rig) alloc(rank int, bytes int64, kind device.MemKind) device.Memory {
	r.Helper()
	m, err := r.w.Device(rank).Alloc(bytes, kind)
	r.must(err)
	return m
}

func (r *rig) stream(rank int, name string) device.Stream {
	r.Helper()
	s, err := r.w.Device(rank).NewStream(device.StreamOptions{Name: name})
	r.must(err)
	return s
}

// mainOf returns the rank's main stream, the same at each call.
func (r *rig) mainOf(rank int) device.Stream {
	r.Helper()
	if r.main[rank] == nil {
		r.main[rank] = r.stream(rank, "main")
	}
	return r.main[rank]
}

func (r *rig) event(rank int) device.Event {
	r.Helper()
	e, err := r.w.Device(rank).NewEvent()
	r.must(err)
	return e
}

func (r *rig) counters(rank, n int) device.Counters {
	r.Helper()
	c, err := r.w.Device(rank).NewCounters(n)
	r.must(err)
	return c
}

// sync waits for all work, and fails the test if the wait takes too long.
func (r *rig) sync() {
	r.Helper()
	r.must(r.syncs())
}

func (r *rig) syncs() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return r.w.Sync(ctx)
}

// launch prepares k on the rank and launches it on s; it skips the test if the machine does not support k.
func (r *rig) launch(s device.Stream, rank int, k device.Kernel) {
	r.Helper()
	l, err := r.w.Device(rank).Prepare(k)
	if errors.Is(err, device.ErrUnsupported) {
		r.Skip(err)
	}
	r.must(err)
	r.must(s.Launch(l))
}

// host is a tensor of the suite: row-major elements that dt can represent exactly.
type host struct {
	dt    ir.DType
	shape []int64
	vals  []float64
}

func elements(shape []int64) int64 {
	n := int64(1)
	for _, e := range shape {
		n *= e
	}
	return n
}

// random draws values that dt can represent: about 40 quarters around 0, or integers.
func random(rng *rand.Rand, dt ir.DType, shape ...int64) host {
	h := host{dt, shape, make([]float64, elements(shape))}
	for i := range h.vals {
		h.vals[i] = float64(rng.IntN(41) - 20)
		if !dt.IsInt() {
			h.vals[i] = tensor.Round(dt, h.vals[i]/4+rng.NormFloat64()/64)
		}
	}
	return h
}

// signs draws the values -1, 0 and 1.
func signs(rng *rand.Rand, dt ir.DType, shape ...int64) host {
	h := host{dt, shape, make([]float64, elements(shape))}
	for i := range h.vals {
		h.vals[i] = float64(rng.IntN(3) - 1)
	}
	return h
}

func given(dt ir.DType, shape []int64, vals ...float64) host { return host{dt, shape, vals} }

func (h host) bytes() []byte {
	b := make([]byte, int64(len(h.vals))*h.dt.Size())
	tensor.FromFloat64(b, h.vals, h.dt)
	return b
}

// layout computes the strides, in elements, and the offset of a shape in memory.
type layout struct {
	name string
	lay  func(shape []int64) (strides []int64, off int64)
}

// layouts holds a dense layout, a layout with gaps between rows, and a layout with the axes reversed.
var layouts = []layout{
	{"dense", func(shape []int64) ([]int64, int64) { return rowMajor(shape, 0), 0 }},
	{"gaps", func(shape []int64) ([]int64, int64) { return rowMajor(shape, 3), 5 }},
	{"reversed", func(shape []int64) ([]int64, int64) {
		back := slices.Clone(shape)
		slices.Reverse(back)
		strides := rowMajor(back, 1)
		slices.Reverse(strides)
		return strides, 1
	}},
}

// rowMajor returns strides with gap unused elements after each innermost row.
func rowMajor(shape []int64, gap int64) []int64 {
	strides := make([]int64, len(shape))
	step := int64(1)
	for i := len(shape) - 1; i >= 0; i-- {
		strides[i] = step
		step *= max(shape[i], 1)
		if i == len(shape)-1 {
			step += gap
		}
	}
	return strides
}

// room returns a view of the shape in separate memory.
func (r *rig) room(rank int, kind device.MemKind, l layout, dt ir.DType, shape []int64) device.View {
	r.Helper()
	strides, off := l.lay(shape)
	last := off
	for i, e := range shape {
		last += max(e-1, 0) * strides[i]
	}
	m := r.alloc(rank, (last+1)*dt.Size(), kind)
	return device.View{Mem: m, Off: off * dt.Size(), DType: dt, Shape: shape, Strides: strides}
}

// put returns a view with the contents of h, dense unless a layout is given.
func (r *rig) put(rank int, h host, l ...layout) device.View {
	r.Helper()
	v := r.room(rank, device.Shared, append(l, layouts[0])[0], h.dt, h.shape)
	r.must(r.mainOf(rank).Upload(v, h.bytes()))
	return v
}

// empty returns an uninitialised dense view.
func (r *rig) empty(rank int, dt ir.DType, shape ...int64) device.View {
	r.Helper()
	return r.room(rank, device.Shared, layouts[0], dt, shape)
}

// read is a download whose values are not yet available.
type read struct {
	dt ir.DType
	b  []byte
}

func (r *rig) get(s device.Stream, v device.View) read {
	r.Helper()
	b := make([]byte, v.Elements()*v.DType.Size())
	r.must(s.Download(b, v))
	return read{v.DType, b}
}

// vals returns the downloaded values; it must be called after a sync.
func (d read) vals() []float64 {
	v := make([]float64, int64(len(d.b))/d.dt.Size())
	tensor.ToFloat64(v, d.b, d.dt)
	return v
}

// contents waits for all work and returns the view's elements.
func (r *rig) contents(rank int, v device.View) []float64 {
	r.Helper()
	d := r.get(r.mainOf(rank), v)
	r.sync()
	return d.vals()
}

// equal compares exactly; NaN equals NaN.
func (r *rig) equal(what string, got, want []float64) {
	r.Helper()
	r.near(what, got, want, nil)
}

// near checks that corresponding elements differ at most by slack.
func (r *rig) near(what string, got, want, slack []float64) {
	r.Helper()
	if len(got) != len(want) {
		r.Errorf("%s: %d elements, want %d", what, len(got), len(want))
		return
	}
	for i := range want {
		bound := 0.0
		if slack != nil {
			bound = slack[i]
		}
		off := got[i] - want[i]
		same := got[i] == want[i] || got[i] != got[i] && want[i] != want[i]
		if !same && !(-bound <= off && off <= bound) {
			r.Errorf("%s: element %d is %v, want %v ± %g", what, i, got[i], want[i], bound)
			return
		}
	}
}

func seeded(words ...any) *rand.Rand {
	var seed uint64
	for _, b := range []byte(fmt.Sprint(words...)) {
		seed = seed*1099511628211 + uint64(b)
	}
	return rand.New(rand.NewPCG(seed, 1))
}
