package compile

import (
	"context"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/eval"
	"hocket.example/hocket/internal/exec"
	"hocket.example/hocket/internal/longtest"
	"hocket.example/hocket/internal/lower"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/planner"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/internal/verify"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
	"pgregory.net/rapid"
)

// strategies lists the strategies from which the tests choose.
var strategies = []lower.Strategy{
	{}, {Kind: lower.Exchange}, {Kind: lower.Exchange, Ahead: true}, {Kind: lower.Exchange, Chunks: 2},
	{Kind: lower.Exchange, Chunks: 3}, {Kind: lower.Exchange, Own: 2}, {Kind: lower.Exchange, Own: 3},
	{Kind: lower.Chunked, Chunks: 1}, {Kind: lower.Chunked, Chunks: 2}, {Kind: lower.Chunked, Chunks: 3},
	{Kind: lower.Chunked, Chunks: 5}, {Kind: lower.Chunked, Chunks: 8},
}

// init sets how many programs each test draws by default. The flag -rapid.checks overrides it.
func init() { _ = flag.Set("rapid.checks", strconv.Itoa(longtest.Of(150, 1000))) }

// TestOverlapMeansTheSame lowers random sharded programs with a random strategy for each pair, and runs each program
// twice in succession under random schedules. The results must be equal to those of the evaluator for the source
// program; they must be equal bit for bit where the evaluator certifies them as exact. -rapid.checks=10000 generates
// ten thousand programs.
func TestOverlapMeansTheSame(t *testing.T) {
	used := map[lower.StrategyKind]int{}
	exact, all := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		c := newCase(t, drawProgram(t), ir.Binding{})
		choose := func(*lower.Pair) lower.Strategy {
			if rapid.Bool().Draw(t, "exchange") {
				n := rapid.SampledFrom([]int64{-1, 0, 2, 5}).Draw(t, "parts")
				return lower.Strategy{Kind: lower.Exchange, Chunks: max(n, 0), Ahead: n < 0}
			}
			return rapid.SampledFrom(strategies).Draw(t, "strategy")
		}
		res := c.lower(t, choose)
		for _, ch := range res.Choices {
			used[ch.Strategy.Kind]++
		}
		for _, o := range c.want[0].Outputs {
			if all++; o.Exact {
				exact++
			}
		}
		c.run(t, res, rapid.Int64Range(0, 1<<40).Draw(t, "seed"))
	})
	if used[lower.Chunked] == 0 || used[lower.Exchange] == 0 {
		t.Errorf("the programs drawn had only these pairs: %v", used)
	}
	if 2*exact < all {
		t.Errorf("of %d results only %d are certified exact", all, exact)
	}
	t.Logf("pairs by strategy: %v; %d of %d results exact", used, exact, all)
}

// TestGatheredResultsAreKept checks exchanges that put blocks directly into a result of the function. A put must wait
// until the peers and their callers have used the result of the previous run, whichever exchanges follow.
func TestGatheredResultsAreKept(t *testing.T) {
	for what, body := range map[string]string{
		"returned, with an exchange behind": `(
  %x: f32[4/tp, 2],
  %w: f32[2, 2],
  %u: f32[2/tp, 2],
) -> (f32[4, 2], f32[4/tp, 2]) {
  %g: f32[4, 2] = linear %x, %w
  %s: f32[4/tp, 2] = relu %g
  %h = linear %s, %u
  %o: f32[4/tp, 2] = relu %h
  return %g, %o
}`,
		"used behind another": `(%x: f32[4/tp, 2], %w: f32[2, 2], %u: f32[2, 2]) -> f32[4, 2] {
  %g: f32[4, 2] = linear %x, %w
  %s: f32[4/tp, 2] = relu %g
  %h: f32[4, 2] = linear %s, %u
  %o = add %g, %h
  return %o
}`,
		"carried by a loop": `(%x: f32[4/tp, 2], %w: f32[3, 2, 2]) -> f32[4, 2] {
  %z: f32[4, 2] = all_gather %x, over=tp, axis=0
  %y, %q = for %l in 0..3 carry %a = %x, %b = %z {
    %wl = select %w, axis=0, index=%l
    %g: f32[4, 2] = linear %a, %wl
    %n: f32[4/tp, 2] = relu %g
    %c = add %b, %g
    yield %n, %c
  }
  return %q
}`,
	} {
		for _, st := range exchanges {
			t.Run(fmt.Sprintf("%s, %s", what, st), func(t *testing.T) {
				c := newCase(t, "mesh tp[2]\nfunc f"+body+"\n", ir.Binding{})
				res := c.lower(t, func(*lower.Pair) lower.Strategy { return st })
				exchanged := 0
				for _, ch := range res.Choices {
					if ch.Strategy.Kind == lower.Exchange {
						exchanged++
					}
				}
				if exchanged == 0 {
					t.Error("nothing was exchanged")
				}
				c.run(t, res, 1)
			})
		}
	}
}

// fatal is the part of testing.TB that the tests need; rapid's tests also implement it.
type fatal interface {
	Helper()
	Fatalf(format string, args ...any)
}

// testCase is a source program with the inputs of several runs and the expected results.
type testCase struct {
	info    *ir.Info
	binding ir.Binding
	inputs  []map[string]*tensor.Tensor
	want    []*eval.Result
}

const backToBack = 2

func newCase(t fatal, source string, b ir.Binding) *testCase {
	t.Helper()
	c := &testCase{info: check(t, source), binding: b}
	bound, ds := ir.Bind(c.info, b)
	if ds.HasErrors() {
		t.Fatalf("%v\n%s", ds, source)
	}
	for i := range backToBack {
		in := inputs(t, bound, uint64(i))
		res, err := eval.Run(context.Background(), bound, in, eval.Options{})
		if err != nil {
			t.Fatalf("%v\n%s", err, source)
		}
		c.inputs, c.want = append(c.inputs, in), append(c.want, res)
	}
	return c
}

func check(t fatal, source string) *ir.Info {
	t.Helper()
	p, ds := ir.Parse("test.hkt", source)
	if ds.HasErrors() {
		t.Fatalf("%s\n%s", ds, source)
	}
	info, ds := checker.Check(p)
	if ds.HasErrors() {
		t.Fatalf("%s\n%s", ds, source)
	}
	return info
}

func inputs(t fatal, bound *ir.Bound, seed uint64) map[string]*tensor.Tensor {
	t.Helper()
	in, err := eval.Inputs(bound, tensor.Spec{Seed: seed})
	if err != nil {
		t.Fatalf("%v", err)
	}
	return in
}

func (c *testCase) lower(t fatal, choose func(*lower.Pair) lower.Strategy) *lower.Result {
	t.Helper()
	res, err := lower.Run(c.info.Prog, lower.Options{Choose: choose})
	if err != nil {
		t.Fatalf("%v\n%s", err, c.info.Prog)
	}
	return res
}

// run plans the lowered program, executes it under the schedule that seed selects, and compares every result of every
// run.
func (c *testCase) run(t fatal, res *lower.Result, seed int64) {
	t.Helper()
	if err := c.try(res, seed); err != nil {
		t.Fatalf("schedule %d: %v\n%s\n---- lowered\n%s", seed, err, c.info.Prog, res.Program)
	}
}

func (c *testCase) try(res *lower.Result, seed int64) error {
	p, err := c.plan(res)
	if err != nil {
		return err
	}
	if err := proved(p, res); err != nil {
		return err
	}
	bound, ds := ir.Bind(res.Info, c.binding)
	if !ds.HasErrors() {
		ds = verify.Claims(bound, res.Info.Prog)
	}
	if err := ds.Err(); err != nil {
		return err
	}
	ctx := context.Background()
	prog, err := exec.Load(ctx, cpu.New(cpu.Options{Mode: cpu.Scheduled, Seed: seed}), p, exec.Options{})
	if err != nil {
		return err
	}
	defer prog.Close()
	results, err := prog.RunBatch(ctx, exec.Inputs(c.inputs), nil)
	if err != nil {
		return err
	}
	for run, r := range results {
		for i, o := range c.want[run].Outputs {
			v := eval.Compare(r.Outputs[p.Outputs[i].Name], o)
			if v.Kind == eval.Differs || o.Exact && v.Kind != eval.Exact {
				return fmt.Errorf("run %d: %%%s: %s", run, o.Name, v)
			}
		}
	}
	return nil
}

// proved requires a proof that two consecutive runs have no races, no invalid reuse of memory and no deadlocks (S13),
// and that no diagnostic reports a loop without overlap.
func proved(p *plan.Plan, res *lower.Result) error {
	r := verify.Plan(p, verify.Options{Prog: res.Info.Prog})
	if r.Verdict != verify.Proved {
		return fmt.Errorf("%s: %s\n%s", r.Verdict, r.Reason, r.Diagnostics(res.Info.Prog).String())
	}
	for _, f := range r.Findings {
		if f.Kind == verify.KindOverlap {
			return fmt.Errorf("%s: %s", f.Kind, f.Message)
		}
	}
	return nil
}

// TestPairsInLoopsAndCalls lowers pairs of collective and GEMM in loops and in called functions, with the calls in
// loops, on streams and in branches.
func TestPairsInLoopsAndCalls(t *testing.T) {
	const source = `dim T = 10
dim K = 6
mesh tp[2]
func sub(%x: f32[T/tp, K], %w: f32[K, K]) -> f32[T, K] {
  %g: f32[T, K] = reshard %x
  %y = linear %g, %w
  return %y
}
func f(%x: f32[T/tp, K], %w: f32[K, K], %acc: inout f32[T, K]) {
  for %i in 0..3 {
    %g: f32[T, K] = reshard %x
    %y = linear %g, %w
    %yl = local %y
    add %acc, %yl into %acc
  }
  for %j in 0..2 stream(2) {
    %z = call sub %x, %w
  }
  if size(tp) == 2 {
    %q = call sub %x, %w
    %ql = local %q
    add %acc, %ql into %acc
  }
}
`
	c := newCase(t, source, ir.Binding{})
	for _, st := range strategies {
		res := c.lower(t, always(st))
		if n := len(res.Choices); n != 2 || !means(st, res.Choices[0].Strategy) || !means(st, res.Choices[1].Strategy) {
			t.Fatalf("%d pairs: %v", n, res.Log)
		}
		for seed := range int64(10) {
			c.run(t, res, seed)
		}
	}
}

// TestNoWaitIsImplied checks that no synchronization can be removed from layers on four ranks, except for the waits
// that join a stream of puts to main. Later signals of peers imply these joins, but the stream must be joined to be
// captured into a graph.
func TestNoWaitIsImplied(t *testing.T) {
	for name, body := range layers {
		c := &testCase{info: check(t, "mesh dp[1] tp[4]\nfunc f"+body+"\n"),
			binding: ir.Binding{Dims: map[string]int64{"T": 24, "K": 8, "N": 8}}}
		for _, st := range strategies {
			res := c.lower(t, always(st))
			if ds := needless(t, c, res, st); len(ds) > 0 {
				t.Errorf("%s, %s: %s\n%s", name, st, ds.String(), res.Program)
			}
		}
	}
}

func (c *testCase) plan(res *lower.Result) (*plan.Plan, error) {
	bound, ds := ir.Bind(res.Info, c.binding)
	if ds.HasErrors() {
		return nil, ds
	}
	p, ds := planner.Plan(bound, planner.Options{})
	if ds.HasErrors() {
		return nil, ds
	}
	return p, nil
}

// TestStrategiesOnGrids lowers layers under every strategy on 1 to 8 ranks and on two-dimensional meshes. The number of
// rows is not a multiple of any number of chunks.
func TestStrategiesOnGrids(t *testing.T) {
	if testing.Short() {
		t.Skip("it runs many programs")
	}
	for _, g := range [][2]int64{{1, 1}, {1, 2}, {1, 3}, {2, 2}, {1, 5}, {3, 2}, {1, 7}, {2, 4}, {1, 8}} {
		for name, body := range layers {
			source := fmt.Sprintf("mesh dp[%d] tp[%d]\nfunc f%s\n", g[0], g[1], body)
			ranks := g[0] * g[1]
			c := newCase(t, source, ir.Binding{Dims: map[string]int64{"T": 2 * ranks, "K": ranks, "N": ranks}})
			for i, st := range strategies {
				res := c.lower(t, always(st))
				if len(res.Choices) == 0 || st.Kind == lower.Chunked && res.Choices[0].Strategy != st {
					t.Fatalf("%s on %v: %v was not used: %v", name, g, st, res.Log)
				}
				c.run(t, res, int64(i))
				if longtest.On() {
					c.run(t, res, int64(100+i+int(longtest.Seed(t)%1e6)))
				}
			}
		}
	}
}

// layers holds signatures and bodies of functions with dims T, K and N.
var layers = map[string]string{
	"column parallel": `(%x: bf16[T/tp, K], %w: bf16[N/tp, K]) -> bf16[T, N/tp] {
  %y = linear %x, %w
  return %y
}`,
	"row parallel": `(%x: bf16[T, K/tp], %w: bf16[N, K/tp]) -> bf16[T, N] {
  %y = linear %x, %w
  return %y
}`,
	"scattered, with bias": `(%x: bf16[T, K/tp], %w: bf16[N, K/tp], %b: bf16[N]) -> bf16[T/tp, N] {
  %y: bf16[T/tp, N] = linear %x, %w, %b
  return %y
}`,
	"columns scattered": `(%x: bf16[T, K/tp], %w: bf16[N, K/tp], %r: bf16[T, N/tp]) -> bf16[T, N/tp] {
  %y: bf16[T, N/tp] = linear %x, %w
  %z = add %y, %r
  return %z
}`,
	"data and tensor parallel": `(%x: bf16[T/(dp, tp), K], %w: bf16[N/tp, K], %v: bf16[K, N/tp]) -> bf16[T/(dp, tp), K] {
  %h = linear %x, %w
  %g = relu %h
  %y = linear %g, %v
  return %y
}`,
	"two weights and a residual": `(%x: f32[T/tp, K], %u: f32[N/tp, K], %v: f32[N/tp, K], %w: f32[K, N/tp]) -> f32[T/tp, K] {
  %a = linear %x, %u
  %b = linear %x, %v
  %c = relu %b
  %d = mul %a, %c
  %y: f32[T/tp, K] = linear %d, %w
  %z = add %y, %x
  return %z
}`,
	"norm, gated, residual": `(%x: f32[2, T/tp, K], %n: f32[K], %u: f32[N/tp, K], %v: f32[N/tp, K], %w: f32[K, N/tp]) -> f32[2, T/tp, K] {
  %r = rms_norm %x, %n
  %a = linear %r, %u
  %b = linear %r, %v
  %c = silu %b
  %d = mul %a, %c
  %y: f32[2, T/tp, K] = linear %d, %w
  %z = add %y, %x
  return %z
}`,
	"norm behind the gather": `(%x: f32[T/tp, K], %n: f32[K], %w: f32[N/tp, K]) -> f32[T, N/tp] {
  %g: f32[T, K] = copy %x
  %r = rms_norm %g, %n
  %a = softmax %r
  %y = linear %a, %w
  return %y
}`,
	"sequence parallel attention": `(%x: f32[T/tp, K], %n: f32[N/tp], %q: f32[4 * N/tp, K], %k: f32[4 * N/tp, K], %v: f32[4 * N/tp, K], %o: f32[K, 4 * N/tp]) -> f32[T/tp, K] {
  %a = linear %x, %q
  %b = linear %x, %k
  %c = linear %x, %v
  %a3 = reshape %a, shape=(T, N, 4)
  %b3 = reshape %b, shape=(T, N, 4)
  %c3 = reshape %c, shape=(T, N, 4)
  %s = attention %a3, %b3, %c3, causal=true
  %h = reshape %s, shape=(T, 4 * N)
  %y: f32[T/tp, K] = linear %h, %o
  %z = add %y, %x
  return %z
}`,
	"inner dimension": `(%x: bf16[2, T/tp, K], %w: bf16[N/tp, K], %v: bf16[K, N/tp]) -> (bf16[2, T/tp, K], bf16[2, T, K]) {
  %h = linear %x, %w
  %y = linear %h, %v
  return %y, %x
}`,
}

// TestStrategyErrors checks the errors for a strategy that does not exist and for one that no pair can use.
func TestStrategyErrors(t *testing.T) {
	const noPair = "mesh tp[2]\nfunc f(%x: f32[4/tp]) -> f32[4] {\n  return %x\n}\n"
	const contracted = "mesh tp[2]\nfunc f(%x: f32[2, 4/tp], %w: f32[4, 4]) -> f32[2, 4] {\n  %y = linear %x, %w\n  return %y\n}\n"
	const local = "func f(%x: f32[4]) -> f32[4] {\n  %y = relu %x\n  return %y\n}\n"
	for _, c := range []struct{ source, strategy, want string }{
		{noPair, "fast", "unknown strategy \"fast\""},
		{noPair, "chunked(0)", "chunked needs a number from 1 to"},
		{noPair, "exchange", "test.hkt:3:3: error: strategy exchange applies to no collective"},
		{noPair, "exchange", "no linear or matmul uses its result"},
		{contracted, "exchange", "exchange does not apply: the GEMM contracts the gathered dimension"},
		{contracted, "exchange", "help: use sequential"},
		{local, "chunked", "it has no all_gather"},
	} {
		_, err := Build(check(t, c.source), Options{Strategy: c.strategy})
		text := fmt.Sprint(err)
		if ds, ok := err.(ir.Diagnostics); ok {
			text = ds.String()
		}
		if err == nil || !strings.Contains(text, c.want) {
			t.Errorf("%s: %s\nwant %q", c.strategy, text, c.want)
		}
	}
	if _, err := Build(check(t, noPair), Options{Strategy: "exchange", StopAfter: "decompose"}); err != nil {
		t.Errorf("a pass before overlap: %v", err)
	}
}

// TestReshardsInLoops changes, inside a loop, the layouts of values from outside the loop.
func TestReshardsInLoops(t *testing.T) {
	const source = `mesh a[2] b[2]
func f(%x: f32[4, 8], %y: f32[4/(a, b), 8], %acc: inout f32[4/(b, a), 8]) {
  for %i in 0..3 {
    %cut: f32[4/(b, a), 8] = reshard %x
    %traded: f32[4/(b, a), 8] = reshard %y
    %turned: f32[4, 8/(a, b)] = reshard %y
    %back: f32[4/(b, a), 8] = reshard %turned
    %sum = add %cut, %traded
    %all = add %sum, %back
    %l = local %all
    add %acc, %l into %acc
  }
}
`
	c := newCase(t, source, ir.Binding{})
	for seed := range int64(5) {
		c.run(t, c.lower(t, nil), seed)
	}
}
