package exec

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
)

// ErrClosed is wrapped by what is returned about something that was closed.
var ErrClosed = errors.New("closed")

// DeviceTensors are the tensors that callers keep on a machine's devices.
type DeviceTensors struct {
	lender *lender

	mu     sync.Mutex
	all    map[*DeviceTensor]bool
	uses   []*use // in the order that they came
	closed bool
}

// NewDeviceTensors returns an empty set.
func NewDeviceTensors(m device.Machine) *DeviceTensors {
	return &DeviceTensors{lender: newLender(m), all: map[*DeviceTensor]bool{}}
}

// DeviceTensor is a tensor in blocks, a rank each, laid out as an input or output of a
// plan. Runs take it and leave their results there without a way over the host.
//
// Many may read one at a time, or one write it: its methods and, for runs, Hold wait for
// who came before.
type DeviceTensor struct {
	of   *DeviceTensors
	io   plan.IO // without absent blocks
	loan *loan

	// Guarded by of.mu.
	holds  bool // some contents
	closed bool
}

// New reserves a tensor that lies as io does, on so many ranks. It holds nothing yet. What
// is opened for that ends with ctx.
func (s *DeviceTensors) New(ctx context.Context, ranks int, io *plan.IO) (*DeviceTensor, error) {
	t := &DeviceTensor{of: s, io: held([]plan.IO{*io})[0]}
	bytes := slices.Repeat([]int64{-1}, ranks)
	for _, part := range t.io.Parts {
		bytes[part.Ref.Rank] = part.Ref.Bytes()
	}
	var err error
	if t.loan, err = s.lender.take(ctx, bytes); err != nil {
		return nil, t.errorf("%w", err)
	}
	s.mu.Lock()
	if !s.closed {
		s.all[t] = true
		s.mu.Unlock()
		return t, nil
	}
	s.mu.Unlock()
	return nil, errors.Join(t.errorf("the machine is %w", ErrClosed), s.lender.give(t.loan))
}

func (t *DeviceTensor) errorf(format string, args ...any) error {
	return fmt.Errorf("device tensor %s %s: %w", t.io.Name, &tensor.Tensor{DType: t.io.DType, Shape: t.io.Shape}, fmt.Errorf(format, args...))
}

// IO is how the tensor lies. Callers must not change it.
func (t *DeviceTensor) IO() *plan.IO { return &t.io }

// Block returns the memory that a rank's block begins; nil where it has none.
func (t *DeviceTensor) Block(rank int) device.Memory { return t.loan.blocks[rank] }

// Of reports whether the tensor is one of s.
func (t *DeviceTensor) Of(s *DeviceTensors) bool { return t.of == s }

func (t *DeviceTensor) hasContents() bool {
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	return t.holds
}

func (t *DeviceTensor) setContents(holds bool) {
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	t.holds = holds
}

// Write copies a global tensor to the devices. On an error that is not ErrInput, nor about
// waiting, the tensor holds nothing.
func (t *DeviceTensor) Write(ctx context.Context, from *tensor.Tensor) error {
	if err := inputError(wrongInput(&t.io, from)); err != nil {
		return err
	}
	release, err := t.of.Hold(ctx, nil, []*DeviceTensor{t})
	if err != nil {
		return err
	}
	defer release()
	f := &frame{in: make([][]byte, len(t.io.Parts)), held: make([]*tensor.Tensor, len(t.io.Parts))}
	for i := range t.io.Parts {
		if err := f.cut(i, from, &t.io.Parts[i]); err != nil {
			return t.errorf("%w", err)
		}
	}
	err = t.transfer(ctx, func(i int, s device.Stream, v device.View) error {
		t.setContents(false)
		return s.Upload(v, f.in[i])
	})
	if err != nil {
		return t.errorf("writing it: %w", err)
	}
	t.setContents(true)
	return nil
}

// Read copies the tensor to the host. A *MismatchError says that ranks which should hold
// the same block do not.
func (t *DeviceTensor) Read(ctx context.Context) (*tensor.Tensor, error) {
	release, err := t.of.Hold(ctx, []*DeviceTensor{t}, nil)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := t.lost(); err != nil {
		return nil, t.errorf("%w", err)
	}
	if !t.hasContents() {
		return nil, t.empty()
	}
	whole, err := tensor.New(t.io.DType, t.io.Shape)
	if err != nil {
		return nil, t.errorf("%w", err)
	}
	r := newReception(&t.io)
	if err := r.aim(whole); err != nil {
		return nil, t.errorf("%w", err)
	}
	err = t.transfer(ctx, func(i int, s device.Stream, v device.View) error { return s.Download(r.blocks[i].Data, v) })
	if err != nil {
		return nil, t.errorf("reading it: %w", err)
	}
	if err := r.finish(); err != nil {
		return nil, err
	}
	return whole, nil
}

const howToFill = "write it, fill it, or have a run that does not fail leave a result there"

// Fill has f, which is others' work on the blocks, put contents there, while nothing else
// uses the tensor. It holds nothing if that fails.
func (t *DeviceTensor) Fill(ctx context.Context, f func() error) error {
	release, err := t.of.Hold(ctx, nil, []*DeviceTensor{t})
	if err != nil {
		return err
	}
	defer release()
	if err := cmp.Or(ctx.Err(), t.lost()); err != nil {
		return t.errorf("%w", err)
	}
	t.setContents(false) // f may panic
	if err := f(); err != nil {
		return err
	}
	t.setContents(true)
	return nil
}

// View has f read the blocks, while nothing writes to them.
func (t *DeviceTensor) View(ctx context.Context, f func() error) error {
	release, err := t.of.Hold(ctx, []*DeviceTensor{t}, nil)
	if err != nil {
		return err
	}
	defer release()
	if err := cmp.Or(ctx.Err(), t.lost()); err != nil {
		return t.errorf("%w", err)
	}
	if !t.hasContents() {
		return t.empty()
	}
	return f()
}

func (t *DeviceTensor) empty() error {
	return t.errorf("%w: it holds nothing: %s", ErrInput, howToFill)
}

// transfer has each enqueue the copy of one block, and waits until all have ended, a while
// longer than ctx lasts: what is under way reads or writes the host's memory.
func (t *DeviceTensor) transfer(ctx context.Context, each func(i int, s device.Stream, v device.View) error) error {
	w := t.loan.world
	streams, end, err := w.takeStreams(ctx)
	if err != nil {
		return err
	}
	defer end()
	if err := t.lost(); err != nil {
		return err
	}
	if err := t.stage(); err != nil {
		return err
	}
	var wrong error
	for i := range t.io.Parts {
		r := t.io.Parts[i].Ref.Rank
		if wrong = each(i, streams[r], t.view(i, t.loan.blocks[r])); wrong != nil {
			break
		}
	}
	late, cancel := lateBy(ctx, transferGrace)
	defer cancel()
	if err := w.Sync(late); err != nil {
		w.fail(fmt.Errorf("a copy failed: %w", err))
		return cmp.Or(wrong, err)
	}
	return wrong
}

// stage has buffers for a copy of the tensor ready: a shortage of memory that a copy meets
// costs the world, and all its tensors.
func (t *DeviceTensor) stage() error {
	w, ok := t.loan.world.World.(device.Stager)
	if !ok {
		return nil
	}
	var bytes []int64
	for _, part := range t.io.Parts {
		bytes = append(bytes, part.Ref.Bytes())
	}
	return w.Stage(bytes, 1)
}

// lost says why the memory is lost; nil if it is not.
func (t *DeviceTensor) lost() error {
	if err := t.loan.world.failed.Load(); err != nil {
		return fmt.Errorf("its memory is lost, close it and make another: %w", *err)
	}
	return nil
}

// view is block i, in memory that stands for the rank's.
func (t *DeviceTensor) view(i int, mem device.Memory) device.View {
	return device.Dense(mem, t.io.DType, t.io.Parts[i].Ref.Shape)
}

// Close gives the memory back, when who uses it has ended.
func (t *DeviceTensor) Close() error {
	release, err := t.of.Hold(context.Background(), nil, []*DeviceTensor{t})
	if errors.Is(err, ErrClosed) {
		return nil
	}
	if err != nil {
		return err
	}
	defer release()
	t.of.mu.Lock()
	t.closed = true
	delete(t.of.all, t)
	t.of.mu.Unlock()
	return t.of.lender.give(t.loan)
}

// Close closes all tensors, and lets none be made any more.
func (s *DeviceTensors) Close() error {
	s.mu.Lock()
	s.closed = true
	var all []*DeviceTensor
	for t := range s.all {
		all = append(all, t)
	}
	s.mu.Unlock()
	var errs []error
	for _, t := range all {
		errs = append(errs, t.Close())
	}
	return errors.Join(errs...)
}
