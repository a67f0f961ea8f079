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

// ErrCapturing is wrapped by the error of an Enqueue on a stream that is being captured, if something has to be
// prepared first. Enqueue such a run once before the capture.
var ErrCapturing = exec.ErrCapturing

// EnqueueArgs are the arguments of one enqueued run.
type EnqueueArgs struct {
	// Streams are CUDA stream handles, one for each rank that this process drives, in order; 0 is the default stream.
	Streams []uintptr
	// In gives parameters that are not bound, and Out receives results. Both map names and ranks to the address of
	// the rank's block, dense and row-major, in memory of its device. See Layouts for the blocks' shapes.
	In, Out map[string]map[int]uintptr
	// Lend names results that are left in the model's own memory instead of being copied: see Lendable. Enqueue adds
	// the address of each rank's block. Work that is enqueued on the streams after the run finds the result there,
	// dense and row-major.
	//
	// The result stays until the next run of the model for the same dims, and the memory until the model is closed or
	// a run fails. That next run waits for work that was enqueued on its own streams before it; the caller orders
	// work on other streams. A run by another method waits for enqueued runs, but not for readers of their results.
	// If a captured graph contains the run, the result is there after each launch of the graph. Passing such an
	// address as a parameter for the same dims is an ErrInput.
	Lend map[string]map[int]uintptr
	// Dims are those that neither the binding nor bound tensors fix.
	Dims map[string]int64
}

// Enqueue adds one run to the caller's streams. The run begins after earlier work on these streams, and later work on
// them waits for it. Enqueue is for programs that share a process with another library on the GPUs, such as PyTorch.
//
// Enqueue returns before the run has ended. It waits in two cases: in the first run for given dims, while these are
// prepared, and when it evicts what was prepared for addresses that are no longer used, at most once in 256 runs; it
// then waits for earlier runs.
//
// On streams that are being captured, the run becomes part of the caller's graph. The graph may be launched for as
// long as the model is open, after other work on the stream like any launch. Enqueue a run with the same dims once
// before the capture; otherwise Enqueue returns ErrCapturing.
//
// Ids, positions, lengths and counts at addresses are not checked before the run, and captured runs check no values
// beforehand. A kernel that finds an invalid value ends the run, and the InputError has Begun set.
//
// All processes of a World enqueue the same runs in the same order. An error of a run is returned by a later call:
// see Sync. Other methods of the model wait for the run, and so do methods of the device tensors that it uses. The
// CPU machine has no streams of the caller and returns ErrUnsupported.
func (m *Model) Enqueue(ctx context.Context, a EnqueueArgs) error {
	return m.told(ctx, m.enqueue(ctx, a))
}

func (m *Model) enqueue(ctx context.Context, a EnqueueArgs) error {
	bound, done := m.params.use()
	defer done()
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

// Lendable lists the results of runs for the given dims that EnqueueArgs.Lend may name. These are results that
// collectives or other ranks write and that a run would have to copy to Out. Not among them are inout parameters,
// results that runs leave in Out without a copy, and results that another rank may write before this one has begun
// the next run. Lendable loads the plan, as Prepare does. All processes of a World lend the same results.
func (m *Model) Lendable(ctx context.Context, dims map[string]int64) (names []string, err error) {
	err = m.prepare(ctx, dims, func(l *loaded) error {
		names = l.prog.Lendable()
		return nil
	})
	return names, m.machine.why(ctx, err)
}

// without returns bound tensors except those that a run replaces.
func without(tensors map[string]*tensor.Tensor, given map[string]map[int]uintptr) map[string]*tensor.Tensor {
	rest := maps.Clone(tensors)
	for name := range given {
		delete(rest, name)
	}
	return rest
}

// Sync waits until enqueued runs of the model have ended. It returns the errors of these runs, and of launches of
// graphs that contain captured runs, as far as the launches have ended.
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
