package compile

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/lower"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/verify"
	"hocket.example/hocket/ir"
)

// exchanges lists the forms of exchange that the tests use.
var exchanges = []lower.Strategy{{Kind: lower.Exchange}, {Kind: lower.Exchange, Ahead: true},
	{Kind: lower.Exchange, Chunks: 2}, {Kind: lower.Exchange, Chunks: 3}, {Kind: lower.Exchange, Own: 2}}

// TestExchangeAnywhere uses exchanges in programs where other exchanges may not order their puts: in loops with no, one
// and many iterations, in branches that all ranks take, next to such loops, and over teams of several axes. Each plan
// is proved for two consecutive runs and executed under random schedules.
func TestExchangeAnywhere(t *testing.T) {
	if testing.Short() {
		t.Skip("it runs many programs")
	}
	const head = "dim T = 24\ndim K = 6\nmesh dp[2] ep[1] tp[3]\n"
	const gather = "    %g: f32[T, K] = reshard %x\n    %y = linear %g, %w\n"
	const accumulate = "    %yl = local %y\n    add %acc, %yl into %acc\n"
	const reduce = "    %p = linear %x, %w\n    %y: f32[T/tp, K] = add %p, %r\n"
	loop := func(times string) string {
		return head + "func f(%x: f32[T/tp, K], %w: f32[K, K], %acc: inout f32[T, K]) {\n  for %i in 0.." + times +
			" {\n" + gather + accumulate + "  }\n}\n"
	}
	sources := map[string]string{
		"beside a loop": head + "func f(%x: f32[T/tp, K], %w: f32[K, K], %acc: inout f32[T, K]) {\n" +
			strings.ReplaceAll(gather+accumulate, "%g", "%g0") + "  for %i in 0..0 {\n" + strings.NewReplacer("%g",
			"%g1", "%yl", "%yl1", "%y ", "%y1 ", "local %y", "local %y1").Replace(gather+accumulate) + "  }\n}\n",
		"in a branch": head + "func f(%x: f32[T/tp, K], %w: f32[K, K], %acc: inout f32[T, K]) {\n  if T == 24 {\n" +
			gather + accumulate + "  }\n}\n",
		"in a branch of a loop": head + "func f(%x: f32[T/tp, K], %w: f32[K, K], %acc: inout f32[T, K]) {\n  for %i in 0..3 {\n  if %i != 1 {\n" +
			gather + accumulate + "  }\n  }\n}\n",
		"two axes": head + "func f(%x: f32[T/(dp, tp), K], %w: f32[K, K]) -> f32[T, K] {\n" + gather +
			"  return %y\n}\n",
		"two axes, the other way": head + "func f(%x: f32[T/(tp, dp), K], %w: f32[K, K]) -> f32[T, K] {\n" + gather +
			"  return %y\n}\n",
		"two of three axes, inside": "mesh a[2] b[2] c[2]\nfunc f(%x: f32[2, 8/(a, c), 4/b], %w: f32[4, 4/b]) -> f32[2, 8, 4] {\n" +
			"  %g: f32[2, 8, 4/b] = reshard %x\n  %y = linear %g, %w\n  return %y\n}\n",
		"scattered over two axes": head +
			"func f(%x: f32[T, K/(dp, tp)], %w: f32[K, K/(dp, tp)], %r: f32[T/(dp, tp), K]) -> f32[T/(dp, tp), K] {\n" +
			"  %y: f32[T/(dp, tp), K] = linear %x, %w\n  %z = add %y, %r\n  return %z\n}\n",
		"reduced over two axes": head + "func f(%x: f32[T, K/(dp, tp)], %w: f32[K, K/(dp, tp)], %r: f32[T, K]) -> f32[T, K] {\n" +
			"  %y: f32[T, K] = linear %x, %w\n  %z = add %y, %r\n  return %z\n}\n",
		"scattered in a loop": head + "func f(%x: f32[T, K/tp], %w: f32[K, K/tp], %r: f32[T/tp, K], %acc: inout f32[T/tp, K]) {\n  for %i in 0..3 {\n" +
			strings.Replace(reduce, "%p =", "%p: f32[T/tp, K] =", 1) + accumulate + "  }\n}\n",
		"reduced in a loop": head + "func f(%x: f32[T, K/tp], %w: f32[K, K/tp], %acc: inout f32[T, K]) {\n  for %i in 0..3 {\n" +
			"    %y: f32[T, K] = linear %x, %w\n" + accumulate + "  }\n}\n",
	}
	for layout, local := range map[string]string{"T/tp, K": "rows", "T, K/tp": "columns"} {
		sources["a gradient's "+local] = head + "func f(%dy: f32[K/tp, T], %x: f32[K/tp, K], %r: f32[" + layout +
			"]) -> f32[" + layout + "] {\n" +
			"  %dw: f32[" + layout + "] = matmul %dy, %x, ta=true\n  %s = add %r, %dw\n  return %s\n}\n"
	}
	for _, n := range []int{0, 1, 2, 5} {
		sources[fmt.Sprintf("in a loop of %d", n)] = loop(fmt.Sprint(n))
		sources[fmt.Sprintf("in a loop of as many as a dim says, %d", n)] = fmt.Sprintf("dim C = %d\n", n) + loop("C")
	}
	for name, source := range sources {
		c := newCase(t, source, ir.Binding{})
		for _, st := range exchanges {
			res := c.lower(t, always(st))
			if len(res.Choices) == 0 {
				t.Fatalf("%s: no pair: %v", name, res.Log)
			}
			for _, ch := range res.Choices {
				if !means(st, ch.Strategy) {
					t.Errorf("%s, %s: %s", name, st, ch.Why)
				}
			}
			for seed := range int64(4) {
				c.run(t, res, seed)
			}
			if strings.Contains(name, "as a dim says") {
				continue // the text alone does not show that the signals of a second round order the puts of the first
			}
			if ds := needless(t, c, res, st); len(ds) > 0 {
				t.Errorf("%s, %s: %s\n%s", name, st, ds.String(), res.Program)
			}
		}
	}
}

// needless returns the diagnostics about synchronization that is implied by other synchronization, except for the waits
// that join streams of puts to main.
func needless(t *testing.T, c *testCase, res *lower.Result, st lower.Strategy) ir.Diagnostics {
	t.Helper()
	p, err := c.plan(res)
	if err != nil {
		t.Fatal(err)
	}
	r := verify.Plan(p, verify.Options{Prog: res.Info.Prog, Redundant: true})
	return slices.DeleteFunc(r.Diagnostics(res.Info.Prog), func(d *ir.Diagnostic) bool {
		return st.Kind == lower.Exchange && strings.HasPrefix(d.Message, "not needed: wait %") &&
			strings.Contains(d.Message, ".s orders ")
	})
}

// TestGatherBuffersTakeTurns checks the memory of layers that follow one another in called functions, in the text or in
// a loop. The buffers into which peers put alternate between two offsets, or four if blocks are sent ahead, and the
// amount of memory does not increase after the first layers.
func TestGatherBuffersTakeTurns(t *testing.T) {
	for _, st := range exchanges {
		for form, source := range map[string]func(int64) string{"called": calledLayers, "written out": writtenLayers,
			"reduced for all": reducedLayers, "in a loop": loopedLayers, "apart": layersApart} {
			var before int64
			for _, n := range []int64{4, 8, 32} {
				u, err := Build(check(t, source(n)), Options{Strategy: st.String()})
				if err != nil {
					t.Fatal(err)
				}
				p, err := u.Plan(ir.Binding{Dims: map[string]int64{"T": 48, "H": 256, "F": 32}})
				if err != nil {
					t.Fatal(err)
				}
				if err := proved(p, u.Lowered); err != nil {
					t.Fatalf("%s, %s: %v", st, form, err)
				}
				most := 2 * max(st.Chunks, 1)
				if st.Chunks > 1 {
					most++ // a search may place a buffer at another offset if that takes no more memory
				}
				if form == "apart" && st.Ahead {
					most = 4 // one buffer is read and one is filled, and two may still be in use
				}
				if got := places(p, ".all"); got > most {
					t.Errorf("%s, %d layers %s: gathers use %d places, want %d at the most", st, n, form, got, most)
				}
				own := p.ArenaBytes - p.Memory.Inputs
				if before > 0 && own > before {
					t.Errorf("%s, %d layers %s: %d bytes, fewer layers take %d", st, n, form, own, before)
				}
				before = own
			}
		}
	}
}

func calledLayers(n int64) string {
	var b strings.Builder
	b.WriteString(`mesh tp[4]
func layer(%x: bf16[T/tp, H], %up: bf16[F/tp, H], %down: bf16[H, F/tp]) -> bf16[T/tp, H] {
  %h = linear %x, %up
  %y: bf16[T/tp, H] = linear %h, %down
  return %y
}
func model(%x0: bf16[T/tp, H], %up: bf16[F/tp, H], %down: bf16[H, F/tp]) -> bf16[T/tp, H] {
`)
	for i := range n {
		fmt.Fprintf(&b, "  %%x%d = call layer %%x%d, %%up, %%down\n", i+1, i)
	}
	fmt.Fprintf(&b, "  return %%x%d\n}\n", n)
	return b.String()
}

func writtenLayers(n int64) string {
	var b strings.Builder
	b.WriteString("mesh tp[4]\nfunc model(%x0: bf16[T/tp, H], %up: bf16[F/tp, H], %down: bf16[H, F/tp]) -> bf16[T/tp, H] {\n")
	for i := range n {
		fmt.Fprintf(&b, "  %%h%d = linear %%x%d, %%up\n  %%x%d: bf16[T/tp, H] = linear %%h%d, %%down\n", i, i, i+1, i)
	}
	fmt.Fprintf(&b, "  return %%x%d\n}\n", n)
	return b.String()
}

func reducedLayers(n int64) string {
	var b strings.Builder
	b.WriteString("mesh tp[4]\nfunc model(%x0: bf16[T, H], %up: bf16[F/tp, H], %down: bf16[H, F/tp]) -> bf16[T, H] {\n")
	for i := range n {
		fmt.Fprintf(&b, "  %%h%d = linear %%x%d, %%up\n  %%y%d: bf16[T, H] = linear %%h%d, %%down\n  %%x%d = add %%y%d, %%x%d\n", i, i, i, i, i+1, i, i)
	}
	fmt.Fprintf(&b, "  return %%x%d\n}\n", n)
	return b.String()
}

func loopedLayers(n int64) string {
	return fmt.Sprintf(`mesh tp[4]
dim F = 1
func model(%%x: bf16[T/tp, H], %%w: bf16[H, H], %%acc: inout bf16[T, H]) {
  for %%i in 0..%d {
    %%g: bf16[T, H] = reshard %%x
    %%y = linear %%g, %%w
    %%yl = local %%y
    add %%acc, %%yl into %%acc
  }
}
`, n)
}

// layersApart returns a program with n independent layers, whose results are summed.
func layersApart(n int64) string {
	var b strings.Builder
	b.WriteString("mesh tp[4]\ndim F = 1\nfunc model(%x: bf16[T/tp, H], %w: bf16[H/tp, H], %acc: inout bf16[T, H/tp]) {\n")
	for i := range n {
		fmt.Fprintf(&b, "  %%g%d: bf16[T, H] = reshard %%x\n  %%y%d = linear %%g%d, %%w\n  %%l%d = local %%y%d\n  add %%acc, %%l%d into %%acc\n", i, i, i, i, i, i)
	}
	return b.String() + "}\n"
}

// places returns the number of different offsets of the buffers whose names have the given suffix.
func places(p *plan.Plan, suffix string) int64 {
	at := map[int64]bool{}
	for i := range p.Buffers {
		name, _, _ := strings.Cut(p.Buffers[i].Name, "@")
		if strings.HasSuffix(name, suffix) {
			at[p.Buffers[i].Offset] = true
		}
	}
	return int64(len(at))
}

// TestWhatFollowsASum checks which operations on a reduction's result become part of the pair. They include operations
// whose result has another type, and operations on rows of an inner dimension, up to the first value that is used
// twice.
func TestWhatFollowsASum(t *testing.T) {
	for name, c := range map[string]struct{ source, pair string }{
		"cast": {"mesh tp[2]\nfunc f(%x: bf16[4, 6/tp], %w: bf16[4, 6/tp], %r: f32[4, 4]) -> f32[4, 4] {\n" +
			"  %y = linear %x, %w\n  %z: f32[4, 4] = cast %y\n  %a = add %r, %z\n  return %a\n}\n",
			"linear + all_reduce + cast, add"},
		"inner rows": {"mesh tp[2]\nfunc f(%x: bf16[3, 4, 6/tp], %w: bf16[4, 6/tp], %r: f32[3, 4/tp, 4], %n: f32[4]) -> f32[3, 4/tp, 4] {\n" +
			"  %y: bf16[3, 4/tp, 4] = linear %x, %w\n  %z: f32[3, 4/tp, 4] = cast %y\n  %a = add %z, %r\n  %b = rms_norm %a, %n\n  return %b\n}\n",
			"linear + reduce_scatter + cast, add, rms_norm"},
		"used twice": {"mesh tp[2]\nfunc f(%x: f32[4, 6/tp], %w: f32[4, 6/tp], %r: f32[4, 4], %n: f32[4]) -> (f32[4, 4], f32[4, 4]) {\n" +
			"  %y = linear %x, %w\n  %a = add %y, %r\n  %b = rms_norm %a, %n\n  return %b, %a\n}\n",
			"linear + all_reduce + add"},
		"not by rows": {"mesh tp[2]\nfunc f(%x: f32[4, 6/tp], %w: f32[4, 6/tp]) -> f32[4, 4] {\n" +
			"  %y = linear %x, %w\n  %a = softmax %y, axis=0\n  return %a\n}\n", "linear + all_reduce"},
		"made in between": {"mesh tp[2]\nfunc f(%x: f32[4, 6/tp], %w: f32[4, 6/tp], %r: f32[4, 4]) -> f32[4, 4] {\n" +
			"  %p: f32[4, 4] partial(tp, sum) = linear %x, %w\n  %y: f32[4, 4] = reshard %p\n  %s = relu %r\n  %a = add %y, %s\n  return %a\n}\n", "linear + all_reduce + add"},
	} {
		tc := newCase(t, c.source, ir.Binding{})
		for _, st := range strategies {
			res := tc.lower(t, always(st))
			if len(res.Choices) != 1 || !means(st, res.Choices[0].Strategy) || res.Choices[0].Pair.String() != c.pair {
				t.Errorf("%s, %s: %v", name, st, res.Log)
			}
			for seed := range int64(4) {
				tc.run(t, res, seed)
			}
		}
	}
}

// TestPairsThatMeet lowers two gathers, or a gather and a reduction, whose results are operands of one operation. Only
// one of the regions of the two pairs can contain that operation.
func TestPairsThatMeet(t *testing.T) {
	const head = "mesh tp[2]\nfunc f(%x: f32[4/tp, 4], %u: f32[6/tp, 4], %v: f32[6/tp, 4], %d: f32[4, 6/tp]) -> "
	for name, source := range map[string]string{
		"two gathers": head + "f32[4, 6/tp] {\n  %a = linear %x, %u\n  %y = relu %x\n  %b = linear %y, %v\n  %c = sub %b, %a\n  return %c\n}\n",
		"two gathers, and once more": head +
			"f32[4, 6/tp] {\n  %a = linear %x, %u\n  %y = relu %x\n  %b = linear %y, %v\n  %c = sub %b, %a\n" +
			"  %e = relu %a\n  %g = add %e, %b\n  %h = mul %g, %c\n  return %h\n}\n",
		"three gathers": head + "f32[4, 6/tp] {\n  %a = linear %x, %u\n  %y = relu %x\n  %b = linear %y, %v\n  %z = scale %x, by=2\n  %e = linear %z, %u\n" +
			"  %c = sub %b, %a\n  %g = add %c, %e\n  return %g\n}\n",
		"a reduction between": head + "f32[4/tp, 4] {\n  %a = linear %x, %u\n  %r: f32[4/tp, 4] = linear %a, %d\n  %y = relu %x\n  %b = linear %y, %v\n" +
			"  %c = sub %b, %a\n  %s: f32[4/tp, 4] = linear %c, %d\n  %t = add %s, %r\n  return %t\n}\n",
	} {
		c := newCase(t, source, ir.Binding{})
		kinds := []lower.Strategy{{}, {Kind: lower.Chunked, Chunks: 3}, {Kind: lower.Exchange}}
		for i := range 81 { // all combinations of strategies for up to four pairs
			n, at := i, 0
			res := c.lower(t, func(*lower.Pair) lower.Strategy {
				st := kinds[n%3]
				n, at = n/3, at+1
				return st
			})
			if at < 2 {
				t.Fatalf("%s: %d pairs", name, at)
			}
			c.run(t, res, int64(i))
		}
	}
}
