package acceptance_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"hocket.example/hocket"
	_ "hocket.example/hocket/cuda"
	"hocket.example/hocket/internal/nvlib"
)

var (
	soakTime    = flag.Duration("soak", time.Second, "how long TestSoak runs")
	soakMachine = flag.String("soak.machine", "cpu", "where TestSoak runs: cpu or cuda")
	soakRanks   = flag.Int("soak.ranks", 4, "on how many ranks")
)

// soakProgram is a small program with a dim that may be any multiple of step.
type soakProgram struct {
	file, dim string
	step      int64
	dims      map[string]int64
	free      bool   // the program has no explicit overlap, so that strategies apply
	ranks     int    // required number of ranks; 0 for any
	text      string // the program, if it is not an example
}

// soakPrograms move data by collectives, puts and gets, before and after elementwise chains and GEMMs. The sizes of
// some are in the text, and those of others are computed on the devices.
var soakPrograms = []soakProgram{
	{file: "mlp", dim: "T", step: 8, dims: map[string]int64{"H": 32, "F": 64}, free: true},
	{file: "row_parallel", dim: "T", step: 24, dims: map[string]int64{"K": 32, "N": 16}},
	{file: "linear_rs_push", dim: "T", step: 16},
	{file: "uneven", dim: "H", step: 4, text: soakUneven},
	{file: "ag_linear_exchange", dim: "T", step: 16},
	{file: "layers_all_reduce", dim: "B", step: 8},
	{file: "llama_layer", dim: "T", step: 8, free: true},
	{file: "decode", dim: "T", step: 1},
	{file: "moe", dim: "T", step: 8, ranks: 4},
}

// soakUneven sends zero or one row to each rank, as its input says, and sends the rows back.
const soakUneven = `dim H = 4
mesh tp[4]
func uneven(%x: f32[4 * 4/tp, H], %c: i32[4 * 4/tp]) -> f32[4 * 4/tp, H] {
  %r = relu %c
  %n = local %r
  %there = alloc f32[4, H] zero
  all_to_allv %x, %n into %there, over=tp
  %m = all_to_all %n, over=tp
  %y = alloc f32[4 * 4/tp, H] zero
  all_to_allv %there, %m into %y, over=tp
  return %y
}
`

// soak is a machine that executes many runs.
type soak struct {
	*testing.T
	m     *hocket.Machine
	ctx   context.Context
	ways  []soakWay
	first *soakProgram // runs continuously

	still sync.Mutex // locked while the continuous program runs, and while no program may run

	mu    sync.Mutex
	wants map[string][]byte   // expected results by program, strategy, algorithm, dims and seed
	outs  map[string][]string // names of the results, by program, strategy and algorithm
	runs  int
	late  int // how many runs missed their deadline
	loads int
	bound int // number of runs with separate plans, because their arguments were bound

	plans planCount
}

// planCount counts loaded plans by their log messages.
type planCount struct{ n atomic.Int64 }

func (*planCount) Enabled(context.Context, slog.Level) bool { return true }
func (c *planCount) WithAttrs([]slog.Attr) slog.Handler     { return c }
func (c *planCount) WithGroup(string) slog.Handler          { return c }

func (c *planCount) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "plan loaded" {
		c.n.Add(1)
	}
	return nil
}

// soakWay is a program with the strategy and the algorithm by which it runs, and whether it runs as a graph.
type soakWay struct {
	*soakProgram
	strategy, algorithm string
	graph               bool
}

func (w soakWay) String() string { return fmt.Sprint(w.file, " ", w.strategy, " ", w.algorithm) }

// soakWays lists all combinations of a program, a strategy, an algorithm and a mode. Successive entries have different
// programs.
func soakWays(own bool) []soakWay {
	algorithms, graphs := []string{""}, []bool{false}
	if own {
		algorithms, graphs = []string{"", "staged", "nccl", "direct", "push"}, []bool{true, false}
	}
	var list []soakWay
	for i, strategy := range []string{"sequential", "chunked(2)", "exchange", "exchange(2)", "ahead"} {
		for k := range algorithms {
			for _, graph := range graphs {
				for j := range soakPrograms {
					w := soakWay{&soakPrograms[j], strategy, algorithms[(k+j)%len(algorithms)], graph}
					if !w.free {
						w.strategy = ""
					}
					if (w.free || i == 0) && (w.ranks == 0 || w.ranks == *soakRanks) {
						list = append(list, w)
					}
				}
			}
		}
	}
	return list
}

// soakPeriod is the number of passes through soakWays after which they repeat: every second entry is traced, and in the
// next pass the other entries are.
const soakPeriod = 2

// TestSoak runs small programs for some time. One program is replayed continuously. Meanwhile others are loaded, run
// with several extents, and unloaded. Programs run as graphs and call by call, and their collectives are schedules,
// kernels or calls of NCCL. Some runs have a deadline, which they may miss; the plan must stay loaded. Every result
// must be bit for bit that of the first run with the same arguments, which must be right. After the first pass through
// soakWays, the memory of the devices and the host and the numbers of goroutines and threads must not grow.
func TestSoak(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), *soakTime+2*time.Minute)
	defer cancel()
	m, err := hocket.Open(ctx, hocket.MachineOptions{Name: *soakMachine})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	s := &soak{T: t, m: m, ctx: ctx, ways: soakWays(*soakMachine != "cpu"), first: &soakPrograms[0],
		wants: map[string][]byte{}, outs: map[string][]string{}}
	began := time.Now()
	stop, steady := make(chan bool), make(chan error, 1)
	go func() { steady <- s.replay(stop) }()
	var passes []usage // usage after each whole pass, while the continuous program is loaded
	for pass := 0; err == nil && time.Since(began) < *soakTime; pass++ {
		for i := 0; err == nil && i < len(s.ways) && time.Since(began) < *soakTime; i++ {
			if err = s.visit(i, (i+pass)%soakPeriod == 0); err == nil && i == len(s.ways)-1 {
				s.still.Lock()
				passes = append(passes, measure(t))
				held := residents()
				s.still.Unlock()
				t.Logf("%v: %d passes of %d ways, %d runs: %v: %v", time.Since(began).Round(time.Second), pass+1,
					len(s.ways), s.count(), passes[pass], held)
			}
		}
	}
	if err != nil {
		t.Error(err)
	}
	close(stop)
	if err := <-steady; err != nil {
		t.Error(err)
	}
	after := measure(t)
	t.Logf("%v: %d runs, %d loads, %d deadlines missed: %v: %v", time.Since(began).Round(time.Second), s.count(),
		s.loads, s.late, after, residents())
	if want := int64(1 + soakDims*s.loads + s.bound); !t.Failed() && s.plans.n.Load() != want {
		t.Errorf("%d plans were loaded, want %d", s.plans.n.Load(), want)
	}
	if len(passes) <= soakPeriod {
		t.Logf("too few passes to detect growth, which needs %d", soakPeriod+1)
	} else {
		if err := grown(passes[soakPeriod-1:], *soakRanks, len(s.ways)); err != nil {
			t.Error(err)
		}
	}
	if s.count() < 10 {
		t.Errorf("only %d runs", s.count())
	}
}

// soakSlack is how much the driver's own memory of a device may grow: it allocates 2 MiB at a time, for the largest
// graphs so far. A leak in every load exceeds that within a few passes. The process may grow by hostSlack, about its
// variation from pass to pass, and by loadSlack for each load, a fifth of the size of a GEMM description that once
// leaked. The memory that malloc has allocated varies less: it may grow for each load by a quarter of the size of
// addresses that once leaked on two GPUs.
const (
	soakSlack       = 16 << 20
	hostSlack       = 24 << 20
	loadSlack       = 8 << 10
	mallocSlack     = 4 << 20
	mallocLoadSlack = 1 << 10
)

// grown returns an error that lists the resources whose use grew from the first pass to the last. loads is the number
// of loads in each pass.
func grown(passes []usage, ranks, loads int) error {
	before, after := passes[0], passes[len(passes)-1]
	loads *= len(passes) - 1
	switch more := after.device - before.device; {
	case more > int64(ranks)*soakSlack:
		return fmt.Errorf("%d bytes of device memory were not given back in %d passes", more, len(passes)-1)
	case after.resident > before.resident+hostSlack+int64(loads)*loadSlack:
		return fmt.Errorf("the process grew from %d to %d bytes in %d passes", before.resident, after.resident,
			len(passes)-1)
	case after.malloced > before.malloced+mallocSlack+int64(loads)*mallocLoadSlack:
		return fmt.Errorf("of malloc's memory %d bytes were in use, %d passes later %d", before.malloced, len(passes)-1,
			after.malloced)
	case after.goroutines > before.goroutines, after.threads > before.threads+8:
		return fmt.Errorf("in %d passes from %v to %v", len(passes)-1, before, after)
	}
	return nil
}

// TestGrown checks that growth in every pass is detected, and that small variations are not
// reported.
func TestGrown(t *testing.T) {
	const mib = 1 << 20
	first := usage{device: 9000 * mib, resident: 2000 * mib, malloced: 400 * mib, goroutines: 3, threads: 78}
	for what, tc := range map[string]struct {
		each usage
		says string // expected text of the error; empty for none
	}{
		"nothing":                    {usage{}, ""},
		"the driver":                 {usage{device: 2 * mib, resident: 5 * mib, threads: 1}, ""},
		"a page a load on each of 4": {usage{device: 4 * 140 * 3 * 4096}, "12 passes"},
		"an arena each pass":         {usage{device: 64 * mib}, "bytes of device memory"},
		"host memory":                {usage{resident: 6 * mib}, "the process grew"}, // a case that occurred
		"a node a load on each of 4": {usage{malloced: 4 * 140 * 912}, "of malloc's memory"},
		"a goroutine":                {usage{goroutines: 1}, "15 goroutines"},
		"a thread for each":          {usage{threads: 1}, "90 threads"},
	} {
		passes := []usage{first}
		last := 12
		if tc.says == "" {
			last = 3
		}
		for range last {
			u := passes[len(passes)-1]
			passes = append(passes, usage{u.device + tc.each.device, u.resident + tc.each.resident,
				u.malloced + tc.each.malloced, u.goroutines + tc.each.goroutines, u.threads + tc.each.threads})
		}
		if err := grown(passes, 4, 150); (err == nil) != (tc.says == "") || err != nil &&
			!strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: got %v, want %q", what, err, tc.says)
		}
	}
}

func (s *soak) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runs
}

// parse reads the program, for the given number of ranks.
func (p *soakProgram) parse() (*hocket.Program, error) {
	text := p.text
	if text == "" {
		src, err := os.ReadFile(filepath.Join(root, "examples", p.file+".hkt"))
		if err != nil {
			return nil, err
		}
		text = string(src)
	}
	n := strconv.Itoa(*soakRanks)
	return hocket.Parse(p.file, strings.NewReplacer("mesh tp[4]", "mesh tp["+n+"]", "dim P = 4", "dim P = "+n,
		"[4 * 4/", "["+n+" * "+n+"/", "f32[4, H]", "f32["+n+", H]").Replace(text))
}

// load loads the program of w with the strategy and algorithm of w.
func (s *soak) load(w soakWay, trace bool) (*hocket.Model, error) {
	prog, err := w.parse()
	if err != nil {
		return nil, err
	}
	opts := hocket.LoadOptions{Strategy: w.strategy, Algorithm: w.algorithm, Graph: w.graph, NoProve: true,
		Trace: trace, Logger: slog.New(&s.plans), Grace: time.Minute}
	return s.m.Load(prog, hocket.Binding{Dims: w.dims}, opts)
}

// soakWeights selects how all parameters but the first are passed to a run. The values of these parameters are the same
// in all runs with the same dims.
type soakWeights int

const (
	soakGiven soakWeights = iota // as its arguments
	soakBinds                    // bound before the run
	soakBound                    // bound already
)

// hurry is like run, with a deadline that may pass before, during or after the run.
func (s *soak) hurry(ctx context.Context, m *hocket.Model, name string, dims map[string]int64, seed int,
	weights soakWeights) error {
	soon, cancel := context.WithTimeout(ctx, rand.N(500*time.Microsecond))
	defer cancel()
	err := s.run(soon, m, name, dims, seed, weights)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		s.mu.Lock()
		s.late++
		s.mu.Unlock()
		return nil
	}
	return err
}

// run runs a model once for given dims and a seed, and compares the results with those of the first
// such run.
func (s *soak) run(ctx context.Context, m *hocket.Model, name string, dims map[string]int64, seed int,
	weights soakWeights) error {
	args, err := s.args(m, dims, seed, weights)
	if err != nil {
		return err
	}
	rep, err := m.Run(ctx, args)
	if err != nil {
		return fmt.Errorf("%s, %v: %w", name, dims, err)
	}
	return s.hold(m, name, dims, seed, args, rep)
}

// runDirect repeats the run of the method run, with all arguments and results in device tensors. One time in four the
// arguments are bound, so that a separate plan works on these tensors in place.
func (s *soak) runDirect(ctx context.Context, m *hocket.Model, name string, dims map[string]int64, seed int,
	weights soakWeights) (err error) {
	args, err := s.args(m, dims, seed, weights)
	if err != nil {
		return err
	}
	direct := hocket.Args{DeviceIn: map[string]*hocket.DeviceTensor{}, DeviceOut: map[string]*hocket.DeviceTensor{}}
	defer func() {
		for _, list := range []map[string]*hocket.DeviceTensor{direct.DeviceIn, direct.DeviceOut} {
			for _, d := range list {
				err = errors.Join(err, d.Close())
			}
		}
	}()
	for port, x := range args.In {
		d, err := m.NewDeviceTensor(ctx, port, dims)
		if err != nil {
			return err
		}
		direct.DeviceIn[port] = d
		if err := d.Write(ctx, x); err != nil {
			return err
		}
	}
	var bound map[string]*hocket.DeviceTensor
	if rand.N(4) == 0 {
		bound = maps.Clone(direct.DeviceIn)
	}
	s.mu.Lock()
	outs := s.outs[name]
	s.mu.Unlock()
	for _, port := range outs {
		if bound[port] != nil { // the port is an inout parameter, whose new contents are the result
			direct.DeviceOut[port] = bound[port]
			continue
		}
		d, err := m.NewDeviceTensor(ctx, port, dims)
		if err != nil {
			return err
		}
		direct.DeviceOut[port] = d
	}
	defer func() {
		for port := range bound {
			err = errors.Join(err, m.BindDevice(port, nil))
		}
	}()
	given := direct
	for port, d := range bound {
		if err := m.BindDevice(port, d); err != nil {
			return err
		}
		given.DeviceIn = nil
	}
	if len(bound) > 0 {
		s.mu.Lock()
		s.bound++
		s.mu.Unlock()
	}
	if _, err := m.Run(ctx, given); err != nil {
		return fmt.Errorf("%s, %v, on the devices: %w", name, dims, err)
	}
	rep := &hocket.Report{OutNames: outs, Out: map[string]*hocket.Tensor{}}
	for port, d := range direct.DeviceOut {
		if rep.Out[port], err = d.Read(ctx); err != nil {
			return err
		}
	}
	return s.hold(m, name, dims, seed, args, rep)
}

// args returns the arguments of a run that are not bound.
func (s *soak) args(m *hocket.Model, dims map[string]int64, seed int, weights soakWeights) (hocket.Args, error) {
	args := hocket.Args{In: map[string]*hocket.Tensor{}}
	ports, err := m.Inputs(dims)
	if err != nil {
		return args, err
	}
	for i, p := range ports {
		if i > 0 && weights == soakBound {
			continue
		}
		x, err := soakTensor(p, i, seed)
		if err != nil {
			return args, err
		}
		if i > 0 && weights == soakBinds {
			err = m.Bind(p.Name, x)
		} else {
			args.In[p.Name] = x
		}
		if err != nil {
			return args, err
		}
	}
	return args, nil
}

// hold compares the results of a run with the stored results of the first run with the same arguments.
func (s *soak) hold(m *hocket.Model, name string, dims map[string]int64, seed int, args hocket.Args,
	rep *hocket.Report) error {
	var got []byte
	for _, o := range rep.OutNames {
		got = append(got, rep.Out[o].Data...)
	}
	key := fmt.Sprint(name, dims, seed)
	s.mu.Lock()
	want := s.wants[key]
	s.wants[key] = got
	s.outs[name] = rep.OutNames
	s.runs++
	s.mu.Unlock()
	if want == nil {
		ref, err := m.Reference(s.ctx, args)
		if err != nil {
			return err
		}
		if err := ref.Compare(rep).Err(); err != nil {
			return fmt.Errorf("%s, %v: %w", name, dims, err)
		}
		return nil
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("%s, %v, seed %d: other bits than before", name, dims, seed)
	}
	return nil
}

// soakTensor returns the value of parameter i for a seed.
func soakTensor(p hocket.Port, i, seed int) (*hocket.Tensor, error) {
	x, err := hocket.NewTensor(p.DType, p.Shape...)
	if err != nil {
		return nil, err
	}
	if i > 0 {
		seed = 0
	}
	v := x.Floats()
	for j := range v {
		v[j] = float64((j*7+i*5+seed*4+j/11)%3 - 1)
	}
	return hocket.FromFloats(p.DType, v, p.Shape...)
}

// replay runs one program until it is stopped.
func (s *soak) replay(stop chan bool) (err error) {
	w := soakWay{s.first, "exchange", "", *soakMachine != "cpu"}
	m, err := s.load(w, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	weights := soakBinds
	for i := 0; ; i++ {
		select {
		case <-stop:
			return nil
		default:
		}
		s.still.Lock()
		run := s.run
		if i%5 == 3 {
			run = s.hurry
		}
		err := run(s.ctx, m, w.String(), map[string]int64{w.dim: 4 * w.step}, i%2, weights)
		weights = soakBound
		s.still.Unlock()
		if err != nil {
			return fmt.Errorf("run %d of the steady program: %w", i, err)
		}
	}
}

// soakDims is the number of values of its dim with which each call of visit runs a program.
const soakDims = 3

// visit loads the program of entry i of soakWays, runs it with several values of its dim, and unloads it. For some
// entries the first run with each value binds the weights.
func (s *soak) visit(i int, trace bool) (err error) {
	w := s.ways[i]
	m, err := s.load(w, trace)
	if err != nil {
		return err
	}
	s.loads++
	defer func() { err = errors.Join(err, m.Close()) }()
	for k := range soakDims {
		dims := map[string]int64{w.dim: w.step * int64(1+(i+k)%4)}
		for rep := range 3 { // the first run records the graph, and later ones replay it
			weights := soakGiven
			if i/2%2 == 0 {
				weights = min(soakBinds+soakWeights(rep), soakBound)
			}
			err := s.run(s.ctx, m, w.String(), dims, rep%2, weights)
			if err == nil && k == 0 {
				err = s.hurry(s.ctx, m, w.String(), dims, rep%2, weights)
			}
			if err == nil && k == 1 && rep > 0 {
				err = s.runDirect(s.ctx, m, w.String(), dims, rep%2, weights)
			}
			if err != nil {
				return fmt.Errorf("load %d: %w", s.loads, err)
			}
		}
	}
	return nil
}

// usage is the use of resources by the process.
type usage struct {
	device     int64 // bytes on all devices
	resident   int64
	malloced   int64 // malloc's memory in use; 0 if unknown
	goroutines int
	threads    int
}

func (u usage) String() string {
	return fmt.Sprintf("%d MiB on devices, %d MiB resident, %.2f MiB in use of malloc's, %d goroutines, %d threads",
		u.device>>20, u.resident>>20, mib(u.malloced), u.goroutines, u.threads)
}

func measure(t *testing.T) usage {
	t.Helper()
	runtime.GC()
	debug.FreeOSMemory()
	u := usage{goroutines: runtime.NumGoroutine(), device: heldOnDevices(t), malloced: malloced()}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skip("the system does not report how much memory a process uses")
	}
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		n, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
		switch name {
		case "VmRSS":
			u.resident = n << 10
		case "Threads":
			u.threads = int(n)
		}
	}
	if detectsRaces { // under the race detector only Go's heap and stacks are counted
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		u.resident = int64(m.HeapInuse + m.StackInuse)
	}
	return u
}

// heldOnDevices returns the memory that this process uses on all devices, as the driver's tool lists it. If there is no
// such tool, or it does not list this process, heldOnDevices returns the memory that all processes use.
func heldOnDevices(t *testing.T) int64 {
	t.Helper()
	if *soakMachine == "cpu" {
		return 0
	}
	list, _ := exec.Command("nvidia-smi", "--query-compute-apps=pid,used_memory",
		"--format=csv,noheader,nounits").Output()
	held := int64(0)
	for line := range strings.Lines(string(list)) {
		var pid int
		var mib int64
		if n, _ := fmt.Sscanf(line, "%d, %d", &pid, &mib); n == 2 && pid == os.Getpid() {
			held += mib << 20
		}
	}
	if held == 0 {
		return usedOnDevices(t)
	}
	return held
}

func usedOnDevices(t *testing.T) int64 {
	t.Helper()
	drv, err := nvlib.OpenDriver()
	if err != nil {
		t.Fatal(err)
	}
	n, err := drv.DeviceCount()
	if err != nil {
		t.Fatal(err)
	}
	total := int64(0)
	for i := range n {
		d, err := drv.Device(i)
		if err != nil {
			t.Fatal(err)
		}
		c, err := drv.RetainPrimary(d)
		if err != nil {
			t.Fatal(err)
		}
		if err := drv.Bind(c); err != nil {
			t.Fatal(err)
		}
		free, all, err := drv.MemInfo()
		drv.Unbind()
		if err != nil {
			t.Fatal(err)
		}
		total += all - free
	}
	return total
}
