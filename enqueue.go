package hocket

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"hocket.example/hocket/internal/exec"
	"hocket.example/hocket/internal/exec/blocks"
	"hocket.example/hocket/internal/exec/resident"
	"hocket.example/hocket/internal/tensor"
)

// ErrCapturing is wrapped by the error of an Enqueue on a stream that is being captured, where something has to be
// made ready first: enqueue the like once before.
var ErrCapturing = exec.ErrCapturing

// EnqueueArgs are what one enqueued run is given.
type EnqueueArgs struct {
	// Streams are CUDA's handles of streams, one for each rank that this process drives, in their order; 0 is the
	// default stream.
	Streams []uintptr
	// In gives parameters that are not bound, and Out receives results: by name, and by rank the address of the
	// rank's block, dense and row-major, in memory of its device. See Layouts for the blocks' shapes.
	In, Out map[string]map[int]uintptr
	// Dims are those that neither the binding nor what is bound fixes.
	Dims map[string]int64
}

// Enqueue gives streams of the caller's one run: it begins behind what the streams were given before, and what they are
// given later comes behind it. Enqueue returns before the run has ended; only for what the first run for these dims
// makes ready does it wait. It is for programs that share a process with another library on the GPUs, such as PyTorch.
//
// On streams that are being captured the run becomes part of the caller's graph, which may be launched for as long as
// the model is open, behind what came before, as anything on the streams. Enqueue the like once before; else
// ErrCapturing is returned.
//
// All processes of a World enqueue alike, in one order. What goes wrong in a run comes out of a later call: see Sync.
// Other methods of the model, and of device tensors that the run uses, wait for it. The CPU machine has no streams of
// the caller's, which is ErrUnsupported.
func (m *Model) Enqueue(ctx context.Context, a EnqueueArgs) error {
	return m.machine.why(ctx, m.enqueue(ctx, a))
}

func (m *Model) enqueue(ctx context.Context, a EnqueueArgs) error {
	bound := m.bindings()
	batch := bound.take([]Args{{}})
	overridden := false
	for name := range a.In {
		overridden = overridden || bound.tensors[name] != nil || bound.on[name] != nil
		delete(batch[0].DeviceIn, name)
		delete(batch[0].DeviceOut, name)
	}
	for name := range a.Out {
		delete(batch[0].DeviceOut, name)
	}
	runs, err := m.execArgs(batch, make([]map[string]*tensor.Tensor, 1))
	if err != nil {
		return err
	}
	run := runs[0]
	run.InAt, run.OutAt, run.Enqueued = a.In, a.Out, true
	b, err := m.bindingOf(bound, Args{}, batch[0])
	if overridden {
		b, err = m.dimsOf(shapes(batch[0], without(bound.tensors, a.In)))
	}
	if err != nil {
		return err
	}
	for name, v := range a.Dims {
		if fixed, ok := m.binding.Dims[name]; ok && fixed != v {
			return fmt.Errorf("%w: a run with %s=%d, and the model was loaded with %s=%d", ErrInput, name, v, name,
				fixed)
		}
		b.Dims[name] = v
	}
	capturing, err := m.capturing(a.Streams)
	if err != nil {
		return err
	}
	if capturing && !m.isLoaded(b, bound.residents(runs)) {
		return fmt.Errorf("%s: %w", m.fn.Name, ErrCapturing)
	}
	reads, writes := usesOf(runs)
	release, err := m.machine.tensors.LeaseInOrder(ctx, reads, writes)
	if err != nil {
		return err
	}
	t, err := m.acquireWith(ctx, release)
	if err != nil {
		return err
	}
	defer t.end()
	_, err = t.use(ctx, b, bound.residents(runs), func(l *loaded) error {
		err := l.prog.Enqueue(ctx, run, bound.weights, a.Streams, capturing)
		if err != nil {
			return err
		}
		for _, d := range slices.Concat(reads, writes) {
			d.UsedBy(l.prog)
		}
		if l.prog.Captured() {
			t.pin(l)
		}
		return nil
	})
	return err
}

// without are bound tensors but those that a run is given otherwise.
func without(tensors map[string]*tensor.Tensor, given map[string]map[int]uintptr) map[string]*tensor.Tensor {
	rest := maps.Clone(tensors)
	for name := range given {
		delete(rest, name)
	}
	return rest
}

// capturing reports whether a stream of the caller's is captured.
func (m *Model) capturing(streams []uintptr) (bool, error) {
	for _, s := range streams {
		if is, err := m.machine.dev.Capturing(s); is || err != nil {
			return is, err
		}
	}
	return false, nil
}

// isLoaded reports whether there is a plan for a binding and the device tensors that it works in. It errs on the side
// of no: wrong dims have none.
func (m *Model) isLoaded(b Binding, on map[string]*resident.DeviceTensor) bool {
	dims, err := m.unit.Dims(b.ir())
	return err == nil && slices.ContainsFunc(m.machine.plans.plansOf(m),
		func(l *loaded) bool { return l.equal(choice{dims, on}) })
}

// Sync waits until enqueued runs of the model have ended, and returns what went wrong in them, and in launches of
// graphs that they were captured in, as far as these have ended.
func (m *Model) Sync(ctx context.Context) error {
	t, err := m.acquire(ctx)
	if err != nil {
		return m.machine.why(ctx, err)
	}
	defer t.end()
	var errs []error
	for _, l := range t.plansOf(m) {
		errs = append(errs, l.prog.Rest(ctx))
	}
	return m.machine.why(ctx, errors.Join(errs...))
}

// DeviceTensorAt makes a device tensor of what is at addresses of the caller's, by rank, for ranks that this process
// drives: blocks as NewDeviceTensor lays them out, each at a multiple of 16, which stay the caller's and must
// stay until the tensor is closed. It holds what is there.
func (m *Model) DeviceTensorAt(ctx context.Context, name string, dims map[string]int64,
	at map[int]uintptr) (*DeviceTensor, error) {
	if len(at) == 0 {
		return nil, fmt.Errorf("%w: there is no address for %%%s", blocks.ErrInput, name)
	}
	for _, r := range slices.Sorted(maps.Keys(at)) {
		if at[r] == 0 || at[r]%16 != 0 {
			return nil, fmt.Errorf("%w: the block of %%%s for rank %d is at %#x, which is no multiple of 16",
				blocks.ErrInput, name, r, at[r])
		}
	}
	return m.deviceTensor(ctx, name, dims, at)
}

// usesOf are the device tensors that a batch reads, and those that it writes.
func usesOf(batch []exec.Args) (reads, writes []*resident.DeviceTensor) {
	read, written := map[*resident.DeviceTensor]bool{}, map[*resident.DeviceTensor]bool{}
	for _, a := range batch {
		for _, t := range a.DeviceOut {
			written[t] = true
		}
	}
	for _, a := range batch {
		for _, t := range a.DeviceIn {
			if !written[t] {
				read[t] = true
			}
		}
	}
	return slices.Collect(maps.Keys(read)), slices.Collect(maps.Keys(written))
}
