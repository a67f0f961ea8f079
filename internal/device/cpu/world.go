package cpu

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"hocket.example/hocket/internal/device"
	procs "hocket.example/hocket/internal/world"
)

// world is a set of devices. The mutex mu guards the state that streams share: queues, marks, counter values and the
// cause. Kernels, copies and observers run without mu.
type world struct {
	device.DefaultWorld
	m       *machine
	devices []*dev
	opened  time.Time
	unwatch func() bool   // stops watching the context.Context that was passed to Open
	peers   *procs.Spread // the processes that share the world; nil if all ranks are in this process

	mu      sync.Mutex
	streams []*stream // streams of all devices, in order of creation
	// number of streams that have a goroutine (concurrent mode), or of steps in progress (scheduled mode)
	running  int
	awaiting int       // number of streams whose goroutines wait for other processes
	quiet    sync.Cond // condition variable that is signalled when running and awaiting are both 0
	done     int       // number of executed tasks; counted only if there are other processes
	observer device.Observer
	cause    error // the reason why the world has ended; nil while it is open
	ended    atomic.Bool

	// The following fields are used only in scheduled mode.
	rng        *rand.Rand
	step       int64
	syncing    bool
	candidates []*stream // list that the method ready reuses
}

func newWorld(ctx context.Context, m *machine, ranks int, p *procs.Spread) *world {
	w := &world{m: m, opened: time.Now(), rng: rand.New(rand.NewPCG(uint64(m.opts.Seed), 0x686f636b6574))}
	w.quiet.L = &w.mu
	w.peers = p
	for r := range ranks {
		w.devices = append(w.devices, &dev{w: w, rank: r, foreign: !w.Local(r)})
	}
	w.unwatch = context.AfterFunc(ctx, func() { w.expire(ctx, new(bool)) })
	if p != nil {
		go p.Watch(w.Abort)
	}
	return w
}

func (w *world) scheduled() bool { return w.m.opts.Mode == Scheduled }

func (w *world) Ranks() int { return len(w.devices) }

// Device returns nil for a rank outside [0, Ranks()).
func (w *world) Device(rank int) device.Device {
	if rank < 0 || rank >= len(w.devices) {
		return nil
	}
	if !w.Local(rank) {
		return device.ForeignDevice{Device: w.devices[rank]}
	}
	return w.devices[rank]
}

func (w *world) Observe(o device.Observer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.observer = o
}

// Sync waits for all work. If ctx ends, Sync ends the world, because work in flight cannot be cancelled otherwise. Sync
// returns only when no work is running.
func (w *world) Sync(ctx context.Context) error {
	over := false // guarded by mu; set when Sync returns, so that ctx has no effect after that
	stop := context.AfterFunc(ctx, func() { w.expire(ctx, &over) })
	defer stop()
	w.mu.Lock()
	defer w.mu.Unlock()
	defer func() { over = true }()
	if w.scheduled() {
		if err := w.runScheduled(ctx); err != nil {
			return err
		}
	} else {
		for w.running > 0 || w.awaiting > 0 {
			w.quiet.Wait()
		}
	}
	if w.cause == nil {
		if blocked := w.blocked(); len(blocked) > 0 {
			w.end(&device.Deadlock{Blocked: blocked})
		}
	}
	return w.err()
}

func (w *world) Abort(cause error) {
	if cause == nil {
		cause = errors.New("Abort was called")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cause == nil && w.peers != nil {
		w.peers.Abort(cause)
	}
	w.end(cause)
}

func (w *world) Close() error {
	w.unwatch()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cause == errClosed {
		return w.err()
	}
	if w.peers != nil {
		w.peers.Forget(w.peers.Name + " ") // remove segments that a failed load has left
	}
	w.end(errClosed)
	w.cause = errClosed
	for w.running > 0 || w.awaiting > 0 {
		w.quiet.Wait()
	}
	for _, d := range w.devices {
		d.freeAll()
	}
	return nil
}

// end ends the world; only the first cause is recorded. The caller holds mu.
func (w *world) end(cause error) {
	if w.cause != nil {
		return
	}
	w.cause = cause
	w.ended.Store(true)
	if w.peers != nil {
		w.peers.End(cause, w.busy())
	}
	for _, s := range w.streams {
		s.queue = queue{}
	}
}

// expire ends the world because ctx has ended. expire does nothing if *over reports that the call to which ctx was
// passed has already returned. The error describes the current operation of each stream.
func (w *world) expire(ctx context.Context, over *bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if *over {
		return
	}
	w.end(&device.Expired{Err: ctx.Err(), Cause: context.Cause(ctx), At: w.standing()})
}

// err returns the error that calls on a world return after the world has ended. The caller holds mu.
func (w *world) err() error {
	if w.cause == nil {
		return nil
	}
	return &device.Aborted{Cause: w.cause}
}

// busy reports whether any work is unfinished. The caller holds mu.
func (w *world) busy() bool {
	return w.running > 0 || slices.ContainsFunc(w.streams, func(s *stream) bool { return !s.queue.empty() })
}

func (w *world) check() error {
	if !w.ended.Load() {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err()
}

// blocked describes the streams with unfinished work. The caller holds mu.
func (w *world) blocked() []device.Blocked {
	var list []device.Blocked
	for _, s := range w.streams {
		if t, id := s.head(); t != nil {
			list = append(list, device.Blocked{Rank: s.dev.rank, Stream: s.name, ID: id, On: t.waitsFor()})
		}
	}
	return list
}

// Standings implements device.Status.
func (w *world) Standings() []device.Standing {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.standing()
}

// standing describes the current operation of each stream with unfinished work. The caller holds mu.
func (w *world) standing() []device.Standing {
	var list []device.Standing
	for _, s := range w.streams {
		at := device.Standing{Rank: s.dev.rank, Stream: s.name, Since: s.since}
		switch t, id := s.head(); {
		case s.busy != "":
			at.ID, at.Does = s.openMark(), "runs "+s.busy
		case t != nil && !t.ready():
			at.ID, at.Does = id, "waits for "+t.waitsFor()
		default:
			continue
		}
		list = append(list, at)
	}
	return list
}
