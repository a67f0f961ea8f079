package cuda

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/modeltest"
	"hocket.example/hocket/internal/nvlib"
	procs "hocket.example/hocket/internal/world"
)

// The tests in this file make processes of a world fail, or differ from each other. All processes must end, or
// continue, in the same way, and errors must name the process at fault.

// stallTimeout is the stall timeout in these tests. It is long enough for a busy computer.
const stallTimeout = 5 * time.Second

// TestPeerKilled kills or stops a process within any driver call. The other processes end with an error that names the
// killed process, and free everything.
func TestPeerKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long under the race detector")
	}
	t.Parallel()
	loads := []peerLoad{
		{Program: "row_parallel.hkt", Dims: small["row_parallel.hkt"], Algorithm: "staged", Batches: []int{2, 2}},
		{Program: "linear_rs_push.hkt", Algorithm: "staged", Graph: true, Batches: []int{1, 3, 2}},
	}
	stops := []string{"cuMemImportFromShareableHandle", "cuLaunchKernel", "cuGraphLaunch"}
	var cases []phaseCase
	add := func(signal syscall.Signal, call string, n int) {
		cases = append(cases, phaseCase{phase: fmt.Sprint(call, n), culprit: len(cases) % 2,
			fault: peerFault{Signal: signal, Call: call, Number: n}})
	}
	for _, call := range []struct {
		name    string
		numbers []int
	}{
		{"cuMemExportToShareableHandle", []int{1}},
		{"cuMemImportFromShareableHandle", []int{2}},
		{"cuMemSetAccess", []int{1}},
		{"cuLaunchKernel", []int{1, 40}},
		{"cuMemcpyAsync", []int{9}},
		{"cuStreamBeginCapture_v2", []int{1}},
		{"cuStreamEndCapture", []int{1}},
		{"cuGraphLaunch", []int{1, 3}},
		{"cuMemUnmap", []int{1}},
		{"cuStreamDestroy_v2", []int{1}},
	} {
		for i, n := range call.numbers {
			add(syscall.SIGKILL, call.name, n)
			if i == 0 && slices.Contains(stops, call.name) {
				add(syscall.SIGSTOP, call.name, n)
			}
		}
	}
	sideBySide(t, 4, cases, phaseCase.String, func(t *testing.T, c phaseCase) {
		jobs := slices.Repeat([]peerJob{{GPUs: 4, PerGPU: 1, Loads: loads}}, 2)
		jobs[c.culprit].Fault = c.fault
		peers := startPeers(t, stallTimeout, jobs...)
		began := time.Now()
		r := peers[1-c.culprit].wait(t)
		if took := time.Since(began); took > 10*(stallTimeout+5*time.Second) {
			t.Errorf("the process ended after %v, too late", took)
		}
		closing := c.fault.Call == "cuMemUnmap" || c.fault.Call == "cuStreamDestroy_v2"
		switch {
		case r == nil:
			t.Error("the survivor was killed too")
		case r.Err == "" && closing: // the survivor needed nothing of the killed process any more
		case r.Rank != c.culprit:
			t.Errorf("the error blames process %d, want %d: %s", r.Rank, c.culprit, r.Err)
		}
		_ = peers[c.culprit].Process.Kill()
		_ = peers[c.culprit].Wait()
	})
}

// TestNodesKilled kills a process of the other node while NCCL initializes or runs. The error names the killed process
// within bounded time.
func TestNodesKilled(t *testing.T) {
	var cases []phaseCase
	for _, call := range []peerFault{{Call: "cuMemSetAccess", Number: 1}, {Call: "cuLaunchKernel", Number: 1},
		{Call: "cuLaunchKernel", Number: 20}, {Call: "cuStreamQuery", Number: 2}} {
		call.Signal = syscall.SIGKILL
		for culprit := range 2 {
			cases = append(cases, phaseCase{fmt.Sprint(call.Call, call.Number), call, culprit})
		}
	}
	sideBySide(t, 4, cases, phaseCase.String, func(t *testing.T, c phaseCase) {
		j := peerJob{GPUs: 2, PerGPU: 1, NCCL: t.TempDir(),
			Loads: []peerLoad{{Program: "tp_sp_linears.hkt", Dims: small["tp_sp_linears.hkt"],
				Batches: []int{1, 5, 20}}}}
		jobs := slices.Repeat([]peerJob{j}, 2)
		jobs[c.culprit].Fault = c.fault
		peers := startPeersOn(t, 2, stallTimeout, jobs...)
		if err := peers[c.culprit].Wait(); err == nil {
			t.Fatal("the process was not killed")
		}
		began := time.Now()
		r := peers[1-c.culprit].wait(t)
		if took := time.Since(began); took > 10*5*time.Second {
			t.Errorf("the process ended after %v, too late", took)
		}
		if r == nil || r.Rank != c.culprit {
			t.Errorf("the error does not blame process %d: %+v", c.culprit, r)
		}
	})
}

// peerMember is one process of a world; in these tests, goroutines stand for the processes.
type peerMember struct {
	rank int
	f    *fakedriver.GPU
	ran  map[bool]int // see jointKernels
	w    *procs.World
	m    *hocket.Machine
}

// runMembers calls the function do for each process of a world, each with a fake driver for its job, and returns the
// errors.
func runMembers(t *testing.T, jobs []peerJob, do func(p *peerMember) error) []error {
	t.Helper()
	errs, dir := make([]error, len(jobs)), t.TempDir()
	var all sync.WaitGroup
	for rank, j := range jobs {
		all.Go(func() { errs[rank] = runMember(t, dir, rank, len(jobs), j, do) })
	}
	all.Wait()
	fakedriver.WantNoFiles(t)
	return errs
}

func runMember(t *testing.T, dir string, rank, size int, j peerJob, do func(p *peerMember) error) (err error) {
	w, err := procs.Join(t.Context(),
		procs.Options{Rank: rank, Size: size, ID: t.Name(), Dir: dir, StallTimeout: 20 * time.Second})
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			w.Abort(err)
		}
		_ = w.Leave()
	}()
	f := fakedriver.New(t, j.GPUs)
	f.Queue()
	f.ShareMemory()
	f.Numbers, f.Limit = j.Numbers, j.Limit
	lib, p := Library(f), &peerMember{rank: rank, f: f, w: w, ran: map[bool]int{}}
	if j.Costs != nil || j.AtOnce > 0 {
		f.LT = &fakedriver.LT{T: t, Costs: j.Costs, Batch: j.Batch, GPU: f}
	}
	if j.AtOnce > 0 {
		lib = &jointKernels{GPU: f, ms: j.AtOnce, two: j.Two, ran: p.ran}
	}
	if j.Apart {
		f.Reach.Apart = all
	}
	name := fmt.Sprint(t.Name(), rank)
	device.Register(device.Kind{Name: name, Open: func(*procs.World) (device.Machine, error) {
		return newJoined(system(f), Options{Kernels: lib, Skinny: j.AtOnce > 0, RanksPerGPU: j.PerGPU, Peers: w,
			TeamTimeout: j.Timeout})
	}})
	if p.m, err = hocket.Open(t.Context(), hocket.MachineOptions{Name: name}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.m.Close()) }()
	return do(p)
}

// alike returns n equal jobs.
func alike(n int, j peerJob) []peerJob { return slices.Repeat([]peerJob{j}, n) }

// peerProgram is a program in which the ranks add up their parts and exchange them.
const peerProgram = `dim T
mesh d[2]
func f(%x: f32[T/d, 64]) -> f32[T, 64] {
  %y = add %x, %x
  return %y
}
func g(%x: f32[T/d, 64]) -> f32[T, 64] {
  %y = add %x, %x
  %z = add %y, %x
  return %z
}`

// double loads and runs peerProgram for the given number of rows, and checks the results.
func (p *peerMember) double(t *testing.T, rows int64, opts hocket.LoadOptions) error {
	prog, err := hocket.Parse("peer.hkt", peerProgram)
	if err != nil {
		return err
	}
	opts.Gather = true
	model, err := p.m.Load(prog, hocket.Binding{Func: "f", Dims: map[string]int64{"T": rows}}, opts)
	if err != nil {
		return err
	}
	defer model.Close()
	if err := model.Prepare(t.Context(), nil); err != nil {
		return err
	}
	x, err := hocket.NewTensor(prog.IR().Funcs[0].Params[0].Type.DType, rows, 64)
	if err != nil {
		return err
	}
	for i := range x.Data {
		x.Data[i] = byte(i%7) * byte(i%4/3) // sets only the high bytes
	}
	for range 2 {
		r, err := model.Run(t.Context(), hocket.Args{In: map[string]*hocket.Tensor{"x": x}})
		if err != nil {
			return err
		}
		in, out := x.Floats(), r.Out[r.OutNames[0]].Floats()
		for i := range in {
			if out[i] != 2*in[i] {
				return fmt.Errorf("element %d is %v, of %v", i, out[i], in[i])
			}
		}
	}
	return nil
}

// TestPeerShort checks loads during which one process runs out of memory. All processes return an out-of-memory error,
// the others name that process, and the world still works. In each case, the memory limit applies from another of the
// load's allocations on.
func TestPeerShort(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long under the race detector")
	}
	for _, staged := range []string{"", "staged"} {
		opts := hocket.LoadOptions{Algorithm: staged}
		shorts := 0
		for from, short := 1, true; short; from++ {
			var mu sync.Mutex
			short = false
			for rank, err := range runMembers(t, alike(2, peerJob{GPUs: 2, PerGPU: 1}), func(p *peerMember) error {
				if err := p.double(t, 64, opts); err != nil {
					return err
				}
				if p.rank == 1 {
					p.f.Mu.Lock()
					calls := 0
					p.f.Failure = nvlib.CUDAOutOfMemory
					p.f.Nth = func(name string) bool {
						if name == "cuMemCreate" {
							calls++
						}
						return name == "cuMemCreate" && calls >= from
					}
					p.f.Mu.Unlock()
				}
				err := p.double(t, 1<<13, opts)
				if err != nil && !errors.Is(err, hocket.ErrOutOfMemory) {
					return fmt.Errorf("of another kind: %w", err)
				}
				if err != nil {
					mu.Lock()
					short = true
					mu.Unlock()
					if p.rank == 0 && !strings.Contains(err.Error(), "process 1") {
						return fmt.Errorf("it does not say who is short: %w", err)
					}
				}
				p.f.Mu.Lock()
				p.f.Nth = nil
				p.f.Mu.Unlock()
				return p.double(t, 128, opts)
			}) {
				if err != nil {
					t.Errorf("from call %d on, process %d: %v", from, rank, err)
				}
			}
			if short {
				shorts++
			}
		}
		if shorts < 2 {
			t.Errorf("the load ran out of memory in %d cases, too few", shorts)
		}
	}
}

// TestPeerCallFails checks that a driver call that fails in one process during a load fails the load in all processes
// or in none.
func TestPeerCallFails(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long under the race detector")
	}
	for _, name := range []string{"cuMemExportToShareableHandle", "cuMemImportFromShareableHandle",
		"cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "cuStreamCreateWithPriority", "cuModuleLoadData",
		"cuMemHostAlloc", "cuMemsetD32Async"} {
		failed := false
		for n := 1; n < 4; n++ {
			fails := false
			errs := runMembers(t, alike(2, peerJob{GPUs: 2, PerGPU: 1}), func(p *peerMember) error {
				if p.rank == 1 {
					p.f.Mu.Lock()
					calls := 0
					p.f.Failure = 999
					p.f.Nth = func(called string) bool {
						if called == name {
							calls++
						}
						fails = fails || called == name && calls == n
						return called == name && calls == n
					}
					p.f.Mu.Unlock()
				}
				return p.double(t, 64, hocket.LoadOptions{Algorithm: "staged"})
			})
			if (errs[0] == nil) != (errs[1] == nil) {
				t.Errorf("%s, call %d: process 0 returned %v, process 1 returned %v", name, n, errs[0], errs[1])
			}
			if err := errs[0]; err != nil && !strings.Contains(err.Error(), "process 1") &&
				!strings.Contains(err.Error(), "rank 1") {
				t.Errorf("%s, call %d: the error does not name the process: %v", name, n, errs[0])
			}
			failed = failed || fails
		}
		if !failed {
			t.Errorf("the load does not call %s", name)
		}
	}
}

// TestPeerProducts checks that all processes use the GEMM algorithm of the first process, although each process finds
// another one fastest.
func TestPeerProducts(t *testing.T) {
	jobs := alike(2, peerJob{GPUs: 2, PerGPU: 1})
	jobs[0].Costs, jobs[1].Costs = []float32{3, 1, 2}, []float32{1, 3, 2}
	for rank, err := range runMembers(t, jobs, func(p *peerMember) error {
		prog, err := hocket.Parse("product.hkt", `mesh d[2]
func f(%x: bf16[1024/d, 512], %w: bf16[512, 512]) -> bf16[1024/d, 512] {
  %y = linear %x, %w
  return %y
}`)
		if err != nil {
			return err
		}
		model, err := p.m.Load(prog, hocket.Binding{}, hocket.LoadOptions{})
		if err != nil {
			return err
		}
		defer model.Close()
		if err := model.Prepare(t.Context(), nil); err != nil {
			return err
		}
		in, err := model.RandomInputs("zeros")
		if err != nil {
			return err
		}
		tried := map[int]bool{}
		for _, r := range p.f.LT.Runs {
			tried[r.Algo] = true
		}
		if _, err := model.Run(t.Context(), hocket.Args{In: in}); err != nil {
			return err
		}
		if last := p.f.LT.Runs[len(p.f.LT.Runs)-1].Algo; last != 2 || len(tried) != 3 {
			return fmt.Errorf("it runs by algorithm %d, and tried %v", last, tried)
		}
		return nil
	}) {
		if err != nil {
			t.Errorf("process %d: %v", rank, err)
		}
	}
}

// TestPeerMute checks a world in which the kernels of one GPU raise no flags: all processes end after the time limit of
// a waiting kernel.
func TestPeerMute(t *testing.T) {
	for _, algorithm := range []string{"staged", "move-copy"} {
		var loaded sync.WaitGroup
		loaded.Add(2)
		errs := runMembers(t, alike(2, peerJob{GPUs: 2, PerGPU: 1, Timeout: 500 * time.Millisecond}),
			func(p *peerMember) error {
				p.f.Mu.Lock()
				p.f.Patient = true
				p.f.Mu.Unlock()
				if err := p.double(t, 64, hocket.LoadOptions{Algorithm: algorithm}); err != nil {
					t.Error(err)
				}
				loaded.Done()
				loaded.Wait()
				p.f.Mu.Lock()
				p.f.Patient, p.f.Mute = false, p.rank == 1
				p.f.Mu.Unlock()
				return p.double(t, 64, hocket.LoadOptions{Algorithm: algorithm})
			})
		waits := 0
		for rank, err := range errs {
			var peer *hocket.PeerError
			if err == nil {
				t.Errorf("%s: process %d returned no error", algorithm, rank)
			} else if strings.Contains(err.Error(), "gave up waiting for") &&
				strings.Contains(err.Error(), TimeoutVariable) {
				waits++
			} else if !errors.As(err, &peer) {
				t.Errorf("%s: process %d: %v", algorithm, rank, err)
			}
		}
		if waits == 0 {
			t.Errorf("%s: no error reports the wait: %v, %v", algorithm, errs[0], errs[1])
		}
	}
}

// TestPeerLate checks that the error of a kernel that times out waiting for another process names that process. The
// process that is waited for may do other work meanwhile, as long as it makes progress.
func TestPeerLate(t *testing.T) {
	gone := make(chan struct{})
	errs := runMembers(t, alike(2, peerJob{GPUs: 2, PerGPU: 1, Timeout: 500 * time.Millisecond}),
		func(p *peerMember) error {
			model := modeltest.Load(t, p.m, stateful, hocket.LoadOptions{Algorithm: "staged"})
			defer model.Close()
			in, err := model.RandomInputs("ints:1")
			if err != nil {
				return err
			}
			if err := model.Prepare(t.Context(), nil); err != nil {
				return err
			}
			if p.rank == 1 {
				<-gone
				return nil
			}
			defer close(gone)
			_, err = model.Run(t.Context(), hocket.Args{In: in})
			return err
		})
	var peer *hocket.PeerError
	if !errors.As(errs[0], &peer) || peer.Rank != 1 || !strings.Contains(errs[0].Error(), "gave up waiting for") {
		t.Errorf("process 0 says %v", errs[0])
	}
}

// TestPeerBlocks checks that each process passes and receives only the blocks of its own ranks.
func TestPeerBlocks(t *testing.T) {
	for rank, err := range runMembers(t, alike(2, peerJob{GPUs: 4, PerGPU: 1}), func(p *peerMember) error {
		prog, err := hocket.Parse("blocks.hkt", `dim T = 8
mesh d[4]
func f(%x: f32[T/d, 2]) -> (f32[T/d, 2], f32[T, 2]) {
  %y = add %x, %x
  %z: f32[T, 2] = reshard %y
  return %y, %z
}`)
		if err != nil {
			return err
		}
		model, err := p.m.Load(prog, hocket.Binding{}, hocket.LoadOptions{Algorithm: "staged"})
		if err != nil {
			return err
		}
		defer model.Close()
		own := map[int]*hocket.Tensor{}
		for _, r := range []int{2 * p.rank, 2*p.rank + 1} {
			dt := prog.IR().Funcs[0].Params[0].Type.DType
			if own[r], err = hocket.FromFloats(dt, []float64{float64(4 * r), 1, 2, 3}, 2, 2); err != nil {
				return err
			}
		}
		for range 2 {
			r, err := model.Run(t.Context(), hocket.Args{InLocal: map[string]map[int]*hocket.Tensor{"x": own}})
			if err != nil {
				return err
			}
			if r.Out["y"] != nil || len(r.OutLocal["y"]) != 2 {
				return fmt.Errorf("results: whole %v, blocks %v", r.Out, r.OutLocal)
			}
			for rank := range own {
				got := fmt.Sprint(r.OutLocal["y"][rank].Floats())
				if want := fmt.Sprint([]float64{float64(8 * rank), 2, 4, 6}); got != want {
					return fmt.Errorf("the block of rank %d is %s, not %s", rank, got, want)
				}
			}
			if got := r.Out["z"].Floats(); got[4] != 8 || got[8] != 16 || got[12] != 24 {
				return fmt.Errorf("the whole result is %v", got)
			}
		}
		return nil
	}) {
		if err != nil {
			t.Errorf("process %d: %v", rank, err)
		}
	}
}

// TestPeersDiffer checks settings that must be the same in all processes: if they differ, all processes return an error
// with the values.
func TestPeersDiffer(t *testing.T) {
	example2d := peerLoad{Program: "ag_linear_2d.hkt", Batches: []int{1}}
	for _, c := range []struct {
		name string
		do   func(p *peerMember) error
		want []string // both values
	}{
		{"extents", func(p *peerMember) error {
			return p.double(t, int64(64+2*p.rank), hocket.LoadOptions{})
		}, []string{"T=64", "T=66"}},
		{"algorithms", func(p *peerMember) error {
			return p.double(t, 64, hocket.LoadOptions{Algorithm: []string{"staged", "two-shot"}[p.rank]})
		}, []string{"algorithm staged", "algorithm two-shot"}},
		{"order", func(p *peerMember) error {
			first := p.double(t, int64(64+2*p.rank), hocket.LoadOptions{})
			return errors.Join(first, p.double(t, int64(66-2*p.rank), hocket.LoadOptions{}))
		}, []string{"T=64", "T=66"}},
		// In process 0 of this case, all members of a team are local, so it tries kernels, which the fake does not
		// have, and then uses a schedule. The other process cannot know that these kernels are missing. With NVIDIA's
		// compiler, no kernel is missing.
		{"what is resolved", func(p *peerMember) error {
			return example2d.run(t.Context(), p.m, &peerResult{})
		}, []string{"how the plan runs", "by staged"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for rank, err := range runMembers(t, alike(2, peerJob{GPUs: 4, PerGPU: 1}), c.do) {
				var differ *hocket.DisagreeError
				if !errors.As(err, &differ) || len(differ.Values) != 2 {
					t.Errorf("process %d: %v", rank, err)
					continue
				}
				for _, text := range c.want {
					if !strings.Contains(err.Error(), text) {
						t.Errorf("process %d: the error %v lacks %q", rank, err, text)
					}
				}
			}
		})
	}
}

// TestPeerGPUs checks that too few GPUs for the ranks cause an error in all processes, and that GPUs without peer
// access can be used, even if no process sees both.
func TestPeerGPUs(t *testing.T) {
	of := func(apart bool, numbers ...int) peerJob {
		return peerJob{GPUs: len(numbers), PerGPU: 1, Numbers: numbers, Apart: apart}
	}
	for _, c := range []struct {
		name string
		jobs []peerJob
		want string
	}{
		{"too few", alike(2, of(false, 0)), "at most 1"},
		{"shared", []peerJob{of(false, 3), of(false, 3, 1)}, "more than 1 ranks are on the GPU at 3:0"},
		{"apart", alike(2, of(true, 0, 1)), ""},
		{"apart, unknown to each other", []peerJob{of(true, 3), of(true, 1)}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			for rank, err := range runMembers(t, c.jobs, func(p *peerMember) error {
				return p.double(t, 64, hocket.LoadOptions{Algorithm: "staged"})
			}) {
				if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
					t.Errorf("process %d: %v, want %q", rank, err, c.want)
				}
			}
		})
	}
}
