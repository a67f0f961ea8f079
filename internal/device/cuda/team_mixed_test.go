package cuda

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/devicetest"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// TestParted has both parts of a share cover each byte of a block once.
func TestParted(t *testing.T) {
	for _, m := range []kernels.Move{
		{Members: 2, Run: 1 << 20},
		{Members: 3, Run: 5003},
		{Members: 2, Run: 513, Extents: []int64{31}, SrcStrides: [kernels.TeamMost][3]int64{{600}, {513}}, DstStrides: [kernels.TeamMost][3]int64{{1024}, {2048}}},
	} {
		for q := range m.Members {
			m.Src[q], m.Dst[q] = nvlib.Ptr(1+q)<<32, nvlib.Ptr(8+q)<<32
		}
		s, e, err := parted(&m)
		if err != nil {
			t.Fatal(err)
		}
		for q := range m.Members {
			got := map[[2]nvlib.Ptr]int{}
			for _, part := range []*kernels.Move{s, e} {
				rows := blockRowsOf(part)
				for r := range rows {
					for b := range part.Run {
						got[[2]nvlib.Ptr{part.Src[q] + nvlib.Ptr(r*part.SrcStrides[q][0]+b), part.Dst[q] + nvlib.Ptr(r*part.DstStrides[q][0]+b)}]++
					}
				}
			}
			for r := range blockRowsOf(&m) {
				for b := range m.Run {
					at := [2]nvlib.Ptr{m.Src[q] + nvlib.Ptr(r*m.SrcStrides[q][0]+b), m.Dst[q] + nvlib.Ptr(r*m.DstStrides[q][0]+b)}
					if got[at] != 1 {
						t.Fatalf("%d bytes in %v, member %d: byte %d of row %d is in %d parts", m.Run, m.Extents, q, b, r, got[at])
					}
					delete(got, at)
				}
			}
			if len(got) > 0 {
				t.Errorf("%d bytes in %v, member %d: %d bytes are none of the block's", m.Run, m.Extents, q, len(got))
			}
		}
	}
	for _, m := range []kernels.Move{{Members: 2, Run: 256}, {Members: 2, Run: 512, Extents: []int64{1}}} {
		if _, _, err := parted(&m); !errors.Is(err, device.ErrUnsupported) {
			t.Errorf("%d bytes in %v: got %v", m.Run, m.Extents, err)
		}
	}
}

func blockRowsOf(m *kernels.Move) int64 {
	if len(m.Extents) == 0 {
		return 1
	}
	return m.Extents[0]
}

// TestSweepMixed measures by how much copy engines should help. It needs
// sweepVariable as TestTeamSweep does.
func TestSweepMixed(t *testing.T) {
	if os.Getenv(sweepVariable) == "" {
		t.Skipf("%s is not set", sweepVariable)
	}
	m := real(t, Options{TeamTimeout: 4 * time.Second})
	devicetest.NeedGPUs(t, len(m.sys.gpus), 2, nil)
	dw, err := m.Open(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	w := dw.(*world)
	r := newTeamRig(t, w, "sweep", upTo(2))
	tm := newGraphTimer(t, w)
	before := enginePercent
	defer func() { enginePercent = before }()
	for _, op := range []ir.Op{ir.OpAllGather, ir.OpAllToAll} {
		for _, bytes := range sweepSizes(t) {
			elems := bytes / 4
			one := func(algo string, tune device.Tuning) {
				if r.add(teamCase{op: op, red: ir.Sum, dt: ir.BF16, shape: []int64{elems}, algo: algo}, tune) {
					fmt.Printf("%-11s %9d %-10s %3d %% by engines %dx%d/%d: %.2f\n", op, bytes, algo, enginePercent, tune.Blocks, tune.Threads, tune.Unroll,
						tm.micros(r, r.cases[len(r.cases)-1], 10))
					r.drop()
				}
			}
			for _, b := range []int{64, 128} {
				for _, u := range []int{4, 8} {
					for _, th := range []int{256, 512} {
						one("move-push", device.Tuning{Blocks: b, Threads: th, Unroll: u})
					}
				}
			}
			one("move-copy", device.Tuning{})
			for _, p := range []int64{40, 60, 70, 80, 90} {
				enginePercent = p
				for _, b := range []int{16, 32, 64, 128} {
					one("move-mixed", device.Tuning{Blocks: b, Threads: 512, Unroll: 4})
				}
			}
		}
	}
	r.close()
	r.must(w.Close())
}
