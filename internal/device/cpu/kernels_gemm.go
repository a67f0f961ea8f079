package cpu

import (
	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas32"
	"gonum.org/v1/gonum/blas/blas64"

	"hocket.example/hocket/internal/device"
)

// A contraction computes every element of its result as one dot product of two packed rows. The order of the dot
// product's additions depends only on its length K. The bits of a result are therefore the same for any tiling, any
// number of helper goroutines, and any split of a matrix into chunks of rows. Zeros are not skipped, because 0·NaN must
// be NaN.
const (
	tileRows = 64
	tileCols = 128
	// cachedBytes is the size of a group of packed rows of b. A group is multiplied with all rows of a tile of a
	// before the next group is used, so that it stays in the cache.
	cachedBytes = 128 << 10
	// pitch is the number of elements to a multiple of which packed rows of b are padded. gonum's dot product
	// handles elements before a multiple of 16 bytes of its second operand separately, and the order of additions
	// must not depend on addresses.
	pitch = 16
)

// gemm is one matrix product out[M, N] = a[M, K] · b[N, K]ᵀ (+ bias[N]).
type gemm struct {
	k       *kernel
	m, n, d int64 // d is K
	a, b    ref
	bias    *ref
	out     ref
}

func makeLinear(k *kernel, op device.Linear) (loops, error) {
	if op.Relu {
		return nil, errNoKernel
	}
	if len(k.ins) == 4 {
		return makeScaledLinear(k)
	}
	if err := device.CheckLinear(k.out.shape, k.shapes()); err != nil {
		return nil, err
	}
	if err := k.alike(false); err != nil {
		return nil, err
	}
	x, w := k.ins[0].shape, k.ins[1].shape
	g := gemm{m: 1, n: w[0], d: w[1]}
	for _, e := range x[:len(x)-1] {
		g.m *= e
	}
	return gemmLoops(k, func(k *kernel, each func(gemm)) {
		g := g
		g.k, g.a, g.b, g.out = k, k.ins[0], k.ins[1], k.out
		if len(k.ins) == 3 {
			g.bias = &k.ins[2]
		}
		each(g)
	}), nil
}

func makeMatmul(k *kernel, op device.Matmul) (loops, error) {
	if op.Relu {
		return nil, errNoKernel
	}
	if err := device.CheckMatmul(k.out.shape, k.shapes(), op.TA, op.TB); err != nil {
		return nil, err
	}
	if err := k.alike(false); err != nil {
		return nil, err
	}
	a, out := k.ins[0].shape, k.out.shape
	r := len(out)
	g := gemm{m: out[r-2], n: out[r-1], d: a[r-1]}
	if op.TA {
		g.d = a[r-2]
	}
	return gemmLoops(k, func(k *kernel, each func(gemm)) {
		a, b := k.ins[0], k.ins[1]
		if op.TA {
			a = a.transposed()
		}
		if !op.TB {
			b = b.transposed()
		}
		batches(a, b, k.out, func(a, b, out ref) {
			g := g
			g.k, g.a, g.b, g.out = k, a, b, out
			each(g)
		})
	}), nil
}

func (r ref) transposed() ref {
	perm := make([]int, len(r.shape))
	for i := range perm {
		perm[i] = i
	}
	n := len(perm)
	perm[n-1], perm[n-2] = n-2, n-1
	return r.permute(perm)
}

// batches calls f with the matrices of a, b and out of each batch index.
func batches(a, b, out ref, f func(a, b, out ref)) {
	if len(out.shape) == 2 {
		f(a, b, out)
		return
	}
	for i := range out.shape[0] {
		batches(a.at(i), b.at(i), out.at(i), f)
	}
}

// gemmLoops returns loops that compute matrix products. The function list calls the function each once for each
// product.
func gemmLoops(k *kernel, list func(k *kernel, each func(gemm))) loops {
	return byAccum(k.out.dt,
		func(k *kernel) { list(k, func(g gemm) { multiply(g, dot32) }) },
		func(k *kernel) { list(k, func(g gemm) { multiply(g, dot64) }) },
		func(k *kernel) { list(k, func(g gemm) { multiply(g, dotInt) }) })
}

// tile is a part of a matrix product, stored in c: m×n results, which are dot products of packed rows of d
// elements.
type tile[A accum] struct {
	m, n, d int
	a       []A
	b       []A // rows start ldb elements apart
	ldb     int
	c       []A // rows start ldc elements apart
	ldc     int
}

func multiply[A accum](g gemm, dots func(tile[A])) {
	if g.m == 0 || g.n == 0 {
		return
	}
	ldb := max(1, (g.d+pitch-1)/pitch) * pitch
	packed := borrow(g.n * ldb * sizeOf[A]())
	defer restore(packed)
	b := as[A](*packed)
	workers, stop := g.k.w.m.workers, &g.k.w.ended
	cols := (g.n + tileCols - 1) / tileCols
	workers.each(cols, stop, func(j int64) {
		packRows(b, ldb, g.b, g.d, j*tileCols, min((j+1)*tileCols, g.n))
	})
	rows := (g.m + tileRows - 1) / tileRows
	workers.each(rows*cols, stop, func(t int64) {
		i, j := t/cols*tileRows, t%cols*tileCols
		product(g, i, min(i+tileRows, g.m), j, min(j+tileCols, g.n), b, ldb, dots)
	})
}

// packRows copies rows [lo, hi) of b to their positions among the packed rows.
func packRows[A accum](packed []A, ldb int64, b ref, d, lo, hi int64) {
	rd := newReader[A](b, d)
	defer rd.close()
	for r := lo; r < hi; r++ {
		copy(packed[r*ldb:], rd.load(r*d, d))
	}
}

// product computes and stores results [i0, i1) × [j0, j1).
func product[A accum](g gemm, i0, i1, j0, j1 int64, b []A, ldb int64, dots func(tile[A])) {
	m, n := i1-i0, j1-j0
	rd := newReader[A](g.a, m*g.d)
	defer rd.close()
	room := borrow(m * n * sizeOf[A]())
	defer restore(room)
	t := tile[A]{m: int(m), d: int(g.d), a: rd.load(i0*g.d, m*g.d), ldb: int(ldb), ldc: int(n)}
	c := as[A](*room)
	step := min(tileCols, max(4, cachedBytes/max(1, ldb*sizeOf[A]())))
	clear(c)
	for j := int64(0); j < n && g.d > 0; j += step {
		t.n, t.b, t.c = int(min(step, n-j)), b[(j0+j)*ldb:], c[j:]
		dots(t)
	}
	if g.bias != nil {
		addBias(c, *g.bias, j0, n)
	}
	wr := newWriter[A](g.out, n)
	defer wr.close()
	for i := range m {
		at := (i0+i)*g.n + j0
		row := wr.room(at, n)
		copy(row, c[i*n:])
		wr.flush(at, row)
	}
}

func addBias[A accum](c []A, bias ref, j0, n int64) {
	rd := newReader[A](bias, n)
	defer rd.close()
	add := rd.load(j0, n)
	for ; len(c) > 0; c = c[n:] {
		for j, v := range add {
			c[j] += v
		}
	}
}

// dot32 and dot64 use gonum's loops. The tiles are so small that gonum neither uses other goroutines nor splits K.
func dot32(t tile[float32]) {
	blas32.Implementation().Sgemm(blas.NoTrans, blas.Trans, t.m, t.n, t.d, 1, t.a, max(1, t.d), t.b, t.ldb, 0, t.c, t.ldc)
}

func dot64(t tile[float64]) {
	blas64.Implementation().Dgemm(blas.NoTrans, blas.Trans, t.m, t.n, t.d, 1, t.a, max(1, t.d), t.b, t.ldb, 0, t.c, t.ldc)
}

// dotInt computes integer products. Overflow of the sums is permitted, because the low bits of a sum do not depend on
// higher bits.
func dotInt(t tile[int64]) {
	for i := range t.m {
		a := t.a[i*t.d:][:t.d]
		c := t.c[i*t.ldc:][:t.n]
		for j := range c {
			b := t.b[j*t.ldb:][:t.d]
			sum := int64(0)
			for k, v := range a {
				sum += v * b[k]
			}
			c[j] = sum
		}
	}
}
