package cpu

import (
	"math"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas32"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// makeScales computes the scale of each block of elements from the largest absolute value in the block.
func makeScales(k *kernel, op device.Scales) (loops, error) {
	if err := k.count(1, 1); err != nil {
		return nil, err
	}
	g, err := device.CheckScales(op, k.ins[0].dt, k.out.dt, k.ins[0].shape, k.out.shape)
	if err != nil {
		return nil, err
	}
	return byAccum(k.ins[0].dt, scaleLoops[float32](g, op.Max), scaleLoops[float64](g, op.Max), nil), nil
}

func scaleLoops[A float32 | float64](g device.Grain, top float64) loops {
	return func(k *kernel) {
		if k.out.n == 0 {
			return
		}
		rows, d := device.Matrix(k.ins[0].shape)
		k.w.m.workers.each(k.out.n/g.Cols, &k.w.ended, func(block int64) {
			rd, wr := newReader[A](k.ins[0], d), newWriter[float32](k.out, g.Cols)
			defer rd.close()
			defer wr.close()
			most := make([]A, g.Cols)
			for i := block * g.Rows; i < min((block+1)*g.Rows, rows); i++ {
				for j, v := range rd.load(i*d, d) {
					at := int64(j) / g.Columns
					most[at] = max(most[at], v, -v)
				}
			}
			out := wr.room(block*g.Cols, g.Cols)
			for i, m := range most {
				out[i] = max(float32(m/A(top)), tensor.LeastScale)
			}
			wr.flush(block*g.Cols, out)
		})
	}
}

func makeQuantize(k *kernel, op device.Quantize) (loops, error) {
	if op.Max != 0 {
		return nil, device.ErrUnsupported
	}
	if err := k.count(2, 2); err != nil {
		return nil, err
	}
	x, s := k.ins[0], k.ins[1]
	g, err := device.CheckQuantize(x.dt, s.dt, k.out.dt, x.shape, s.shape, k.out.shape)
	if err != nil {
		return nil, err
	}
	return byAccum(x.dt, quantizeLoops[float32](g), quantizeLoops[float64](g), nil), nil
}

func quantizeLoops[A float32 | float64](g device.Grain) loops {
	return func(k *kernel) {
		rows, d := device.Matrix(k.out.shape)
		if k.out.n == 0 {
			return
		}
		scales := vector[float32](k.ins[1])
		top := A(largest(k.out.dt))
		per := max(1, grain/d)
		k.w.m.workers.each((rows+per-1)/per, &k.w.ended, func(part int64) {
			rd, wr := newReader[A](k.ins[0], d), newWriter[A](k.out, d)
			defer rd.close()
			defer wr.close()
			for i := part * per; i < min((part+1)*per, rows); i++ {
				out := wr.room(i*d, d)
				for j, v := range rd.load(i*d, d) {
					out[j] = max(min(v/A(scales[g.At(i, int64(j))]), top), -top)
				}
				wr.flush(i*d, out)
			}
		})
	}
}

// largest returns the largest finite number of an 8-bit type.
func largest(dt ir.DType) float64 {
	for v := 448.0; ; v *= 2 {
		if r := tensor.Round(dt, 2*v); math.IsInf(r, 0) || r != r {
			return v
		}
	}
}

// scaledGEMM is a matrix product of operands with scales. A row of an operand consists of pieces that have one scale
// each. The partial sum of each piece is multiplied by the scales of both operands.
type scaledGEMM struct {
	gemm
	x, w   device.Grain
	sx, sw []float32
	piece  int64
	packed []float32 // rows of w, which start ldb elements apart
	ldb    int64
}

func makeScaledLinear(k *kernel) (loops, error) {
	x, w, err := device.CheckScaled(&k.Kernel, k.out.shape, k.shapes())
	if err != nil {
		return nil, err
	}
	g := scaledGEMM{x: x, w: w, piece: min(x.Columns, w.Columns)}
	g.m, g.d = device.Matrix(k.ins[0].shape)
	g.n = k.ins[1].shape[0]
	return func(k *kernel) {
		if g.m == 0 || g.n == 0 {
			return
		}
		g := g
		g.k, g.a, g.out = k, k.ins[0], k.out
		g.sx, g.sw = vector[float32](k.ins[2]), vector[float32](k.ins[3])
		g.ldb = max(1, (g.d+pitch-1)/pitch) * pitch
		packed := borrow(g.n * g.ldb * sizeOf[float32]())
		defer restore(packed)
		g.packed = as[float32](*packed)
		workers, stop := g.k.w.m.workers, &g.k.w.ended
		cols := (g.n + tileCols - 1) / tileCols
		workers.each(cols, stop, func(j int64) {
			packRows(g.packed, g.ldb, k.ins[1], g.d, j*tileCols, min((j+1)*tileCols, g.n))
		})
		workers.each((g.m+tileRows-1)/tileRows*cols, stop, func(t int64) {
			i, j := t/cols*tileRows, t%cols*tileCols
			g.tile(i, min(tileRows, g.m-i), j, min(tileCols, g.n-j))
		})
	}, nil
}

// tile computes the m×n results that start at (i, j). It adds the partial sums of the pieces one after another, in
// ascending order of K.
func (g *scaledGEMM) tile(i, m, j, n int64) {
	rd, wr := newReader[float32](g.a, m*g.d), newWriter[float32](g.out, n)
	defer rd.close()
	defer wr.close()
	a := rd.load(i*g.d, m*g.d)
	room := borrow(2 * m * n * sizeOf[float32]())
	defer restore(room)
	c, part := as[float32](*room)[:m*n], as[float32](*room)[m*n:]
	clear(c)
	for at := int64(0); at < g.d; at += g.piece {
		blas32.Implementation().Sgemm(blas.NoTrans, blas.Trans, int(m), int(n), int(min(g.piece, g.d-at)), 1, a[at:],
			int(g.d), g.packed[j*g.ldb+at:], int(g.ldb), 0, part, int(n))
		for r := range m {
			sx := g.sx[g.x.At(i+r, at)]
			for q := range n {
				c[r*n+q] += part[r*n+q] * (sx * g.sw[g.w.At(j+q, at)])
			}
		}
	}
	for r := range m {
		at := (i+r)*g.n + j
		row := wr.room(at, n)
		copy(row, c[r*n:])
		wr.flush(at, row)
	}
}
