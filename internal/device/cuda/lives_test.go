package cuda

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/longtest"
	procs "hocket.example/hocket/internal/world"
)

// A life opens a machine on the fake driver, runs a program, and closes the machine. Some library call fails meanwhile.
type life struct {
	name, text string
	gpus       int
	opts       Options
	load       hocket.LoadOptions
	nccl       bool
	products   bool // products are computed by a fake cuBLASLt, which only records its calls
	meets      bool // collectives are computed by kernels that are only recorded
	apart      func(a, b int32) bool
	in         []map[string]*hocket.Tensor // inputs of each run, created once
}

const (
	livesGather = `dim T = 8
mesh tp[2]
func f(%x: f32[T/tp, 16], %w: f32[4/tp, 16]) -> f32[T, 4/tp] {
  %y = linear %x, %w
  return %y
}
`
	livesSum = `mesh tp[2]
func f(%x: f32[64, 8/tp]) -> f32[64] {
  %y = sum %x, axis=1
  return %y
}
`
	livesLarge = `mesh tp[2]
func f(%x: f32[131072/tp]) -> f32[65536] {
  %y = alloc f32[65536]
  all_reduce %x into %y, over=tp, op=sum
  return %y
}
`
	livesPush = `mesh tp[2]
func f(%x: f32[16/tp]) -> f32[16] {
  let %n = size(tp)
  let %r = rank(tp)
  %push = stream
  %ready = event
  %here = counter[size(tp)]
  %all = alloc f32[16] symmetric
  %y = alloc f32[16]
  barrier over=tp
  %mine = chunk %all, axis=0, %r of %n
  copy %x into %mine
  record %ready
  on %push {
    wait %ready
    for %i in 1..%n {
      let %d = (%r + %i) mod %n
      put %mine into %mine at tp[%d]
      signal %here[%r] at tp[%d]
    }
  }
  for %j in 0..%n {
    if %j != %r {
      wait %here[%j] >= 1
    }
  }
  add %all, %all into %y
  wait %push
  return %y
}
`
)

// lives returns the programs.
func lives() []*life {
	graph, exchange, nccl := hocket.LoadOptions{Graph: true}, hocket.LoadOptions{Strategy: "exchange"}, hocket.LoadOptions{Algorithm: ncclName}
	ncclGraph := nccl
	ncclGraph.Graph = true
	list := []*life{
		{name: "call by call", text: livesGather, gpus: 2},
		{name: "by graph", text: livesGather, gpus: 2, load: graph},
		{name: "exchange", text: livesGather, gpus: 2, load: exchange},
		{name: "explicit", text: livesPush, gpus: 2},
		{name: "explicit by graph", text: livesPush, gpus: 2, load: graph},
		{name: "one GPU", text: livesPush, gpus: 1, opts: Options{RanksPerGPU: 2}, load: graph},
		{name: "apart", text: livesPush, gpus: 2, apart: all},
		{name: "apart by graph", text: livesPush, gpus: 2, apart: all, load: graph},
		{name: "NCCL", text: livesSum, gpus: 2, nccl: true, load: nccl},
		{name: "NCCL by graph", text: livesSum, gpus: 2, nccl: true, load: ncclGraph},
		{name: "products", text: products, gpus: 1, products: true},
		{name: "products by graph", text: products, gpus: 1, products: true, load: graph},
	}
	for _, algo := range []string{"pull", "lamport", "few", "lamport-host"} {
		text := livesSum
		if algo == "few" || algo == "lamport-host" { // these algorithms refuse smaller data
			text = livesLarge
		}
		list = append(list, &life{name: algo, text: text, gpus: 2, meets: true, load: hocket.LoadOptions{Algorithm: algo, Graph: algo == "few"}})
	}
	return list
}

func (l *life) String() string { return l.name }

// blind reports whether the results of a life have no meaning, because the fakes compute nothing.
func (l *life) blind() bool { return l.products || l.meets }

// begin creates the fake libraries of a life, and a machine that uses them.
func (l *life) begin(t *testing.T) (*fakedriver.GPU, *machine) {
	f := fakedriver.New(t, l.gpus)
	if l.apart != nil {
		f.Reach.Apart = l.apart
	}
	if l.products {
		f.LT = &fakedriver.LT{T: t, Costs: []float32{3, 1, 2}, GPU: f}
	}
	sys := system(f)
	if l.nccl {
		sys.NCCL = (&fakedriver.NCCL{GPU: f}).Open
	}
	opts := l.opts
	opts.Kernels = f
	if l.meets {
		opts.Kernels = &meetings{GPU: f}
		for _, g := range sys.GPUs {
			g.SMs = 132
		}
	}
	return f, newMachine(sys, opts)
}

// live opens the machine, runs the program three times and closes everything, even after failures. It returns the
// results of the runs, with nil for failed ones, and all errors.
func (l *life) live(ctx context.Context, t *testing.T, m *machine) (out [][]float64, errs []error) {
	t.Helper()
	keep := func(err error) bool {
		if err != nil {
			errs = append(errs, err)
		}
		return err == nil
	}
	name := "a life " + l.name
	device.Register(device.Kind{Name: name, Open: func(*procs.World) (device.Machine, error) { return m, nil }})
	machine, err := hocket.Open(ctx, hocket.MachineOptions{Name: name})
	if !keep(err) {
		return nil, errs
	}
	defer func() { keep(machine.Close()) }()
	p, err := hocket.Parse("test.hkt", l.text)
	if err != nil {
		t.Fatal(err)
	}
	model, err := machine.Load(p, hocket.Binding{}, l.load)
	if !keep(err) {
		return nil, errs
	}
	defer func() { keep(model.Close()) }()
	for run := range 3 {
		if run == len(l.in) {
			in, err := model.RandomInputs(fmt.Sprint("ints:", run))
			if err != nil {
				t.Fatal(err)
			}
			l.in = append(l.in, in)
		}
		in := maps.Clone(l.in[run])
		if w := in["w"]; w != nil { // w is a weight; the second run uses the weight that was bound for the first
			delete(in, "w")
			if run != 1 {
				if err := model.Bind("w", w); err != nil {
					t.Fatal(err)
				}
			}
		}
		r, err := model.Run(ctx, hocket.Args{In: in})
		out = append(out, nil)
		switch {
		case l.meets && isMismatch(err):
			out[run] = []float64{}
		case keep(err):
			out[run] = r.Out["y"].Floats()
		}
	}
	return out, errs
}

// callsToFail returns the numbers of the library calls that tests let fail, and the results of the runs without
// failures. The candidates are, for each distinct call stack, the first and the last call. Long tests use all
// candidates, other tests some of them. A call that makes a context current during a capture is excluded, because the
// capture would then not be ended.
func (l *life) callsToFail(t *testing.T) (calls []int, want [][]float64) {
	f, m := l.begin(t)
	places := map[uint64]*[2]int{}
	n := 0
	seed := maphash.MakeSeed()
	f.Nth = func(name string) bool {
		n++
		if name == "cuCtxSetCurrent" && len(f.Begun) > 0 {
			return false
		}
		var at [64]uintptr
		var h maphash.Hash
		h.SetSeed(seed)
		for _, pc := range at[:runtime.Callers(1, at[:])] {
			maphash.WriteComparable(&h, pc)
		}
		if p := places[h.Sum64()]; p != nil {
			p[1] = n
		} else {
			places[h.Sum64()] = &[2]int{n, n}
		}
		return false
	}
	want, errs := l.live(t.Context(), t, m)
	if len(errs) > 0 {
		t.Fatalf("errors without an injected failure: %v", errors.Join(errs...))
	}
	for _, p := range places {
		calls = append(calls, p[0], p[1])
	}
	slices.Sort(calls)
	calls = slices.Compact(calls)
	each := longtest.Of(12, 1)
	if testing.Short() {
		each = 40
	}
	few := calls[:0]
	for i := int(longtest.Seed(t) % uint64(each)); i < len(calls); i += each {
		few = append(few, calls[i])
	}
	return few, want
}

// releases reports whether something stays allocated if the call of this name fails: what the call should free, or what
// is freed in the context that it should make current.
func releases(call string) bool {
	for _, s := range []string{"cuCtxSetCurrent", "Destroy", "Free", "Release", "Unmap", "Unload", "Deregister", "Abort"} {
		if strings.Contains(call, s) {
			return true
		}
	}
	return false
}

// wrong describes the first successful run with a wrong result; empty if there is none.
func (l *life) wrong(out, want [][]float64) string {
	for i, got := range out {
		if got != nil && !l.blind() && !slices.Equal(got, want[i]) {
			return fmt.Sprintf("run %d gives %v, not %v", i, got, want[i])
		}
	}
	return ""
}

// again executes another life on a machine on which a life ended early, and returns what went wrong.
func (l *life) again(t *testing.T, m *machine, want [][]float64) string {
	t.Helper()
	out, errs := l.live(t.Context(), t, m)
	if len(errs) > 0 {
		return fmt.Sprintf("and then %v", errors.Join(errs...))
	}
	return l.wrong(out, want)
}
