package compile

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/longtest"
	"hocket.example/hocket/internal/lower"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// apart returns a program with n independent layers. The argument between is a statement that precedes each layer
// except the first.
func apart(n int, between string) string {
	var b strings.Builder
	b.WriteString("mesh dp[2] tp[3]\nfunc f(%v: f32[12/(tp, dp), 6]")
	for i := range n {
		fmt.Fprintf(&b, ", %%x%d: f32[6/tp, 6]", i)
	}
	b.WriteString(", %w: f32[6/tp, 6], %u: f32[6, 6/tp]) -> (f32[6, 6/tp]" + strings.Repeat(", f32[6, 6/tp]",
		n-1) + ") {\n")
	var ys []string
	for i := range n {
		if i > 0 {
			b.WriteString(strings.ReplaceAll(between, "#", fmt.Sprint(i)))
		}
		fmt.Fprintf(&b, "  %%y%d = linear %%x%d, %%w\n", i, i)
		ys = append(ys, fmt.Sprintf("%%y%d", i))
	}
	fmt.Fprintf(&b, "  return %s\n}\n", strings.Join(ys, ", "))
	return b.String()
}

// TestGathersAhead checks that the blocks of a gather that does not depend on the preceding pair of gather and GEMM are
// sent before that pair is computed, whichever statements are in between. Each lowered form is proved for two
// consecutive runs, contains no synchronization that other synchronization implies, and gives the same results under
// random schedules.
func TestGathersAhead(t *testing.T) {
	if testing.Short() {
		t.Skip("it runs many programs")
	}
	for name, between := range map[string]string{
		"nothing":          "",
		"a reduction":      "  %h# = transpose %y0, perm=(0, 1)\n  %d#: f32[6/tp, 6] = linear %h#, %u\n",
		"another team":     "  %g#: f32[12, 6] = reshard %v\n  %q# = linear %g#, %w\n",
		"a collective":     "  %c# = all_to_all %x0, over=tp, split=1, concat=0\n",
		"what others make": "  %r# = relu %x#\n",
	} {
		for n := 1; n <= longtest.Of(4, 6); n++ {
			c := newCase(t, apart(n, between), ir.Binding{})
			for _, st := range exchanges {
				res := c.lower(t, always(st))
				for seed := range int64(2) {
					c.run(t, res, seed)
				}
				// The stream that sends the blocks waits for main, which prevents them from being sent even earlier.
				// This wait is kept, whether or not signals of peers imply it.
				ds := slices.DeleteFunc(needless(t, c, res, st),
					func(d *ir.Diagnostic) bool { return strings.HasPrefix(d.Message, "not needed: wait main ") })
				if len(ds) > 0 {
					t.Errorf("%s, %d layers, %s: %s\n%s", name, n, st, ds.String(), res.Program)
				}
			}
		}
	}
}

// TestWhatGoesAhead checks when the blocks of a gather are sent. The blocks are sent before the GEMM of the preceding
// gather is computed, and no earlier. From the third gather on, all blocks arrive in time, so they are multiplied in
// one product. A barrier keeps blocks from being sent ahead, and so does a dependence on the preceding pair.
func TestWhatGoesAhead(t *testing.T) {
	const head = "mesh tp[3]\nfunc f(%x0: f32[6/tp, 6], %x1: f32[6/tp, 6], %x2: f32[6/tp, 6], %w: f32[6, 6]) -> (f32[6, 6], f32[6, 6], f32[6, 6]) {\n" +
		"  %g0: f32[6, 6] = reshard %x0\n  %y0 = linear %g0, %w\n"
	const gather = "  %g#: f32[6, 6] = reshard %x#\n  %y# = linear %g#, %w\n"
	layer := func(i string) string { return strings.ReplaceAll(gather, "#", i) }
	const ret = "  return %y0, %y1, %y2\n}\n"
	for _, c := range []struct{ name, source, want string }{
		{"apart", head + layer("1") + layer("2") + ret, "00 11 000 22 111 2"},
		{"a barrier", head + "  barrier over=tp\n" + layer("1") + layer("2") + ret, "00 000 11 22 111 222"},
		{"made between", head + "  %z = slice %y0, axis=0, 0..6\n  %xx1: f32[6/tp, 6] = reshard %z\n  %g1: f32[6, 6] = reshard %xx1\n  %y1 = linear %g1, %w\n" + layer("2") + ret,
			"00 000 11 22 111 222"},
	} {
		info := check(t, c.source)
		res, err := lower.Run(info.Prog,
			lower.Options{Choose: always(lower.Strategy{Kind: lower.Exchange, Ahead: true})})
		if err != nil {
			t.Fatal(err)
		}
		if got := puttingAndMultiplying(t, c.source, res); got != c.want {
			t.Errorf("%s: rank 0 puts (two each) and multiplies %q, want %q\n%s", c.name, got, c.want, res.Program)
		}
	}
}

// puttingAndMultiplying returns the order in which rank 0 issues puts and products, as a text with one digit, the
// number of the layer, for each group of puts and for each group of products.
func puttingAndMultiplying(t *testing.T, source string, res *lower.Result) string {
	t.Helper()
	c := newCase(t, source, ir.Binding{})
	p, err := c.plan(res)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(source, "\n")
	var words []string
	last := ""
	for i := range p.Cmds {
		cmd := &p.Cmds[i]
		if cmd.Rank != 0 || cmd.Kind != plan.Copy && cmd.Op != ir.OpLinear {
			continue
		}
		text := lines[p.Sites[cmd.Site].Pos.Line-1]
		digit := text[strings.Index(text, "%")+2:][:1]
		kind := digit + cmd.Op.String()
		if cmd.Kind == plan.Copy && (cmd.Peer < 0 || cmd.Peer == 0) {
			continue // within the rank
		}
		if kind != last {
			words = append(words, "")
		}
		last = kind
		words[len(words)-1] += digit
	}
	return strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), " ")
}

// TestAutoGoesAhead checks that, for independent layers, auto sends blocks ahead if the products of single blocks are
// slow. In the measurements on four H200 (docs/measured), the products of single blocks are slow with 2048 rows and not
// with 8192. The simulated plan of ten layers takes less time than with exchange, and the difference is close to the
// difference that is predicted for the pairs.
func TestAutoGoesAhead(t *testing.T) {
	const layers = 10
	var b strings.Builder
	b.WriteString("mesh tp[4]\nfunc f(%w: bf16[N/tp, K]")
	for i := range layers {
		fmt.Fprintf(&b, ", %%x%d: bf16[M/tp, K]", i)
	}
	b.WriteString(") {\n")
	for i := range layers {
		fmt.Fprintf(&b, "  %%y%d = linear %%x%d, %%w\n", i, i)
	}
	info := check(t, b.String()+"}\n")
	described := untabled(t)
	for _, c := range []struct {
		m, n, k int64
		ahead   bool
	}{{2048, 28672, 8192, true}, {2048, 8192, 28672, true}, {8192, 28672, 8192, false}, {8192, 8192, 28672, false},
		{8192, 10240, 8192, false}} {
		dims := ir.Binding{Dims: map[string]int64{"M": c.m, "N": c.n, "K": c.k}}
		u, err := Build(info, Options{Strategy: Auto, Machine: described})
		if err != nil {
			t.Fatal(err)
		}
		res, err := u.LoweredFor(dims)
		if err != nil {
			t.Fatal(err)
		}
		for i, ch := range res.Choices {
			if want := c.ahead && i > 0; ch.Strategy != (lower.Strategy{Kind: lower.Exchange, Ahead: want}) {
				t.Errorf("%d,%d,%d: layer %d: %s, ahead should be %v", c.m, c.n, c.k, i, ch.Strategy, want)
			}
		}
		if !c.ahead {
			continue
		}
		took := map[string]float64{}
		for _, st := range []string{"exchange", Auto} {
			u, err := Build(info, Options{Strategy: st, Machine: described})
			if err != nil {
				t.Fatal(err)
			}
			took[st] = simulated(t, u, dims) / layers
		}
		e, err := u.Explain(dims)
		if err != nil {
			t.Fatal(err)
		}
		predicted := map[string]float64{}
		for _, s := range e.Pairs[layers-1].Strategies {
			predicted[s.Strategy] = s.Time
		}
		t.Logf("%d,%d,%d: plans, µs a layer: %.0f, exchange %.0f; pairs: ahead %.0f, exchange %.0f",
			c.m, c.n, c.k, took[Auto], took["exchange"], predicted["ahead"], predicted["exchange"])
		if got := predicted["ahead"] / took[Auto]; got < 0.9 || got > 1.02 || took[Auto] > 0.98*took["exchange"] {
			t.Errorf("%d,%d,%d: ahead is predicted to take %.0f µs, and of a plan of %d a layer takes %.0f; by exchange %.0f",
				c.m, c.n, c.k, predicted["ahead"], layers, took[Auto], took["exchange"])
		}
	}
}
