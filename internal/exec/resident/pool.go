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

// pool opens worlds for the memory that worlds of programs borrow. A world stays open as long as some of its memory is
// in use.
type pool struct {
	m      device.Machine
	mu     sync.Mutex
	worlds map[*poolWorld]bool
}

func newPool(m device.Machine) *pool { return &pool{m: m, worlds: map[*poolWorld]bool{}} }

type poolWorld struct {
	device.World
	loans  int
	failed atomic.Pointer[error] // the reason why no more memory may be allocated in the world

	// busy contains an element while a caller has exclusive use of the streams, one for each rank. Only this caller may
	// create streams.
	busy     chan struct{}
	streams  []device.Stream
	launches []device.Launch // kernels that the caller has launched on the streams
}

// release releases the kernels that were launched, which must have ended.
func (w *poolWorld) release() {
	for _, l := range w.launches {
		l.Release()
	}
	w.launches = nil
}

// Loan is memory that was reserved in one call: one block on each rank that needs a block.
type Loan struct {
	pool   *pool
	world  *poolWorld
	blocks []device.Memory
}

// Block returns a rank's block; nil if the rank has no block.
func (n *Loan) Block(rank int) device.Memory { return n.blocks[rank] }

// Give frees the memory.
func (n *Loan) Give() error {
	n.pool.mu.Lock()
	defer n.pool.mu.Unlock()
	return n.pool.drop(n)
}

// Fail records that an operation may still access the memory although no caller waits for it. No memory of the loan's
// world may be used again.
func (n *Loan) Fail(cause error) { n.world.fail(cause) }

// take reserves bytes[r] bytes on each rank r, unless bytes[r] is negative. On ranks with an address in the map at it
// uses the caller's memory instead. If take opens a world, the world ends when ctx ends.
func (p *pool) take(ctx context.Context, bytes []int64, at map[int]uintptr) (*Loan, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w, err := p.world(ctx, len(bytes))
	if err != nil {
		return nil, err
	}
	w.loans++
	n := &Loan{p, w, make([]device.Memory, len(bytes))}
	if lost := w.Do(context.WithoutCancel(ctx), func() { err = n.reserve(bytes, at) }); lost != nil {
		w.fail(lost)
		return nil, lost
	}
	if err != nil {
		if !errors.Is(err, device.ErrOutOfMemory) && !errors.Is(err, device.ErrAddress) {
			w.fail(err) // the world may have ended, so the next loan uses another world
		}
		return nil, errors.Join(err, p.drop(n))
	}
	return n, nil
}

func (n *Loan) reserve(bytes []int64, at map[int]uintptr) error {
	var callers device.Callers
	if len(at) > 0 {
		var err error
		if callers, err = n.world.Callers(); err != nil {
			return err
		}
	}
	for r, b := range bytes {
		if b < 0 {
			continue
		}
		var mem device.Memory
		var err error
		if at[r] != 0 {
			mem, err = callers.At(r, at[r], b)
		} else {
			mem, err = n.world.Device(r).Alloc(max(b, plan.Align), device.Private)
		}
		if err != nil {
			return fmt.Errorf("rank %d, %s: %w", r, tensor.Size(b), err)
		}
		n.blocks[r] = mem
	}
	return nil
}

// world returns a world with the given number of ranks.
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
	if w.failed.Load() != nil { // closing the world frees everything
		return nil
	}
	var err error
	lost := w.Do(context.Background(), func() {
		for _, mem := range n.blocks {
			if mem != nil {
				err = errors.Join(err, mem.Free())
			}
		}
	})
	if lost != nil {
		w.fail(lost)
		return lost
	}
	return err
}

// fail aborts a world whose state is unknown.
func (w *poolWorld) fail(cause error) {
	if w.failed.CompareAndSwap(nil, &cause) {
		w.Abort(cause)
	}
}

// take acquires exclusive use of the streams until end is called. It waits for other users until ctx ends.
func (w *poolWorld) take(ctx context.Context) (end func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case w.busy <- struct{}{}:
		return func() { <-w.busy }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// allStreams returns one stream for each rank. The caller must have called take.
func (w *poolWorld) allStreams() ([]device.Stream, error) {
	for r := len(w.streams); r < w.Ranks(); r++ {
		s, err := w.Device(r).NewStream(device.StreamOptions{Name: "transfers"})
		if err != nil {
			return nil, err
		}
		w.streams = append(w.streams, s)
	}
	return w.streams, nil
}

// held returns the memory of the pool's worlds.
func (p *pool) held() (h device.Held) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for w := range p.worlds {
		held := w.Held()
		h.Device, h.Host = h.Device+held.Device, h.Host+held.Host
	}
	return h
}
