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
		z, _ := normalised(dt, row{x.f[from : from+k], x.e[from : from+k]}, eps, centred)
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

// normDX computes r·(g - z·mean(g·z)) with g = dy·w, for x, w and dy. z are the normalised rows and r is the factor by
// which a row of x was multiplied. A machine may add the products g·x instead of g·z and multiply their sum by r.
func normDX(eps float64, ins []*array, dt ir.DType) (*array, error) {
	x, w, dy := ins[0], ins[1], ins[2]
	last := len(x.shape) - 1
	if last < 0 || !slices.Equal(dy.shape, x.shape) || !slices.Equal(w.shape, x.shape[last:]) {
		return nil, fmt.Errorf("the gradient of a norm of shapes %v, %v and %v", x.shape, w.shape, dy.shape)
	}
	k := x.shape[last]
	u := stepUnit(dt.Accum())
	out := newArray(dt, x.shape)
	g := row{make([]float64, k), make([]float64, k)}
	for from := int64(0); from < out.len(); from += k {
		z, r := normalised(dt, row{x.f[from : from+k], x.e[from : from+k]}, eps, false)
		sum, raw := sumOf{acc: dt.Accum(), n: k + 4}, 0.0
		for j := range k {
			i := from + j
			g.x[j] = dy.f[i] * w.f[j]
			g.e[j] = productError(dy.f[i], dy.e[i], w.f[j], w.e[j])
			g.e[j] += u*(abs(g.x[j])+g.e[j]) + vanishing(dt)
			t := g.x[j] * z.x[j]
			sum.y, sum.abs = sum.y+t, sum.abs+abs(t)
			sum.prop += productError(g.x[j], g.e[j], z.x[j], z.e[j])
			raw += (abs(g.x[j]) + g.e[j]) * (abs(x.f[i]) + x.e[i])
		}
		n := float64(k)
		mean := known{sum.y / n, sum.inRank()/n + (r.y+r.e)*vanishing(dt)}
		if !(raw < formatOf(dt.Accum()).max/2) {
			mean.e = inf
		}
		for j := range k {
			off := z.x[j] * mean.y
			t := g.x[j] - off
			pre := g.e[j] + productError(z.x[j], z.e[j], mean.y, mean.e) + vanishing(dt)
			pre += 8 * u * (abs(g.x[j]) + abs(off) + pre)
			y := r.y * t
			pre = productError(r.y, r.e, t, pre)
			out.f[from+j], out.e[from+j] = finish(dt, y, pre+2*u*(abs(y)+pre))
		}
	}
	return out, nil
}

// normDW computes Σ dy·z over the rows, for x and dy.
func normDW(eps float64, ins []*array, dt ir.DType, sp split) (*array, error) {
	x, dy := ins[0], ins[1]
	last := len(x.shape) - 1
	if last < 0 || !slices.Equal(dy.shape, x.shape) {
		return nil, fmt.Errorf("the gradient of a norm of shapes %v and %v", x.shape, dy.shape)
	}
	k := x.shape[last]
	out := newContraction(dt, []int64{k}, sp)
	sums := slices.Repeat([]sumOf{{acc: dt.Accum(), n: 2}}, int(k))
	for from := int64(0); from < x.len(); from += k {
		z, _ := normalised(dt, row{x.f[from : from+k], x.e[from : from+k]}, eps, false)
		for j := range k {
			sums[j].plus(known{z.x[j], z.e[j]}, dy, from+j)
		}
	}
	for j, s := range sums {
		out.store(int64(j), s)
	}
	return out.array, nil
}

func abs(x float64) float64 { return max(x, -x) }
