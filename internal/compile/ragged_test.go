package compile

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/lower"
	"hocket.example/hocket/ir"
	"pgregory.net/rapid"
)

// raggedPairs holds functions with an all-reduce whose number of rows need not be a multiple of the number of ranks.
// The word AXES in their text is replaced by the mesh axes.
var raggedPairs = map[string]string{
	"alone": `(%x: f32[T, K/AXES], %w: f32[N, K/AXES]) -> f32[T, N] {
  %y: f32[T, N] = linear %x, %w
  return %y
}`,
	"bias and residual": `(%x: f32[T, K/AXES], %w: f32[N, K/AXES], %b: f32[N], %r: f32[T, N]) -> f32[T, N] {
  %y: f32[T, N] = linear %x, %w, %b
  %z = add %y, %r
  %a = relu %z
  return %a
}`,
	"another type after it": `(%x: bf16[T, K/AXES], %w: bf16[N, K/AXES]) -> f32[T, N] {
  %y: bf16[T, N] = linear %x, %w
  %z: f32[T, N] = cast %y
  return %z
}`,
	"a gradient's columns": `(%dy: f32[K/AXES, T], %x: f32[K/AXES, N], %r: f32[T, N]) -> f32[T, N] {
  %dw: f32[T, N] = matmul %dy, %x, ta=true
  %s = add %r, %dw
  return %s
}`,
	"three dimensions": `(%x: f32[T, 11, K/AXES], %w: f32[N, K/AXES]) -> f32[T, 11, N] {
  %y: f32[T, 11, N] = linear %x, %w
  return %y
}`,
	"in a loop, one after another": `(%x: f32[T, K/AXES], %w: f32[N, K/AXES], %u: f32[K/AXES, N]) -> f32[T, N] {
  %z: f32[T, N] = linear %x, %w
  %y = for %l in 0..2 carry %h = %z {
    %a = linear %h, %u
    %b: f32[T, N] = linear %a, %w
    yield %b
  }
  return %y
}`,
}

// TestRaggedBlocks lowers all-reduces as exchanges, with random numbers of rows, on one to eight ranks, along one axis
// or two. Each plan is proved for two consecutive runs, executed under a random schedule, and compared with the
// evaluator. If the number of rows is a multiple of the number of ranks, the lowered text must not depend on dims.
func TestRaggedBlocks(t *testing.T) {
	ragged := 0
	rapid.Check(t, func(t *rapid.T) {
		tp := rapid.Int64Range(1, 8).Draw(t, "tp")
		dp := rapid.Int64Range(1, 8/tp).Draw(t, "dp")
		axes, ranks := "tp", tp
		if rapid.Bool().Draw(t, "over both axes") {
			axes, ranks = "(dp, tp)", dp*tp
		}
		rows := rapid.Int64Range(0, 21).Draw(t, "rows")
		name := rapid.SampledFrom(slices.Sorted(maps.Keys(raggedPairs))).Draw(t, "pair")
		source := fmt.Sprintf("mesh dp[%d] tp[%d]\nfunc f%s\n", dp, tp, strings.ReplaceAll(raggedPairs[name], "AXES", axes))
		c := newCase(t, source, ir.Binding{Dims: map[string]int64{"T": rows, "K": 2 * ranks, "N": 3}})
		st := rapid.SampledFrom(exchanges).Draw(t, "strategy")
		u, err := Build(c.info, Options{Strategy: st.String()})
		if err != nil {
			t.Fatalf("%s: %v\n%s", st, err, source)
		}
		res, err := u.LoweredFor(c.binding)
		if err != nil {
			t.Fatalf("%s: %v\n%s", st, err, source)
		}
		if same := res == u.Lowered; same != (rows%ranks == 0) {
			t.Fatalf("%d rows on %d ranks: the text that fits all dims: %v", rows, ranks, same)
		}
		for _, ch := range res.Choices {
			if ch.Strategy.Kind != lower.Exchange {
				t.Fatalf("%s: not exchanged: %s\n%s", st, ch.Why, source)
			}
			if ch.Strategy.Ragged {
				ragged++
			}
		}
		c.run(t, res, rapid.Int64Range(0, 1<<40).Draw(t, "seed"))
	})
	if ragged == 0 {
		t.Error("no blocks were ragged")
	}
}

// TestRaggedNeedsItsWaits checks that no synchronization of ragged blocks can be removed, except for the joins of
// streams that put.
func TestRaggedNeedsItsWaits(t *testing.T) {
	for name, body := range raggedPairs {
		c := &testCase{info: check(t, "mesh dp[1] tp[4]\nfunc f"+strings.ReplaceAll(body, "AXES", "tp")+"\n"),
			binding: ir.Binding{Dims: map[string]int64{"T": 7, "K": 8, "N": 3}}}
		for _, st := range exchanges {
			st.Ragged = true
			res := c.lower(t, always(st))
			if ds := needless(t, c, res, st); len(ds) > 0 {
				t.Errorf("%s, %s: %s\n%s", name, st, ds.String(), res.Program)
			}
		}
	}
}
