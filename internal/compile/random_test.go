package compile

import (
	"fmt"
	"strings"

	"pgregory.net/rapid"
)

// This file draws sharded programs: a mesh of one or two axes, and a chain of
// layers whose activations and weights are laid out at random.

// writer writes one random program.
type writer struct {
	t    *rapid.T
	text strings.Builder
	axes []string
	size map[string]int64
	// ranks is the product of the sizes: an extent that may be split is a
	// multiple of it.
	ranks  int64
	dtype  string
	params []string
	body   []string
	// values so far: name and extents.
	values []drawn
	n      int
}

type drawn struct {
	name  string
	shape []int64
}

func (w *writer) pick(label string, n int) int { return rapid.IntRange(0, n-1).Draw(w.t, label) }
func (w *writer) oneIn(label string, n int) bool {
	return w.pick(label, n) == n-1
}

// mesh draws one axis, or two, of at most eight ranks together.
func (w *writer) mesh() {
	w.size = map[string]int64{}
	w.ranks = 1
	names := []string{"tp"}
	if w.oneIn("two axes", 3) {
		names = []string{"dp", "tp"}
	}
	w.text.WriteString("mesh")
	for _, a := range names {
		n := rapid.Int64Range(1, 8/w.ranks).Draw(w.t, a)
		w.axes, w.size[a] = append(w.axes, a), n
		w.ranks *= n
		fmt.Fprintf(&w.text, " %s[%d]", a, n)
	}
	w.text.WriteString("\n")
}

// extent draws an extent that divides over all axes.
func (w *writer) extent() int64 { return w.ranks * rapid.Int64Range(1, 3).Draw(w.t, "extent") }

// layout draws a type with these extents: each axis splits one dimension or none.
func (w *writer) layout(shape []int64) string {
	on := make([][]string, len(shape))
	for _, a := range w.axes {
		if d := w.pick("axis "+a, len(shape)+1); d < len(shape) {
			on[d] = append(on[d], a)
		}
	}
	var dims []string
	for i, n := range shape {
		text := fmt.Sprint(n)
		switch len(on[i]) {
		case 1:
			text += "/" + on[i][0]
		case 2:
			text += "/(" + strings.Join(on[i], ", ") + ")"
		}
		dims = append(dims, text)
	}
	return w.dtype + "[" + strings.Join(dims, ", ") + "]"
}

func (w *writer) param(shape []int64) string {
	name := fmt.Sprintf("p%d", len(w.params))
	w.params = append(w.params, fmt.Sprintf("%%%s: %s", name, w.layout(shape)))
	return name
}

// emit adds "%v = text", annotated with a random layout now and then.
func (w *writer) emit(shape []int64, format string, args ...any) {
	name := fmt.Sprintf("v%d", w.n)
	w.n++
	annotation := ""
	if w.oneIn("annotated", 3) {
		annotation = ": " + w.layout(shape)
	}
	w.body = append(w.body, fmt.Sprintf("  %%%s%s = %s", name, annotation, fmt.Sprintf(format, args...)))
	w.values = append(w.values, drawn{name, shape})
}

// source returns the value to go on from: mostly the last.
func (w *writer) source() drawn {
	if w.oneIn("an earlier value", 4) {
		return w.values[w.pick("which", len(w.values))]
	}
	return w.values[len(w.values)-1]
}

// op adds one operation.
func (w *writer) op() {
	x := w.source()
	last := len(x.shape) - 1
	switch w.pick("op", 8) {
	case 0, 1, 2:
		n := w.extent()
		out := append(append([]int64(nil), x.shape[:last]...), n)
		weight := w.param([]int64{n, x.shape[last]})
		if w.oneIn("bias", 3) {
			w.emit(out, "linear %%%s, %%%s, %%%s", x.name, weight, w.param([]int64{n}))
		} else {
			w.emit(out, "linear %%%s, %%%s", x.name, weight)
		}
	case 3:
		n := w.extent()
		out := append(append([]int64(nil), x.shape[:last]...), n)
		w.emit(out, "matmul %%%s, %%%s", x.name, w.param([]int64{x.shape[last], n}))
	case 4:
		w.emit(x.shape, "relu %%%s", x.name)
	case 5:
		w.emit(x.shape, "scale %%%s, by=-1", x.name)
	case 6:
		w.emit(x.shape, "add %%%s, %%%s", x.name, w.param(x.shape[w.pick("trailing", last+1):]))
	default:
		y := w.values[w.pick("other", len(w.values))]
		if fmt.Sprint(y.shape) != fmt.Sprint(x.shape) {
			y = x
		}
		w.emit(x.shape, "sub %%%s, %%%s", x.name, y.name)
	}
}

// drawProgram returns the text of a sharded program.
func drawProgram(t *rapid.T) string {
	w := &writer{t: t, dtype: []string{"f32", "bf16", "f64"}[rapid.IntRange(0, 2).Draw(t, "dtype")]}
	w.mesh()
	shape := []int64{w.extent(), w.extent()}
	if w.oneIn("batched", 3) {
		shape = append([]int64{w.extent()}, shape...)
	}
	w.values = []drawn{{w.param(shape), shape}}
	for range rapid.IntRange(1, 4).Draw(t, "ops") {
		w.op()
	}
	results := w.values[len(w.values)-1:]
	if w.oneIn("two results", 3) {
		results = append(results, w.values[w.pick("second", len(w.values))])
	}
	var types, names []string
	for _, r := range results {
		types, names = append(types, w.layout(r.shape)), append(names, "%"+r.name)
	}
	fmt.Fprintf(&w.text, "\nfunc f(%s) -> (%s) {\n%s\n  return %s\n}\n", strings.Join(w.params, ", "), strings.Join(types, ", "),
		strings.Join(w.body, "\n"), strings.Join(names, ", "))
	return w.text.String()
}
