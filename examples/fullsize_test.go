package examples_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"hocket.example/hocket/internal/compile"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/exec"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

// These tests run the pipelines of nvFuser's Host IR tests (all-gather and GEMM, GEMM and all-reduce, all-gather), at
// their full size, on two GPUs. Elements are small integers, so that f32 holds every partial sum, exactly, in any order
// of summation. All pipelines and strategies must give the same bits. Random elements and random projections of the
// result are compared with expected values.

// pipeline is one pipeline, with R rows, contraction K, N columns and S blocks.
type pipeline struct {
	name, text string
	strategies []string
	gather     bool // it only moves x
}

const pipelineHead = "dim S = 8\ndim R = 32768\ndim K = 32768\ndim N = 1024\nmesh tp[2]\n"

var pipelines = []pipeline{
	{name: "P3 all-gather, then product", strategies: []string{"chunked(8)", "exchange"}, text: `
func f(%a: f32[S, R/tp, K], %b: f32[K, N]) -> f32[S, R, N] {
  %g: f32[S, R, K] = reshard %a
  %y = matmul %g, %b
  return %y
}`},
	{name: "P3 product, then all-gather", text: `
func f(%a: f32[S, R/tp, K], %b: f32[K, N]) -> f32[S, R, N] {
  %p: f32[S, R/tp, N] = matmul %a, %b
  %y: f32[S, R, N] = reshard %p
  return %y
}`},
	{name: "P4 product, all-reduce", strategies: []string{"chunked(8)", "exchange"}, text: `
func f(%a: f32[S, R, K/tp], %b: f32[K/tp, N]) -> f32[S, R, N] {
  %p: f32[S, R, N] partial(tp, sum) = matmul %a, %b
  %y: f32[S, R, N] = reshard %p
  return %y
}`},
	{name: "P7 all-gather a rank at a time, product", strategies: []string{"chunked(2)", "exchange"}, text: `
func f(%a: f32[S*R/tp, K], %b: f32[K, N]) -> f32[S*R, N] {
  %g: f32[S*R, K] = reshard %a
  %y = matmul %g, %b
  return %y
}`},
	{name: "P6 all-gather by the library", gather: true, text: `
func f(%x: f32[size(tp)*2097152/tp]) -> f32[size(tp)*2097152] {
  %y: f32[size(tp)*2097152] = reshard %x
  return %y
}`},
	{name: "P6 broadcasts on streams", gather: true, text: `
func f(%x: f32[size(tp)*2097152/tp]) -> f32[size(tp)*2097152] {
  %l = local %x
  %y = alloc f32[size(tp)*2097152]
  for %i in 0..size(tp) stream(2) {
    %y.i = chunk %y, axis=0, %i of size(tp)
    broadcast %l into %y.i, over=tp, root=%i
  }
  return %y
}`},
	{name: "P6 puts on streams", gather: true, text: `
func f(%x: f32[size(tp)*2097152/tp]) -> f32[size(tp)*2097152] {
  %l = local %x
  %y = alloc f32[size(tp)*2097152] symmetric
  %own = chunk %y, axis=0, rank(tp) of size(tp)
  %here = counter[size(tp)]
  %s = stream
  barrier over=tp
  on %s { wait main }
  for %i in 0..size(tp) {
    let %d = (rank(tp) + %i) mod size(tp)
    on %s {
      put %l into %own at tp[%d]
      signal %here[rank(tp)] at tp[%d]
    }
  }
  for %k in 0..size(tp) { wait %here[%k] >= 1 }
  wait %s
  return %y
}`},
}

// TestPipelines runs small pipelines on the CPU machine, which mostly tests
// the test itself.
func TestPipelines(t *testing.T) {
	runPipelines(t, cpu.New(cpu.Options{}), map[string]int64{"S": 8, "R": 8, "K": 64, "N": 16})
}

// TestPipelinesCUDA runs the pipelines at full size, call by call and by graph, on two GPUs or on one that both ranks
// share; with -short at a sixteenth of the size.
func TestPipelinesCUDA(t *testing.T) {
	machine := gpus(t)
	const need = 24 << 30 // bytes of host memory: two copies of a and of its blocks
	if free := hostMemory(); free < need {
		t.Skipf("needs %s of host memory, %s are free", tensor.Size(need), tensor.Size(free))
	}
	dims := map[string]int64{"S": 8, "R": 4096, "K": 32768, "N": 1024}
	if testing.Short() {
		dims["R"], dims["K"] = 1024, 8192
	}
	runPipelines(t, machine(2), dims)
}

// hostMemory returns the number of bytes that the system reports as available to a process.
func hostMemory() int64 {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return math.MaxInt64
	}
	for line := range strings.Lines(string(b)) {
		var kb int64
		if n, _ := fmt.Sscanf(line, "MemAvailable: %d kB", &kb); n == 1 {
			return kb << 10
		}
	}
	return math.MaxInt64
}

func runPipelines(t *testing.T, m device.Machine, dims map[string]int64) {
	defer debug.FreeOSMemory()
	rows, k, n := dims["S"]*dims["R"], dims["K"], dims["N"]
	began := time.Now()
	p := product{rows, k, n, integers(t, "a", rows*k), integers(t, "b", k*n)}
	x := integers(t, "x", 2*2097152)
	t.Logf("inputs made in %v", time.Since(began).Round(time.Millisecond))
	var first []byte // all compute the same
	for _, pl := range pipelines {
		t.Run(pl.name, func(t *testing.T) {
			for _, strategy := range append([]string{"sequential"}, pl.strategies...) {
				pn := pl.plan(t, dims, strategy)
				for _, graph := range []bool{false, true} {
					if graph && !m.Caps().Graphs {
						continue
					}
					how := fmt.Sprintf("%s, by graph %t", strategy, graph)
					y := pl.run(t, m, pn, graph, &p, x)
					switch {
					case pl.gather && !bytes.Equal(y.Data, x.Data):
						t.Fatalf("%s: what was gathered is not x", how)
					case pl.gather:
					case first == nil:
						began := time.Now()
						if err := p.check(y); err != nil {
							t.Fatalf("%s: %v", how, err)
						}
						t.Logf("checked in %v", time.Since(began).Round(time.Millisecond))
						first = y.Data
					case !bytes.Equal(y.Data, first):
						t.Fatalf("%s: element %d is not as in the first run", how, firstDifference(y.Data, first))
					}
				}
			}
		})
	}
}

// plan plans a pipeline under a strategy.
func (pl *pipeline) plan(t *testing.T, dims map[string]int64, strategy string) *plan.Plan {
	t.Helper()
	prog, ds := ir.Parse(pl.name, pipelineHead+pl.text)
	if ds.HasErrors() {
		t.Fatal(ds.String())
	}
	info, ds := checker.Check(prog)
	if ds.HasErrors() {
		t.Fatal(ds.String())
	}
	unit, err := compile.Build(info, compile.Options{Strategy: strategy})
	if err != nil {
		t.Fatal(err)
	}
	pn, err := unit.Plan(ir.Binding{Dims: dims})
	if err != nil {
		t.Fatal(err)
	}
	return pn
}

// run runs a pipeline's plan. With graph it runs the plan twice, since the fastest form of the graph is chosen before
// the second run.
func (pl *pipeline) run(t *testing.T, m device.Machine, pn *plan.Plan, graph bool, p *product, x *tensor.Tensor) *tensor.Tensor {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	began := time.Now()
	loaded, err := exec.Load(ctx, m, pn, exec.Options{Graph: graph})
	if err != nil {
		t.Fatalf("graph %t: %v", graph, err)
	}
	prepared := time.Since(began)
	in := map[string]*tensor.Tensor{}
	for _, io := range pn.Inputs {
		from := map[string]*tensor.Tensor{"a": p.a, "b": p.b, "x": x}[io.Name]
		in[io.Name] = &tensor.Tensor{DType: ir.F32, Shape: io.Shape, Data: from.Data}
	}
	if graph {
		if _, err := loaded.Run(ctx, in); err != nil {
			t.Fatalf("graph %t: %v", graph, err)
		}
	}
	began = time.Now()
	res, err := loaded.Run(ctx, in)
	if err != nil {
		t.Fatalf("graph %t: %v", graph, err)
	}
	t.Logf("%s, graph %t: loaded in %v, run with its uploads in %v", pl.name, graph, prepared.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	if err := loaded.Close(); err != nil {
		t.Fatal(err)
	}
	for _, y := range res.Outputs {
		return y
	}
	t.Fatal("no result")
	return nil
}

// integers returns a tensor of integers from -4 to 4, which depends only on its name and shape.
func integers(t *testing.T, name string, n int64) *tensor.Tensor {
	t.Helper()
	x, err := tensor.New(ir.F32, []int64{n})
	if err != nil {
		t.Fatal(err)
	}
	var table [9]uint32
	for i := range table {
		table[i] = math.Float32bits(float32(i - 4))
	}
	inParallel(n, func(lo, hi int64) {
		r := rand.NewPCG(uint64(lo), uint64(len(name))<<8|uint64(name[0]))
		for i := lo; i < hi; {
			for bits := r.Uint64(); bits > 1<<40 && i < hi; bits /= 9 {
				binary.LittleEndian.PutUint32(x.Data[4*i:], table[bits%9])
				i++
			}
		}
	})
	return x
}

// inParallel divides [0, n) into parts and runs f on them concurrently. The parts are the same on every machine.
func inParallel(n int64, f func(lo, hi int64)) {
	const parts = 64
	var wg sync.WaitGroup
	busy := make(chan bool, runtime.GOMAXPROCS(0))
	for i := range int64(parts) {
		wg.Add(1)
		busy <- true
		go func() {
			defer func() { <-busy; wg.Done() }()
			f(n*i/parts, n*(i+1)/parts)
		}()
	}
	wg.Wait()
}

// product is the matrix product y = a·b, where a is a rows×k and b a k×n matrix of integers.
type product struct {
	rows, k, n int64
	a, b       *tensor.Tensor
}

func at(x *tensor.Tensor, i int64) float64 {
	return float64(math.Float32frombits(binary.LittleEndian.Uint32(x.Data[4*i:])))
}

// check recomputes a thousand elements, and compares y·v with a·(b·v) for random
// vectors v of integers (Freivalds, 1977). A wrong element is missed with
// probability 1/7 for each v. In float64 all of this is exact.
func (p *product) check(y *tensor.Tensor) error {
	if y.Len() != p.rows*p.n {
		return fmt.Errorf("y has %d elements", y.Len())
	}
	rng := rand.New(rand.NewPCG(6, 2))
	for range 1000 {
		i, j := rng.Int64N(p.rows), rng.Int64N(p.n)
		sum := 0.0
		for k := range p.k {
			sum += at(p.a, i*p.k+k) * at(p.b, k*p.n+j)
		}
		if got := at(y, i*p.n+j); got != sum {
			return fmt.Errorf("y[%d, %d] is %v, not %v", i, j, got, sum)
		}
	}
	for range 3 {
		v := make([]float64, p.n)
		for j := range v {
			v[j] = float64(rng.IntN(7) - 3)
		}
		bv := make([]float64, p.k)
		inParallel(p.k, func(lo, hi int64) { times(p.b, p.n, v, bv, lo, hi) })
		want, got := make([]float64, p.rows), make([]float64, p.rows)
		inParallel(p.rows, func(lo, hi int64) {
			times(p.a, p.k, bv, want, lo, hi)
			times(y, p.n, v, got, lo, hi)
		})
		for i := range want {
			if got[i] != want[i] {
				return fmt.Errorf("row %d of y·v is %v, of a·(b·v) %v", i, got[i], want[i])
			}
		}
	}
	return nil
}

// TestProductCheck checks that check detects a single wrong element, by projections if the element is not among the
// recomputed ones.
func TestProductCheck(t *testing.T) {
	p := product{512, 8, 512, integers(t, "a", 512*8), integers(t, "b", 8*512)}
	y := integers(t, "y", p.rows*p.n)
	for i := range p.rows {
		for j := range p.n {
			sum := 0.0
			for k := range p.k {
				sum += at(p.a, i*p.k+k) * at(p.b, k*p.n+j)
			}
			binary.LittleEndian.PutUint32(y.Data[4*(i*p.n+j):], math.Float32bits(float32(sum)))
		}
	}
	if err := p.check(y); err != nil {
		t.Fatal(err)
	}
	y.Data[4*(100*p.n+200)+2] ^= 0x40
	if err := p.check(y); err == nil || !strings.Contains(err.Error(), "row 100 of") {
		t.Errorf("got %v", err)
	}
}

// times computes elements lo to hi of the product of the matrix x and the vector v.
func times(x *tensor.Tensor, cols int64, v, out []float64, lo, hi int64) {
	for i := lo; i < hi; i++ {
		sum := 0.0
		row := x.Data[4*i*cols : 4*(i+1)*cols]
		for j := range v {
			sum += float64(math.Float32frombits(binary.LittleEndian.Uint32(row[4*j:]))) * v[j]
		}
		out[i] = sum
	}
}

func firstDifference(a, b []byte) int {
	for i := range a {
		if i >= len(b) || a[i] != b[i] {
			return i / 4
		}
	}
	return len(a) / 4
}
