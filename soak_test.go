package hocket_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
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
	free      bool   // a strategy says what overlaps, not the text
	ranks     int    // that it needs; 0 for any number
	text      string // where it is no example
}

// soakPrograms move data in every way there is: by collectives, puts and gets, with
// sizes that stand in the text and that devices compute, between chains and products.
var soakPrograms = []soakProgram{
	{file: "mlp", dim: "T", step: 8, dims: map[string]int64{"H": 32, "F": 64}, free: true},
	{file: "row_parallel", dim: "T", step: 24, dims: map[string]int64{"K": 32, "N": 16}},
	{file: "linear_rs_push", dim: "T", step: 16},
	{file: "uneven", dim: "H", step: 4, text: soakUneven},
	{file: "ag_linear_exchange", dim: "T", step: 16},
	{file: "layers_all_reduce", dim: "B", step: 8},
	{file: "llama_layer", dim: "T", step: 8, free: true},
	{file: "moe", dim: "T", step: 8, ranks: 4},
}

// soakUneven sends none or one row to each rank and has it back, as its input says.
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

// soakTold is how often TestSoak says how far it is.
const soakTold = 30 * time.Second

// soak is one machine under many runs.
type soak struct {
	*testing.T
	m        *hocket.Machine
	graph    bool
	ctx      context.Context
	programs []soakProgram

	mu    sync.Mutex
	wants map[string][]byte // results by program, strategy, dims and seed
	runs  int
	loads int
}

// TestSoak runs small programs for a time: one is replayed without end while
// others come, are run for some extents, by graph and call by call, with
// collectives by schedules, kernels or NCCL, and go.
// Every result must have the bits that its first run had, the first be right, and
// nothing grow: memory of devices or host, goroutines, threads.
func TestSoak(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), *soakTime+2*time.Minute)
	defer cancel()
	m, err := hocket.Open(ctx, hocket.MachineOptions{Name: *soakMachine})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	s := &soak{T: t, m: m, graph: *soakMachine != "cpu", ctx: ctx, wants: map[string][]byte{}}
	s.programs = slices.DeleteFunc(slices.Clone(soakPrograms), func(p soakProgram) bool { return p.ranks != 0 && p.ranks != *soakRanks })
	began := time.Now()
	end, warm, tell := began.Add(*soakTime), began.Add(*soakTime/3), began.Add(soakTold)
	stop, steady := make(chan bool), make(chan error, 1)
	go func() { steady <- s.replay(stop) }()
	var before usage
	warmRuns := 0
	for round := 0; time.Now().Before(end); round++ {
		if err := s.visit(round); err != nil {
			t.Error(err)
			break
		}
		if before.at.IsZero() && time.Now().After(warm) && round >= 2*len(s.programs) {
			before, warmRuns = measure(t), s.count()
			t.Logf("warm after %d runs: %v", warmRuns, before)
		}
		if time.Now().After(tell) {
			tell = tell.Add(soakTold)
			t.Logf("%v: %d runs, %d loads: %v", time.Since(began).Round(time.Second), s.count(), s.loads, measure(t))
		}
	}
	close(stop)
	if err := <-steady; err != nil {
		t.Error(err)
	}
	after := measure(t)
	t.Logf("%d runs, %d loads: %v", s.count(), s.loads, after)
	switch {
	case before.at.IsZero():
		t.Log("too short a time to tell whether something grows")
	case after.device > before.device+(2<<20):
		t.Errorf("%d bytes of device memory were not given back over %d runs", after.device-before.device, s.count()-warmRuns)
	case after.resident > before.resident+before.resident/10+(32<<20):
		t.Errorf("the process grew from %d to %d bytes", before.resident, after.resident)
	case after.goroutines > before.goroutines, after.threads > before.threads+8:
		t.Errorf("from %v to %v", before, after)
	}
	if s.count() < 10 {
		t.Errorf("only %d runs", s.count())
	}
}

func (s *soak) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runs
}

// parse reads the program, for as many ranks as there are.
func (p *soakProgram) parse() (*hocket.Program, error) {
	text := p.text
	if text == "" {
		src, err := os.ReadFile("examples/" + p.file + ".hkt")
		if err != nil {
			return nil, err
		}
		text = string(src)
	}
	n := strconv.Itoa(*soakRanks)
	return hocket.Parse(p.file, strings.NewReplacer("mesh tp[4]", "mesh tp["+n+"]", "dim P = 4", "dim P = "+n, "[4 * 4/", "["+n+" * "+n+"/", "f32[4, H]", "f32["+n+", H]").Replace(text))
}

// load loads program k in one of its ways, which way tells.
func (s *soak) load(k, way int) (*hocket.Model, string, error) {
	p := s.programs[k]
	prog, err := p.parse()
	if err != nil {
		return nil, "", err
	}
	opts := hocket.LoadOptions{Graph: s.graph && way%2 == 1, NoProve: true, Trace: way%7 == 6}
	if s.graph {
		opts.Algorithm = []string{"", "staged", "nccl", "direct", "push"}[way/2%5]
	}
	if p.free {
		opts.Strategy = []string{"sequential", "chunked(2)", "exchange", "exchange(2)"}[way/2%4]
	}
	m, err := s.m.Load(prog, hocket.Binding{Dims: p.dims}, opts)
	return m, fmt.Sprint(p.file, " ", opts.Strategy, " ", opts.Algorithm), err
}

// run runs a model once for a T and a seed, and holds it to what came first.
func (s *soak) run(m *hocket.Model, name string, dims map[string]int64, seed int) error {
	ports, err := m.Inputs(dims)
	if err != nil {
		return err
	}
	args := hocket.Args{In: map[string]*hocket.Tensor{}}
	for i, p := range ports {
		x, err := hocket.NewTensor(p.DType, p.Shape...)
		if err != nil {
			return err
		}
		v := x.Floats()
		for j := range v {
			v[j] = float64((j*7+i*5+seed*4+j/11)%3 - 1)
		}
		if args.In[p.Name], err = hocket.FromFloats(p.DType, v, p.Shape...); err != nil {
			return err
		}
	}
	rep, err := m.Run(s.ctx, args)
	if err != nil {
		return fmt.Errorf("%s, %v: %w", name, dims, err)
	}
	var got []byte
	for _, o := range rep.OutNames {
		got = append(got, rep.Out[o].Data...)
	}
	key := fmt.Sprint(name, dims, seed)
	s.mu.Lock()
	want := s.wants[key]
	s.wants[key] = got
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

// replay runs one program until told to stop.
func (s *soak) replay(stop chan bool) (err error) {
	m, name, err := s.load(0, 5) // by graph where there are graphs, in exchange
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	for i := 0; ; i++ {
		select {
		case <-stop:
			return nil
		default:
		}
		if err := s.run(m, name, map[string]int64{s.programs[0].dim: 32}, i%2); err != nil {
			return fmt.Errorf("run %d of the steady program: %w", i, err)
		}
	}
}

// visit loads a program, runs it for values of T that are new to it, and unloads
// it.
func (s *soak) visit(round int) (err error) {
	k := round % len(s.programs)
	m, name, err := s.load(k, round/len(s.programs))
	if err != nil {
		return err
	}
	s.loads++
	defer func() { err = errors.Join(err, m.Close()) }()
	for i := range int64(3) {
		p := &s.programs[k]
		dims := map[string]int64{p.dim: p.step * (1 + (int64(round)+i)%4)}
		for rep := range 4 {
			if err := s.run(m, name, dims, rep%2); err != nil {
				return fmt.Errorf("round %d: %w", round, err)
			}
		}
	}
	return nil
}

// usage is what the process holds.
type usage struct {
	at         time.Time
	device     int64 // bytes on all devices
	resident   int64
	goroutines int
	threads    int
}

func (u usage) String() string {
	return fmt.Sprintf("%d MiB on devices, %d MiB resident, %d goroutines, %d threads", u.device>>20, u.resident>>20, u.goroutines, u.threads)
}

func measure(t *testing.T) usage {
	t.Helper()
	runtime.GC()
	debug.FreeOSMemory()
	u := usage{at: time.Now(), goroutines: runtime.NumGoroutine(), device: heldOnDevices(t)}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skip("the system does not tell what a process holds")
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
	return u
}

// heldOnDevices returns what this process holds on all devices, as the driver's own
// tool lists it; where the tool is not there or does not see this process, what all
// processes hold.
func heldOnDevices(t *testing.T) int64 {
	t.Helper()
	if *soakMachine == "cpu" {
		return 0
	}
	list, _ := exec.Command("nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits").Output()
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
