// Package plancache holds the loaded plans of a machine's models. It unloads the plans that were used least recently if
// they hold too much memory, or if memory is needed for another plan. A call that loads, runs or unloads a plan first
// calls Cache.Enter.
package plancache

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

// Key identifies a plan among the plans of a model.
type Key struct {
	Dims map[string]int64 // the values of all dims, regardless of how they were set
	// Resident holds the device tensors in which the plan's runs work directly, if that is possible.
	Resident map[string]*resident.DeviceTensor
}

func (k Key) equal(o Key) bool {
	return maps.Equal(k.Dims, o.Dims) && maps.Equal(k.Resident, o.Resident)
}

// Owner identifies the model that owns plans in a cache.
type Owner struct {
	log *slog.Logger
	// evicted records the dims of plans that were unloaded to make room. The mutex of the plan cache protects it.
	evicted map[string]bool
}

// NewOwner returns an owner without plans. If log is not nil, it receives a message when a plan is unloaded.
func NewOwner(log *slog.Logger) *Owner { return &Owner{log: log, evicted: map[string]bool{}} }

// Loaded is a loaded plan for one key, ready to run. V is what the owner stores with the plan.
type Loaded[V any] struct {
	Key
	Plan    *plan.Plan
	Program *exec.Program
	Value   V
	owner   *Owner
	held    device.Held // the memory that the plan holds
	busy    bool        // a run uses the plan
	// pinned is set if a caller's graph refers to the plan's memory, because it contains a run, or if the plan has lent
	// a result.
	pinned bool
}

// String returns a description of the plan and of the amount of memory that it holds.
func (l *Loaded[V]) String() string {
	words := []string{l.Plan.Func}
	for _, d := range l.Plan.Dims {
		words = append(words, fmt.Sprintf("%s=%d", d.Name, d.Value))
	}
	return fmt.Sprintf("%s with %s", strings.Join(words, " "), tensor.Size(l.held.Bytes()))
}

// stays reports whether the plan cannot be unloaded to make room. The caller must hold the cache's mutex.
func (l *Loaded[V]) stays() bool { return l.busy || l.pinned }

// Unload closes a plan that has been removed from the cache.
func (l *Loaded[V]) Unload(why string) error {
	if log := l.owner.log; log != nil {
		log.Debug("plan unloaded", "plan", l.String(), "why", why)
	}
	return l.Program.Close()
}

// Cache holds the loaded plans of a machine's models. A call that loads, runs or unloads a plan is a user of the
// cache for the duration of the call.
type Cache[V any] struct {
	ctx     context.Context // the context of the machine
	mu      sync.Mutex
	plans   []*Loaded[V]  // loaded plans, the least recently used one first
	users   int           // number of users, except those that wait for another user
	entered int           // number of users that have entered so far
	changed chan struct{} // closed when a user leaves; nil if no user waits for that
	// evicting is a channel of capacity 1. It holds a value from the moment that a user begins to make room until that
	// user leaves.
	evicting chan struct{}
	stats    Stats
}

// Stats holds the counters of a cache. They are described at hocket.PlanStats.
type Stats struct {
	Hits, Misses, Reloads    int64
	Evictions                int64
	Plans                    int
	Bytes, Device, MostBytes int64
}

// Stats returns the counters.
func (p *Cache[V]) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.measure()
	return p.stats
}

// Programs returns the programs of a model's plans, or of all plans if o is nil.
func (p *Cache[V]) Programs(o *Owner) (list []*exec.Program) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.plans {
		if o == nil || l.owner == o {
			list = append(list, l.Program)
		}
	}
	return list
}

// measure updates the statistics on memory.
func (p *Cache[V]) measure() {
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
func (p *Cache[V]) evicted(l *Loaded[V]) {
	p.stats.Evictions++
	if len(l.owner.evicted) < mostEvicted {
		l.owner.evicted[fmt.Sprint(l.Dims)] = true
	}
}

// New returns an empty cache of a machine that is closed when ctx ends.
func New[V any](ctx context.Context) *Cache[V] {
	return &Cache[V]{ctx: ctx, evicting: make(chan struct{}, 1)}
}

// User represents one load, run or unload that uses the cache.
type User[V any] struct {
	*Cache[V]
	evicts bool // the user makes room; other users that need room wait until it leaves
	// enteredAlone is the value of Cache.entered when this user was last the only user. It is 0 if it never was.
	enteredAlone int
	// waits is set while the user waits for other users. It stays set if the user's context ended during the wait.
	waits atomic.Bool
}

// Waits reports whether the user waits for other users, or waited for them when its context ended.
func (u *User[V]) Waits() bool { return u.waits.Load() }

// Enter begins a load, run or unload. End must be called when it ends.
func (p *Cache[V]) Enter() *User[V] {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.users++
	p.entered++
	u := &User[V]{Cache: p}
	if p.users == 1 {
		u.enteredAlone = p.entered
	}
	return u
}

// End ends what Enter has begun.
func (u *User[V]) End() {
	if u.evicts {
		<-u.evicting
	}
	u.count(-1)
}

func (p *Cache[V]) count(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.users += n
	if n < 0 && p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// Take returns the plan of a model for a choice and marks the plan busy. It returns nil if there is no such plan.
func (p *Cache[V]) Take(o *Owner, key Key) *Loaded[V] {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.plans, func(l *Loaded[V]) bool { return l.owner == o && l.equal(key) })
	if i < 0 {
		p.stats.Misses++
		if o.evicted[fmt.Sprint(key.Dims)] {
			p.stats.Reloads++
			delete(o.evicted, fmt.Sprint(key.Dims))
		}
		return nil
	}
	p.stats.Hits++
	p.plans[i].busy = true
	return p.plans[i]
}

// PlanOf returns a loaded plan of a model for the given dims, or nil if there is none.
func (p *Cache[V]) PlanOf(o *Owner, dims map[string]int64) *plan.Plan {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.plans {
		if l.owner == o && maps.Equal(l.Dims, dims) {
			return l.Plan
		}
	}
	return nil
}

// Add adds a plan of an owner to the cache and marks the plan busy.
func (p *Cache[V]) Add(o *Owner, l *Loaded[V]) {
	held := l.Program.Held()
	p.mu.Lock()
	defer p.mu.Unlock()
	l.owner, l.busy, l.held = o, true, held
	p.plans = append(p.plans, l)
	p.measure()
}

// Release marks a plan idle and most recently used. It also updates the plan's memory, since runs may have allocated more.
func (p *Cache[V]) Release(l *Loaded[V]) {
	held := l.Program.Held()
	p.mu.Lock()
	defer p.mu.Unlock()
	l.busy, l.held = false, held
	p.plans = append(slices.DeleteFunc(p.plans, func(o *Loaded[V]) bool { return o == l }), l)
	p.measure()
}

// Pin keeps a plan loaded until the plan's model is closed.
func (p *Cache[V]) Pin(l *Loaded[V]) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.pinned = true
}

// Contains reports whether a plan of a model is loaded for a key.
func (p *Cache[V]) Contains(o *Owner, key Key) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.plans, func(l *Loaded[V]) bool { return l.owner == o && l.equal(key) })
}

// Remove removes a plan.
func (p *Cache[V]) Remove(l *Loaded[V]) { p.remove(func(o *Loaded[V]) bool { return o == l }) }

// RemoveAll removes all plans of a model, and returns them.
func (p *Cache[V]) RemoveAll(o *Owner) []*Loaded[V] {
	return p.remove(func(l *Loaded[V]) bool { return l.owner == o })
}

// RemoveUsing removes the plans that work directly in the device tensor d, except busy ones, and returns them.
func (p *Cache[V]) RemoveUsing(d *resident.DeviceTensor) []*Loaded[V] {
	return p.remove(func(l *Loaded[V]) bool {
		return !l.busy && slices.Contains(slices.Collect(maps.Values(l.Resident)), d)
	})
}

// remove removes the plans for which the function which returns true, and returns them.
func (p *Cache[V]) remove(which func(l *Loaded[V]) bool) (gone []*Loaded[V]) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.plans = slices.DeleteFunc(p.plans, func(l *Loaded[V]) bool {
		if which(l) {
			gone = append(gone, l)
			return true
		}
		return false
	})
	return gone
}

// RemoveBeyond removes plans of a model, least recently used first, while these plans together hold more than bound
// bytes. It never removes a busy plan, and it removes the last remaining plan only if all is set.
func (p *Cache[V]) RemoveBeyond(o *Owner, bound int64, all bool) (gone []*Loaded[V]) {
	p.mu.Lock()
	defer p.mu.Unlock()
	left, held := 0, int64(0)
	for _, l := range p.plans {
		if l.owner == o {
			left++
			held += l.held.Bytes()
		}
	}
	p.plans = slices.DeleteFunc(p.plans, func(l *Loaded[V]) bool {
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

// resting returns the device memory of idle plans in bytes. Each plan counts with its memory on its fullest device.
func (p *Cache[V]) resting() (bytes int64) {
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
func (p *Cache[V]) giveUp() (l *Loaded[V], run []string, changed <-chan struct{}) {
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

// undisturbed reports whether u is the only user now and no other user has entered since u was last the only one.
func (u *User[V]) undisturbed() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	before := u.enteredAlone
	u.enteredAlone = u.entered
	return before == u.enteredAlone
}

// ErrAlone reports that no room can be made because no other plan is loaded.
var ErrAlone = errors.New("no other plan of this machine is loaded")

// MakeRoom makes room after an allocation has failed with err. It returns nil if the caller should try the allocation
// again. The caller must have freed everything that it allocated. err must report a shortage of memory on a device
// whose total memory is sufficient.
//
// MakeRoom unloads the least recently used idle plan. If no plan is idle, it waits until another user leaves. Only one user
// makes room at a time; others that need room wait for that user. MakeRoom therefore fails only if no other plan is loaded.
// If no other user could make room, the error wraps ErrAlone.
func (u *User[V]) MakeRoom(ctx context.Context, err error) error {
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
			if cerr := l.Unload("memory is short"); cerr != nil {
				return errors.Join(err, cerr)
			}
			return nil
		case changed == nil && u.undisturbed():
			return fmt.Errorf("%w; %w: load the model for smaller dims or on more ranks, "+
				"close device tensors, or check for other processes that use its memory", err, ErrAlone)
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

// RoomForTrial unloads the least recently used plan to free memory for timing the algorithms of a GEMM. Each GEMM is
// timed only once. RoomForTrial does so only if the idle plans together hold at least the missing amount of memory. It
// returns false if they do not, or if another user has removed the plan first.
func (p *Cache[V]) RoomForTrial(t *device.TrialError) (bool, error) {
	if t.Free+p.resting() < t.Bytes {
		return false, nil
	}
	l, _, _ := p.giveUp()
	if l == nil {
		return false, nil
	}
	return true, l.Unload("timing a GEMM's algorithms")
}

// queue makes u the user that makes room, and reports whether u had to wait for another user.
func (u *User[V]) queue(ctx context.Context) (waited bool, err error) {
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
func (p *Cache[V]) wait(ctx context.Context, changed <-chan struct{}) error {
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-p.ctx.Done():
		return resident.ErrClosed
	}
}
