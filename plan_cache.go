package hocket

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/exec"
	"hocket.example/hocket/internal/exec/resident"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
)

// choice is what plans of a model differ in.
type choice struct {
	dims map[string]int64 // all, however they came by their values
	// resident are the device tensors that the plan's runs work in, where they can.
	resident map[string]*resident.DeviceTensor
}

func (c choice) equal(o choice) bool {
	return maps.Equal(c.dims, o.dims) && maps.Equal(c.resident, o.resident)
}

// owner is whose plans of a cache they are: a model's.
type owner struct {
	log *slog.Logger // LoadOptions.Logger
	// evicted are the dims of plans that were unloaded to make room. It belongs to the plan cache.
	evicted map[string]bool
}

// loaded is a plan for one choice, ready to run.
type loaded struct {
	owner *owner
	choice
	plan *plan.Plan
	prog *exec.Program
	// proof says what was proved of the plan.
	proof proofOf
	held  device.Held // see LoadOptions.Cache
	busy  bool        // a run has it
	// pinned is set once a graph of the caller's has a run of it, which names its memory, or it has lent a result.
	pinned bool
	// reporter is there once a run has ended. It belongs to the holder of the model's lease.
	reporter *reporter
}

// reports are those of a batch, which is not empty.
func (l *loaded) reports(results []*exec.Result) []*Report {
	if l.reporter == nil {
		l.reporter = newReporter(l.plan, results[0].Algorithms, l.proof)
	}
	reports := make([]*Report, len(results))
	for i, r := range results {
		reports[i] = l.reporter.report(r)
	}
	return reports
}

// String names the plan and says what it holds.
func (l *loaded) String() string {
	words := []string{l.plan.Func}
	for _, d := range l.plan.Dims {
		words = append(words, fmt.Sprintf("%s=%d", d.Name, d.Value))
	}
	return fmt.Sprintf("%s with %s", strings.Join(words, " "), tensor.Size(l.held.Bytes()))
}

// stays reports whether the plan cannot be unloaded to make room. The caller holds the cache's mutex.
func (l *loaded) stays() bool { return l.busy || l.pinned }

// worksIn reports whether a device tensor is one of those that the plan was loaded for.
func (l *loaded) worksIn(d *resident.DeviceTensor) bool {
	for _, t := range l.resident {
		if t == d {
			return true
		}
	}
	return false
}

// unload closes a plan that is no longer in the cache.
func (l *loaded) unload(why string) error {
	if log := l.owner.log; log != nil {
		log.Debug("plan unloaded", "plan", l.String(), "why", why)
	}
	return l.prog.Close()
}

// planCache holds the loaded plans of a machine's models. Whoever loads, runs or unloads
// one is a user of the cache for as long.
type planCache struct {
	ctx     context.Context // the machine's
	mu      sync.Mutex
	plans   []*loaded     // least recently used first
	users   int           // but for those that wait behind another
	entered int           // users so far
	changed chan struct{} // closed when there is one user less; nil where nobody waits for that
	// evicting holds one while a user makes room, until it leaves.
	evicting chan struct{}
	stats    PlanStats
}

// PlanStats counts what a machine's plan cache did since the machine was opened.
type PlanStats struct {
	// Hits are the runs and calls of Prepare that found their plan loaded, Misses those that did not. Reloads are the
	// misses whose plan had been there before and was evicted.
	Hits, Misses, Reloads int64
	// Evictions are the plans that were unloaded to make room: for LoadOptions.Cache or where memory was short.
	Evictions int64
	// Plans are loaded now, and hold Bytes, see LoadOptions.Cache. MostBytes is the most that they held. Device of Bytes
	// are memory of a device, for each plan that which it has the most of; the rest is pinned memory of the host.
	Plans                    int
	Bytes, Device, MostBytes int64
}

// measure brings the statistics of what is held up to date.
func (p *planCache) measure() {
	p.stats.Plans, p.stats.Bytes, p.stats.Device = len(p.plans), 0, 0
	for _, l := range p.plans {
		p.stats.Bytes += l.held.Bytes()
		p.stats.Device += l.held.Device
	}
	p.stats.MostBytes = max(p.stats.MostBytes, p.stats.Bytes)
}

// mostEvicted bounds the choices that a model remembers as evicted.
const mostEvicted = 1 << 16

// evicted counts a plan that was removed to make room.
func (p *planCache) evicted(l *loaded) {
	p.stats.Evictions++
	if len(l.owner.evicted) < mostEvicted {
		l.owner.evicted[fmt.Sprint(l.dims)] = true
	}
}

func newPlanCache(ctx context.Context) *planCache {
	return &planCache{ctx: ctx, evicting: make(chan struct{}, 1)}
}

// user is one load, run or unload that uses the cache.
type user struct {
	*planCache
	evicts bool // makes room; others wait behind it
	// enteredAlone is the value of planCache.entered when this was last the only user; 0
	// for never.
	enteredAlone int
	// waits is set while it waits for others, and stays set if its context ended meanwhile.
	waits atomic.Bool
}

func (p *planCache) enter() *user {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.users++
	p.entered++
	u := &user{planCache: p}
	if p.users == 1 {
		u.enteredAlone = p.entered
	}
	return u
}

func (u *user) end() {
	if u.evicts {
		<-u.evicting
	}
	u.count(-1)
}

func (p *planCache) count(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.users += n
	if n < 0 && p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// take returns a model's plan for a choice, and marks it busy; nil where there is none.
func (p *planCache) take(o *owner, key choice) *loaded {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.plans, func(l *loaded) bool { return l.owner == o && l.equal(key) })
	if i < 0 {
		p.stats.Misses++
		if o.evicted[fmt.Sprint(key.dims)] {
			p.stats.Reloads++
			delete(o.evicted, fmt.Sprint(key.dims))
		}
		return nil
	}
	p.stats.Hits++
	p.plans[i].busy = true
	return p.plans[i]
}

// planOf returns a model's plan for some dims that is loaded; nil where there is none.
func (p *planCache) planOf(o *owner, dims map[string]int64) *plan.Plan {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.plans {
		if l.owner == o && maps.Equal(l.dims, dims) {
			return l.plan
		}
	}
	return nil
}

// add adds a plan that is busy.
func (p *planCache) add(l *loaded) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.busy = true
	p.plans = append(p.plans, l)
	p.measure()
}

// rest makes a plan idle, and the most recently used. Its runs may have taken more memory.
func (p *planCache) rest(l *loaded) {
	held := l.prog.Held()
	p.mu.Lock()
	defer p.mu.Unlock()
	l.busy, l.held = false, held
	p.plans = append(slices.DeleteFunc(p.plans, func(o *loaded) bool { return o == l }), l)
	p.measure()
}

// pin has a plan stay until its model is closed.
func (p *planCache) pin(l *loaded) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.pinned = true
}

// plansOf are the loaded plans of a model.
func (p *planCache) plansOf(o *owner) (list []*loaded) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.plans {
		if l.owner == o {
			list = append(list, l)
		}
	}
	return list
}

// remove removes plans, and returns them.
func (p *planCache) remove(which func(l *loaded) bool) (gone []*loaded) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.plans = slices.DeleteFunc(p.plans, func(l *loaded) bool {
		if which(l) {
			gone = append(gone, l)
			return true
		}
		return false
	})
	return gone
}

// beyond removes plans of a model, least recently used first, while together they hold more
// than a bound: never one that is busy, nor, unless all may go, the last one.
func (p *planCache) beyond(o *owner, bound int64, all bool) (gone []*loaded) {
	p.mu.Lock()
	defer p.mu.Unlock()
	left, held := 0, int64(0)
	for _, l := range p.plans {
		if l.owner == o {
			left++
			held += l.held.Bytes()
		}
	}
	p.plans = slices.DeleteFunc(p.plans, func(l *loaded) bool {
		if l.owner != o || l.stays() || left < 2 && !all || held <= bound {
			return false
		}
		left--
		held -= l.held.Bytes()
		gone = append(gone, l)
		p.evicted(l)
		return true
	})
	return gone
}

// resting is what idle plans hold of the device that they have the most of, in bytes.
func (p *planCache) resting() (bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.plans {
		if !l.stays() {
			bytes += l.held.Device
		}
	}
	return bytes
}

// giveUp removes the least recently used idle plan, of whatever model. Where none is idle it
// returns the busy ones, and a channel that is closed when another user leaves; nil where
// there is no other.
func (p *planCache) giveUp() (l *loaded, run []string, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, l := range p.plans {
		if !l.stays() {
			p.plans = slices.Delete(p.plans, i, i+1)
			p.evicted(l)
			return l, nil, nil
		}
		run = append(run, l.String())
	}
	if p.users == 1 {
		return nil, nil, nil
	}
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	return nil, run, p.changed
}

// undisturbed reports whether no other user has entered since u was last alone, which it
// is now.
func (u *user) undisturbed() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	before := u.enteredAlone
	u.enteredAlone = u.entered
	return before == u.enteredAlone
}

// errAlone is why no room can be made.
var errAlone = errors.New("no other plan of this machine is loaded")

// room returns nil if what failed with err can be tried again: err says that memory is
// short, the device has as much in all, and some may have been given back since. It unloads
// one idle plan, the least recently used; where none is idle it waits for another user.
// One user at a time makes room, and others that need room wait behind it: so it fails
// only where no other plan is loaded. The caller has given back what it took.
//
// It wraps errAlone where there is nobody who could make room.
func (u *user) room(ctx context.Context, err error) error {
	if !errors.Is(err, device.ErrOutOfMemory) || errors.Is(err, device.ErrTooLarge) {
		return err
	}
	if !u.evicts {
		waited, werr := u.queue(ctx)
		if werr != nil {
			return fmt.Errorf("%w; another load is making room: %w", err, werr)
		}
		if waited {
			return nil
		}
	}
	for waited := false; ; waited = true {
		l, run, changed := u.giveUp()
		switch {
		case l != nil:
			if cerr := l.unload("memory is short"); cerr != nil {
				return errors.Join(err, cerr)
			}
			return nil
		case changed == nil && u.undisturbed():
			return fmt.Errorf("%w; %w: load for smaller dims or on more ranks, "+
				"close device tensors, or see who else takes memory", err, errAlone)
		case changed == nil || waited:
			return nil
		}
		u.waits.Store(true)
		werr := u.wait(ctx, changed)
		u.waits.Store(werr != nil)
		if werr != nil {
			return fmt.Errorf("%w; other plans of this machine run: %s: %w", err, strings.Join(run, ", "), werr)
		}
	}
}

// roomForTrial gives up the plan used least recently for a trial of a product's
// algorithms, which is made once for all, if those that are idle hold as much as it lacks.
// It reports false where they do not, or another user was faster.
func (p *planCache) roomForTrial(t *device.TrialError) (bool, error) {
	if t.Free+p.resting() < t.Bytes {
		return false, nil
	}
	l, _, _ := p.giveUp()
	if l == nil {
		return false, nil
	}
	return true, l.unload("a product's algorithms are timed")
}

// queue makes u the user that makes room, and reports whether it waited for another.
func (u *user) queue(ctx context.Context) (waited bool, err error) {
	select {
	case u.evicting <- struct{}{}:
		u.evicts = true
		return false, nil
	default:
	}
	u.count(-1)
	defer u.count(1)
	u.waits.Store(true)
	select {
	case u.evicting <- struct{}{}:
		u.evicts = true
		u.waits.Store(false)
		return true, nil
	case <-ctx.Done():
		return true, ctx.Err()
	case <-u.ctx.Done():
		return true, resident.ErrClosed
	}
}

// wait waits for a change, as long as ctx and the machine last.
func (p *planCache) wait(ctx context.Context, changed <-chan struct{}) error {
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-p.ctx.Done():
		return resident.ErrClosed
	}
}
