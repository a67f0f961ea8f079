package exec

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
)

// lender has worlds whose memory programs' worlds borrow. One is open for as long as some
// of its memory is taken.
type lender struct {
	m      device.Machine
	mu     sync.Mutex
	worlds map[*lenderWorld]bool
}

func newLender(m device.Machine) *lender { return &lender{m: m, worlds: map[*lenderWorld]bool{}} }

type lenderWorld struct {
	device.World
	loans  int
	failed atomic.Pointer[error] // why nothing more is taken of it

	// busy holds one while the streams, a rank each, are somebody's, who may make them.
	busy    chan struct{}
	streams []device.Stream
}

// loan is what was taken at once: a block of each rank that is to have one, else nil.
type loan struct {
	world  *lenderWorld
	blocks []device.Memory
}

// take reserves so many bytes on each rank, and none where they are negative. A world that
// is opened for that ends with ctx.
func (l *lender) take(ctx context.Context, bytes []int64) (*loan, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w, err := l.world(ctx, len(bytes))
	if err != nil {
		return nil, err
	}
	w.loans++
	n := &loan{w, make([]device.Memory, len(bytes))}
	for r, b := range bytes {
		if b < 0 {
			continue
		}
		mem, err := w.Device(r).Alloc(max(b, plan.Align), device.Private)
		if err != nil {
			if err = fmt.Errorf("rank %d, %s: %w", r, tensor.Size(b), err); !errors.Is(err, device.ErrOutOfMemory) {
				w.fail(err) // it may have ended: the next is taken of another
			}
			return nil, errors.Join(err, l.drop(n))
		}
		n.blocks[r] = mem
	}
	return n, nil
}

// world returns the world of so many ranks.
func (l *lender) world(ctx context.Context, ranks int) (*lenderWorld, error) {
	for w := range l.worlds {
		if w.Ranks() == ranks && w.failed.Load() == nil {
			return w, nil
		}
	}
	world, err := l.m.Open(ctx, ranks)
	if err != nil {
		return nil, err
	}
	w := &lenderWorld{World: world, busy: make(chan struct{}, 1)}
	l.worlds[w] = true
	return w, nil
}

// give gives back what was taken.
func (l *lender) give(n *loan) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.drop(n)
}

func (l *lender) drop(n *loan) error {
	w := n.world
	if w.loans--; w.loans == 0 {
		delete(l.worlds, w)
		return w.Close()
	}
	if w.failed.Load() != nil { // all goes when it is closed
		return nil
	}
	var errs []error
	for _, mem := range n.blocks {
		if mem != nil {
			errs = append(errs, mem.Free())
		}
	}
	return errors.Join(errs...)
}

// fail ends a world: nothing in it is known to be in a good state.
func (w *lenderWorld) fail(cause error) {
	if w.failed.CompareAndSwap(nil, &cause) {
		w.Abort(cause)
	}
}

// takeStreams returns a stream of each rank, for the caller alone until end is called. It
// waits for others as long as ctx lasts.
func (w *lenderWorld) takeStreams(ctx context.Context) (streams []device.Stream, end func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	select {
	case w.busy <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	for r := len(w.streams); r < w.Ranks(); r++ {
		s, err := w.Device(r).NewStream(device.StreamOptions{Name: "transfers"})
		if err != nil {
			<-w.busy
			return nil, nil, err
		}
		w.streams = append(w.streams, s)
	}
	return w.streams, func() { <-w.busy }, nil
}
