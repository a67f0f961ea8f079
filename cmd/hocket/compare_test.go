package main

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// comparisons is the number of random mutants, and of random equivalent programs, that are compared.
var comparisons = flag.Int("comparisons", 200, "how many random programs are compared")

// TestMutants changes random programs. The comparison of each changed program with the original must find a difference,
// or be undecided.
func TestMutants(t *testing.T) {
	found, skipped := map[int]int{}, 0
	r := rand.New(rand.NewPCG(1, 1))
	for n := 0; n < *comparisons; {
		right := randomTerm(r, 4)
		what, wrong := mutated(right, r)
		if wrong == nil || !changes(right, wrong) {
			skipped++ // the mutant computes the same function, or almost the same
			continue
		}
		n++
		src := refining(right, wrong, r)
		code, out := runText(t, src, "--compare")
		if found[code]++; code != exitHocket && code != exitUndecided {
			t.Errorf("%s: exit code %d\n%s%s", what, code, src, out)
		}
	}
	t.Logf("exit codes %v; %d mutants that compute nearly the same were left out", found, skipped)
	if found[exitHocket] < *comparisons*9/10 {
		t.Errorf("only %d of %d mutants are refuted", found[exitHocket], *comparisons)
	}
}

// TestRewritings compares pairs of different programs that compute the same function.
func TestRewritings(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	kinds := map[string]int{}
	for range *comparisons * 3 / 4 {
		var right, same *term
		var what string
		for same == nil {
			right = randomTerm(r, 4)
			what, same = rewritten(right, r)
		}
		kinds[what]++
		if changes(right, same) {
			t.Fatalf("%s changes the meaning\n%s", what, refining(right, same, r))
		}
		src := refining(right, same, r)
		if code, out := runText(t, src, "--compare"); code != exitDone {
			t.Errorf("%s: exit code %d\n%s%s", what, code, src, out)
		}
	}
	t.Log(kinds)
	if len(kinds) < len(rewritings) {
		t.Errorf("some rewriting never applies: %v", kinds)
	}
	strategies := []string{"sequential", "chunked(2)", "chunked", "exchange", "exchange(2)", "exchange(1,2)",
		"ahead", "auto"}
	for i := range *comparisons / 4 {
		strategy := strategies[i%len(strategies)]
		src := fmt.Sprintf(`mesh tp[%d]
func layer(%%x: %[2]s[16*%[3]d/tp, 16], %%a: %[2]s[32/tp, 16], %%b: %[2]s[16, 32/tp]) -> %[2]s[16*%[3]d/tp, 16] {
  %%h = linear %%x, %%a
  %%g = %[4]s %%h
  %%y = linear %%g, %%b
  return %%y
}
`, 2<<r.IntN(2), []string{"f32", "bf16", "f16", "f64"}[r.IntN(4)], 1+r.IntN(3),
			[]string{"relu", "gelu", "silu", "neg"}[r.IntN(4)])
		if code, out := runText(t, src, "--compare", "--strategy", strategy, "--seed",
			fmt.Sprint(i)); code != exitDone {
			t.Errorf("%s: exit code %d\n%s%s", strategy, code, src, out)
		}
	}
}

// runText runs a program and returns the exit code and what was printed.
func runText(t *testing.T, src string, flags ...string) (int, string) {
	t.Helper()
	dir := t.TempDir()
	name := filepath.Join(dir, "p.hkt")
	if err := os.WriteFile(name, []byte(src), 0o666); err != nil {
		t.Fatal(err)
	}
	out, err := os.Create(filepath.Join(dir, "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	code := run(append([]string{"run", name}, flags...), os.Stdin, out, out)
	text, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	return code, string(text)
}

// side is the number of rows and of columns of all matrices in these tests.
const side = 8

// term is an expression on side×side matrices. Terms are immutable and may be shared.
type term struct {
	op   string
	args []*term
	c    float64 // scale
	from int     // param
}

var (
	unary  = []string{"neg", "relu", "gelu", "silu"}
	binary = []string{"add", "sub", "mul", "linear"}
)

func randomTerm(r *rand.Rand, depth int) *term {
	if depth == 0 {
		return &term{op: "param", from: r.IntN(2)}
	}
	sub := func() *term { return randomTerm(r, r.IntN(depth)) }
	switch k := r.IntN(10); {
	case k < 5:
		return &term{op: binary[r.IntN(len(binary))], args: []*term{randomTerm(r, depth-1), sub()}}
	case k < 7:
		return &term{op: unary[r.IntN(len(unary))], args: []*term{randomTerm(r, depth-1)}}
	case k < 8:
		return &term{op: "colsum", args: []*term{randomTerm(r, depth-1)}}
	}
	return &term{op: "scale", c: []float64{-2, -0.5, 0.25, 2, 3}[r.IntN(5)], args: []*term{randomTerm(r, depth-1)}}
}

// terms lists t and all its subterms.
func (t *term) terms() []*term {
	out := []*term{t}
	for _, a := range t.args {
		out = append(out, a.terms()...)
	}
	return out
}

// replaced returns t with the subterm old replaced by another term.
func (t *term) replaced(old, by *term) *term {
	if t == old {
		return by
	}
	out := *t
	out.args = slices.Clone(t.args)
	for i, a := range t.args {
		out.args[i] = a.replaced(old, by)
	}
	return &out
}

// mutated returns t with one constant, op or operand changed, and the name of the change. The term is nil if t has none
// of these.
func mutated(t *term, r *rand.Rand) (string, *term) {
	all := t.terms()
	old := all[r.IntN(len(all))]
	by := *old
	by.args = slices.Clone(old.args)
	what := "op replaced"
	switch {
	case old.op == "param":
		by.from, what = 1-old.from, "operand replaced"
	case old.op == "scale":
		by.c, what = []float64{-old.c, old.c * 1.25, old.c + 1, 0}[r.IntN(4)], "constant changed"
	case len(old.args) == 1 && old.op != "colsum":
		by.op = unary[r.IntN(len(unary))]
	case len(old.args) == 2 && r.IntN(2) == 0:
		by.args[0], by.args[1], what = old.args[1], old.args[0], "operands swapped"
	case len(old.args) == 2:
		by.op = binary[r.IntN(len(binary))]
	default:
		return "", nil
	}
	return what, t.replaced(old, &by)
}

// rewritings are functions, by name, that return another term for the same value, or nil if they do not apply to t.
var rewritings = map[string]func(t *term, r *rand.Rand) *term{
	"x + x = scale 2": func(t *term, _ *rand.Rand) *term {
		switch {
		case t.op == "scale" && t.c == 2:
			return &term{op: "add", args: []*term{t.args[0], t.args[0]}}
		case t.op == "add" && t.args[0].equal(t.args[1]):
			return &term{op: "scale", c: 2, args: t.args[:1]}
		}
		return nil
	},
	"relu of relu": func(t *term, _ *rand.Rand) *term {
		if t.op != "relu" {
			return nil
		}
		return &term{op: "relu", args: []*term{t}}
	},
	"reassociated": func(t *term, _ *rand.Rand) *term {
		if t.op != "add" || t.args[0].op != "add" {
			return nil
		}
		a, b, c := t.args[0].args[0], t.args[0].args[1], t.args[1]
		return &term{op: "add", args: []*term{a, {op: "add", args: []*term{b, c}}}}
	},
	"commuted": func(t *term, _ *rand.Rand) *term {
		if t.op != "add" && t.op != "mul" {
			return nil
		}
		return &term{op: t.op, args: []*term{t.args[1], t.args[0]}}
	},
	"sub = add neg": func(t *term, _ *rand.Rand) *term {
		if t.op != "sub" {
			return nil
		}
		return &term{op: "add", args: []*term{t.args[0], {op: "neg", args: t.args[1:]}}}
	},
	"neg = scale -1": func(t *term, _ *rand.Rand) *term {
		if t.op != "neg" {
			return nil
		}
		return &term{op: "scale", c: -1, args: t.args}
	},
	"sums of sums": func(t *term, _ *rand.Rand) *term {
		if t.op != "colsum" || t.args[0].op != "add" {
			return nil
		}
		a, b := t.args[0].args[0], t.args[0].args[1]
		return &term{op: "add", args: []*term{{op: "colsum", args: []*term{a}}, {op: "colsum", args: []*term{b}}}}
	},
	"linear in its first operand": func(t *term, _ *rand.Rand) *term {
		if t.op != "linear" || t.args[0].op != "scale" {
			return nil
		}
		x := t.args[0]
		return &term{op: "scale", c: x.c, args: []*term{{op: "linear", args: []*term{x.args[0], t.args[1]}}}}
	},
	"scaled twice": func(t *term, _ *rand.Rand) *term {
		if t.op != "scale" {
			return nil
		}
		return &term{op: "scale", c: 2, args: []*term{{op: "scale", c: t.c / 2, args: t.args}}}
	},
}

// rewritten applies a random rewriting to a subterm of t to which it applies, and returns nil if there is none.
func rewritten(t *term, r *rand.Rand) (string, *term) {
	var names []string
	for name := range rewritings {
		names = append(names, name)
	}
	slices.Sort(names)
	name := names[r.IntN(len(names))]
	for _, old := range t.terms() {
		if by := rewritings[name](old, r); by != nil {
			return name, t.replaced(old, by)
		}
	}
	return name, nil
}

func (t *term) equal(o *term) bool { return t.String() == o.String() }

func (t *term) String() string { return fmt.Sprint(t.op, t.c, t.from, t.args) }

// matrix holds side×side numbers.
type matrix [side * side]float64

// at computes the value of t in float64, without any code of hocket.
func (t *term) at(params []*matrix) *matrix {
	if t.op == "param" {
		return params[t.from]
	}
	var y matrix
	a := t.args[0].at(params)
	b := a
	if len(t.args) == 2 {
		b = t.args[1].at(params)
	}
	for i := range y {
		row, col := i/side, i%side
		switch x := a[i]; t.op {
		case "add":
			y[i] = x + b[i]
		case "sub":
			y[i] = x - b[i]
		case "mul":
			y[i] = x * b[i]
		case "neg":
			y[i] = -x
		case "scale":
			y[i] = t.c * x
		case "relu":
			y[i] = max(x, 0)
		case "gelu":
			y[i] = x * 0.5 * math.Erfc(-x/math.Sqrt2)
		case "silu":
			y[i] = x / (1 + math.Exp(-x))
		case "linear":
			for k := range side {
				y[i] += a[row*side+k] * b[col*side+k]
			}
		case "colsum":
			for k := range side {
				y[i] += a[k*side+col]
			}
		default:
			panic(t.op)
		}
	}
	return &y
}

// changes evaluates two terms on random reals. changes reports whether at least one in sixteen elements differs by more
// than a hundredth of the largest element.
func changes(a, b *term) bool {
	r := rand.New(rand.NewPCG(3, 3))
	differ, all := 0, 0
	for range 10 {
		params := []*matrix{{}, {}}
		for _, p := range params {
			for i := range p {
				p[i] = 2*r.Float64() - 1
			}
		}
		x, y := a.at(params), b.at(params)
		largest := 0.0
		for i := range x {
			largest = max(largest, math.Abs(x[i]), math.Abs(y[i]))
		}
		for i := range x {
			all++
			if math.Abs(x[i]-y[i]) > largest/100 {
				differ++
			}
		}
	}
	return differ*16 > all
}

// refining returns a program of two functions on tensors of a random type and layout. The second function is declared
// to compute the same as the first (refines).
func refining(right, other *term, r *rand.Rand) string {
	dt := []string{"f32", "f32", "f64", "bf16"}[r.IntN(4)]
	layouts := []string{"[8, 8]", "[8/tp, 8]", "[8, 8/tp]"}
	x, w := layouts[r.IntN(3)], layouts[r.IntN(3)]
	head := fmt.Sprintf("(%%x: %s%s, %%w: %s%s) -> %s[8, 8]", dt, x, dt, w, dt)
	return "mesh tp[2]\n\nfunc right" + head + " {\n" + right.text() + "}\n\nfunc other" + head + " refines right {\n" +
		other.text() + "}\n"
}

// text returns the body of a function that returns t.
func (t *term) text() string {
	var b strings.Builder
	n := 0
	var emit func(t *term) string
	emit = func(t *term) string {
		if t.op == "param" {
			return []string{"%x", "%w"}[t.from]
		}
		var args []string
		for _, a := range t.args {
			args = append(args, emit(a))
		}
		n++
		name, list := fmt.Sprintf("%%v%d", n), strings.Join(args, ", ")
		switch t.op {
		case "scale":
			fmt.Fprintf(&b, "  %s = scale %s, by=%g\n", name, list, t.c)
		case "colsum":
			fmt.Fprintf(&b, "  %s.s = sum %s, axis=0\n  %s = broadcast %s.s, shape=(8, 8)\n", name, list, name, name)
		default:
			fmt.Fprintf(&b, "  %s = %s %s\n", name, t.op, list)
		}
		return name
	}
	fmt.Fprintf(&b, "  return %s\n", emit(t))
	return b.String()
}
