// Package exec runs plans on a machine.
//
// Load resolves everything that a plan refers to (package image). A Program is the resulting image and what changes
// from run to run: the number of the run, the host memory of runs in flight, the recorded graph and the trace. During
// a run, one goroutine goes through the plan's list of commands and issues them; it looks nothing up, and allocates
// only what the machine's own queues need.
//
// Begin with Program.Execute (batch.go). A Program consists of these parts; each has its own state and uses only those
// before it:
//
//   - a signature (signature.go) says which arguments are valid;
//   - a weightCache (weight_cache.go) knows which weights are already on the devices;
//   - a binder (bind.go) binds arguments to frames (frame.go), the host memory of runs in flight;
//   - an inputChecker (inputs.go) checks ids and other integer arguments that kernels would refuse;
//   - an issuer (issue.go) issues commands, or launches the recorded graph (replay.go);
//   - a graphRecorder (record.go) records the graph, and times its forms;
//   - enqueued (enqueued.go) has the runs on the caller's streams; with moves (moves.go) such runs use the
//     caller's tensors in place, and a lender (lend.go) leaves results in place for the caller;
//   - a flightRecorder (flight.go) and a symbolizer (symbols.go) report what happened, with the program's names.
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

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/exec/adversary"
	"hocket.example/hocket/internal/exec/grace"
	"hocket.example/hocket/internal/exec/image"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/world"
)

// ErrUnusable is wrapped by what a program returns after a run of it failed,
// or after Close. Load the plan again to go on.
var ErrUnusable = errors.New("the program cannot run any more")

// Options choose how a plan is loaded and run; the zero value is usable.
type Options struct {
	image.Options
	// Trace makes every Result carry a Trace, where the machine can tell times,
	// and errors name the command that failed. On a GPU it takes the host more
	// time than the commands themselves.
	Trace bool
	// Ends keeps Trace to the first and the last command that each stream has of a
	// part of the plan, and leaves what lies between as it runs untraced: marks take
	// a device some microseconds each, and the host. It tells the number of the part
	// that a command is in, negative for none. nil marks every command.
	Ends func(cmd int) int
	// Graph has every run but the first replay a recording of it, where the
	// machine records graphs and the plan's inputs come first and its outputs
	// last: a launch instead of many calls. A trace of a batch then shows, but for
	// inputs and outputs, its last run only, and takes the device some time for each
	// command.
	Graph bool
	// Grace is how long a run may go on when its context has ended, before it is aborted,
	// which makes the program unusable; 0 for not at all.
	Grace time.Duration
	// Gather has every process get the blocks of outputs that others hold: they wait for each other
	// at the end of a batch then. Otherwise there is an output, as a global tensor, only where all its
	// elements are in ranks of this process; see Result.Local.
	Gather bool
	// ProfileRange makes a range of a profiler of each batch but the first, and names statements in it. The
	// range has what is issued until the batch has ended.
	ProfileRange bool
	// Failed is given a program's flight record when a run fails; nil for nobody. It must not
	// use the program.
	Failed func(*Flight)
}

// Program is a plan loaded on a machine. Its methods may be called from many
// goroutines; one batch runs at a time.
type Program struct {
	im     *image.Image
	opts   Options
	flight flightRecorder
	peers  *world.World // nil where all ranks are this process's
	title  string       // of the plan, with its hash, where there are peers
	gather *gatherer    // nil unless Options.Gather, and there are peers

	mu       sync.Mutex // of what follows
	weights  *weightCache
	enqueued *enqueued
	moves    *moves
	lender   *lender
	binder   *binder
	staging  staging
	issuer   *issuer
	recorder graphRecorder
	inputs   *inputChecker
	fate     error // what broken becomes when those who use the world have ended
	broken   error

	closing atomic.Pointer[closing] // nil before a run has failed
}

// closing is that of a program which a failed run has made unusable: what devices still do may keep it open.
type closing struct {
	done chan struct{}
	err  error
}

// Load makes p ready to run on m. ctx bounds the program's life: when it ends,
// what runs is aborted and the program is unusable. On error nothing is left
// behind.
func Load(ctx context.Context, m device.Machine, p *plan.Plan, opts Options) (*Program, error) {
	im, err := image.Build(ctx, m, p, opts.Options)
	if err != nil {
		return nil, err
	}
	weights, enqueued := newWeightCache(im), &enqueued{im: im}
	issuer, moves := &issuer{im: im, weights: weights}, &moves{im: im, enqueued: enqueued}
	lender := &lender{im: im, moves: moves}
	prog := &Program{im: im, opts: opts, peers: m.Peers(), flight: flightRecorder{im: im, told: opts.Failed},
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

// prepare makes what runs need of the world.
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
	s := Stats{Commands: len(p.im.Cmds), Arena: p.im.Plan.ArenaBytes, Staging: p.im.StagingBytes()}
	if r := p.issuer.replay; r != nil {
		s.Graph = r.form
	}
	return s
}

// Members lists the commands that one launch does with a command, itself among them; nil for none.
func (p *Program) Members(cmd int) []int {
	if g := p.im.Groups[cmd]; g != nil {
		return g.Members
	}
	return nil
}

// Flight tells what the program did lately and does now. It waits for nothing that a run
// may hold for long.
func (p *Program) Flight() *Flight { return p.flight.record() }

// Held is the memory that the program has taken on its machine, which may grow with
// its runs.
func (p *Program) Held() device.Held { return p.im.Held() }

// Close frees everything once enqueued runs have ended, or are aborted since they take too long.
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
			if errors.Is(err, context.Canceled) { // the world's own ended before
				return nil
			}
			return err
		} else if err != nil {
			p.im.Logger().Warn("closing a program whose enqueued runs do not end", "error", err)
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

// breakDown turns the error of a run into one that names the program's place,
// and ends the world: nothing in it is known to be in a good state.
func (p *Program) breakDown(cause error) error {
	err := symbolizer{p.im}.explain(cause, p.issuer.replay.ready())
	if met := p.inputs.met(cause); met != nil {
		err = &RunError{Message: fmt.Sprintf("%v; it is of parameter %%%s, which is checked before a run begins only if the "+
			"host has put it there", err, met.Param), Err: errors.Join(met, err)}
	}
	p.flight.failed(err)
	p.im.World.Abort(err)
	for _, w := range p.im.Shared {
		if w != nil {
			w.Forget() // a failed run may have left anything there
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

// closesWithin is how long a run that has failed waits for what devices still do: a kernel may never end.
const closesWithin = time.Second

// Closing reports whether a program that a failed run has made unusable still waits for what devices do.
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

// AwaitClosed waits for that, as long as closing does. Its error says what is lost.
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

// rest waits until enqueued runs have ended. Where ctx ends first they go on.
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

// do calls f with exclusive use of the world. late is ctx extended by the grace. When the world is abandoned, the
// program is too, and f keeps what it uses. The caller holds mu.
func (p *Program) do(ctx context.Context, f func(late context.Context) error) (lost bool, err error) {
	var ended error // not the result: f may write it when do has returned
	late, done := grace.After(ctx, p.opts.Grace)
	defer done()
	if gone := p.im.World.Do(late, func() { ended = f(late) }); gone != nil {
		message := gone.Error()
		if ctx.Err() != nil {
			message = "the time ran out: " + message
		}
		gone = &RunError{Message: message, Err: errors.Join(gone, ctx.Err())}
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
