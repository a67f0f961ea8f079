package cuda

import (
	"errors"
	"strings"
	"testing"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/device/cuda/staging"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// slowly is a library of kernels that compiles only when the test permits it.
type slowly struct {
	*fakedriver.GPU
	asked, goOn chan bool
}

func (l *slowly) Steps(t kernels.Target, p kernels.Problem) ([]kernels.Step, error) {
	if p.String() == "sub" {
		l.asked <- true
		<-l.goOn
		if _, err := t.Scratch(64, false); err != nil {
			return nil, err
		}
	}
	return l.GPU.Steps(t, p)
}

// TestCompileAside checks that a world and other worlds accept work while a kernel compiles. A world that is closed
// while a kernel compiles gets neither the kernel nor memory for it.
func TestCompileAside(t *testing.T) {
	for _, ended := range []bool{false, true} {
		lib := &slowly{fakedriver.New(t, 1), make(chan bool), make(chan bool)}
		w, err := newMachine(system(lib.GPU), Options{Kernels: lib}).Open(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		d := w.Device(0)
		mem, err := d.Alloc(64, device.Shared)
		if err != nil {
			t.Fatal(err)
		}
		v := device.View{Mem: mem, DType: ir.F32, Shape: []int64{16}, Strides: []int64{1}}
		made := make(chan error)
		go func() {
			_, err := d.Prepare(device.Kernel{Op: device.Elementwise{Op: ir.OpSub}, Ins: []device.View{v, v}, Outs: []device.View{v}})
			made <- err
		}()
		<-lib.asked
		s, err := d.NewStream(device.StreamOptions{Name: "main"})
		if err == nil {
			err = errors.Join(s.Upload(v, make([]byte, 64)), w.Sync(t.Context()))
		}
		if err != nil {
			t.Fatal(err)
		}
		if ended {
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		}
		lib.goOn <- true
		if err := <-made; (err != nil) != ended || ended && !errors.Is(err, device.ErrAborted) {
			t.Errorf("ended %v: got %v", ended, err)
		}
		if !ended {
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestIssueLock checks that driver calls that may wait for idle devices wait until batches of all worlds are issued
// completely, and that batches wait for these calls. Such calls do not wait for the batch of the same world within
// which they are made.
func TestIssueLock(t *testing.T) {
	f := fakedriver.New(t, 1)
	m := newMachine(system(f), Options{Kernels: f})
	open := func() device.World {
		w, err := m.Open(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	a, b := open(), open()
	inside, leave, alloc := make(chan bool), make(chan bool), make(chan error, 1)
	batch := make(chan error, 1)
	go func() {
		batch <- a.Batch(func() error {
			if _, err := a.Device(0).Alloc(64, device.Private); err != nil {
				return err
			}
			inside <- true
			<-leave
			return nil
		})
	}()
	<-inside
	go func() {
		_, err := b.Device(0).Alloc(64, device.Private)
		alloc <- err
	}()
	select {
	case err := <-alloc:
		t.Errorf("memory was allocated during another world's batch (%v)", err)
	case <-time.After(20 * time.Millisecond):
	}
	leave <- true
	if err := errors.Join(<-batch, <-alloc, a.Close(), b.Close()); err != nil {
		t.Error(err)
	}
}

// TestStage checks that transfers for which buffers were staged allocate no memory.
func TestStage(t *testing.T) {
	f := fakedriver.New(t, 1)
	w, err := newMachine(system(f), Options{Kernels: f}).Open(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	const long = staging.Chunk + 4
	if err := w.Stage([]int64{40, 40, 0, long}, 2); err != nil {
		t.Fatal(err)
	}
	d := w.Device(0)
	mem, err := d.Alloc(long, device.Private)
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.NewStream(device.StreamOptions{Name: "main"})
	if err != nil {
		t.Fatal(err)
	}
	clear(f.Called)
	for _, n := range []int64{40, long, 40, 40, long, 40} {
		v := device.View{Mem: mem, DType: ir.F32, Shape: []int64{n / 4}, Strides: []int64{1}}
		if n == 40 {
			err = s.Upload(v, make([]byte, n))
		} else {
			err = s.Download(make([]byte, n), v)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if n := f.Called["cuMemHostAlloc"]; n > 0 {
		t.Errorf("memory was allocated %d times", n)
	}
	if err := errors.Join(w.Sync(t.Context()), w.Close()); err != nil {
		t.Error(err)
	}
}

// TestNoBuffers checks that waiting for a staging buffer returns an error if transfers fail, and if the context ends
// before the transfers do.
func TestNoBuffers(t *testing.T) {
	for status, want := range map[uintptr]string{700: "CUDA_ERROR_FAKE", nvlib.CUDANotReady: "context deadline exceeded"} {
		f := fakedriver.New(t, 1)
		m := newMachine(system(f), Options{Kernels: f})
		m.sys.Patience = 5 * time.Millisecond
		ctx := newLapsing(t)
		w, err := m.Open(ctx, 1)
		if err != nil {
			t.Fatal(err)
		}
		w.(*world).staging.Bound = 2 * staging.Least
		d := w.Device(0)
		mem, err := d.Alloc(64, device.Private)
		if err != nil {
			t.Fatal(err)
		}
		s, err := d.NewStream(device.StreamOptions{Name: "main"})
		if err != nil {
			t.Fatal(err)
		}
		v := device.View{Mem: mem, DType: ir.F32, Shape: []int64{16}, Strides: []int64{1}}
		f.Mu.Lock()
		f.Returns["cuEventQuery"], f.Returns["cuStreamQuery"] = nvlib.CUDANotReady, status
		f.Mu.Unlock()
		for i := range 3 {
			if i == 2 && status == nvlib.CUDANotReady {
				time.AfterFunc(50*time.Millisecond, ctx.lapse)
			}
			if err == nil {
				err = s.Upload(v, make([]byte, 64))
			}
		}
		if !errors.Is(err, device.ErrAborted) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "stream main") {
			t.Errorf("got %v, want %s", err, want)
		}
		f.Mu.Lock()
		clear(f.Returns)
		f.Mu.Unlock()
		_ = w.Close()
		f.Die()
	}
}
