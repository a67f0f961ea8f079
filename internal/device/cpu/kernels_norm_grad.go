package cpu

import (
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// makeNormGrad computes the kernel rms_norm_dx or rms_norm_dw.
func makeNormGrad(k *kernel, op device.NormGrad) (loops, error) {
	if err := device.CheckNormGrad(op, k.out.dt, k.out.shape, k.types(), k.shapes()); err != nil {
		return nil, err
	}
	if op.Op == ir.OpRMSNormDX {
		return byAccum(k.out.dt, normDXLoops[float32](op.Eps), normDXLoops[float64](op.Eps), nil), nil
	}
	return byAccum(k.out.dt, normDWLoops[float32](op.Eps), normDWLoops[float64](op.Eps), nil), nil
}

func normDXLoops[A float32 | float64](eps float64) loops {
	return func(k *kernel) {
		if k.out.n == 0 {
			return
		}
		w := vector[A](k.ins[1])
		width := int64(len(w))
		rows, per := k.out.n/width, max(1, grain/width)
		k.w.m.workers.each((rows+per-1)/per, &k.w.ended, func(i int64) {
			x, dy, wr := newReader[A](k.ins[0], width), newReader[A](k.ins[2], width), newWriter[A](k.out, width)
			defer x.close()
			defer dy.close()
			defer wr.close()
			for r := i * per; r < min((i+1)*per, rows); r++ {
				row := wr.room(r*width, width)
				normDXRow(row, x.load(r*width, width), dy.load(r*width, width), w, A(eps))
				wr.flush(r*width, row)
			}
		})
	}
}

func normDXRow[A float32 | float64](out, x, dy, w []A, eps A) {
	root, sum := inverseRoot(x, eps), A(0)
	for i, v := range x {
		out[i] = dy[i] * w[i]
		sum += out[i] * (v * root)
	}
	mean := sum / A(len(x))
	for i, v := range x {
		out[i] = root * (out[i] - v*root*mean)
	}
}

// normGroups is the largest number of groups of rows whose sums helper goroutines compute concurrently.
const normGroups = 64

// normDWLoops adds the rows of each group in order, and then the sums of the groups in order.
func normDWLoops[A float32 | float64](eps float64) loops {
	return func(k *kernel) {
		width := k.out.n
		if width == 0 {
			return
		}
		rows := k.ins[0].n / width
		per := max(1, grain/width, (rows+normGroups-1)/normGroups)
		groups := (rows + per - 1) / per
		room := borrow((groups + 1) * width * sizeOf[A]())
		defer restore(room)
		sums := as[A](*room)[:(groups+1)*width] // the last row is the total
		clear(sums)
		k.w.m.workers.each(groups, &k.w.ended, func(i int64) {
			x, dy := newReader[A](k.ins[0], width), newReader[A](k.ins[1], width)
			defer x.close()
			defer dy.close()
			sum := sums[i*width:][:width]
			for r := i * per; r < min((i+1)*per, rows); r++ {
				row, d := x.load(r*width, width), dy.load(r*width, width)
				root := inverseRoot(row, A(eps))
				for j, v := range row {
					sum[j] += d[j] * (v * root)
				}
			}
		})
		total := sums[groups*width:]
		for i := range groups {
			addTimes(total, 1, sums[i*width:][:width])
		}
		wr := newWriter[A](k.out, width)
		defer wr.close()
		out := wr.room(0, width)
		copy(out, total)
		wr.flush(0, out)
	}
}
