package eval

import (
	"fmt"

	"hocket.example/hocket/ir"
)

// viewSpec describes a view operation whose attributes have been evaluated.
type viewSpec struct {
	op     ir.Op
	axis   int
	lo, hi int64 // for chunk and slice; for select, lo is the selected index
	perm   []int
	shape  []int64
}

// apply returns the part of r that the view selects.
func (v viewSpec) apply(r region) (region, error) {
	switch v.op {
	case ir.OpLocal:
		return r, nil
	case ir.OpSelect:
		return r.index(v.axis, v.lo), nil
	case ir.OpTranspose:
		return r.permuted(v.perm), nil
	case ir.OpReshape:
		return r.reshaped(v.shape)
	}
	return r.rows(v.axis, v.lo, v.hi), nil
}

// viewSpec evaluates the attributes of a view whose operand has the given shape.
func (r *scope) viewSpec(s *ir.Stmt, shape []int64) (viewSpec, error) {
	v := viewSpec{op: s.Op}
	switch s.Op {
	case ir.OpLocal:
		return v, nil
	case ir.OpTranspose:
		return r.transposeSpec(s, len(shape))
	case ir.OpReshape:
		for _, e := range s.Attr("shape").Exprs {
			n, err := r.eval(e)
			if err != nil {
				return v, err
			}
			v.shape = append(v.shape, n)
		}
		return v, nil
	}
	var err error
	if v.axis, err = r.axis(s, "axis", 0); err != nil {
		return v, err
	}
	if v.axis < 0 || v.axis >= len(shape) {
		return v, fmt.Errorf("the operand has no dimension %d", v.axis)
	}
	extent := shape[v.axis]
	switch s.Op {
	case ir.OpChunk:
		err = r.chunkSpec(s, &v, extent)
	case ir.OpSlice, ir.OpReduceSlots:
		err = r.sliceSpec(s, &v, extent)
	default:
		v.lo, err = r.integer(s, "index", 0)
		if err == nil && (v.lo < 0 || v.lo >= extent) {
			err = r.outside(s, "index %d is outside 0 to %d", v.lo, extent-1)
		}
	}
	return v, err
}

func (r *scope) outside(s *ir.Stmt, format string, args ...any) error {
	return &finding{kind: "bind", message: fmt.Sprintf("rank %d: %s: ", r.id, s.Op) + fmt.Sprintf(format, args...)}
}

func (r *scope) transposeSpec(s *ir.Stmt, dims int) (viewSpec, error) {
	v := viewSpec{op: s.Op}
	var err error
	if a := s.Attr("perm"); a != nil {
		v.perm, err = r.ints(a)
	} else {
		v.perm = swappedLast(dims)
	}
	return v, err
}

// chunkSpec computes the bounds of block i of c. Blocks have ceildiv(extent, c) rows; the last blocks may have fewer.
func (r *scope) chunkSpec(s *ir.Stmt, v *viewSpec, extent int64) error {
	i, err := r.eval(s.Exprs[0])
	if err != nil {
		return err
	}
	c, err := r.eval(s.Exprs[1])
	if err != nil {
		return err
	}
	if i < 0 || i >= c {
		return r.outside(s, "there is no chunk %d of %d", i, c)
	}
	rows := extent / c
	if extent%c != 0 {
		rows++
	}
	v.lo = extent
	if rows == 0 || i <= extent/rows { // then i·rows does not overflow
		v.lo = min(i*rows, extent)
	}
	v.hi = min(v.lo+rows, extent)
	return nil
}

func (r *scope) sliceSpec(s *ir.Stmt, v *viewSpec, extent int64) error {
	var err error
	if v.lo, err = r.eval(s.Exprs[0]); err != nil {
		return err
	}
	if v.hi, err = r.eval(s.Exprs[1]); err != nil {
		return err
	}
	if v.lo < 0 || v.hi < v.lo || v.hi > extent {
		return r.outside(s, "rows %d to %d are not within 0 to %d", v.lo, v.hi-1, extent-1)
	}
	return nil
}
