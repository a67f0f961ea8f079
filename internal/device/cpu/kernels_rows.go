package cpu

import (
	"fmt"
	"math"
	"slices"

	"hocket.example/hocket/internal/device"
)

// Softmax and the norms compute each row of the result from one row of the first operand. The order of operations
// depends only on the length of the row.

// rowMapper computes a row.
type rowMapper[A accum] func(out, in []A)

func makeSoftmax(k *kernel, op device.Softmax) (loops, error) {
	if err := k.count(1, 1); err != nil {
		return nil, err
	}
	if err := k.floats(true); err != nil {
		return nil, err
	}
	if err := device.AxisIn(op.Axis, len(k.out.shape)); err != nil {
		return nil, err
	}
	return byAccum(k.out.dt,
		func(k *kernel) { eachRow(k, op.Axis, softmaxRow[float32]) },
		func(k *kernel) { eachRow(k, op.Axis, softmaxRow[float64]) }, nil), nil
}

// floats returns an error unless the operands and the result have the same floating-point type and, if shapes is set,
// the same shape.
func (k *operands) floats(shapes bool) error {
	if k.out.dt.IsInt() {
		return fmt.Errorf("%s is not defined for %s", device.Name(k.Op), k.out.dt)
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

func makeRMSNorm(k *kernel, op device.RMSNorm) (loops, error) {
	if err := k.checkNorm(2); err != nil {
		return nil, err
	}
	return byAccum(k.out.dt, rmsLoops[float32](op.Eps), rmsLoops[float64](op.Eps), nil), nil
}

func makeLayerNorm(k *kernel, op device.LayerNorm) (loops, error) {
	if err := k.checkNorm(3); err != nil {
		return nil, err
	}
	return byAccum(k.out.dt, layerLoops[float32](op.Eps), layerLoops[float64](op.Eps), nil), nil
}

// checkNorm checks the operands of a norm: x, and n-1 vectors that are as long as x's rows.
func (k *operands) checkNorm(n int) error {
	if err := k.count(n, n); err != nil {
		return err
	}
	if err := k.floats(false); err != nil {
		return err
	}
	shape := k.out.shape
	if len(shape) == 0 || !slices.Equal(k.ins[0].shape, shape) {
		return fmt.Errorf("the operand has shape %v, but the result has shape %v", k.ins[0].shape, shape)
	}
	for i, in := range k.ins[1:] {
		if !slices.Equal(in.shape, shape[len(shape)-1:]) {
			return fmt.Errorf("operand %d has shape %v, but rows have %d elements", i+1, in.shape, shape[len(shape)-1])
		}
	}
	return nil
}

func rmsLoops[A float32 | float64](eps float64) loops {
	return func(k *kernel) {
		last := len(k.out.shape) - 1
		w := vector[A](k.ins[1])
		eachRow(k, last, func(out, in []A) { rmsRow(out, in, w, A(eps)) })
	}
}

func layerLoops[A float32 | float64](eps float64) loops {
	return func(k *kernel) {
		last := len(k.out.shape) - 1
		w, b := vector[A](k.ins[1]), vector[A](k.ins[2])
		eachRow(k, last, func(out, in []A) { layerRow(out, in, w, b, A(eps)) })
	}
}

// vector returns the elements of a one-dimensional operand.
func vector[A accum](r ref) []A {
	rd := newReader[A](r, r.n)
	defer rd.close()
	return slices.Clone(rd.load(0, r.n))
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

// inverseRoot returns 1 / √(mean of squares + eps).
func inverseRoot[A float32 | float64](x []A, eps A) A {
	sum := A(0)
	for _, v := range x {
		sum += v * v
	}
	return A(1 / math.Sqrt(float64(sum/A(len(x))+eps)))
}

// eachRow calls f for each row along an axis.
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
