package cuda

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/device/cuda/staging"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// faulty opens a world on a fake of two GPUs and has the last rank begin mark 5
// and upload; refused is what the upload returned.
func faulty(t *testing.T, f *fakedriver.GPU, ranks int, before func()) (m *machine, w device.World, refused error) {
	t.Helper()
	m = newMachine(system(f), Options{Kernels: f})
	w, err := m.Open(t.Context(), ranks)
	if err != nil {
		t.Fatal(err)
	}
	s, err := w.Device(ranks - 1).NewStream(device.StreamOptions{Name: "main"})
	if err != nil {
		t.Fatal(err)
	}
	mem, err := w.Device(ranks-1).Alloc(64, device.Shared)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Begin(5); err != nil {
		t.Fatal(err)
	}
	f.Mu.Lock()
	before()
	f.Mu.Unlock()
	return m, w, s.Upload(device.View{Mem: mem, DType: ir.F32, Shape: []int64{16}, Strides: []int64{1}}, make([]byte, 64))
}

// isLost checks that err tells of a lost GPU, with all that there is to say.
func isLost(t *testing.T, err error, words ...string) {
	t.Helper()
	if !errors.Is(err, device.ErrDeviceLost) || errors.Is(err, device.ErrUnsupported) || errors.As(err, new(*device.Fault)) {
		t.Fatalf("got %v", err)
	}
	for _, word := range append(words, "start a new process", "was lost at ") {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q lacks %q", err, word)
		}
	}
}

// TestDeviceLost has work fail in every way that no process survives: the world
// ends, closing it asks the driver for nothing, and no other one opens.
func TestDeviceLost(t *testing.T) {
	for code := range gpu.Fatal {
		f := fakedriver.New(t, 1)
		m, w, err := faulty(t, f, 1, func() { f.Kills["cuStreamQuery"] = uintptr(code) })
		if err != nil {
			t.Fatal(err)
		}
		err = w.Sync(t.Context())
		var fault *device.Fault
		if !errors.As(err, &fault) || fault.Rank != 0 || fault.Stream != "main" || fault.ID != 5 || nvlib.CUDACode(err) != code || !errors.Is(err, device.ErrAborted) {
			t.Fatalf("%d: got %v", code, err)
		}
		f.Vain = nil // of Sync, which met the failure
		if err := w.Close(); err != nil || len(f.Vain) > 0 {
			t.Errorf("%d: closing: %v; calls in vain: %v", code, err, f.Vain)
		}
		for range 2 {
			_, err = m.Open(t.Context(), 1)
			isLost(t, err, "GPU 0, fake", "rank 0, stream main, mark 5: CUDA: cuStreamQuery: ")
			if nvlib.CUDACode(err) != code || len(f.Vain) > 0 {
				t.Errorf("%d: got %v; calls in vain: %v", code, err, f.Vain)
			}
		}
	}
}

// TestPeerLost: of two GPUs the second fails, and the fake's first with it.
func TestPeerLost(t *testing.T) {
	f := fakedriver.New(t, 2)
	m, w, err := faulty(t, f, 2, func() { f.Kills["cuMemcpyAsync"] = 719 })
	var fault *device.Fault
	if !errors.As(err, &fault) || fault.Rank != 1 {
		t.Fatalf("got %v", err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	_, err = m.Open(t.Context(), 2)
	isLost(t, err, "GPU 1, fake", "rank 1, stream main")
	if m.sys.GPUs[0].Lost.Load() != nil {
		t.Error("what the lost GPU's peer says of shared memory was taken for a fault of its own")
	}
	_, err = m.Open(t.Context(), 1)
	isLost(t, err, "GPU 0, fake", "while a world was opened")
}

// illness has GPU 1 of a fake be lost from now on; calls about others' streams return what
// also says.
func illness(t *testing.T, f *fakedriver.GPU, also map[int32]uintptr) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	f.Ills[1] = 700
	maps.Copy(f.Ills, also)
	t.Cleanup(func() { f.Dead = 1 }) // what lay there stays
}

// onlySecond checks that a world ended by a fault of rank 1, that its GPU is lost and
// that the first one, on which other worlds can be opened, is not.
func onlySecond(t *testing.T, m *machine, w device.World, err error) {
	t.Helper()
	var fault *device.Fault
	if !errors.As(err, &fault) || fault.Rank != 1 || nvlib.CUDACode(err) != 700 {
		t.Errorf("got %v", err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	if m.sys.GPUs[0].Lost.Load() != nil || m.sys.GPUs[1].Lost.Load() == nil {
		t.Errorf("lost: %v, %v", m.sys.GPUs[0].Lost.Load(), m.sys.GPUs[1].Lost.Load())
	}
	if w, err = m.Open(t.Context(), 1); err != nil {
		t.Error(err)
		return
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

// TestLostBehindBusy: a GPU is lost for whose work another one waits, which it does for
// ever then.
func TestLostBehindBusy(t *testing.T) {
	f := fakedriver.New(t, 2)
	m := newMachine(system(f), Options{Kernels: f})
	w, s := streamed(t, m, 2, "main")
	must := mustOf(t)
	for r := range 2 {
		mem, err := w.Device(r).Alloc(64, device.Shared)
		must(err)
		must(s[r].Upload(words(mem, 0, 16), make([]byte, 64)))
	}
	illness(t, f, map[int32]uintptr{0: nvlib.CUDANotReady})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	err := w.Sync(ctx)
	f.Mu.Lock()
	delete(f.Ills, 0)
	f.Mu.Unlock()
	onlySecond(t, m, w, err)
}

// TestLostUnseen has a GPU fail without a Sync, or with nothing in flight: what
// meets it first notes it.
func TestLostUnseen(t *testing.T) {
	for _, call := range []string{"cuStreamQuery", "cuStreamDestroy_v2", "cuMemUnmap"} {
		f := fakedriver.New(t, 1)
		m, w, err := faulty(t, f, 1, func() { f.Kills[call] = 700 })
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Errorf("%s: %v", call, err)
		}
		_, err = m.Open(t.Context(), 1)
		isLost(t, err, call[:8])
	}
	f := fakedriver.New(t, 1)
	f.Kills["cuDevicePrimaryCtxRetain"] = 700
	_, err := newMachine(system(f), Options{Kernels: f}).Open(t.Context(), 1)
	isLost(t, err, "GPU 0, fake")
}

// TestLostHandles gives back what lay on a lost GPU, in the open world and after.
func TestLostHandles(t *testing.T) {
	f := fakedriver.New(t, 1)
	_, w, err := faulty(t, f, 1, func() {})
	if err != nil {
		t.Fatal(err)
	}
	big, err := w.Device(0).Alloc(3*gpu.DeviceSlab, device.Private)
	if err != nil {
		t.Fatal(err)
	}
	g, err := w.Capture(func() error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	f.Kills["cuStreamQuery"] = 700
	w.(*world).flight.streams[0].dirty = true
	if err := w.Sync(t.Context()); nvlib.CUDACode(err) != 700 {
		t.Fatalf("got %v", err)
	}
	f.Vain = nil
	if err := errors.Join(big.Free(), g.Close(), w.Close()); err != nil || len(f.Vain) > 0 {
		t.Errorf("got %v; calls in vain: %v", err, f.Vain)
	}
}

// TestDeviceFault has a call fail in ways that say nothing of the device: the
// world ends, gives back all it had, and another one works.
func TestDeviceFault(t *testing.T) {
	for _, code := range []uintptr{1, 2, 400, 701, 713, 720, 801} {
		f := fakedriver.New(t, 2)
		m, w, err := faulty(t, f, 2, func() { f.Returns["cuMemcpyAsync"] = code })
		var fault *device.Fault
		if !errors.As(err, &fault) || fault.Rank != 1 || fault.ID != 5 || !errors.Is(err, device.ErrAborted) || errors.Is(err, device.ErrDeviceLost) {
			t.Fatalf("%d: got %v", code, err)
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		if slices.ContainsFunc(m.sys.GPUs, func(g *gpu.GPU) bool { return g.Lost.Load() != nil }) {
			t.Errorf("%d was taken for the end of a device", code)
		}
		delete(f.Returns, "cuMemcpyAsync")
		if w, err = m.Open(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(w.Sync(t.Context()), w.Close()); err != nil {
			t.Error(err)
		}
	}
}

// TestHang closes a world whose work does not end.
func TestHang(t *testing.T) {
	f := fakedriver.New(t, 1)
	m, w, err := faulty(t, f, 1, func() { f.Returns["cuStreamQuery"] = nvlib.CUDANotReady })
	if err != nil {
		t.Fatal(err)
	}
	m.sys.Patience = 5 * time.Millisecond
	isLost(t, w.Close(), "rank 0, stream main, mark 5: work still ran 5ms after")
	_, err = m.Open(t.Context(), 1)
	isLost(t, err, "work still ran")
	f.Dead = 1 // its memory stays taken
}

// TestLostByLaunch: a GPU that was lost unseen has a graph's launch fail, on whichever of
// the GPUs that is noticed.
func TestLostByLaunch(t *testing.T) {
	for _, form := range []string{formOne, formEach} {
		x := newExchanged(t, Options{Graphs: form})
		g, err := x.w.Capture(x.issue)
		x.must(err)
		x.must(g.Launch(t.Context()))
		illness(t, x.f, nil)
		x.f.Mu.Lock()
		x.f.Returns["cuGraphLaunch"] = 700
		x.f.Mu.Unlock()
		onlySecond(t, x.w.(*world).m, x.w, g.Launch(t.Context()))
	}
}

// TestLostDetour: a GPU that was lost unseen fails a copy to its memory from another's.
func TestLostDetour(t *testing.T) {
	f := fakedriver.New(t, 2)
	f.Reach.Apart = all
	m := newMachine(system(f), Options{Kernels: f})
	w, s := streamed(t, m, 2, "main")
	var v [2]device.View
	for r := range v {
		mem, err := w.Device(r).Alloc(64, device.Shared)
		mustOf(t)(err)
		v[r] = words(mem, 0, 16)
	}
	illness(t, f, nil)
	onlySecond(t, m, w, s[0].Copy(v[1], v[0]))
}

// TestLostBuffers: waiting for a staging buffer returns the loss of a GPU, even if another GPU's transfer is waited
// for first, and does not blame that other GPU.
func TestLostBuffers(t *testing.T) {
	for _, first := range []int{0, 1} {
		f := fakedriver.New(t, 2)
		m := newMachine(system(f), Options{Kernels: f})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		w, err := m.Open(ctx, 2)
		mustOf(t)(err)
		w.(*world).staging.Bound = 2 * staging.Least
		var s [2]device.Stream
		var v [2]device.View
		for r := range v {
			s[r], err = w.Device(r).NewStream(device.StreamOptions{Name: "main"})
			mustOf(t)(err)
			mem, err := w.Device(r).Alloc(64, device.Private)
			mustOf(t)(err)
			v[r] = words(mem, 0, 16)
		}
		for _, r := range []int{first, 1 - first} {
			mustOf(t)(s[r].Upload(v[r], make([]byte, 64)))
		}
		illness(t, f, map[int32]uintptr{0: nvlib.CUDANotReady})
		f.Mu.Lock()
		f.Returns["cuEventQuery"] = nvlib.CUDANotReady
		f.Mu.Unlock()
		err = s[0].Upload(v[0], make([]byte, 64))
		f.Mu.Lock()
		delete(f.Ills, 0)
		delete(f.Returns, "cuEventQuery")
		f.Mu.Unlock()
		onlySecond(t, m, w, err)
	}
}
