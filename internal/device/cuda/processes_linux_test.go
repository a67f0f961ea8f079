package cuda

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/compile"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/device/cuda/process"
	"hocket.example/hocket/internal/longtest"
	described "hocket.example/hocket/internal/machine"
	"hocket.example/hocket/internal/modeltest"
	"hocket.example/hocket/internal/nvlib"
	procs "hocket.example/hocket/internal/world"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

// The tests in this file run worlds of several processes on fake drivers. Each process is this test binary with its own
// fake driver, and the fakes share memory. Fakes cannot run kernels of teams that compute. Collectives are therefore
// schedules of copies and counters, or copies by copy engines between kernels in which members only wait for each
// other.

// peerJob describes the work of a process of a world.
type peerJob struct {
	GPUs    int           // of its fake
	Numbers []int         // numbers that its GPUs have on the host; nil for the first ones
	Model   string        // model of the GPUs; empty for the fake's default
	Cache   string        // value of HOCKET_CACHE; empty for the default
	PerGPU  int           // ranks per GPU
	Limit   int64         // memory of a GPU; 0 for no limit
	Timeout time.Duration // of waiting kernels
	Loads   []peerLoad
	Fault   peerFault
	Costs   []float32 // times of the algorithms of the fake cuBLASLt; nil for no algorithms
	AtOnce  float32   // ms of several linears in one launch; a single one takes 1; 0 for no kernel for few rows
	Two     float32   // ms of two linears in one launch, if it is not AtOnce
	Batch   float32   // ms of a batched GEMM of cuBLASLt; 0 for the sum of its products' times
	Apart   bool      // its GPUs have no peer access to each other, nor to those of other processes
	NCCL    string    // directory that the NCCL fakes share; empty for no NCCL
	Hang    bool      // NCCL never becomes ready
	Enqueue bool      // the job also enqueues executions on the process's stream, some of them captured
	Closed  string    // if set, process 0 closes its machine before its model, and then creates this file
	Real    bool      // use a GPU of this host instead of a fake driver
	Rounds  *peerRounds

	sys    *process.Shared   // the host's GPUs
	strike func(name string) // called for each call of the fake driver; may be nil
}

// peerLoad describes a program that a process loads, runs and closes.
type peerLoad struct {
	Program             string // name of an example
	Dims                map[string]int64
	Strategy, Algorithm string
	Graph               bool
	Batches             []int // number of runs in each batch

	part func(name string) // called when a batch begins and when the load is closed; may be nil
}

func (l peerLoad) String() string {
	return fmt.Sprintf("%s %v %s %s graph %v", l.Program, l.Dims, l.Strategy, l.Algorithm, l.Graph)
}

// peerResult is the outcome of a job.
type peerResult struct {
	Hashes     [][]string // by load: hashes of the results
	Algorithms [][]string // by load: algorithms of the collectives
	Err        string
	Rank       int  // the process that Err names, if it is another one; -1 for none
	Disagree   bool // processes have different settings

	// For jobs with a Model, Outcomes describes the machine, by which the strategy auto predicts times. For jobs with
	// Rounds, Outcomes holds the outcome of each run, Short the errors that name the rank without memory, Used the
	// GPU's memory use, and Evictions the number of evicted plans.
	Outcomes, Short []string
	Used            []int64
	Evictions       int64
}

const (
	peerVariable   = "HOCKET_TEST_PEER"
	resultVariable = "HOCKET_TEST_PEER_RESULT"
)

// TestPeer is the main function of a process of a world: it executes the job that its environment describes.
func TestPeer(t *testing.T) {
	text := os.Getenv(peerVariable)
	if text == "" {
		t.Skip("no test asks for a process of a world")
	}
	var job peerJob
	if err := json.Unmarshal([]byte(text), &job); err != nil {
		t.Fatal(err)
	}
	job.strike = job.Fault.strike()
	if job.Real { // this is opened before the world, because other processes would wait for it
		job.sys = realSystem(t, job.strike)
	}
	w, err := hocket.Join(t.Context(), hocket.JoinOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range job.Loads {
		job.Loads[i].part = job.strike
	}
	r := job.run(t, w)
	if err := w.Leave(); err != nil && r.Err == "" {
		r.Err = err.Error()
	}
	fakedriver.WantNoFiles(t)
	data, err := json.Marshal(r)
	if err == nil {
		err = os.WriteFile(os.Getenv(resultVariable), data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if job.Real && r.Rank >= 0 { // as hocket's commands do
		os.Exit(3)
	}
}

// run executes the job as a process of the world w, or alone if w is nil.
func (j *peerJob) run(t *testing.T, w *hocket.World) *peerResult {
	r := &peerResult{Rank: -1}
	err := j.runAll(t, w, r)
	var peer *hocket.PeerError
	var differ *hocket.DisagreeError
	switch {
	case err == nil:
		return r
	case errors.As(err, &differ):
		r.Disagree = true
	case errors.As(err, &peer):
		r.Rank = peer.Rank
	}
	r.Err = err.Error()
	return r
}

func (j *peerJob) runAll(t *testing.T, w *hocket.World, r *peerResult) (err error) {
	f := fakedriver.New(t, j.GPUs)
	f.Queue()
	f.ShareMemory()
	f.Numbers, f.Limit, f.Model = j.Numbers, j.Limit, cmp.Or(j.Model, f.Model)
	if j.Apart {
		f.Reach.Apart = all
	}
	if j.Cache != "" {
		t.Setenv("HOCKET_CACHE", j.Cache)
	}
	f.Nth = func(name string) bool {
		if j.strike != nil {
			j.strike(name)
		}
		return false
	}
	var sys *process.Shared
	var made device.Machine
	device.Register(device.Kind{Name: t.Name(), Open: func(peers *procs.World) (_ device.Machine, err error) {
		if j.Real {
			return newJoined(j.sys, Options{Peers: peers, TeamTimeout: j.Timeout})
		}
		sys = system(f)
		if j.NCCL != "" {
			x := &fakedriver.NCCL{GPU: f}
			x.Share(j.NCCL).Hang = j.Hang
			sys.NCCL = sync.OnceValues(x.Open)
		}
		made, err = newJoined(sys, Options{Kernels: f, RanksPerGPU: j.PerGPU, Peers: peers, TeamTimeout: j.Timeout})
		return made, err
	}})
	m, err := hocket.Open(t.Context(), hocket.MachineOptions{Name: t.Name(), World: w})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	for _, l := range j.Loads {
		if err := l.run(t.Context(), m, r); err != nil {
			return fmt.Errorf("%s: %w", l, err)
		}
	}
	if j.Model != "" {
		return describe(t.Context(), made, r)
	}
	if j.Rounds != nil {
		if j.Real {
			sys = j.sys
		}
		return j.Rounds.run(t, sys, m, w.Rank(), r)
	}
	if j.Closed != "" {
		return j.closeInTurn(&caller{T: t, f: f, sys: sys, m: m}, w.Rank())
	}
	if j.Enqueue {
		for _, graph := range []bool{false, true} {
			for _, lends := range []bool{false, true} {
				if err := enqueuedPeer(t, f, sys, m, w.Rank(), graph, lends); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// closeInTurn enqueues a run. Process 0 then closes its machine. The other processes close their models afterwards.
func (j *peerJob) closeInTurn(c *caller, rank int) error {
	model := modeltest.Load(c.T, c.m, "mesh tp[2]\nfunc f(%x: f32[8, 8/tp]) -> f32[8, 8] {\n  %y = all_gather %x, over=tp, axis=1\n"+
		"  return %y\n}\n", hocket.LoadOptions{})
	at := func(name string, words int) map[string]map[int]uintptr {
		return map[string]map[int]uintptr{name: {rank: c.block(words)[rank]}}
	}
	err := model.Enqueue(c.Context(), hocket.EnqueueArgs{Streams: []uintptr{0}, In: at("x", 32), Out: at("y", 64)})
	if err != nil {
		return err
	}
	if rank == 0 {
		return errors.Join(c.m.Close(), os.WriteFile(j.Closed, nil, 0o600))
	}
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(j.Closed); err == nil {
			break
		}
		if time.Since(began) > time.Minute {
			return errors.New("process 0 has not closed its machine within a minute")
		}
	}
	time.Sleep(300 * time.Millisecond) // time for the message of process 0's end to arrive
	return model.Close()
}

// describe records the description of the machine by which the strategy auto predicts times.
func describe(ctx context.Context, m device.Machine, r *peerResult) error {
	across, err := compile.AgreeAcross(ctx, m)
	if err != nil {
		return err
	}
	info, ds := checker.Read("layer", "mesh tp[4]\nfunc layer(%x: bf16[64, 64/tp], %w: bf16[64, 64/tp]) -> bf16[64, 64] {\n"+
		"  %y = linear %x, %w\n  return %y\n}\n")
	if err := ds.Err(); err != nil {
		return err
	}
	u, err := compile.Build(info, compile.Options{Strategy: compile.Auto, Device: m, Across: across})
	if err != nil {
		return err
	}
	e, err := u.Explain(ir.Binding{})
	if err == nil && len(e.Pairs) != 1 {
		err = fmt.Errorf("%d pairs", len(e.Pairs))
	}
	if err == nil {
		r.Outcomes = []string{e.Machine, e.Across, e.Extrapolated, fmt.Sprint(e.Nodes, e.Pairs[0].Across)}
	}
	return err
}

// enqueuedPeer enqueues executions of stateful as one of two processes, some of them captured, and checks the results.
// The flag lends reports whether the result %z is lent.
func enqueuedPeer(t *testing.T, f *fakedriver.GPU, sys *process.Shared, m *hocket.Machine, rank int, graph,
	lends bool) error {
	c := &caller{T: t, f: f, sys: sys, m: m}
	c.model = modeltest.Load(t, m, stateful, hocket.LoadOptions{Graph: graph})
	defer c.model.Close()
	at := func(words int) map[int]uintptr { return map[int]uintptr{rank: c.block(words)[rank]} }
	in := map[string]map[int]uintptr{"x": at(4), "w": at(2)}
	out := map[string]map[int]uintptr{"y": at(4), "z": at(8)}
	for _, name := range []string{"s", "n"} {
		d, err := c.model.DeviceTensorAt(t.Context(), name, nil, at(4))
		if err != nil {
			return err
		}
		if err := c.model.BindDevice(name, d); err != nil {
			return err
		}
	}
	var stream uintptr
	c.on(sys.GPUs[rank].Bound, func() error {
		s, err := sys.Driver.NewStream(0)
		stream = uintptr(s)
		return err
	})
	defer c.on(sys.GPUs[rank].Bound, func() error { return sys.Driver.DestroyStream(nvlib.Stream(stream)) })
	f.Mu.Lock()
	for i := range uintptr(4) {
		cabi.Store(in["x"][rank]+4*i, int32(4*rank)+int32(i))
	}
	f.Mu.Unlock()
	copies := 0
	f.Mu.Lock()
	f.OnCall = func(name string, a []uintptr) {
		if name == "cuMemcpyAsync" && a[1] == in["x"][rank] {
			copies++
		}
	}
	f.Mu.Unlock()
	defer func() {
		f.Mu.Lock()
		defer f.Mu.Unlock()
		f.OnCall = nil
	}()
	enqueue := func(n int) error {
		for range n {
			a := hocket.EnqueueArgs{Streams: []uintptr{stream}, In: in, Out: map[string]map[int]uintptr{"y": out["y"]},
				Lend: map[string]map[int]uintptr{"z": {}}}
			if !lends {
				a.Out, a.Lend = out, nil
			}
			if err := c.model.Enqueue(t.Context(), a); err != nil {
				return err
			}
			if lends {
				out["z"] = a.Lend["z"]
			}
		}
		return nil
	}
	if err := enqueue(3); err != nil {
		return err
	}
	f.BeginGuest(stream)
	if err := enqueue(1); err != nil {
		return err
	}
	work := f.EndGuest(stream)
	for range 4 {
		f.LaunchGuest(work, stream)
	}
	if err := enqueue(2); err != nil {
		return err
	}
	if err := c.model.Sync(t.Context()); err != nil {
		return err
	}
	// Each execution replaces the state s by x - s. After an odd number of executions, s is x.
	if got := ints(out["z"][rank], 8); !slices.Equal(got, []int32{0, 1, 2, 3, 4, 5, 6, 7}) {
		return fmt.Errorf("after nine executions the result is %v", got)
	}
	f.Mu.Lock()
	defer f.Mu.Unlock()
	if copies > 1 || !graph && copies > 0 { // the copy of the execution that is recorded last
		return fmt.Errorf("x was copied %d times", copies)
	}
	return nil
}

func (l peerLoad) run(ctx context.Context, m *hocket.Machine, r *peerResult) (err error) {
	text, err := os.ReadFile(filepath.Join("../../../examples", l.Program))
	if err != nil {
		return err
	}
	p, err := hocket.Parse(l.Program, string(text))
	if err != nil {
		return err
	}
	model, err := m.Load(p, hocket.Binding{Dims: l.Dims},
		hocket.LoadOptions{Strategy: l.Strategy, Algorithm: l.Algorithm, Graph: l.Graph, Gather: true})
	if err != nil {
		return err
	}
	defer func() {
		l.tell("close")
		err = errors.Join(err, model.Close())
	}()
	var hashes, algorithms []string
	for _, n := range l.Batches {
		var batch []hocket.Args
		for range n {
			in, err := model.RandomInputs(fmt.Sprintf("ints:%d", len(hashes)+len(batch)))
			if err != nil {
				return err
			}
			batch = append(batch, hocket.Args{In: in})
		}
		l.tell("batch")
		reports, err := model.RunBatch(ctx, batch)
		if err != nil {
			return err
		}
		for _, report := range reports {
			hashes = append(hashes, report.OutputsSHA256())
			algorithms = nil
			for _, o := range report.Overlap {
				if o.Algorithm != "" {
					algorithms = append(algorithms, o.Algorithm)
				}
			}
		}
	}
	r.Hashes = append(r.Hashes, hashes)
	r.Algorithms = append(r.Algorithms, algorithms)
	return nil
}

func (l peerLoad) tell(part string) {
	if l.part != nil {
		l.part(part)
	}
}

// peer is a started process.
type peer struct {
	*exec.Cmd
	out    bytes.Buffer
	result string // file with the result
}

// startPeers starts the processes of a world, each with a job. The processes are killed when the test ends.
func startPeers(t *testing.T, stall time.Duration, jobs ...peerJob) []*peer {
	t.Helper()
	return startPeersOn(t, 1, stall, jobs...)
}

// startPeersOn is like startPeers, with the processes distributed over nodes, in order.
func startPeersOn(t *testing.T, nodes int, stall time.Duration, jobs ...peerJob) []*peer {
	t.Helper()
	onNodes := func(int, *exec.Cmd) {}
	if nodes > 1 {
		onNodes = modeltest.OnNodes(t, nodes, len(jobs))
	}
	dir, all := t.TempDir(), make([]*peer, len(jobs))
	for rank, j := range jobs {
		text, err := json.Marshal(j)
		if err != nil {
			t.Fatal(err)
		}
		p := &peer{Cmd: exec.Command(os.Args[0], "-test.run=^TestPeer$")}
		p.result = filepath.Join(dir, fmt.Sprint("result", rank))
		p.Env = append(os.Environ(), fmt.Sprint("HOCKET_RANK=", rank), fmt.Sprint("HOCKET_WORLD_SIZE=", len(jobs)),
			"HOCKET_RUN_ID="+t.Name(), "HOCKET_RUN_DIR="+dir, fmt.Sprint("HOCKET_STALL_TIMEOUT=", stall),
			peerVariable+"="+string(text), resultVariable+"="+p.result)
		onNodes(rank, p.Cmd)
		p.Stdout, p.Stderr = &p.out, &p.out
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.Process.Kill() })
		all[rank] = p
	}
	return all
}

// wait waits for a process, and returns its result; nil if it was killed.
func (p *peer) wait(t *testing.T) *peerResult {
	t.Helper()
	late := time.AfterFunc(5*time.Minute, func() {
		t.Errorf("process %d did not end", p.Process.Pid)
		_ = p.Process.Signal(syscall.SIGQUIT) // the output of a process shows what it was doing
	})
	defer late.Stop()
	err := p.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) && !exit.Exited() {
		return nil
	}
	if code := p.ProcessState.ExitCode(); code != 0 && code != 3 {
		t.Fatalf("%v\n%s", err, p.out.String())
	}
	text, err := os.ReadFile(p.result)
	if err != nil {
		t.Fatalf("%v\n%s", err, p.out.String())
	}
	r := &peerResult{}
	if err := json.Unmarshal(text, r); err != nil {
		t.Fatal(err)
	}
	return r
}

// runPeers lets n processes execute a job, and returns their results.
func runPeers(t *testing.T, n int, j peerJob) []*peerResult {
	t.Helper()
	var all []*peerResult
	for _, p := range startPeers(t, time.Minute, slices.Repeat([]peerJob{j}, n)...) {
		all = append(all, p.wait(t))
	}
	return all
}

// inexact lists examples whose results are rounded, and differ between the fake and the CPU.
var inexact = []string{"adamw.hkt", "decode.hkt", "experts.hkt", "fp8_mlp.hkt", "llama_layer.hkt", "mlp.hkt"}

// wantPeers compares the results of n processes with those of one process and, unless they are inexact, with those of
// the CPU.
func wantPeers(t *testing.T, n int, j peerJob) {
	t.Helper()
	alone := j
	alone.GPUs, alone.Numbers, alone.Apart, alone.NCCL = 4, nil, false, ""
	want := alone.run(t, nil)
	if want.Err != "" {
		t.Fatal(want.Err)
	}
	m, err := hocket.Open(t.Context(), hocket.MachineOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for i, l := range j.Loads {
		if slices.Contains(inexact, l.Program) || i > 0 && l.Program == j.Loads[i-1].Program {
			continue
		}
		cpu, plain := &peerResult{}, l
		plain.Algorithm, plain.Graph = "", false
		if err := plain.run(t.Context(), m, cpu); err != nil {
			t.Fatal(err)
		}
		if got := want.Hashes[i]; !slices.Equal(got, cpu.Hashes[0]) {
			t.Errorf("%s: one process returned %q, the CPU %q", l, got, cpu.Hashes[0])
		}
	}
	for rank, r := range runPeers(t, n, j) {
		if r.Err != "" {
			t.Errorf("process %d: %s", rank, r.Err)
		}
		for i, l := range j.Loads[:len(r.Hashes)] {
			if !slices.Equal(r.Hashes[i], want.Hashes[i]) {
				t.Errorf("process %d, %s: %q, one process returned %q", rank, l, r.Hashes[i], want.Hashes[i])
			}
		}
	}
}

// ranksOf returns the number of ranks of a program.
func ranksOf(t *testing.T, name string) int {
	t.Helper()
	p, err := hocket.Parse(name, example(t, name))
	if err != nil {
		t.Fatal(err)
	}
	sig, err := p.Bind(hocket.Binding{Dims: small[name]})
	if err != nil {
		t.Fatal(err)
	}
	return sig.Ranks
}

// peerExamples returns loads of the examples that have at least as many ranks as there are processes, each example with
// the settings of every element of ways. Only one of every few examples is loaded, and the seed selects which; long
// tests load all.
func peerExamples(t *testing.T, processes, every int, ways ...peerLoad) (loads []peerLoad) {
	t.Helper()
	list, err := filepath.Glob("../../../examples/*.hkt")
	if err != nil || len(list) < 11 {
		t.Fatalf("examples %v, %v", list, err)
	}
	first := int(longtest.Drawn(t) % uint64(every))
	for i, path := range list {
		i += first
		name := filepath.Base(path)
		if ranksOf(t, name) < processes || !longtest.On() && i%every > 0 || testing.Short() && i%4 > 0 {
			continue
		}
		for _, l := range ways {
			l.Program, l.Dims = name, small[name]
			loads = append(loads, l)
		}
	}
	return loads
}

// TestPeersEnqueue checks that two processes can enqueue executions that exchange data, each on its own stream, some of
// them captured.
func TestPeersEnqueue(t *testing.T) {
	for rank, r := range runPeers(t, 2, peerJob{GPUs: 2, PerGPU: 1, Enqueue: true}) {
		if r.Err != "" {
			t.Errorf("process %d: %s", rank, r.Err)
		}
	}
}

// TestMachineClosesFirst checks that a process may close its machine, with models, before the others close theirs.
func TestMachineClosesFirst(t *testing.T) {
	job := peerJob{GPUs: 2, PerGPU: 1, Closed: filepath.Join(t.TempDir(), "closed")}
	for rank, r := range runPeers(t, 2, job) {
		if r.Err != "" {
			t.Errorf("process %d: %s", rank, r.Err)
		}
	}
}

// TestPeerExamples checks that examples, one after another on one machine, have the same results in several processes
// as in one, with single calls and with graphs that are launched repeatedly.
func TestPeerExamples(t *testing.T) {
	eager := peerLoad{Algorithm: "staged", Batches: []int{2}}
	graph := peerLoad{Algorithm: "staged", Graph: true, Batches: []int{1, 3, 2}}
	t.Run("2", func(t *testing.T) {
		t.Parallel()
		wantPeers(t, 2, peerJob{GPUs: 4, PerGPU: 4, Loads: peerExamples(t, 2, 1, eager, graph)})
	})
	t.Run("4", func(t *testing.T) {
		t.Parallel()
		wantPeers(t, 4, peerJob{GPUs: 4, PerGPU: 4, Loads: peerExamples(t, 4, 4, eager, graph)})
	})
	t.Run("4 on 2 GPUs", func(t *testing.T) {
		t.Parallel()
		wantPeers(t, 4, peerJob{GPUs: 2, PerGPU: 4, Loads: peerExamples(t, 4, 3, eager)})
	})
}

// TestPeersApart is TestPeerExamples for processes whose GPUs have no peer access: NCCL runs their collectives, and all
// other transfers go through host memory. The fake driver fails the test if a GPU uses memory of another GPU.
func TestPeersApart(t *testing.T) {
	eager, graph := peerLoad{Batches: []int{2}}, peerLoad{Graph: true, Batches: []int{1, 3, 2}}
	staged := peerLoad{Algorithm: "staged", Graph: true, Batches: []int{2, 1}}
	t.Run("2", func(t *testing.T) {
		t.Parallel()
		wantPeers(t, 2, peerJob{GPUs: 2, PerGPU: 4, Apart: true, NCCL: t.TempDir(),
			Loads: peerExamples(t, 2, 4, eager, graph)})
	})
	t.Run("4", func(t *testing.T) {
		t.Parallel()
		wantPeers(t, 4, peerJob{GPUs: 4, PerGPU: 4, Apart: true, NCCL: t.TempDir(),
			Loads: peerExamples(t, 4, 6, eager, staged)})
	})
	t.Run("4 on 2 GPUs", func(t *testing.T) {
		t.Parallel()
		wantPeers(t, 4, peerJob{GPUs: 2, PerGPU: 4, Apart: true, Loads: peerExamples(t, 4, 6, graph)})
	})
}

// TestPeerStrategies is TestPeerExamples for programs with strategies. Collectives run as schedules, and as copies by
// copy engines between kernels that synchronize the members of all processes.
func TestPeerStrategies(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long under the race detector")
	}
	t.Parallel()
	var loads []peerLoad
	for _, name := range []string{"mlp.hkt", "llama_layer.hkt", "symbolic_rows.hkt"} {
		strategies := []string{"sequential", "chunked(2)", "exchange", "exchange(2)", "exchange(1,2)", "ahead"}
		for _, strategy := range strategies {
			for _, algorithm := range []string{"staged", "move-copy"} {
				for _, graph := range []bool{false, true} {
					loads = append(loads, peerLoad{Program: name, Dims: small[name], Strategy: strategy,
						Algorithm: algorithm, Graph: graph, Batches: []int{1, 2}})
				}
			}
		}
	}
	wantPeers(t, 2, peerJob{GPUs: 4, PerGPU: 1, Loads: loads})
}

// TestPeersSeeOthers checks that processes use different GPUs if each process sees only one GPU, as its first.
func TestPeersSeeOthers(t *testing.T) {
	t.Parallel()
	const name = "row_parallel.hkt"
	j := peerJob{GPUs: 2, PerGPU: 1, Loads: []peerLoad{
		{Program: name, Dims: small[name], Algorithm: "staged", Graph: true, Batches: []int{1, 2}}}}
	want := (&peerJob{GPUs: 4, PerGPU: 1, Loads: j.Loads}).run(t, nil)
	other := j
	j.Numbers, other.Numbers = []int{5, 3}, []int{2, 4}
	for rank, p := range startPeers(t, time.Minute, j, other) {
		if r := p.wait(t); r.Err != "" || fmt.Sprint(r.Hashes) != fmt.Sprint(want.Hashes) {
			t.Errorf("process %d: %+v, one process returned %+v", rank, r, want)
		}
	}
}

// TestNodes checks processes on two nodes. NCCL transfers data between the nodes, and results equal those of one
// process. Programs that access memory of another node are refused.
func TestNodes(t *testing.T) {
	j := peerJob{GPUs: 4, PerGPU: 1, NCCL: t.TempDir()}
	for _, name := range []string{"ag_linear_2d.hkt", "dp_tp_mlp.hkt", "linear_rs_2d.hkt", "mlp.hkt", "moe.hkt",
		"all_to_allv.hkt",
		"row_parallel_scatter.hkt", "symbolic_rows.hkt"} {
		j.Loads = append(j.Loads, peerLoad{Program: name, Dims: small[name], Algorithm: "staged", Batches: []int{1, 3}})
	}
	for _, name := range []string{"mlp.hkt", "column_parallel.hkt"} {
		j.Loads = append(j.Loads, peerLoad{Program: name, Dims: small[name], Batches: []int{2, 1}})
	}
	j.Loads = append(j.Loads, peerLoad{Program: "../internal/device/cuda/testdata/nodes.hkt", Batches: []int{2}})
	alone := j
	alone.NCCL, alone.Loads = "", slices.Clone(j.Loads)
	for i := range alone.Loads {
		alone.Loads[i].Algorithm = "staged"
	}
	want := alone.run(t, nil)
	if want.Err != "" {
		t.Fatal(want.Err)
	}
	crossed := map[string]int{}
	for rank, p := range startPeersOn(t, 2, time.Minute, slices.Repeat([]peerJob{j}, 4)...) {
		r := p.wait(t)
		if r.Err != "" {
			t.Errorf("process %d: %s", rank, r.Err)
		}
		for i, l := range j.Loads[:len(r.Hashes)] {
			if !slices.Equal(r.Hashes[i], want.Hashes[i]) {
				t.Errorf("process %d, %s: %q, one process returned %q", rank, l, r.Hashes[i], want.Hashes[i])
			}
		}
		for _, list := range r.Algorithms {
			for _, a := range list {
				crossed[a]++
			}
		}
	}
	if crossed[ncclName] < 8 || crossed["across"] < 16 || crossed["staged"] < 8 {
		t.Errorf("collectives used the algorithms %v", crossed)
	}
	for _, name := range []string{"all_reduce", "reduce_scatter", "all_gather", "send"} {
		if !fakedriver.CalledShared(t, j.NCCL, name) {
			t.Errorf("NCCL was not called for %s", name)
		}
	}
	j.Loads = []peerLoad{{Program: "ag_linear_ring.hkt", Dims: small["ag_linear_ring.hkt"], Batches: []int{1}}}
	for rank, p := range startPeersOn(t, 2, time.Minute, slices.Repeat([]peerJob{j}, 4)...) {
		if r := p.wait(t); !strings.Contains(r.Err, "nodes share no memory") {
			t.Errorf("process %d: %q", rank, r.Err)
		}
	}
}

// TestNodesDescribed checks the description of the machine by which processes on two nodes predict times. It describes
// the first rank's GPU and, if process 0's node has it saved, the measured connection between nodes.
func TestNodesDescribed(t *testing.T) {
	const h100, h200, a100 = "NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA A100"
	const unknown = "unknown, so traffic between nodes is predicted as traffic inside a node"
	const extrapolated = "no layer was measured on 2 nodes; the accuracy of predictions is unknown"
	h100x2, err := described.Load("h100x2")
	if err != nil {
		t.Fatal(err)
	}
	keep := func(source string) string {
		dir := t.TempDir()
		t.Setenv("HOCKET_CACHE", dir)
		if err := compile.KeepAcross("cuda", 2, &described.Across{Source: source, Bandwidth: 7, NICs: 2}); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	empty, kept, other := t.TempDir(), keep("measured here"), keep("measured there")
	for _, c := range []struct {
		models, caches  [2]string
		machine, across string
		crosses         bool
	}{
		{[2]string{h100, h100}, [2]string{empty, empty}, "h100x2", h100x2.Across.Source, true},
		{[2]string{h100, h200}, [2]string{empty, other}, "h100x2", h100x2.Across.Source, true},
		{[2]string{h200, h100}, [2]string{empty, empty}, "h200x2", unknown, false},
		{[2]string{h200, h100}, [2]string{kept, other}, "h200x2", "measured here", true},
		{[2]string{a100, h100}, [2]string{kept, empty}, "h100x2", "measured here", true},
	} {
		d, err := described.Load(c.machine)
		if err != nil {
			t.Fatal(err)
		}
		var jobs []peerJob
		nccl := t.TempDir()
		for i := range 4 { // two processes per node
			load := peerLoad{Program: "mlp.hkt", Dims: small["mlp.hkt"], Strategy: "auto", Batches: []int{1}}
			jobs = append(jobs, peerJob{GPUs: 1, Numbers: []int{i}, PerGPU: 1, NCCL: nccl, Model: c.models[i/2],
				Cache: c.caches[i/2], Loads: []peerLoad{load}})
		}
		want := []string{c.machine, c.across,
			fmt.Sprintf("%s was measured on %s, not on %s sm_91a; %s", c.machine, d.GPU,
				c.models[0], extrapolated), fmt.Sprint(2, c.crosses)}
		for rank, p := range startPeersOn(t, 2, time.Minute, jobs...) {
			if r := p.wait(t); r.Err != "" || len(r.Hashes) != 1 || !slices.Equal(r.Outcomes, want) {
				t.Errorf("%v, process %d: %q, %s; want %q", c.models, rank, r.Outcomes, r.Err, want)
			}
		}
	}
}

// TestNodesNCCLHangs checks that a load ends in bounded time, with an error that says so, if NCCL never becomes ready.
func TestNodesNCCLHangs(t *testing.T) {
	j := peerJob{GPUs: 2, PerGPU: 1, NCCL: t.TempDir(), Timeout: time.Second,
		Loads: []peerLoad{{Program: "tp_sp_linears.hkt", Dims: small["tp_sp_linears.hkt"], Batches: []int{1}}}}
	hangs := j
	hangs.Hang = true
	for rank, p := range startPeersOn(t, 2, 10*time.Second, j, hangs) {
		if r := p.wait(t); !strings.Contains(r.Err, "NCCL is not ready after 1s") {
			t.Errorf("process %d: %q", rank, r.Err)
		}
	}
}
