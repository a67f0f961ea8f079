package eval

import (
	"hocket.example/hocket/ir"
)

// frame holds the names of one execution of the body of a function or loop. All ranks execute the same text, so
// they share frames: a frame holds each object that a statement defines once for all ranks, such as a value, a
// symmetric allocation or a counter.
type frame struct {
	children map[step]*frame
	values   map[part]*value
	claims   map[part]*claim
	allocs   map[*ir.Stmt]*allocation
	counters map[*ir.Stmt]*counters
}

// step is the map key of a frame inside another frame: the frame of a call or of one iteration of a loop.
type step struct {
	stmt *ir.Stmt
	iter int64
}

// part is the map key of the i-th object that a statement creates.
type part struct {
	stmt *ir.Stmt
	i    int
}

func (f *frame) child(s *ir.Stmt, iter int64) *frame {
	return entry(&f.children, step{s, iter}, func() *frame { return &frame{} })
}

// entry returns the map's entry for k. It creates the entry on the first call for k.
func entry[K comparable, V any](m *map[K]V, k K, make_ func() V) V {
	if v, ok := (*m)[k]; ok {
		return v
	}
	if *m == nil {
		*m = map[K]V{}
	}
	v := make_()
	(*m)[k] = v
	return v
}
