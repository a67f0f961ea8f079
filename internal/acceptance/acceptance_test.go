// Package acceptance_test runs whole programs and checks their results: acceptance cases, nvFuser's
// dumps, random programs, frozen results, and soak tests.
package acceptance_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket"
	_ "hocket.example/hocket/cuda"
	"hocket.example/hocket/internal/compile"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

// The names of the acceptance cases are the ids of the tests of nvFuser that they reproduce. The expected results of
// the cases are computed in this file from the inputs, in plain loops, independent of the evaluator.

// root is the path from this package to the repository's root.
const root = "../.."

// tens is a tensor of float64s in row-major order.
type tens struct {
	shape []int64
	v     []float64
}

func newTens(shape ...int64) tens {
	n := int64(1)
	for _, e := range shape {
		n *= e
	}
	return tens{shape, make([]float64, n)}
}

// ints returns small integers that depend on the index in an irregular way, so that swapped axes
// and stale buffers give wrong results. Different salts give different values.
func ints(salt int, bound int, shape ...int64) tens {
	t := newTens(shape...)
	for i := range t.v {
		h := uint64(i*2654435761+salt*40503+12345) * 0x9e3779b97f4a7c15
		t.v[i] = float64(int(h>>40)%(2*bound+1) - bound)
	}
	return t
}

func arange(from float64, shape ...int64) tens {
	t := newTens(shape...)
	for i := range t.v {
		t.v[i] = from + float64(i)
	}
	return t
}

// at returns the element at the given indices.
func (t tens) at(ix ...int64) float64 { return t.v[t.flat(ix)] }

func (t tens) set(v float64, ix ...int64) { t.v[t.flat(ix)] = v }

func (t tens) flat(ix []int64) int64 {
	k := int64(0)
	for d, i := range ix {
		k = k*t.shape[d] + i
	}
	return k
}

// sumAxis returns the sum over dimension d.
func (t tens) sumAxis(d int) tens {
	outer, inner := int64(1), int64(1)
	var shape []int64
	for i, e := range t.shape {
		switch {
		case i < d:
			outer *= e
		case i > d:
			inner *= e
		}
		if i != d {
			shape = append(shape, e)
		}
	}
	out := newTens(shape...)
	for o := range outer {
		for k := range t.shape[d] {
			for i := range inner {
				out.v[o*inner+i] += t.v[(o*t.shape[d]+k)*inner+i]
			}
		}
	}
	return out
}

// linear returns x[…, K]·w[N, K]ᵀ + b[N]; b may be empty.
func linear(x, w, b tens) tens {
	k, n := w.shape[1], w.shape[0]
	rows := int64(len(x.v)) / k
	out := newTens(append(append([]int64{}, x.shape[:len(x.shape)-1]...), n)...)
	for r := range rows {
		for j := range n {
			s := 0.0
			for i := range k {
				s += x.v[r*k+i] * w.v[j*k+i]
			}
			if len(b.v) > 0 {
				s += b.v[j]
			}
			out.v[r*n+j] = s
		}
	}
	return out
}

func relu(t tens) tens {
	out := newTens(t.shape...)
	for i, v := range t.v {
		out.v[i] = math.Max(v, 0)
	}
	return out
}

// testCase is a program, with the inputs and expected results of several runs.
type testCase struct {
	src  string
	b    hocket.Binding
	runs []map[string]tens
	want func(in map[string]tens) tens
}

// check executes the runs of a case back to back: on concurrent streams, and under many random schedules of the
// streams. All results must be exact.
func (c testCase) check(t *testing.T) *plan.Plan {
	t.Helper()
	p, err := hocket.Parse("case.hkt", c.src)
	if err != nil {
		t.Fatalf("%v\n%s", err, c.src)
	}
	if *onCUDA {
		c.checkOnCUDA(t, p)
		return planOf(t, c.src, c.b)
	}
	if w := ofWorld(t); w != nil {
		name := frozenName(t)
		if reports := runInProcess(t, w, p, c.b, func(m *hocket.Model) []hocket.Args { return c.batch(t, m) }); reports != nil {
			c.compare(t, "processes", reports)
			wantFrozen(t, name, "processes", reports)
		}
		return planOf(t, c.src, c.b)
	}
	ctx := context.Background()
	m, err := hocket.Open(ctx, hocket.MachineOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	model, err := m.Load(p, c.b, hocket.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	batch := c.batch(t, model)
	reports, err := model.RunBatch(ctx, batch)
	if err != nil {
		t.Fatal(err)
	}
	name := frozenName(t)
	c.compare(t, "concurrent", reports)
	wantFrozen(t, name, "concurrent", reports)
	schedules := 20
	if testing.Short() {
		schedules = 4
	}
	err = model.Explore(ctx, batch, hocket.ExploreOptions{Schedules: schedules},
		func(seed int64, rs []*hocket.Report) error {
			c.compare(t, fmt.Sprintf("schedule %d", seed), rs)
			wantFrozen(t, name, fmt.Sprintf("schedule %d", seed), rs)
			return nil
		})
	if err != nil {
		t.Fatal(err)
	}
	return planOf(t, c.src, c.b)
}

// onCUDA runs the cases on GPUs; HOCKET_RANKS_PER_GPU ranks share one GPU.
var onCUDA = flag.Bool("cuda", false, "run the acceptance cases on GPUs")

// checkOnCUDA executes the runs call by call and as a graph.
func (c testCase) checkOnCUDA(t *testing.T, p *hocket.Program) {
	t.Helper()
	m, err := hocket.Open(t.Context(), hocket.MachineOptions{Name: "cuda"})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for _, graph := range []bool{false, true} {
		model, err := m.Load(p, c.b, hocket.LoadOptions{Graph: graph})
		if err != nil {
			t.Fatal(err)
		}
		batch := c.batch(t, model)
		for range 2 {
			reports, err := model.RunBatch(t.Context(), batch)
			if graph && errors.Is(err, hocket.ErrUnsupported) {
				t.Log(err)
				break
			}
			if err != nil {
				t.Fatalf("graph %v: %v", graph, err)
			}
			c.compare(t, fmt.Sprintf("graph %v", graph), reports)
		}
		if err := model.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func (c testCase) batch(t *testing.T, model *hocket.Model) []hocket.Args {
	t.Helper()
	ports, err := model.Inputs(nil)
	if err != nil {
		t.Fatal(err)
	}
	var batch []hocket.Args
	for _, in := range c.runs {
		args := hocket.Args{In: map[string]*hocket.Tensor{}}
		for _, p := range ports {
			x, err := hocket.FromFloats(p.DType, in[p.Name].v, p.Shape...)
			if err != nil {
				t.Fatalf("%%%s: %v", p.Name, err)
			}
			args.In[p.Name] = x
		}
		batch = append(batch, args)
	}
	return batch
}

func (c testCase) compare(t *testing.T, where string, reports []*hocket.Report) {
	t.Helper()
	for i, r := range reports {
		want := c.want(c.runs[i])
		got := r.Out[r.OutNames[0]]
		if fmt.Sprint(got.Shape) != fmt.Sprint(want.shape) {
			t.Fatalf("%s, run %d: shape %v, want %v", where, i, got.Shape, want.shape)
		}
		for k, v := range got.Floats() {
			if v != want.v[k] {
				t.Fatalf("%s, run %d: element %d is %v, want %v", where, i, k, v, want.v[k])
			}
		}
	}
}

// planOf plans a program, for tests that count commands or buffers.
func planOf(t *testing.T, src string, b hocket.Binding) *plan.Plan {
	t.Helper()
	p, err := hocket.Parse("case.hkt", src)
	if err != nil {
		t.Fatal(err)
	}
	info, ds := checker.Check(p.IR())
	if ds.HasErrors() {
		t.Fatal(ds)
	}
	u, err := compile.Build(info, compile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	pl, err := u.Plan(ir.Binding{Func: b.Func, Ranks: b.Ranks, Dims: b.Dims})
	if err != nil {
		t.Fatal(err)
	}
	return pl
}

// fresh returns the inputs of n runs of a program with the single input %x.
func fresh(n, bound int, shape ...int64) []map[string]tens {
	var runs []map[string]tens
	for i := range n {
		runs = append(runs, map[string]tens{"x": ints(i, bound, shape...)})
	}
	return runs
}

func same(in map[string]tens) tens { return in["x"] }

// count returns the number of a rank's commands for which f returns true.
func count(p *plan.Plan, rank int32, f func(*plan.Cmd) bool) int {
	n := 0
	for i := range p.Cmds {
		if p.Cmds[i].Rank == rank && f(&p.Cmds[i]) {
			n++
		}
	}
	return n
}

// communications counts a rank's commands that involve other ranks.
func communications(p *plan.Plan, rank int32) int {
	return count(p, rank, func(c *plan.Cmd) bool {
		return c.Kind == plan.Collective || c.Kind == plan.Group || c.Kind == plan.Copy && c.Peer >= 0
	})
}

func TestAcceptanceReshards(t *testing.T) {
	for d := int64(1); d <= 4; d++ {
		main := fmt.Sprintf("dim D = %d\nmesh d[D]\n", d)
		cases := map[string]testCase{
			"C1": {src: `func f(%x: f32[D/d, 4]) -> f32[D, 4] { return %x }`, runs: fresh(2, 9, d, 4), want: same},
			"C2": {src: `func f(%x: f32[4 * D/d]) -> f32[4 * D] { return %x }`, runs: fresh(2, 9, 4*d), want: same},
			"C6": {src: "mesh z[1] = {0}\nfunc f(%x: f32[4] @z) -> f32[4] { return %x }", runs: fresh(2, 9, 4),
				want: same},
			"C7 reduce": {src: "mesh z[1] = {0}\n" + `func f(%x: f32[D/d, 4]) -> f32[4] @z {
				%y = sum %x, axis=0
				return %y
			}`, runs: fresh(2, 9, d, 4), want: func(in map[string]tens) tens { return in["x"].sumAxis(0) }},
			"C7 all-reduce": {src: `func f(%x: f32[D/d, 4]) -> f32[4] {
				%y = sum %x, axis=0
				return %y
			}`, runs: fresh(2, 9, d, 4), want: func(in map[string]tens) tens { return in["x"].sumAxis(0) }},
			"C8": {src: `func f(%x: f32[2 * D, 3 * D/d]) -> f32[2 * D/d] {
				%y = sum %x, axis=1
				return %y
			}`, runs: fresh(2, 9, 2*d, 3*d), want: func(in map[string]tens) tens { return in["x"].sumAxis(1) }},
			"C9": {src: `func f(%x: i32[5, 3 * D/d, 7 * D]) -> i32[5, 7 * D/d] {
				%y = sum %x, axis=1
				return %y
			}`, runs: fresh(2, 1, 5, 3*d, 7*d), want: func(in map[string]tens) tens { return in["x"].sumAxis(1) }},
			"C10 all-reduce": {src: `func f(%x: f32[5, 3 * D/d]) -> f32[5] {
				%y = sum %x, axis=1
				return %y
			}`, runs: fresh(2, 9, 5, 3*d), want: func(in map[string]tens) tens { return in["x"].sumAxis(1) }},
			"C10 all-gather": {src: `func f(%x: f32[5, 3 * D/d]) -> f32[5, 3 * D] { return %x }`,
				runs: fresh(2, 9, 5, 3*d), want: same},
			"C10 column-major": {src: `func f(%x: f32[3 * D/d, 5]) -> f32[5, 3 * D] {
				%y = transpose %x
				return %y
			}`, runs: fresh(2, 9, 3*d, 5), want: transposed},
			"C10 column-major sum": {src: `func f(%x: f32[3 * D/d, 5]) -> f32[5] {
				%t = transpose %x
				%y = sum %t, axis=1
				return %y
			}`, runs: fresh(2, 9, 3*d, 5), want: func(in map[string]tens) tens { return in["x"].sumAxis(0) }},
			"C11 there": {src: `func f(%x: f16[D/d, 3 * D]) -> f16[D, 3 * D/d] { return %x }`,
				runs: fresh(2, 9, d, 3*d), want: same},
			"C11 back": {src: `func f(%x: f16[D, 3 * D/d]) -> f16[D/d, 3 * D] { return %x }`,
				runs: fresh(2, 9, d, 3*d), want: same},
		}
		for _, id := range slices.Sorted(maps.Keys(cases)) { // all processes must run the cases in the same order
			c := cases[id]
			t.Run(fmt.Sprintf("%s/%d", id, d), func(t *testing.T) {
				c.src = main + c.src
				c.check(t)
			})
		}
	}
	t.Run("C12", func(t *testing.T) {
		for _, d := range []int64{2, 4, 6} {
			testCase{
				src:  fmt.Sprintf("dim Y = %d\nmesh y[Y] x[2]\nfunc f(%%x: f32[2 * Y/y, 6/x]) -> f32[2 * Y/y, 6] { return %%x }", d/2),
				runs: fresh(2, 9, d, 6), want: same,
			}.check(t)
		}
	})
}

func transposed(in map[string]tens) tens {
	x := in["x"]
	y := newTens(x.shape[1], x.shape[0])
	for i := range x.shape[0] {
		for j := range x.shape[1] {
			y.set(x.at(i, j), j, i)
		}
	}
	return y
}

// TestAcceptanceSubmeshes moves values between meshes, with and without common ranks.
func TestAcceptanceSubmeshes(t *testing.T) {
	list := func(ranks []int) string { return strings.Trim(fmt.Sprint(ranks), "[]") }
	for _, c := range []struct {
		id       string
		from, to []int
		src      string
	}{
		{"C3", []int{0, 1}, []int{0}, "f32[A/a, 4] @a) -> f32[A, 4] @b"},
		{"C3", []int{0, 1}, []int{1}, "f32[A/a, 4] @a) -> f32[A, 4] @b"},
		{"C3", []int{1, 2}, []int{0, 2}, "f32[A/a, 4] @a) -> f32[A, 4] @b"},
		{"C4", []int{0}, []int{0, 1}, "f32[B, 4] @a) -> f32[B/b, 4] @b"},
		{"C4", []int{1}, []int{0, 1}, "f32[B, 4] @a) -> f32[B/b, 4] @b"},
		{"C4", []int{0, 2}, []int{1, 2}, "f32[B, 4] @a) -> f32[B/b, 4] @b"},
		{"C5", []int{0}, []int{1}, "f32[A/a, 4] @a) -> f32[A/b, 4] @b"},
		{"C5", []int{1}, []int{0}, "f32[A/a, 4] @a) -> f32[A/b, 4] @b"},
		{"C5", []int{1, 2}, []int{0, 1}, "f32[A/a, 4] @a) -> f32[A/b, 4] @b"},
		{"C5", []int{1, 2}, []int{1, 0}, "f32[A/a, 4] @a) -> f32[A/b, 4] @b"},
	} {
		t.Run(fmt.Sprintf("%s/%v-%v", c.id, c.from, c.to), func(t *testing.T) {
			n := int64(len(c.from))
			if c.id == "C4" {
				n = int64(len(c.to))
			}
			src := fmt.Sprintf("dim A = %d\ndim B = %d\nmesh a[%d] = {%s}\nmesh b[%d] = {%s}\nfunc f(%%x: %s { return %%x }",
				len(c.from), len(c.to), len(c.from), list(c.from), len(c.to), list(c.to), c.src)
			testCase{src: src, runs: fresh(2, 9, n, 4), want: same}.check(t)
		})
	}
}

// TestAcceptanceTransfers runs the cases C13 to C15: rings of gets, puts, sends and receives. The test executes many
// runs back to back, with values that identify rank and run.
func TestAcceptanceTransfers(t *testing.T) {
	ring := func(runs int, dtype string, n, d int64, body string) testCase {
		c := testCase{src: fmt.Sprintf(`dim D = %d
mesh d[D]
func f(%%x: %s[D/d, %d]) -> %s[D/d, %d] {
  let %%n = size(d)
  let %%r = rank(d)
  let %%right = (%%r + 1) mod %%n
  let %%left = (%%r + %%n - 1) mod %%n
  %%y = alloc %s[1, %d]
%s
  return %%y
}`, d, dtype, n, dtype, n, dtype, n, body)}
		for rep := range runs {
			x := newTens(d, n)
			for r := range d {
				for i := range n {
					x.set(float64(i+10*int64(rep)+100*r), r, i)
				}
			}
			c.runs = append(c.runs, map[string]tens{"x": x})
		}
		c.want = func(in map[string]tens) tens { // row r is the left neighbour's row
			y := newTens(d, n)
			for r := range d {
				for i := range n {
					y.set(in["x"].at((r+d-1)%d, i), r, i)
				}
			}
			return y
		}
		return c
	}
	get := func(dtype string, n int64) string {
		return fmt.Sprintf(`  %%ready = counter
  %%b = alloc %s[1, %d] symmetric
  barrier over=d
  copy %%x into %%b
  signal %%ready at d[%%right]
  wait %%ready >= 1
  get %%b at d[%%left] into %%y`, dtype, n)
	}
	put := func(dtype string, n int64) string {
		return fmt.Sprintf(`  %%here = counter
  %%b = alloc %s[1, %d] symmetric
  barrier over=d
  put %%x into %%b at d[%%right]
  signal %%here at d[%%right]
  wait %%here >= 1
  copy %%b into %%y`, dtype, n)
	}
	for d := int64(1); d <= 4; d++ {
		t.Run(fmt.Sprintf("C13/get/%d", d), func(t *testing.T) { ring(32, "f32", 8, d, get("f32", 8)).check(t) })
		t.Run(fmt.Sprintf("C13/put/%d", d), func(t *testing.T) { ring(32, "f32", 8, d, put("f32", 8)).check(t) })
		t.Run(fmt.Sprintf("C14/%d", d), func(t *testing.T) { ring(10, "i32", 4, d, put("i32", 4)).check(t) })
		t.Run(fmt.Sprintf("C15/coalesced/%d", d), func(t *testing.T) {
			ring(3, "f32", 1024, d, "  group {\n    send %x to d[%right]\n    recv %y from d[%left]\n  }").check(t)
		})
	}
	t.Run("C15/ordered", func(t *testing.T) {
		// Even ranks send first, odd ranks receive first, so no group is needed.
		ring(3, "f32", 1024, 4, `  if %r mod 2 == 0 {
    send %x to d[%right]
    recv %y from d[%left]
  } else {
    recv %y from d[%left]
    send %x to d[%right]
  }`).check(t)
	})
	t.Run("C15/all send first", func(t *testing.T) {
		c := ring(1, "f32", 16, 4, "  send %x to d[%right]\n  recv %y from d[%left]")
		p, err := hocket.Parse("case.hkt", c.src)
		if err != nil {
			t.Fatal(err)
		}
		v, err := hocket.Check(p, c.b)
		if err != nil || v.Kind != hocket.Refuted || !strings.Contains(v.Diagnostics.String(), "deadlock") {
			t.Fatalf("verdict %v, %v, %v; want refuted with a deadlock", v.Kind, v.Diagnostics, err)
		}
	})
}

// TestAcceptanceStreams runs the cases P1 and P2: collectives inside a loop over streams.
func TestAcceptanceStreams(t *testing.T) {
	for d := int64(1); d <= 4; d++ {
		head := fmt.Sprintf("dim D = %d\nmesh d[D]\n", d)
		t.Run(fmt.Sprintf("P1/%d", d), func(t *testing.T) {
			testCase{src: head + `func f(%x: f32[4, D/d]) -> f32[4, D] {
  %y = alloc f32[4, D]
  for %i in 0..4 stream(2) {
    %xi = select %x, axis=0, index=%i
    %yi = select %y, axis=0, index=%i
    all_gather %xi into %yi, over=d
  }
  return %y
}`, runs: fresh(3, 9, 4, d), want: same}.check(t)
		})
		t.Run(fmt.Sprintf("P2/all-reduce/%d", d), func(t *testing.T) {
			testCase{src: head + `func f(%x: f32[4, D/d, 8]) -> f32[4, 8] {
  %y = alloc f32[4, 8]
  for %i in 0..4 stream(3) {
    %xi = select %x, axis=0, index=%i
    %yi = select %y, axis=0, index=%i
    %p = sum %xi, axis=0
    all_reduce %p into %yi, over=d, op=sum
  }
  return %y
}`, runs: fresh(3, 9, 4, d, 8), want: func(in map[string]tens) tens { return in["x"].sumAxis(1) }}.check(t)
		})
		t.Run(fmt.Sprintf("P2/reduce-scatter/%d", d), func(t *testing.T) {
			testCase{src: head + `func f(%x: f32[4, D/d, D, 8]) -> f32[4, D/d, 8] {
  %y = alloc f32[4, D/d, 8]
  for %i in 0..4 stream(2) {
    %xi = select %x, axis=0, index=%i
    %yi = select %y, axis=0, index=%i
    %p = sum %xi, axis=0
    reduce_scatter %p into %yi, over=d, op=sum
  }
  return %y
}`, runs: fresh(3, 9, 4, d, d, 8), want: func(in map[string]tens) tens { return in["x"].sumAxis(1) }}.check(t)
		})
	}
}

// runsOf returns n runs with fresh values of several inputs.
func runsOf(n, bound int, shapes map[string][]int64) []map[string]tens {
	var runs []map[string]tens
	for i := range n {
		in := map[string]tens{}
		for name, s := range shapes {
			in[name] = ints(i*7+int(name[0]), bound, s...)
		}
		runs = append(runs, in)
	}
	return runs
}

func xw(in map[string]tens) tens { return linear(in["x"], in["w"], in["b"]) }

func TestAcceptanceLinear(t *testing.T) {
	t.Run("P10", func(t *testing.T) {
		pl := testCase{src: `mesh d[2]
func f(%x: bf16[6, 8/d], %w: bf16[2, 8/d]) -> bf16[6, 2] {
  %y = alloc bf16[6, 2]
  for %i in 0..3 stream(3) {
    %xi = chunk %x, axis=0, %i of 3
    %yi = chunk %y, axis=0, %i of 3
    %q = alloc bf16[2, 2]
    linear %xi, %w into %q
    all_reduce %q into %yi, over=d, op=sum
  }
  return %y
}`, runs: runsOf(4, 1, map[string][]int64{"x": {6, 8}, "w": {2, 8}}), want: xw}.check(t)
		gemms := count(pl, 0, func(c *plan.Cmd) bool {
			return c.Op == ir.OpLinear && fmt.Sprint(c.Ins[0].Shape, c.Ins[1].Shape) == "[2 4] [2 4]"
		})
		if gemms != 3 {
			t.Errorf("%d GEMMs of [2, 4]·[4, 2], want 3", gemms)
		}
	})
	columns := map[string][]int64{"x": {24, 2}, "w": {8, 2}}
	for _, d := range []int64{1, 2, 4} {
		head := fmt.Sprintf("dim D = %d\nmesh d[D]\nfunc f(%%x: bf16[24/d, 2], %%w: bf16[8/d, 2]) -> bf16[24, 8/d] {\n",
			d)
		t.Run(fmt.Sprintf("P11/permute/%d", d), func(t *testing.T) {
			pl := testCase{src: head + `  let %n = size(d)
  let %r = rank(d)
  %all = alloc bf16[24, 2]
  %y = alloc bf16[24, 8/d]
  %own = chunk %all, axis=0, %r of %n
  copy %x into %own
  for %i in 0..%n {
    let %j = (%r + %n - %i) mod %n
    %xj = chunk %all, axis=0, %j of %n
    %yj = chunk %y, axis=0, %j of %n
    linear %xj, %w into %yj
    if %i < %n - 1 {
      %next = chunk %all, axis=0, (%j + %n - 1) mod %n of %n
      permute %xj into %next, over=d, to=(%r + 1) mod %n, from=(%r + %n - 1) mod %n
    }
  }
  return %y
}`, runs: runsOf(3, 4, columns), want: xw}.check(t)
			if n := communications(pl, 0); n != int(d)-1 {
				t.Errorf("%d transfers, want %d", n, d-1)
			}
		})
		t.Run(fmt.Sprintf("P11/broadcast/%d", d), func(t *testing.T) {
			pl := testCase{src: head + `  %y = alloc bf16[24, 8/d]
  for %j in 0..size(d) stream(2) {
    %xj = alloc bf16[24/d, 2]
    broadcast %x into %xj, over=d, root=%j
    %yj = chunk %y, axis=0, %j of size(d)
    linear %xj, %w into %yj
  }
  return %y
}`, runs: runsOf(3, 4, columns), want: xw}.check(t)
			if n := communications(pl, 0); n != int(d) {
				t.Errorf("%d broadcasts, want %d", n, d)
			}
		})
	}
	for d := int64(1); d <= 4; d++ {
		t.Run(fmt.Sprintf("P15/%d", d), func(t *testing.T) {
			pl := testCase{src: fmt.Sprintf(`dim D = %d
mesh d[D]
func f(%%x: bf16[3, 5 * D, 7 * D/d], %%w: bf16[7, 7 * D/d], %%b: bf16[7]) -> bf16[3, 5 * D/d, 7] {
  %%y = linear %%x, %%w, %%b
  return %%y
}`, d), runs: runsOf(3, 2, map[string][]int64{"x": {3, 5 * d, 7 * d}, "w": {7, 7 * d}, "b": {7}}), want: xw}.check(t)
			if n := communications(pl, 0); d > 1 && n != 1 {
				t.Errorf("%d collectives, want exactly one", n)
			}
		})
	}
	for _, d := range []int64{2, 4, 6} {
		t.Run(fmt.Sprintf("P16/%d", d), func(t *testing.T) {
			testCase{src: fmt.Sprintf(`dim D = %d
dim DP = %d
mesh dp[DP] tp[2]
func f(%%x: f32[7 * DP/dp, 5, 3], %%u: f32[12/tp, 3], %%v: f32[3, 12/tp]) -> f32[7 * DP/dp, 5, 3] {
  %%h = linear %%x, %%u
  %%g = relu %%h
  %%y = linear %%g, %%v
  return %%y
}`, d, d/2), runs: runsOf(2, 2, map[string][]int64{"x": {7 * d / 2, 5, 3}, "u": {12, 3}, "v": {3, 12}}),
				want: func(in map[string]tens) tens {
					return linear(relu(linear(in["x"], in["u"], tens{})), in["v"], tens{})
				}}.check(t)
		})
	}
}

// TestAcceptancePipelines runs the case P12: pipelines of a GEMM with M=64, K=32 and N=16, in 8 chunks on 3 streams, as
// rings and with collectives. Each pipeline has four runs with different inputs.
func TestAcceptancePipelines(t *testing.T) {
	gather := map[string][]int64{"x": {64, 32}, "w": {16, 32}}
	for _, d := range []int64{1, 2, 4} {
		head := fmt.Sprintf("dim D = %d\nmesh d[D]\n", d)
		ag := head + "func f(%x: f32[64/d, 32], %w: f32[16, 32]) -> f32[64, 16] {\n"
		rs := head + "func f(%x: f32[64, 32/d], %w: f32[16, 32/d]) -> f32[64/d, 16] {\n"
		cases := map[string]string{
			"ring all-gather": ag + `  let %n = size(d)
  let %r = rank(d)
  let %c = floordiv(8, size(d)) // chunks of a rank's rows
  %s = stream[3]
  %all = alloc f32[64, 32]
  %y = alloc f32[64, 16]
  %own = chunk %all, axis=0, %r of %n
  copy %x into %own
  for %k in 0..3 {
    on %s[%k] { wait main }
  }
  for %k in 0..%c {
    on %s[%k mod 3] {
      for %i in 0..%n {
        let %j = (%r + %n - %i) mod %n
        %rows = chunk %all, axis=0, %j * %c + %k of 8
        %out = chunk %y, axis=0, %j * %c + %k of 8
        if %i < %n - 1 {
          %next = chunk %all, axis=0, (%j + %n - 1) mod %n * %c + %k of 8
          group {
            send %rows to d[(%r + 1) mod %n]
            recv %next from d[(%r + %n - 1) mod %n]
          }
        }
        linear %rows, %w into %out
      }
    }
  }
  for %k in 0..3 { wait %s[%k] }
  return %y
}`,
			"collective all-gather": ag + `  let %c = floordiv(8, size(d))
  %mine = local %x
  %y = alloc f32[64, 16]
  for %k in 0..%c stream(3) {
    %xk = chunk %mine, axis=0, %k of %c
    %all = alloc f32[8 * size(d), 32]
    all_gather %xk into %all, over=d
    for %j in 0..size(d) {
      %rows = chunk %all, axis=0, %j of size(d)
      %out = chunk %y, axis=0, %j * %c + %k of 8
      linear %rows, %w into %out
    }
  }
  return %y
}`,
			"ring reduce-scatter": rs + `  let %n = size(d)
  let %r = rank(d)
  let %c = floordiv(8, size(d))
  %s = stream[3]
  %y = alloc f32[64/d, 16]
  for %k in 0..3 {
    on %s[%k] { wait main }
  }
  for %k in 0..%c {
    on %s[%k mod 3] {
      %sum = alloc[2] f32[8, 16]
      %in = alloc f32[8, 16]
      for %i in 0..%n {
        let %j = (%r + 2 * %n - %i - 1) mod %n // the rank whose rows pass through this rank in iteration i
        %rows = chunk %x, axis=0, %j * %c + %k of 8
        linear %rows, %w into %sum[%i mod 2]
        if %i > 0 { add %sum[%i mod 2], %in into %sum[%i mod 2] }
        if %i < %n - 1 {
          group {
            send %sum[%i mod 2] to d[(%r + 1) mod %n]
            recv %in from d[(%r + %n - 1) mod %n]
          }
        }
      }
      %out = chunk %y, axis=0, %k of %c
      copy %sum[(%n - 1) mod 2] into %out
    }
  }
  for %k in 0..3 { wait %s[%k] }
  return %y
}`,
			"collective reduce-scatter": rs + `  let %n = size(d)
  let %c = floordiv(8, size(d))
  %y = alloc f32[64/d, 16]
  for %k in 0..%c stream(3) {
    %p = alloc f32[8 * size(d), 16]
    for %j in 0..%n {
      %rows = chunk %x, axis=0, %j * %c + %k of 8
      %pj = chunk %p, axis=0, %j of %n
      linear %rows, %w into %pj
    }
    %out = chunk %y, axis=0, %k of %c
    reduce_scatter %p into %out, over=d, op=sum
  }
  return %y
}`,
		}
		for _, name := range slices.Sorted(maps.Keys(cases)) { // all processes must run the cases in the same order
			src := cases[name]
			t.Run(fmt.Sprintf("P12/%s/%d", name, d), func(t *testing.T) {
				testCase{src: src, runs: runsOf(4, 3, gather), want: xw}.check(t)
			})
		}
	}
}

func TestAcceptanceHost(t *testing.T) {
	t.Run("H1t", func(t *testing.T) {
		pl := testCase{src: `func f(%x: inout f32[10]) {
  for %i in 0..3 {
    %c = alloc f32[10]
    fill into %c, value=2 * %i + 1
    add %x, %c into %x
  }
}`, runs: []map[string]tens{{"x": newTens(10)}, {"x": arange(5, 10)}}, want: func(in map[string]tens) tens {
			y := newTens(10)
			for i, v := range in["x"].v {
				y.v[i] = v + 9
			}
			return y
		}}.check(t)
		if in, out := pl.Inputs[0].Parts[0].Ref, pl.Outputs[0].Parts[0].Ref; in.Buf != out.Buf || in.Off != out.Off {
			t.Errorf("the result is at %v, the argument at %v: not in place", out, in)
		}
	})
	t.Run("H2t", func(t *testing.T) {
		pl := testCase{src: `func f(%x: f32[8, 64]) -> f32[8, 64] {
  for %i in 0..10 {
    %b = alloc f32[8, 64]
    copy %x into %b
    free %b
  }
  return %x
}`, runs: fresh(2, 9, 8, 64), want: same}.check(t)
		if got, want := pl.ArenaBytes, int64(2*8*64*4); got != want {
			t.Errorf("the arena takes %d bytes, want %d: the input and one buffer that is reused ten times", got, want)
		}
	})
	t.Run("H3t", func(t *testing.T) {
		pl := testCase{src: `func f(%x: f64[8, 8]) -> f64[8, 8] {
  %a = neg %x
  %b = scale %a, by=2
  %c = neg %b
  return %c
}`, runs: fresh(2, 9, 8, 8), want: func(in map[string]tens) tens {
			y := newTens(8, 8)
			for i, v := range in["x"].v {
				y.v[i] = 2 * v
			}
			return y
		}}.check(t)
		if got := pl.Memory.Peak; got != 1536 {
			t.Errorf("peak %d bytes, want 1536: three tensors", got)
		}
	})
	t.Run("H4t", func(t *testing.T) {
		pl := testCase{src: `func f(%x: f32[6]) -> f32[6] {
  %s = stream[4]
  %a = alloc f32[6]
  %b = alloc f32[6]
  on %s[2] {
    wait main
    copy %x into %a
  }
  on %s[2] { neg %a into %b }
  on %s[3] {
    wait %s[2]
    neg %b into %a
  }
  wait %s[3]
  return %a
}`, runs: fresh(2, 9, 6), want: same}.check(t)
		used := map[int32]bool{}
		for i := range pl.Cmds {
			used[pl.Cmds[i].Stream] = true
		}
		if len(used) != 3 {
			t.Errorf("%d streams are used, want 3: main and streams 2 and 3", len(used))
		}
	})
	t.Run("H5t", func(t *testing.T) {
		testCase{src: `func f(%x: f32[5, 6]) -> f32[5, 6] {
  %y = alloc f32[5, 6] zero
  for %i in 1..3 {
    %xi = chunk %x, axis=1, %i of 3
    %yi = chunk %y, axis=1, %i of 3
    add %xi, %xi into %yi
  }
  return %y
}`, runs: fresh(3, 9, 5, 6), want: func(in map[string]tens) tens {
			y := newTens(5, 6)
			for i := range int64(5) {
				for j := int64(2); j < 6; j++ {
					y.set(2*in["x"].at(i, j), i, j)
				}
			}
			return y
		}}.check(t)
	})
}

// TestAcceptanceSymmetric runs the case S1: a rank reads the copies of a symmetric buffer on all ranks as one tensor.
// The buffers have several sizes.
func TestAcceptanceSymmetric(t *testing.T) {
	for _, c := range []struct {
		d, a, b int64
	}{{2, 256, 512}, {3, 2, 26214}, {4, 1, 1}} {
		t.Run(fmt.Sprintf("S1/%d", c.d), func(t *testing.T) {
			testCase{src: fmt.Sprintf(`dim D = %d
mesh d[D]
func f(%%x: f32[D/d, %d, %d]) -> f32[D, %d, %d] {
  %%b = alloc f32[1, %d, %d] symmetric
  %%y = alloc f32[D, %d, %d]
  barrier over=d // until the peers have read this rank's copy in the run before
  copy %%x into %%b
  barrier over=d
  for %%i in 0..size(d) {
    %%yi = chunk %%y, axis=0, %%i of size(d)
    get %%b at d[%%i] into %%yi
  }
  return %%y
}`, c.d, c.a, c.b, c.a, c.b, c.a, c.b, c.a, c.b), runs: fresh(2, 9, c.d, c.a, c.b), want: same}.check(t)
		})
	}
}
