package compile

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"pgregory.net/rapid"
)

// This file generates random sharded programs. Each has a mesh with one or two axes and a chain of layers whose
// activations and weights have random layouts.

// writer generates one random program.
type writer struct {
	t    *rapid.T
	text strings.Builder
	axes []string
	size map[string]int64
	// ranks is the number of ranks. An extent that may be split is a multiple of the number of ranks.
	ranks  int64
	dtype  string
	params []string
	body   []string
	// values holds the names and extents of the values defined so far.
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

// mesh generates a mesh with one or two axes and at most eight ranks.
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

// extent returns a random extent that can be split over all axes.
func (w *writer) extent() int64 { return w.ranks * rapid.Int64Range(1, 3).Draw(w.t, "extent") }

// layout returns a random type with these extents: each axis splits one dimension or none.
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

// emit adds the statement "%v = text". Some statements are annotated with a random layout.
func (w *writer) emit(shape []int64, format string, args ...any) {
	annotation := ""
	if w.oneIn("annotated", 3) {
		annotation = ": " + w.layout(shape)
	}
	w.define(shape, annotation, fmt.Sprintf(format, args...))
}

func (w *writer) define(shape []int64, annotation, text string) {
	name := fmt.Sprintf("v%d", w.n)
	w.n++
	w.body = append(w.body, fmt.Sprintf("  %%%s%s = %s", name, annotation, text))
	w.values = append(w.values, drawn{name, shape})
}

// source returns the value that the next operation uses, which is usually the last one.
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
	switch w.pick("op", 18) {
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
	case 7:
		w.emit(x.shape, "div %%%s, %%%s", x.name, w.param(x.shape[w.pick("trailing", last+1):]))
	case 8:
		w.emit(x.shape, "silu %%%s", x.name)
	case 9, 10:
		w.rowOp(x)
	case 11, 12:
		w.shapeOp(x)
	case 13:
		w.attention(x)
	case 14:
		w.define(x.shape, ": "+w.layout(x.shape), "reshard %"+x.name)
	default:
		y := w.values[w.pick("other", len(w.values))]
		if fmt.Sprint(y.shape) != fmt.Sprint(x.shape) {
			y = x
		}
		w.emit(x.shape, "sub %%%s, %%%s", x.name, y.name)
	}
}

// rowOp adds an operation that needs all elements of a dimension.
func (w *writer) rowOp(x drawn) {
	last := len(x.shape) - 1
	switch w.pick("row op", 4) {
	case 0:
		w.emit(x.shape, "softmax %%%s, axis=%d", x.name, w.pick("axis", last+1))
	case 1:
		w.emit(x.shape, "rms_norm %%%s, %%%s", x.name, w.param(x.shape[last:]))
	case 2:
		w.emit(x.shape, "rms_norm_dx %%%s, %%%s, %%%s", x.name, w.param(x.shape[last:]), w.param(x.shape))
	default:
		w.emit(x.shape, "layer_norm %%%s, %%%s, %%%s, eps=0.1", x.name, w.param(x.shape[last:]),
			w.param(x.shape[last:]))
	}
}

// shapeOp adds an operation whose result has more or fewer dimensions, or longer dimensions. Every value keeps at least
// two dimensions.
func (w *writer) shapeOp(x drawn) {
	d := w.pick("axis", len(x.shape))
	out := slices.Clone(x.shape)
	switch kind := w.pick("shape op", 3); {
	case kind == 0 && len(x.shape) < 3:
		out = slices.Insert(out, 0, w.extent())
		w.emit(out, "broadcast %%%s, shape=(%s)", x.name,
			strings.Trim(strings.ReplaceAll(fmt.Sprint(out), " ", ", "), "[]"))
	case kind == 1 && len(x.shape) > 2:
		word := []string{"sum", "max", "min", "mean"}[w.pick("reduction", 4)]
		w.emit(slices.Delete(out, d, d+1), "%s %%%s, axis=%d", word, x.name, d)
	default:
		out[d] *= 2
		w.emit(out, "concat %%%s, %%%s, axis=%d", x.name, w.param(x.shape), d)
	}
}

// attention adds an attention with x as its queries, if x has enough dimensions.
func (w *writer) attention(x drawn) {
	if len(x.shape) < 3 {
		return
	}
	kv := slices.Clone(x.shape)
	kv[0] += w.ranks
	if w.oneIn("one head", 3) {
		kv[1] = 1
	}
	key := fmt.Sprintf("p%d", len(w.params))
	if kv[1] == 1 { // no axis splits one head
		w.params = append(w.params, fmt.Sprintf("%%%s: %s[%d, 1, %d]", key, w.dtype, kv[0], kv[2]))
	} else {
		key = w.param(kv)
	}
	w.emit(x.shape, "attention %%%s, %%%s, %%%[2]s, causal=%v", x.name, key, w.oneIn("causal", 2))
}

// drawProgram returns the text of a random sharded program.
func drawProgram(t *rapid.T) string {
	w := &writer{t: t, dtype: []string{"f32", "bf16", "f64"}[rapid.IntRange(0, 2).Draw(t, "dtype")]}
	w.mesh()
	shape := []int64{w.extent(), w.extent()}
	if w.oneIn("batched", 3) {
		shape = append([]int64{w.extent()}, shape...)
	}
	w.values = []drawn{{w.param(shape), shape}}
	for range rapid.IntRange(1, 6).Draw(t, "ops") {
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
	body := w.repeated(strings.Join(w.body, "\n") + "\n")
	head := fmt.Sprintf("(%s) -> (%s) {\n", strings.Join(w.params, ", "), strings.Join(types, ", "))
	end := fmt.Sprintf("  return %s\n}\n", strings.Join(names, ", "))
	if !w.oneIn("called", 6) {
		fmt.Fprintf(&w.text, "\nfunc f%s%s%s", head, body, end)
		return w.text.String()
	}
	fmt.Fprintf(&w.text, "\nfunc layer%s%s%s\nfunc f%s%s", head, body, end, head, w.calls(len(names)))
	return w.text.String()
}

var madeName = regexp.MustCompile(`%v(\d+)`)

// repeated sometimes adds a copy of the body in a loop or branch, before or after the body. The results of the copy are
// computed but not used.
func (w *writer) repeated(body string) string {
	if !w.oneIn("repeated", 5) {
		return body
	}
	block := []string{"for %i in 0..0", "for %i in 0..1", "for %i in 0..2", "if size(tp) >= 2"}[w.pick("block", 4)]
	again := "  " + block + " {\n" + madeName.ReplaceAllString(body, "%again$1") + "  }\n"
	if w.oneIn("in front", 2) {
		return again + body
	}
	return body + again
}

// calls writes two calls of layer and returns the results of the second call.
func (w *writer) calls(results int) string {
	var args, first, second []string
	for _, p := range w.params {
		name, _, _ := strings.Cut(p, ":")
		args = append(args, name)
	}
	for i := range results {
		first, second = append(first, "%first"+strconv.Itoa(i)), append(second, "%second"+strconv.Itoa(i))
	}
	call := " = call layer " + strings.Join(args, ", ") + "\n"
	return "  " + strings.Join(first, ", ") + call + "  " + strings.Join(second,
		", ") + call + "  return " + strings.Join(second, ", ") + "\n}\n"
}
