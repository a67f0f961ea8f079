package cuda

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/doctor"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/device/cuda/nccl"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// ncclWorld opens a world on fake drivers with a fake NCCL.
func ncclWorld(t *testing.T, gpus, ranks int) (*fakedriver.NCCL, device.World) {
	t.Helper()
	f := fakedriver.New(t, gpus)
	x := &fakedriver.NCCL{GPU: f}
	sys := system(f)
	sys.NCCL = x.Open
	w, err := newMachine(sys, Options{Kernels: f, RanksPerGPU: ranks / gpus}).Open(t.Context(), ranks)
	if err != nil {
		t.Fatal(err)
	}
	return x, w
}

// TestNCCL runs every operation by NCCL on fake drivers: along any axis, in place, on teams in any order, with and
// without graphs.
func TestNCCL(t *testing.T) {
	for _, team := range [][]int{{0, 1}, {1, 0, 3}, {0, 1, 2, 3}} {
		x, w := ncclWorld(t, 4, 4)
		r := newTeamRig(t, w, "nccl", team)
		took := map[ir.Op]int{}
		for _, op := range append(moveOps, ir.OpAllReduce) {
			for _, c := range goCases(op, ncclName, len(team)) {
				if r.add(c, device.Tuning{}) {
					took[op]++
				}
			}
			if took[op] == 0 {
				t.Errorf("%s: no case was accepted", op)
			}
		}
		r.run(2)
		r.close()
		r.must(w.Close())
		if len(x.Teams) != 1 || len(x.Aborted) > 0 {
			t.Errorf("%d teams of communicators, %d aborted", len(x.Teams), len(x.Aborted))
		}
	}
}

// TestNCCLAddresses checks that an address that NCCL may have recorded is not reused, even after its memory was freed.
func TestNCCLAddresses(t *testing.T) {
	x, w := ncclWorld(t, 2, 2)
	r := newTeamRig(t, w, "main", []int{0, 1})
	gone := func(what string, want int, run func()) {
		t.Helper()
		if !r.add(teamCase{op: ir.OpAllGather, dt: ir.F32, shape: []int64{gpu.DeviceSlab / 4}, algo: ncclName},
			device.Tuning{}) {
			t.Fatal("declined")
		}
		run()
		r.must(w.Sync(t.Context()))
		memory, addresses := x.GPU.Called["cuMemRelease"], x.GPU.Called["cuMemAddressFree"]
		r.drop()
		if memory, addresses = x.GPU.Called["cuMemRelease"]-memory,
			x.GPU.Called["cuMemAddressFree"]-addresses; memory != 4 || addresses != want {
			t.Errorf("%s: memory was released %d times, its addresses %d times, want %d", what, memory, addresses, want)
		}
	}
	gone("not run", 4, func() {})
	gone("call by call", 4, func() { r.must(r.issue()) })
	gone("in a graph", 0, func() {
		g, err := w.Capture(r.issue)
		r.must(err)
		r.must(g.Close())
	})
	r.close()
	r.must(w.Close())
}

// TestNCCLMemoryAnew frees memory that was passed to NCCL within graphs, and allocates less memory again.
func TestNCCLMemoryAnew(t *testing.T) {
	dw := openAll(t)
	n := dw.Ranks()
	r := newTeamRig(t, dw, "main", upTo(n))
	for _, bytes := range []int64{192 << 20, 80 << 20} { // each in a separate region
		for _, op := range []ir.Op{ir.OpAllGather, ir.OpAllToAll} {
			if !r.add(teamCase{op: op, dt: ir.BF16, shape: []int64{bytes / 2 / int64(n)}, algo: ncclName},
				device.Tuning{}) {
				t.Skip("there is no NCCL")
			}
			r.upload()
			r.must(dw.Sync(t.Context()))
			g, err := dw.Capture(r.issue)
			r.must(err)
			r.must(g.Launch(t.Context()))
			r.download()
			r.must(dw.Sync(t.Context()))
			r.check(fmt.Sprintf("%s of %d MiB", op, bytes>>20))
			r.must(g.Close())
			r.drop()
		}
	}
	r.close()
	r.must(dw.Close())
}

// TestNCCLIdle uses NCCL in more teams than the number of unused groups of communicators that are kept. Of the unused
// groups, those that were idle longest are destroyed, for all members, and no others. Later teams use the groups that
// are kept. If memory is short, no unused group is kept.
func TestNCCLIdle(t *testing.T) {
	x, w := ncclWorld(t, 2, 2)
	gather := teamCase{op: ir.OpAllGather, dt: ir.F32, shape: []int64{4}, algo: ncclName}
	gone := func(what string, teams, upTo int) {
		t.Helper()
		left := slices.Sorted(slices.Values(x.Left))
		if want := slices.Concat(x.Teams[:upTo]...); len(x.Teams) != teams || !slices.Equal(left, want) ||
			len(x.Aborted) > 0 {
			t.Fatalf("%s: %d teams, %v were destroyed and %v aborted; want %d and %v", what, len(x.Teams), left,
				x.Aborted, teams, want)
		}
	}
	open := func(n int) (rigs []*teamRig) {
		for range n {
			r := newTeamRig(t, w, "nccl", []int{0, 1})
			r.add(gather, device.Tuning{})
			r.run(1)
			rigs = append(rigs, r)
		}
		return rigs
	}
	for _, r := range open(nccl.IdleMost + 2) {
		r.close()
	}
	gone("closed", nccl.IdleMost+2, 2)
	rigs := open(nccl.IdleMost)
	gone("again", nccl.IdleMost+2, 2)
	rigs[0].close()
	d := w.Device(0).(*dev)
	d.site.heaps[device.Private].From = short{d.site.heaps[device.Private].From,
		func() bool { return len(x.Left) == 6 }}
	if _, err := d.Alloc(1<<30, device.Private); err != nil {
		t.Fatal(err)
	}
	if left := x.Left[4:]; len(left) != 2 {
		t.Errorf("with insufficient memory %v were destroyed", left)
	}
	for _, r := range rigs[1:] {
		r.close()
	}
	rigs[0].must(w.Close())
	if len(x.Left) != 6 || len(x.Aborted) > 0 {
		t.Errorf("at the end %v were destroyed, %v aborted", x.Left, x.Aborted)
	}
}

// short is a source for heaps that has no memory until the function enough returns true.
type short struct {
	gpu.Source
	enough func() bool
}

func (s short) Reserve(most, least int64) (*gpu.Region, error) {
	if !s.enough() {
		return nil, &nvlib.Error{Library: "CUDA", Call: "cuMemCreate", Code: nvlib.CUDAOutOfMemory,
			Text: "none is left"}
	}
	return s.Source.Reserve(most, least)
}

// TestNCCLAbsent issues a collective on all members but one, which causes a deadlock error.
func TestNCCLAbsent(t *testing.T) {
	_, w := ncclWorld(t, 2, 2)
	r := newTeamRig(t, w, "main", []int{0, 1})
	c := teamCase{op: ir.OpAllGather, dt: ir.F32, shape: []int64{4}, algo: ncclName}
	if !r.add(c, device.Tuning{}) {
		t.Fatal("declined")
	}
	r.must(r.members[1].Stream.Launch(r.cases[0].launches[1]))
	err := w.Sync(t.Context())
	var stuck *device.Deadlock
	if !errors.As(err, &stuck) || !strings.Contains(err.Error(),
		"rank 1, stream main waits for all_gather by nccl, which has not come up yet on rank 0, stream main") {
		t.Errorf("got %v", err)
	}
	r.must(w.Close())
}

// TestNCCLFails checks a world in which NCCL reports an asynchronous error.
func TestNCCLFails(t *testing.T) {
	x, w := ncclWorld(t, 2, 2)
	r := newTeamRig(t, w, "main", []int{0, 1})
	r.add(teamCase{op: ir.OpAllGather, dt: ir.F32, shape: []int64{4}, algo: ncclName}, device.Tuning{})
	r.upload()
	r.must(r.issue())
	x.Async = 1
	err := w.Sync(t.Context())
	var fault *device.Fault
	if !errors.As(err, &fault) || fault.Rank != 0 || !strings.Contains(err.Error(), "fake trouble") {
		t.Errorf("got %v", err)
	}
	r.must(w.Close())
	if len(x.Aborted) != 2 {
		t.Errorf("%d communicators aborted after an error, want 2", len(x.Aborted))
	}
}

// TestNCCLHangs checks a load during which NCCL's first call never ends. Loading then ends with its context, or after a
// time limit with an error that includes advice.
func TestNCCLHangs(t *testing.T) {
	for _, limit := range []time.Duration{20 * time.Millisecond, time.Hour} {
		f := fakedriver.New(t, 2)
		sys := system(f)
		sys.NCCL, sys.Patience = (&fakedriver.NCCL{GPU: f}).Open, 5*time.Millisecond
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		w, err := newMachine(sys, Options{Kernels: f, TeamTimeout: limit}).Open(ctx, 2)
		if err != nil {
			t.Fatal(err)
		}
		r := newTeamRig(t, w, "main", []int{0, 1})
		c := &device.Collective{Op: ir.OpAllGather}
		for rank := range 2 {
			c.Parts = append(c.Parts, device.Part{Reads: true, Writes: true, In: r.view(rank, ir.F32, []int64{4}, 0),
				Out: r.view(rank, ir.F32, []int64{8}, 0)})
		}
		f.Mu.Lock()
		f.Late["cuStreamQuery"] = 1 << 30
		f.Mu.Unlock()
		want := "has not completed it after 20ms; set NCCL_DEBUG=INFO to see what NCCL does; a new process with HOCKET_P2P=off"
		if limit == time.Hour {
			want = context.Canceled.Error()
			time.AfterFunc(20*time.Millisecond, cancel)
		}
		if _, err = r.team.Prepare(device.Tuning{Algo: ncclName}, c); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		isLost(t, w.Close(), "work still ran")
		f.Die()
	}
}

// TestNCCLDeclines checks collectives for which NCCL is refused, and the reasons.
func TestNCCLDeclines(t *testing.T) {
	_, w := ncclWorld(t, 3, 6)
	for what, tc := range map[string]struct {
		ranks []int
		c     device.Collective
		dt    ir.DType
		Want  string
	}{
		"shared": {[]int{0, 3}, device.Collective{Op: ir.OpAllReduce, Red: ir.Sum}, ir.F32,
			"members 0 and 1 share GPU 0"},
		"order": {[]int{0, 1, 2}, device.Collective{Op: ir.OpAllReduce, Red: ir.Sum}, ir.BF16, "order=any"},
		"max":   {[]int{0, 1}, device.Collective{Op: ir.OpAllReduce, Red: ir.Max}, ir.F32, "treats NaNs"},
		"avg": {[]int{0, 1, 2}, device.Collective{Op: ir.OpAllReduce, Red: ir.Avg, AnyOrder: true}, ir.F32,
			"divides by 3 before it adds"},
		"two":  {[]int{0, 1}, device.Collective{Op: ir.OpAllReduce, Red: ir.Sum}, ir.BF16, ""},
		"ints": {[]int{0, 1, 2}, device.Collective{Op: ir.OpAllReduce, Red: ir.Sum}, ir.I64, ""},
		"any":  {[]int{0, 1, 2}, device.Collective{Op: ir.OpAllReduce, Red: ir.Max, AnyOrder: true}, ir.F16, ""},
	} {
		r := newTeamRig(t, w, what, tc.ranks)
		for _, rank := range tc.ranks {
			v := r.view(rank, tc.dt, []int64{8}, 0)
			tc.c.Parts = append(tc.c.Parts, device.Part{In: v, Out: v, Reads: true, Writes: true, To: -1, From: -1})
		}
		err := r.team.Supports(device.Tuning{Algo: ncclName}, &tc.c)
		if (err == nil) != (tc.Want == "") || err != nil &&
			(!strings.Contains(err.Error(), tc.Want) || !errors.Is(err, device.ErrUnsupported)) {
			t.Errorf("%s: got %v, want %q", what, err, tc.Want)
		}
		r.close()
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

// TestNCCLDeclinesGaps checks operands with too many dimensions for a copy, even after merging: Supports refuses them,
// so that Prepare does not fail.
func TestNCCLDeclinesGaps(t *testing.T) {
	_, w := ncclWorld(t, 2, 2)
	r := newTeamRig(t, w, "main", []int{0, 1})
	c := &device.Collective{Op: ir.OpAllReduce, Red: ir.Sum}
	for rank := range 2 {
		v := r.view(rank, ir.F32, []int64{1 << 15}, 0)
		v.Shape, v.Strides = nil, nil
		for k := int64(19683 / 3); k > 0; k /= 3 {
			v.Shape, v.Strides = append(v.Shape, 2), append(v.Strides, k)
		}
		c.Parts = append(c.Parts, device.Part{In: v, Out: v, Reads: true, Writes: true, To: -1, From: -1})
	}
	if err := r.team.Supports(device.Tuning{Algo: ncclName}, c); !errors.Is(err, device.ErrUnsupported) ||
		!strings.Contains(err.Error(), "9 dimensions") {
		t.Errorf("got %v", err)
	}
	r.close()
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

// TestNCCLMissing checks that without libnccl only the algorithm nccl is refused, and that the error lists where the
// library was searched for.
func TestNCCLMissing(t *testing.T) {
	f := fakedriver.New(t, 2)
	sys := system(f)
	missing := fmt.Errorf("no libnccl in the usual places")
	sys.NCCL = func() (*nvlib.NCCL, error) { return nil, missing }
	w, err := newMachine(sys, Options{Kernels: f}).Open(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	r := newTeamRig(t, w, "main", []int{0, 1})
	v := [2]device.View{r.view(0, ir.F32, []int64{8}, 0), r.view(1, ir.F32, []int64{8}, 0)}
	c := &device.Collective{Op: ir.OpAllReduce, Red: ir.Sum}
	for _, v := range v {
		c.Parts = append(c.Parts, device.Part{In: v, Out: v, Reads: true, Writes: true, To: -1, From: -1})
	}
	if err := r.team.Supports(device.Tuning{Algo: ncclName}, c); !errors.Is(err, device.ErrUnsupported) ||
		!errors.Is(err, missing) {
		t.Errorf("got %v", err)
	}
	r.close()
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

// TestNCCLMistakesAreTold checks that the doctor reports known bugs of the loaded NCCL, and that operations that NCCL
// computes wrongly with multicast are refused.
func TestNCCLMistakesAreTold(t *testing.T) {
	x, w := ncclWorld(t, 2, 2)
	x.Version = 22803
	lib, err := x.Open()
	if err != nil {
		t.Fatal(err)
	}
	const mistake = "warning: with NVLink multicast blocks of all_gather and reduce_scatter"
	for _, multicast := range []string{doctor.MulticastOff, doctor.MulticastOn} {
		rep := doctor.Report{Multicast: multicast}
		rep.Add("libnccl", lib, nil)
		rep.AddMistakes(lib)
		if text := fmt.Sprint(rep.Lines()); strings.Contains(text, mistake) != (multicast == doctor.MulticastOn) {
			t.Errorf("multicast %s: %s", multicast, text)
		}
	}
	r := newTeamRig(t, w, "order", []int{0, 1})
	for _, on := range []bool{false, true} {
		w.(*world).m.sys.Multicast = on
		for op, want := range map[ir.Op]bool{ir.OpAllGather: !on, ir.OpReduceScatter: !on, ir.OpAllReduce: true,
			ir.OpBroadcast: true} {
			if took := r.take(teamCase{op: op, red: ir.Sum, dt: ir.F32, shape: []int64{8}, algo: ncclName},
				device.Tuning{}); took != want {
				t.Errorf("%s, multicast %t: accepted %t", op, on, took)
			}
		}
	}
	w.(*world).m.sys.Multicast = false
	r.close()
	r.must(w.Close())
}
