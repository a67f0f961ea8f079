package acceptance_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/longtest"
)

// claimWriter writes random layers whose sums over the mesh axis tp are written in many forms. Each layer ends in the
// operation claim, or in a buffer that a function returns.
type claimWriter struct {
	*rand.Rand
	body, funcs, params []string
	ranks               int64
	rows, width, inner  int64 // on each rank: activations are [rows, width] between layers, [rows, inner] inside
	rowsType            string
	layers              []writtenLayer
}

// writtenLayer is the text of a layer's all_reduce, the text that replaces it when it is deleted, and the beginning of
// the line where the checker must report this: the line that claims or returns the rank's partial sum.
type writtenLayer struct{ reduce, instead, claim string }

// randomClaims writes the program for a seed.
func randomClaims(seed uint64) *claimWriter {
	w := &claimWriter{Rand: rand.New(rand.NewPCG(seed, 17))}
	w.ranks = 2 + w.Int64N(3)
	w.rows, w.width, w.inner = 1+w.Int64N(4), w.ranks*(1+w.Int64N(2)), 1+w.Int64N(3)
	w.rowsType = fmt.Sprint(w.rows)
	mesh := fmt.Sprintf("mesh tp[%d]", w.ranks)
	if w.IntN(3) == 0 {
		mesh = fmt.Sprintf("mesh dp[2] tp[%d]", w.ranks)
		w.rowsType = fmt.Sprintf("%d/dp", 2*w.rows)
	}
	w.params = []string{"%h0: " + w.whole()}
	n := 1 + w.IntN(3)
	for i := range n {
		w.layer(i)
	}
	funcs := strings.Join(w.funcs, "\n")
	text := fmt.Sprintf("%s\n\n%s\nfunc f(%s) -> %s {\n%s\n  return %%h%d\n}\n", mesh, funcs,
		strings.Join(w.params, ", "),
		w.whole(), strings.Join(w.body, "\n"), n)
	w.body = []string{text}
	return w
}

func (w *claimWriter) text() string  { return w.body[0] }
func (w *claimWriter) whole() string { return fmt.Sprintf("f64[%s, %d]", w.rowsType, w.width) }

func (w *claimWriter) line(format string, args ...any) {
	w.body = append(w.body, "  "+fmt.Sprintf(format, args...))
}

// layer writes a layer from %hI to %hJ, J = I + 1.
func (w *claimWriter) layer(i int) {
	w.params = append(w.params, fmt.Sprintf("%%u%d: f64[%d/tp, %d]", i, w.ranks*w.inner, w.width),
		fmt.Sprintf("%%d%d: f64[%d, %d/tp]", i, w.width, w.ranks*w.inner))
	w.line("%%a%d = linear %%h%d, %%u%d", i, i, i)
	last := fmt.Sprintf("%%a%d", i)
	ops := []string{"scale %s, by=-2", "scale %s, by=0.5", "neg %s", "mul %s, %[1]s", "add %s, %[1]s", "relu %s"}
	for k := range w.IntN(4) {
		next := fmt.Sprintf("%%a%d_%d", i, k)
		op := ops[w.IntN(len(ops))]
		if op == "relu %s" || op == "mul %s, %[1]s" { // never negative: a later relu of its negation is 0
			ops = slices.DeleteFunc(ops, func(o string) bool { return o == "relu %s" })
		}
		w.line("%s = %s", next, fmt.Sprintf(op, last))
		last = next
	}
	partial := w.IntN(4) == 0
	if partial {
		w.line("%%s%d: f64[%s, %d] partial(tp, sum) = linear %s, %%d%d", i, w.rowsType, w.width, last, i)
		w.line("%%al%d = local %%s%d", i, i)
	} else {
		w.line("%%al%d = local %s", i, last)
		w.line("%%dl%d = local %%d%d", i, i)
	}
	switch w.IntN(8) {
	case 0:
		w.called(i, last)
	case 1:
		w.other(i, partial)
	case 2, 3:
		w.chunks(i, partial)
	default:
		w.sum(i, partial)
		w.reduced(i, fmt.Sprintf("  all_reduce %%y%d into %%y%[1]d, over=tp, op=sum", i), "")
		w.claim(i, w.whole())
	}
}

// sum writes statements that compute the rank's part of the sum into the buffer %yI.
func (w *claimWriter) sum(i int, partial bool) {
	w.line("%%y%d = alloc f64[%d, %d]", i, w.rows, w.width)
	switch n := w.inner; {
	case partial:
		w.line("copy %%al%d into %%y%d", i, i)
	case w.IntN(3) == 0: // divide the summed dimension into chunks
		w.line("fill into %%y%d, value=0", i)
		w.line("for %%k%d in 0..%d {", i, n)
		w.line("  %%p%d = alloc f64[%d, %d]", i, w.rows, w.width)
		w.line("  %%ai%d = chunk %%al%d, axis=1, %%k%d of %d", i, i, i, n)
		w.line("  %%di%d = chunk %%dl%d, axis=1, %%k%d of %d", i, i, i, n)
		w.line("  linear %%ai%d, %%di%d into %%p%d", i, i, i)
		w.line("  add %%y%d, %%p%d into %%y%d", i, i, i)
		w.line("}")
	default:
		w.line("linear %%al%d, %%dl%d into %%y%d", i, i, i)
	}
	if w.IntN(3) == 0 {
		w.line("scale %%y%d into %%y%d, by=%d", i, i, 1+w.IntN(3))
	}
}

// reduced writes an all_reduce, and records the text that replaces it when it is deleted.
func (w *claimWriter) reduced(i int, reduce, instead string) {
	w.body = append(w.body, reduce)
	w.layers = append(w.layers, writtenLayer{reduce + "\n", instead, fmt.Sprintf("  %%z%d: ", i)})
}

func (w *claimWriter) claim(i int, as string) {
	w.line("%%z%d: %s = claim %%y%d", i, as, i)
	if i == 0 || w.IntN(2) == 0 {
		w.line("%%h%d = relu %%z%d", i+1, i)
	} else {
		w.line("%%h%d = add %%z%d, %%h%d", i+1, i, i)
	}
}

// chunks writes statements that compute the sum and reduce it in chunks of rows, with or without separate streams.
func (w *claimWriter) chunks(i int, partial bool) {
	streams := w.IntN(2) == 0
	reduce := fmt.Sprintf("    all_reduce %%p%d into %%yi%d, over=tp, op=sum", i, i)
	w.line("%%y%d = alloc f64[%d, %d]", i, w.rows, w.width)
	if streams {
		w.line("%%s%d_s = stream[2]", i)
		w.line("for %%j%d in 0..2 { on %%s%[1]d_s[%%j%[1]d] { wait main } }", i)
	}
	w.line("for %%c%d in 0..%d {", i, w.rows)
	if streams {
		w.line("on %%s%d_s[%%c%d mod 2] {", i, i)
	}
	w.line("  %%ai%d = chunk %%al%d, axis=0, %%c%d of %d", i, i, i, w.rows)
	w.line("  %%yi%d = chunk %%y%d, axis=0, %%c%d of %d", i, i, i, w.rows)
	w.line("  %%p%d = alloc f64[extent(%%yi%d, 0), %d]", i, i, w.width)
	if partial {
		w.line("  copy %%ai%d into %%p%d", i, i)
	} else {
		w.line("  linear %%ai%d, %%dl%d into %%p%d", i, i, i)
	}
	w.reduced(i, reduce, fmt.Sprintf("    copy %%p%d into %%yi%d\n", i, i))
	if streams {
		w.line("}")
	}
	w.line("}")
	if streams {
		w.line("for %%j%d in 0..2 { wait %%s%[1]d_s[%%j%[1]d] }", i)
	}
	w.claim(i, w.whole())
}

// called writes a function that computes the sum and returns a buffer.
func (w *claimWriter) called(i int, act string) {
	reduce := fmt.Sprintf("  all_reduce %%o%d into %%o%[1]d, over=tp, op=sum", i)
	w.funcs = append(w.funcs, fmt.Sprintf(`func g%d(%%a: f64[%s, %d/tp], %%d: f64[%d, %[3]d/tp]) -> %[5]s {
  %%al = local %%a
  %%dl = local %%d
  %%o%[1]d = alloc f64[%[6]d, %[4]d]
  linear %%al, %%dl into %%o%[1]d
%[7]s
  return %%o%[1]d
}
`, i, w.rowsType, w.ranks*w.inner, w.width, w.whole(), w.rows, reduce))
	w.layers = append(w.layers, writtenLayer{reduce + "\n", "", fmt.Sprintf("  return %%o%d", i)})
	w.line("%%h%d = call g%d %s, %%d%d", i+1, i, act, i)
}

// other writes statements that reduce the sum without an all_reduce.
func (w *claimWriter) other(i int, partial bool) {
	w.sum(i, partial)
	switch w.IntN(4) {
	case 0:
		w.claim(i, w.whole()+" partial(tp, sum)")
		return
	case 1:
		w.line("%%g%d = alloc f64[%d, %d]", i, w.ranks*w.rows, w.width)
		w.line("all_gather %%y%d into %%g%d, over=tp", i, i)
		w.line("%%gr%d = reshape %%g%d, shape=(%d, %d, %d)", i, i, w.ranks, w.rows, w.width)
		w.line("sum %%gr%d into %%y%d, axis=0", i, i)
	case 2:
		w.line("%%g%d = alloc f64[%d, %d]", i, w.rows, w.width/w.ranks)
		w.line("reduce_scatter %%y%d into %%g%d, over=tp, op=sum, axis=1", i, i)
		w.line("all_gather %%g%d into %%y%d, over=tp, axis=1", i, i)
	case 3:
		w.line("%%q%d = alloc f64[%d, %d]", i, w.rows, w.width)
		w.line("copy %%y%d into %%q%d", i, i)
		w.line("for %%e%d in 1..%d {", i, w.ranks)
		w.line("  %%r%d = alloc f64[%d, %d]", i, w.rows, w.width)
		w.line("  group {")
		w.line("    send %%q%d to tp[(rank(tp) + %%e%[1]d) mod %d]", i, w.ranks)
		w.line("    recv %%r%d from tp[(rank(tp) + %[2]d - %%e%[1]d) mod %[2]d]", i, w.ranks)
		w.line("  }")
		w.line("  add %%y%d, %%r%d into %%y%d", i, i, i)
		w.line("}")
	}
	w.claim(i, w.whole())
}

// TestClaimsOfParts checks that random programs that reduce all their partial sums are proved. If one all_reduce is
// deleted, the checker must refute the program at the claim, and name the statement local that took the rank's part.
func TestClaimsOfParts(t *testing.T) {
	right, wrong := longtest.Of(300, 1000), longtest.Of(100, 2000)
	first, deleted := longtest.Seed(t), 0
	for seed := first; seed < first+uint64(right) || deleted < wrong; seed++ {
		w := randomClaims(seed)
		src := w.text()
		p, err := hocket.Parse("claims.hkt", src)
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, src)
		}
		if v, err := hocket.Check(p, hocket.Binding{}); err != nil || v.Kind != hocket.Proved {
			t.Fatalf("seed %d: %v, %v\n%s%s", seed, v.Kind, err, v.Diagnostics, src)
		}
		if seed%30 == 0 {
			if err := rightUnderSchedules(p, seed); err != nil {
				t.Fatalf("seed %d: %v\n%s", seed, err, src)
			}
		}
		for _, l := range w.layers {
			deleted++
			refutedAtClaim(t, seed, strings.Replace(src, l.reduce, l.instead, 1), l.claim)
		}
	}
	t.Logf("%d all_reduces deleted", deleted)
}

// refutedAtClaim checks that err is a single error on the line that begins with the text claim, with a note on a
// statement local.
func refutedAtClaim(t *testing.T, seed uint64, src, claim string) {
	t.Helper()
	p, err := hocket.Parse("claims.hkt", src)
	if err != nil {
		t.Fatalf("seed %d: %v\n%s", seed, err, src)
	}
	v, err := hocket.Check(p, hocket.Binding{})
	if err != nil || v.Kind != hocket.Refuted || len(v.Diagnostics) != 1 {
		t.Fatalf("seed %d: %v, %v\n%s%s", seed, v.Kind, err, v.Diagnostics, src)
	}
	d, lines := v.Diagnostics[0], strings.Split(src, "\n")
	at := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, claim) })
	if d.Kind != "claim" || int(d.Pos.Line) != at+1 || len(d.Notes) != 1 ||
		!strings.Contains(lines[d.Notes[0].Pos.Line-1], "= local ") {
		t.Fatalf("seed %d: want an error at line %d and a note at a local\n%s%s", seed, at+1, v.Diagnostics, src)
	}
}
