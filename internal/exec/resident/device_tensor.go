// Package resident manages device memory that outlives a run.
//
// DeviceTensors are tensors that callers store on a machine's devices. A lease permits a caller to use some device
// tensors (lease.go). Weights are parameters that all plans of a model share (weight_store.go). Device tensors and
// Weights are stored in separate worlds, from which the worlds of programs borrow memory (pool.go).
package resident

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/exec/blocks"
	"hocket.example/hocket/internal/exec/grace"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
)

// ErrClosed is wrapped by errors about an object that was closed.
var ErrClosed = errors.New("closed")

// ErrNoContents is wrapped by errors about a device tensor that would be read although it has no contents.
var ErrNoContents = errors.New("no contents")

// DeviceTensors is the set of tensors that callers store on a machine's devices.
type DeviceTensors struct {
	pool *pool

	mu     sync.Mutex
	all    map[*DeviceTensor]bool
	leases []*lease // leases in the order in which they were requested
	closed bool
}

// NewDeviceTensors returns an empty set.
func NewDeviceTensors(m device.Machine) *DeviceTensors {
	return &DeviceTensors{pool: newPool(m), all: map[*DeviceTensor]bool{}}
}

// DeviceTensor is a tensor that consists of one block for each rank, laid out like an input or output of a plan. Runs
// read a DeviceTensor and store results in it without a copy through the host.
//
// A DeviceTensor has several readers or one writer at a time: its methods, and Lease for runs, wait for earlier users.
type DeviceTensor struct {
	of   *DeviceTensors
	io   plan.IO // without absent blocks
	loan *Loan

	// The following fields are guarded by of.mu.
	holds bool // whether the tensor has contents
	lent  bool // whether some blocks are in the caller's memory
	// computed reports whether a run has written the contents. puts is the number of times that contents were stored.
	computed bool
	puts     uint64
	closed   bool
	users    map[User]bool // programs whose enqueued runs may not have ended
}

// New allocates a tensor with the layout of io on the given number of ranks. The tensor has no contents. If New opens a
// world for the tensor, the world ends when ctx ends.
func (s *DeviceTensors) New(ctx context.Context, ranks int, io *plan.IO) (*DeviceTensor, error) {
	return s.NewAt(ctx, ranks, io, nil)
}

// NewAt creates a tensor from memory of the caller, which already has contents. The map at holds the addresses of this
// memory by rank. On ranks without an address NewAt allocates memory.
func (s *DeviceTensors) NewAt(ctx context.Context, ranks int, io *plan.IO, at map[int]uintptr) (*DeviceTensor, error) {
	t := &DeviceTensor{of: s, io: plan.Held([]plan.IO{*io})[0], holds: len(at) > 0, lent: len(at) > 0}
	var err error
	if t.loan, err = s.pool.take(ctx, t.blockBytes(ranks), at); err != nil {
		return nil, t.Errorf("%w", err)
	}
	s.mu.Lock()
	if !s.closed {
		s.all[t] = true
		s.mu.Unlock()
		return t, nil
	}
	s.mu.Unlock()
	return nil, errors.Join(t.Errorf("the machine is %w", ErrClosed), t.loan.Give())
}

// Errorf returns an error that names the tensor.
func (t *DeviceTensor) Errorf(format string, args ...any) error {
	return fmt.Errorf("device tensor %s %s: %w", t.io.Name, &tensor.Tensor{DType: t.io.DType, Shape: t.io.Shape},
		fmt.Errorf(format, args...))
}

// IO returns the layout of the tensor. Callers must not change it.
func (t *DeviceTensor) IO() *plan.IO { return &t.io }

// Ranks returns the number of ranks.
func (t *DeviceTensor) Ranks() int { return len(t.loan.blocks) }

// Spare reserves memory for a copy of the tensor. The caller must return the loan with Give.
func (t *DeviceTensor) Spare(ctx context.Context) (*Loan, error) {
	return t.of.pool.take(context.WithoutCancel(ctx), t.blockBytes(len(t.loan.blocks)),
		nil) // other tensors may use the world later
}

// blockBytes returns the size in bytes of each rank's block; negative if the rank has no block.
func (t *DeviceTensor) blockBytes(ranks int) []int64 {
	bytes := slices.Repeat([]int64{-1}, ranks)
	for _, part := range t.io.Parts {
		bytes[part.Ref.Rank] = part.Ref.Bytes()
	}
	return bytes
}

// Unlike returns the differences between the tensor's layout and that of io on the given number of ranks; nil if there
// are none.
func (t *DeviceTensor) Unlike(io *plan.IO, ranks int) []string {
	if t.io.DType != io.DType || !slices.Equal(t.io.Shape, io.Shape) {
		return []string{fmt.Sprintf("%s is %s, but its device tensor is %s",
			io.Name, blocks.Header(io), blocks.Header(&t.io))}
	}
	if t.Ranks() != ranks {
		return []string{fmt.Sprintf("the device tensor for %s is on %d ranks, but the run is on %d", io.Name, t.Ranks(),
			ranks)}
	}
	for r := range int32(ranks) {
		if want, is := io.Of(r), t.io.Of(r); !sameBlock(want, is) {
			return []string{fmt.Sprintf("%s has on rank %d %s, but its device tensor has %s: "+
				"runs do not change the layout of device tensors; create one for %s",
				io.Name, r, blockText(want), blockText(is), io.Name)}
		}
	}
	return nil
}

// sameBlock reports whether a and b are the same part of a tensor, or are both nil.
func sameBlock(a, b *plan.IOPart) bool {
	if a == nil || b == nil {
		return a == b
	}
	return slices.Equal(a.Ref.Shape, b.Ref.Shape) && slices.Equal(a.Lo, b.Lo)
}

func blockText(part *plan.IOPart) string {
	if part == nil {
		return "no block"
	}
	return fmt.Sprintf("a block of shape %v at %v", part.Ref.Shape, part.Lo)
}

// Block returns the memory that begins with a rank's block; nil if the rank has no block.
func (t *DeviceTensor) Block(rank int) device.Memory { return t.loan.blocks[rank] }

// Of reports whether the tensor belongs to s.
func (t *DeviceTensor) Of(s *DeviceTensors) bool { return t.of == s }

// HasContents reports whether the tensor has contents.
func (t *DeviceTensor) HasContents() bool {
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	return t.holds
}

// SetContents sets whether the tensor has contents. The caller must hold a lease to write the tensor.
func (t *DeviceTensor) SetContents(holds bool) {
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	t.holds = holds
}

// Put records that contents were stored; byRun reports that a run stored them.
func (t *DeviceTensor) Put(byRun bool) {
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	t.holds, t.computed = true, byRun
	t.puts++
}

// Origin reports whether a run has written the contents. It also returns a number that changes whenever the contents
// change. The number is 0 if the contents may change without notice.
func (t *DeviceTensor) Origin() (computed bool, number uint64) {
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	if t.lent {
		return false, 0
	}
	return t.computed, t.puts
}

// Write copies a global tensor to the devices. After an error, except ErrInput and errors about waiting, the tensor has
// no contents.
func (t *DeviceTensor) Write(ctx context.Context, from *tensor.Tensor) error {
	if err := blocks.InputError(blocks.Wrong(&t.io, from)); err != nil {
		return err
	}
	release, err := t.of.Lease(ctx, nil, []*DeviceTensor{t})
	if err != nil {
		return err
	}
	defer release()
	data := make([][]byte, len(t.io.Parts))
	for i := range t.io.Parts {
		if data[i], _, err = blocks.Cut(from, &t.io.Parts[i], nil); err != nil {
			return t.Errorf("%w", err)
		}
	}
	err = t.transfer(ctx, true, func(i int, s device.Stream, v device.View) error {
		t.SetContents(false)
		return s.Upload(v, data[i])
	})
	if err != nil {
		return t.Errorf("writing it: %w", err)
	}
	t.Put(false)
	return nil
}

// Zero fills the tensor with zeros on the devices. After an error, except errors about waiting, the tensor has no
// contents.
func (t *DeviceTensor) Zero(ctx context.Context) error {
	release, err := t.of.Lease(ctx, nil, []*DeviceTensor{t})
	if err != nil {
		return err
	}
	defer release()
	err = t.transfer(ctx, false, func(i int, s device.Stream, v device.View) error {
		t.SetContents(false)
		l, err := t.loan.world.Device(int(t.io.Parts[i].Ref.Rank)).Prepare(device.Kernel{Op: device.Zeros(),
			Outs: []device.View{v}})
		if err != nil {
			return err
		}
		t.loan.world.launches = append(t.loan.world.launches, l)
		return s.Launch(l)
	})
	if err != nil {
		return t.Errorf("filling it with zeros: %w", err)
	}
	t.Put(false)
	return nil
}

// Read copies the tensor to the host. It returns a *MismatchError if ranks that should have equal blocks have different
// ones.
func (t *DeviceTensor) Read(ctx context.Context) (*tensor.Tensor, error) {
	release, err := t.of.Lease(ctx, []*DeviceTensor{t}, nil)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := t.Lost(); err != nil {
		return nil, t.Errorf("%w", err)
	}
	if !t.HasContents() {
		return nil, t.empty()
	}
	r := blocks.NewReceiver(&t.io, t.loan.world.Local)
	if !r.Whole() {
		return nil, t.Errorf("this process holds some of its blocks: %w; a program that gathers it can return it",
			device.ErrUnsupported)
	}
	if err := r.Expect(nil, false); err != nil {
		return nil, t.Errorf("%w", err)
	}
	err = t.transfer(ctx, true, func(i int, s device.Stream, v device.View) error { return s.Download(r.Block(i), v) })
	if err != nil {
		return nil, t.Errorf("reading it: %w", err)
	}
	return r.Finish()
}

// HowToFill describes why a tensor has no contents and how it gets contents.
const HowToFill = "it was never written, or a run that updates it has failed: write it, fill it, or let a successful run " +
	"store a result in it"

// Fill calls f, which writes the blocks, while nothing else uses the tensor. If f fails, the tensor has no contents.
func (t *DeviceTensor) Fill(ctx context.Context, f func() error) error {
	release, err := t.of.Lease(ctx, nil, []*DeviceTensor{t})
	if err != nil {
		return err
	}
	defer release()
	if err := cmp.Or(ctx.Err(), t.Lost()); err != nil {
		return t.Errorf("%w", err)
	}
	t.SetContents(false) // f may panic
	if err := f(); err != nil {
		return err
	}
	t.Put(false)
	return nil
}

// View calls f, which reads the blocks, while no other operation writes them.
func (t *DeviceTensor) View(ctx context.Context, f func() error) error {
	release, err := t.of.Lease(ctx, []*DeviceTensor{t}, nil)
	if err != nil {
		return err
	}
	defer release()
	if err := cmp.Or(ctx.Err(), t.Lost()); err != nil {
		return t.Errorf("%w", err)
	}
	if !t.HasContents() {
		return t.empty()
	}
	return f()
}

func (t *DeviceTensor) empty() error {
	return t.Errorf("it has %w: %s", ErrNoContents, HowToFill)
}

// Fail records that an operation may still access the tensor although no caller waits for it.
func (t *DeviceTensor) Fail(cause error) { t.loan.Fail(cause) }

// transfer calls the function each to enqueue the work on every block, and waits until all this work has ended. The
// work may copy from or to the host only if copies is set. After ctx has ended transfer continues to wait for at most
// grace.Transfer, because unfinished copies access host memory.
func (t *DeviceTensor) transfer(
	ctx context.Context, copies bool, each func(i int, s device.Stream, v device.View) error,
) error {
	end, err := t.loan.world.take(ctx)
	if err != nil {
		return err
	}
	defer end()
	late, cancel := grace.After(ctx, grace.Transfer)
	defer cancel()
	if lost := t.loan.world.Do(ctx, func() { err = t.transferNow(late, copies, each) }); lost != nil {
		t.loan.Fail(lost)
		return cmp.Or(ctx.Err(), lost)
	}
	return err
}

// transferNow implements transfer for a caller that has exclusive use of the world's streams.
func (t *DeviceTensor) transferNow(
	late context.Context, copies bool, each func(i int, s device.Stream, v device.View) error,
) error {
	w := t.loan.world
	streams, err := w.allStreams()
	if err != nil {
		return err
	}
	if err := t.Lost(); err != nil {
		return err
	}
	if copies {
		if err := t.stage(); err != nil {
			return err
		}
	}
	var wrong error
	for i := range t.io.Parts {
		r := t.io.Parts[i].Ref.Rank
		if !w.Local(int(r)) {
			continue
		}
		if wrong = each(i, streams[r], t.BlockView(i, t.loan.blocks[r])); wrong != nil {
			break
		}
	}
	if err := w.Sync(late); err != nil {
		w.fail(fmt.Errorf("a copy failed: %w", err))
		return cmp.Or(wrong, err)
	}
	w.release()
	return wrong
}

// stage reserves the buffers for a copy of the tensor. If buffers could not be allocated during a copy, the world and
// all its tensors would become unusable.
func (t *DeviceTensor) stage() error {
	var bytes []int64
	for _, part := range t.io.Parts {
		bytes = append(bytes, part.Ref.Bytes())
	}
	return t.loan.world.Stage(bytes, 1)
}

// Lost returns the reason why the tensor's memory is lost; nil if it is not lost.
func (t *DeviceTensor) Lost() error {
	if err := t.loan.world.failed.Load(); err != nil {
		return fmt.Errorf("it has %w: its memory is lost: close the tensor and create another: %w", ErrNoContents, *err)
	}
	return nil
}

// BlockView returns a view of block i in mem, the program's handle to the tensor's memory on the block's rank.
func (t *DeviceTensor) BlockView(i int, mem device.Memory) device.View {
	return device.Dense(mem, t.io.DType, t.io.Parts[i].Ref.Shape)
}

// Close frees the memory after all users have finished.
func (t *DeviceTensor) Close() error {
	release, err := t.of.Lease(context.Background(), nil, []*DeviceTensor{t})
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
	return t.loan.Give()
}

// Close closes all tensors, and prevents the creation of more tensors.
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
