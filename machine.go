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
	"hocket.example/hocket/internal/certify"
	"hocket.example/hocket/internal/compile"
	"hocket.example/hocket/internal/device"
	_ "hocket.example/hocket/internal/device/cpu" // the default machine
	"hocket.example/hocket/internal/exec"
	"hocket.example/hocket/internal/exec/contents"
	"hocket.example/hocket/internal/exec/image"
	"hocket.example/hocket/internal/exec/plancache"
	"hocket.example/hocket/internal/exec/resident"
	"hocket.example/hocket/internal/machine"
	"hocket.example/hocket/internal/world"
	"hocket.example/hocket/ir"
)

// ErrUnsupported is wrapped by errors about an operation or feature that a machine does not support.
var ErrUnsupported = device.ErrUnsupported

// ErrDeviceLost is wrapped by errors about a GPU fault after which this process can no longer use the GPU. To continue,
// start a new process.
var ErrDeviceLost = device.ErrDeviceLost

// ErrOutOfMemory is wrapped by errors that report that a device, or the host, has less free memory than was requested.
var ErrOutOfMemory = device.ErrOutOfMemory

// ErrBudget is wrapped by errors about a plan that needs more device memory per rank than LoadOptions.Arena allows.
var ErrBudget = image.ErrBudget

// ErrTooLarge is wrapped by errors about requests for more memory than the device or host has in total, so that freeing
// other memory does not help. These errors also wrap ErrOutOfMemory.
var ErrTooLarge = device.ErrTooLarge

// ErrAlgorithm is wrapped by the error that reports that the machine does not have the algorithm in
// LoadOptions.Algorithm. The error lists the algorithms that the machine has.
var ErrAlgorithm = image.ErrAlgorithm

// ErrClosed is wrapped by errors of loads and runs on a closed machine or model, and of methods of a closed device
// tensor. It is also wrapped by errors of runs, loads and memory copies that are aborted because the machine is closed,
// or because the context of Open has ended.
var ErrClosed = resident.ErrClosed

// ErrNoContents is wrapped by errors of runs and methods that would read a device tensor without contents. The tensor
// was never written, or a run that updates it has failed or was aborted. Write the tensor before the next run.
var ErrNoContents = resident.ErrNoContents

// MachineOptions selects and configures a machine. The zero value selects the built-in CPU machine with streams that
// run concurrently.
type MachineOptions struct {
	// Name is "cpu", which is the default, or "cuda" in a program that imports package hocket.example/hocket/cuda.
	Name string
	// Scheduled makes the CPU machine run one op at a time, in a random order that is drawn with Seed. Memory is filled
	// with poison values, and the caller's inputs are overwritten as soon as the program's synchronisation allows it, so
	// that a missing wait changes the result.
	Scheduled bool
	Seed      int64
	// World distributes the ranks of all models over several processes. If it is nil, this process drives all ranks. Each
	// process of the World opens one machine with it and makes the same calls on that machine: see World.
	World *World
	// Failed, if not nil, is called when a run fails because of a fault, a deadlock or its deadline. dump writes the
	// flight record of the run's program, as Machine.Dump does. Failed must not use the machine.
	Failed func(dump func(io.Writer) error)
}

// Machine runs models on a set of devices. Its methods may be called from several goroutines at the same time.
type Machine struct {
	dev device.Machine
	// across describes the measured network tier between nodes. across is nil if that tier was not measured.
	across *machine.Across
	peers  *world.World // the processes over which ranks are distributed; nil if there is only this process
	ctx    context.Context
	end    context.CancelFunc
	// plans caches the loaded plans of all models.
	plans   *plancache.Cache[usage]
	runs    runStats
	tensors *resident.DeviceTensors
	// onFailure is MachineOptions.Failed.
	onFailure func(dump func(io.Writer) error)

	mu     sync.Mutex
	models map[*Model]bool
	closed bool
	// programs that failed runs have made unusable and that cannot be closed before their work on the devices has finished
	closing []*exec.Program
}

// Open opens a machine. When ctx ends, the machine aborts its runs, and loads and runs then return ErrClosed. Close
// must still be called to free memory. If ctx has ended already, Open returns its error.
func Open(ctx context.Context, opts MachineOptions) (*Machine, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("opening a machine: %w", err)
	}
	dev, err := opts.device()
	if err != nil {
		return nil, err
	}
	across, err := compile.AgreeAcross(ctx, dev)
	if err != nil {
		return nil, err
	}
	m := &Machine{dev: dev, across: across, peers: opts.peers(), tensors: resident.NewDeviceTensors(dev),
		models: map[*Model]bool{}, runs: runStats{calls: map[*loader]int{}}, onFailure: opts.Failed}
	m.ctx, m.end = context.WithCancel(ctx)
	m.plans = plancache.New[usage](m.ctx)
	return m, nil
}

// device opens the device machine that the options select.
func (o MachineOptions) device() (device.Machine, error) {
	kind, err := device.KindNamed(o.Name)
	switch {
	case err != nil:
		return nil, err
	case !o.Scheduled:
		return kind.Open(o.peers())
	case kind.OpenScheduled == nil:
		return nil, fmt.Errorf("machine %q cannot run explored schedules: %w%s", o.Name, ErrUnsupported,
			device.WhichDo(func(k device.Kind) bool { return k.OpenScheduled != nil }))
	case o.peers() != nil:
		return nil, fmt.Errorf("the exploration of schedules by several processes: %w; open the machine without MachineOptions.World",
			ErrUnsupported)
	}
	return kind.OpenScheduled(o.Seed)
}

// peers returns the world of processes over which ranks are distributed, or nil if there is only this process.
func (o MachineOptions) peers() *world.World {
	if o.World == nil || o.World.Size() < 2 {
		return nil
	}
	return o.World.w
}

// LoadOptions configures how a program is loaded. The zero value is ready to use.
type LoadOptions struct {
	// Strategy is the overlap strategy for communication: see LowerOptions. The strategy "auto" predicts times for this
	// machine. The predicted times of collectives are read from the table from which their algorithms will be selected.
	// Other times are computed from a description of these GPUs or, if there is none, of the GPUs with the most similar
	// name and the nearest number of ranks. For several nodes, auto also uses the parameters of the network between
	// nodes: those in the description if it has any, and otherwise those that hocket tune --across has measured.
	Strategy string
	// NoProve runs plans without proving them. Without NoProve, each plan is checked before it is loaded (see Check), and
	// a refuted plan is an error.
	NoProve bool
	// Certificate, if not nil, is the certificate that Check returned for the same program, binding and strategy. A plan
	// is then loaded only if a certificate checker accepts the certificate for that plan. The checker shares no code with
	// the planner or with Check.
	Certificate []byte
	// Arena is the largest amount of device memory that a plan may use on each rank, in bytes; 0 means no limit. Pinned
	// host memory, which buffers declared host use, does not count. A plan that needs more is an error, which is reported
	// before other plans are unloaded to make room.
	Arena int64
	// Cache is the largest amount of memory, in bytes, that the loaded plans of a model may hold together; 0 means 4
	// GiB. A model has one plan for each choice of dims. The memory of a plan is the memory that it has allocated,
	// including unused parts. On GPUs, it is the sum of the arena, staging buffers and workspaces on the GPU where
	// this sum is largest, plus the pinned host memory. On the CPU machine the memory of all ranks counts. Memory that
	// plans share (see Model.Bind), and memory that the driver and NCCL allocate internally, does not count. If the
	// plans exceed the limit, the least recently used plan is unloaded, but the last remaining plan stays loaded. A
	// negative value disables the cache: each plan is unloaded after its run.
	//
	// If there is not enough memory to load or run a plan, idle plans of all models of the machine are unloaded, least
	// recently used first, until there is enough memory. If all remaining plans are running, the load waits for them until
	// the context ends. If there is still not enough memory, and all ranks are in one process, the plan is loaded with
	// collectives that need little memory in addition to their operands. These collectives may be slower, but they compute
	// the same bits.
	//
	// A load fails with ErrOutOfMemory in three cases. First, the device's total memory is too small; this is reported
	// without waiting. Second, no other plan is loaded and even the collectives that need little memory do not fit.
	// Third, the context ends first; the error then names the running plans. An unloaded plan is loaded again at its
	// next run. Models of other Machines are not affected.
	//
	// If there is not enough memory to time the algorithms of a GEMM, idle plans are unloaded as well, but only if
	// that frees enough memory, and without waiting. Otherwise the GEMM uses an algorithm that was not timed; see
	// Report.Guesses.
	Cache int64
	// HardCache makes Cache a hard limit: plans are unloaded before another plan is loaded, and a plan that alone exceeds
	// the limit is an error that wraps ErrBudget.
	HardCache bool
	// Buckets maps the names of dims to values. A run rounds each of these dims up to the smallest listed value that is
	// not less than the dim. A dim that is greater than the largest value, or that the binding or a bound parameter
	// fixes, is not rounded. With buckets, a few plans serve runs of many sizes. Parameters are padded at the end of
	// each dimension: positions of index_copy with -1, which skips a row, and others with zeros. Results are cut to
	// their original sizes. The caller must ensure that the padding does not change the other elements of the results.
	Buckets map[string][]int64
	// Grace is the time for which a run may continue after its context has ended; 0 means one second, and a negative
	// value means that the run is aborted immediately. Work on the devices cannot be cancelled, only aborted, and an
	// abort unloads the plan: the next run loads the plan again, and uploads its weights again unless another plan
	// holds them. If a run ends within the grace, its plan stays loaded and its results are discarded.
	Grace time.Duration
	// MaxWaiting is the largest number of calls of Run and RunBatch that may wait while another call runs; 0 means no
	// limit. A further call returns ErrOverloaded without waiting. With a World of several processes, Load returns
	// ErrUnsupported unless MaxWaiting is 0, because all processes must make the same runs.
	MaxWaiting int
	// Graph makes every batch of runs except the first replay a recorded graph of the program. On machines that cannot
	// record graphs, unlike "cuda", loading fails.
	Graph bool
	// Measure makes the strategy "auto" time the sequential program and the variants that it predicts to be fastest,
	// when a plan is loaded for the first time. The measurement takes some seconds and additional memory, and uses
	// random real numbers and zeros as integers. The fastest variant is stored in the directory of tuned tables, keyed
	// by the dims and by whether graphs are used. If variants cannot be measured, for example because memory is short
	// or because ranks are in several processes, "auto" predicts times as it does without Measure.
	Measure bool
	// Trace times every command. Reports then include the exposed communication and a timeline, and errors name the exact
	// command in which a GPU failed instead of a few candidates. On a GPU, recording the times takes the host longer than
	// issuing the commands. In a batch that is replayed, only the last run is timed.
	Trace bool
	// Algorithm names the algorithm to try first for collectives whose algorithm the program's text does not fix. If it is
	// empty, the algorithm that was measured as the fastest on this machine is used.
	Algorithm string
	// FixedAlgorithms makes the bits of results independent of the batch. On GPUs, the bits of a row of a GEMM do not
	// depend on the other rows. Likewise, the bits of a query's result in attention do not depend on other queries, and
	// the bits of an element of a collective do not depend on other elements. Algorithms are not selected by
	// measurement, so bits do not differ between machines either. FixedAlgorithms makes runs slower: see "Bits that do
	// not depend on the batch" in docs/kernels.md.
	FixedAlgorithms bool
	// ProfileRange makes each batch of a plan, except the first batch, a capture range for a profiler of the process (nsys
	// profile --capture-range=cudaProfilerApi). The range names statements if NVTX's library is found. On a machine
	// without GPUs such a batch returns ErrUnsupported.
	ProfileRange bool
	// CheckLaunches detects undeclared reads and writes of launched kernels. On a GPU the kernels work on copies of
	// their tensors. The memory around the copies, and tensors that are only written, are filled with poison values. An
	// undeclared write ends the run with an error; an undeclared read changes the results. The CPU machine always
	// checks.
	CheckLaunches bool
	// Gather makes each process of a World receive all results as whole tensors. Processes then wait for each other at
	// the end of a run. Without Gather, Report.Out contains the results of which this process holds every element, and
	// Report.OutLocal contains the blocks of its ranks.
	Gather bool
	// Logger, if not nil, receives progress messages at debug level, and a warning if GEMMs use algorithms that were
	// not timed (see Report.Guesses).
	Logger *slog.Logger
}

// Load lowers p for the binding b and returns a model. A plan is made for each choice of dims at the first Run or
// Prepare with these dims. Load returns the errors of the binding that no choice of dims could correct; if the binding
// fixes every dim, Load returns all errors of the binding.
func (m *Machine) Load(p *Program, b Binding, opts LoadOptions) (*Model, error) {
	if p.none() {
		return nil, errNoProgram
	}
	if err := m.ended(); err != nil {
		return nil, err
	}
	if opts.Graph && !m.dev.Caps().Graphs {
		return nil, fmt.Errorf("the option Graph is set, but machine %s cannot record graphs: %w%s", m.dev.Name(),
			ErrUnsupported, device.WhichDo(func(k device.Kind) bool { return k.Graphs }))
	}
	if opts.MaxWaiting < 0 {
		return nil, fmt.Errorf("%w: LoadOptions.MaxWaiting is %d, want 0 or more", ErrInput, opts.MaxWaiting)
	}
	if opts.Arena < 0 {
		return nil, fmt.Errorf("%w: LoadOptions.Arena is %d, want 0 or more", ErrInput, opts.Arena)
	}
	if opts.MaxWaiting > 0 && m.peers != nil {
		return nil, fmt.Errorf("LoadOptions.MaxWaiting in a World of several processes: %w", ErrUnsupported)
	}
	if err := image.CheckAlgorithm(opts.Algorithm, m.dev.Name(), m.peers != nil); err != nil {
		return nil, fmt.Errorf("LoadOptions.Algorithm: %w", err)
	}
	if err := compile.CheckStrategy(opts.Strategy); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInput, err)
	}
	if _, err := certify.Parse(opts.Certificate); opts.Certificate != nil && err != nil {
		return nil, rejected(p.info.Prog.File, err)
	}
	u, err := p.build(compile.Options{Strategy: opts.Strategy, Device: m.dev, Across: m.across})
	if err != nil {
		return nil, err
	}
	if err := ir.Early(u.Source, b.ir()).Err(); err != nil {
		return nil, (&function{unit: u}).blame(b, err)
	}
	b.Dims, b.Defines = maps.Clone(b.Dims), maps.Clone(b.Defines) // the caller may change its maps later, for example to load another model
	if opts.Buckets, err = buckets.New(u.Source, opts.Buckets); err != nil {
		return nil, err
	}
	fn := &function{unit: u, def: u.Source.Prog.Entry(b.Func), binding: b, options: p.options}
	fn.positions = contents.Positions(u.Source, fn.def)
	model := newModel(m, fn, opts)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, fmt.Errorf("the machine is %w", ErrClosed)
	}
	m.models[model] = true
	return model, nil
}

// onlyRank returns the rank that this process drives of the given number of ranks. It returns false unless there are
// several processes and each drives one rank.
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

// Close aborts all loads and runs and frees everything.
func (m *Machine) Close() error {
	const closesWithin = 5 * time.Second // time for closing the models that no call uses, before all work is aborted
	m.mu.Lock()
	models := m.models
	m.models, m.closed = nil, true
	m.mu.Unlock()
	defer time.AfterFunc(closesWithin, m.end).Stop()
	var errs []error
	// this precedes m.end, because the other processes would report the end as a failure of the models' worlds
	for model := range models {
		closed, err := model.closeIdle()
		if errs = append(errs, err); closed {
			delete(models, model)
		}
	}
	m.end()
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

// closesLater records an unusable program that cannot be closed yet, because the devices still execute its work, so
// that Machine.Close waits for it.
func (m *Machine) closesLater(p *exec.Program) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closing = slices.DeleteFunc(m.closing, func(p *exec.Program) bool { return !p.Closing() })
	if p.Closing() {
		m.closing = append(m.closing, p)
	}
}

// ended returns an error that wraps ErrClosed if the machine is closed, or if the context of Open has ended.
func (m *Machine) ended() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return fmt.Errorf("the machine is %w", ErrClosed)
	case m.ctx.Err() != nil:
		return fmt.Errorf("the machine is %w, because the context of hocket.Open has ended", ErrClosed)
	}
	return nil
}

// why replaces the error of a call that failed because the machine has ended: the call was aborted although ctx has not
// ended, or a run that was aborted has left a device tensor without contents. The new error wraps no context error,
// because no context of the caller has ended.
func (m *Machine) why(ctx context.Context, err error) error {
	aborted := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	if !aborted && !errors.Is(err, ErrNoContents) || errors.Is(err, ErrClosed) || ctx.Err() != nil {
		return err
	}
	if ended := m.ended(); ended != nil {
		return fmt.Errorf("%w: %v", ended, err)
	}
	return err
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
