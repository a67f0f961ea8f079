package compile

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"hocket.example/hocket/internal/lower"
	"hocket.example/hocket/ir"
)

// means reports whether a pair with the strategy asked may be lowered with the strategy got: ahead becomes an exchange
// if no blocks can be sent ahead.
func means(asked, got lower.Strategy) bool {
	got.Ahead = asked.Ahead
	return asked == got
}

// emitted returns the strategy with which lowering overlapped the pair that defines a value. It determines the strategy
// from the text of the lowered function alone, and does not use lowering's record of its choices.
func emitted(f *ir.Func, value string) string {
	collective, chunked, puts := false, false, false
	f.Body.Walk(func(s *ir.Stmt) {
		if len(s.Results) == 1 && s.Results[0].Text == value && s.Op.Info().Class == ir.ClassCollective {
			collective = true
		}
		if !streamOf(s, value) {
			return
		}
		s.Body.Walk(func(x *ir.Stmt) {
			puts = puts || x.Op == ir.OpPut
			chunked = chunked || x.Op.Info().Class == ir.ClassCollective
		})
	})
	switch {
	case puts && goesAhead(f.Body, value):
		return "ahead"
	case puts:
		return "exchange"
	case chunked:
		return "chunked"
	case collective:
		return "sequential"
	}
	return "nothing"
}

// streamOf reports whether s runs on the stream that lowering declares for the pair of a value.
func streamOf(s *ir.Stmt, value string) bool {
	if s.Op != ir.OpOn || s.Args[0].Main {
		return false
	}
	rest, ok := strings.CutPrefix(s.Args[0].Name, value+".s")
	return ok && strings.Trim(rest, "0123456789") == ""
}

// goesAhead reports whether the exchange of a value begins while another exchange is under way and ends after it. An
// exchange that ends first is at its original position, and the other exchange was moved ahead of it.
func goesAhead(b *ir.Block, value string) bool {
	if b == nil {
		return false
	}
	open := map[string]bool{}   // streams of exchanges under way
	before := map[string]bool{} // the streams of exchanges that were under way when the exchange of the value began
	began := false
	for _, s := range b.Stmts {
		if goesAhead(s.Body, value) || goesAhead(s.Else, value) {
			return true
		}
		if s.Op == ir.OpWait && len(s.Args) == 1 {
			if before[s.Args[0].Name] {
				return true
			}
			delete(open, s.Args[0].Name)
			if strings.HasPrefix(s.Args[0].Name, value+".s") {
				clear(before)
			}
		}
		if s.Op != ir.OpOn || s.Args[0].Main {
			continue
		}
		puts := false
		s.Body.Walk(func(x *ir.Stmt) { puts = puts || x.Op == ir.OpPut })
		if !puts {
			continue
		}
		if streamOf(s, value) {
			if !began {
				maps.Copy(before, open)
			}
			began = true
		}
		open[s.Args[0].Name] = true
	}
	return false
}

// TestPredictedIsEmitted checks that the strategy that a prediction names for a pair of collective and GEMM, and for
// which it gives a time and a timeline, is the strategy that the emitted program uses.
func TestPredictedIsEmitted(t *testing.T) {
	if testing.Short() {
		t.Skip("it runs many programs")
	}
	seen := map[string]int{}
	judge := func(t fatal, source, strategy string) {
		u, err := Build(check(t, source), Options{Strategy: strategy, Machine: "h200x4"})
		if err != nil {
			if strings.Contains(err.Error(), "applies to no collective") {
				return
			}
			t.Fatalf("%v", err)
		}
		res, err := u.LoweredFor(ir.Binding{})
		if err != nil {
			t.Fatalf("%v", err)
		}
		e, err := u.Explain(ir.Binding{})
		if err != nil {
			if ds, ok := err.(ir.Diagnostics); ok && len(ds) > 0 && ds[0].Kind == "strategy" {
				return // these dims do not divide
			}
			t.Fatalf("%v", err)
		}
		for _, p := range e.Pairs {
			i := slices.IndexFunc(res.Choices,
				func(c lower.Choice) bool { return c.Pair.Pos.Line == p.Line && c.Pair.Value == p.Value })
			f := res.Program.Func(res.Choices[i].Pair.Func)
			kind, _, _ := strings.Cut(p.Chosen, "(")
			if kind == "delayed" {
				claimed := false
				f.Body.Walk(func(s *ir.Stmt) {
					claimed = claimed || s.Op == ir.OpClaim && s.Results[0].Text == p.Value
				})
				if !claimed {
					t.Fatalf("under %s, %%%s is reported to be delayed, and is not\n%s", strategy, p.Value, res.Program)
				}
			} else if got := emitted(f, p.Value); got != kind {
				t.Fatalf("under %s, %%%s is predicted by %s and emitted by %s\n%s\n%s", strategy, p.Value, p.Chosen,
					got, source, res.Program)
			}
			for _, s := range p.Strategies {
				if s.Strategy == "ahead" && strategy == "ahead" && kind != "ahead" {
					t.Fatalf("%%%s does not go ahead, and what that would take is predicted", p.Value)
				}
			}
			seen[kind]++
		}
	}
	named := []string{"sequential", "chunked", "chunked(3)", "exchange", "exchange(2)", "exchange(1,3)", "ahead", "delayed", Auto}
	for _, between := range []string{"", "  barrier over=tp\n", "  %c# = all_to_all %x0, over=tp, split=1, concat=0\n",
		"  %h# = transpose %y0, perm=(0, 1)\n  %d#: f32[6/tp, 6] = linear %h#, %u\n"} {
		for n := 1; n <= 4; n++ {
			for _, st := range named {
				judge(t, apart(n, between), st)
			}
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		source := drawProgram(t)
		for _, st := range named {
			judge(t, source, st)
		}
	})
	t.Logf("pairs by strategy: %v", seen)
	for _, kind := range []string{"sequential", "chunked", "exchange", "ahead"} {
		if seen[kind] == 0 {
			t.Errorf("no pair was %s", kind)
		}
	}
}

// TestAheadOfNothing checks that, if no blocks can be sent ahead, the prediction for ahead is equal to that for
// exchange, because the emitted program is the same.
func TestAheadOfNothing(t *testing.T) {
	info := check(t, tensorParallel)
	b := ir.Binding{Func: "mlp", Ranks: 0, Dims: map[string]int64{"T": 8192, "H": 8192, "F": 28672}}
	time, text := map[string]float64{}, map[string]string{}
	for _, st := range []string{"exchange", "ahead"} {
		u, err := Build(info, Options{Strategy: st, Machine: "h200x4"})
		if err != nil {
			t.Fatalf("%v", err)
		}
		e, err := u.Explain(b)
		if err != nil {
			t.Fatalf("%v", err)
		}
		time[st], text[st] = e.Time, u.Lowered.Program.String()
	}
	if text["ahead"] != text["exchange"] || time["ahead"] != time["exchange"] {
		t.Errorf("%v; one program: %v", time, text["ahead"] == text["exchange"])
	}
}

// TestAheadTakesWhatPlansDo checks, for different numbers of layers, that the predicted time of the strategy ahead is
// equal to the time of its simulated plan. The first layer's blocks are not sent ahead of any GEMM, the second layer is
// computed block by block, and the later layers are each computed as one product.
func TestAheadTakesWhatPlansDo(t *testing.T) {
	dims := ir.Binding{Dims: map[string]int64{"M": 2048, "N": 28672, "K": 8192}}
	for layers := 1; layers <= 6; layers++ {
		var b strings.Builder
		b.WriteString("mesh tp[4]\nfunc f(%w: bf16[N/tp, K]")
		for i := range layers {
			fmt.Fprintf(&b, ", %%x%d: bf16[M/tp, K]", i)
		}
		b.WriteString(") {\n")
		for i := range layers {
			fmt.Fprintf(&b, "  %%y%d = linear %%x%d, %%w\n", i, i)
		}
		u, err := Build(check(t, b.String()+"}\n"), Options{Strategy: "ahead", Machine: untabled(t)})
		if err != nil {
			t.Fatal(err)
		}
		e, err := u.Explain(dims)
		if err != nil {
			t.Fatal(err)
		}
		if took := simulated(t, u, dims); e.Time < 0.99*took || e.Time > 1.01*took {
			t.Errorf("%d layers: %.0f µs are predicted, the plan takes %.0f", layers, e.Time, took)
		}
	}
}
