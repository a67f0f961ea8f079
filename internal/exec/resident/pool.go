package resident

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

// pool has worlds of its own whose memory programs' worlds borrow. A world is open for as
// long as some of its memory is taken.
type pool struct {
	m      device.Machine
	mu     sync.Mutex
	worlds map[*poolWorld]bool
}

func newPool(m device.Machine) *pool { return &pool{m: m, worlds: map[*poolWorld]bool{}} }

type poolWorld struct {
	device.World
	loans  int
	failed atomic.Pointer[error] // why nothing more is taken of it

	// busy holds one while the streams, a rank each, are somebody's, who may make them.
	busy    chan struct{}
	streams []device.Stream
}

// Loan is memory that was reserved at once: a block on each rank that is to have one.
type Loan struct {
	pool   *pool
	world  *poolWorld
	blocks []device.Memory
}

// Block returns a rank's block; nil where it has none.
func (n *Loan) Block(rank int) device.Memory { return n.blocks[rank] }

// Give gives the memory back.
func (n *Loan) Give() error {
	n.pool.mu.Lock()
	defer n.pool.mu.Unlock()
	return n.pool.drop(n)
}

// take reserves so many bytes on each rank, and none where they are negative. A world that
// is opened for that ends with ctx.
func (p *pool) take(ctx context.Context, bytes []int64) (*Loan, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w, err := p.world(ctx, len(bytes))
	if err != nil {
		return nil, err
	}
	w.loans++
	n := &Loan{p, w, make([]device.Memory, len(bytes))}
	for r, b := range bytes {
		if b < 0 {
			continue
		}
		mem, err := w.Device(r).Alloc(max(b, plan.Align), device.Private)
		if err != nil {
			if err = fmt.Errorf("rank %d, %s: %w", r, tensor.Size(b), err); !errors.Is(err, device.ErrOutOfMemory) {
				w.fail(err) // it may have ended: the next is taken of another
			}
			return nil, errors.Join(err, p.drop(n))
		}
		n.blocks[r] = mem
	}
	return n, nil
}

// world returns the world of so many ranks.
func (p *pool) world(ctx context.Context, ranks int) (*poolWorld, error) {
	for w := range p.worlds {
		if w.Ranks() == ranks && w.failed.Load() == nil {
			return w, nil
		}
	}
	world, err := p.m.Open(ctx, ranks)
	if err != nil {
		return nil, err
	}
	w := &poolWorld{World: world, busy: make(chan struct{}, 1)}
	p.worlds[w] = true
	return w, nil
}

func (p *pool) drop(n *Loan) error {
	w := n.world
	if w.loans--; w.loans == 0 {
		delete(p.worlds, w)
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
func (w *poolWorld) fail(cause error) {
	if w.failed.CompareAndSwap(nil, &cause) {
		w.Abort(cause)
	}
}

// takeStreams returns a stream of each rank, for the caller alone until end is called. It
// waits for others as long as ctx lasts.
func (w *poolWorld) takeStreams(ctx context.Context) (streams []device.Stream, end func(), err error) {
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

// held is the memory of the pool's worlds.
func (p *pool) held() (h device.Held) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for w := range p.worlds {
		held := w.Held()
		h.Device, h.Host = h.Device+held.Device, h.Host+held.Host
	}
	return h
}
