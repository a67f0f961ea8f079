package cuda

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/longtest"
	procs "hocket.example/hocket/internal/world"
)

const (
	threeLinears = `mesh d[2]
func f(
  %x: bf16[1, 1024], %q: bf16[2048, 1024], %k: bf16[2048, 1024], %v: bf16[2048, 1024]
) -> (bf16[1, 2048], bf16[1, 2048], bf16[1, 2048]) {
  %a = linear %x, %q
  %b = linear %x, %k
  %c = linear %x, %v
  return %a, %b, %c
}`
	gatedLinears = `mesh d[2]
func f(%x: bf16[1, 1024], %g: bf16[2048, 1024], %u: bf16[2048, 1024]) -> bf16[1, 2048] {
  %a = linear %x, %g
  %b = linear %x, %u
  %s = silu %a
  %y = mul %s, %b
  return %y
}`
)

// runLinears loads and runs a program, and returns a hash of its results. It calls the function prepared before the
// run.
func runLinears(ctx context.Context, m *hocket.Machine, program, inputs string, graph bool,
	prepared func()) (string, error) {
	p, err := hocket.Parse("linears.hkt", program)
	if err != nil {
		return "", err
	}
	model, err := m.Load(p, hocket.Binding{}, hocket.LoadOptions{Gather: true, Graph: graph})
	if err != nil {
		return "", err
	}
	defer model.Close()
	if err := model.Prepare(ctx, nil); err != nil {
		return "", err
	}
	in, err := model.RandomInputs(inputs)
	if err != nil {
		return "", err
	}
	prepared()
	r, err := model.Run(ctx, hocket.Args{In: in})
	if err != nil {
		return "", err
	}
	return r.OutputsSHA256(), nil
}

// TestPeerJoints checks linears of one operand x: either all processes compute them in one launch, or none does. If one
// process finds that one launch is slower, or has no memory to time it, all processes compute the linears one after
// another. The results must equal those of one process.
func TestPeerJoints(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long under the race detector")
	}
	const little = 64 << 20 // enough for the programs, but not for timing
	var number uint64
	odd := longtest.Drawn(t) % 2
	for _, program := range []struct {
		text    string
		linears int
		cases   []jointCase
	}{
		{threeLinears, 3, []jointCase{
			{name: "faster", ms: [2]float32{1.2, 1.4}, taken: true},
			{name: "slower for the second", ms: [2]float32{1.2, 9}},
			{name: "slower for the second, which has another algorithm", ms: [2]float32{1.2, 9},
				costs: [2][]float32{nil, {0.5}}},
			{name: "slower for the second, but for two", ms: [2]float32{1.2, 9}, two: 1.2},
			{name: "no memory for the first", ms: [2]float32{1.2, 1.2}, limit: [2]int64{little, 0}},
		}},
		{gatedLinears, 2, []jointCase{
			{name: "faster, by graph", ms: [2]float32{1.2, 1.4}, taken: true, graph: true},
			{name: "slower for the first", ms: [2]float32{9, 1.2}},
			{name: "slower for the second, by graph", ms: [2]float32{1.2, 9}, graph: true},
			{name: "no memory for the second", ms: [2]float32{1.2, 1.2}, limit: [2]int64{0, little}},
		}},
	} {
		f := fakedriver.New(t, 2)
		name := fmt.Sprint(t.Name(), program.linears)
		device.Register(device.Kind{Name: name, Open: func(*procs.World) (device.Machine, error) {
			return newMachine(system(f), Options{Kernels: f}), nil
		}})
		alone, err := hocket.Open(t.Context(), hocket.MachineOptions{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		want, err := runLinears(t.Context(), alone, program.text, "ints:1", false, func() {})
		if err = errors.Join(err, alone.Close()); err != nil {
			t.Fatal(err)
		}
		for _, c := range program.cases {
			if number++; number%2 != odd && !longtest.On() { // half of the cases
				continue
			}
			t.Run(fmt.Sprint(program.linears, " ", c.name), func(t *testing.T) {
				for rank, err := range c.run(t, program.text, program.linears, want) {
					if err != nil {
						t.Errorf("process %d: %v", rank, err)
					}
				}
			})
		}
	}
}

// jointCase holds the times of linears in one launch in each of two processes, and the memory of the processes.
type jointCase struct {
	name  string
	ms    [2]float32
	two   float32      // time of two linears in one launch; 0 for ms
	limit [2]int64     // 0 for no limit
	costs [2][]float32 // times of cuBLASLt's algorithms (see peerJob); these algorithms return zeros
	graph bool
	taken bool
}

// run runs a program with the given number of linears, and returns the errors of each process.
func (c *jointCase) run(t *testing.T, program string, linears int, want string) []error {
	jobs, inputs := alike(2, peerJob{GPUs: 2, PerGPU: 1}), "ints:1"
	if c.costs[1] != nil {
		inputs = "zeros"
	}
	for i := range jobs {
		jobs[i].AtOnce, jobs[i].Limit, jobs[i].Costs, jobs[i].Two = c.ms[i], c.limit[i], c.costs[i], c.two
	}
	return runMembers(t, jobs, func(p *peerMember) error {
		tried := 0
		got, err := runLinears(t.Context(), p.m, program, inputs, c.graph, func() {
			p.f.Mu.Lock()
			defer p.f.Mu.Unlock()
			tried = p.ran[true]
			clear(p.ran)
		})
		if err != nil {
			return err
		}
		p.f.Mu.Lock()
		defer p.f.Mu.Unlock()
		runs := map[bool]int{false: linears}
		if c.taken {
			runs = map[bool]int{true: 1}
		}
		switch {
		case (tried > 0) != (c.limit[p.rank] == 0):
			return fmt.Errorf("linears at once were tried %d times", tried)
		case !maps.Equal(p.ran, runs):
			return fmt.Errorf("launches of linears at once, and of one: %v, want %v", p.ran, runs)
		case got != want && inputs != "zeros":
			return fmt.Errorf("results are %s, of one process %s", got, want)
		}
		return nil
	})
}

// TestPeerBatches checks the two linears of a gate: either all processes compute them as one batched GEMM, or none
// does.
func TestPeerBatches(t *testing.T) {
	const program = `mesh d[2]
func f(%x: bf16[128, 1024], %g: bf16[128, 1024], %u: bf16[128, 1024]) -> bf16[128, 128] {
  %a = linear %x, %g
  %b = linear %x, %u
  %s = silu %a
  %y = mul %s, %b
  return %y
}`
	for _, c := range []struct {
		name  string
		batch [2]float32 // time of a batched GEMM in each process, in milliseconds; a single product takes 1
		want  int        // number of products that are computed separately
	}{
		{"faster", [2]float32{1.5, 1.2}, 1},
		{"slower for the second", [2]float32{1.5, 3}, 2},
		{"slower for the first", [2]float32{3, 1.5}, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			jobs := alike(2, peerJob{GPUs: 2, PerGPU: 1, Costs: []float32{1}})
			for i := range jobs {
				jobs[i].Batch = c.batch[i]
			}
			for rank, err := range runMembers(t, jobs, func(p *peerMember) error {
				before := 0
				if _, err := runLinears(t.Context(), p.m, program, "zeros", false, func() {
					p.f.Mu.Lock()
					defer p.f.Mu.Unlock()
					before = len(p.f.LT.Runs)
				}); err != nil {
					return err
				}
				p.f.Mu.Lock()
				defer p.f.Mu.Unlock()
				if got := p.f.LT.Runs[before:]; before == 0 || len(got) != c.want || (got[0].Shifts[0] > 0) != (c.want == 1) {
					return fmt.Errorf("%d products were computed, %+v, and %d in trials; want %d", len(got), got, before, c.want)
				}
				return nil
			}) {
				if err != nil {
					t.Errorf("process %d: %v", rank, err)
				}
			}
		})
	}
}

// TestPeerOwnProducts checks that processes can agree on hocket's kernel for few rows: all use the algorithm that the
// first process found fastest.
func TestPeerOwnProducts(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long under the race detector")
	}
	const program = `mesh d[2]
func f(%x: bf16[64, 1024], %w: bf16[2048, 1024]) -> bf16[64, 2048] {
  %y = linear %x, %w
  return %y
}`
	slow, fast := []float32{3, 4}, []float32{3, 0.5} // hocket's kernel takes 1
	for _, c := range []struct {
		name  string
		costs [2][]float32
		own   int
	}{
		{"the kernel", [2][]float32{slow, fast}, 1},
		{"an algorithm", [2][]float32{fast, slow}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			jobs := alike(2, peerJob{GPUs: 2, PerGPU: 1, AtOnce: 1})
			for i := range jobs {
				jobs[i].Costs = c.costs[i]
			}
			for rank, err := range runMembers(t, jobs, func(p *peerMember) error {
				before, tried := 0, 0
				if _, err := runLinears(t.Context(), p.m, program, "ints:1", false, func() {
					p.f.Mu.Lock()
					defer p.f.Mu.Unlock()
					before, tried = len(p.f.LT.Runs), p.ran[false]
					clear(p.ran)
				}); err != nil {
					return err
				}
				p.f.Mu.Lock()
				defer p.f.Mu.Unlock()
				ran, by := p.ran[false], p.f.LT.Runs[before:]
				if tried == 0 || before == 0 || ran != c.own || len(by) != 1-c.own || c.own == 0 && by[0].Algo != 2 {
					return fmt.Errorf("hocket's kernel ran %d times, and in trials %d times; algorithms %v, in trials %d times",
						ran, tried, by, before)
				}
				return nil
			}) {
				if err != nil {
					t.Errorf("process %d: %v", rank, err)
				}
			}
		})
	}
}
