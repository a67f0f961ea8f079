// Package exec runs plans on a machine.
//
// Load resolves everything that a plan refers to (package image). A Program consists of the resulting image and the
// state that changes from run to run: the number of the run, the host memory of runs in flight, the recorded graph and
// the trace. During a run, one goroutine goes through the plan's list of commands and issues them; it looks nothing up,
// and allocates only memory that the machine's own queues need.
//
// Begin with Program.Execute (batch.go). A Program consists of the following parts. Each part has its own state and
// uses only the parts before it:
//
//   - a signature (signature.go) checks which arguments are valid;
//   - a weightCache (weight_cache.go) records which weights are already on the devices;
//   - a binder (bind.go) binds arguments to frames (frame.go), the host memory of runs in flight;
//   - an inputChecker (inputs.go) checks ids and other integer arguments that kernels would refuse;
//   - an issuer (issue.go) issues commands, or launches the recorded graph (replay.go);
//   - a graphRecorder (record.go) records the graph, and measures its forms;
//   - enqueued (enqueued.go) holds the runs on the caller's streams; with moves (moves.go) such runs use the caller's
//     tensors in place, and a lender (lend.go) leaves results in place for the caller;
//   - a flightRecorder (flight.go) and a symbolizer (symbols.go) report events with the program's names.
//
// On a virtual machine (a scheduled CPU) package adversary makes incorrect plans produce wrong results.
package exec

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"hocket.example/hocket/fault"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/exec/adversary"
	"hocket.example/hocket/internal/exec/grace"
	"hocket.example/hocket/internal/exec/image"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/world"
)

// ErrUnusable is wrapped by the errors that a program returns after a failed run or after Close. Load the plan again to
// continue.
var ErrUnusable = errors.New("the program can no longer run")

// Options configures how a plan is loaded and run; the zero value is usable.
type Options struct {
	image.Options
	// Trace adds a Trace to every Result, if the machine can measure times, and makes errors name the command that failed.
	// On a GPU, tracing costs the host more time than issuing the commands.
	Trace bool
	// Ends limits Trace to the first and the last command that each stream has in each part of the plan; commands
	// between the two are not traced, because each mark costs several microseconds of a device's time, and also host
	// time. Ends returns the number of the part to which a command belongs, or a negative number if the command belongs
	// to no part. If Ends is nil, every command is marked.
	Ends func(cmd int) int
	// Graph makes every run except the first replay a recorded graph of the run, with one launch instead of many calls.
	// It requires a machine that records graphs, and a plan with its inputs first and its outputs last. A trace of a
	// batch then shows all runs for inputs and outputs, but only the last run for other commands, and costs the device
	// some time for each command.
	Graph bool
	// Grace is the time that a run may continue after its context has ended. After Grace the run is aborted, which
	// makes the program unusable.
	Grace time.Duration
	// ProfileRange makes a profiler capture each batch except the first, labelled with the names of statements. The
	// profiler's range lasts until the batch has ended.
	ProfileRange bool
	// Failed, if not nil, is called with the program's flight record when a run fails. The function must not use the
	// program.
	Failed func(*Flight)
}

// Program is a plan loaded on a machine. Its methods may be called concurrently; one batch runs at a time.
type Program struct {
	im     *image.Image
	opts   Options
	flight flightRecorder
	peers  *world.World // the other processes; nil if all ranks belong to this process
	title  string       // the plan's name with its hash; set only if there are other processes
	gather *gatherer    // nil unless Options.Gather is set and there are other processes

	mu       sync.Mutex // protects the following fields
	weights  *weightCache
	enqueued *enqueued
	moves    *moves
	lender   *lender
	binder   *binder
	staging  staging
	issuer   *issuer
	recorder graphRecorder
	inputs   *inputChecker
	fate     error // set to the value of broken after all users of the world have finished
	broken   error

	closing atomic.Pointer[closing] // nil until a run has failed
}

// closing is the state of closing a program that a failed run has made unusable. Work that devices still execute may
// delay closing.
type closing struct {
	done chan struct{}
	err  error
}

// Load prepares plan p to run on machine m. ctx bounds the program's life: when ctx ends, runs are aborted and the
// program is unusable. On error, everything is released.
func Load(ctx context.Context, m device.Machine, p *plan.Plan, opts Options) (*Program, error) {
	im, err := image.Build(ctx, m, p, opts.Options)
	if err != nil {
		return nil, err
	}
	weights, enqueued := newWeightCache(im), &enqueued{im: im}
	issuer, moves := &issuer{im: im, weights: weights}, &moves{im: im, enqueued: enqueued}
	lender := &lender{im: im, moves: moves}
	prog := &Program{im: im, opts: opts, peers: m.Peers(), flight: flightRecorder{im: im, onFailure: opts.Failed},
		weights: weights, enqueued: enqueued, moves: moves, lender: lender, binder: newBinder(im, weights, enqueued),
		staging: staging{im: im}, issuer: issuer,
		recorder: graphRecorder{issuer: issuer, peers: m.Peers() != nil, backup: backup{im: im}, moves: moves,
			lender: lender}}
	prog.inputs = newInputChecker(im, m.Peers(), prog.binder, issuer)
	if lost := im.World.Do(context.WithoutCancel(ctx), func() { err = prog.prepare(ctx) }); lost != nil {
		return nil, lost
	}
	if err != nil {
		return nil, errors.Join(err, prog.close())
	}
	return prog, nil
}

// prepare prepares the resources of the world that runs need.
func (p *Program) prepare(ctx context.Context) (err error) {
	s, caps := p.issuer, p.im.Caps
	s.marked = markedOf(p.im)
	if p.opts.Trace && caps.Traces {
		s.tracer = observe(p.im)
		if p.opts.Ends != nil {
			s.marked = endsOf(p.im, s.marked, p.opts.Ends)
		}
	}
	if caps.Virtual {
		if s.adv, err = adversary.New(p.im); err != nil {
			return err
		}
	}
	if p.opts.Graph {
		if s.replay, err = newReplay(p.im); err != nil {
			return err
		}
	}
	if p.peers != nil {
		p.title = fmt.Sprintf("%s [plan %.16s]", p.im.Plan.Title(), p.im.Plan.HashString())
		if p.opts.Gather {
			if p.gather, err = newGatherer(ctx, p.peers, p.im.Plan, p.im.Outputs); err != nil {
				return err
			}
			p.binder.gathers = true
		}
	}
	return p.im.World.Sync(ctx)
}

// Usable reports whether the program can run again.
func (p *Program) Usable() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.broken == nil
}

// Stats holds the sizes of a loaded program, and the form of its graph.
type Stats struct {
	Commands int   // number of commands of all ranks
	Arena    int64 // size in bytes of each rank's arena
	Staging  int64 // size in bytes of the staging of collectives, on the rank where it is largest
	// Graph is the name of the graph's fastest form; empty if there is no graph, or only one form.
	Graph string
}

// Stats returns the sizes of the program.
func (p *Program) Stats() Stats {
	s := Stats{Commands: len(p.im.Cmds), Arena: p.im.Plan.ArenaBytes, Staging: p.im.StagingBytes()}
	if r := p.issuer.replay; r != nil {
		s.Graph = r.form
	}
	return s
}

// Members returns the commands that run in the same launch as the given command, including that command; nil if it is
// not in a group.
func (p *Program) Members(cmd int) []int {
	if g := p.im.Groups[cmd]; g != nil {
		return g.Members
	}
	return nil
}

// Flight returns a record of the program's recent and current activity. It does not wait for running work.
func (p *Program) Flight() *Flight { return p.flight.record() }

// Held returns the memory that the program has allocated on its machine, which may grow with its runs.
func (p *Program) Held() device.Held { return p.im.Held() }

// Close frees everything after enqueued runs have ended. Runs that take too long are aborted.
func (p *Program) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.broken != nil {
		return nil
	}
	if p.enqueued.inFlight {
		ctx, cancel := context.WithTimeout(context.Background(), grace.Transfer)
		defer cancel()
		if _, err := p.do(ctx, func(context.Context) error { return p.rest(ctx) }); p.broken != nil {
			if errors.Is(err, context.Canceled) { // the world's own context had ended before
				return nil
			}
			return err
		} else if err != nil {
			p.im.Logger().Warn("closing a program although its enqueued runs have not ended", "error", err)
		}
	}
	p.broken = fmt.Errorf("%w: it is closed", ErrUnusable)
	return p.close()
}

func (p *Program) close() error {
	err := errors.Join(p.im.Close(), p.recorder.backup.give())
	p.gather.close()
	return err
}

// breakDown is called when a run has failed. breakDown converts the error to an error that names the program's
// statement. breakDown also aborts the world, because its state is unknown.
func (p *Program) breakDown(cause error) error {
	err := symbolizer{p.im}.explain(cause, p.issuer.replay.ready())
	if met := p.inputs.met(cause); met != nil {
		at := fault.RunError{Rank: -1}
		if run := (*fault.RunError)(nil); errors.As(err, &run) {
			at = *run
		}
		at.Message = fmt.Sprintf("%v; the value is in parameter %%%s, which is checked before a run only if it is in host "+
			"memory", err, met.Param)
		at.Err = errors.Join(met, err)
		err = &at
	}
	p.flight.failed(err)
	p.im.World.Abort(err)
	for _, w := range p.im.Shared {
		if w != nil {
			w.Forget() // a failed run may have overwritten the weight
		}
	}
	c := &closing{done: make(chan struct{})}
	p.closing.Store(c)
	go func() {
		defer close(c.done)
		c.err = p.close()
	}()
	select {
	case <-c.done:
		if c.err != nil {
			p.im.Logger().Warn("closing the world after a failed run", "error", c.err)
		}
	case <-time.After(closesWithin):
	}
	p.fate = unusableAfter(err)
	return err
}

// closesWithin is the time for which a failed run waits for unfinished work on the devices, since a kernel may never
// end.
const closesWithin = time.Second

// Closing reports whether a program that a failed run has made unusable still waits for work on the devices.
func (p *Program) Closing() bool {
	c := p.closing.Load()
	if c == nil {
		return false
	}
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

// AwaitClosed waits until a program that a failed run has made unusable is closed. The error reports the resources
// that could not be released.
func (p *Program) AwaitClosed() error {
	c := p.closing.Load()
	if c == nil {
		return nil
	}
	<-c.done
	return c.err
}

func unusableAfter(err error) error {
	return fmt.Errorf("%w after a failed run: load the plan again; the failure was: %w", ErrUnusable, err)
}

// rest waits until enqueued runs have ended. If ctx ends first, rest returns its error and the runs continue.
func (p *Program) rest(ctx context.Context) error {
	if !p.enqueued.inFlight {
		return nil
	}
	if err := p.enqueued.wait(ctx); err != nil {
		return err
	}
	spoiled, err := p.enqueued.outcome()
	if err == nil {
		return nil
	}
	if err = p.breakDown(err); spoiled {
		err = &SpoiledError{err}
	}
	return err
}

// do calls f with exclusive use of the world. late is a context.Context that ends Options.Grace after ctx. If the world
// is abandoned, the program is abandoned too, and f keeps the resources that it uses. The caller holds mu.
func (p *Program) do(ctx context.Context, f func(late context.Context) error) (lost bool, err error) {
	var ended error // a variable separate from do's result, because f may write it after do has returned
	late, done := grace.After(ctx, p.opts.Grace)
	defer done()
	if gone := p.im.World.Do(late, func() { ended = f(late) }); gone != nil {
		message := gone.Error()
		if ctx.Err() != nil {
			message = "the time limit was reached: " + message
		}
		gone = &fault.RunError{Rank: -1, Message: message, Err: errors.Join(gone, ctx.Err())}
		p.flight.failed(gone)
		p.broken = unusableAfter(gone)
		for _, w := range p.im.Shared {
			if w != nil {
				w.Fail(gone)
			}
		}
		return true, gone
	}
	if p.fate != nil {
		p.broken = p.fate
	}
	return false, ended
}
