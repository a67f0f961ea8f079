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

// faulty opens a world on a fake driver with two GPUs. The last rank records the begin of command 5 and uploads; the
// result refused is the error of the upload.
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

// isLost checks that err reports a lost GPU, with all details.
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

// TestDeviceLost makes work fail with every fatal status. The world must end, closing it must make no driver calls, and
// no other world can open.
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
		f.Vain = nil // forget the calls of Sync, which found the failure
		if err := w.Close(); err != nil || len(f.Vain) > 0 {
			t.Errorf("status %d: closing: %v; driver calls after the loss: %v", code, err, f.Vain)
		}
		for range 2 {
			_, err = m.Open(t.Context(), 1)
			isLost(t, err, "GPU 0, fake", "rank 0, stream main, mark 5: CUDA: cuStreamQuery: ")
			if nvlib.CUDACode(err) != code || len(f.Vain) > 0 {
				t.Errorf("status %d: got %v; driver calls after the loss: %v", code, err, f.Vain)
			}
		}
	}
}

// TestPeerLost checks a fault on the second of two GPUs, which in the fake driver also affects the first one.
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
		t.Error("an error of the lost GPU's peer about shared memory was reported as a fault of the peer")
	}
	_, err = m.Open(t.Context(), 1)
	isLost(t, err, "GPU 0, fake", "while a world was opened")
}

// illness makes calls for GPU 1 of a fake fail from now on, as if it were lost. Calls for streams of the GPUs in also
// return the statuses given there.
func illness(t *testing.T, f *fakedriver.GPU, also map[int32]uintptr) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	f.Ills[1] = 700
	maps.Copy(f.Ills, also)
	t.Cleanup(func() { f.Dead = 1 }) // its memory is not freed
}

// onlySecond checks that a fault of rank 1 ended the world and that this rank's GPU is lost. The first GPU must not be
// lost, and other worlds can be opened on it.
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

// TestLostBehindBusy checks that the loss of a GPU is found while another GPU waits for its work forever.
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

// TestLostUnseen makes a GPU fail while no Sync is called, or with nothing in flight. The first operation that uses the
// GPU reports the loss.
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

// TestLostHandles checks that memory of a lost GPU can be freed, in the open world and afterwards.
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
		t.Errorf("got %v; driver calls after the loss: %v", err, f.Vain)
	}
}

// TestDeviceFault makes a call fail with a status that is not fatal. The world ends and frees everything, and another
// world can be used.
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
			t.Errorf("status %d was treated as fatal", code)
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

// TestHang closes a world whose work on the devices does not end.
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
	f.Dead = 1 // its memory is not freed
}

// TestLostByLaunch checks that the launch of a graph fails if one of its GPUs was lost and no call has reported it yet,
// whichever GPU reports it.
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

// TestLostDetour checks that a copy fails if it goes to the memory of a GPU whose loss no call has reported yet.
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

// TestLostBuffers checks that waiting for a staging buffer returns the loss of a GPU, even if another GPU's transfer is
// waited for first, and does not report that other GPU as lost.
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
