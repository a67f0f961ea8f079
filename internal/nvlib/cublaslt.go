package nvlib

import (
	"fmt"
	"unsafe"

	"hocket.example/hocket/internal/cabi"
)

const cublasLibrary = "cuBLASLt"

// CuBLASNotSupported is the status of cuBLASLt for a GEMM without an algorithm.
const CuBLASNotSupported = 15

// CuBLASAllocFailed is the status of cuBLASLt if there is too little memory.
const CuBLASAllocFailed = 3

// CuBLASInvalidValue is the status of cuBLASLt for an invalid argument.
const CuBLASInvalidValue = 7

// These are handles of cuBLASLt.
type (
	LtHandle uintptr
	LtDesc   uintptr
	LtLayout uintptr
	LtPref   uintptr
)

// LtType is cuBLASLt's number of an element type (cudaDataType).
type LtType int32

// Element types of matrices.
const (
	LtF32    LtType = 0
	LtF64    LtType = 1
	LtF16    LtType = 2
	LtBF16   LtType = 14
	LtF8E4M3 LtType = 28
	LtF8E5M2 LtType = 29
)

// LtCompute is cuBLASLt's number of the type in which a GEMM accumulates (cublasComputeType_t).
type LtCompute int32

// These constants are the types in which GEMMs accumulate.
const (
	LtCompute32F     LtCompute = 68
	LtCompute32FTF32 LtCompute = 77
	LtCompute64F     LtCompute = 70
)

// These constants are the numbers of attributes of a GEMM's description.
const (
	LtDescTransA     = 3
	LtDescTransB     = 4
	LtDescEpilog     = 7
	LtDescBias       = 8
	LtDescSMs        = 15
	LtDescScaleA     = 17 // the address of the scales of A; B follows
	LtDescFastAccum  = 25 // one byte
	LtDescScaleModeA = 31
	ltLayoutBatch    = 5
	ltLayoutShift    = 6
	ltPrefSpace      = 1
	ltPrefReduce     = 3
	ltPrefAlignA     = 5

	ltReduceCompute = 2 // CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
)

// Epilogues. Relu and bias are combined by a bitwise or.
const (
	LtEpilogueRelu = 2
	LtEpilogueBias = 4
)

// LtScale selects which parts of a matrix share a scale (cublasLtMatmulMatrixScale_t).
type LtScale int32

// The scales are f32. There is one scale for the matrix, one for each row of op(A) or column of op(B), one for each
// 128 elements that are summed, or one for each square of 128 by 128.
const (
	LtScaleOne     LtScale = 0
	LtScaleOuter   LtScale = 3
	LtScaleVec128  LtScale = 4
	LtScaleSquares LtScale = 5
	// LtScalesSince is the first version of cuBLASLt with more than one scale for a matrix: 12.9.
	LtScalesSince = 120900
)

// LtAlgo is an algorithm in cuBLASLt's own format.
type LtAlgo [8]uint64

// LtResult is an algorithm that can compute a GEMM, and its properties.
type LtResult struct {
	Algo      LtAlgo
	Workspace uint64
	State     int32
	Waves     float32
	_         [4]int32
}

// CuBLASLt is the library.
type CuBLASLt struct {
	lib   *cabi.Library
	f     cublasFuncs
	watch *Watch // monitors the calls of the owner; nil if none does
}

// Watched returns the library for an owner, whose calls the Watch w monitors.
func (c *CuBLASLt) Watched(w *Watch) *CuBLASLt { return &CuBLASLt{c.lib, c.f, w} }

type cublasFuncs struct {
	create, destroy, getVersion, getStatusString cabi.Func
	descCreate, descDestroy, descSet             cabi.Func
	layoutCreate, layoutDestroy, layoutSet       cabi.Func
	prefCreate, prefDestroy, prefSet             cabi.Func
	heuristic, algoCheck, matmul                 cabi.Func
}

func (f *cublasFuncs) table() map[string]*cabi.Func {
	return map[string]*cabi.Func{
		"cublasLtCreate":                       &f.create,
		"cublasLtDestroy":                      &f.destroy,
		"cublasLtGetVersion":                   &f.getVersion,
		"cublasLtMatmulDescCreate":             &f.descCreate,
		"cublasLtMatmulDescDestroy":            &f.descDestroy,
		"cublasLtMatmulDescSetAttribute":       &f.descSet,
		"cublasLtMatrixLayoutCreate":           &f.layoutCreate,
		"cublasLtMatrixLayoutDestroy":          &f.layoutDestroy,
		"cublasLtMatrixLayoutSetAttribute":     &f.layoutSet,
		"cublasLtMatmulPreferenceCreate":       &f.prefCreate,
		"cublasLtMatmulPreferenceDestroy":      &f.prefDestroy,
		"cublasLtMatmulPreferenceSetAttribute": &f.prefSet,
		"cublasLtMatmulAlgoGetHeuristic":       &f.heuristic,
		"cublasLtMatmulAlgoCheck":              &f.algoCheck,
		"cublasLtMatmul":                       &f.matmul,
	}
}

func (f *cublasFuncs) optional() map[string]*cabi.Func {
	return map[string]*cabi.Func{"cublasLtGetStatusString": &f.getStatusString}
}

var wantCuBLASLt = want{
	library: "NVIDIA's matrix library libcublasLt", env: "HOCKET_LIBCUBLASLT",
	stem: "libcublasLt.so", versions: []string{".13", ".12"},
	wheels: []string{"nvidia/cu13/lib", "nvidia/cublas/lib"},
	help:   "install it (pip install nvidia-cublas, or the CUDA toolkit)",
}

// OpenCuBLASLt loads libcublasLt.
func OpenCuBLASLt() (*CuBLASLt, error) {
	c := &CuBLASLt{}
	var err error
	if c.lib, err = wantCuBLASLt.load(c.f.table(), c.f.optional()); err != nil {
		return nil, err
	}
	return c, nil
}

// CuBLASLtOn is like OpenCuBLASLt, for a library that is already loaded.
func CuBLASLtOn(lib *cabi.Library) (*CuBLASLt, error) {
	c := &CuBLASLt{lib: lib}
	return c, wantCuBLASLt.resolve(lib, c.f.table(), c.f.optional())
}

// Loaded describes the loaded library.
func (c *CuBLASLt) Loaded() Loaded {
	v := int64(c.f.getVersion.Call())
	version := fmt.Sprintf("%d.%d.%d", v/10000, v%10000/100, v%100)
	return Loaded{Name: "libcublasLt", Path: c.lib.Path("cublasLtCreate"), Version: version}
}

// Version returns the version of the library as one number.
func (c *CuBLASLt) Version() int64 { return int64(c.f.getVersion.Call()) }

//go:uintptrescapes
func (c *CuBLASLt) check(f cabi.Func, call string, args ...uintptr) error {
	return c.result(call, c.watch.Call(f, args))
}

func (c *CuBLASLt) result(call string, status uintptr) error {
	code := int32(status)
	if code == 0 {
		return nil
	}
	text := ""
	if c.f.getStatusString.Present() {
		text = cabi.GoString(c.f.getStatusString.Call(uintptr(code)))
	}
	return &Error{Library: cublasLibrary, Call: call, Code: int(code), Text: text}
}

// Create creates a handle of cuBLASLt for the device of the current context.
func (c *CuBLASLt) Create() (LtHandle, error) {
	var h LtHandle
	err := c.check(c.f.create, "cublasLtCreate", uintptr(unsafe.Pointer(&h)))
	return h, err
}

// Destroy frees a handle.
func (c *CuBLASLt) Destroy(h LtHandle) error {
	return c.check(c.f.destroy, "cublasLtDestroy", uintptr(h))
}

// NewDesc creates the description of a product. The argument scale is the type of alpha and beta.
func (c *CuBLASLt) NewDesc(compute LtCompute, scale LtType) (LtDesc, error) {
	var d LtDesc
	err := c.check(c.f.descCreate, "cublasLtMatmulDescCreate", uintptr(unsafe.Pointer(&d)), uintptr(compute), uintptr(scale))
	return d, err
}

// SetDesc8 sets an attribute of a GEMM's description that has 8 bits.
func (c *CuBLASLt) SetDesc8(d LtDesc, attr int, v int8) error {
	return c.check(c.f.descSet, "cublasLtMatmulDescSetAttribute", uintptr(d), uintptr(attr), uintptr(unsafe.Pointer(&v)), 1)
}

// SetDesc32 sets an attribute of a GEMM's description that has 32 bits.
func (c *CuBLASLt) SetDesc32(d LtDesc, attr int, v int32) error {
	return c.check(c.f.descSet, "cublasLtMatmulDescSetAttribute", uintptr(d), uintptr(attr), uintptr(unsafe.Pointer(&v)), 4)
}

// SetDesc64 sets an attribute of a GEMM's description that has 64 bits.
func (c *CuBLASLt) SetDesc64(d LtDesc, attr int, v uint64) error {
	return c.check(c.f.descSet, "cublasLtMatmulDescSetAttribute", uintptr(d), uintptr(attr), uintptr(unsafe.Pointer(&v)), 8)
}

// FreeDesc frees a description.
func (c *CuBLASLt) FreeDesc(d LtDesc) error {
	return c.check(c.f.descDestroy, "cublasLtMatmulDescDestroy", uintptr(d))
}

// NewLayout describes batch column-major matrices of rows × cols elements. Columns are at distances of ld elements, and
// matrices at distances of shift elements.
func (c *CuBLASLt) NewLayout(t LtType, rows, cols, ld int64, batch int32, shift int64) (LtLayout, error) {
	var l LtLayout
	err := c.check(c.f.layoutCreate, "cublasLtMatrixLayoutCreate", uintptr(unsafe.Pointer(&l)), uintptr(t), uintptr(rows), uintptr(cols), uintptr(ld))
	if err != nil || batch == 1 {
		return l, err
	}
	err = c.check(c.f.layoutSet, "cublasLtMatrixLayoutSetAttribute", uintptr(l), ltLayoutBatch, uintptr(unsafe.Pointer(&batch)), 4)
	if err == nil {
		err = c.check(c.f.layoutSet, "cublasLtMatrixLayoutSetAttribute", uintptr(l), ltLayoutShift, uintptr(unsafe.Pointer(&shift)), 8)
	}
	return l, err
}

// FreeLayout frees a layout.
func (c *CuBLASLt) FreeLayout(l LtLayout) error {
	return c.check(c.f.layoutDestroy, "cublasLtMatrixLayoutDestroy", uintptr(l))
}

// Wish lists requirements on an algorithm.
type Wish struct {
	Workspace int64
	// Align are the alignments in bytes of A, B, C and D.
	Align [4]uint32
	// NoSplit excludes algorithms that split a sum into parts and add the parts later. If NoSplit is not set, an
	// algorithm that splits a sum adds the parts in the type in which GEMMs accumulate. It never adds them in the type
	// of the result, which would round more than once.
	NoSplit bool
}

// Heuristic returns up to n algorithms, the best guess first.
func (c *CuBLASLt) Heuristic(h LtHandle, d LtDesc, la, lb, lc, ld LtLayout, w Wish, n int) ([]LtResult, error) {
	var p LtPref
	if err := c.check(c.f.prefCreate, "cublasLtMatmulPreferenceCreate", uintptr(unsafe.Pointer(&p))); err != nil {
		return nil, err
	}
	defer c.check(c.f.prefDestroy, "cublasLtMatmulPreferenceDestroy", uintptr(p))
	if err := c.prefer(p, w); err != nil {
		return nil, err
	}
	results, found := make([]LtResult, n), int32(0)
	err := c.check(c.f.heuristic, "cublasLtMatmulAlgoGetHeuristic", uintptr(h), uintptr(d), uintptr(la), uintptr(lb), uintptr(lc), uintptr(ld),
		uintptr(p), uintptr(n), uintptr(unsafe.Pointer(&results[0])), uintptr(unsafe.Pointer(&found)))
	if err != nil {
		return nil, err
	}
	var good []LtResult
	for _, r := range results[:found] {
		if r.State == 0 {
			good = append(good, r)
		}
	}
	return good, nil
}

// Check returns the properties of an algorithm for a GEMM, or an error if the algorithm cannot compute the GEMM. The
// algorithm may have been stored by an earlier process.
func (c *CuBLASLt) Check(h LtHandle, d LtDesc, la, lb, lc, ld LtLayout, algo LtAlgo) (LtResult, error) {
	var r LtResult
	err := c.check(c.f.algoCheck, "cublasLtMatmulAlgoCheck", uintptr(h), uintptr(d), uintptr(la), uintptr(lb), uintptr(lc), uintptr(ld),
		uintptr(unsafe.Pointer(&algo)), uintptr(unsafe.Pointer(&r)))
	return r, err
}

func (c *CuBLASLt) prefer(p LtPref, w Wish) error {
	space := uint64(w.Workspace)
	if err := c.check(c.f.prefSet, "cublasLtMatmulPreferenceSetAttribute", uintptr(p), ltPrefSpace, uintptr(unsafe.Pointer(&space)), 8); err != nil {
		return err
	}
	for i := range w.Align {
		a := w.Align[i]
		if err := c.check(c.f.prefSet, "cublasLtMatmulPreferenceSetAttribute", uintptr(p), uintptr(ltPrefAlignA+i), uintptr(unsafe.Pointer(&a)), 4); err != nil {
			return err
		}
	}
	schemes := uint32(ltReduceCompute)
	if w.NoSplit {
		schemes = 0
	}
	return c.check(c.f.prefSet, "cublasLtMatmulPreferenceSetAttribute", uintptr(p), ltPrefReduce, uintptr(unsafe.Pointer(&schemes)), 4)
}

// Product holds the arguments of a cuBLASLt call that computes D = alpha·op(A)·op(B) + beta·C, where C is the memory of
// D. The call can be made many times.
type Product struct {
	args  [16]uintptr
	block *cabi.Block
}

const productAlgoAt = 32

// Algo returns the algorithm that computes the product.
func (p *Product) Algo() LtAlgo { return cabi.Load[LtAlgo](p.block.Addr(productAlgoAt)) }

// NewProduct returns the arguments of a product. The factors alpha and beta are f64 if wide is set, and f32 otherwise.
func NewProduct(h LtHandle, d LtDesc, la, lb, ld LtLayout, a, b, out Ptr, algo LtAlgo, wide bool) *Product {
	const alphaAt, betaAt, algoAt = 0, 16, productAlgoAt
	p := &Product{block: cabi.NewBlock(algoAt + int(unsafe.Sizeof(algo)))}
	if wide {
		cabi.Store(p.block.Addr(alphaAt), float64(1))
	} else {
		cabi.Store(p.block.Addr(alphaAt), float32(1))
	}
	cabi.Store(p.block.Addr(algoAt), algo)
	p.args = [16]uintptr{uintptr(h), uintptr(d), p.block.Addr(alphaAt), uintptr(a), uintptr(la), uintptr(b), uintptr(lb),
		p.block.Addr(betaAt), uintptr(out), uintptr(ld), uintptr(out), uintptr(ld), p.block.Addr(algoAt), 0, 0, 0}
	return p
}

// Free frees the memory of the product's arguments.
func (p *Product) Free() { p.block.Free() }

// Multiply enqueues the computation of the product p on stream s. No other work may use the workspace until p has
// ended. Only one goroutine at a time may compute p. Multiply does not allocate.
func (c *CuBLASLt) Multiply(p *Product, workspace Ptr, bytes int64, s Stream) error {
	p.args[13], p.args[14], p.args[15] = uintptr(workspace), uintptr(bytes), uintptr(s)
	return c.result("cublasLtMatmul", c.watch.Call(c.f.matmul, p.args[:]))
}
