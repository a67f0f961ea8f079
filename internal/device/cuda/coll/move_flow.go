package coll

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/ir"
)

// flow describes a collective as blocks that members send to each other. The function in(i, p) returns the block that
// member i sends to member p. The function out(p, i) returns the destination of that block or, in a reduction, the
// destination of the result.
type flow struct {
	n       int
	Gives   func(i, p int) bool
	In, Out func(at, peer int) strided.View
	reduces bool
}

// FlowOf describes the collective c of n members as blocks.
func FlowOf(c *Collective, n int) (*flow, error) {
	if err := c.Meets(); err != nil {
		return nil, err
	}
	if err := c.cuts(n); err != nil {
		return nil, err
	}
	in := func(i, _ int) strided.View { return c.Operands[i].In }
	out := func(p, _ int) strided.View { return c.Operands[p].Out }
	inCut := func(axis int) func(i, p int) strided.View {
		return func(i, p int) strided.View { return c.Operands[i].In.Block(axis, p, n) }
	}
	outJoin := func(p, i int) strided.View { return c.Operands[p].Out.Block(c.Axis, i, n) }
	all := func(int, int) bool { return true }
	fromRoot := func(i, p int) bool { return i == c.Root && c.Operands[p].Writes }
	toRoot := func(_, p int) bool { return p == c.Root }
	switch c.Op {
	case ir.OpAllGather:
		return &flow{n, all, in, outJoin, false}, nil
	case ir.OpGather:
		return &flow{n, toRoot, in, outJoin, false}, nil
	case ir.OpAllToAll:
		return &flow{n, all, inCut(c.Split), outJoin, false}, nil
	case ir.OpScatter:
		return &flow{n, fromRoot, inCut(c.Axis), out, false}, nil
	case ir.OpBroadcast:
		return &flow{n, fromRoot, in, out, false}, nil
	case ir.OpPermute:
		to := func(i, p int) bool { return c.Parts[i].To == p }
		return &flow{n, to, in, out, false}, nil
	case ir.OpReduceScatter:
		return &flow{n, all, inCut(c.Axis), out, true}, nil
	case ir.OpReduce:
		return &flow{n, toRoot, in, out, true}, nil
	}
	return nil, fmt.Errorf("%w: this collective does not move blocks between members", device.ErrUnsupported)
}

// cuts checks c: it returns an error if the root is not a member, or if operands cannot be split into n blocks.
func (c *Collective) cuts(n int) error {
	if c.Root < 0 || c.Root >= n {
		return fmt.Errorf("root %d of %d members", c.Root, n)
	}
	for i := range c.Operands {
		for _, s := range []struct {
			there bool
			v     *strided.View
			axis  int
		}{{c.Operands[i].Reads, &c.Operands[i].In, InAxis(c)}, {c.Operands[i].Writes, &c.Operands[i].Out, OutAxis(c)}} {
			if s.there && s.axis != Whole && (s.axis < 0 || s.axis >= len(s.v.Shape) || s.v.Shape[s.axis]%int64(n) != 0) {
				return fmt.Errorf("member %d: dimension %d of %v is not cut into %d", i, s.axis, s.v.Shape, n)
			}
		}
	}
	return nil
}

// Pairs is an iterator: it calls do(i, p) for every pair of members for which i sends a block to p.
func (f *flow) Pairs(do func(i, p int)) {
	for i := range f.n {
		for p := range f.n {
			if f.Gives(i, p) {
				do(i, p)
			}
		}
	}
}

// blockRows describes the layout that all views of one shape have in common. Adjacent dimensions are merged if all
// views are contiguous across them. The field run is the number of bytes that are contiguous in all views. The extents
// are the sizes of the remaining dimensions, innermost first.
type blockRows struct {
	run     int64
	extents []int64
	dims    []int // dims[i] is the dimension of the views that has extents[i]
}

func rowsOf(views []strided.View) blockRows {
	v := &views[0]
	var r blockRows
	var dims []int  // the innermost dimension of each merged group, outermost group first
	var ext []int64 // the extents of the groups
	for d, e := range v.Shape {
		if e == 1 {
			continue
		}
		k := len(dims) - 1
		joins := k >= 0
		for i := range views {
			joins = joins && views[i].Strides[dims[k]] == e*views[i].Strides[d]
		}
		if joins {
			dims[k], ext[k] = d, ext[k]*e
		} else {
			dims, ext = append(dims, d), append(ext, e)
		}
	}
	r.run = v.DType.Size()
	last := len(dims) - 1
	if last >= 0 && !slices.ContainsFunc(views, func(o strided.View) bool { return o.Strides[dims[last]] != 1 }) {
		r.run *= ext[last]
		dims, ext = dims[:last], ext[:last]
	}
	slices.Reverse(dims)
	slices.Reverse(ext)
	r.dims, r.extents = dims, ext
	return r
}

// bytes returns the size of a block in bytes.
func (r blockRows) bytes() int64 {
	n := r.run
	for _, e := range r.extents {
		n *= e
	}
	return n
}

// strides returns the strides of a view along the extents.
func (r blockRows) strides(v *strided.View) (s [3]int64) {
	for k, d := range r.dims {
		s[k] = v.Strides[d] * v.DType.Size()
	}
	return s
}

// Alike returns an error unless all views have the same shape.
func Alike(views []strided.View) error {
	for i := range views {
		if !slices.Equal(views[i].Shape, views[0].Shape) {
			return fmt.Errorf("blocks of shapes %v and %v", views[0].Shape, views[i].Shape)
		}
	}
	return nil
}
