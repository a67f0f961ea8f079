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

// choice identifies a plan among the plans of a model.
type choice struct {
	dims map[string]int64 // the values of all dims, regardless of how they were set
	// resident holds the device tensors in which the plan's runs work directly, if that is possible.
	resident map[string]*resident.DeviceTensor
}

func (c choice) equal(o choice) bool {
	return maps.Equal(c.dims, o.dims) && maps.Equal(c.resident, o.resident)
}

// owner identifies the model that owns plans in a cache.
type owner struct {
	log *slog.Logger // LoadOptions.Logger
	// evicted records the dims of plans that were unloaded to make room. The mutex of the plan cache protects it.
	evicted map[string]bool
}

// loaded is a loaded plan for one choice, ready to run.
type loaded struct {
	owner *owner
	choice
	plan *plan.Plan
	prog *exec.Program
	// proof is the result of proving the plan.
	proof proofOf
	held  device.Held // the memory that the plan holds; see LoadOptions.Cache
	busy  bool        // a run uses the plan
	// pinned is set if a caller's graph contains a run of the plan and therefore refers to the plan's memory, or if the
	// plan has lent a result.
	pinned bool
	// reporter is set when a run has ended. Only the holder of the model's lease may use it.
	reporter *reporter
}

// reports returns the reports of a batch. The batch must contain at least one run.
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

// String describes the plan and the amount of memory that it holds.
func (l *loaded) String() string {
	words := []string{l.plan.Func}
	for _, d := range l.plan.Dims {
		words = append(words, fmt.Sprintf("%s=%d", d.Name, d.Value))
	}
	return fmt.Sprintf("%s with %s", strings.Join(words, " "), tensor.Size(l.held.Bytes()))
}

// stays reports whether the plan cannot be unloaded to make room. The caller must hold the cache's mutex.
func (l *loaded) stays() bool { return l.busy || l.pinned }

// worksIn reports whether the plan was loaded to work directly in the device tensor d.
func (l *loaded) worksIn(d *resident.DeviceTensor) bool {
	for _, t := range l.resident {
		if t == d {
			return true
		}
	}
	return false
}

// unload closes a plan that has been removed from the cache.
func (l *loaded) unload(why string) error {
	if log := l.owner.log; log != nil {
		log.Debug("plan unloaded", "plan", l.String(), "why", why)
	}
	return l.prog.Close()
}

// planCache holds the loaded plans of a machine's models. A call that loads, runs or unloads a plan is a user of the
// cache for the duration of the call.
type planCache struct {
	ctx     context.Context // the context of the machine
	mu      sync.Mutex
	plans   []*loaded     // the least recently used plan is first
	users   int           // number of users, except those that wait for another user
	entered int           // number of users that have entered so far
	changed chan struct{} // closed when a user leaves; nil if no caller waits for that
	// evicting is a channel of capacity 1. It holds a value from the moment that a user begins to make room until that
	// user leaves.
	evicting chan struct{}
	stats    PlanStats
}

// PlanStats holds the counters of a machine's plan cache since the machine was opened.
type PlanStats struct {
	// Hits is the number of runs and calls of Prepare that found their plan loaded, and Misses is the number that did not.
	// Reloads is the number of misses whose plan had been loaded before and was evicted.
	Hits, Misses, Reloads int64
	// Evictions is the number of plans that were unloaded to make room, either because of LoadOptions.Cache or because
	// memory was short.
	Evictions int64
	// Plans is the number of plans that are loaded now, and Bytes is the memory that they hold, see LoadOptions.Cache.
	// MostBytes is the largest value of Bytes so far. Device is the part of Bytes that is device memory; for each plan,
	// the device on which the plan holds the most memory counts. The rest of Bytes is pinned host memory.
	Plans                    int
	Bytes, Device, MostBytes int64
}

// measure updates the statistics on memory.
func (p *planCache) measure() {
	p.stats.Plans, p.stats.Bytes, p.stats.Device = len(p.plans), 0, 0
	for _, l := range p.plans {
		p.stats.Bytes += l.held.Bytes()
		p.stats.Device += l.held.Device
	}
	p.stats.MostBytes = max(p.stats.MostBytes, p.stats.Bytes)
}

// mostEvicted is the largest number of evicted choices that a model records.
const mostEvicted = 1 << 16

// evicted counts a plan that was removed to make room, and records its choice.
func (p *planCache) evicted(l *loaded) {
	p.stats.Evictions++
	if len(l.owner.evicted) < mostEvicted {
		l.owner.evicted[fmt.Sprint(l.dims)] = true
	}
}

func newPlanCache(ctx context.Context) *planCache {
	return &planCache{ctx: ctx, evicting: make(chan struct{}, 1)}
}

// user represents one load, run or unload that uses the cache.
type user struct {
	*planCache
	evicts bool // the user makes room; others that need room wait until it leaves
	// enteredAlone is the value of planCache.entered when this user was last the only user. It is 0 if that was never the
	// case.
	enteredAlone int
	// waits is set while the user waits for other users. It stays set if the user's context ended during the wait.
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

// take returns the plan of a model for a choice and marks the plan busy. It returns nil if there is none.
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

// planOf returns a loaded plan of a model for the given dims, or nil if there is none.
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

// add adds a plan, which must be busy, to the cache.
func (p *planCache) add(l *loaded) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.busy = true
	p.plans = append(p.plans, l)
	p.measure()
}

// rest marks a plan idle and most recently used. It also updates the plan's memory, since runs may have allocated more.
func (p *planCache) rest(l *loaded) {
	held := l.prog.Held()
	p.mu.Lock()
	defer p.mu.Unlock()
	l.busy, l.held = false, held
	p.plans = append(slices.DeleteFunc(p.plans, func(o *loaded) bool { return o == l }), l)
	p.measure()
}

// pin keeps a plan loaded until the plan's model is closed.
func (p *planCache) pin(l *loaded) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.pinned = true
}

// plansOf returns the loaded plans of a model.
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

// remove removes the plans that which selects, and returns them.
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

// beyond removes plans of a model, least recently used first, while these plans together hold more than bound bytes. It
// never removes a busy plan, and removes the last plan only if all is set.
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

// resting returns the device memory of idle plans in bytes. For each plan, the device on which the plan holds the most
// memory counts.
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

// giveUp removes the least recently used idle plan of any model. If no plan is idle, it returns the busy plans and a
// channel that is closed when another user leaves; the channel is nil if there is no other user.
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

// undisturbed reports whether u is the only user now and no other user has entered since u was last recorded as the
// only one.
func (u *user) undisturbed() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	before := u.enteredAlone
	u.enteredAlone = u.entered
	return before == u.enteredAlone
}

// errAlone reports that no room can be made because no other plan is loaded.
var errAlone = errors.New("no other plan of this machine is loaded")

// room makes room after an allocation has failed with err. It returns nil if the caller should try the allocation
// again. The caller must have freed everything that it allocated. err must report a shortage of memory on a device
// whose total memory is sufficient.
//
// room unloads the least recently used idle plan. If no plan is idle, it waits until another user leaves. Only one user
// makes room at a time; others that need room wait for that user. room therefore fails only if no other plan is loaded.
// If no other user could make room, the error wraps errAlone.
func (u *user) room(ctx context.Context, err error) error {
	if !errors.Is(err, device.ErrOutOfMemory) || errors.Is(err, device.ErrTooLarge) {
		return err
	}
	if !u.evicts {
		waited, werr := u.queue(ctx)
		if werr != nil {
			return fmt.Errorf("%w; another load is unloading plans to free memory: %w", err, werr)
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
			return fmt.Errorf("%w; %w: load the model for smaller dims or on more ranks, "+
				"close device tensors, or check for other processes that use its memory", err, errAlone)
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

// roomForTrial unloads the least recently used plan to free memory for timing the algorithms of a GEMM. Each GEMM is
// timed only once. roomForTrial does so only if the idle plans together hold at least the missing amount of memory. It
// returns false if they do not, or if another user has removed the plan first.
func (p *planCache) roomForTrial(t *device.TrialError) (bool, error) {
	if t.Free+p.resting() < t.Bytes {
		return false, nil
	}
	l, _, _ := p.giveUp()
	if l == nil {
		return false, nil
	}
	return true, l.unload("timing a GEMM's algorithms")
}

// queue makes u the user that makes room, and reports whether u had to wait for another user.
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

// wait waits until changed is closed, ctx ends or the machine ends.
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
