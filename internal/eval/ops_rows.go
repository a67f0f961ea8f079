package eval

import (
	"fmt"
	"slices"

	"hocket.example/hocket/ir"
)

// softmax normalises a along axis.
func softmax(axis int, a *array, dt ir.DType) (*array, error) {
	perm := lastAxis(len(a.shape), axis)
	moved := a.view(dense(a.shape).permuted(perm))
	k := a.shape[axis]
	out := newArray(dt, moved.shape)
	for from := int64(0); from < out.len(); from += k {
		w, ok := weigh(dt, moved.f[from:from+k], moved.e[from:from+k])
		for j := range k {
			pre := inf
			if ok {
				pre = w.e[j] + w.most[j]*w.rel[j] + 2*vanishing(dt)
			}
			out.f[from+j], out.e[from+j] = finish(dt, w.p[j], pre)
		}
	}
	return out.view(dense(out.shape).permuted(inverse(perm))), nil
}

// lastAxis returns the permutation of n dimensions that moves dimension axis to the end.
func lastAxis(n, axis int) []int {
	var perm []int
	for d := range n {
		if d != axis {
			perm = append(perm, d)
		}
	}
	return append(perm, axis)
}

func inverse(perm []int) []int {
	out := make([]int, len(perm))
	for i, d := range perm {
		out[d] = i
	}
	return out
}

// norm computes rms_norm of x and a weight or, if centred, layer_norm of x, a weight and a bias.
func norm(centred bool, eps float64, ins []*array, dt ir.DType) (*array, error) {
	x, w := ins[0], ins[1]
	last := len(x.shape) - 1
	for _, v := range ins[1:] {
		if last < 0 || !slices.Equal(v.shape, x.shape[last:]) {
			return nil, fmt.Errorf("a norm of shapes %v and %v", x.shape, v.shape)
		}
	}
	k := x.shape[last]
	u := stepUnit(dt.Accum())
	out := newArray(dt, x.shape)
	for from := int64(0); from < out.len(); from += k {
		z := normalised(dt, row{x.f[from : from+k], x.e[from : from+k]}, eps, centred)
		for j := range k {
			y := z.x[j] * w.f[j]
			pre := productError(z.x[j], z.e[j], w.f[j], w.e[j]) + 2*u*abs(y)
			if centred {
				b, eb := operand(ins, 2, j)
				y += b
				pre += eb + 2*u*(abs(y)+pre)
			}
			out.f[from+j], out.e[from+j] = finish(dt, y, pre)
		}
	}
	return out, nil
}

func abs(x float64) float64 { return max(x, -x) }
