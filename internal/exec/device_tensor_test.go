package exec

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/tensor"
)

// tensorsOn returns a set of device tensors whose worlds are counted.
func tensorsOn(mode cpu.Mode) (*storing, *DeviceTensors) {
	m := &storing{Machine: cpu.New(cpu.Options{Mode: mode})}
	return m, NewDeviceTensors(m)
}

// TestDirect: a plan's runs take x from the devices and leave y there, call by call, in a
// batch whose runs follow each other and beside what lasts; nothing is staged for what is
// not copied from or to the host.
func TestDirect(t *testing.T) {
	for name, mode := range modes {
		t.Run(name, func(t *testing.T) {
			m, s := tensorsOn(mode)
			prog := loadOn(t, m, chunked(2, ""), Options{})
			w := &stager{World: prog.world}
			prog.world = w
			in := chunkedInputs(t, 2, 1)
			want := runOnce(t, prog, in)["y"]
			x, y := newDeviceTensor(t, s, prog, "x"), newDeviceTensor(t, s, prog, "y")
			if err := x.Write(t.Context(), in["x"]); err != nil {
				t.Fatal(err)
			}
			const bx, bw, by = 5 * 3 * 4, 4 * 3 * 4, 5 * 4 * 4 // bytes of a block
			weight := map[string]*tensor.Tensor{"w": in["w"]}
			for i, c := range []struct {
				direct  []Direct
				weights map[string]*tensor.Tensor
				staged  []int64
			}{
				{[]Direct{{In: map[string]*DeviceTensor{"x": x}, Out: map[string]*DeviceTensor{"y": y}}}, nil, nil}, // there is enough
				{nil, nil, nil},
				{[]Direct{{In: map[string]*DeviceTensor{"x": x}}, {}}, weight, []int64{bx, bx, 0, 0, by, by}},
				{[]Direct{{Out: map[string]*DeviceTensor{"y": y}}, {Out: map[string]*DeviceTensor{"y": y}}, {Out: map[string]*DeviceTensor{"y": y}}}, nil, []int64{bx, bx, bw, bw, 0, 0}},
			} {
				w.sizes = nil
				batch := make([]map[string]*tensor.Tensor, max(1, len(c.direct)))
				for k := range batch {
					batch[k] = map[string]*tensor.Tensor{"w": in["w"]}
					if directOf(c.direct, k).In == nil {
						batch[k]["x"] = in["x"]
					}
				}
				results, err := prog.RunBatchDirect(t.Context(), batch, c.direct, c.weights)
				if err != nil {
					t.Fatalf("%d: %v", i, err)
				}
				if !slices.Equal(w.sizes, c.staged) {
					t.Errorf("%d: staged for %v, want %v", i, w.sizes, c.staged)
				}
				for k, r := range results {
					got := r.Outputs["y"]
					if left := directOf(c.direct, k).Out != nil; left != (got == nil) {
						t.Fatalf("%d: y is there: %v, left on the devices: %v", i, got != nil, left)
					} else if left {
						if got, err = y.Read(t.Context()); err != nil {
							t.Fatal(err)
						}
					}
					if !slices.Equal(got.Data, want.Data) {
						t.Errorf("%d: run %d gives %v, want %v", i, k, floats(got), floats(want))
					}
				}
				y.setContents(false)
			}
			if err := errors.Join(x.Close(), s.Close()); err != nil {
				t.Error(err)
			}
			if f := prog.frames[0]; f.direct.in != nil || f.direct.out != nil || f.in[0] != nil || f.out[0].spare != nil {
				t.Error("the program keeps what is the caller's")
			}
			if m.open != 1 || len(s.all) != 0 {
				t.Errorf("%d worlds are open, want the program's, and %d tensors", m.open, len(s.all))
			}
		})
	}
}

func runOnce(t *testing.T, p *Program, in map[string]*tensor.Tensor) map[string]*tensor.Tensor {
	t.Helper()
	r, err := p.Run(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	return r.Outputs
}

// newDeviceTensor makes one that lies as an input or output of a program does.
func newDeviceTensor(t *testing.T, s *DeviceTensors, p *Program, name string) *DeviceTensor {
	t.Helper()
	for _, io := range slices.Concat(p.inputs, p.outputs) {
		if io.Name == name {
			d, err := s.New(context.WithoutCancel(t.Context()), p.plan.Ranks, &io)
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
	}
	t.Fatalf("there is no %s", name)
	return nil
}

// TestTransferFails: when a copy fails, or does not end in time, the tensors of its world
// are lost, with an error that says why; others can be made, and nothing is left open.
func TestTransferFails(t *testing.T) {
	defer func(was time.Duration) { transferGrace = was }(transferGrace)
	transferGrace = 10 * time.Millisecond
	lost := errors.New("lost")
	for name, c := range map[string]struct {
		spoil func(w *lenderWorld)
		want  error
	}{
		"fails":    {func(w *lenderWorld) { w.Abort(lost) }, lost},
		"is stuck": {func(w *lenderWorld) { w.World = stuck{w.World} }, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			m, s := tensorsOn(cpu.Concurrent)
			prog := loadOn(t, m, chunked(2, ""), Options{})
			in := chunkedInputs(t, 2, 1)
			x, beside := newDeviceTensor(t, s, prog, "x"), newDeviceTensor(t, s, prog, "x")
			if err := errors.Join(x.Write(t.Context(), in["x"]), beside.Write(t.Context(), in["x"])); err != nil {
				t.Fatal(err)
			}
			c.spoil(x.loan.world)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
			defer cancel()
			if err := x.Write(ctx, in["x"]); !errors.Is(err, c.want) {
				t.Errorf("a write that fails: %v", err)
			}
			for _, d := range []*DeviceTensor{x, beside} {
				if _, err := d.Read(t.Context()); err == nil {
					t.Error("read from a world that is lost")
				}
				never := func() error { t.Error("others are called"); return nil }
				if err := d.View(t.Context(), never); err == nil || !strings.Contains(err.Error(), "make another") {
					t.Errorf("viewed in a world that is lost: %v", err)
				}
				if err := d.Fill(t.Context(), never); err == nil || !strings.Contains(err.Error(), "make another") {
					t.Errorf("filled in a world that is lost: %v", err)
				}
			}
			rest := map[string]*tensor.Tensor{"w": in["w"]}
			direct := []Direct{{In: map[string]*DeviceTensor{"x": beside}}}
			if _, err := prog.RunBatchDirect(t.Context(), []map[string]*tensor.Tensor{rest}, direct, nil); err == nil || !prog.Usable() {
				t.Errorf("run with a tensor of a world that is lost: %v, usable %v", err, prog.Usable())
			}
			another := newDeviceTensor(t, s, prog, "x")
			if err := another.Write(t.Context(), in["x"]); err != nil {
				t.Errorf("another: %v", err)
			}
			if err := errors.Join(x.Close(), beside.Close(), another.Close(), s.Close()); err != nil {
				t.Error(err)
			}
			if m.open != 1 || len(s.lender.worlds) != 0 {
				t.Errorf("%d worlds are open, %d the lender's", m.open, len(s.lender.worlds))
			}
		})
	}
}

// TestDirectLate: a run that ends well, but not before its context, leaves nothing behind.
func TestDirectLate(t *testing.T) {
	m, s := tensorsOn(cpu.Concurrent)
	prog := loadOn(t, m, chunked(2, ""), Options{Grace: time.Minute})
	in := chunkedInputs(t, 2, 1)
	y := newDeviceTensor(t, s, prog, "y")
	defer s.Close()
	run := func(ctx context.Context) error {
		_, err := prog.RunBatchDirect(ctx, []map[string]*tensor.Tensor{in}, []Direct{{Out: map[string]*DeviceTensor{"y": y}}}, nil)
		return err
	}
	if err := run(t.Context()); err != nil || !y.hasContents() {
		t.Fatalf("%v, has contents %v", err, y.hasContents())
	}
	ctx, cancel := context.WithCancel(t.Context())
	prog.world = slow{prog.world, ctx, cancel}
	if err := run(ctx); !errors.Is(err, context.Canceled) || !prog.Usable() || y.hasContents() {
		t.Errorf("%v, usable %v, has contents %v", err, prog.Usable(), y.hasContents())
	}
}

// TestDeviceTensorUnsupported: a machine whose devices cannot borrow runs as it did.
func TestDeviceTensorUnsupported(t *testing.T) {
	m, s := tensorsOn(cpu.Concurrent)
	m.lacks = true
	prog := loadOn(t, m, chunked(2, ""), Options{})
	in := chunkedInputs(t, 2, 1)
	y := newDeviceTensor(t, s, prog, "y")
	defer s.Close()
	direct := []Direct{{Out: map[string]*DeviceTensor{"y": y}}}
	if _, err := prog.RunBatchDirect(t.Context(), []map[string]*tensor.Tensor{in}, direct, nil); !errors.Is(err, device.ErrUnsupported) {
		t.Errorf("got %v", err)
	}
	runOnce(t, prog, in)
}

// TestDeviceTensorMemory: where a rank has none left, what others had taken goes back.
func TestDeviceTensorMemory(t *testing.T) {
	m, s := tensorsOn(cpu.Concurrent)
	prog := loadOn(t, m, chunked(2, ""), Options{})
	m.fails = 2
	if _, err := s.New(t.Context(), 2, &prog.inputs[0]); !errors.Is(err, device.ErrOutOfMemory) {
		t.Errorf("got %v", err)
	}
	if m.open != 1 {
		t.Errorf("%d worlds are open, want the program's", m.open)
	}
}

// TestHoldOrder: uses begin in the order that they came, but for those that have nothing to
// do with each other; who gives up lets on who waited behind it.
func TestHoldOrder(t *testing.T) {
	_, s := tensorsOn(cpu.Concurrent)
	prog := loadOn(t, s.lender.m, chunked(2, ""), Options{})
	a, b := newDeviceTensor(t, s, prog, "x"), newDeviceTensor(t, s, prog, "y")
	defer s.Close()
	add := func(reads, writes []*DeviceTensor) *use {
		u := &use{reads, writes, make(chan struct{})}
		s.join(u)
		return u
	}
	on := func(d ...*DeviceTensor) []*DeviceTensor { return d }
	r1, r2 := add(on(a), nil), add(on(a), nil)
	w := add(on(b), on(a))
	r3 := add(on(a), nil) // behind the write
	r4 := add(on(b), nil) // which only reads b
	w2 := add(nil, on(b)) // behind both
	begun := func(want ...bool) {
		t.Helper()
		var got []bool
		for _, u := range []*use{r1, r2, w, r3, r4, w2} {
			got = append(got, u.hasBegun())
		}
		if !slices.Equal(got, want) {
			t.Errorf("begun are %v, want %v", got, want)
		}
	}
	begun(true, true, false, false, true, false)
	s.leave(r1)
	begun(true, true, false, false, true, false)
	s.leave(w) // gives up
	begun(true, true, false, true, true, false)
	s.leave(r4)
	begun(true, true, false, true, true, true)
	for _, u := range []*use{r2, r3, w2} {
		s.leave(u)
	}
	ended, cancel := context.WithCancel(t.Context())
	release, err := s.Hold(ended, nil, on(a))
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := s.Hold(ended, on(a), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	release()
	if len(s.uses) != 0 {
		t.Errorf("%d uses are left", len(s.uses))
	}
}

// balky is a world that lacks streams, or whose streams upload nothing.
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

// TestTransferRefused: what a copy cannot begin with costs nothing but what it says: the
// next has its streams, and what was to be written holds nothing.
func TestTransferRefused(t *testing.T) {
	m, s := tensorsOn(cpu.Concurrent)
	prog := loadOn(t, m, chunked(2, ""), Options{})
	in := chunkedInputs(t, 2, 1)
	x := newDeviceTensor(t, s, prog, "x")
	defer s.Close()
	b := &balky{World: x.loan.world.World, noStream: true}
	x.loan.world.World = b
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
	if err := x.Write(t.Context(), in["x"]); !errors.Is(err, errBalky) || x.hasContents() {
		t.Errorf("without uploads: %v, has contents %v", err, x.hasContents())
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

// TestTransferHolds: a tensor that is written, or waits for that, is nobody else's.
func TestTransferHolds(t *testing.T) {
	m, s := tensorsOn(cpu.Concurrent)
	prog := loadOn(t, m, chunked(2, ""), Options{})
	x := newDeviceTensor(t, s, prog, "x")
	defer s.Close()
	in := chunkedInputs(t, 2, 1)["x"]
	release, err := s.Hold(t.Context(), nil, []*DeviceTensor{x})
	if err != nil {
		t.Fatal(err)
	}
	soon := func() context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	if err := x.Write(soon(), in); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("beside another writer: %v", err)
	}
	release()
	x.loan.world.busy <- struct{}{} // another copy goes on
	written := make(chan error)
	go func() { written <- x.Write(t.Context(), in) }()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		s.mu.Lock()
		n := len(s.uses)
		s.mu.Unlock()
		if n > 0 || time.Now().After(deadline) {
			break
		}
	}
	if _, err := s.Hold(soon(), []*DeviceTensor{x}, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while it is written: %v", err)
	}
	<-x.loan.world.busy
	if err := <-written; err != nil {
		t.Error(err)
	}
}

// TestLenderEnded: a world that has ended is found out, and another one taken.
func TestLenderEnded(t *testing.T) {
	m, s := tensorsOn(cpu.Concurrent)
	prog := loadOn(t, m, chunked(2, ""), Options{})
	x := newDeviceTensor(t, s, prog, "x")
	fault := errors.New("a fault")
	x.loan.world.Abort(fault)
	if _, err := s.New(t.Context(), 2, &prog.inputs[0]); !errors.Is(err, fault) {
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
