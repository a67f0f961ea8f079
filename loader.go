package hocket

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/exec"
	"hocket.example/hocket/internal/exec/image"
	"hocket.example/hocket/internal/exec/plancache"
	"hocket.example/hocket/internal/exec/resident"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/internal/verify"
)

// cacheBytes is the limit of the plan cache, in bytes, if LoadOptions.Cache is 0.
const cacheBytes = 4 << 30

// loader plans and loads the programs of a model, and keeps its loaded plans ready to run.
type loader struct {
	machine *Machine
	fn      *function
	params  *parameters
	opts    LoadOptions
	store   *resident.Weights // the store of weights that all plans share
	owner   *plancache.Owner

	// leased is a channel of capacity 1 that holds a value while the loader is leased. The fields below may only be used
	// by the holder of the lease.
	leased chan struct{}
	closed bool
	// planned holds the latest plan until it is loaded.
	planned planned
	// overhead is the largest observed ratio between the memory that a plan holds in addition to its arena and host
	// memory, and the sum of these two.
	overhead float64
	tuner    autotuner
	// resolved caches the dims of the latest binding.
	resolved resolvedDims
}

// planned is a plan together with the dims for which it was made.
type planned struct {
	dims map[string]int64
	plan *plan.Plan
}

// resolvedDims holds the dims in a binding, and the values of all dims that follow from them.
type resolvedDims struct{ of, all map[string]int64 }

// dims returns the value of every dim under a binding. Callers must hold the lease and must not change the map.
func (l *loader) dims(b Binding) (map[string]int64, error) {
	if l.resolved.all != nil && maps.Equal(l.resolved.of, b.Dims) {
		return l.resolved.all, nil
	}
	all, err := l.fn.unit.Dims(b.ir())
	if err == nil {
		l.resolved = resolvedDims{maps.Clone(b.Dims), all}
	}
	return all, err
}

// isLoaded reports whether a plan is loaded for the binding and for the device tensors in which the plan works. It
// returns false if this cannot be decided; invalid dims never have a plan.
func (l *loader) isLoaded(b Binding, on map[string]*resident.DeviceTensor) bool {
	dims, err := l.fn.unit.Dims(b.ir())
	return err == nil && l.machine.plans.Contains(l.owner, plancache.Key{Dims: dims, Resident: on})
}

// load loads the plan for a binding whose dims resolve to dims, and marks the plan busy.
func (l *loader) load(ctx context.Context, c *user, b Binding, key plancache.Key) (*loaded, error) {
	if l.tuner.measures() {
		if err := l.tuner.choose(b, key.Dims); err != nil {
			return nil, err
		}
		l.planned = planned{} // the latest plan may belong to another variant of the program
	}
	p, err := l.planFor(b, key.Dims)
	if err != nil {
		return nil, err
	}
	if err := l.machine.ended(); err != nil {
		return nil, err
	}
	proof, err := l.prove(p, b)
	if err != nil {
		return nil, err
	}
	if err := l.makeRoom(c, p); err != nil {
		return nil, err
	}
	prog, err := l.fit(ctx, c, p, key.Resident)
	if err != nil {
		return nil, err
	}
	l.planned = planned{}
	if err := l.holds(c, p, prog.Held()); err != nil {
		return nil, errors.Join(err, prog.Close())
	}
	o := &loaded{Key: key, Plan: p, Program: prog, Value: usage{proof: proof}}
	c.Add(l.owner, o)
	return o, l.evict(c)
}

// planFor returns a plan for a binding whose dims resolve to dims. It reuses a plan that is loaded, or the latest plan.
// Planning stops early only if the machine is closed: if it stopped whenever a caller's context ends, later callers
// would restart it again and again.
func (l *loader) planFor(b Binding, dims map[string]int64) (*plan.Plan, error) {
	if l.planned.plan != nil && maps.Equal(l.planned.dims, dims) {
		return l.planned.plan, nil
	}
	if p := l.machine.plans.PlanOf(l.owner, dims); p != nil {
		return p, nil
	}
	p, err := l.fn.unit.PlanWithin(l.machine.ctx, b.ir())
	if err == nil {
		l.planned = planned{dims, p}
	}
	return p, err
}

// prove proves a plan before it is loaded. A refuted plan is an error. An undecided plan is loaded, and reports contain
// the reason.
func (l *loader) prove(p *plan.Plan, b Binding) (proofOf, error) {
	if l.opts.Certificate != nil {
		if err := certified(p, l.opts.Certificate); err != nil {
			return proofOf{}, err
		}
	}
	if l.opts.NoProve {
		return proofOf{reason: "no proof was requested"}, nil
	}
	r := verify.Plan(p, verify.Options{FaultsOnly: true, Stop: l.fn.unit.Limits().Stop()})
	if r.Verdict == verify.Refuted {
		return proofOf{kind: Refuted}, r.Diagnostics(l.fn.unit.Source.Prog)
	}
	if wrong, err := wrongClaims(l.fn.unit, b); err != nil || len(wrong) > 0 {
		return proofOf{kind: Refuted}, cmp.Or(err, wrong.Err())
	}
	if r.Verdict == verify.Proved {
		return proofOf{kind: Proved}, nil
	}
	return proofOf{reason: r.Reason}, nil
}

// image returns the options with which plans are resolved to loadable images.
func (o LoadOptions) image() image.Options {
	return image.Options{Logger: o.Logger, MaxArena: o.Arena, Algorithm: o.Algorithm, Fixed: o.FixedAlgorithms,
		CheckLaunches: o.CheckLaunches, Gather: o.Gather}
}

// fit loads p. If there is not enough memory, it first unloads other plans, and then loads p with collectives that use
// less memory. Several processes would have to agree on such collectives, so with several processes the load fails.
func (l *loader) fit(
	ctx context.Context, c *user, p *plan.Plan, on map[string]*resident.DeviceTensor,
) (*exec.Program, error) {
	opts := exec.Options{
		Options: l.opts.image(), Trace: l.opts.Trace, Graph: l.opts.Graph, Grace: max(cmp.Or(l.opts.Grace, time.Second), 0),
		ProfileRange: l.opts.ProfileRange,
	}
	opts.MadeOf = func() []string {
		made := append([]string{"strategy " + cmp.Or(l.opts.Strategy, "sequential")}, l.fn.options...)
		return append(made, strings.Split(l.fn.unit.Source.Prog.String(), "\n")...)
	}
	opts.Timed, opts.Store, opts.Weights, opts.Resident = true, l.store, map[string]bool{}, on
	if l.machine.onFailure != nil {
		opts.Failed = l.machine.failed
	}
	for name := range l.params.current().tensors {
		opts.Weights[name] = true
	}
	for {
		prog, err := exec.Load(l.machine.ctx, l.machine.dev, p, opts)
		if err == nil {
			return prog, nil
		}
		var trial *device.TrialError
		if errors.As(err, &trial) {
			opts.Timed, err = c.RoomForTrial(trial)
		} else {
			err = c.MakeRoom(ctx, err)
		}
		alone := errors.Is(err, plancache.ErrAlone) || errors.Is(err, device.ErrTooLarge) || errors.Is(err, ErrBudget)
		if alone && !opts.Sparing && len(p.Colls) > 0 && l.machine.dev.Peers() == nil {
			opts.Sparing, err = true, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// evict unloads the least recently used plans while all plans together hold more memory than the cache's limit. It does
// not unload the most recently used plan, unless the cache is off or the limit is hard.
func (l *loader) evict(c *user) error {
	return l.unloadBeyond(c, l.bound(), l.opts.Cache < 0 || l.opts.HardCache)
}

// bound returns the largest amount of memory that all plans together may hold, in bytes.
func (l *loader) bound() int64 { return max(cmp.Or(l.opts.Cache, cacheBytes), 0) }

func (l *loader) unloadBeyond(c *user, bound int64, all bool) error {
	var errs []error
	for _, o := range c.RemoveBeyond(l.owner, bound, all) {
		errs = append(errs, o.Unload("LoadOptions.Cache"))
	}
	return errors.Join(errs...)
}

// makeRoom unloads plans until p fits within the limit of the cache. It does nothing if the limit is not hard.
func (l *loader) makeRoom(c *user, p *plan.Plan) error {
	if !l.opts.HardCache {
		return nil
	}
	need := p.ArenaBytes + p.HostBytes
	need += int64(float64(need) * l.overhead)
	return l.unloadBeyond(c, max(l.bound()-need, 0), true)
}

// holds is called with the memory that a plan holds after it was loaded. If the cache's limit is hard, holds unloads
// plans that no longer fit, and returns an error for a plan that exceeds the limit by itself.
func (l *loader) holds(c *user, p *plan.Plan, held device.Held) error {
	if !l.opts.HardCache {
		return nil
	}
	if base := p.ArenaBytes + p.HostBytes; base > 0 {
		l.overhead = max(l.overhead, float64(held.Bytes())/float64(base)-1)
	}
	bound := l.bound()
	if held.Bytes() > bound {
		return fmt.Errorf("plan %s needs %s, %w of %s, the hard limit of the plan cache", p.Func,
			tensor.Size(held.Bytes()), ErrBudget, tensor.Size(bound))
	}
	return l.unloadBeyond(c, bound-held.Bytes(), true)
}

// close unloads all plans.
func (l *loader) close() error {
	c := l.machine.plans.Enter()
	defer c.End()
	var errs []error
	for _, o := range c.RemoveAll(l.owner) {
		errs = append(errs, o.Program.Close())
	}
	return errors.Join(errs...)
}
