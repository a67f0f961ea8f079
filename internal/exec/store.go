package exec

import (
	"context"
	"errors"
	"fmt"
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
	m  device.Machine
	mu sync.Mutex
	// worlds by their number of ranks, in which the weights' memory is.
	worlds map[int]*storeWorld
}

// NewStore returns an empty store.
func NewStore(m device.Machine) *Store { return &Store{m: m, worlds: map[int]*storeWorld{}} }

type storeWorld struct {
	device.World
	kept map[string]*kept
}

// kept is a parameter in one layout: its block on each rank.
type kept struct {
	holding
	key    string
	ranks  int
	blocks []device.Memory
	uses   int // programs
}

// holding tells which tensor's bytes are in a parameter's blocks; the zero value for what
// is not known to be anybody's. It keeps no tensor that its owner let go of.
type holding struct{ of weak.Pointer[tensor.Tensor] }

func (h *holding) forget() { h.of = weak.Pointer[tensor.Tensor]{} }

func (h *holding) set(t *tensor.Tensor) { h.of = weak.Make(t) }

func (h *holding) is(t *tensor.Tensor) bool { return h.of == weak.Make(t) }

// keyOf tells parameters, layouts and sizes of blocks apart.
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
	w := s.worlds[ranks]
	if w == nil {
		world, err := s.m.Open(ctx, ranks)
		if err != nil {
			return nil, err
		}
		w = &storeWorld{world, map[string]*kept{}}
		s.worlds[ranks] = w
	}
	key := keyOf(io, bytes)
	k := w.kept[key]
	if k == nil {
		k = &kept{key: key, ranks: ranks}
		w.kept[key] = k
		for r := range ranks {
			mem, err := w.Device(r).Alloc(max(bytes, plan.Align), device.Private)
			if err != nil {
				err = fmt.Errorf("weight %s of rank %d, %s: %w", io.Name, r, tensor.Size(bytes), err)
				return nil, errors.Join(err, s.drop(w, k))
			}
			k.blocks = append(k.blocks, mem)
		}
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
	return s.drop(s.worlds[k.ranks], k)
}

// drop gives blocks that nobody uses back, and the world with the last.
func (s *Store) drop(w *storeWorld, k *kept) error {
	delete(w.kept, k.key)
	if len(w.kept) == 0 {
		delete(s.worlds, k.ranks)
		return w.Close()
	}
	var errs []error
	for _, mem := range k.blocks {
		errs = append(errs, mem.Free())
	}
	return errors.Join(errs...)
}
