package nsys

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/trace"
)

// TestSums checks that sums over kernels, which people paste from nsys stats, are read, and that the error says which
// report contains the start times.
func TestSums(t *testing.T) {
	const text = `Updated comment:
Time (%) Total Time (ns) Instances Avg (ns) Med (ns) Min (ns) Max (ns) StdDev (ns) Name
-------- --------------- --------- -------- -------- -------- -------- ----------- ---------------
53.3 14580255 16 911265.9 693407.0 254975 2909549 795575.7 ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<(unsigne
14.2 3870002 17 227647.2 107807.0 104287 370304 133392.2 nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT
Previous comment:
Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
31.1,688351,2,344175.5,344175.5,252928,435423,129043.5,"ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x, y)"
21.2,469823,2,234911.5,234911.5,105760,364063,182647.8,nvjet_sm90
`
	_, err := ReadText(strings.NewReader(text), new(trace.Names))
	var sums *SumsError
	if !errors.As(err, &sums) {
		t.Fatalf("got %v", err)
	}
	want := []Sum{{2, 2, 14580255 + 3870002, 14580255, 16}, {7, 2, 688351 + 469823, 688351, 2}}
	if !slices.Equal(sums.Sums, want) {
		t.Errorf("got %+v, want %+v", sums.Sums, want)
	}
	// The shares of the communicating kernels are 14580255 of 18450257 and 688351 of 1158174 ns.
	for _, part := range []string{"the table at line 2 has 18.45 ms in kernels of 2 names, 79.0 % of it in 16 kernels",
		"59.4 % of it in 2 kernels", "nsys stats --report cuda_gpu_trace"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("there is no %q in %q", part, err)
		}
	}
	// If a file has sums and a trace, the trace is read.
	if _, err := ReadText(strings.NewReader("no table\n"), new(trace.Names)); !errors.Is(err, ErrOther) {
		t.Errorf("got %v", err)
	}
}
