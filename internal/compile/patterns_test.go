package compile

import (
	"fmt"
	"testing"

	"hocket.example/hocket/internal/lower"
	"hocket.example/hocket/ir"
)

// TestPatterns lowers pipelines from the tests of nvFuser, which are written as sharded programs and named by the ids
// under which they were collected, with every strategy on 1 to 8 ranks. For each pipeline, the test lists the
// strategies that must be applied. If a strategy does not apply, the program is left sequential and must give the right
// results too.
func TestPatterns(t *testing.T) {
	if testing.Short() {
		t.Skip("it runs many programs")
	}
	for _, p := range patterns {
		t.Run(p.id, func(t *testing.T) {
			for d := int64(1); d <= 8; d++ {
				if p.mesh == dataAndTensor && d%2 != 0 {
					continue
				}
				c := newCase(t, fmt.Sprintf(p.mesh, d)+p.text, ir.Binding{Dims: map[string]int64{"D": d}})
				for i, st := range strategies {
					res := c.lower(t, always(st))
					for _, ch := range res.Choices {
						if applies := p.applies[st.Kind] ||
							st.Kind == lower.Sequential; applies != means(st, ch.Strategy) {
							t.Fatalf("%v is used: %v, want %v: %+v", st, means(st, ch.Strategy), applies, ch)
						}
					}
					if (len(res.Choices) > 0) != (p.applies != nil) {
						t.Fatalf("%d pairs: %v", len(res.Choices), res.Log)
					}
					if st.Kind != lower.Sequential && p.applies == nil && i > 1 {
						break // no pair: every strategy leaves the same program
					}
					c.run(t, res, int64(i)+100*d)
				}
			}
		})
	}
}

const (
	oneAxis       = "dim D = %[1]d\nmesh d[D]\n"
	dataAndTensor = "dim D = %[1]d\nmesh dp[floordiv(D, 2)] tp[2]\n"
)

type kinds map[lower.StrategyKind]bool

var (
	both        = kinds{lower.Chunked: true, lower.Exchange: true}
	chunkedOnly = kinds{lower.Chunked: true}
	// exchangeOnly is for pairs whose pieces are not rows of the operands: only exchange applies to them.
	exchangeOnly = kinds{lower.Exchange: true}
)

var patterns = []struct {
	id, mesh, text string
	applies        kinds // nil: there is no pair
}{
	{"P1", oneAxis, "func f(%x: f32[4, D/d]) -> f32[4, D] { return %x }", nil},
	{"P2 all-reduce", oneAxis, "func f(%x: f32[4, D/d, 8]) -> f32[4, 8] {\n  %y = sum %x, axis=1\n  return %y\n}", nil},
	{"P2 reduce-scatter", oneAxis, "func f(%x: f32[4, D/d, D, 8]) -> f32[4, D/d, 8] {\n  %y = sum %x, axis=1\n  return %y\n}", nil},
	{"P3 gather before", oneAxis, "func f(%a: f32[3, 2 * D/d, 5], %b: f32[5, 4]) -> f32[3, 2 * D, 4] {\n" +
		"  %g: f32[3, 2 * D, 5] = reshard %a\n  %y = matmul %g, %b\n  return %y\n}", both},
	{"P3 gather after", oneAxis, "func f(%a: f32[3, 2 * D/d, 5], %b: f32[5, 4]) -> f32[3, 2 * D, 4] {\n  %y = matmul %a, %b\n  return %y\n}", chunkedOnly},
	{"issue 5325", oneAxis, "func f(%x: bf16[6 * D/d, 5], %w: bf16[4, 5], %b: bf16[4]) -> bf16[6 * D, 4] {\n  %y = linear %x, %w, %b\n  %z = gelu %y\n  return %z\n}", both},
	{"columns gathered", oneAxis, "func f(%x: bf16[6, 5], %w: bf16[4 * D/d, 5]) -> bf16[6, 4 * D] {\n  %y = linear %x, %w\n  return %y\n}", chunkedOnly},
	{"P4", oneAxis, "func f(%a: f32[2 * D, 3, 2 * D/d], %b: f32[2 * D/d, 4]) -> f32[2 * D, 3, 4] {\n  %y = matmul %a, %b\n  return %y\n}", both},
	{"P5", oneAxis, "func f(%a: f32[3, 2 * D, 2 * D/d], %b: f32[2 * D/d, 2]) -> f32[3, 2 * D/d, 2] {\n  %y = matmul %a, %b\n  return %y\n}", both},
	{"P6", oneAxis, "func f(%x: f32[D/d, 16]) -> f32[D, 16] { return %x }", nil},
	{"P7", oneAxis, "func f(%a: f32[5 * D/d, 6], %b: f32[6, 4]) -> f32[5 * D, 4] {\n  %g: f32[5 * D, 6] = reshard %a\n  %y = matmul %g, %b\n  return %y\n}", both},
	{"P8, P9", oneAxis, "func f(%a: f32[4 * D, 8 * D/d], %b: f32[8 * D/d, 2]) -> f32[4 * D/d, 2] {\n  %y = matmul %a, %b\n  return %y\n}", both},
	{"P10", oneAxis, "func f(%x: bf16[6 * D, 8 * D/d], %w: bf16[2, 8 * D/d]) -> bf16[6 * D, 2] {\n  %y = linear %x, %w\n  return %y\n}", both},
	{"P11", oneAxis, "func f(%x: bf16[3 * D/d, 2], %w: bf16[2 * D/d, 2]) -> bf16[3 * D, 2 * D/d] {\n  %y = linear %x, %w\n  return %y\n}", both},
	{"P12 gather", oneAxis, "func f(%a: f32[8 * D/d, 5], %b: f32[5, 2 * D/d]) -> f32[8 * D, 2 * D/d] {\n  %y = matmul %a, %b\n  return %y\n}", both},
	{"P13", oneAxis, "func f(%x: bf16[3, 2 * D/d, 4], %w: bf16[3, 4], %b: bf16[3]) -> bf16[3, 2 * D, 3] {\n" +
		"  %g: bf16[3, 2 * D, 4] = reshard %x\n  %y = linear %g, %w, %b\n  return %y\n}", both},
	{"P14", oneAxis, "func f(%a: bf16[7 * D/d, 6], %b: bf16[6, 9]) -> bf16[7 * D, 9] {\n  %g: bf16[7 * D, 6] = reshard %a\n  %y = matmul %g, %b\n  return %y\n}", both},
	{"P15", oneAxis, "func f(%x: bf16[3, 5 * D, 7 * D/d], %w: bf16[7, 7 * D/d], %b: bf16[7]) -> bf16[3, 5 * D/d, 7] {\n" +
		"  %y: bf16[3, 5 * D/d, 7] = linear %x, %w, %b\n  return %y\n}", both},
	{"P16", dataAndTensor, "func f(%x: bf16[7 * D/dp, 5, 3], %w1: bf16[8/tp, 3], %w2: bf16[3, 8/tp]) -> bf16[7 * D/dp, 5, 3] {\n" +
		"  %h = linear %x, %w1\n  %g = relu %h\n  %y = linear %g, %w2\n  return %y\n}", both},
	{"columns of a sum", oneAxis, "func f(%x: bf16[5, 2 * D/d], %w: bf16[2 * D, 2 * D/d]) -> bf16[5, 2 * D/d] {\n  %y = linear %x, %w\n  return %y\n}", both},
	{"columns of a matmul", oneAxis, "func f(%x: bf16[5, 2 * D/d], %w: bf16[2 * D/d, 2 * D], %r: bf16[5, 2 * D/d]) -> bf16[5, 2 * D/d] {\n" +
		"  %y: bf16[5, 2 * D/d] = matmul %x, %w\n  %z = add %y, %r\n  return %z\n}", both},
	{"columns of a matmul of the transposed", oneAxis,
		"func f(%x: bf16[2 * D/d, 5], %w: bf16[2 * D, 2 * D/d]) -> bf16[5, 2 * D/d] {\n" +
			"  %y = matmul %x, %w, ta=true, tb=true\n  return %y\n}", exchangeOnly},
	{"a weight's gradient, rows scattered", oneAxis,
		"func f(%dy: bf16[2 * D/d, 2 * D], %x: bf16[2 * D/d, 5]) -> bf16[2 * D/d, 5] {\n" +
			"  %dw = matmul %dy, %x, ta=true\n  return %dw\n}", exchangeOnly},
	{"a weight's gradient, columns scattered", oneAxis,
		"func f(%dy: bf16[2 * D/d, 5], %x: bf16[2 * D/d, 2 * D]) -> bf16[5, 2 * D/d] {\n" +
			"  %dw = matmul %dy, %x, ta=true\n  return %dw\n}", exchangeOnly},
	{"a weight's gradient for all", oneAxis,
		"func f(%dy: bf16[2 * D/d, 2 * D], %x: bf16[2 * D/d, 5]) -> bf16[2 * D, 5] {\n" +
			"  %dw = matmul %dy, %x, ta=true\n  return %dw\n}", exchangeOnly},
	{"a gather along the contraction", oneAxis,
		"func f(%x: bf16[5, 2 * D/d], %w: bf16[3, 2 * D]) -> bf16[5, 3] {\n  %y = linear %x, %w\n  return %y\n}",
		chunkedOnly},
}
