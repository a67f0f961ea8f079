package hocket

import (
	"context"
	"errors"
	"fmt"
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

// loaded is a plan for one choice, ready to run.
type loaded struct {
	model *Model
	choice
	plan *plan.Plan
	prog *exec.Program
	// proof says what was proved of the plan.
	proof string
	held  device.Held // see LoadOptions.Cache
	busy  bool        // a run has it
	// reporter is there once a run has ended. The turn's.
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

// worksIn reports whether a device tensor is one of those that the plan was loaded for.
func (l *loaded) worksIn(d *resident.DeviceTensor) bool {
	for _, t := range l.resident {
		if t == d {
			return true
		}
	}
	return false
}

// unload closes a plan that is off the shelf.
func (l *loaded) unload(why string) error {
	if log := l.model.opts.Logger; log != nil {
		log.Debug("plan unloaded", "plan", l.String(), "why", why)
	}
	return l.prog.Close()
}

// shelf holds the plans of a machine's models. Who loads one, runs one or gives one up
// has a claim for as long.
type shelf struct {
	mu      sync.Mutex
	plans   []*loaded     // the one used least recently first
	claims  int           // but for those that wait behind another
	came    int           // claims so far
	changed chan struct{} // closed when there is one less; nil where nobody wants to know
	// alone holds one while a claim makes room: until it ends.
	alone chan struct{}
}

func newShelf() *shelf { return &shelf{alone: make(chan struct{}, 1)} }

// claim is one's use of a shelf.
type claim struct {
	*shelf
	first bool // makes room, and others wait behind it
	// came is how many claims had come when this one was last the only one; 0 for never.
	came int
	// waits says that it waits for others, or did until its context ended.
	waits atomic.Bool
}

func (s *shelf) claim() *claim {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.claims++
	s.came++
	c := &claim{shelf: s}
	if s.claims == 1 {
		c.came = s.came
	}
	return c
}

func (c *claim) end() {
	if c.first {
		<-c.alone
	}
	c.count(-1)
}

func (s *shelf) count(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.claims += n
	if n < 0 && s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// take returns a model's plan for a choice, which is busy until it rests; nil where there
// is none.
func (s *shelf) take(m *Model, key choice) *loaded {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.plans, func(l *loaded) bool { return l.model == m && l.equal(key) })
	if i < 0 {
		return nil
	}
	s.plans[i].busy = true
	return s.plans[i]
}

// planOf returns a model's plan for some dims that is loaded; nil where there is none.
func (s *shelf) planOf(m *Model, dims map[string]int64) *plan.Plan {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.plans {
		if l.model == m && maps.Equal(l.dims, dims) {
			return l.plan
		}
	}
	return nil
}

// add puts a plan on the shelf that is busy.
func (s *shelf) add(l *loaded) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.busy = true
	s.plans = append(s.plans, l)
}

// rest makes a plan the one used last. Its first run and larger batches have taken
// memory, too.
func (s *shelf) rest(l *loaded) {
	held := l.prog.Held()
	s.mu.Lock()
	defer s.mu.Unlock()
	l.busy, l.held = false, held
	s.plans = append(slices.DeleteFunc(s.plans, func(o *loaded) bool { return o == l }), l)
}

// remove takes plans off the shelf.
func (s *shelf) remove(which func(l *loaded) bool) (gone []*loaded) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.plans = slices.DeleteFunc(s.plans, func(l *loaded) bool {
		if which(l) {
			gone = append(gone, l)
			return true
		}
		return false
	})
	return gone
}

// beyond takes what plans of a model hold more than a bound off the shelf, the ones used
// least recently, but not the one used last, nor one that is busy.
func (s *shelf) beyond(m *Model, bound int64) (gone []*loaded) {
	s.mu.Lock()
	defer s.mu.Unlock()
	left, held := 0, int64(0)
	for _, l := range s.plans {
		if l.model == m {
			left++
			held += l.held.Bytes()
		}
	}
	s.plans = slices.DeleteFunc(s.plans, func(l *loaded) bool {
		if l.model != m || l.busy || left < 2 || held <= bound {
			return false
		}
		left--
		held -= l.held.Bytes()
		gone = append(gone, l)
		return true
	})
	return gone
}

// resting is what the plans that rest hold of the device that they have the most of, in bytes.
func (s *shelf) resting() (bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.plans {
		if !l.busy {
			bytes += l.held.Device
		}
	}
	return bytes
}

// giveUp takes the plan used least recently of those that rest off the shelf, whosever
// it is; nil where none rests. Then it returns the plans that run, and what is closed
// when another claim ends; nil where there is no other.
func (s *shelf) giveUp() (l *loaded, run []string, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, l := range s.plans {
		if !l.busy {
			s.plans = slices.Delete(s.plans, i, i+1)
			return l, nil, nil
		}
		run = append(run, l.String())
	}
	if s.claims == 1 {
		return nil, nil, nil
	}
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return nil, run, s.changed
}

// undisturbed reports whether no other claim has come since c was the only one, which
// it is now.
func (c *claim) undisturbed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.came
	c.came = c.shelf.came
	return before == c.came
}

// room returns nil if what failed with err can be tried again: if that says that memory
// is short, though there is as much, and some may have been given back. Plans that rest
// go, the one used least recently first, one each time; where none does, others' runs and
// loads are waited for.
// One claim at a time makes room, and those that want some wait behind it: so it fails
// only where no other plan is loaded. What the caller took is given back before.
func (c *claim) room(ctx context.Context, m *Machine, err error) error {
	if !errors.Is(err, ErrOutOfMemory) || errors.Is(err, device.ErrTooLarge) {
		return err
	}
	if !c.first {
		waited, werr := c.queue(ctx, m)
		if werr != nil {
			return fmt.Errorf("%w; another load is making room: %w", err, werr)
		}
		if waited {
			return nil
		}
	}
	for waited := false; ; waited = true {
		l, run, changed := c.giveUp()
		switch {
		case l != nil:
			if cerr := l.unload("memory is short"); cerr != nil {
				return errors.Join(err, cerr)
			}
			return nil
		case changed == nil && c.undisturbed():
			return fmt.Errorf("%w; no other plan of this machine is loaded: load for smaller dims or on more ranks, close device tensors, or see who else takes memory", err)
		case changed == nil || waited:
			return nil
		}
		c.waits.Store(true)
		werr := m.wait(ctx, changed)
		c.waits.Store(werr != nil)
		if werr != nil {
			return fmt.Errorf("%w; other plans of this machine run: %s: %w", err, strings.Join(run, ", "), werr)
		}
	}
}

// roomForTrial gives up the plan used least recently for a trial of a product's
// algorithms, which is made once for all, if those that rest hold as much as it lacks.
// Else, and where another claim was faster, there is none, and it reports false.
func (s *shelf) roomForTrial(t *device.TrialError) (bool, error) {
	if t.Free+s.resting() < t.Bytes {
		return false, nil
	}
	l, _, _ := s.giveUp()
	if l == nil {
		return false, nil
	}
	return true, l.unload("a product's algorithms are timed")
}

// queue makes c the claim that makes room, and says whether it waited for another.
func (c *claim) queue(ctx context.Context, m *Machine) (waited bool, err error) {
	select {
	case c.alone <- struct{}{}:
		c.first = true
		return false, nil
	default:
	}
	c.count(-1)
	defer c.count(1)
	c.waits.Store(true)
	select {
	case c.alone <- struct{}{}:
		c.first = true
		c.waits.Store(false)
		return true, nil
	case <-ctx.Done():
		return true, ctx.Err()
	case <-m.ctx.Done():
		return true, ErrClosed
	}
}

// wait waits for a change of the shelf, as long as both contexts last.
func (m *Machine) wait(ctx context.Context, changed <-chan struct{}) error {
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-m.ctx.Done():
		return ErrClosed
	}
}
