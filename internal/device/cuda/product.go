package cuda

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// product is out[i] = Σk a[i, k]·b[i, k] (+ bias[i]), i over dims.
type product struct {
	dt            ir.DType
	out, a, b     nvlib.Ptr
	bias          nvlib.Ptr // 0 for none
	dims          []axis    // lead…, m…, n
	depth, ka, kb int64
	batch         int // how many of dims both a and b have
}

// axis is an extent of the result with every operand's stride along it.
type axis struct{ n, out, a, b, bias int64 }

// addProduct computes linear and matmul: by cuBLASLt what it takes, else by a
// plain kernel.
func (l *launch) addProduct(k *kernel) error {
	if err := k.checkProduct(); err != nil {
		return err
	}
	if k.out.N == 0 {
		return nil
	}
	if k.Relu {
		if err := k.apart(); err != nil {
			return err
		}
	}
	weight := k.ins[1].Addr
	if err := l.stage(k); err != nil {
		return err
	}
	p := k.product()
	p.merge()
	if g, ok := p.gemm(); ok {
		g.relu, g.fixed, g.timed = k.Relu, k.Fixed || l.dev.w.m.opts.FixedProducts, k.Timed
		g.constant = k.Constant && k.Op == ir.OpLinear && k.ins[1].Addr == weight // else it was copied just now
		// What is fixed depends on no hint, since other algorithms may sum in
		// another order; all multiprocessors are no hint.
		if !g.fixed && k.SMs < l.dev.site.gpu.SMs {
			g.sms = k.SMs
		}
		st, err := l.dev.newGemm(g)
		if err != nil {
			return err
		}
		if st != nil {
			l.steps = append(l.steps, st.step())
			return nil
		}
	}
	if k.Relu {
		return fmt.Errorf("%w: a relu behind a product that cuBLASLt does not take", device.ErrUnsupported)
	}
	return l.addLibrary(k)
}

func (k *kernel) product() product {
	if k.Op == ir.OpMatmul {
		return k.matmul()
	}
	return k.linear()
}

func (k *kernel) linear() product {
	x, w := &k.ins[0], &k.ins[1]
	r := len(x.Shape) - 1
	p := product{dt: k.out.DType, out: k.out.Addr, a: x.Addr, b: w.Addr, depth: x.Shape[r], ka: x.Strides[r], kb: w.Strides[1]}
	for i := range r {
		p.dims = append(p.dims, axis{n: x.Shape[i], out: k.out.Strides[i], a: x.Strides[i]})
	}
	n := axis{n: w.Shape[0], out: k.out.Strides[r], b: w.Strides[0]}
	if len(k.ins) == 3 {
		p.bias, n.bias = k.ins[2].Addr, k.ins[2].Strides[0]
	}
	p.dims = append(p.dims, n)
	return p
}

func (k *kernel) matmul() product {
	a, b, out := &k.ins[0], &k.ins[1], &k.out
	r := len(out.Shape)
	am, ak, bk, bn := r-2, r-1, r-2, r-1
	if k.TA {
		am, ak = ak, am
	}
	if k.TB {
		bk, bn = bn, bk
	}
	p := product{dt: out.DType, out: out.Addr, a: a.Addr, b: b.Addr, depth: a.Shape[ak], ka: a.Strides[ak], kb: b.Strides[bk], batch: r - 2}
	for i := range r - 2 {
		p.dims = append(p.dims, axis{n: out.Shape[i], out: out.Strides[i], a: a.Strides[i], b: b.Strides[i]})
	}
	p.dims = append(p.dims, axis{n: out.Shape[r-2], out: out.Strides[r-2], a: a.Strides[am]},
		axis{n: out.Shape[r-1], out: out.Strides[r-1], b: b.Strides[bn]})
	return p
}

// merge joins neighbouring axes of a kind, batch or rows, that go on without a
// gap, and drops those of extent 1. The last axis stays as it is.
func (p *product) merge() {
	var dims []axis
	last, batch := len(p.dims)-1, 0
	for i, d := range p.dims[:last] {
		isBatch := i < p.batch
		if d.n == 1 {
			continue
		}
		if k := len(dims) - 1; k >= 0 && (k < batch) == isBatch {
			if o := &dims[k]; o.out == d.n*d.out && o.a == d.n*d.a && o.b == d.n*d.b {
				*o = axis{n: o.n * d.n, out: d.out, a: d.a, b: d.b}
				continue
			}
		}
		dims = append(dims, d)
		if isBatch {
			batch++
		}
	}
	p.dims, p.batch = append(dims, p.dims[last]), batch
}

// gemm is a batch of products of matrices: out[m, n] = a[m, k]·b[k, n] (+ bias[n]).
type gemm struct {
	dt                  ir.DType
	out, a, b, bias     nvlib.Ptr
	batch, m, n, k      int64
	om, on              int64 // strides
	am, ak, bk, bn      int64
	outStep, aStep, bSt int64 // from one product to the next
	sms                 int   // multiprocessors to plan for; 0 for all
	relu                bool  // out is the larger of that and 0
	fixed               bool  // not by measurement
	timed               bool  // not by a guess for want of memory
	constant            bool  // b is: see device.Kernel
}

// gemm returns p as a batch of matrices, if it is one: at most one batch axis,
// at most one of rows, floats, and something to sum. Two axes of rows, as a chunk
// of every rank's rows has, are a batch whose products share their b.
func (p *product) gemm() (gemm, bool) {
	batch := p.batch
	if batch == 0 && len(p.dims) == 3 {
		batch = 1
	}
	if p.dt.IsInt() || p.depth == 0 || batch > 1 || len(p.dims)-batch > 2 {
		return gemm{}, false
	}
	n := p.dims[len(p.dims)-1]
	g := gemm{dt: p.dt, out: p.out, a: p.a, b: p.b, bias: p.bias, batch: 1, m: 1, n: n.n, k: p.depth,
		on: n.out, bn: n.b, ak: p.ka, bk: p.kb}
	if p.bias != 0 && n.bias != 1 && n.n > 1 {
		return gemm{}, false
	}
	if batch == 1 {
		d := p.dims[0]
		g.batch, g.outStep, g.aStep, g.bSt = d.n, d.out, d.a, d.b
	}
	if len(p.dims)-batch == 2 {
		d := p.dims[batch]
		g.m, g.om, g.am = d.n, d.out, d.a
	}
	return g, g.n > 0
}

// turned is the same product with its result transposed.
func (g gemm) turned() gemm {
	g.m, g.n = g.n, g.m
	g.a, g.b = g.b, g.a
	g.aStep, g.bSt = g.bSt, g.aStep
	g.om, g.on = g.on, g.om
	g.am, g.ak, g.bk, g.bn = g.bn, g.bk, g.ak, g.am
	return g
}

// columns describes a matrix for cuBLASLt, which wants a stride of 1 along rows
// (down a column), or along columns with the matrix taken as transposed.
func columns(rows, cols, rs, cs int64) (ld int64, transposed, ok bool) {
	if rs == 1 || rows == 1 {
		if cols == 1 {
			cs = rows
		}
		if cs >= rows {
			return cs, false, true
		}
	}
	if cs == 1 || cols == 1 {
		if rows == 1 {
			rs = cols
		}
		return rs, true, rs >= cols
	}
	return 0, false, false
}
