package modelprogram

import (
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/internal/graph"
)

// Forms lists the values of Options.Quantize. Elements that share a scale are, in this order of the forms: all
// elements; a row; or, for weights, a square of 128 by 128 and, for activations, 128 elements of a row.
var Forms = []string{"fp8-tensor", "fp8-row", "fp8-block"}

// CheckForm returns an error for a form that does not exist. With an empty form, weights are not quantized.
func CheckForm(form string) error {
	if form == "" || slices.Contains(Forms, form) {
		return nil
	}
	return fmt.Errorf("is %q; it can be %s", form, strings.Join(Forms, ", "))
}

// Block is the number of rows and columns of a weight that share a scale in the form fp8-block.
const Block = 128

// Quantized describes a parameter that is made by quantizing weights.
type Quantized struct {
	Form   string // one of Forms
	Scales bool   // the parameter holds the scales, and not the 8-bit values
}

// floating8 is the type of quantized values.
const floating8 graph.DType = "f8e4m3"

// keptModules are modules whose weights stay as they are, as in the FP8 checkpoints of DeepSeek and Qwen: the output
// head, and routers, whose small errors would send tokens to other experts.
var keptModules = []string{"lm_head", "embed_out", "gate", "router"}

// quantize replaces the linears in list, which is in the order of the program, by linears with scales. A value that
// several linears multiply is quantized once, directly after the instruction that computes it, so that equal layers stay
// equal.
func (l *emission) quantize(list []*inst, form string, ranks int) []*inst {
	q := &quantizer{emission: l, form: form, scaled: map[operand][2]*inst{}, before: map[*inst][]*inst{},
		weights: map[*param][2]*param{}}
	linears := map[*param]int{} // maps a parameter to the number of linears whose weight it is
	uses := map[*param]int{}
	for _, in := range list {
		for _, a := range in.args {
			if a.p != nil {
				uses[a.p]++
			}
		}
		if in.op == "linear" && in.args[1].p != nil {
			linears[in.args[1].p]++
		}
	}
	for _, in := range list {
		switch in.op {
		case "matmul", "grouped_linear":
			for _, a := range in.args {
				l.unfits(a)
			}
		case "linear":
			q.linear(in, func(w *param) bool { return linears[w] == uses[w] && q.divides(w, ranks) })
		}
	}
	if len(q.weights) == 0 {
		return list
	}
	out := make([]*inst, 0, 2*len(list))
	for _, in := range list {
		out = append(append(out, q.before[in]...), in)
		if pair, ok := q.scaled[operand{in: in}]; ok {
			out = append(out, pair[:]...)
		}
	}
	return out
}

// linear replaces a linear if its weight can be quantized and fits returns true for it. Otherwise it records that the
// weight is kept.
func (q *quantizer) linear(in *inst, fits func(w *param) bool) {
	w := in.args[1].p
	if w == nil { // the operand is a part of a packed weight
		if of := in.args[1].weight(); of != nil && of.value != nil && !slices.Contains(q.kept, of.value.Path) {
			q.kept = append(q.kept, of.value.Path)
		}
		return
	}
	switch {
	case w.value == nil || w.value.Leaf != graph.Weight || w.perm != nil || len(w.shape) != 2:
	case !w.dt.IsFloat() || w.dt == graph.F64 || in.reduce != "" || in.into || in.layout != nil:
	case !fits(w) || slices.Contains(keptModules, moduleOf(w.value.Path)):
		q.kept = append(q.kept, w.value.Path)
	default:
		q.replace(in, w)
	}
}

// unfits records the weight in operand a, which a product without an 8-bit form multiplies. The operand is the weight
// or a part of it.
func (l *emission) unfits(a operand) {
	w := a.p
	if w == nil {
		w = a.weight()
	}
	if w != nil && w.value != nil && w.value.Leaf == graph.Weight && !slices.Contains(l.unfit, w.value.Path) {
		l.unfit = append(l.unfit, w.value.Path)
	}
}

// moduleOf returns the name of the module of a weight.
func moduleOf(path string) string {
	path = parent(path)
	return path[strings.LastIndexByte(path, '.')+1:]
}

// quantizer replaces linears.
type quantizer struct {
	*emission
	form    string
	scaled  map[operand][2]*inst // maps an activation to its scales and its 8-bit values
	before  map[*inst][]*inst    // maps an instruction to those inserted before it
	weights map[*param][2]*param // maps a weight to its 8-bit values and its scales
}

// divides reports whether all elements that share a scale of a weight are on one rank.
func (q *quantizer) divides(w *param, ranks int) bool {
	return q.form != "fp8-block" || w.split < 0 || w.shape[w.split]%(Block*int64(ranks)) == 0
}

// replace turns in, a linear of weight w, into a linear with scales, and an addition if it has a bias.
func (q *quantizer) replace(in *inst, w *param) {
	x, bias := in.args[0], in.args[2:]
	pair := q.activation(x, in)
	values, scales := q.weight(w)
	args := []operand{{in: pair[1]}, {p: values}, {in: pair[0]}, {p: scales}}
	if len(bias) == 0 {
		in.args, in.typed = args, in.typed || in.dt != graph.BF16
		return
	}
	product := *in
	product.args, product.typed, product.name = args, in.typed || in.dt != graph.BF16, ""
	q.before[in] = append(q.before[in], &product)
	in.op, in.args = "add", []operand{{in: &product}, bias[0]}
}

// activation returns the scales and the values of an operand of the linear in.
func (q *quantizer) activation(x operand, in *inst) [2]*inst {
	if pair, ok := q.scaled[x]; ok {
		return pair
	}
	shape := x.shape()
	rows := shape[:len(shape)-1]
	s := &inst{op: "scales", args: []operand{x}, dt: graph.F32, split: -1, from: in.from, order: in.order}
	switch q.form {
	case "fp8-row":
		s.attrs, s.shape = "block=1", rows
	case "fp8-block":
		s.attrs = fmt.Sprintf("block=(1, %d)", Block)
		s.shape = append(slices.Clone(rows), blocks(graph.Last(shape)))
	}
	v := &inst{op: "quantize", args: []operand{x, {in: s}}, dt: floating8, shape: shape, split: x.splitDim(),
		from: in.from, order: in.order}
	pair := [2]*inst{s, v}
	q.scaled[x] = pair
	if x.in == nil {
		q.before[in] = append(q.before[in], s, v)
	}
	return pair
}

// weight returns the parameters for the values and the scales of a weight.
func (q *quantizer) weight(w *param) (values, scales *param) {
	if pair, ok := q.weights[w]; ok {
		return pair[0], pair[1]
	}
	v, s := *w, *w
	v.dt, v.quantized = floating8, &Quantized{Form: q.form}
	s.dt, s.quantized = graph.F32, &Quantized{Form: q.form, Scales: true}
	s.number = len(q.params) + len(q.weights)
	s.shape = ScalesShape(q.form, w.shape)
	if s.split >= len(s.shape) {
		s.split = -1
	}
	q.weights[w] = [2]*param{&v, &s}
	return &v, &s
}

// UnfitText names weights that only matmul and grouped_linear multiply, with the reason why they are not quantized.
func UnfitText(unfit []string) string {
	if len(unfit) == 0 {
		return ""
	}
	return "; not quantized, because matmul and grouped_linear take no 8-bit operands: " + Some(unfit)
}

// keptText names the weights of linears that were not quantized, for a message.
func keptText(form string, kept, unfit []string) string {
	if len(kept) == 0 {
		return UnfitText(unfit)
	}
	text := ": these keep their types: " + Few(kept) + UnfitText(unfit)
	if form == "fp8-block" {
		return ", since a split dimension must be a multiple of 128 on each rank (fp8-row has no such limit)" + text
	}
	return text
}

// ScalesShape returns the shape of the scales of a weight.
func ScalesShape(form string, weight []int64) []int64 {
	switch form {
	case "fp8-row":
		return []int64{weight[0]}
	case "fp8-block":
		return []int64{blocks(weight[0]), blocks(weight[1])}
	}
	return nil
}

func blocks(n int64) int64 { return (n + Block - 1) / Block }
