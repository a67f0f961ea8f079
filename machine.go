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

// ErrUnsupported is wrapped by errors that say a machine cannot do something.
var ErrUnsupported = device.ErrUnsupported

// ErrDeviceLost is wrapped by errors that say a GPU's fault has ended this
// process's use of it: start a new process.
var ErrDeviceLost = device.ErrDeviceLost

// ErrOutOfMemory is wrapped by errors that say a device, or the host, has less
// memory free than was asked for.
var ErrOutOfMemory = device.ErrOutOfMemory

// ErrBudget is wrapped by errors that say a plan needs more device memory than
// LoadOptions.Arena allows a rank.
var ErrBudget = image.ErrBudget

// ErrTooLarge is wrapped by errors, which wrap ErrOutOfMemory too, that say more memory was asked
// for than there is at all: giving some back does not help.
var ErrTooLarge = device.ErrTooLarge

// ErrAlgorithm is wrapped by the error about a LoadOptions.Algorithm that the machine does not
// have; it lists those that there are.
var ErrAlgorithm = image.ErrAlgorithm

// ErrClosed is wrapped by what a machine or model returns after Close where something would be
// loaded or run, by the errors of runs, loads and copies that closing the machine aborts, and
// by what a device tensor returns where it would be used.
var ErrClosed = resident.ErrClosed

// MachineOptions choose a machine. The zero value is the embedded CPU machine
// with streams that run concurrently.
type MachineOptions struct {
	// Name is "cpu", the default, or "cuda" where package
	// hocket.example/hocket/cuda is imported.
	Name string
	// Scheduled makes the CPU machine run one op at a time in an order drawn
	// from Seed, with poisoned memory and a caller that overwrites inputs as
	// soon as it may: what a missing wait does then shows in the result.
	Scheduled bool
	Seed      int64
	// World spreads the ranks of all models over several processes; nil for this one alone. Each process
	// opens one machine with it, and does alike with it: see World.
	World *World
	// Failed is called when a run fails: by a fault, a deadlock, at its deadline. dump writes the flight
	// record of its program, as Machine.Dump does. Nil for nobody. It must not use the machine.
	Failed func(dump func(io.Writer) error)
}

// Machine runs models. It may be used by many goroutines.
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
	// onFailure is MachineOptions.Failed; nil for nobody.
	onFailure func(dump func(io.Writer) error)

	mu      sync.Mutex
	models  map[*Model]bool
	closed  bool
	closing []*exec.Program // which failed runs have made unusable, and what devices still do keeps open
}

// Open opens a machine. It, and all it runs, ends when ctx does.
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

// device makes the machine that the options name.
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

// peers are the processes that ranks are spread over; nil for this one alone.
func (o MachineOptions) peers() *world.World {
	if o.World == nil || o.World.Size() < 2 {
		return nil
	}
	return o.World.w
}

// LoadOptions tune loading; the zero value is usable.
type LoadOptions struct {
	// Strategy is how communication is overlapped: see LowerOptions. "auto"
	// predicts for the machine: collectives by the table that they will be chosen
	// from, the rest by the description that fits: of these GPUs, or of those whose name is nearest, of the nearest
	// number of ranks, and over several nodes with a tier between them where there is one, or with the one that
	// hocket tune --across has measured.
	Strategy string
	// NoProve runs plans that were not proved. Otherwise each plan is checked
	// before it is loaded (see Check), and one that is refuted is an error.
	NoProve bool
	// Certificate, if not nil, is what Check returned for the same program, binding and strategy. A plan is loaded only if
	// the certificate is of it and a checker that shares nothing with the planner or Check accepts it.
	Certificate []byte
	// Arena bounds the device memory a rank may use, in bytes, pinned memory of the host
	// (buffers that say host) not counted; 0 for no bound. A plan
	// that is larger is an error before others are unloaded to make room for it.
	Arena int64
	// Cache bounds what the plans that a model keeps loaded, one for each choice of
	// dims, hold together, in bytes; 0 means 4 GiB. A plan counts by the memory that
	// it has taken, in use or not (arena, staging, workspaces), on the GPU where that
	// is most, and its pinned host memory; on the CPU machine by that of all ranks.
	// What plans share (see Model.Bind), and what the driver and NCCL take by themselves,
	// is not counted. Beyond the bound the plan used least recently is unloaded; the last
	// one stays. Less than 0 turns the cache off: each plan is unloaded behind its run.
	//
	// Where memory is too short to load or run a plan, plans of all models of the
	// machine that do not run are unloaded, the one used least recently first, until
	// it suffices; where only some that run are left, their end is waited for, as long
	// as the context allows. Then the plan is loaded with collectives that take little memory
	// besides their operands and may be slower (the bits are the same), but for ranks in several
	// processes. So it is an error, ErrOutOfMemory, only where that does not fit either and no other
	// plan is loaded, or when the context ends, and then it names those that run; and
	// at once where there is less memory than that at all. A plan that was unloaded is
	// loaded again when it is run. Models of another Machine
	// are left alone. Memory to time a product's algorithms in is found likewise, but
	// nothing is waited for, and nothing unloaded where that would not be enough: the
	// product then runs by a guess, see Report.Guesses.
	Cache int64
	// HardCache never lets the plans of the model hold more than Cache: others are unloaded before
	// one is loaded, and a plan that is larger by itself is an error that wraps ErrBudget.
	HardCache bool
	// Buckets rounds dims up, by name, to the least of these values, which ascend, that is no
	// less; larger ones stay as they are. Few plans then serve many sizes. Parameters are filled
	// up with zeros, and results cut back: that is right only where what is filled up does not
	// change the rest, which is for the caller to know.
	Buckets map[string][]int64
	// Grace is how long runs may go on when their context has ended; 0 means a second,
	// and less than 0 not at all. What devices were given cannot be taken back, only
	// aborted, and then the plan is gone: the next run loads it again, and uploads weights
	// again if no other plan has them. Runs that end within the grace leave their plan as
	// it was, for whoever comes next; their results are given up.
	Grace time.Duration
	// Graph has every batch of runs but the first replay a recording of the
	// program, on machines that record graphs: "cuda" does. Others refuse to load with it.
	Graph bool
	// Measure has the strategy auto time what it predicts to be the fastest, beside sequential, when a plan is
	// loaded for the first time: some seconds, on memory of its own, with random numbers for reals and zeros for
	// integers. The fastest is kept in the folder of tuned tables, for each dims, by graph and not. What cannot be
	// measured, as for want of memory, is predicted; so is all of ranks in several processes.
	Measure bool
	// Trace times every command: reports then say how well communication was
	// hidden and draw a timeline, and errors name the command that a GPU failed
	// in, not only some around it. On a GPU that takes the host more time than
	// the commands themselves. Of a batch that is replayed the last run is timed.
	Trace bool
	// Algorithm names the algorithm of collectives to try first, where the text
	// pins none; empty for the fastest as measured on this machine.
	Algorithm string
	// FixedAlgorithms makes bits independent of the batch: on GPUs a row of a product, a query of attention and an
	// element of a collective get the same bits whatever is computed beside them. Nothing is picked by measurement, so
	// bits do not differ between machines either. It costs time: see "Bits that do not depend on the batch" in
	// docs/kernels.md.
	FixedAlgorithms bool
	// ProfileRange makes each batch of a plan but its first a range that a profiler of the process captures (nsys
	// profile --capture-range=cudaProfilerApi), and names statements in it where NVTX's library is found. A machine
	// without GPUs returns ErrUnsupported from such a batch.
	ProfileRange bool
	// CheckLaunches looks for what launched kernels read and write without saying so: on a GPU they work on
	// copies of their tensors, with poison around them and in what they only write. An undeclared write ends
	// the run with an error; a read shows in results. The CPU machine does the like always.
	CheckLaunches bool
	// Gather has each process of a World get all results whole, at a cost: processes wait for each other
	// when runs end. Else Report.Out has those of which this process holds every element, and
	// Report.OutLocal the blocks of its ranks.
	Gather bool
	// Logger gets progress at debug level, and a warning where products run by a guess
	// (see Report.Guesses); nil for none.
	Logger *slog.Logger
}

// Load lowers p for the binding b. Plans are made per dims, at the first Run
// or Prepare with them. What no dims make right of a binding is an error here, and of one
// that gives every dim all that is wrong with it.
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

// Close ends what runs and frees everything.
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

// closesLater notes a program that devices keep open.
func (m *Machine) closesLater(p *exec.Program) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closing = slices.DeleteFunc(m.closing, func(p *exec.Program) bool { return !p.Closing() })
	if p.Closing() {
		m.closing = append(m.closing, p)
	}
}

// Stats says how the machine's resources are used.
type Stats struct{ Plans PlanStats }

// Stats returns the machine's statistics.
func (m *Machine) Stats() Stats {
	m.plans.mu.Lock()
	defer m.plans.mu.Unlock()
	m.plans.measure()
	return Stats{m.plans.stats}
}

// why says of what was aborted because the machine was closed meanwhile, and not because
// ctx ended, that it is so.
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

// capturing reports whether a stream of the caller's is captured.
func (m *Machine) capturing(streams []uintptr) (bool, error) {
	for _, s := range streams {
		if is, err := m.dev.Capturing(s); is || err != nil {
			return is, err
		}
	}
	return false, nil
}
