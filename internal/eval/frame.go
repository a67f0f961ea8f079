package eval

import (
	"hocket.example/hocket/ir"
)

// frame is one dynamic instance of a function's or loop's body. All ranks walk
// the same text, so that they share frames: what a statement defines once for
// all ranks (a value, a symmetric allocation, a counter) is kept here.
type frame struct {
	children map[step]*frame
	values   map[part]*value
	claims   map[part]*claim
	allocs   map[*ir.Stmt]*allocation
	counters map[*ir.Stmt]*counters
}

// step leads from a frame to one inside it: a call, or an iteration of a loop.
type step struct {
	stmt *ir.Stmt
	iter int64
}

// part is the i-th thing that a statement makes.
type part struct {
	stmt *ir.Stmt
	i    int
}

func (f *frame) child(s *ir.Stmt, iter int64) *frame {
	return entry(&f.children, step{s, iter}, func() *frame { return &frame{} })
}

// entry returns the map's entry for k, made on first use.
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
