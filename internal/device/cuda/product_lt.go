package cuda

import (
	"fmt"
	"math/bits"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// ltGemm is a gemm as cuBLASLt takes it. Its matrices lie in columns: it
// computes outᵀ = bᵀ·aᵀ.
type ltGemm struct {
	gemm
	ld     [3]int64 // leading dimensions of b, a, out
	ta, tb bool     // b, a are read transposed
	tf32   bool
}

// lt returns g for cuBLASLt, if it takes such strides.
func (g gemm) lt() (ltGemm, bool) {
	if g.on != 1 && g.n > 1 {
		if g.bias != 0 {
			return ltGemm{}, false
		}
		g = g.turned()
	}
	l := ltGemm{gemm: g}
	var turned, ok [3]bool
	l.ld[0], turned[0], ok[0] = columns(g.n, g.k, g.bn, g.bk)
	l.ld[1], turned[1], ok[1] = columns(g.k, g.m, g.ak, g.am)
	l.ld[2], turned[2], ok[2] = columns(g.n, g.m, g.on, g.om)
	l.ta, l.tb = turned[0], turned[1]
	good := ok == [3]bool{true, true, true} && !turned[2] && g.batch <= 1<<30
	return l, good && g.addsBiasOnce(l.ld[:]...)
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

// gemmStep is a product by cuBLASLt.
type gemmStep struct {
	w       *world
	lib     *nvlib.CuBLASLt
	h       nvlib.LtHandle
	g       ltGemm
	p       *nvlib.Product
	desc    nvlib.LtDesc
	layouts [3]nvlib.LtLayout
	need    int64         // workspace, in bytes
	guess   bool          // see pick
	own     *nvlib.Launch // hocket's kernel for few rows, while it may be chosen; else nil
}

// workspaceBytes is what algorithms may use, on each stream.
const workspaceBytes = 32 << 20

// newGemm prepares g; nil where cuBLASLt does not take it. The context is
// current.
func (d *dev) newGemm(g gemm) (*gemmStep, error) {
	l, ok := g.lt()
	if !ok {
		return nil, nil
	}
	l.tf32 = d.w.m.opts.TF32 && g.dt == ir.F32
	lib, handle, err := d.site.gpu.LtHandle()
	if err != nil {
		return nil, err
	}
	st := d.w.gemmStep(lib, handle, l)
	var choice *pick
	if st.own, err = d.site.skinnyLaunch(&g); err == nil {
		err = st.describe()
	}
	if err == nil {
		choice, err = d.site.pick(st)
	}
	if err != nil || choice == nil {
		st.free()
		return nil, notTaken(err)
	}
	if choice.own {
		return st, nil
	}
	st.dropOwn()
	st.need, st.guess = choice.need, choice.guess
	st.p = st.product(choice.algo, l.b, l.a, l.out)
	return st, nil
}

// step is what runs st: st, or hocket's kernel, which may begin early.
func (st *gemmStep) step() step {
	own := st.own
	if own == nil {
		return st
	}
	st.own = nil
	st.free()
	return &kernelStep{l: own, f: closely}
}

// gemmStep is a product that cuBLASLt knows nothing of yet, to be freed.
func (w *world) gemmStep(lib *nvlib.CuBLASLt, h nvlib.LtHandle, g ltGemm) *gemmStep {
	st := &gemmStep{w: w, lib: lib, h: h, g: g}
	w.products[st] = true
	return st
}

// notTaken turns cuBLASLt's saying that it does not take a product into nil.
func notTaken(err error) error {
	switch nvlib.Code(err, "cuBLASLt") {
	case nvlib.CuBLASNotSupported, nvlib.CuBLASInvalidValue:
		return nil
	}
	return err
}

func ltTypes(dt ir.DType, tf32 bool) (t nvlib.LtType, c nvlib.LtCompute, scale nvlib.LtType) {
	switch {
	case dt == ir.F16:
		return nvlib.LtF16, nvlib.LtCompute32F, nvlib.LtF32
	case dt == ir.BF16:
		return nvlib.LtBF16, nvlib.LtCompute32F, nvlib.LtF32
	case dt == ir.F64:
		return nvlib.LtF64, nvlib.LtCompute64F, nvlib.LtF64
	case tf32:
		return nvlib.LtF32, nvlib.LtCompute32FTF32, nvlib.LtF32
	}
	return nvlib.LtF32, nvlib.LtCompute32F, nvlib.LtF32
}

func (st *gemmStep) describe() error {
	lib, g := st.lib, &st.g
	t, compute, scale := ltTypes(g.dt, g.tf32)
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
	for i, turned := range []bool{g.ta, g.tb} {
		if turned {
			rows[i], cols[i] = cols[i], rows[i]
			set(nvlib.LtDescTransA+i, 1)
		}
	}
	if g.bias != 0 { // a relu comes later: see withRelu
		set(nvlib.LtDescEpilog, nvlib.LtEpilogueBias)
	}
	if g.sms > 0 {
		set(nvlib.LtDescSMs, int32(g.sms))
	}
	if err == nil {
		err = st.setBias(g.bias)
	}
	if err != nil {
		return err
	}
	for i, shift := range []int64{g.bSt, g.aStep, g.outStep} {
		if st.layouts[i], err = lib.NewLayout(t, rows[i], cols[i], g.ld[i], int32(g.batch), shift); err != nil {
			return err
		}
	}
	return nil
}

// setRelu has st end in a relu.
func (st *gemmStep) setRelu() error {
	epilogue := int32(nvlib.LtEpilogueRelu)
	if st.g.bias != 0 {
		epilogue |= nvlib.LtEpilogueBias
	}
	return st.lib.SetDesc32(st.desc, nvlib.LtDescEpilog, epilogue)
}

// setBias says where the bias is, if there is one.
func (st *gemmStep) setBias(at nvlib.Ptr) error {
	if st.g.bias == 0 {
		return nil
	}
	return st.lib.SetDesc64(st.desc, nvlib.LtDescBias, uint64(at))
}

// product makes st ready to be computed by an algorithm on operands.
func (st *gemmStep) product(algo nvlib.LtAlgo, b, a, out nvlib.Ptr) *nvlib.Product {
	la := st.layouts
	return nvlib.NewProduct(st.h, st.desc, la[0], la[1], la[2], b, a, out, algo, st.g.dt == ir.F64)
}

// aligned is the largest power of two, up to 256, that divides an address.
func aligned(p nvlib.Ptr) uint32 { return 1 << min(bits.TrailingZeros64(uint64(p)), 8) }

// dropOwn lets hocket's kernel go.
func (st *gemmStep) dropOwn() {
	if st.own != nil {
		st.own.Free()
		st.own = nil
	}
}

func (st *gemmStep) run(s *stream) error {
	if st.need == 0 {
		return st.lib.Multiply(st.p, 0, 0, s.h)
	}
	if err := s.reserveWorkspace(st.need, workspaceBytes); err != nil {
		return err
	}
	return st.lib.Multiply(st.p, s.workspace.addr, st.need, s.h)
}

// PrepareLaunches implements device.LaunchPreparer: a stream that multiplies has a
// workspace of its own, since products that run at a time must not share one. It is
// what the largest need is, reserved before a run: memory that is mapped amid a run
// may have to wait for kernels that wait for what the run has not issued yet.
func (s *stream) PrepareLaunches(list []device.Launch) error {
	need := int64(0)
	for _, l := range list {
		if k, ok := l.(*launch); ok && k != nil {
			need = max(need, k.workspace())
		}
	}
	if need == 0 {
		return nil
	}
	w := s.dev.w
	defer w.exclusive()()
	if err := w.err(); err != nil {
		return err
	}
	return s.reserveWorkspace(need, need)
}

// workspace is what the products of l need, in bytes.
func (l *launch) workspace() int64 {
	need := int64(0)
	for _, st := range l.steps {
		if g, ok := st.(*gemmStep); ok {
			need = max(need, g.need)
		}
	}
	return need
}

// reserveWorkspace has s have a workspace of at least need bytes; if it has none, one
// of that many bytes. What it had may be in use, by a graph too: it stays until the
// world ends.
func (s *stream) reserveWorkspace(need, bytes int64) error {
	if s.workspace != nil && s.workspace.bytes >= need {
		return nil
	}
	m, err := s.dev.alloc(bytes, device.Private)
	if err != nil {
		return fmt.Errorf("a workspace for products on stream %s: %w", s.name, err)
	}
	s.workspace = m
	return nil
}

// free gives back what cuBLASLt has of the product: once, when its launch is released
// or else with the world. The caller holds the world's mutex.
func (st *gemmStep) free() {
	if !st.w.products[st] {
		return
	}
	delete(st.w.products, st)
	if st.p != nil {
		st.p.Free()
	}
	st.dropOwn()
	for _, l := range st.layouts {
		if l != 0 {
			_ = st.lib.FreeLayout(l) // it only frees memory: what could be done?
		}
	}
	if st.desc != 0 {
		_ = st.lib.FreeDesc(st.desc)
	}
}

// key says all that the choice of an algorithm depends on: equal keys, equal
// choices.
func (st *gemmStep) key(s *site) string {
	g, own := &st.g, ""
	if st.own != nil {
		own = "; own"
	}
	return fmt.Sprintf("product 2; %s %s, %d SMs of which %d; cuBLASLt %d; %s tf32=%v %dx%dx%d batch %d ld %d steps %d,%d,%d transposed %v,%v bias %v aligned %d; measured=%v workspace %d",
		s.gpu.Name, s.gpu.Arch, s.gpu.SMs, g.sms, st.lib.Version(), g.dt, g.tf32, g.m, g.n, g.k, g.batch, g.ld, g.bSt, g.aStep, g.outStep,
		g.ta, g.tb, g.bias != 0, g.alignments(), !g.fixed, workspaceBytes) + own
}

func (g *ltGemm) alignments() [4]uint32 {
	return [4]uint32{aligned(g.b), aligned(g.a), aligned(g.out), aligned(g.out)}
}
