package hocket

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"hocket.example/hocket/internal/exec"
	"hocket.example/hocket/internal/exec/plancache"
	"hocket.example/hocket/internal/exec/resident"
	"hocket.example/hocket/internal/plan"
)

// lease is a caller's exclusive use of a model. The model executes one run or load at a time.
type lease struct {
	*user
	loader *loader
	left   bool // set if the lease was passed to a load in the background, which ends the lease
	// release ends the lease of device tensors that is held together with this lease. It is nil if there is none.
	release func()
}

// acquireWith is like acquire, for a caller that already holds a lease of device tensors. The lease of the device
// tensors ends together with the lease of the model, because a load in the background may use the tensors.
func (l *loader) acquireWith(ctx context.Context, release func()) (*lease, error) {
	t, err := l.acquire(ctx)
	if err != nil {
		release()
		return nil, err
	}
	t.release = release
	return t, nil
}

// acquire leases the model. acquire waits until other leases have ended or ctx ends.
func (l *loader) acquire(ctx context.Context) (*lease, error) {
	select {
	case l.leased <- struct{}{}:
	default:
		select {
		case l.leased <- struct{}{}:
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for other runs or loads of the model: %w", ctx.Err())
		}
	}
	err := l.machine.ended()
	if l.closed {
		err = cmp.Or(err, l.fn.closed())
	}
	if err != nil {
		<-l.leased
		return nil, err
	}
	return &lease{user: l.machine.plans.Enter(), loader: l}, nil
}

func (t *lease) end() {
	if !t.left {
		t.finish()
	}
}

func (t *lease) finish() {
	t.user.End()
	<-t.loader.leased
	t.letGo()
}

func (t *lease) letGo() {
	if t.release != nil {
		t.release()
		t.release = nil
	}
}

// load returns the loaded plan for a binding and marks it busy. If no such plan is loaded, it loads one. If ctx ends
// first, the load continues in the background and keeps the lease. If the load were abandoned instead, callers whose
// deadlines are shorter than a load would restart it again and again.
func (t *lease) load(ctx context.Context, b Binding, on map[string]*resident.DeviceTensor) (*loaded, error) {
	dims, err := t.loader.dims(b)
	if err != nil {
		return nil, err
	}
	key := plancache.Key{Dims: dims, Resident: on}
	if l := t.Take(t.loader.owner, key); l != nil {
		return l, nil
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	o, err := t.aside(ctx, "loaded", len(on) > 0, func(o *outcome) { o.l, o.err = t.loader.load(ctx, t.user, b, key) })
	return o.l, cmp.Or(err, o.err)
}

// plan returns the plan for a binding whose dims resolve to dims. If ctx ends first, planning continues in the
// background for the next caller, as a load does.
func (t *lease) plan(ctx context.Context, b Binding, dims map[string]int64) (*plan.Plan, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	o, err := t.aside(ctx, "made", false, func(o *outcome) { o.plan, o.err = t.loader.planFor(b, dims) })
	return o.plan, cmp.Or(err, o.err)
}

// aside calls the function do in another goroutine. If ctx ends before do returns, that goroutine keeps the lease of
// the model and, if keeps is set, the lease of the device tensors.
func (t *lease) aside(ctx context.Context, what string, keeps bool, do func(o *outcome)) (outcome, error) {
	made := make(chan outcome, 1)
	go func() { made <- outcomeOf(do) }()
	select {
	case o := <-made:
		return o.here(), nil
	case <-ctx.Done():
	}
	if t.Waits() { // the error names the runs for which the call waited
		return (<-made).here(), nil
	}
	t.left = true
	if !keeps {
		t.letGo()
	}
	go t.settle(made)
	return outcome{}, fmt.Errorf("while a plan was %s, which continues in the background: %w", what, ctx.Err())
}

// settle waits for a background load that has kept the lease, and then ends the lease.
func (t *lease) settle(made <-chan outcome) {
	defer t.finish()
	o := <-made
	if o.l != nil {
		t.Release(o.l)
	}
	if o.panicked != nil {
		o.err = o.panicked
	}
	if log := t.loader.opts.Logger; o.err != nil && log != nil {
		log.Warn("a load failed after its caller stopped waiting", "error", o.err)
	}
}

// outcome is the result of loading a plan, or of planning without a load.
type outcome struct {
	l        *loaded
	plan     *plan.Plan
	err      error
	panicked error // the panic of the load, with its stack
}

// here returns the outcome to the caller that waited for it. If the load panicked, the method here panics in the
// caller's goroutine, which can recover as if it had loaded the plan itself.
func (o outcome) here() outcome {
	if o.panicked != nil {
		panic(o.panicked)
	}
	return o
}

func outcomeOf(do func(o *outcome)) (o outcome) {
	defer func() {
		if p := recover(); p != nil {
			o.panicked = fmt.Errorf("%v\n\n%s", p, debug.Stack())
		}
	}()
	do(&o)
	return o
}

// run executes the plan for a request. It first checks that the request's tensors can receive the results.
func (t *lease) run(ctx context.Context, r *request) (l *loaded, results []*exec.Result, err error) {
	l, err = t.use(ctx, r.binding, r.residents, func(l *loaded) error {
		for _, out := range r.outs {
			if err := checkOut(l.Plan, out); err != nil {
				return err
			}
		}
		var err error
		results, err = l.Program.Execute(ctx, r.batch)
		return err
	})
	return l, results, err
}

// use calls the function do with the loaded plan for a binding. It may also allocate memory, for example transfer
// buffers.
func (t *lease) use(
	ctx context.Context, b Binding, on map[string]*resident.DeviceTensor, do func(l *loaded) error,
) (*loaded, error) {
	t.loader.machine.calls(ctx, t.loader.fn)
	for {
		l, err := t.load(ctx, b, on)
		if err != nil {
			if l != nil {
				t.Release(l)
			}
			return nil, t.loader.fn.blame(b, err)
		}
		failed := !l.Program.Usable() // the call that waited for enqueued runs has returned the cause
		if !failed {
			err = do(l)
		}
		if l.Program.Usable() {
			t.Release(l)
			return l, err
		}
		t.Remove(l)
		t.loader.machine.closesLater(l.Program)
		if err = errors.Join(err, l.Program.Close()); failed && err == nil {
			continue
		}
		var spoiled *exec.SpoiledError
		if errors.As(err, &spoiled) {
			return nil, err
		}
		if err = t.MakeRoom(ctx, err); err != nil {
			return nil, err
		}
	}
}
