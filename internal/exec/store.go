package exec

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"weak"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
)

// Store keeps weights on a machine's devices for all programs that are loaded with it
// (Options.Store): one copy, whatever else they differ in. A weight is there for as long
// as some program with it is loaded. Programs of one store must not run at once.
type Store struct {
	lender *lender
	mu     sync.Mutex
	kept   map[string]*kept
}

// NewStore returns an empty store.
func NewStore(m device.Machine) *Store { return &Store{lender: newLender(m), kept: map[string]*kept{}} }

// kept is a parameter in one layout: its block on each rank.
type kept struct {
	holding
	*loan
	key  string
	uses int // programs
}

// holding tells which tensor's bytes are in a parameter's blocks; the zero value for what
// is not known to be anybody's. It keeps no tensor that its owner let go of.
type holding struct{ of weak.Pointer[tensor.Tensor] }

func (h *holding) forget() { h.of = weak.Pointer[tensor.Tensor]{} }

func (h *holding) set(t *tensor.Tensor) { h.of = weak.Make(t) }

func (h *holding) is(t *tensor.Tensor) bool { return h.of == weak.Make(t) }

// keyOf tells parameters, layouts, whose ranks they say, and sizes of blocks apart.
func keyOf(io *plan.IO, bytes int64) string {
	key := fmt.Sprintf("%q %v %v %d", io.Name, io.DType, io.Shape, bytes)
	for _, part := range io.Parts {
		r := &part.Ref
		key += fmt.Sprintf(" %v %d %d %v %v", part.Lo, r.Rank, r.Off, r.Shape, r.Strides)
	}
	return key
}

// take returns the blocks of a parameter that each rank has one of, of so many bytes,
// reserving them if need be. What is opened for that ends with ctx.
func (s *Store) take(ctx context.Context, ranks int, io *plan.IO, bytes int64) (*kept, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := keyOf(io, bytes)
	k := s.kept[key]
	if k == nil {
		n, err := s.lender.take(ctx, slices.Repeat([]int64{bytes}, ranks))
		if err != nil {
			return nil, fmt.Errorf("weight %s: %w", io.Name, err)
		}
		k = &kept{key: key, loan: n}
		s.kept[key] = k
	}
	k.uses++
	return k, nil
}

// give says that a program no longer has what it took.
func (s *Store) give(k *kept) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k.uses--; k.uses > 0 {
		return nil
	}
	delete(s.kept, k.key)
	return s.lender.give(k.loan)
}
