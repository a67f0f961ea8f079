package cpu

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// index returns the offset of element i of a view, by the definition of strides.
func index(shape, strides []int64, i int64) int64 {
	at := int64(0)
	for a := len(shape) - 1; a >= 0; a-- {
		at += i % shape[a] * strides[a]
		i /= shape[a]
	}
	return at
}

// TestRunsNameEveryElement checks that the functions collapse and runs produce every element of a view, at the offset
// that strides define.
func TestRunsNameEveryElement(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shape := rapid.SliceOfN(rapid.Int64Range(1, 5), 0, 5).Draw(t, "shape")
		strides := rapid.SliceOfN(rapid.Int64Range(0, 30), len(shape), len(shape)).Draw(t, "strides")
		if rapid.Bool().Draw(t, "dense") {
			step := int64(1)
			for a := len(shape) - 1; a >= 0; a-- {
				strides[a] = step
				step *= shape[a]
			}
		}
		r := ref{dims: collapse(shape, strides), n: 1}
		for _, e := range shape {
			r.n *= e
		}
		lo := rapid.Int64Range(0, r.n-1).Draw(t, "lo")
		n := rapid.Int64Range(0, r.n-lo).Draw(t, "n")
		next := int64(0)
		r.runs(lo, n, func(k, at, count, stride int64) {
			if k != next || count < 1 {
				t.Fatalf("piece at %d of %d elements after %d", k, count, next)
			}
			for i := range count {
				if want := index(shape, strides, lo+k+i); at+i*stride != want {
					t.Fatalf("element %d at %d, not %d", lo+k+i, at+i*stride, want)
				}
			}
			next = k + count
		})
		if next != n {
			t.Fatalf("%d elements of %d", next, n)
		}
	})
}

func TestPoisonIsNotANumberAnywhere(t *testing.T) {
	d := &dev{w: newWorld(t.Context(), New(Options{Mode: Scheduled}).(*machine), 1, nil)}
	m := newMemory(d, 33, device.Private)
	clear(m.data)
	m.Poison(3, 27)
	for i, b := range m.data {
		want := poison[i&1]
		if i < 3 || i >= 30 {
			want = 0
		}
		if b != want {
			t.Errorf("byte %d is %#x, want %#x", i, b, want)
		}
	}
	for _, bad := range [][2]int64{{-5, 2}, {40, 3}, {2, -1}, {32, 1 << 62}} {
		m.Poison(bad[0], bad[1])
	}
	m.Poison(0, 32)
	if v := as[float32](m.data[4:8])[0]; v == v {
		t.Errorf("f32: %v", v)
	}
	if v := as[float64](m.data[8:16])[0]; v == v {
		t.Errorf("f64: %v", v)
	}
	for _, dt := range []ir.DType{ir.F16, ir.BF16} {
		var f [1]float32
		if decode(f[:], m.data[2:4], dt); f[0] == f[0] {
			t.Errorf("%s: %v", dt, f[0])
		}
	}
	if v := as[int32](m.data[4:8])[0]; v < 1<<30 {
		t.Errorf("i32: %d", v)
	}
}

// TestGemmBits checks that the bits of a result depend neither on the addresses of operands, nor on the number of
// helper goroutines, nor on the chunks into which rows or columns are split.
func TestGemmBits(t *testing.T) {
	const m, n, d = 130, 137, 211
	data := func(rows, cols int64, skew int64) ref {
		mem := newMemory(&dev{w: &world{m: &machine{}}}, (rows*cols+skew)*4, device.Private)
		r := ref{mem: mem, off: skew * 4, dt: ir.F32}.reshaped([]int64{rows, cols}, []int64{cols, 1})
		x := uint32(rows)
		for i := range as[float32](mem.data[r.off:]) {
			x = x*1664525 + 1013904223
			as[float32](mem.data[r.off:])[i] = float32(int32(x)) / (1 << 31)
		}
		return r
	}
	run := func(workers int, skew, chunk int64) string {
		w := newWorld(t.Context(), New(Options{Workers: workers}).(*machine), 1, nil)
		a, b, out := data(m, d, skew), data(n, d, 3-skew), data(m, n, skew)
		for lo := int64(0); lo < m; lo += chunk {
			for left := int64(0); left < n; left += chunk {
				rows, cols := min(chunk, m-lo), min(chunk, n-left)
				part := func(r ref, row, col, rows, cols int64) ref {
					r.off += (row*r.strides[0] + col) * 4
					return r.reshaped([]int64{rows, cols}, r.strides)
				}
				multiply(gemm{k: &kernel{w: w}, m: rows, n: cols, d: d, a: part(a, lo, 0, rows, d),
					b: part(b, left, 0, cols, d), out: part(out, lo, left, rows, cols)}, dot32)
			}
		}
		return string(out.bytes(0, m*n))
	}
	want := run(-1, 0, n)
	for _, workers := range []int{-1, 4} {
		for skew := range int64(4) {
			for _, chunk := range []int64{7, 64, 100, n} {
				if run(workers, skew, chunk) != want {
					t.Fatalf("%d workers, skew %d, chunks of %d: the result has different bits", workers, skew, chunk)
				}
			}
		}
	}
}

// TestKernelsReadBeforeTheyWrite checks kernels whose operands and results overlap but are not the same tensor.
func TestKernelsReadBeforeTheyWrite(t *testing.T) {
	w, err := New(Options{}).Open(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	d := w.Device(0)
	mem, _ := d.Alloc(1024, device.Private)
	s, _ := d.NewStream(device.StreamOptions{})
	f := as[float32](mem.(*memory).data)
	view := func(at int64, shape, strides []int64) device.View {
		return device.View{Mem: mem, Off: at * 4, DType: ir.F32, Shape: shape, Strides: strides}
	}
	square, turned := view(0, []int64{3, 3}, []int64{3, 1}), view(0, []int64{3, 3}, []int64{1, 3})
	for name, c := range map[string]struct {
		k    device.Kernel
		want []float32
	}{
		"shifted": {device.Kernel{Op: device.Elementwise{Op: ir.OpScale, Numbers: ir.Reals(2)}, Ins: []device.View{view(0, []int64{8}, []int64{1})},
			Outs: []device.View{view(1, []int64{8}, []int64{1})}}, []float32{0, 0, 2, 4, 6, 8, 10, 12, 14}},
		"turned": {device.Kernel{Op: device.Copy{Op: ir.OpCopy}, Ins: []device.View{turned}, Outs: []device.View{square}},
			[]float32{0, 3, 6, 1, 4, 7, 2, 5, 8}},
		"transpose": {device.Kernel{Op: device.Elementwise{Op: ir.OpAdd}, Ins: []device.View{turned, square}, Outs: []device.View{square}},
			[]float32{0, 4, 8, 4, 8, 12, 8, 12, 16}},
		"linear": {device.Kernel{Op: device.Linear{}, Ins: []device.View{square, square}, Outs: []device.View{square}},
			[]float32{5, 14, 23, 14, 50, 86, 23, 86, 149}},
		"sum": {device.Kernel{Op: device.ReduceAxes{Op: ir.OpSum, Axes: []int{1}}, Ins: []device.View{square},
			Outs: []device.View{view(1, []int64{3}, []int64{1})}}, []float32{0, 3, 12, 21, 4, 5, 6, 7, 8}},
	} {
		for i := range f {
			f[i] = float32(i)
		}
		l, err := d.Prepare(c.k)
		if err == nil {
			err = s.Launch(l)
		}
		if err == nil {
			err = w.Sync(t.Context())
		}
		if err != nil {
			t.Fatal(name, err)
		}
		if got := fmt.Sprint(f[:9]); got != fmt.Sprint(c.want) {
			t.Errorf("%s: %s, want %v", name, got, c.want)
		}
	}
}

// TestNothingIsLeftBehind checks that no goroutine remains after a world has ended, in various ways.
func TestNothingIsLeftBehind(t *testing.T) {
	before := runtime.NumGoroutine()
	for i := range 20 {
		w, err := New(Options{Workers: 4}).Open(t.Context(), 8)
		if err != nil {
			t.Fatal(err)
		}
		for r := range 8 {
			c, _ := w.Device(r).NewCounters(1)
			for range 4 {
				s, _ := w.Device(r).NewStream(device.StreamOptions{})
				if err := s.Call(func() { time.Sleep(time.Millisecond) }); err != nil {
					t.Fatal(err)
				}
				if i%2 == 1 {
					_ = s.WaitCounter(c, 0, 1)
				}
			}
		}
		if i%4 < 2 {
			if err := w.Sync(t.Context()); (err != nil) != (i%2 == 1) {
				t.Fatal(err)
			}
		}
		_ = w.Close()
	}
	for range 6000 {
		if runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("%d goroutines before, %d after", before, runtime.NumGoroutine())
}

// TestHelpersAreBounded checks the number of helper goroutines in nested and concurrent loops.
func TestHelpersAreBounded(t *testing.T) {
	w := newWorkers(3)
	var stop atomic.Bool
	var inside, most, sum atomic.Int64
	done := make(chan struct{})
	const callers = 5
	for range callers {
		go func() {
			w.each(200, &stop, func(i int64) {
				n := inside.Add(1)
				for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
				}
				runtime.Gosched()
				sum.Add(i)
				inside.Add(-1)
			})
			done <- struct{}{}
		}()
	}
	for range callers {
		<-done
	}
	if got := sum.Load(); got != callers*199*100 {
		t.Errorf("the indices of all calls add up to %d", got)
	}
	stop.Store(true)
	w.each(10, &stop, func(int64) { t.Error("called after the stop") })
	stop.Store(false)
	if most.Load() > callers+3 {
		t.Errorf("%d goroutines at once for %d callers and 3 helpers", most.Load(), callers)
	}
	defer func() {
		if p := recover(); p != "boom" {
			t.Errorf("recovered %v", p)
		}
		if len(w.free) != 3 {
			t.Errorf("%d of 3 helpers are free after a panic", len(w.free))
		}
	}()
	w.each(100, &stop, func(int64) { panic("boom") })
}

// TestHostMemory checks that the memory of all worlds together is bounded by the host's memory.
func TestHostMemory(t *testing.T) {
	m := New(Options{Host: 1000})
	take := func(bytes int64) (device.World, error) {
		w, err := m.Open(t.Context(), 2)
		if err != nil {
			t.Fatal(err)
		}
		_, err = w.Device(1).Alloc(bytes, device.Private)
		return w, err
	}
	for range 3 { // freed memory can be allocated again
		one, err := take(600)
		if err != nil {
			t.Fatal(err)
		}
		two, err := take(500)
		if !errors.Is(err, device.ErrOutOfMemory) || errors.Is(err, device.ErrTooLarge) ||
			!strings.Contains(err.Error(), "rank 1: out of memory: 500 bytes were requested, but of the 1000") {
			t.Errorf("got %v", err)
		}
		three, err := take(1001)
		if !errors.Is(err, device.ErrOutOfMemory) || !errors.Is(err, device.ErrTooLarge) {
			t.Errorf("allocating more than the host's memory: %v", err)
		}
		four, err := take(400)
		if err != nil {
			t.Error(err)
		}
		if err := errors.Join(one.Close(), two.Close(), three.Close(), four.Close()); err != nil {
			t.Error(err)
		}
	}
	if held := m.(*machine).held.Load(); held != 0 {
		t.Errorf("%d bytes are still counted at the end", held)
	}
}

func TestMemoryHasALimit(t *testing.T) {
	w, err := New(Options{Memory: 1000}).Open(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	d := w.Device(1)
	m, err := d.Alloc(900, device.Private)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Alloc(101, device.Private); err == nil {
		t.Error("1001 bytes of 1000")
	}
	if err := m.Free(); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Alloc(1000, device.Private); err != nil {
		t.Error(err)
	}
}
