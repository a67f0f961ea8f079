package hocket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"hocket.example/hocket/internal/buckets"
	"hocket.example/hocket/internal/compile"
	"hocket.example/hocket/internal/device"
	_ "hocket.example/hocket/internal/device/cpu" // the default machine
	"hocket.example/hocket/internal/exec"
	"hocket.example/hocket/internal/exec/image"
	"hocket.example/hocket/internal/exec/resident"
	"hocket.example/hocket/internal/machine"
	"hocket.example/hocket/internal/world"
	"hocket.example/hocket/ir"
)

// ErrUnsupported is wrapped by errors about something that a machine cannot do.
var ErrUnsupported = device.ErrUnsupported

// ErrDeviceLost is wrapped by errors about a GPU fault after which this process can no longer use the GPU: start a
// new process.
var ErrDeviceLost = device.ErrDeviceLost

// ErrOutOfMemory is wrapped by errors about a device, or the host, that has less free memory than was requested.
var ErrOutOfMemory = device.ErrOutOfMemory

// ErrBudget is wrapped by errors about a plan that needs more device memory than LoadOptions.Arena allows a rank.
var ErrBudget = image.ErrBudget

// ErrTooLarge is wrapped by errors about requests for more memory than exists, so that freeing memory does not help.
// These errors wrap ErrOutOfMemory too.
var ErrTooLarge = device.ErrTooLarge

// ErrAlgorithm is wrapped by the error about a LoadOptions.Algorithm that the machine does not have. The error lists
// the available ones.
var ErrAlgorithm = image.ErrAlgorithm

// ErrClosed is wrapped by errors of loads and runs on a closed machine or model, of uses of a closed device tensor,
// and of runs, loads and copies that are aborted because the machine is closed.
var ErrClosed = resident.ErrClosed

// MachineOptions choose a machine. The zero value is the embedded CPU machine
// with streams that run concurrently.
type MachineOptions struct {
	// Name is "cpu", the default, or "cuda" where package
	// hocket.example/hocket/cuda is imported.
	Name string
	// Scheduled makes the CPU machine run one op at a time, in an order drawn from Seed. Memory is poisoned, and the
	// caller's inputs are overwritten as soon as the program allows it, so a missing wait shows in the result.
	Scheduled bool
	Seed      int64
	// World spreads the ranks of all models over several processes; nil means this process alone. Each process opens
	// one machine with the World and makes the same calls on it: see World.
	World *World
	// Failed is called when a run fails by a fault, a deadlock or its deadline; it may be nil. dump writes the flight
	// record of the run's program, as Machine.Dump does. Failed must not use the machine.
	Failed func(dump func(io.Writer) error)
}

// Machine runs models. Its methods may be called from many goroutines.
type Machine struct {
	dev device.Machine
	// across is the measured tier between nodes; nil for none.
	across *machine.Across
	peers  *world.World // the processes that ranks are spread over; nil for this one alone
	ctx    context.Context
	end    context.CancelFunc
	// plans are the loaded plans of all models.
	plans   *planCache
	tensors *resident.DeviceTensors
	// onFailure is MachineOptions.Failed.
	onFailure func(dump func(io.Writer) error)

	mu      sync.Mutex
	models  map[*Model]bool
	closed  bool
	closing []*exec.Program // made unusable by failed runs, and kept open by work on the devices
}

// Open opens a machine. When ctx ends, the machine and all its runs end.
func Open(ctx context.Context, opts MachineOptions) (*Machine, error) {
	dev, err := opts.device()
	if err != nil {
		return nil, err
	}
	across, err := compile.AgreeAcross(ctx, dev)
	if err != nil {
		return nil, err
	}
	m := &Machine{dev: dev, across: across, peers: opts.peers(), tensors: resident.NewDeviceTensors(dev),
		models:    map[*Model]bool{},
		onFailure: opts.Failed}
	m.ctx, m.end = context.WithCancel(ctx)
	m.plans = newPlanCache(m.ctx)
	return m, nil
}

// device opens the machine that the options name.
func (o MachineOptions) device() (device.Machine, error) {
	kind, err := device.KindNamed(o.Name)
	switch {
	case err != nil:
		return nil, err
	case !o.Scheduled:
		return kind.Open(o.peers())
	case kind.OpenScheduled == nil:
		return nil, fmt.Errorf("machine %q runs no schedules: %w%s", o.Name, ErrUnsupported,
			device.WhichDo(func(k device.Kind) bool { return k.OpenScheduled != nil }))
	case o.peers() != nil:
		return nil, fmt.Errorf("schedules of several processes: %w; without a World the machine draws them",
			ErrUnsupported)
	}
	return kind.OpenScheduled(o.Seed)
}

// peers are the processes that ranks are spread over; nil for this process alone.
func (o MachineOptions) peers() *world.World {
	if o.World == nil || o.World.Size() < 2 {
		return nil
	}
	return o.World.w
}

// LoadOptions tune loading; the zero value is usable.
type LoadOptions struct {
	// Strategy is the way communication is overlapped: see LowerOptions. "auto" predicts for this machine. Times of
	// collectives come from the table that will choose their algorithms. Other times come from a description of these
	// GPUs, or else of the GPUs with the most similar name and the nearest number of ranks. Over several nodes auto
	// adds the tier between nodes: that of the description if it has one, or the one measured by hocket tune
	// --across.
	Strategy string
	// NoProve runs plans without proving them. Otherwise each plan is checked before it is loaded (see Check), and a
	// refuted plan is an error.
	NoProve bool
	// Certificate, if not nil, is the certificate that Check returned for the same program, binding and strategy. A
	// plan is then loaded only if the certificate is accepted for it, by a checker that shares no code with the
	// planner or Check.
	Certificate []byte
	// Arena bounds the device memory of a rank, in bytes; 0 means no bound. Pinned host memory (buffers declared
	// host) does not count. A larger plan is an error, reported before other plans are unloaded to make room.
	Arena int64
	// Cache bounds the memory of the plans that a model keeps loaded, one for each choice of dims, in bytes; 0 means
	// 4 GiB. A plan counts by the memory it has allocated, in use or not (arena, staging, workspaces), on the GPU
	// where that is largest, and by its pinned host memory; on the CPU machine, by the memory of all ranks. Memory
	// that plans share (see Model.Bind), and memory that the driver and NCCL allocate themselves, does not count. If
	// the plans exceed the bound, the least recently used is unloaded, but never the last one. A negative value turns
	// the cache off: each plan is unloaded after its run.
	//
	// If memory is too short to load or run a plan, idle plans of all models of the machine are unloaded, least
	// recently used first, until it suffices. If only running plans are left, the load waits for them until the
	// context ends. If the memory still does not suffice, and all ranks are in one process, the plan is loaded with
	// collectives that need little memory besides their operands. They may be slower, and compute the same bits.
	//
	// So a load fails with ErrOutOfMemory in three cases: the device has less memory than that in total, which is
	// reported at once; even the small collectives do not fit and no other plan is loaded; or the context ends first,
	// and the error then names the running plans. An unloaded plan is loaded again when it is next run. Models of
	// another Machine are not touched.
	//
	// Memory for timing the algorithms of a product is found in the same way, but without waiting, and plans are
	// unloaded only if that frees enough. Otherwise the product runs by a guess, see Report.Guesses.
	Cache int64
	// HardCache makes Cache a hard bound: plans are unloaded before another is loaded, and a plan that alone exceeds
	// the bound is an error that wraps ErrBudget.
	HardCache bool
	// Buckets rounds dims up, by name, to the smallest of these values that is at least as large. Dims above the
	// largest, and those that the binding or a bound parameter fixes, are left unchanged. A few plans then serve many
	// sizes. Parameters are padded with zeros at the end of each dimension, and results are cut back. The caller must
	// know that the padding does not change the rest of the results.
	Buckets map[string][]int64
	// Grace is the time that a run may continue after its context has ended; 0 means one second, and a negative value
	// none. Work on the devices cannot be cancelled, only aborted, and an abort loses the plan: the next run loads it
	// again, and uploads its weights again if no other plan has them. A run that ends within the grace leaves its
	// plan loaded, and its results are discarded.
	Grace time.Duration
	// Graph makes every batch of runs after the first replay a recording of the program, on machines that record
	// graphs, such as "cuda". On other machines loading fails.
	Graph bool
	// Measure makes the strategy auto time the sequential program and the variants that it predicts to be fastest,
	// when a plan is loaded for the first time. That takes some seconds and its own memory, with random numbers for
	// reals and zeros for integers. The fastest variant is stored in the folder of tuned tables, by dims and by use
	// of graphs. If variants cannot be measured, for lack of memory for example, or if ranks are in several
	// processes, auto predicts as without Measure.
	Measure bool
	// Trace times every command. Reports then include the exposed communication and a timeline, and errors name the
	// exact command in which a GPU failed instead of a few candidates. On a GPU, tracing takes the host more time
	// than the commands themselves. In a replayed batch only the last run is timed.
	Trace bool
	// Algorithm names the algorithm to try first for collectives whose algorithm the text does not pin; empty means
	// the fastest as measured on this machine.
	Algorithm string
	// FixedAlgorithms makes bits independent of the batch. On GPUs, a row of a product, a query of attention and an
	// element of a collective get the same bits whatever other rows, queries or elements are computed with them.
	// Algorithms are not chosen by measurement, so bits do not differ between machines either. It costs time: see
	// "Bits that do not depend on the batch" in docs/kernels.md.
	FixedAlgorithms bool
	// ProfileRange makes each batch of a plan but its first a range that a profiler of the process captures (nsys
	// profile --capture-range=cudaProfilerApi). Statements are named in the range if NVTX's library is found. On a
	// machine without GPUs such a batch returns ErrUnsupported.
	ProfileRange bool
	// CheckLaunches looks for undeclared reads and writes of launched kernels. On a GPU the kernels work on copies of
	// their tensors, with poison around the copies and in tensors that are only written. An undeclared write ends the
	// run with an error; an undeclared read shows in the results. The CPU machine always checks in this way.
	CheckLaunches bool
	// Gather gives each process of a World all results whole. Processes then wait for each other at the end of a run.
	// Without Gather, Report.Out has the results of which this process holds every element, and Report.OutLocal the
	// blocks of its ranks.
	Gather bool
	// Logger receives progress at debug level, and a warning if products run by a guess (see Report.Guesses). It may
	// be nil.
	Logger *slog.Logger
}

// Load lowers p for the binding b. Plans are made for each choice of dims, at the first Run or Prepare with these
// dims. Errors of the binding that no dims could correct are returned here; if the binding fixes every dim, all its
// errors are.
func (m *Machine) Load(p *Program, b Binding, opts LoadOptions) (*Model, error) {
	if p.none() {
		return nil, errNoProgram
	}
	if opts.Graph && !m.dev.Caps().Graphs {
		return nil, fmt.Errorf("LoadOptions.Graph: machine %s records no graphs: %w%s", m.dev.Name(), ErrUnsupported,
			device.WhichDo(func(k device.Kind) bool { return k.Graphs }))
	}
	if err := compile.CheckStrategy(opts.Strategy); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInput, err)
	}
	u, err := p.build(compile.Options{Strategy: opts.Strategy, Device: m.dev, Across: m.across})
	if err != nil {
		return nil, err
	}
	if err := ir.Early(u.Source, b.ir()).Err(); err != nil {
		return nil, err
	}
	b.Dims, b.Defines = maps.Clone(b.Dims), maps.Clone(b.Defines) // the caller's may serve for another model
	if opts.Buckets, err = buckets.New(u.Source, opts.Buckets); err != nil {
		return nil, err
	}
	funcs := u.Source.Prog.Funcs
	fn := &function{unit: u, def: funcs[len(funcs)-1], binding: b}
	if b.Func != "" {
		fn.def = u.Source.Prog.Func(b.Func)
	}
	model := newModel(m, fn, opts)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, fmt.Errorf("machine: %w", ErrClosed)
	}
	m.models[model] = true
	return model, nil
}

// onlyRank returns the rank that this process drives of so many; false unless each of several processes drives one.
func (m *Machine) onlyRank(ranks int) (int, bool) {
	if m.peers == nil || m.peers.Processes() != ranks {
		return 0, false
	}
	owners, err := m.peers.Owners(ranks)
	rank := slices.Index(owners, m.peers.Process())
	if err != nil || rank < 0 || slices.Contains(owners[rank+1:], m.peers.Process()) {
		return 0, false
	}
	return rank, true
}

// Close aborts what runs and frees everything.
func (m *Machine) Close() error {
	m.mu.Lock()
	models := m.models
	m.models, m.closed = nil, true
	m.mu.Unlock()
	m.end()
	var errs []error
	for model := range models {
		errs = append(errs, model.Close())
	}
	m.mu.Lock()
	closing := m.closing
	m.closing = nil
	m.mu.Unlock()
	for _, p := range closing {
		errs = append(errs, p.AwaitClosed())
	}
	return errors.Join(append(errs, m.tensors.Close())...)
}

// closesLater adds a program that devices still keep open.
func (m *Machine) closesLater(p *exec.Program) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closing = slices.DeleteFunc(m.closing, func(p *exec.Program) bool { return !p.Closing() })
	if p.Closing() {
		m.closing = append(m.closing, p)
	}
}

// Stats describes the use of the machine's resources.
type Stats struct{ Plans PlanStats }

// Stats returns the machine's statistics.
func (m *Machine) Stats() Stats {
	m.plans.mu.Lock()
	defer m.plans.mu.Unlock()
	m.plans.measure()
	return Stats{m.plans.stats}
}

// why adds to an error that the run was aborted because the machine was closed, if that, and not the end of ctx, was
// the cause.
func (m *Machine) why(ctx context.Context, err error) error {
	if !errors.Is(err, context.Canceled) || errors.Is(err, ErrClosed) || ctx.Err() != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.closed {
		return err
	}
	return fmt.Errorf("the machine was %w meanwhile: %v", ErrClosed, err)
}

// capturing reports whether one of the caller's streams is being captured.
func (m *Machine) capturing(streams []uintptr) (bool, error) {
	for _, s := range streams {
		if is, err := m.dev.Capturing(s); is || err != nil {
			return is, err
		}
	}
	return false, nil
}
