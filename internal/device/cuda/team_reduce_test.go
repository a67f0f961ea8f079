package cuda

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/coll"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// meetings is a kernel library that only records what would be launched.
type meetings struct {
	*fakedriver.GPU
	got []kernels.Meeting
}

func (l *meetings) Meeting(_ kernels.Target, m kernels.Meeting) (kernels.Step, error) {
	if !l.Gate.Pass(fakedriver.Compile) {
		return kernels.Step{}, errors.New("a compiler that was held up")
	}
	l.Mu.Lock()
	defer l.Mu.Unlock()
	l.got = append(l.got, m)
	l.Named["meeting"] = func(uintptr) {}
	return kernels.Step{Image: []byte{1}, Key: "meeting", Symbol: "meeting", Shape: nvlib.Shape{Grid: [3]uint32{uint32(m.Blocks), 1, 1}, Block: [3]uint32{uint32(m.Threads), 1, 1}}}, nil
}

// noted opens a world on fake GPUs with 132 multiprocessors, whose kernels of teams are only recorded, and a team of
// all ranks. Launches are only recorded.
func noted(t *testing.T, gpus, ranks int) (*meetings, *world, *team) {
	t.Helper()
	l := &meetings{GPU: fakedriver.New(t, gpus)}
	sys := system(l.GPU)
	for _, g := range sys.GPUs {
		g.SMs = 132
	}
	opened, err := newMachine(sys, Options{Kernels: l, RanksPerGPU: ranks / gpus}).Open(t.Context(), ranks)
	if err != nil {
		t.Fatal(err)
	}
	w := opened.(*world)
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return l, w, teamOf(t, w, "main")
}

// teamOf opens a team of all ranks on new streams.
func teamOf(t *testing.T, w *world, name string) *team {
	t.Helper()
	var members []device.Member
	for r := range w.Ranks() {
		s, err := w.Device(r).NewStream(device.StreamOptions{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		members = append(members, device.Member{Rank: r, Stream: s})
	}
	tm, err := w.OpenTeam(members)
	if err != nil {
		t.Fatal(err)
	}
	return tm.(*team)
}

// summed returns an all_reduce of count elements of bf16. Each input begins at byte in of its memory, and each result
// at byte out.
func summed(t *testing.T, w *world, count, in, out int64) *device.Collective {
	t.Helper()
	c := &device.Collective{Op: ir.OpAllReduce, Red: ir.Sum}
	for r := range w.Ranks() {
		view := func(off int64) device.View {
			m, err := w.Device(r).Alloc(off+2*count, device.Shared)
			if err != nil {
				t.Fatal(err)
			}
			return device.View{Mem: m, Off: off, DType: ir.BF16, Shape: []int64{count}, Strides: []int64{1}}
		}
		c.Parts = append(c.Parts, device.Part{In: view(in), Out: view(out), Reads: true, Writes: true})
	}
	return c
}

// TestReduceGrids checks the numbers of thread blocks: they are equal on all members, no more than run at once, and no
// block is without work.
func TestReduceGrids(t *testing.T) {
	l, w, tm := noted(t, 2, 4) // two ranks share a GPU, and each has half of its multiprocessors
	for _, c := range []struct {
		algo            string
		count           int64
		blocks, threads int
		Want            int
	}{
		{"ll", 1, 0, 512, 1}, {"ll", 4096, 0, 256, 4}, {"ll", 1 << 20, 0, 512, 66}, {"ll", 1 << 20, 0, 256, 132}, {"ll", 1 << 20, 8, 512, 8},
		{"ll128", 1, 0, 512, 1}, {"ll128", 1000, 0, 512, 5}, {"ll128", 1 << 20, 0, 1024, 66}, {"ll128x2", 1000, 0, 512, 2},
		{"lamport", 1, 0, 512, 1}, {"lamport", 1000, 0, 512, 4}, {"lamport", 1 << 20, 0, 1024, 66}, {"lamportx2", 4000, 0, 256, 4},
		{"push", 1 << 23, 0, 1024, 66}, {"push", 1 << 23, 200, 1024, 66}, {"pull", 1 << 23, 0, 512, 66},
		{"few", 1 << 20, 0, 512, 8}, {"few", 1 << 20, 0, 64, 8}, {"few", 1 << 20, 100, 64, 66}, {"few", 4096, 0, 512, 1},
	} {
		what := fmt.Sprintf("%+v", c)
		l.got = nil
		sum := summed(t, w, c.count, 0, 0)
		launches, err := tm.Prepare(device.Tuning{Algo: c.algo, Blocks: c.blocks, Threads: c.threads}, sum)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		for i, m := range l.got {
			if m.Blocks != c.Want || m.Threads != c.threads {
				t.Errorf("%s: member %d: %d blocks of %d", what, i, m.Blocks, m.Threads)
			}
			if len(m.Words) != len(l.got[0].Words) || m.Team.Rank != i || !slices.Equal(m.Team.Control, l.got[0].Team.Control) {
				t.Errorf("%s: member %d has a different launch", what, i)
			}
		}
		for _, x := range launches {
			x.Release()
		}
		for _, p := range sum.Parts {
			if err := errors.Join(p.In.Mem.Free(), p.Out.Mem.Free()); err != nil {
				t.Fatal(err)
			}
		}
	}
	teamOf(t, w, "side")
	if got := tm.Room(512); got != 33 {
		t.Errorf("with another team there is room for %d blocks", got)
	}
	if tm.alone() {
		t.Error("a team counts as alone although there is another team")
	}
}

// TestReduceSupports checks which tunings and operands all_reduces refuse, and the reasons.
func TestReduceSupports(t *testing.T) {
	_, w, tm := noted(t, 2, 2)
	ask := func(tune device.Tuning, c *device.Collective, want string) {
		t.Helper()
		err := tm.Supports(tune, c)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%+v: got %v, want %q", tune, err, want)
		}
	}
	whole, odd := summed(t, w, 1000, 0, 0), summed(t, w, 1000, 2, 4)
	for _, a := range coll.ReduceAlgorithms {
		ask(device.Tuning{Algo: a.Name}, whole, "")
		ask(device.Tuning{Algo: a.Name, Threads: 33}, whole, "33 threads")
		ask(device.Tuning{Algo: a.Name, Blocks: 300}, whole, "300 blocks")
		ask(device.Tuning{Algo: a.Name, Unroll: 3}, whole, "unroll 3")
		if a.Algorithm.(coll.ReduceAlgorithm).Direct {
			ask(device.Tuning{Algo: a.Name}, odd, "multiple of 16 bytes")
		} else {
			ask(device.Tuning{Algo: a.Name}, odd, "")
		}
		gaps := summed(t, w, 1000, 0, 0)
		gaps.Parts[1].In.Shape, gaps.Parts[1].In.Strides = []int64{500}, []int64{2}
		gaps.Parts[0].In.Shape = []int64{500}
		for i := range gaps.Parts {
			gaps.Parts[i].Out.Shape = []int64{500}
		}
		ask(device.Tuning{Algo: a.Name}, gaps, "gaps")
		shifted := summed(t, w, 1000, 0, 0)
		shifted.Parts[1].Out = shifted.Parts[1].In
		shifted.Parts[1].In.Shape, shifted.Parts[1].Out.Shape = []int64{900}, []int64{900}
		shifted.Parts[0].In.Shape, shifted.Parts[0].Out.Shape = []int64{900}, []int64{900}
		shifted.Parts[1].Out.Off = 32
		ask(device.Tuning{Algo: a.Name}, shifted, "overlaps")
	}
	ask(device.Tuning{Algo: "ll"}, summed(t, w, 4<<20, 0, 0), "at most 4194304")
}

// TestFlagsFillHalves checks that the halves of memory that kernels clear when launch numbers wrap around are the
// halves that they use.
func TestFlagsFillHalves(t *testing.T) {
	_, w, tm := noted(t, 2, 2)
	w.mu.Lock()
	defer w.mu.Unlock()
	area, err := tm.halves("flags of moves", kernels.MoveFlagBytes)
	if err != nil || area.Bytes != 2*kernels.MoveFlagBytes {
		t.Errorf("%d bytes for two halves of %d (%v)", area.Bytes, kernels.MoveFlagBytes, err)
	}
}

// TestRegionsSuffice checks that a team has enough regions: five areas grow as often as possible, in addition to two
// that do not grow, because programs may use them in any order of sizes.
func TestRegionsSuffice(t *testing.T) {
	_, w, tm := noted(t, 2, 2)
	w.mu.Lock()
	defer w.mu.Unlock()
	for n := range 5*16 + 2 {
		delete(tm.regions, "grown") // this frees the memory, which would become too large
		if _, err := tm.halves("grown", 1); err != nil {
			t.Fatalf("after growing %d times: %v", n, err)
		}
	}
}

// TestSheetsNeedNVLink checks that LL128 is refused on devices that cannot make atomic operations on peers' memory.
func TestSheetsNeedNVLink(t *testing.T) {
	_, w, tm := noted(t, 2, 2)
	c := summed(t, w, 1000, 0, 0)
	if linkOf(w, w.sites[0], w.sites[1]) != 'n' {
		t.Fatal("the fake's devices do not support LL128")
	}
	linked := w.drv
	w.drv = withoutAtomics(t)
	defer func() { w.drv = linked }()
	for name, ok := range map[string]bool{"ll": true, "ll128": false, "ll128x2": false, "lamport": true, "push": true} {
		if err := tm.Supports(device.Tuning{Algo: name}, c); (err == nil) != ok || err != nil && !errors.Is(err, device.ErrUnsupported) {
			t.Errorf("%s without NVLink: %v", name, err)
		}
	}
}

// withoutAtomics returns a fake driver that lacks the query for atomic operations.
func withoutAtomics(t *testing.T) *nvlib.Driver {
	t.Helper()
	table := fakedriver.New(t, 2).Calls()
	delete(table, "cuDeviceGetP2PAttribute")
	drv, err := nvlib.DriverOn(cabi.Fake("old libcuda", table))
	if err != nil {
		t.Fatal(err)
	}
	return drv
}
