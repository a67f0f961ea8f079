package exec

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/exec/grace"
	"hocket.example/hocket/internal/exec/resident"
	"hocket.example/hocket/internal/tensor"
)

// tensorsOn returns a machine that counts its worlds, and a set of device tensors on it.
func tensorsOn(mode cpu.Mode) (*storing, *resident.DeviceTensors) {
	m := &storing{Machine: cpu.New(cpu.Options{Mode: mode})}
	return m, resident.NewDeviceTensors(m)
}

// TestDirect checks runs that read x from the devices and leave y there: with single runs, in a batch, and together
// with resident weights. Staging memory is allocated only for blocks that are copied from or to the host.
func TestDirect(t *testing.T) {
	for name, mode := range modes {
		t.Run(name, func(t *testing.T) {
			m, s := tensorsOn(mode)
			prog := loadOn(t, m, chunked(2, ""), Options{})
			w := &stager{World: prog.im.World}
			prog.im.World = w
			in := chunkedInputs(t, 2, 1)
			want := runOnce(t, prog, in)["y"]
			x, y := newDeviceTensor(t, s, prog, "x"), newDeviceTensor(t, s, prog, "y")
			if err := x.Write(t.Context(), in["x"]); err != nil {
				t.Fatal(err)
			}
			const bx, bw, by = 5 * 3 * 4, 4 * 3 * 4, 5 * 4 * 4 // bytes of a block
			weight := map[string]*tensor.Tensor{"w": in["w"]}
			for i, c := range []struct {
				direct  []Args
				weights map[string]*tensor.Tensor
				staged  []int64
			}{
				// the staging buffers suffice
				{[]Args{{DeviceIn: map[string]*resident.DeviceTensor{"x": x}, DeviceOut: map[string]*resident.DeviceTensor{"y": y}}}, nil, nil},
				{nil, nil, nil},
				{[]Args{{DeviceIn: map[string]*resident.DeviceTensor{"x": x}}, {}}, weight, []int64{bx, bx, 0, 0, by, by}},
				{[]Args{{DeviceOut: map[string]*resident.DeviceTensor{"y": y}}, {DeviceOut: map[string]*resident.DeviceTensor{"y": y}}, {DeviceOut: map[string]*resident.DeviceTensor{"y": y}}}, nil, []int64{bx, bx, bw, bw, 0, 0}},
			} {
				w.sizes = nil
				batch := make([]map[string]*tensor.Tensor, max(1, len(c.direct)))
				for k := range batch {
					batch[k] = map[string]*tensor.Tensor{"w": in["w"]}
					if joined(batch, c.direct)[k].DeviceIn == nil {
						batch[k]["x"] = in["x"]
					}
				}
				results, err := prog.RunBatch(t.Context(), joined(batch, c.direct), NewWeights(c.weights))
				if err != nil {
					t.Fatalf("%d: %v", i, err)
				}
				if !slices.Equal(w.sizes, c.staged) {
					t.Errorf("%d: staged for %v, want %v", i, w.sizes, c.staged)
				}
				for k, r := range results {
					got := r.Outputs["y"]
					if left := joined(batch, c.direct)[k].DeviceOut != nil; left != (got == nil) {
						t.Fatalf("%d: y was returned: %v, left on the devices: %v", i, got != nil, left)
					} else if left {
						if got, err = y.Read(t.Context()); err != nil {
							t.Fatal(err)
						}
					}
					if !slices.Equal(got.Data, want.Data) {
						t.Errorf("%d: run %d returns %v, want %v", i, k, floats(got), floats(want))
					}
				}
				y.SetContents(false)
			}
			if err := errors.Join(x.Close(), s.Close()); err != nil {
				t.Error(err)
			}
			if f := prog.binder.frames[0]; f.deviceIn != nil || f.deviceOut != nil || f.in[0] != nil {
				t.Error("the program keeps references to the caller's memory")
			}
			if m.open != 1 {
				t.Errorf("%d worlds are open, want only the program's", m.open)
			}
		})
	}
}

// joined returns the arguments of runs that read batch from host memory, combined with the arguments in more, which may
// be nil.
func joined(batch []map[string]*tensor.Tensor, more []Args) []Args {
	args := Inputs(batch)
	for i, a := range more {
		a.In = args[i].In
		args[i] = a
	}
	return args
}

func runOnce(t *testing.T, p *Program, in map[string]*tensor.Tensor) map[string]*tensor.Tensor {
	t.Helper()
	r, err := p.Run(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	return r.Outputs
}

// newDeviceTensor returns a tensor with the layout of an input or output of a program.
func newDeviceTensor(t *testing.T, s *resident.DeviceTensors, p *Program, name string) *resident.DeviceTensor {
	t.Helper()
	for _, io := range slices.Concat(p.im.Inputs, p.im.Outputs) {
		if io.Name == name {
			d, err := s.New(context.WithoutCancel(t.Context()), p.im.Plan.Ranks, &io)
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
	}
	t.Fatalf("the program has no input or output %s", name)
	return nil
}

// TestTransferFails checks that, when a copy fails or does not end in time, the tensors of its world are lost with an
// error that has the reason, that other tensors can be created, and that no world remains open.
func TestTransferFails(t *testing.T) {
	defer func(was time.Duration) { grace.Transfer = was }(grace.Transfer)
	grace.Transfer = 10 * time.Millisecond
	lost := errors.New("lost")
	for name, c := range map[string]struct {
		spoil func(w *storingWorld)
		want  error
	}{
		"fails":    {func(w *storingWorld) { w.Abort(lost) }, lost},
		"is stuck": {func(w *storingWorld) { w.World = stuck{w.World} }, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, s := tensorsOn(cpu.Concurrent)
				prog := loadOn(t, m, chunked(2, ""), Options{})
				in := chunkedInputs(t, 2, 1)
				x, beside := newDeviceTensor(t, s, prog, "x"), newDeviceTensor(t, s, prog, "x")
				if err := errors.Join(x.Write(t.Context(), in["x"]), beside.Write(t.Context(), in["x"])); err != nil {
					t.Fatal(err)
				}
				c.spoil(m.last())
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
				defer cancel()
				if err := x.Write(ctx, in["x"]); !errors.Is(err, c.want) {
					t.Errorf("a write failed with: %v", err)
				}
				for _, d := range []*resident.DeviceTensor{x, beside} {
					if _, err := d.Read(t.Context()); err == nil {
						t.Error("read from a lost world")
					}
					never := func() error { t.Error("the function is called on a lost tensor"); return nil }
					if err := d.View(t.Context(), never); err == nil || !strings.Contains(err.Error(), "create another") {
						t.Errorf("viewed in a lost world: %v", err)
					}
					if err := d.Fill(t.Context(), never); err == nil || !strings.Contains(err.Error(), "create another") {
						t.Errorf("filled in a lost world: %v", err)
					}
				}
				rest := map[string]*tensor.Tensor{"w": in["w"]}
				direct := []Args{{DeviceIn: map[string]*resident.DeviceTensor{"x": beside}}}
				if _, err := prog.RunBatch(t.Context(), joined([]map[string]*tensor.Tensor{rest}, direct), nil); err == nil || !prog.Usable() {
					t.Errorf("run with a tensor of a lost world: %v, usable %v", err, prog.Usable())
				}
				another := newDeviceTensor(t, s, prog, "x")
				if err := another.Write(t.Context(), in["x"]); err != nil {
					t.Errorf("a new tensor after the loss: %v", err)
				}
				if err := errors.Join(x.Close(), beside.Close(), another.Close(), s.Close()); err != nil {
					t.Error(err)
				}
				if m.open != 1 {
					t.Errorf("%d worlds are open, want only the program's", m.open)
				}
			})
		})
	}
}

// TestDirectLate checks that a run that succeeds after its context has ended leaves its results in device tensors.
func TestDirectLate(t *testing.T) {
	m, s := tensorsOn(cpu.Concurrent)
	prog := loadOn(t, m, chunked(2, ""), Options{Grace: time.Minute})
	in := chunkedInputs(t, 2, 1)
	y := newDeviceTensor(t, s, prog, "y")
	defer s.Close()
	run := func(ctx context.Context) error {
		_, err := prog.RunBatch(ctx, joined([]map[string]*tensor.Tensor{in}, []Args{{DeviceOut: map[string]*resident.DeviceTensor{"y": y}}}), nil)
		return err
	}
	if err := run(t.Context()); err != nil || !y.HasContents() {
		t.Fatalf("%v, has contents %v", err, y.HasContents())
	}
	ctx, cancel := context.WithCancel(t.Context())
	prog.im.World = slow{prog.im.World, ctx, cancel}
	if err := run(ctx); !errors.Is(err, context.Canceled) || !prog.Usable() || !y.HasContents() {
		t.Errorf("%v, usable %v, has contents %v", err, prog.Usable(), y.HasContents())
	}
}

// TestDeviceTensorUnsupported checks that runs on a machine that cannot lend memory copy from device tensors.
func TestDeviceTensorUnsupported(t *testing.T) {
	m, s := tensorsOn(cpu.Concurrent)
	m.lacks = true
	prog := loadOn(t, m, chunked(2, ""), Options{})
	in := chunkedInputs(t, 2, 1)
	y := newDeviceTensor(t, s, prog, "y")
	defer s.Close()
	direct := []Args{{DeviceOut: map[string]*resident.DeviceTensor{"y": y}}}
	if _, err := prog.RunBatch(t.Context(), joined([]map[string]*tensor.Tensor{in}, direct), nil); !errors.Is(err, device.ErrUnsupported) {
		t.Errorf("got %v", err)
	}
	runOnce(t, prog, in)
}

// TestDeviceTensorMemory checks that, if one rank has no memory left, the memory allocated on other ranks is freed.
func TestDeviceTensorMemory(t *testing.T) {
	m, s := tensorsOn(cpu.Concurrent)
	prog := loadOn(t, m, chunked(2, ""), Options{})
	m.fails = 2
	if _, err := s.New(t.Context(), 2, &prog.im.Inputs[0]); !errors.Is(err, device.ErrOutOfMemory) {
		t.Errorf("got %v", err)
	}
	if m.open != 1 {
		t.Errorf("%d worlds are open, want only the program's", m.open)
	}
}

// balky is a world that fails to create streams, or whose streams fail to upload.
type balky struct {
	device.World
	noStream, noUpload bool
}

type balkyDevice struct {
	device.Device
	w *balky
}

type balkyStream struct {
	device.Stream
	w *balky
}

var errBalky = errors.New("balky")

func (w *balky) Device(r int) device.Device { return balkyDevice{w.World.Device(r), w} }

func (d balkyDevice) NewStream(o device.StreamOptions) (device.Stream, error) {
	if d.w.noStream {
		return nil, errBalky
	}
	s, err := d.Device.NewStream(o)
	return balkyStream{s, d.w}, err
}

func (s balkyStream) Upload(dst device.View, src []byte) error {
	if s.w.noUpload {
		return errBalky
	}
	return s.Stream.Upload(dst, src)
}

// TestTransferRefused checks that a copy that cannot begin has no further consequences: the next copy can use the
// streams, and the destination tensor has no contents.
func TestTransferRefused(t *testing.T) {
	m, s := tensorsOn(cpu.Concurrent)
	prog := loadOn(t, m, chunked(2, ""), Options{})
	in := chunkedInputs(t, 2, 1)
	x := newDeviceTensor(t, s, prog, "x")
	defer s.Close()
	b := &balky{World: m.last().World, noStream: true}
	m.last().World = b
	if err := x.Write(t.Context(), in["x"]); !errors.Is(err, errBalky) {
		t.Errorf("without streams: %v", err)
	}
	b.noStream = false
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := x.Write(ctx, in["x"]); err != nil {
		t.Error(err)
	}
	b.noUpload = true
	if err := x.Write(t.Context(), in["x"]); !errors.Is(err, errBalky) || x.HasContents() {
		t.Errorf("without uploads: %v, has contents %v", err, x.HasContents())
	}
	b.noUpload = false
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 {
		if err := x.Write(ended, in["x"]); !errors.Is(err, context.Canceled) {
			t.Fatalf("with a context that has ended: %v", err)
		}
	}
}

// TestPoolEnded checks that the pool detects a world that has ended, and uses another one.
func TestPoolEnded(t *testing.T) {
	m, s := tensorsOn(cpu.Concurrent)
	prog := loadOn(t, m, chunked(2, ""), Options{})
	x := newDeviceTensor(t, s, prog, "x")
	fault := errors.New("a fault")
	m.last().Abort(fault)
	if _, err := s.New(t.Context(), 2, &prog.im.Inputs[0]); !errors.Is(err, fault) {
		t.Errorf("got %v", err)
	}
	if err := newDeviceTensor(t, s, prog, "x").Write(t.Context(), chunkedInputs(t, 2, 1)["x"]); err != nil {
		t.Error(err)
	}
	if _, err := x.Read(t.Context()); err == nil {
		t.Error("read from a world that has ended")
	}
	if err := s.Close(); err != nil || m.open != 1 {
		t.Errorf("%v, %d worlds are open", err, m.open)
	}
}
