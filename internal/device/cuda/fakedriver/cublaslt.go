package fakedriver

import (
	"cmp"
	"testing"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/nvlib"
)

// LT is a fake cuBLASLt. The fake's algorithms are numbered from 1. The test sets the time of each algorithm, on a
// clock that fake events read. The algorithms do not compute the GEMM; each writes a number.
type LT struct {
	T       *testing.T
	Costs   []float32              // time of each algorithm in milliseconds; negative if it fails when it is run
	Cold    int                    // the first Cold runs take twice as long
	Need    uint64                 // workspace bytes
	Refuse  bool                   // checks whether an algorithm supports a GEMM report failure
	Batch   float32                // time of a batched GEMM in milliseconds; 0 for the sum of its products' times
	Share   float32                // time of a GEMM for some of the multiprocessors in milliseconds; 0 for Costs
	Unequal bool                   // batched GEMMs write another number than single ones
	Result  func(b uintptr) uint64 // returns the number that a product with the matrix at b writes; nil for 0
	Late    int                    // the algorithm whose results differ from those of the others; 0 for none
	Now     float32
	Asked   int // number of requests for algorithms
	Checked int
	Live    int       // number of descriptors, layouts and preferences that are not freed
	Schemes []uint32  // allowed reduction schemes
	SMs     []int32   // numbers of multiprocessors for which algorithms were requested
	Version uintptr   // 0 for 13.1
	Modes   []int32   // scale modes, alternately of A and B
	Fast    []int8    // values of the attribute for fast accumulation
	Scales  []uintptr // addresses of scales, alternately of A and B
	Types   []int32   // element types of layouts
	Runs    []Run     // in order
	handles uintptr   // the last one
	layouts map[uintptr]layout
	limits  map[uintptr]int32 // by descriptor: the number of multiprocessors, if it is limited
	at      map[uintptr]float32
	GPU     *GPU // the fake driver that decides which calls fail; nil if none fail
}

// layout holds the number of matrices of a batch, the distance between them in elements, and the element type.
type layout struct {
	batch int32
	shift int64
	dtype int32
}

// Run is a product that the fake computed.
type Run struct {
	Algo      int
	Out, Work uintptr
	Shifts    [3]int64 // distances between consecutive matrices of a batch, in elements: of b, of a and of the result
}

// sizes maps cuBLASLt's number of an element type to the size of an element in bytes.
var sizes = map[int32]uintptr{int32(nvlib.LtF32): 4, int32(nvlib.LtF64): 8, int32(nvlib.LtF16): 2, int32(nvlib.LtBF16): 2}

// time makes the driver's events read the clock l.Now.
func (l *LT) time(table map[string]func([]uintptr) uintptr) {
	record := table["cuEventRecord"]
	l.at = map[uintptr]float32{}
	table["cuEventRecord"] = func(a []uintptr) uintptr {
		l.at[a[0]] = l.Now
		return record(a)
	}
	table["cuEventElapsedTime"] = func(a []uintptr) uintptr { return Set(a[0], l.at[a[2]]-l.at[a[1]]) }
}

func (l *LT) open() (*nvlib.CuBLASLt, error) {
	if l.layouts == nil { // the library may be opened several times
		l.layouts, l.limits = map[uintptr]layout{}, map[uintptr]int32{}
	}
	zero := func([]uintptr) uintptr { return 0 }
	gone := func([]uintptr) uintptr { l.Live--; return 0 }
	handle := func(a []uintptr) uintptr { l.handles++; l.Live++; return Set(a[0], l.handles) }
	table := map[string]func([]uintptr) uintptr{
		"cublasLtCreate": func(a []uintptr) uintptr { return Set(a[0], uintptr(1)<<20) }, "cublasLtDestroy": zero,
		"cublasLtGetVersion":       func([]uintptr) uintptr { return cmp.Or(l.Version, 130101) },
		"cublasLtMatmulDescCreate": handle, "cublasLtMatmulDescDestroy": gone,
		"cublasLtMatmulDescSetAttribute": func(a []uintptr) uintptr {
			switch a[1] {
			case nvlib.LtDescScaleModeA, nvlib.LtDescScaleModeA + 1:
				l.Modes = append(l.Modes, cabi.Load[int32](a[2]))
			case nvlib.LtDescScaleA, nvlib.LtDescScaleA + 1:
				l.Scales = append(l.Scales, cabi.Load[uintptr](a[2]))
			}
			if a[1] == nvlib.LtDescFastAccum && a[3] == 1 {
				l.Fast = append(l.Fast, cabi.Load[int8](a[2]))
			}
			if a[1] == nvlib.LtDescSMs {
				l.limits[a[0]] = cabi.Load[int32](a[2])
				l.SMs = append(l.SMs, l.limits[a[0]])
			}
			return 0
		},
		"cublasLtMatrixLayoutCreate": func(a []uintptr) uintptr {
			l.Types = append(l.Types, int32(a[1]))
			l.layouts[l.handles+1] = layout{batch: 1, dtype: int32(a[1])}
			return handle(a)
		},
		"cublasLtMatrixLayoutDestroy": gone,
		"cublasLtMatrixLayoutSetAttribute": func(a []uintptr) uintptr {
			of := l.layouts[a[0]]
			switch a[1] {
			case 5:
				of.batch = cabi.Load[int32](a[2])
			case 6:
				of.shift = cabi.Load[int64](a[2])
			}
			l.layouts[a[0]] = of
			return 0
		},
		"cublasLtMatmulPreferenceCreate": handle, "cublasLtMatmulPreferenceDestroy": gone,
		"cublasLtMatmulPreferenceSetAttribute": func(a []uintptr) uintptr {
			if a[1] == 3 {
				l.Schemes = append(l.Schemes, cabi.Load[uint32](a[2]))
			}
			return 0
		},
		"cublasLtMatmulAlgoGetHeuristic": func(a []uintptr) uintptr {
			l.Asked++
			n := min(len(l.Costs), int(a[7]))
			for i := range n {
				cabi.Store(a[8]+uintptr(96*i), nvlib.LtResult{Algo: nvlib.LtAlgo{uint64(i + 1)}, Workspace: l.Need})
			}
			return Set(a[9], int32(n))
		},
		"cublasLtMatmulAlgoCheck": func(a []uintptr) uintptr {
			l.Checked++
			if l.Refuse {
				return nvlib.CuBLASNotSupported
			}
			return Set(a[7], nvlib.LtResult{Algo: cabi.Load[nvlib.LtAlgo](a[6]), Workspace: l.Need})
		},
		"cublasLtMatmul": func(a []uintptr) uintptr {
			algo := int(cabi.Load[uint64](a[12]))
			if l.Costs[algo-1] < 0 {
				return nvlib.CuBLASNotSupported
			}
			result, cost := l.layouts[a[11]], l.Costs[algo-1]
			if l.Share > 0 && l.limits[a[1]] > 0 {
				cost = l.Share
			}
			if l.Now += cost * float32(result.batch); result.batch > 1 && l.Batch > 0 {
				l.Now += l.Batch - l.Costs[algo-1]*float32(result.batch)
			}
			if algo == 1 && l.Cold > 0 {
				l.Cold--
				l.Now += l.Costs[0]
			}
			l.Runs = append(l.Runs, Run{algo, a[10], a[13], [3]int64{l.layouts[a[4]].shift, l.layouts[a[6]].shift, result.shift}})
			for i := range uintptr(result.batch) {
				wrote := uint64(0)
				if algo == l.Late || result.batch > 1 && l.Unequal {
					wrote = 1
				}
				if l.Result != nil {
					wrote |= l.Result(a[3] + i*uintptr(l.layouts[a[4]].shift)*sizes[l.layouts[a[4]].dtype])
				}
				cabi.Store(a[10]+i*uintptr(result.shift)*sizes[result.dtype], wrote)
			}
			return 0
		},
	}
	if l.GPU != nil {
		l.GPU.failing(table, 14, func(string) {}) // CUBLAS_STATUS_INTERNAL_ERROR
	}
	return nvlib.CuBLASLtOn(cabi.Fake("fake libcublasLt", table))
}
