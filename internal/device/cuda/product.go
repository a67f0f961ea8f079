package cuda

import (
	"math/bits"

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
	check, form := checkLinear, (*kernel).linear
	if k.Op == ir.OpMatmul {
		check, form = checkMatmul, (*kernel).matmul
	}
	if err := check(k); err != nil {
		return err
	}
	if k.out.n == 0 {
		return nil
	}
	if err := l.stage(k); err != nil {
		return err
	}
	p := form(k)
	p.merge()
	if g, ok := p.gemm(); ok {
		st, err := l.dev.newGemm(g)
		if err != nil {
			return err
		}
		if st != nil {
			l.steps = append(l.steps, st)
			return nil
		}
	}
	return l.addLibrary(k)
}

func (k *kernel) linear() product {
	x, w := &k.ins[0], &k.ins[1]
	r := len(x.shape) - 1
	p := product{dt: k.out.dt, out: k.out.addr, a: x.addr, b: w.addr, depth: x.shape[r], ka: x.strides[r], kb: w.strides[1]}
	for i := range r {
		p.dims = append(p.dims, axis{n: x.shape[i], out: k.out.strides[i], a: x.strides[i]})
	}
	n := axis{n: w.shape[0], out: k.out.strides[r], b: w.strides[0]}
	if len(k.ins) == 3 {
		p.bias, n.bias = k.ins[2].addr, k.ins[2].strides[0]
	}
	p.dims = append(p.dims, n)
	return p
}

func (k *kernel) matmul() product {
	a, b, out := &k.ins[0], &k.ins[1], &k.out
	r := len(out.shape)
	am, ak, bk, bn := r-2, r-1, r-2, r-1
	if k.TA {
		am, ak = ak, am
	}
	if k.TB {
		bk, bn = bn, bk
	}
	p := product{dt: out.dt, out: out.addr, a: a.addr, b: b.addr, depth: a.shape[ak], ka: a.strides[ak], kb: b.strides[bk], batch: r - 2}
	for i := range r - 2 {
		p.dims = append(p.dims, axis{n: out.shape[i], out: out.strides[i], a: a.strides[i], b: b.strides[i]})
	}
	p.dims = append(p.dims, axis{n: out.shape[r-2], out: out.strides[r-2], a: a.strides[am]},
		axis{n: out.shape[r-1], out: out.strides[r-1], b: b.strides[bn]})
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

// gemmStep is a product by cuBLASLt.
type gemmStep struct {
	lib     *nvlib.CuBLASLt
	p       *nvlib.Product
	desc    nvlib.LtDesc
	layouts [3]nvlib.LtLayout
	need    int64 // workspace, in bytes
}

// workspaceBytes is what algorithms may use, on each stream.
const workspaceBytes = 32 << 20

// newGemm prepares g; nil where cuBLASLt does not take it. The context is
// current.
func (d *dev) newGemm(g gemm) (*gemmStep, error) {
	if g.on != 1 && g.n > 1 {
		if g.bias != 0 {
			return nil, nil
		}
		g = g.turned()
	}
	// cuBLASLt's matrices lie in columns: it computes outᵀ = bᵀ·aᵀ.
	ldo, turned, ok := columns(g.n, g.m, g.on, g.om)
	if !ok || turned {
		return nil, nil
	}
	lda, ta, ok := columns(g.n, g.k, g.bn, g.bk)
	if !ok {
		return nil, nil
	}
	ldb, tb, ok := columns(g.k, g.m, g.ak, g.am)
	if !ok || g.batch > 1<<30 {
		return nil, nil
	}
	if !g.addsBiasOnce(lda, ldb, ldo) {
		return nil, nil
	}
	lib, handle, err := d.site.gpu.ltHandle()
	if err != nil {
		return nil, err
	}
	st := &gemmStep{lib: lib}
	err = st.describe(g, [3]int64{lda, ldb, ldo}, ta, tb)
	if err == nil {
		ok, err = st.choose(handle, g)
	}
	if err != nil || !ok {
		st.free()
		return nil, notTaken(err)
	}
	return st, nil
}

// addsBiasOnce reports whether cuBLASLt adds g's bias before it rounds. Seen on
// an H200 with 13.1: where extents, leading dimensions or addresses keep it from
// 16-byte accesses it stores the product in the narrow type and adds the bias
// in a pass of its own, which rounds twice (S11 allows once).
func (g gemm) addsBiasOnce(ld ...int64) bool {
	if g.bias == 0 || g.dt.Size() >= 4 {
		return true
	}
	per := 16 / g.dt.Size()
	for _, n := range append(ld, g.n, g.k) {
		if n%per != 0 {
			return false
		}
	}
	for _, p := range []nvlib.Ptr{g.a, g.b, g.out, g.bias} {
		if p%16 != 0 {
			return false
		}
	}
	return true
}

// notTaken turns cuBLASLt's saying that it does not take a product into nil.
func notTaken(err error) error {
	switch nvlib.Code(err, "cuBLASLt") {
	case nvlib.CuBLASNotSupported, nvlib.CuBLASInvalidValue:
		return nil
	}
	return err
}

func ltTypes(dt ir.DType) (t nvlib.LtType, c nvlib.LtCompute, scale nvlib.LtType) {
	switch dt {
	case ir.F16:
		return nvlib.LtF16, nvlib.LtCompute32F, nvlib.LtF32
	case ir.BF16:
		return nvlib.LtBF16, nvlib.LtCompute32F, nvlib.LtF32
	case ir.F64:
		return nvlib.LtF64, nvlib.LtCompute64F, nvlib.LtF64
	}
	return nvlib.LtF32, nvlib.LtCompute32F, nvlib.LtF32
}

func (st *gemmStep) describe(g gemm, ld [3]int64, ta, tb bool) error {
	lib := st.lib
	t, compute, scale := ltTypes(g.dt)
	var err error
	if st.desc, err = lib.NewDesc(compute, scale); err != nil {
		return err
	}
	set := func(attr int, v int32) {
		if err == nil {
			err = lib.SetDesc32(st.desc, attr, v)
		}
	}
	rows, cols := [3]int64{g.n, g.k, g.n}, [3]int64{g.k, g.m, g.m}
	for i, turned := range []bool{ta, tb} {
		if turned {
			rows[i], cols[i] = cols[i], rows[i]
			set(nvlib.LtDescTransA+i, 1)
		}
	}
	if g.bias != 0 {
		set(nvlib.LtDescEpilog, nvlib.LtEpilogueBias)
		if err == nil {
			err = lib.SetDesc64(st.desc, nvlib.LtDescBias, uint64(g.bias))
		}
	}
	if err != nil {
		return err
	}
	for i, shift := range []int64{g.bSt, g.aStep, g.outStep} {
		if st.layouts[i], err = lib.NewLayout(t, rows[i], cols[i], ld[i], int32(g.batch), shift); err != nil {
			return err
		}
	}
	return nil
}

// choose takes the algorithm that cuBLASLt thinks fastest; false for none.
func (st *gemmStep) choose(h nvlib.LtHandle, g gemm) (bool, error) {
	la := st.layouts
	wish := nvlib.Wish{Workspace: workspaceBytes, Align: [4]uint32{aligned(g.b), aligned(g.a), aligned(g.out), aligned(g.out)}}
	found, err := st.lib.Heuristic(h, st.desc, la[0], la[1], la[2], la[2], wish, 1)
	if err != nil || len(found) == 0 {
		return false, err
	}
	st.need = int64(found[0].Workspace)
	st.p = nvlib.NewProduct(h, st.desc, la[0], la[1], la[2], g.b, g.a, g.out, found[0].Algo, g.dt == ir.F64)
	return true, nil
}

// aligned is the largest power of two, up to 256, that divides an address.
func aligned(p nvlib.Ptr) uint32 { return 1 << min(bits.TrailingZeros64(uint64(p)), 8) }

func (st *gemmStep) run(s *stream) error {
	if st.need == 0 {
		return st.lib.Multiply(st.p, 0, 0, s.h)
	}
	if s.workspace == nil {
		m, err := s.dev.alloc(workspaceBytes, device.Private)
		if err != nil {
			return err
		}
		s.workspace = m
	}
	return st.lib.Multiply(st.p, s.workspace.addr, st.need, s.h)
}

func (st *gemmStep) free() {
	if st.p != nil {
		st.p.Free()
	}
	for _, l := range st.layouts {
		if l != 0 {
			_ = st.lib.FreeLayout(l) // it only frees memory: what could be done?
		}
	}
	if st.desc != 0 {
		_ = st.lib.FreeDesc(st.desc)
	}
}
