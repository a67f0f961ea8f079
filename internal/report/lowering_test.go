package report

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"hocket.example/hocket/internal/golden"
	"hocket.example/hocket/internal/lower"
	"hocket.example/hocket/internal/trace"
	"hocket.example/hocket/ir"
)

const mlp = `dim T = 16
mesh tp[2]

// The layout of this text differs from the canonical format.
func mlp(%x: f32[T/tp,8], %w: f32[8/tp, 8]) -> f32[T, 8/tp] {
  %h=linear %x, %w   // x is gathered
  %y = relu %h
  return %y
}
`

// lowering lowers a program, and sets the times of the passes to one, two and three milliseconds.
func lowering(t testing.TB, file, src, strategy string) *Lowering {
	t.Helper()
	p, ds := ir.Parse(file, src)
	if ds.HasErrors() {
		t.Fatal(ds)
	}
	return ofProgram(t, p, strategy)
}

func ofProgram(t testing.TB, p *ir.Program, strategy string) *Lowering {
	t.Helper()
	s, err := lower.ParseStrategy(strategy)
	if err != nil {
		t.Fatal(err)
	}
	res, err := lower.Run(p, lower.Options{Choose: func(*lower.Pair) lower.Strategy { return s }})
	if err != nil {
		t.Fatal(err)
	}
	for i := range res.Stages {
		res.Stages[i].Duration = time.Duration(i+1) * time.Millisecond
	}
	return &Lowering{Source: p, Stages: res.Stages, Log: res.Log}
}

func page(t testing.TB, l *Lowering) string {
	t.Helper()
	var b bytes.Buffer
	if err := l.WriteHTML(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// predicted returns a prediction in which all fields are set.
func predicted() *Prediction {
	tr := &trace.Trace{Ranks: 1, Events: []trace.Event{
		{Stream: "side", ID: 1, Name: "all_gather", Class: trace.Comm, Start: 1000, End: 41000, Group: trace.NoGroup},
		{Stream: "main", ID: 0, Name: "barrier", Class: trace.Comm, Start: 0, End: 1000, Group: trace.NoGroup},
		{Stream: "main", ID: 2, Name: "linear", Detail: "linear 0", Class: trace.Compute, Start: 41000, End: 100000,
			Group: trace.NoGroup},
	}}
	tr.Sort()
	return &Prediction{Subject: "mlp on 2 ranks T=16", Machine: "cpu (guessed)", Time: 100, Sequential: 125,
		Timeline: tr, Cut: true,
		Notes: []Note{
			{Kind: "Reshards", Line: 6, Value: "x.g", Title: "f32[T/tp, 8] → f32[T, 8]",
				Detail: []string{"for operand 0 of linear"}},
			{Kind: "Strategies", Line: 6, Value: "x.g", Title: "all_gather + linear", Choices: []Choice{
				{Name: "sequential", Time: 125}, {Name: "chunked(2)", Time: 100, Taken: true},
				{Name: "exchange", Time: 1e9, Reason: "rows do not divide"}}},
			{Kind: "Not overlapped", Title: "without a line"},
		}}
}

// fixed returns a Lowering with given texts instead of the output of the passes.
func fixed(t *testing.T) *Lowering {
	t.Helper()
	p, ds := ir.Parse("mlp.hkt", mlp)
	if ds.HasErrors() {
		t.Fatal(ds)
	}
	head, _, _ := strings.Cut(p.String(), "  %h")
	shard := head + "  %x.g: f32[T, 8] = reshard %x\n  %h = linear %x.g, %w  // x is gathered\n  %y = relu %h\n  return %y\n}\n"
	gather := strings.Replace(shard, "reshard %x", "all_gather %x, over=tp, axis=0", 1)
	from := []ir.Pos{{Line: 6, Col: 6}, {Line: 6, Col: 6}, {Line: 7, Col: 8}, {}}
	return &Lowering{Source: p,
		Stages: []lower.Stage{
			{Pass: "shard", Text: shard, Changed: true, Origins: from, Duration: time.Millisecond},
			{Pass: "decompose", Text: gather, Changed: true, Origins: from, Duration: 20 * time.Millisecond},
			{Pass: "overlap", Text: gather, Origins: from, Duration: 1500 * time.Nanosecond},
			{Pass: "lost", Text: gather, Changed: true, Origins: from[1:]}, // origins of another text are ignored
		},
		Log: []lower.Entry{
			{Pass: "shard", Func: "mlp", Pos: ir.Pos{Line: 6, Col: 6}, Value: "x", From: "f32[T/tp, 8]",
				To: "f32[T, 8]", Result: "x.g", Why: "operand 0 of linear"},
			{Pass: "decompose", Func: "mlp", Pos: ir.Pos{Line: 6, Col: 6}, Value: "x.g", From: "f32[T/tp, 8]",
				To: "f32[T, 8]", Why: "all_gather over tp"},
		}}
}

// TestGolden compares the content of pages with golden files.
func TestGolden(t *testing.T) {
	withPrediction, unbound, imported, built := fixed(t), fixed(t), fixed(t), fixed(t)
	withPrediction.Prediction = predicted()
	unbound.Unpredicted = "dim K has no value"
	imported.Source.Source = "%HostIrContainer {\n  linear\n}\n"
	built.Source.Source = ""
	for name, l := range map[string]*Lowering{"predicted": withPrediction, "unpredicted": unbound, "imported": imported,
		"built": built} {
		t.Run(name, func(t *testing.T) {
			got := outline(t, page(t, l))
			golden.File(t, filepath.Join("testdata", name+".txt"), got)
		})
	}
}

// TestTexts lowers every example, and compares every column of the page with the source or the output of the pass that
// it shows.
func TestTexts(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "..", "examples", "*.hkt"))
	if err != nil || len(files) < 5 {
		t.Fatal(files, err)
	}
	strategies := []string{"sequential", "chunked(3)", "exchange"}
	if testing.Short() {
		strategies = strategies[2:]
	}
	for _, file := range files {
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, strategy := range strategies {
			l := lowering(t, filepath.Base(file), string(src), strategy)
			cols := parse(t, page(t, l)).find("section.col")
			if len(cols) != 1+len(l.Stages) {
				t.Fatalf("%s: %d columns for %d stages", file, len(cols), len(l.Stages))
			}
			for i, col := range cols {
				want := string(src)
				if i > 0 {
					want = l.Stages[i-1].Text
				}
				if diff := cmp.Diff(want, columnText(col)); diff != "" {
					t.Errorf("%s, %s, column %d: %s", file, strategy, i, diff)
				}
				last := 0 // the result
				for k, s := range l.Stages {
					if s.Changed {
						last = k + 1
					}
				}
				if open := i == 0 || i == last; col.has("folded") == open {
					t.Errorf("%s, %s, column %d: only the source and the result must be open", file, strategy, i)
				}
			}
		}
	}
}

// TestOrigins checks that every statement of every stage has its origin in a statement of the source, and that every
// statement of the source is the origin of a statement.
func TestOrigins(t *testing.T) {
	l := lowering(t, "mlp.hkt", mlp, "exchange")
	for i, c := range columns(l) {
		seen := map[int32]bool{}
		for k, line := range c.each() {
			statement := k.fn != "" && !strings.HasPrefix(k.text, "//")
			if statement && line.Origin == 0 {
				t.Errorf("column %d: %q has no origin", i, k.text)
			}
			seen[line.Origin] = true
		}
		for n := int32(5); n <= 8; n++ {
			if !seen[n] {
				t.Errorf("column %d: no line has its origin in line %d", i, n)
			}
		}
	}
}

// TestHostile puts HTML markup into the names and comments of a program, and checks that the page shows it as text.
func TestHostile(t *testing.T) {
	for _, evil := range []string{
		`<script>alert(1)</script>`, `</script><script>alert(1)</script>`, `--><img src=x onerror=alert(1)>`,
		`"><svg onload=alert(1)>`, `' onmouseover='alert(1)`, `</p></div></style>`, `<!--`, `&lt;b&gt; &amp;`,
		`{{.Script}}`, "javascript:alert(1)\u2028x", `]]>`, `%x<b>`,
	} {
		src := strings.Replace(mlp, "x is gathered", evil, 1) + "\n// " + evil + "\n"
		l := lowering(t, evil+".hkt", src, "chunked(2)")
		l.Prediction = predicted()
		l.Prediction.Subject, l.Prediction.Machine = evil, evil
		l.Prediction.Notes = append(l.Prediction.Notes,
			Note{Kind: evil, Line: 1, Value: evil, Title: evil, Detail: []string{evil},
				Choices: []Choice{{Name: evil}, {Name: "no", Reason: evil}}})
		for i := range l.Prediction.Timeline.Events {
			e := &l.Prediction.Timeline.Events[i]
			e.Name, e.Detail, e.Stream = evil, evil, evil
		}
		text := page(t, l)
		root := parse(t, text)
		if n := len(root.find("script")); n != 1 {
			t.Errorf("%q: %d scripts", evil, n)
		}
		for _, e := range root.all(func(*node) bool { return true }) {
			if e.name == "img" || e.name == "link" || e.name == "iframe" {
				t.Errorf("%q: an element <%s>", evil, e.name)
			}
			for a := range e.attrs {
				if strings.HasPrefix(a, "on") || a == "href" || a == "src" {
					t.Errorf("%q: <%s> has an attribute %s", evil, e.name, a)
				}
			}
		}
		if got := columnText(root.find("section.col")[0]); got != src {
			t.Errorf("%q: the source reads %s", evil, cmp.Diff(src, got))
		}
		if want := evil + ".hkt · hocket opt"; root.one(t, "head").one(t, "title").content() != want {
			t.Errorf("the title is %q", root.one(t, "head").one(t, "title").content())
		}
	}
}

// TestFileName checks that the page is UTF-8 even if the file name is not.
func TestFileName(t *testing.T) {
	text := page(t, lowering(t, "caf\xe9.hkt", mlp, "sequential"))
	if !utf8.ValidString(text) {
		t.Error("the page is not UTF-8")
	}
	if got := parse(t, text).one(t, "head").one(t, "title").content(); got != "caf\uFFFD.hkt · hocket opt" {
		t.Errorf("the title is %q", got)
	}
}

// TestSelfContained checks that the page loads nothing and that only its own script may run.
func TestSelfContained(t *testing.T) {
	text := page(t, lowering(t, "mlp.hkt", mlp, "exchange"))
	for _, s := range []string{"http://", "https://", "@import", "url(", "src=", "href="} {
		if strings.Contains(text, s) {
			t.Errorf("the page contains %q", s)
		}
	}
	root := parse(t, text)
	script := root.one(t, "script").content()
	if script != asset("frame.js")+asset("lowering.js") {
		t.Error("the script is not the one that the policy allows")
	}
	for _, m := range root.find("meta") {
		if m.attrs["http-equiv"] == "Content-Security-Policy" && m.attrs["content"] == policy(script) {
			return
		}
	}
	t.Error("no policy")
}

func TestDeterminism(t *testing.T) {
	l := lowering(t, "mlp.hkt", mlp, "exchange")
	l.Prediction = predicted()
	first := page(t, l)
	for range 20 {
		if page(t, l) != first {
			t.Fatal("two pages of one program differ")
		}
	}
}

// layers returns the text of a model of n layers without a loop.
func layers(n int) string {
	var b strings.Builder
	b.WriteString("mesh tp[4]\nfunc model(%x0: bf16[64/tp, 32]")
	for i := range n {
		fmt.Fprintf(&b, ", %%u%d: bf16[128/tp, 32], %%d%d: bf16[32, 128/tp]", i, i)
	}
	b.WriteString(") -> bf16[64/tp, 32] {\n")
	for i := range n {
		fmt.Fprintf(&b, "  %%h%d = linear %%x%d, %%u%d\n  %%g%d = gelu %%h%d\n  %%y%d: bf16[64/tp, 32] = linear %%g%d, %%d%d\n  %%x%d = add %%y%d, %%x%d\n", i, i, i, i, i, i, i, i, i+1, i, i)
	}
	fmt.Fprintf(&b, "  return %%x%d\n}\n", n)
	return b.String()
}

// TestSize limits the size of the page of 32 layers.
func TestSize(t *testing.T) {
	l := lowering(t, "layers.hkt", layers(32), "exchange")
	start := time.Now()
	text := page(t, l)
	lines := strings.Count(text, "<p")
	t.Logf("%d lines, %d KiB, %v", lines, len(text)>>10, time.Since(start))
	if len(text) > 1<<20 {
		t.Errorf("%d bytes for %d lines", len(text), lines)
	}
}

func BenchmarkPage(b *testing.B) {
	l := lowering(b, "layers.hkt", layers(320), "exchange")
	for b.Loop() {
		page(b, l)
	}
}
