package resident

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"weak"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
)

// Weights keeps weights on a machine's devices for all programs that are loaded with it:
// one copy, whatever else they differ in. A weight is there for as long as some program
// with it is loaded. Programs that share it must not run at once.
type Weights struct {
	pool *pool
	mu   sync.Mutex
	kept map[string]*Weight
}

// NewWeights returns an empty store.
func NewWeights(m device.Machine) *Weights {
	return &Weights{pool: newPool(m), kept: map[string]*Weight{}}
}

// Weight is a parameter in one layout: its block on each rank.
type Weight struct {
	Contents
	*Loan
	key  string
	uses int // programs
}

// Contents tells which tensor's bytes are in a parameter's blocks; the zero value for what
// is not known to be anybody's. It keeps no tensor that its owner let go of.
type Contents struct{ of weak.Pointer[tensor.Tensor] }

// changes counts how often any Contents have changed.
var changes atomic.Uint64

// Changes returns a number that is another one once any Contents of the process have changed.
func Changes() uint64 { return changes.Load() }

// Forget says that the blocks may hold anything.
func (c *Contents) Forget() { c.set(weak.Pointer[tensor.Tensor]{}) }

// Set says that the blocks hold t.
func (c *Contents) Set(t *tensor.Tensor) { c.set(weak.Make(t)) }

func (c *Contents) set(of weak.Pointer[tensor.Tensor]) {
	if c.of != of {
		c.of = of
		changes.Add(1)
	}
}

// Are reports whether these contents are the bytes of t.
func (c *Contents) Are(t *tensor.Tensor) bool { return c.of == weak.Make(t) }

// keyOf returns a key that differs for different parameters, layouts, sets of ranks, and sizes of blocks.
func keyOf(io *plan.IO, bytes int64) string {
	key := fmt.Sprintf("%q %v %v %d", io.Name, io.DType, io.Shape, bytes)
	for _, part := range io.Parts {
		r := &part.Ref
		key += fmt.Sprintf(" %v %d %d %v %v", part.Lo, r.Rank, r.Off, r.Shape, r.Strides)
	}
	return key
}

// Take returns the blocks of a parameter that each rank has one of, of so many bytes,
// reserving them if need be. What is opened for that ends with ctx.
func (s *Weights) Take(ctx context.Context, ranks int, io *plan.IO, bytes int64) (*Weight, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := keyOf(io, bytes)
	w := s.kept[key]
	if w == nil {
		n, err := s.pool.take(ctx, slices.Repeat([]int64{bytes}, ranks), nil)
		if err != nil {
			return nil, fmt.Errorf("weight %s: %w", io.Name, err)
		}
		w = &Weight{key: key, Loan: n}
		s.kept[key] = w
	}
	w.uses++
	return w, nil
}

// Give says that a program no longer has what it took.
func (s *Weights) Give(w *Weight) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.uses--; w.uses > 0 {
		return nil
	}
	delete(s.kept, w.key)
	return w.Loan.Give()
}

// Held is the memory that the store has taken.
func (s *Weights) Held() (h device.Held) { return s.pool.held() }
