package hocket

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"hocket.example/hocket/internal/exec"
	"hocket.example/hocket/internal/laps"
	"hocket.example/hocket/internal/tensor"
)

// ErrCapturing is wrapped by the error of an Enqueue call on a stream that is being captured, if the run needs a
// preparation that cannot be captured. Enqueue the same run once before the capture.
var ErrCapturing = exec.ErrCapturing

// EnqueueArgs holds the arguments of one enqueued run.
type EnqueueArgs struct {
	// Streams holds CUDA stream handles, one for each rank that this process drives, in the order of the ranks. The handle
	// 0 is the default stream.
	Streams []uintptr
	// In holds the parameters that are not bound, and Out the destinations of results. Both are keyed by the name and then
	// by the rank, and give the address of the rank's block, which is dense and row-major in the memory of the rank's
	// device. Layouts returns the shapes of the blocks.
	In, Out map[string]map[int]uintptr
	// Lend names results that the run leaves in the model's own memory instead of copying them to Out; see Lendable.
	// Enqueue adds the address of each rank's block to the inner maps. Work that is enqueued on the streams after the run
	// can read the result at these addresses, dense and row-major.
	//
	// The contents stay valid until the next run of the model with the same dims. The memory stays allocated until the
	// model is closed or a run fails. The next run with the same dims waits for work that was enqueued earlier on the
	// run's own streams; the caller must order work on other streams. A run that another method starts waits for enqueued
	// runs, but not for the readers of their results. If a captured graph contains the run, the result is available after
	// each launch of the graph. Passing a lent address as a parameter of a run with the same dims is an ErrInput.
	Lend map[string]map[int]uintptr
	// Dims sets the dims that neither the binding nor the shapes of bound tensors fix.
	Dims map[string]int64
}

// Enqueue adds one run to the caller's streams. The run begins after earlier work on these streams, and later work on
// them waits for the run. Enqueue is meant for programs in which another library, such as PyTorch, uses the GPUs in the
// same process.
//
// Enqueue returns before the run has ended. It waits on the host in two cases: in the first run with given dims, while
// it prepares these dims; and, at most once in 256 runs, when it evicts the preparation for addresses that are no
// longer used, in which case it waits for earlier runs.
//
// On streams that are being captured, the run becomes part of the caller's graph. The graph may be launched as long as
// the model is open; a launch is ordered after other work on its stream. Enqueue a run with the same dims once before
// the capture; otherwise Enqueue returns ErrCapturing.
//
// The elements of ids, positions, lengths and counts at addresses are not checked before the run, and captured runs
// check no elements in advance. A kernel that reads an invalid element ends the run with an InputError whose Begun is
// true.
//
// All processes of a World must enqueue the same runs in the same order. A later call returns the error of a run: see
// Sync. Other methods of the model wait for the run, and so do the methods of the device tensors that the run uses. The
// CPU machine cannot use the caller's streams and returns ErrUnsupported.
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
	laps.Lap("arguments and dims")
	capturing, err := m.machine.capturing(a.Streams)
	if err != nil {
		return err
	}
	if capturing && !m.loader.isLoaded(b, bound.residents(runs)) {
		return fmt.Errorf("%s: %w", m.fn.def.Name, ErrCapturing)
	}
	laps.Lap("query of capture")
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
	laps.Lap("leases")
	_, err = t.use(ctx, b, bound.residents(runs), func(l *loaded) error {
		laps.Lap("plan")
		err := l.Program.Enqueue(ctx, run, bound.weights, a.Streams, capturing)
		if err != nil {
			return err
		}
		for _, d := range slices.Concat(reads, writes) {
			d.UsedBy(l.Program)
		}
		if l.Program.Captured() || len(a.Lend) > 0 {
			t.Pin(l)
		}
		return nil
	})
	return err
}

// Lendable lists the results that EnqueueArgs.Lend may name in runs with the given dims. These are results that
// collectives or other ranks write, and that a run would otherwise have to copy to Out. Lendable omits inout
// parameters, results that runs write to Out without a copy, and results that another rank may overwrite before this
// rank has begun the next run. Lendable loads the plan, as Prepare does. All processes of a World must lend the same
// results.
func (m *Model) Lendable(ctx context.Context, dims map[string]int64) (names []string, err error) {
	err = m.prepare(ctx, dims, func(l *loaded) error {
		names = l.Program.Lendable()
		return nil
	})
	return names, m.machine.why(ctx, err)
}

// without returns the bound tensors without those that the arguments of a run replace.
func without(tensors map[string]*tensor.Tensor, given map[string]map[int]uintptr) map[string]*tensor.Tensor {
	rest := maps.Clone(tensors)
	for name := range given {
		delete(rest, name)
	}
	return rest
}

// Sync waits until all enqueued runs of the model have ended. It returns the errors of these runs. It also returns the
// errors of graph launches that contain captured runs, for those launches that have ended.
func (m *Model) Sync(ctx context.Context) error {
	t, err := m.loader.acquire(ctx)
	if err != nil {
		return m.machine.why(ctx, err)
	}
	defer t.end()
	var errs []error
	for _, p := range t.Programs(m.loader.owner) {
		errs = append(errs, p.Rest(ctx))
	}
	return m.machine.why(ctx, errors.Join(errs...))
}
