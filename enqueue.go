package hocket

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"hocket.example/hocket/internal/exec"
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
	// Lend are results that are not copied, by name: see Lendable. Enqueue adds, by rank, the address of the block in the
	// model's own memory. What streams are given behind the run finds the result there, dense and row-major. It stays
	// until the next run of the model for the same dims, and the memory until the model is closed or a run fails. That
	// run comes behind what its streams were given before; other streams are the caller's to order. A run by another
	// method waits for enqueued runs, not for who reads their results. While launched graphs have the run, the result is
	// there behind each launch. A parameter in that memory is ErrInput for the same dims.
	Lend map[string]map[int]uintptr
	// Dims are those that neither the binding nor what is bound fixes.
	Dims map[string]int64
}

// Enqueue gives streams of the caller's one run: it begins behind what the streams were given before, and what they are
// given later comes behind it. Enqueue returns before the run has ended; only for what the first run for these dims
// makes ready does it wait, and for earlier runs where what was made ready for addresses that do not come any more
// goes, once in 256 runs at most. It is for programs that share a process with another library on the GPUs, such as
// PyTorch.
//
// On streams that are being captured the run becomes part of the caller's graph, which may be launched for as long as
// the model is open, behind what came before, as anything on the streams. Enqueue the like once before; else
// ErrCapturing is returned.
//
// Ids, positions, lengths and counts at addresses are not checked before the run, and in captured runs nothing is: a
// kernel that finds a wrong one ends the run, and the InputError comes with Begun set.
//
// All processes of a World enqueue alike, in one order. What goes wrong in a run comes out of a later call: see Sync.
// Other methods of the model, and of device tensors that the run uses, wait for it. The CPU machine has no streams of
// the caller's, which is ErrUnsupported.
func (m *Model) Enqueue(ctx context.Context, a EnqueueArgs) error {
	return m.told(ctx, m.enqueue(ctx, a))
}

func (m *Model) enqueue(ctx context.Context, a EnqueueArgs) error {
	bound := m.params.current()
	batch := bound.take([]Args{{}})
	overridden := false
	for name := range a.In {
		overridden = overridden || bound.tensors[name] != nil || bound.on[name] != nil
		delete(batch[0].DeviceIn, name)
		delete(batch[0].DeviceOut, name)
	}
	for _, results := range []map[string]map[int]uintptr{a.Out, a.Lend} {
		for name := range results {
			delete(batch[0].DeviceOut, name)
		}
	}
	runs, err := m.machine.execArgs(batch, make([]map[string]*tensor.Tensor, 1))
	if err != nil {
		return err
	}
	run := runs[0]
	run.InAt, run.OutAt, run.Lend, run.Enqueued = a.In, a.Out, a.Lend, true
	b, err := bound.binding(Args{}, batch[0])
	if overridden {
		b, err = m.fn.dimsOf(shapes(batch[0], without(bound.tensors, a.In)))
	}
	if err != nil {
		return err
	}
	if err := m.fn.setDims(b, a.Dims); err != nil {
		return err
	}
	capturing, err := m.machine.capturing(a.Streams)
	if err != nil {
		return err
	}
	if capturing && !m.loader.isLoaded(b, bound.residents(runs)) {
		return fmt.Errorf("%s: %w", m.fn.def.Name, ErrCapturing)
	}
	reads, writes := usesOf(runs)
	release, err := m.machine.tensors.LeaseInOrder(ctx, reads, writes)
	if err != nil {
		return err
	}
	t, err := m.loader.acquireWith(ctx, release)
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
		if l.prog.Captured() || len(a.Lend) > 0 {
			t.pin(l)
		}
		return nil
	})
	return err
}

// Lendable names the results of runs for the given dims that EnqueueArgs.Lend may name: those that collectives or
// other ranks write, which a run would copy to Out, unless they are inout, or the program lets another rank write
// there before this one has begun the next run. Results that runs leave in Out without a copy are not among them. It
// loads the plan, as Prepare does. All processes of a World lend alike.
func (m *Model) Lendable(ctx context.Context, dims map[string]int64) (names []string, err error) {
	err = m.prepare(ctx, dims, func(l *loaded) error {
		names = l.prog.Lendable()
		return nil
	})
	return names, m.machine.why(ctx, err)
}

// without are bound tensors but those that a run is given otherwise.
func without(tensors map[string]*tensor.Tensor, given map[string]map[int]uintptr) map[string]*tensor.Tensor {
	rest := maps.Clone(tensors)
	for name := range given {
		delete(rest, name)
	}
	return rest
}

// Sync waits until enqueued runs of the model have ended, and returns what went wrong in them, and in launches of
// graphs that they were captured in, as far as these have ended.
func (m *Model) Sync(ctx context.Context) error {
	t, err := m.loader.acquire(ctx)
	if err != nil {
		return m.machine.why(ctx, err)
	}
	defer t.end()
	var errs []error
	for _, l := range t.plansOf(m.loader.owner) {
		errs = append(errs, l.prog.Rest(ctx))
	}
	return m.machine.why(ctx, errors.Join(errs...))
}
