package cuda

import (
	"cmp"
	"testing"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/nvlib"
)

// fakeLT is a cuBLASLt whose algorithms, numbered from 1, take the times that
// they are given, on a clock that events tell, and compute a number only.
type fakeLT struct {
	t       *testing.T
	costs   []float32 // milliseconds; negative: it does not run after all
	cold    int       // runs of the first one that take twice as long
	need    uint64    // workspace
	refuse  bool      // what is asked whether it computes a product
	late    int       // the algorithm whose results differ from the others'; 0 for none
	now     float32
	asked   int // for algorithms
	checked int
	live    int       // descriptions, layouts and preferences
	schemes []uint32  // of reduction that were allowed
	sms     []int32   // multiprocessors that products were described for
	version uintptr   // 0: 13.1
	modes   []int32   // of scales, of A and B in turns
	scales  []uintptr // where they are, likewise
	types   []int32   // of layouts
	runs    []fakeRun // in order
	at      map[uintptr]float32
	gpu     *fakeGPU // that says which calls fail; nil for none
}

type fakeRun struct {
	algo      int
	out, work uintptr
}

// time has the driver's events tell the clock.
func (l *fakeLT) time(table map[string]func([]uintptr) uintptr) {
	record := table["cuEventRecord"]
	l.at = map[uintptr]float32{}
	table["cuEventRecord"] = func(a []uintptr) uintptr {
		l.at[a[0]] = l.now
		return record(a)
	}
	table["cuEventElapsedTime"] = func(a []uintptr) uintptr { return set(a[0], l.at[a[2]]-l.at[a[1]]) }
}

func (l *fakeLT) open() (*nvlib.CuBLASLt, error) {
	handles := uintptr(0)
	zero := func([]uintptr) uintptr { return 0 }
	gone := func([]uintptr) uintptr { l.live--; return 0 }
	handle := func(a []uintptr) uintptr { handles++; l.live++; return set(a[0], handles) }
	table := map[string]func([]uintptr) uintptr{
		"cublasLtCreate": func(a []uintptr) uintptr { return set(a[0], uintptr(1)<<20) }, "cublasLtDestroy": zero, "cublasLtGetVersion": func([]uintptr) uintptr { return cmp.Or(l.version, 130101) },
		"cublasLtMatmulDescCreate": handle, "cublasLtMatmulDescDestroy": gone, "cublasLtMatmulDescSetAttribute": func(a []uintptr) uintptr {
			switch a[1] {
			case nvlib.LtDescScaleModeA, nvlib.LtDescScaleModeA + 1:
				l.modes = append(l.modes, cabi.Load[int32](a[2]))
			case nvlib.LtDescScaleA, nvlib.LtDescScaleA + 1:
				l.scales = append(l.scales, cabi.Load[uintptr](a[2]))
			}
			if a[1] == nvlib.LtDescSMs {
				l.sms = append(l.sms, cabi.Load[int32](a[2]))
			}
			return 0
		},
		"cublasLtMatrixLayoutCreate": func(a []uintptr) uintptr { l.types = append(l.types, int32(a[1])); return handle(a) }, "cublasLtMatrixLayoutDestroy": gone, "cublasLtMatrixLayoutSetAttribute": zero,
		"cublasLtMatmulPreferenceCreate": handle, "cublasLtMatmulPreferenceDestroy": gone,
		"cublasLtMatmulPreferenceSetAttribute": func(a []uintptr) uintptr {
			if a[1] == 3 {
				l.schemes = append(l.schemes, cabi.Load[uint32](a[2]))
			}
			return 0
		},
		"cublasLtMatmulAlgoGetHeuristic": func(a []uintptr) uintptr {
			l.asked++
			n := min(len(l.costs), int(a[7]))
			for i := range n {
				cabi.Store(a[8]+uintptr(96*i), nvlib.LtResult{Algo: nvlib.LtAlgo{uint64(i + 1)}, Workspace: l.need})
			}
			return set(a[9], int32(n))
		},
		"cublasLtMatmulAlgoCheck": func(a []uintptr) uintptr {
			l.checked++
			if l.refuse {
				return nvlib.CuBLASNotSupported
			}
			return set(a[7], nvlib.LtResult{Algo: cabi.Load[nvlib.LtAlgo](a[6]), Workspace: l.need})
		},
		"cublasLtMatmul": func(a []uintptr) uintptr {
			algo := int(cabi.Load[uint64](a[12]))
			if l.costs[algo-1] < 0 {
				return nvlib.CuBLASNotSupported
			}
			l.now += l.costs[algo-1]
			if algo == 1 && l.cold > 0 {
				l.cold--
				l.now += l.costs[0]
			}
			l.runs = append(l.runs, fakeRun{algo, a[10], a[13]})
			cabi.Store(a[10], uint64(0))
			if algo == l.late {
				cabi.Store(a[10], uint64(1))
			}
			return 0
		},
	}
	if l.gpu != nil {
		l.gpu.failing(table, 14, func(string) {}) // CUBLAS_STATUS_INTERNAL_ERROR
	}
	return nvlib.CuBLASLtOn(cabi.Fake("fake libcublasLt", table))
}
