package planner

import "hocket.example/hocket/internal/plan"

// The functions in this file compute the offset, shape and strides of views. The indices that these functions receive
// must be in range.

// slice returns the view of rows lo to hi-1 along axis.
func slice(r plan.Ref, axis int, lo, hi int64) plan.Ref {
	out := r
	out.Shape = append([]int64(nil), r.Shape...)
	out.Shape[axis] = hi - lo
	if out.Elements() > 0 { // an empty view covers no bytes, so its offset is not changed
		out.Off += lo * r.Strides[axis] * r.DType.Size()
	}
	return out
}

// chunk returns the view of block i of count blocks along axis. A block has ceildiv(extent, count) rows; the last
// blocks are shorter or empty.
func chunk(r plan.Ref, axis int, i, count int64) plan.Ref {
	extent := r.Shape[axis]
	rows := extent / count
	if extent%count != 0 {
		rows++
	}
	if rows == 0 || i > extent/rows { // also prevents an overflow of i·rows
		return slice(r, axis, extent, extent)
	}
	lo := i * rows
	return slice(r, axis, lo, min(lo+rows, extent))
}

// pick returns the view at index i along axis; the view does not have that dimension.
func pick(r plan.Ref, axis int, i int64) plan.Ref {
	out := slice(r, axis, i, i+1)
	out.Shape = append(out.Shape[:axis:axis], out.Shape[axis+1:]...)
	out.Strides = append(r.Strides[:axis:axis], r.Strides[axis+1:]...)
	return out
}

// permute returns the view whose dimension i is r's dimension perm[i].
func permute(r plan.Ref, perm []int) plan.Ref {
	out := r
	out.Shape, out.Strides = make([]int64, len(perm)), make([]int64, len(perm))
	for i, d := range perm {
		out.Shape[i], out.Strides[i] = r.Shape[d], r.Strides[d]
	}
	return out
}

// repeated returns r with additional leading dimensions of stride 0, so that it has as many dimensions as shape.
// repeated is used for the second operand of add, sub, mul and div, which may lack leading dimensions.
func repeated(r plan.Ref, shape []int64) plan.Ref {
	n := len(shape) - len(r.Shape)
	if n <= 0 {
		return r
	}
	out := r
	out.Shape = append(append([]int64(nil), shape[:n]...), r.Shape...)
	out.Strides = append(make([]int64, n), r.Strides...)
	return out
}

// stretched is like repeated, but also gives stride 0 to each dimension in which r has extent 1 and shape has another
// extent. stretched is used for the operand of broadcast.
func stretched(r plan.Ref, shape []int64) plan.Ref {
	out := repeated(r, shape)
	out.Shape, out.Strides = append([]int64(nil), out.Shape...), append([]int64(nil), out.Strides...)
	for i, e := range shape {
		if out.Shape[i] == 1 && e != 1 {
			out.Shape[i], out.Strides[i] = e, 0
		}
	}
	return out
}

// reshape returns the dense tensor r with another shape that has the same number of elements.
func reshape(r plan.Ref, shape []int64) plan.Ref {
	out := r
	out.Shape, out.Strides = shape, rowMajor(shape)
	return out
}
