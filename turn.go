package hocket

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"

	"hocket.example/hocket/internal/exec"
	"hocket.example/hocket/internal/tensor"
)

// turn is one's use of a model, alone: of its runs and loads one goes on at a time.
type turn struct {
	*claim
	model *Model
	left  bool // to a load that goes on, which ends it
}

// takeTurn waits until no other's run or load goes on, as long as ctx lasts.
func (m *Model) takeTurn(ctx context.Context) (*turn, error) {
	select {
	case m.turn <- struct{}{}:
	default:
		select {
		case m.turn <- struct{}{}:
		case <-ctx.Done():
			return nil, fmt.Errorf("other runs or loads of the model were waited for: %w", ctx.Err())
		}
	}
	if m.closed {
		<-m.turn
		return nil, fmt.Errorf("model: %w", ErrClosed)
	}
	return &turn{claim: m.machine.shelf.claim(), model: m}, nil
}

func (t *turn) end() {
	if !t.left {
		t.finish()
	}
}

func (t *turn) finish() {
	t.claim.end()
	<-t.model.turn
}

// load returns the loaded plan for a binding, which is busy then, making it if need
// be. If ctx ends meanwhile it leaves the turn to the load, which goes on: were it given
// up, deadlines shorter than a load would have it begin again for ever.
func (t *turn) load(ctx context.Context, b Binding) (*loaded, error) {
	if l := t.take(t.model, b.Dims); l != nil {
		return l, nil
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var l *loaded
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		l, err = t.model.load(ctx, t.claim, b)
	}()
	select {
	case <-done:
		return l, err
	case <-ctx.Done():
	}
	if t.waits.Load() { // so it ends, too, and says for whom it waited
		<-done
		return l, err
	}
	t.left = true
	go func() {
		defer t.finish()
		<-done
		if l != nil {
			t.rest(l)
		}
		if log := t.model.opts.Logger; err != nil && log != nil {
			log.LogAttrs(context.WithoutCancel(ctx), slog.LevelWarn, "a load that nobody waited for any more failed", slog.Any("error", err))
		}
	}()
	return nil, fmt.Errorf("while a plan was loaded, which goes on: %w", ctx.Err())
}

// run runs the plan for a binding. Its first runs take memory, too: buffers of
// transfers, a graph.
func (t *turn) run(ctx context.Context, b Binding, ins []map[string]*tensor.Tensor) (*loaded, []*exec.Result, error) {
	for {
		l, err := t.load(ctx, b)
		if err != nil {
			if l != nil {
				t.rest(l)
			}
			return nil, nil, t.model.blame(b, err)
		}
		results, err := l.prog.RunBatch(ctx, ins)
		if l.prog.Usable() {
			t.rest(l)
			return l, results, err
		}
		t.remove(func(o *loaded) bool { return o == l })
		if err = t.room(ctx, t.model.machine, errors.Join(err, l.prog.Close())); err != nil {
			return nil, nil, err
		}
	}
}

// blame says of an error of a load that it is the arguments', if that is so: their
// shapes make dims that the program cannot have.
func (m *Model) blame(b Binding, err error) error {
	if _, berr := m.unit.Bind(b.ir()); berr == nil || maps.Equal(b.Dims, m.binding.Dims) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrInput, err)
}
