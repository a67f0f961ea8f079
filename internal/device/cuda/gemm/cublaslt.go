package gemm

import (
	"fmt"
	"math/bits"

	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// LtProblem is a GEMM in the form that cuBLASLt requires. cuBLASLt stores matrices by columns, so it computes outᵀ =
// bᵀ·aᵀ.
type LtProblem struct {
	Problem
	ld     [3]int64 // leading dimensions (strides between columns) of b, a and out
	ta, tb bool     // whether b and a are passed as transposed
	tf32   bool
}

// CuBLASLt returns g in the form that cuBLASLt requires, and reports whether cuBLASLt supports g's strides.
func (g Problem) CuBLASLt() (LtProblem, bool) {
	if g.On != 1 && g.N > 1 {
		if g.Bias != 0 || g.scaled() {
			return LtProblem{}, false
		}
		g = g.turned()
	}
	l := LtProblem{Problem: g}
	var turned, ok [3]bool
	l.ld[0], turned[0], ok[0] = columns(g.N, g.K, g.Bn, g.Bk)
	l.ld[1], turned[1], ok[1] = columns(g.K, g.M, g.Ak, g.Am)
	l.ld[2], turned[2], ok[2] = columns(g.N, g.M, g.On, g.Om)
	l.ta, l.tb = turned[0], turned[1]
	if g.scaled() && (!l.ta || l.tb || g.Batch > 1) { // tensor cores require K to be the contiguous dimension of 8-bit operands
		return LtProblem{}, false
	}
	good := ok == [3]bool{true, true, true} && !turned[2] && g.Batch <= 1<<30
	return l, good && g.addsBiasOnce(l.ld[:]...)
}

// addsBiasOnce reports whether cuBLASLt adds g's bias before it rounds, as S11 requires. If extents, leading
// dimensions or addresses do not permit 16-byte accesses, cuBLASLt 13.1 on an H200 stored the GEMM's result in the
// narrow type and added the bias in a second pass, which rounds twice.
func (g Problem) addsBiasOnce(ld ...int64) bool {
	if g.Bias == 0 || g.DType.Size() >= 4 {
		return true
	}
	per := 16 / g.DType.Size()
	for _, n := range append(ld, g.N, g.K) {
		if n%per != 0 {
			return false
		}
	}
	for _, p := range []nvlib.Ptr{g.A, g.B, g.Out, g.Bias} {
		if p%16 != 0 {
			return false
		}
	}
	return true
}

// Launch is a GEMM that cuBLASLt computes.
type Launch struct {
	host    *Host
	Library *nvlib.CuBLASLt
	Handle  nvlib.LtHandle
	Problem LtProblem
	Product *nvlib.Product
	Desc    nvlib.LtDesc
	Layouts [3]nvlib.LtLayout
	Need    int64         // workspace, in bytes
	guess   bool          // the algorithm is a guess: it was not measured (see Pick)
	own     *nvlib.Launch // hocket's kernel for few rows, while it may still be chosen; otherwise nil
	few     bool          // own was considered for this GEMM, even if it was dropped later
	beside  []*Launch     // see PrepareBeside
	shares  bool          // beside has algorithms for shares of the GPU, which run concurrently also outside graphs
}

// WorkspaceBytes limits the workspace that algorithms may use on each stream, in bytes.
const WorkspaceBytes = 32 << 20

// notTaken returns nil if err only reports that cuBLASLt does not support a GEMM; otherwise it returns err.
func notTaken(err error) error {
	switch nvlib.Code(err, "cuBLASLt") {
	case nvlib.CuBLASNotSupported, nvlib.CuBLASInvalidValue:
		return nil
	}
	return err
}

func ltTypes(dt ir.DType, tf32 bool) (t nvlib.LtType, c nvlib.LtCompute, scale nvlib.LtType) {
	switch {
	case dt == ir.F8E4M3:
		return nvlib.LtF8E4M3, nvlib.LtCompute32F, nvlib.LtF32
	case dt == ir.F8E5M2:
		return nvlib.LtF8E5M2, nvlib.LtCompute32F, nvlib.LtF32
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

// Describe creates cuBLASLt's descriptors of the GEMM.
func (st *Launch) Describe() error {
	lib, g := st.Library, &st.Problem
	_, compute, scale := ltTypes(g.DType, g.tf32)
	var err error
	if st.Desc, err = lib.NewDesc(compute, scale); err != nil {
		return err
	}
	set := func(attr int, v int32) {
		if err == nil {
			err = lib.SetDesc32(st.Desc, attr, v)
		}
	}
	rows, cols := [3]int64{g.N, g.K, g.N}, [3]int64{g.K, g.M, g.M}
	for i, turned := range []bool{g.ta, g.tb} {
		if turned {
			rows[i], cols[i] = cols[i], rows[i]
			set(nvlib.LtDescTransA+i, 1)
		}
	}
	if g.Bias != 0 { // withRelu adds a relu later
		set(nvlib.LtDescEpilog, nvlib.LtEpilogueBias)
	}
	if g.SMs > 0 {
		set(nvlib.LtDescSMs, int32(g.SMs))
	}
	if g.scaled() {
		for i := range 2 { // cuBLASLt's operand A is b, and its operand B is a
			set(nvlib.LtDescScaleModeA+i, int32(g.Modes[1-i]))
			if err == nil {
				err = lib.SetDesc64(st.Desc, nvlib.LtDescScaleA+i, uint64(g.Scales[1-i]))
			}
		}
	}
	if g.FastAccum && err == nil {
		err = lib.SetDesc8(st.Desc, nvlib.LtDescFastAccum, 1)
	}
	if err == nil {
		err = st.setBias(g.Bias)
	}
	if err != nil {
		return err
	}
	types := g.types()
	for i, shift := range []int64{g.BStep, g.AStep, g.OutStep} {
		t, _, _ := ltTypes(types[i], g.tf32)
		if st.Layouts[i], err = lib.NewLayout(t, rows[i], cols[i], g.ld[i], int32(g.Batch), shift); err != nil {
			return err
		}
	}
	return nil
}

// setRelu lets cuBLASLt apply a relu to the result of st.
func (st *Launch) setRelu() error {
	epilogue := int32(nvlib.LtEpilogueRelu)
	if st.Problem.Bias != 0 {
		epilogue |= nvlib.LtEpilogueBias
	}
	return st.Library.SetDesc32(st.Desc, nvlib.LtDescEpilog, epilogue)
}

// setBias sets the address of the bias, if the GEMM has a bias.
func (st *Launch) setBias(at nvlib.Ptr) error {
	if st.Problem.Bias == 0 {
		return nil
	}
	return st.Library.SetDesc64(st.Desc, nvlib.LtDescBias, uint64(at))
}

// NewProduct returns the arguments of a cuBLASLt call that computes st with the given algorithm and addresses of
// operands.
func (st *Launch) NewProduct(algo nvlib.LtAlgo, b, a, out nvlib.Ptr) *nvlib.Product {
	la := st.Layouts
	return nvlib.NewProduct(st.Handle, st.Desc, la[0], la[1], la[2], b, a, out, algo, st.Problem.DType == ir.F64)
}

// aligned returns the largest power of two, up to 256, that divides the address p.
func aligned(p nvlib.Ptr) uint32 { return 1 << min(bits.TrailingZeros64(uint64(p)), 8) }

// dropOwn drops hocket's own kernel.
func (st *Launch) dropOwn() {
	if st.own != nil {
		st.own.Free()
		st.own = nil
	}
}

// Free frees cuBLASLt's descriptors of the GEMM. Free is called when the launch is released and again when the world
// ends; only the first call has an effect. The caller holds the world's mutex.
func (st *Launch) Free() {
	if !st.host.live[st] {
		return
	}
	delete(st.host.live, st)
	for _, other := range st.beside {
		other.Free()
	}
	if st.Product != nil {
		st.Product.Free()
	}
	st.dropOwn()
	for _, l := range st.Layouts {
		if l != 0 {
			_ = st.Library.FreeLayout(l) // the call only frees memory, so the caller can ignore an error
		}
	}
	if st.Desc != 0 {
		_ = st.Library.FreeDesc(st.Desc)
	}
}

// key returns the key of st in tables of picks: a text that contains everything on which the choice of an algorithm
// depends. GEMMs with equal keys use the same algorithm.
func (st *Launch) key() string {
	g, own := &st.Problem, ""
	if st.few {
		own = "; own, early"
	}
	return fmt.Sprintf("product 2; %s %s, %d SMs of which %d; cuBLASLt %d; %s tf32=%v %dx%dx%d batch %d ld %d steps %d,%d,%d transposed %v,%v bias %v aligned %d; measured=%v workspace %d",
		st.host.gpu.Name, st.host.gpu.Arch, st.host.gpu.SMs, g.SMs, st.Library.Version(), g.DType, g.tf32, g.M, g.N, g.K, g.Batch, g.ld, g.BStep, g.AStep, g.OutStep,
		g.ta, g.tb, g.Bias != 0, g.Alignments(), !g.Fixed, WorkspaceBytes) + g.scaledKey() + own
}

// scaledKey returns the part of key's text that describes 8-bit operands with scales.
func (g *Problem) scaledKey() string {
	if !g.scaled() {
		return ""
	}
	text := fmt.Sprintf("; of %s, %s with scales %d", g.In[0], g.In[1], g.Modes)
	if g.FastAccum {
		text += ", fast accumulation"
	}
	return text
}

// Alignments returns the alignments of b, a, out, and out again, as cuBLASLt expects them: for its A, B, C and D.
func (g *LtProblem) Alignments() [4]uint32 {
	return [4]uint32{aligned(g.B), aligned(g.A), aligned(g.Out), aligned(g.Out)}
}
