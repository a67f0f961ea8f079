package grad_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/grad"
	"hocket.example/hocket/internal/longtest"
)

// writer generates random programs of f64. The values of the programs have 8 rows, some have 4 and others 8 columns,
// and their layouts use the axes a and b.
type writer struct {
	*rand.Rand
	params, body []string
	values       []drawn
	names        int
	indent       string
	a, b         int // sizes of the mesh axes
}

// drawn describes a value of a random program. The shape of the value is [8, columns] or, with three dimensions, [8, 1,
// columns].
type drawn struct {
	name    string
	columns int
	deep    bool
}

func pick[T any](w *writer, list ...T) T { return list[w.IntN(len(list))] }

func (w *writer) name() string {
	w.names++
	return fmt.Sprintf("v%d", w.names)
}

func (w *writer) line(format string, args ...any) {
	w.body = append(w.body, "  "+w.indent+fmt.Sprintf(format, args...))
}

// split returns one of the given ways to split an extent that divides it evenly, or "".
func (w *writer) split(extent int, ways ...string) string {
	way := pick(w, ways...)
	n := 1
	if strings.Contains(way, "a") {
		n *= w.a
	}
	if strings.Contains(way, "b") {
		n *= w.b
	}
	if extent%n != 0 {
		return ""
	}
	return way
}

// layout returns the extents of rows and columns, which may be split over the axes.
func (w *writer) layout(rows, columns int) string {
	forms := [][2]string{{"", ""}, {"/a", ""}, {"/b", ""}, {"/(a, b)", ""}, {"/a", "/b"}, {"/b", "/a"}, {"", "/a"},
		{"", "/(a, b)"}}
	form := pick(w, forms...)
	return fmt.Sprintf("%d%s, %d%s", rows, w.split(rows, form[0]), columns, w.split(columns, form[1]))
}

func (w *writer) param(typ string) string {
	name := fmt.Sprintf("x%d", len(w.params))
	w.params = append(w.params, "%"+name+": "+typ)
	return name
}

func (w *writer) value() drawn { return w.values[w.IntN(len(w.values))] }

func (w *writer) flat() drawn {
	for {
		if v := w.value(); !v.deep {
			return v
		}
	}
}

// like returns a value with the shape of v.
func (w *writer) like(v drawn) drawn {
	var list []drawn
	for _, u := range w.values {
		if u.columns == v.columns && u.deep == v.deep {
			list = append(list, u)
		}
	}
	return list[w.IntN(len(list))]
}

// result adds a statement. In some cases its result has a random layout.
func (w *writer) result(columns int, deep bool, format string, args ...any) {
	name := w.name()
	typ := ""
	if !deep && w.IntN(3) == 0 {
		typ = ": f64[" + w.layout(8, columns) + "]"
	}
	w.line("%%%s%s = %s", name, typ, fmt.Sprintf(format, args...))
	w.values = append(w.values, drawn{name, columns, deep})
}

func (w *writer) step(inLoop bool) {
	v := w.value()
	switch w.IntN(17) {
	case 0, 1:
		op := pick(w, "neg", "abs", "relu", "gelu", "silu", "softplus", "tanh", "gelu_tanh", "sigmoid", "sin", "cos",
			"erf", "copy")
		w.result(v.columns, v.deep, "%s %%%s", op, v.name)
	case 2:
		w.result(v.columns, v.deep, pick(w, "scale %%%s, by=-0.75", "clamp %%%s, lo=-0.5, hi=0.75"), v.name)
	case 3, 4:
		u := w.like(v)
		w.result(v.columns, v.deep, "%s %%%s, %%%s", pick(w, "add", "sub", "mul", "maximum", "minimum"), v.name, u.name)
	case 5:
		n := w.name()
		w.line("%%%s = sigmoid %%%s", n, w.like(v).name)
		m := w.name()
		w.line("%%%s = add %%%s, %%%[2]s", m, n)
		op := pick(w, "div %%%s, %%%s", "mul %%%s, (sqrt %%%s)", "mul %%%s, (log %%%s)", "mul %%%s, (rsqrt %%%s)",
			"mul %%%s, (reciprocal %%%s)", "sub %%%s, (pow %%%s, by=1.5)")
		w.result(v.columns, v.deep, op, v.name, m)
	case 6, 7:
		columns := pick(w, 4, 8)
		weight := w.param("f64[" + w.layout(columns, v.columns) + "]")
		bias := ""
		if w.IntN(3) == 0 {
			bias = ", %" + w.param(fmt.Sprintf("f64[%d]", columns))
		}
		w.result(columns, v.deep, "scale (linear %%%s, %%%s%s), by=0.4", v.name, weight, bias)
	case 8:
		u := w.flat()
		x := w.flat()
		w.result(x.columns, false, "scale (matmul (matmul %%%s, %%%s, tb=true), %%%s), by=0.1", u.name, w.like(u).name,
			x.name)
	case 9:
		w.result(v.columns, v.deep, "softmax %%%s", v.name)
	case 10:
		weight := w.param(fmt.Sprintf("f64[%d]", v.columns))
		if w.IntN(2) == 0 {
			w.result(v.columns, v.deep, "rms_norm %%%s, %%%s, eps=0.1", v.name, weight)
		} else {
			w.result(v.columns, v.deep, "layer_norm %%%s, %%%s, %%%s, eps=0.1", v.name, weight,
				w.param(fmt.Sprintf("f64[%d]", v.columns)))
		}
	case 11:
		u := w.flat()
		n, m := w.name(), w.name()
		w.line("%%%s = %s %%%s, axis=1", n, pick(w, "sum", "mean", "max", "min"), u.name)
		w.line("%%%s = reshape %%%s, shape=(8, 1)", m, n)
		w.result(u.columns, false, "broadcast %%%s, shape=(8, %d)", m, u.columns)
	case 12:
		u := w.flat()
		n := w.name()
		w.line("%%%s = %s %%%s, axis=0", n, pick(w, "sum", "mean"), u.name)
		w.result(u.columns, false, "sub %%%s, %%%s", u.name, n)
	case 13:
		u := w.flat()
		if u.columns == 8 {
			n := w.name()
			w.line("%%%s = slice %%%s, axis=1, 2..6", n, u.name)
			w.result(4, false, "mul %%%s, (chunk %%%s, axis=1, %d of 2)", n, u.name, w.IntN(2))
			return
		}
		w.result(8, false, "concat %%%s, %%%s, axis=1", u.name, w.like(u).name)
	case 14:
		if u := w.flat(); u.columns == 8 {
			w.result(8, false, "transpose %%%s", u.name)
		} else {
			n := w.name()
			w.line("%%%s = reshape %%%s, shape=(8, 4, 1)", n, u.name)
			w.result(4, true, "transpose %%%s, perm=(0, 2, 1)", n)
		}
	case 15:
		if inLoop {
			return
		}
		table := w.param("f64[" + w.layout(8, 4) + "]")
		ids := fmt.Sprintf("i%d", len(w.params))
		w.params = append(w.params, "%"+ids+": i32[8"+w.split(8, "", "/b")+"]")
		w.result(4, false, "embedding %%%s, %%%s", ids, table)
	case 16:
		if !inLoop {
			w.loop()
		}
	}
}

// loop adds a loop that carries a value through several steps, with stacked weights.
func (w *writer) loop() {
	u := w.flat()
	weight := w.param("f64[3, " + w.layout(u.columns, u.columns) + "]")
	outer := w.values
	h, y := w.name(), w.name()
	w.line("%%%s = for %%l%s in 0..3 carry %%%s = %%%s {", y, y, h, u.name)
	w.indent = "  "
	w.values = append(append([]drawn{}, outer...), drawn{h, u.columns, false})
	z := w.name()
	w.line("%%%s = tanh (linear %%%s, %%%s[%%l%s])", z, h, weight, y)
	w.values = append(w.values, drawn{z, u.columns, false})
	for range w.IntN(3) {
		w.step(true)
	}
	last := w.like(u)
	k := w.name()
	w.line("%%%s = add %%%s, %%%s", k, last.name, z)
	w.line("yield %%%s", k)
	w.indent = ""
	w.values = outer
	w.line("}")
	w.values = append(w.values, drawn{y, u.columns, false})
}

// randomProgram returns a random program on a mesh of two axes with sizes a and b.
func randomProgram(seed uint64, a, b int) string {
	w := &writer{Rand: rand.New(rand.NewPCG(seed, 5300)), a: a, b: b}
	for range 2 {
		columns := pick(w, 4, 8)
		w.values = append(w.values, drawn{w.param("f64[" + w.layout(8, columns) + "]"), columns, false})
	}
	for range 3 + w.IntN(5) {
		w.step(false)
	}
	last := w.flat()
	for i := range w.values { // the last value that has rows
		if v := w.values[len(w.values)-1-i]; !v.deep {
			last = v
			break
		}
	}
	w.line("%%out = mul %%%s, %%%[1]s", last.name)
	results, names := []string{fmt.Sprintf("f64[%s]", w.layout(8, last.columns))}, []string{"%out"}
	if w.IntN(2) == 0 {
		w.line("%%total = mean %%%s, axis=(0, 1)", w.flat().name)
		results, names = append(results, "f64[]"), append(names, "%total")
	}
	return fmt.Sprintf("mesh a[%d] b[%d]\nfunc f(%s) -> (%s) {\n%s\n  return %s\n}\n", a, b,
		strings.Join(w.params, ", "), strings.Join(results, ", "), strings.Join(w.body, "\n"),
		strings.Join(names, ", "))
}

// TestRandomPrograms compares the gradients of random programs with central differences, on several meshes. The
// programs are proved, lowered, and run on the CPU machine.
func TestRandomPrograms(t *testing.T) {
	meshes := [][2]int{{1, 1}, {2, 1}, {1, 2}, {2, 2}, {4, 1}, {1, 8}, {8, 1}, {2, 4}}
	first, n := longtest.Seed(t), uint64(longtest.Of(120, 5000))
	if testing.Short() {
		n = 60
	}
	looked, kinks := 0, 0
	for seed := first; seed < first+n; seed++ {
		m := meshes[seed%uint64(len(meshes))]
		src := randomProgram(seed, m[0], m[1])
		keep := keeps[seed%3]
		l, k := differences(t, src, grad.Options{Keep: keep}, seed, longtest.Of(4, 100))
		looked, kinks = looked+l, kinks+k
		if seed%4 == 0 || longtest.On() {
			agrees(t, src, hocket.GradientOptions{Keep: string(keep)},
				pick(&writer{Rand: rand.New(rand.NewPCG(seed, 1))}, "sequential", "exchange"))
		}
	}
	if t.Logf("%d of %d elements are near a kink", kinks, looked); kinks > looked/10 {
		t.Errorf("%d of %d elements are near a kink", kinks, looked)
	}
}
