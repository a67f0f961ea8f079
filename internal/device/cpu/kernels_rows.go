package cpu

import (
	"fmt"
	"math"
	"slices"

	"hocket.example/hocket/ir"
)

// Softmax and the norms compute a row of results from a row of the first
// operand, in an order that depends on the row's length alone.

// rowMapper computes a row.
type rowMapper[A accum] func(out, in []A)

func makeSoftmax(k *kernel) (loops, error) {
	if err := k.count(1, 1); err != nil {
		return nil, err
	}
	if err := k.floats(true); err != nil {
		return nil, err
	}
	if len(k.Axes) != 1 || k.Axes[0] < 0 || k.Axes[0] >= len(k.out.shape) {
		return nil, fmt.Errorf("axes %v of a tensor of rank %d", k.Axes, len(k.out.shape))
	}
	return byAccum(k.out.dt,
		func(k *kernel) { eachRow(k, k.Axes[0], softmaxRow[float32]) },
		func(k *kernel) { eachRow(k, k.Axes[0], softmaxRow[float64]) }, nil), nil
}

// floats checks that operands and result are of one floating-point type, and
// of one shape if asked.
func (k *kernel) floats(shapes bool) error {
	if k.out.dt.IsInt() {
		return fmt.Errorf("%s has no meaning for %s", k.Op, k.out.dt)
	}
	return k.alike(shapes)
}

func softmaxRow[A float32 | float64](out, in []A) {
	top := in[0]
	for _, v := range in {
		top = max(top, v)
	}
	sum := A(0)
	for i, v := range in {
		out[i] = A(math.Exp(float64(v - top)))
		sum += out[i]
	}
	for i := range out {
		out[i] /= sum
	}
}

// makeNorm is rms_norm(x, w) or layer_norm(x, w, b).
func makeNorm(k *kernel) (loops, error) {
	n := 2
	if k.Op == ir.OpLayerNorm {
		n = 3
	}
	if err := k.count(n, n); err != nil {
		return nil, err
	}
	if err := k.floats(false); err != nil {
		return nil, err
	}
	shape := k.out.shape
	if len(shape) == 0 || !slices.Equal(k.ins[0].shape, shape) {
		return nil, fmt.Errorf("operand has shape %v, the result %v", k.ins[0].shape, shape)
	}
	for i, in := range k.ins[1:] {
		if !slices.Equal(in.shape, shape[len(shape)-1:]) {
			return nil, fmt.Errorf("operand %d has shape %v for rows of %d", i+1, in.shape, shape[len(shape)-1])
		}
	}
	return byAccum(k.out.dt, normLoops[float32], normLoops[float64], nil), nil
}

func normLoops[A float32 | float64](k *kernel) {
	last := len(k.out.shape) - 1
	width := k.out.shape[last]
	params := make([][]A, len(k.ins)-1)
	for i, in := range k.ins[1:] {
		rd := newReader[A](in, width)
		defer rd.close()
		params[i] = rd.load(0, width)
	}
	eps := A(k.Number(0).Float)
	if k.Op == ir.OpRMSNorm {
		eachRow(k, last, func(out, in []A) { rmsRow(out, in, params[0], eps) })
		return
	}
	eachRow(k, last, func(out, in []A) { layerRow(out, in, params[0], params[1], eps) })
}

func rmsRow[A float32 | float64](out, in, w []A, eps A) {
	root := inverseRoot(in, eps)
	for i, v := range in {
		out[i] = v * root * w[i]
	}
}

func layerRow[A float32 | float64](out, in, w, b []A, eps A) {
	sum := A(0)
	for _, v := range in {
		sum += v
	}
	mean := sum / A(len(in))
	for i, v := range in {
		out[i] = v - mean
	}
	root := inverseRoot(out, eps)
	for i, v := range out {
		out[i] = v*root*w[i] + b[i]
	}
}

// inverseRoot is 1 / √(mean of squares + eps).
func inverseRoot[A float32 | float64](x []A, eps A) A {
	sum := A(0)
	for _, v := range x {
		sum += v * v
	}
	return A(1 / math.Sqrt(float64(sum/A(len(x))+eps)))
}

// eachRow runs f over the rows along axis.
func eachRow[A accum](k *kernel, axis int, f rowMapper[A]) {
	if k.out.n == 0 {
		return
	}
	perm := make([]int, 0, len(k.out.shape))
	for d := range k.out.shape {
		if d != axis {
			perm = append(perm, d)
		}
	}
	perm = append(perm, axis)
	in, out, width := k.ins[0].permute(perm), k.out.permute(perm), k.out.shape[axis]
	rows, per := k.out.n/width, max(1, grain/width)
	k.w.m.workers.each((rows+per-1)/per, &k.w.ended, func(i int64) {
		rd, wr := newReader[A](in, width), newWriter[A](out, width)
		defer rd.close()
		defer wr.close()
		for r := i * per; r < min((i+1)*per, rows); r++ {
			row := wr.room(r*width, width)
			f(row, rd.load(r*width, width))
			wr.flush(r*width, row)
		}
	})
}
