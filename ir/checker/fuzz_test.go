package checker

import (
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/irtest"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// checkSources returns the programs that are the seeds of fuzzing.
func checkSources(t testing.TB) []string {
	var list []string
	for _, pattern := range []string{"testdata/check/*.txt", "testdata/bind/*.txt", "../../examples/*.hkt"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			src, _, _ := strings.Cut(string(text), irtest.GoldenMark)
			list = append(list, src)
		}
	}
	return append(list, checkSample)
}

// checkSample is a program without errors that uses most of the language.
const checkSample = `
dim T = 16
dim C = 3
mesh dp[2] tp[2]
mesh d[2] = {1 2}

func base(%x: f32[T/tp, 8], %w: f32[8/tp, 8], %io: inout f32[4]) -> (f32[T, 8/tp], f32[T/dp]) {
  %h = linear %x, %w
  %g = gelu %h
  %v = sum %g, axis=1
  return %h, %v
}

func f(%x: f32[T/tp, 8], %w: f32[8/tp, 8], %io: inout f32[4]) -> (f32[T, 8/tp], f32[T/dp]) refines base {
  let %r = rank(tp)
  let %n = (%r + 1) mod size(tp)
  %s = stream[2], priority=high
  %c = counter[size(tp)]
  %e = event
  %all = alloc f32[T, 8] symmetric
  %y = alloc f32[T, 8/tp]
  barrier over=tp
  on %s[0] {
    wait main
    %to = chunk %all, axis=0, %r of size(tp)
    put %x into %to at tp[%n]
    signal %c[%r] at tp[%n]
    record %e
  }
  wait %e
  if %r == 0 {
    wait %c[1] >= 1
  } else {
    wait %c[0] >= 1
  }
  for %i in 0..C stream(2) {
    %xi = chunk %all, axis=0, %i of C
    %yi = chunk %y, axis=0, %i of C
    %t = alloc f32[extent(%xi, 0), extent(%yi, 1)]
    linear %xi, %w into %t, sms=100 + %r
    copy %t into %yi
    free %t
  }
  group {
    send %io to tp[%n]
    recv %io from tp[%n]
  }
  wait %s[0]
  %z: f32[T, 8/tp] = claim %y
  %a, %b = call base %x, %w, %io
  %k: f32[T/dp] = add %b, %b
  return %a, %k
}
`

// judgeCheck checks that Check is deterministic, and that Bind and the methods of a bound program do not panic for
// programs that Check accepts.
func judgeCheck(t testing.TB, src string, p *ir.Program) {
	in, ds := Check(p)
	if q, again := ir.Parse(p.File, src); src != "" && len(again) == 0 {
		if _, twice := Check(q); twice.String() != ds.String() {
			t.Fatalf("first\n%s\nthen\n%s\nof\n%s", ds, twice, src)
		}
	}
	if len(ds) > ir.MaxDiagnostics {
		t.Fatalf("%d diagnostics", len(ds))
	}
	if ds.HasErrors() {
		return
	}
	for _, b := range []ir.Binding{{}, {Ranks: 4}, {Dims: map[string]int64{"T": 0, "C": 1}},
		{Dims: map[string]int64{"T": 1 << 61}}} {
		bound, _ := ir.Bind(in, b)
		if bound == nil {
			continue
		}
		for _, param := range bound.Func.Params {
			for r := range min(bound.Ranks, 8) {
				if shape, err := bound.LocalShape(param.Type, bound.Env(r, nil)); err == nil {
					bound.Offset(param.Type, shape, r)
				}
			}
		}
		bound.Func.Body.Walk(func(s *ir.Stmt) { bound.CheckStmt(s, bound.Env(0, nil)) })
	}
}

func FuzzCheck(f *testing.F) {
	for _, src := range checkSources(f) {
		f.Add(src)
	}
	f.Fuzz(func(t *testing.T, src string) {
		if p, ds := ir.Parse("fuzz", src); len(ds) == 0 {
			judgeCheck(t, src, p)
		}
	})
}

// TestCheckSurvivesNonsense checks programs that are built from random parts, without the parser.
func TestCheckSurvivesNonsense(t *testing.T) {
	for seed := range irtest.RandomRuns() / 4 {
		judgeCheck(t, "", irtest.RandomProgram(seed))
	}
}

// TestCheckSurvivesMutation checks correct programs in which words were exchanged.
func TestCheckSurvivesMutation(t *testing.T) {
	sources := checkSources(t)
	parsed, clean := 0, 0
	for seed := range irtest.RandomRuns() / 4 {
		r := rand.New(rand.NewPCG(seed, 3))
		src := mutate(r, sources[r.IntN(len(sources))])
		p, ds := ir.Parse("mutant", src)
		if len(ds) > 0 {
			continue
		}
		parsed++
		if _, ds := Check(p); !ds.HasErrors() {
			clean++
		}
		judgeCheck(t, src, p)
	}
	if parsed*40 < int(irtest.RandomRuns()) || clean == 0 {
		t.Errorf("%d mutants parse and %d are clean; too few to mean anything", parsed, clean)
	}
}

// mutate replaces words by other words of the text, and deletes or repeats lines.
func mutate(r *rand.Rand, src string) string {
	lines := strings.Split(src, "\n")
	for range 1 + r.IntN(3) {
		i := r.IntN(len(lines))
		switch r.IntN(4) {
		case 0:
			lines = append(lines[:i], lines[i+1:]...)
			if len(lines) == 0 {
				return ""
			}
		case 1:
			lines = append(lines[:i+1], lines[i:]...)
		default:
			words := tokens(src)
			mine := tokens(lines[i])
			if len(mine) > 0 && len(words) > 0 {
				from, to := mine[r.IntN(len(mine))], words[r.IntN(len(words))]
				lines[i] = strings.Replace(lines[i], from, to, 1)
			}
		}
	}
	return strings.Join(lines, "\n")
}

// tokens returns the words, names and numbers of a text.
func tokens(text string) []string {
	return strings.FieldsFunc(text, func(c rune) bool {
		return c != '%' && c != '_' && c != '.' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z')
	})
}

func TestCheckSampleIsClean(t *testing.T) {
	mustBind(t, checkSample, ir.Binding{})
	irtest.RoundTrip(t, "sample", checkSample)
}
