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

// Weights is a store of weights on a machine's devices, shared by all programs that are loaded with the store. Programs
// with the same parameter share one copy of its weight, even if the programs differ otherwise. A weight is stored as
// long as some program that uses it is loaded. Programs that share weights must not run concurrently.
type Weights struct {
	pool *pool
	mu   sync.Mutex
	kept map[string]*Weight
}

// NewWeights returns an empty store.
func NewWeights(m device.Machine) *Weights {
	return &Weights{pool: newPool(m), kept: map[string]*Weight{}}
}

// Weight is a parameter in one layout, with its block on each rank.
type Weight struct {
	Contents
	*Loan
	key  string
	uses int // number of programs that use the weight
}

// Contents records the tensor whose bytes are in a parameter's blocks; the zero value means that the contents are
// unknown. Contents does not keep the tensor alive.
type Contents struct{ of weak.Pointer[tensor.Tensor] }

// changes counts changes of all Contents.
var changes atomic.Uint64

// Changes returns a number that differs after any Contents of the process have changed.
func Changes() uint64 { return changes.Load() }

// Forget records that the contents of the blocks are unknown.
func (c *Contents) Forget() { c.set(weak.Pointer[tensor.Tensor]{}) }

// Set records that the blocks contain t.
func (c *Contents) Set(t *tensor.Tensor) { c.set(weak.Make(t)) }

func (c *Contents) set(of weak.Pointer[tensor.Tensor]) {
	if c.of != of {
		c.of = of
		changes.Add(1)
	}
}

// Are reports whether the blocks contain the bytes of t.
func (c *Contents) Are(t *tensor.Tensor) bool { return c.of == weak.Make(t) }

// keyOf returns a key that is equal only for equal parameters, layouts, sets of ranks, and sizes of blocks.
func keyOf(io *plan.IO, bytes int64) string {
	key := fmt.Sprintf("%q %v %v %d", io.Name, io.DType, io.Shape, bytes)
	for _, part := range io.Parts {
		r := &part.Ref
		key += fmt.Sprintf(" %v %d %d %v %v", part.Lo, r.Rank, r.Off, r.Shape, r.Strides)
	}
	return key
}

// Take returns the blocks of a parameter, one of the given number of bytes on each rank, and reserves them if
// necessary. If Take opens a world, the world ends when ctx ends.
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

// Give records that a program no longer uses w.
func (s *Weights) Give(w *Weight) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.uses--; w.uses > 0 {
		return nil
	}
	delete(s.kept, w.key)
	return w.Loan.Give()
}

// Held returns the memory that the store has allocated.
func (s *Weights) Held() (h device.Held) { return s.pool.held() }
