package lower

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"hocket.example/hocket/internal/golden"
	"hocket.example/hocket/ir"
)

// TestGoldenOverlap lowers the first section of each file in testdata/overlap with each strategy, and compares the
// program and the log with the other sections.
func TestGoldenOverlap(t *testing.T) {
	golden.Each(t, "testdata/overlap/*.txt", section, func(t *testing.T, _, source string) string {
		got := "\n"
		for _, st := range []Strategy{{Kind: Chunked, Chunks: 3}, {Kind: Exchange}, {Kind: Exchange, Chunks: 2},
			{Kind: Exchange, Ahead: true}} {
			res := overlapped(t, source, st)
			got += section[1:] + st.String() + "\n" + res.Program.String()
			for _, e := range res.Log {
				if e.Pass == "overlap" {
					got += "// " + e.String() + "\n"
				}
			}
		}
		return got
	})
}

// overlapped lowers a program with one strategy and checks the result. The result must be parsed as the same program,
// must need no further passes, and must not change if all passes run again.
func overlapped(t testing.TB, source string, st Strategy) *Result {
	t.Helper()
	choose := func(*Pair) Strategy { return st }
	res, err := Run(parse(t, source), Options{Choose: choose})
	if err != nil {
		t.Fatalf("%s: %v\n%s", st, err, source)
	}
	text := res.Program.String()
	back := parse(t, text)
	if !ir.Equal(back, res.Program) {
		t.Errorf("%s: it parses back as another program:\n%s", st, text)
	}
	again, err := Run(back, Options{Choose: choose})
	if err != nil {
		t.Fatalf("again: %v\n%s", err, text)
	}
	if diff := cmp.Diff(text, again.Program.String()); diff != "" {
		t.Errorf("%s: the passes are not idempotent:\n%s", st, diff)
	}
	return res
}

// TestOwnInParts checks an exchange that cuts only the rank's own block. The peers' blocks are sent whole before the
// own block is computed. The own block is computed in parts; each part is summed and, in an all-reduce, sent.
func TestOwnInParts(t *testing.T) {
	const head, body = "mesh tp[4]\nfunc f(%x: f32[16, 8/tp], %w: f32[6, 8/tp]) -> ", " {\n  %y: "
	for to, want := range map[string][]string{
		"f32[16, 6]": {"alloc f32[size(tp), floordiv(16, size(tp)), 6] symmetric", "linear %x.i, %w into %y.p",
			"for %y.q in 0..3 {",
			"%y.b.i = chunk %y.share, axis=0, %y.q of 3", "%y.slots2 = chunk %y.slots, axis=1, %y.q of 3",
			"linear %x.i3, %w into %y.own", "wait %y.here[%y.k] >= 1",
			"reduce_slots %y.slots2, axis=0, 0..size(tp) into %y.b.i", "put %y.b.i into %y.b.i at tp[%y.d2]",
			"wait %y.done[%y.k2] >= 3"},
		"f32[16/tp, 6]": {"put ", "for %y.q in 0..3 {", "%y.b.i = chunk %y.b, axis=0, %y.q of 3",
			"wait %y.here[%y.k] >= 1", "into %y.b.i"},
	} {
		source := head + to + body + to + " = linear %x, %w\n  return %y\n}\n"
		text := overlapped(t, source, Strategy{Kind: Exchange, Own: 3}).Program.String()
		rest := text
		for _, w := range want {
			_, behind, found := strings.Cut(rest, w)
			if !found {
				t.Errorf("%s: no %q where it belongs in\n%s", to, w, text)
				break
			}
			rest = behind
		}
	}
}

func TestParseStrategy(t *testing.T) {
	for text, want := range map[string]Strategy{
		"": {}, "sequential": {}, "chunked": {Kind: Chunked, Chunks: DefaultChunks},
		"chunked(1)":    {Kind: Chunked, Chunks: 1},
		"chunked(1024)": {Kind: Chunked, Chunks: 1024}, "exchange": {Kind: Exchange}, "exchange(1)": {Kind: Exchange},
		"exchange(2)": {Kind: Exchange, Chunks: 2}, "exchange(1,4)": {Kind: Exchange, Own: 4},
		"exchange(1,1)": {Kind: Exchange}, "ahead": {Kind: Exchange, Ahead: true},
	} {
		got, err := ParseStrategy(text)
		if err != nil || got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
		if again, err := ParseStrategy(got.String()); err != nil || again != got {
			t.Errorf("%v prints as %q, which reads as %v, %v", got, got, again, err)
		}
	}
	for _, text := range []string{"chunk", "chunked(", "chunked()", "chunked(0)", "chunked(-1)", "chunked(1025)",
		"chunked(x)", "chunked)", "Exchange", "auto?", "exchange(0)", "exchange()", "sequential(2)", "(2)"} {
		if s, err := ParseStrategy(text); err == nil {
			t.Errorf("%q reads as %v", text, s)
		}
	}
}

// TestScalesGatheredFirst checks that scales are sent together with the blocks of their values even if the text gathers
// the scales first.
func TestScalesGatheredFirst(t *testing.T) {
	const head = "mesh tp[2]\nfunc f(%x: f8e4m3[t/tp, k], %s: f32[t/tp], %w: f8e4m3[n/tp, k], %v: f32[n/tp]) -> f32[t, n/tp] {\n"
	const scales, values = "  %sg: f32[t] = reshard %s\n", "  %xg: f8e4m3[t, k] = reshard %x\n"
	const tail = "  %y: f32[t, n/tp] = linear %xg, %w, %sg, %v\n  return %y\n}\n"
	var texts []string
	for _, source := range []string{head + scales + values + tail, head + values + scales + tail} {
		res, err := Run(parse(t, source), Options{Choose: func(*Pair) Strategy { return Strategy{Kind: Exchange} }})
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, res.Info.Prog.String())
	}
	if texts[0] != texts[1] || strings.Contains(texts[0], "all_gather") {
		t.Errorf("with scales first:\n%s\nlast:\n%s", texts[0], texts[1])
	}
}

// TestLeftSequential checks the reasons that are recorded for collectives that remain sequential.
func TestLeftSequential(t *testing.T) {
	const head = "mesh dp[2] tp[2]\nfunc f"
	for _, c := range []struct{ name, source, want string }{
		{"no GEMM", "(%x: f32[t/tp, k]) -> f32[t, k] {\n  %y = relu %x\n  return %y\n}", "no linear or matmul uses its result"},
		{"contracted", "(%x: f32[t/dp, k/tp], %w: f32[n, k]) -> f32[t/dp, n] {\n  %y = linear %x, %w\n  return %y\n}",
			"exchange does not apply: the GEMM contracts the gathered dimension"},
		{"some ranks", "(%x: f32[t/tp, k], %w: f32[n, k], %z: inout f32[t, n]) {\n  let %r = rank(dp)\n  if %r == 0 {\n    %g: f32[t, k] = reshard %x\n    %y = linear %g, %w\n    %l = local %y\n    add %z, %l into %z\n  }\n}",
			"exchange does not apply: the pair is in a branch that not all ranks execute"},
		{"rows of an iteration", "(%x: f32[8, k/tp], %w: f32[n, k/tp], %z: f32[1, n]) -> f32[1, n] {\n  %y = for %i in 0..3 carry %h = %z {\n" +
			"    %s = slice %x, axis=0, 0..%i + 1\n    %l: f32[%i + 1, n] = linear (mul %s, %s), %w\n    %c = sum %l, axis=0\n" +
			"    %r = reshape %c, shape=(1, n)\n    %a = add %h, %r\n    yield %a\n  }\n  return %y\n}",
			"exchange does not apply: the number of its rows, %i + 1, differs between iterations"},
		{"a weight is gathered", "(%x: f32[t, k], %w: f32[n/tp, k]) -> f32[t, n] {\n  %v: f32[n, k] = reshard %w\n  %y = linear %x, %v\n  return %y\n}",
			"no linear or matmul uses its result"},
		{"used twice", "(%x: f32[t, k/tp], %w: f32[n, k/tp]) -> (f32[t, n], f32[t, n]) {\n  %y: f32[t, n] partial(tp, sum) = linear %x, %w\n" +
			"  %z = scale %y, by=2\n  return %y, %z\n}", "also has other uses"},
		{"a maximum", "(%x: f32[t, k/tp]) -> f32[t] {\n  %y = max %x, axis=1\n  return %y\n}", ""},
		{"transposed", "(%x: f32[t/tp, k], %w: f32[t, n]) -> f32[k, n] {\n  %g: f32[t, k] = reshard %x\n  %y = matmul %g, %w, ta=true\n  return %y\n}", "no linear or matmul uses its result"},
	} {
		res, err := Run(parse(t, head+c.source+"\n"),
			Options{Choose: func(*Pair) Strategy { return Strategy{Kind: Exchange} }})
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		var log []string
		for _, e := range res.Log {
			if e.Pass == "overlap" {
				log = append(log, e.Why)
			}
		}
		if all := strings.Join(log, "\n"); !strings.Contains(all, c.want) || c.want == "" && all != "" {
			t.Errorf("%s: the log is %q, want %q", c.name, all, c.want)
		}
		if last := res.Stages[len(res.Stages)-1]; last.Changed {
			t.Errorf("%s: overlap changed it:\n%s", c.name, last.Text)
		}
	}
}

// TestAValueNeededByRowsAndEntire uses %x in two ways: %v needs it by rows, and the matrix product needs all of it.
func TestAValueNeededByRowsAndEntire(t *testing.T) {
	p := parse(t, `mesh a[4]

func f(%x: f64[8, 8/a]) -> f64[8, 8] {
  %v = add %x, %x
  %y = matmul %v, %x, tb=true
  return %y
}`)
	res, err := Run(p, Options{Choose: func(*Pair) Strategy { return Strategy{Kind: Exchange} }})
	if err != nil {
		t.Fatal(err)
	}
	if text := res.Program.String(); !strings.Contains(text, ", %x into") && !strings.Contains(text, ", %x, tb=true") {
		t.Errorf("the product does not take all of %%x:\n%s", text)
	}
}
