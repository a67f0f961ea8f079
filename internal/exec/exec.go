// Package exec runs plans on a machine.
//
// Load resolves everything a plan says: arenas, views, prepared kernels,
// streams, events, counters, collectives built to steps. A run is then one
// goroutine's walk over the world list, which asks nothing and, but for the
// machine's own queues, allocates nothing.
//
// On a virtual machine (a scheduled CPU) exec plays the adversary that makes
// wrong programs show: see adversary.go.
package exec

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/internal/trace"
)

// ErrInput is wrapped by errors about the tensors that a run was given.
var ErrInput = errors.New("wrong inputs")

// ErrUnusable is wrapped by what a program returns after a run of it failed,
// or after Close. Load the plan again to go on.
var ErrUnusable = errors.New("the program cannot run any more")

// ErrBudget is wrapped by errors that say that a plan needs more device memory than
// Options.MaxArena.
var ErrBudget = errors.New("more than the budget")

// UnknownAlgorithm says that Options.Algorithm names none, and which there are.
type UnknownAlgorithm struct{ Err error }

// Error lists the names.
func (e *UnknownAlgorithm) Error() string { return e.Err.Error() }

// Options choose how a plan is loaded; the zero value is usable.
type Options struct {
	// Logger gets progress at debug level; nil for none.
	Logger *slog.Logger
	// Trace makes every Result carry a Trace, where the machine can tell times,
	// and errors name the command that failed. On a GPU it takes the host more
	// time than the commands themselves.
	Trace bool
	// Ends keeps Trace to the first and the last command that each stream has of a
	// part of the plan, and leaves what lies between as it runs untraced: marks take
	// a device some microseconds each, and the host. It tells the number of the part
	// that a command is in, negative for none. nil marks every command.
	Ends func(cmd int) int
	// MaxArena bounds the device memory that a rank may reserve, arena and
	// staging of collectives together, in bytes; 0 for no bound.
	MaxArena int64
	// Graph has every run but the first replay a recording of it, where the
	// machine records graphs and the plan's inputs come first and its outputs
	// last: a launch instead of many calls. A trace of a batch then shows, but for
	// inputs and outputs, its last run only, and takes the device some time for each
	// command.
	Graph bool
	// Algorithm names the algorithm of collectives to try first, for those that
	// pin none; empty for what is known to be the fastest.
	Algorithm string
	// Fixed runs a collective in the same way whatever its size, and products by
	// algorithms that are not picked by measurement.
	Fixed bool
	// Timed has Load fail with a *device.TrialError where there is no memory to find the
	// fastest algorithm of a product in, rather than take the library's first guess.
	Timed bool
	// Store keeps the bytes of Weights, parameters by name, for this program and others;
	// nil for none. Which parameters RunBatchWith and Hold are given does not depend on it.
	Store   *Store
	Weights map[string]bool
	// Resident has parameters lie in device tensors, where the plan can work with them there:
	// runs must be given these, by Direct, and for inout parameters as what to leave them in.
	// They must outlive the program's runs.
	Resident map[string]*DeviceTensor
	// Grace is how long a run may go on when its context has ended, before it is aborted,
	// which makes the program unusable; 0 for not at all.
	Grace time.Duration
	// NoChains runs each command by itself, where the machine could run several as
	// one kernel. The bits are the same.
	NoChains bool
}

// Result is what one run gave.
type Result struct {
	// Outputs by name, as global tensors, owned by the caller.
	Outputs map[string]*tensor.Tensor
	// Trace of this run; nil unless asked for.
	Trace *trace.Trace
	// Issue is what the host took to issue the whole batch that the run is of.
	Issue time.Duration
	// Algorithms are those of the collectives, by their index in the plan.
	// Callers must not change it.
	Algorithms []string
	// Detours says which devices are apart and why (see device.Partial); empty where
	// none are.
	Detours []string
	// Guesses names the products that run by a guess (see device.Guesser).
	Guesses []string
	// PassedOver says why a tuned table of collectives that there is was not used.
	PassedOver string
}

// Program is a plan loaded on a machine. Its methods may be called from many
// goroutines; runs take turns.
type Program struct {
	plan  *plan.Plan
	opts  Options
	log   *slog.Logger
	caps  device.Caps
	world device.World
	// machine is its name, dispatch what chooses the algorithms of collectives.
	machine  string
	dispatch *comm.Dispatch
	// together tells whether the members of all collectives may wait for each other.
	together bool

	// inputs and outputs are the plan's, without absent blocks.
	inputs, outputs []plan.IO
	params          map[string]int // the first block of each input; of one that has none that of the next

	streams  []device.Stream
	events   []device.Event
	counters [][]device.Counters // by plan counter, rank
	memory   memory
	channels []*comm.Channel
	// algorithms of the plan's collectives.
	algorithms []string
	guesses    []string // see Result
	passedOver string   // likewise
	pairs      *comm.Pairs
	cmds       []command
	chains     map[int]*fusion // by command
	tails      map[int32]*tail // by collective; nil once it is loaded
	adv        *adversary      // nil unless the machine is virtual
	tracer     *tracer         // nil unless Options.Trace
	replay     *replay         // nil unless Options.Graph

	mu       sync.Mutex
	run      int64 // runs issued so far
	frames   []*frame
	staged   staged
	spoils   bool // this batch's runs update what they are given in the host's memory
	lasting  lasting
	borrowed []*kept // of the store
	// constant are the buffers that lie in the store. No plan writes these: a copy does, before
	// the kernels of a run, if at all.
	constant map[int32]bool
	// residents are the device tensors that inputs lie in, or nil; stays tells which blocks
	// of outputs are in one already.
	residents []*DeviceTensor
	stays     []bool
	// abandoned are copies of residents that a failed world may still be at: what they take
	// is given back when that is closed.
	abandoned copies
	broken    error
}

// Load makes p ready to run on m. ctx bounds the program's life: when it ends,
// what runs is aborted and the program is unusable. On error nothing is left
// behind.
func Load(ctx context.Context, m device.Machine, p *plan.Plan, opts Options) (*Program, error) {
	if most := m.Caps().MaxRanks; p.Ranks > most {
		return nil, fmt.Errorf("%s is to run on %d ranks, and this machine has at most %d: %w", p.Func, p.Ranks, most, device.ErrUnsupported)
	}
	if err := check(p); err != nil {
		return nil, fmt.Errorf("malformed plan of %s: %w", p.Func, err)
	}
	world, err := m.Open(ctx, p.Ranks)
	if err != nil {
		return nil, err
	}
	prog := &Program{plan: p, opts: opts, log: opts.Logger, caps: m.Caps(), world: world, machine: m.Name(),
		inputs: held(p.Inputs), outputs: held(p.Outputs), params: map[string]int{}}
	blocks := 0
	for i := range prog.inputs {
		prog.params[prog.inputs[i].Name] = blocks
		blocks += len(prog.inputs[i].Parts)
	}
	if prog.log == nil {
		prog.log = slog.New(slog.DiscardHandler)
	}
	if err := prog.load(ctx); err != nil {
		return nil, errors.Join(err, world.Close(), prog.giveBack())
	}
	return prog, nil
}

// load resolves the plan, each step standing on those before it.
func (p *Program) load(ctx context.Context) error {
	steps := []func() error{
		p.makeStreams, p.makeEvents, p.makeCounters, p.findLasting, func() error { return p.borrow(ctx) }, p.reserveArenas,
		p.findTable, p.designChannels, p.openChannels, p.openPairs, p.resolveCommands, p.readyStreams,
		p.observe, p.watchUses, p.planReplay,
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	if w, ok := p.world.(device.Guesser); ok {
		p.guesses = w.Guesses()
	}
	if len(p.guesses) > 0 {
		p.log.Warn("products run by a guess: no memory was free to time their algorithms in", "func", p.plan.Func, "products", p.guesses)
	}
	p.log.Debug("plan loaded", "func", p.plan.Func, "ranks", p.plan.Ranks, "commands", len(p.cmds), "arena", p.plan.ArenaBytes, "weights of the store", len(p.borrowed), "residents", p.residentNames())
	return p.world.Sync(ctx)
}

// Run runs the program once. inputs are the global tensors by parameter name;
// they are read until Run returns.
func (p *Program) Run(ctx context.Context, inputs map[string]*tensor.Tensor) (*Result, error) {
	rs, err := p.RunBatch(ctx, []map[string]*tensor.Tensor{inputs})
	if err != nil {
		return nil, err
	}
	return rs[0], nil
}

// RunBatch runs the program once for each set of inputs, back to back, with no
// host synchronisation between the runs (S13), and returns their results in
// order. A failed run makes the program unusable; wrong inputs, a context that
// has already ended, or ends within Options.Grace of the run's end, and a MismatchError
// do not.
func (p *Program) RunBatch(ctx context.Context, batch []map[string]*tensor.Tensor) ([]*Result, error) {
	return p.RunBatchWith(ctx, batch, nil)
}

// RunBatchWith is RunBatch where some of the tensors, by parameter, are weights: their
// bytes never change. What all runs of the batch are given of them is uploaded before it,
// and stays on the devices until a batch is given something else. Inout parameters are
// uploaded for each run nevertheless.
func (p *Program) RunBatchWith(ctx context.Context, batch []map[string]*tensor.Tensor, weights map[string]*tensor.Tensor) ([]*Result, error) {
	return p.RunBatchDirect(ctx, batch, nil, weights)
}

// RunBatchDirect is RunBatchWith where the caller says whence and whereto for each run, or nil.
// He holds the device tensors among them. When a run fails, those that the batch was to
// write hold nothing any more.
func (p *Program) RunBatchDirect(ctx context.Context, batch []map[string]*tensor.Tensor, direct []Direct, weights map[string]*tensor.Tensor) ([]*Result, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.broken != nil {
		return nil, p.broken
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("before the run: %w", err)
	}
	if len(batch) == 0 {
		return nil, nil
	}
	defer p.trimFrames()
	if err := p.fillFrames(batch, direct, weights); err != nil {
		return nil, err
	}
	if err := p.settle(ctx, batch[0]); err != nil {
		return nil, err
	}
	if err := p.prepareRuns(ctx, len(batch)); err != nil {
		return nil, err
	}
	late, done := lateBy(ctx, p.opts.Grace)
	defer done()
	first := p.run // trials of graphs are runs too
	began := time.Now()
	left(direct, false)
	err := p.issueWhole(late, len(batch))
	issued := time.Since(began)
	if err == nil {
		err = p.world.Sync(late)
	}
	if err != nil {
		if err = p.breakDown(err); p.spoils || updates(direct) {
			err = &SpoiledError{err}
		}
		return nil, err
	}
	ended := ctx.Err()
	results, err := p.collect(first, len(batch), direct)
	if ended != nil && err == nil {
		return nil, fmt.Errorf("the run ended well, but not before its context: %w", ended)
	}
	if err != nil {
		return nil, err
	}
	left(direct, true)
	detours := p.detours()
	for _, r := range results {
		r.Issue, r.Algorithms, r.Detours, r.Guesses, r.PassedOver = issued, p.algorithms, detours, p.guesses, p.passedOver
	}
	return results, nil
}

// prepareRuns has ready what k runs need that stays for those to come. If ctx ends meanwhile the
// runs do not begin, and the program can still run: were it given up, deadlines shorter than
// this takes would have it begin again for ever. Only who leaves runs no time has it given up.
func (p *Program) prepareRuns(ctx context.Context, k int) error {
	grace := transferGrace
	if p.opts.Grace <= 0 {
		grace = 0
	}
	late, done := lateBy(ctx, grace)
	defer done()
	err := p.stage(k)
	if err == nil {
		err = p.record(late)
	}
	if err != nil {
		return p.breakDown(err)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("before the run, while it was made ready: %w", err)
	}
	return nil
}

// Usable reports whether the program can run again.
func (p *Program) Usable() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.broken == nil
}

func (p *Program) detours() []string {
	if w, ok := p.world.(device.Partial); ok {
		return w.Detours()
	}
	return nil
}

// Stats are the sizes of a loaded program, and how it is replayed.
type Stats struct {
	Commands int   // in the world list
	Arena    int64 // bytes on each rank, as planned
	Staging  int64 // bytes that collectives reserve on the rank with the most
	// Graph is the form that the machine's graph of the program was found fastest
	// in; empty where there is no graph, or only one form.
	Graph string
}

// Stats returns the sizes of the program.
func (p *Program) Stats() Stats {
	s := Stats{Commands: len(p.plan.Cmds), Arena: p.plan.ArenaBytes, Staging: p.memory.staging}
	if p.replay != nil {
		s.Graph = p.replay.form
	}
	return s
}

// Held is the memory that the program has taken on its machine, which may grow with
// its runs. Of a machine that does not tell it is what was planned.
func (p *Program) Held() device.Held {
	if w, ok := p.world.(device.Holder); ok {
		return w.Held()
	}
	return device.Held{Device: p.arenaBytes() + p.memory.staging}
}

// Close aborts what runs and frees everything.
func (p *Program) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.broken != nil {
		return nil
	}
	p.broken = fmt.Errorf("%w: it is closed", ErrUnusable)
	return errors.Join(p.world.Close(), p.giveBack())
}

// breakDown turns the error of a run into one that names the program's place,
// and ends the world: nothing in it is known to be in a good state.
func (p *Program) breakDown(cause error) error {
	err := p.explain(cause)
	p.world.Abort(err)
	for _, k := range p.borrowed {
		k.forget() // who knows
	}
	if cerr := errors.Join(p.world.Close(), p.giveBack()); cerr != nil {
		p.log.Warn("closing the world after a failed run", "error", cerr)
	}
	p.broken = fmt.Errorf("%w after a failed run: load the plan again; the failure was: %w", ErrUnusable, err)
	return err
}
