package modelprogram

import (
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/internal/graph"
)

// printer assigns names and prints the program.
type printer struct {
	*lowerer
	ranks int
	parts []part

	params []*param // parameters of the program, in order
	names  map[string]bool
	// numbers maps a name to the last number that was appended to it.
	numbers map[string]int
	out     strings.Builder
	used    map[*inst]int // number of uses of an instruction as an operand

	guesses map[*inst]graph.Layout // probable layouts, for exports that have a mesh
}

// print returns the program's text.
func (p *printer) print(name string) string {
	p.names, p.numbers = map[string]bool{}, map[string]int{}
	p.collect()
	p.nameParams()
	p.countUses()
	fmt.Fprintf(&p.out, "// Imported from %s.\n", base(name))
	for _, note := range p.g.Notes {
		fmt.Fprintf(&p.out, "// %s\n", note)
	}
	fmt.Fprintf(&p.out, "%s\nfunc forward(\n", p.mesh())
	for _, q := range p.params {
		inout := ""
		if q.state {
			inout = "inout "
		}
		fmt.Fprintf(&p.out, "  %%%s: %s%s,\n", q.name, inout, p.paramType(q))
	}
	p.out.WriteString(") -> ")
	var types, results []string
	for i, r := range p.results {
		types = append(types, layoutText(r.dt, r.shape, p.resultLayout(i)))
		results = append(results, "%"+r.name)
	}
	text := strings.Join(types, ", ")
	if len(types) != 1 {
		text = "(" + text + ")"
	}
	p.out.WriteString(text + " {\n")
	for _, part := range p.parts {
		if part.loop != nil {
			p.printLoop(part.loop)
		} else {
			p.printList(part.list, "  ", nil)
		}
	}
	fmt.Fprintf(&p.out, "  return %s\n}\n", strings.Join(results, ", "))
	return p.out.String()
}

// countUses sets used. Values that need a name count as used several times.
func (p *printer) countUses() {
	p.used = map[*inst]int{}
	for _, in := range p.list {
		for _, a := range in.args {
			if a.in != nil {
				p.used[a.in]++
			}
			if a.in != nil && (in.into || in.reduce != "") {
				p.used[a.in]++ // an instruction with a destination requires named operands
			}
		}
	}
	for _, r := range p.results {
		p.used[r] += 2 // results have a name
		p.names[r.name] = true
	}
	for _, part := range p.parts {
		for _, c := range part.carried() {
			if c.first.in != nil {
				p.used[c.first.in] += 2 // initial values of carried values need a name
			}
		}
	}
}

func base(name string) string {
	if i := strings.LastIndexAny(name, `/\`); i >= 0 {
		name = name[i+1:]
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, name)
}

// collect lists the parameters: first the inputs in the order of the model, then the parameters that instructions use,
// in the order of their first use.
func (p *printer) collect() {
	seen := map[*param]bool{}
	add := func(q *param) {
		if !seen[q] {
			seen[q] = true
			p.params = append(p.params, q)
		}
	}
	for _, v := range p.g.Inputs {
		add(p.param(v))
	}
	for _, part := range p.parts {
		for _, in := range part.list {
			for _, a := range in.args {
				if a.p == nil {
					continue
				}
				if part.loop != nil && part.loop.stacks[a.p] != nil {
					add(part.loop.stacks[a.p])
				} else {
					add(a.p)
				}
			}
		}
		for _, c := range part.carried() {
			if c.first.p != nil {
				add(c.first.p)
			}
		}
	}
}

// nameParams names each parameter by the shortest suffix of its path that is unique.
func (p *printer) nameParams() {
	paths := map[*param][]string{}
	for _, q := range p.params {
		if q.value == nil || q.value.Leaf == graph.Input {
			continue
		}
		paths[q] = q.components()
	}
	for _, q := range p.params { // the names of inputs are assigned first
		if q.value != nil && q.value.Leaf == graph.Input {
			q.name = p.fresh(graph.Identifier(q.value.Name))
		}
	}
	// Count the parameters that have the same suffix of a path, by the number of its components.
	end := func(list []string, n int) string { return strings.Join(list[max(len(list)-n, 0):], ".") }
	const most = 16
	ends := map[string]int{}
	for _, list := range paths {
		for n := 1; n <= most; n++ {
			ends[fmt.Sprint(n, " ", end(list, n))]++
		}
	}
	for _, q := range p.params {
		if q.constant != nil {
			q.name = p.fresh(q.name)
		}
		list := paths[q]
		if list == nil {
			continue
		}
		n := 1
		if list[len(list)-1] == "bias" {
			n = 2
		}
		for n < min(len(list), most) && ends[fmt.Sprint(n, " ", end(list, n))] > 1 {
			n++
		}
		q.name = p.fresh(end(list, n))
	}
}

// components lists the components of a parameter's path, without the number of the layer, as identifiers.
func (q *param) components() []string {
	other := q.value.Path
	if q.stack != nil {
		other = q.stack[1].value.Path
	}
	var list []string
	others := strings.Split(other, ".")
	for i, c := range strings.Split(q.value.Path, ".") {
		// Components such as "layers.0" and "key_cache_0" contain the number of the layer.
		if i < len(others) && others[i] != c {
			c = strings.TrimSuffix(strings.TrimRight(c, "0123456789"), "_")
		}
		if c != "" {
			list = append(list, graph.Identifier(c))
		}
	}
	if n := len(list); n > 1 && list[n-1] == "weight" {
		list = list[:n-1]
	}
	if q.quantized != nil && q.quantized.Scales && len(list) > 0 {
		list[len(list)-1] += "_scale"
	}
	if len(list) == 0 {
		return []string{"weight"}
	}
	return list
}

// fresh returns name, or name with a number if it is already used.
func (p *printer) fresh(name string) string {
	full := name
	for p.names[full] {
		p.numbers[name] = max(p.numbers[name]+1, 2)
		full = fmt.Sprint(name, p.numbers[name])
	}
	p.names[full] = true
	return full
}

// scope holds the meaning of names inside a loop.
type scope struct {
	loop    *loop
	index   string
	carried map[*inst]string // names of the carried values in the loop body, by instruction
	params  map[*param]string
}

// ref returns the text of an operand.
func (p *printer) ref(a operand, s *scope) string {
	if a.p != nil {
		if s != nil {
			if name := s.params[a.p]; name != "" {
				return "%" + name
			}
			if q := s.loop.stacks[a.p]; q != nil {
				return "%" + q.name + "[%" + s.index + "]"
			}
		}
		return "%" + a.p.name
	}
	if s != nil {
		if name := s.carried[a.in]; name != "" {
			return "%" + name
		}
	}
	if p.nests(a.in) {
		return "(" + p.call(a.in, s) + ")"
	}
	return "%" + a.in.name
}

// nests reports whether an instruction is printed as an operand of the one that uses it.
func (p *printer) nests(in *inst) bool {
	return p.used[in] == 1 && !in.whole && !in.typed && in.name == "" && nested[in.op]
}

var nested = map[string]bool{"reshape": true, "select": true, "slice": true, "transpose": true, "silu": true,
	"gelu": true, "gelu_tanh": true, "relu": true, "neg": true, "scale": true}

// call returns the text of an instruction without the name of its result.
func (p *printer) call(in *inst, s *scope) string {
	text := in.op
	sep := " "
	args := in.args
	if in.into {
		args = args[:len(args)-1]
	}
	for _, a := range args {
		text += sep + p.ref(a, s)
		sep = ", "
	}
	if in.into {
		text += " into " + p.ref(in.args[len(in.args)-1], s)
		sep = ", "
	}
	if in.buffer != "" {
		text += " into %" + in.buffer
		sep = ", "
	}
	if in.attrs != "" {
		text += sep + in.attrs
	}
	if in.selects {
		text += ", index=" + in.rowText(s)
	}
	return text
}

// rowText returns the text of the row that a select selects. In a loop, the row may depend on the loop variable.
func (in *inst) rowText(s *scope) string {
	step := int64(0)
	if s != nil {
		step = s.loop.steps[in]
	}
	switch {
	case step == 0:
		return fmt.Sprint(in.row)
	case step == 1 && in.row == 0:
		return "%" + s.index
	case step == 1:
		return fmt.Sprintf("%%%s + %d", s.index, in.row)
	case step == -1:
		return fmt.Sprintf("%d - %%%s", in.row, s.index)
	case in.row == 0:
		return fmt.Sprintf("%d * %%%s", step, s.index)
	case step < 0:
		return fmt.Sprintf("%d - %d * %%%s", in.row, -step, s.index)
	}
	return fmt.Sprintf("%d + %d * %%%s", in.row, step, s.index)
}

// printList prints instructions; if s is not nil, they are in a loop.
func (p *printer) printList(list []*inst, indent string, s *scope) {
	for _, in := range list {
		if p.nests(in) {
			continue
		}
		if in.into {
			fmt.Fprintf(&p.out, "%s%s\n", indent, p.call(in, s))
			continue
		}
		if in.name == "" {
			in.name = p.fresh(in.title())
		}
		if in.reduce != "" {
			in.buffer = p.fresh("local")
			fmt.Fprintf(&p.out, "%[1]s%%%[2]s = alloc %[3]s\n%[1]s%[4]s\n%[1]sall_reduce %%%[2]s into %%%[2]s, %[5]s\n"+
				"%[1]s%%%[6]s: %[3]s = claim %%%[2]s\n", indent, in.buffer, typeText(in.dt, in.shape, -1), p.call(in, s),
				in.reduce, in.name)
			continue
		}
		typed := ""
		whole := in.whole && len(p.g.Mesh) == 0 // with a mesh, the printed layouts suffice
		if whole || in.typed {
			split := in.split
			if whole {
				split = -1
			}
			typed = ": " + p.typeOf(in, split)
		}
		fmt.Fprintf(&p.out, "%s%%%s%s = %s\n", indent, in.name, typed, p.call(in, s))
	}
}

// title returns a name for the result of an instruction.
func (in *inst) title() string {
	if in.op == "linear" || in.op == "matmul" {
		module := in.from.Module[strings.LastIndexByte(in.from.Module, '.')+1:]
		if module != "" {
			short := strings.TrimSuffix(graph.Identifier(module), "_proj")
			if short == graph.Identifier(module) {
				short += "_out"
			}
			return short
		}
	}
	if in.op == "grouped_linear" {
		if p := in.args[1].weight(); p != nil && p.value != nil {
			last := p.value.Path[strings.LastIndexByte(p.value.Path, '.')+1:]
			return strings.TrimSuffix(graph.Identifier(last), "_proj")
		}
	}
	short := map[string]string{"rms_norm": "norm", "layer_norm": "norm", "attention": "attn", "embedding": "embed",
		"add": "sum", "iota": "positions"}
	if s := short[in.op]; s != "" {
		return s
	}
	return in.op
}

// weight returns the parameter if the operand is a parameter or a part of one, and nil otherwise.
func (o operand) weight() *param {
	for o.in != nil && (o.in.op == "select" || o.in.op == "transpose") {
		o = o.in.args[0]
	}
	return o.p
}

// printLoop prints a loop.
func (p *printer) printLoop(l *loop) {
	s := &scope{loop: l, index: p.fresh("l"), carried: map[*inst]string{}, params: map[*param]string{}}
	var results, firsts, yields []string
	last := l.iterations[len(l.iterations)-1]
	var ends []string
	for _, c := range l.carried {
		first := p.ref(c.first, nil)
		name := p.fresh("h")
		if c.first.p != nil {
			s.params[c.first.p] = name
		} else {
			s.carried[c.first.in] = name
		}
		firsts = append(firsts, "%"+name+" = "+first)
		end := last[c.at].name
		if end == "" {
			end = p.fresh("hidden")
		}
		ends, results = append(ends, end), append(results, "%"+end)
		l.iterations[0][c.at].name = p.fresh("next")
	}
	fmt.Fprintf(&p.out, "  %s = for %%%s in 0..%d carry %s {\n", strings.Join(results, ", "), s.index,
		len(l.iterations),
		strings.Join(firsts, ", "))
	for _, q := range p.params { // a value that is changed in place has a name
		if q.state && q.stack != nil && l.stacks[q.stack[0]] == q {
			s.params[q.stack[0]] = p.fresh(q.name + "_l")
			fmt.Fprintf(&p.out, "    %%%s = select %%%s, axis=0, index=%%%s\n", s.params[q.stack[0]], q.name, s.index)
		}
	}
	p.printList(l.iterations[0], "    ", s)
	for _, c := range l.carried {
		yields = append(yields, "%"+l.iterations[0][c.at].name)
	}
	fmt.Fprintf(&p.out, "    yield %s\n  }\n", strings.Join(yields, ", "))
	for i, c := range l.carried {
		last[c.at].name = ends[i]
	}
}

// bindings describes the contents of each parameter.
func (p *printer) bindings() []Param {
	var list []Param
	for _, q := range p.params {
		b := Param{Name: q.name, DType: q.dt, Shape: slices.Clone(q.shape), Constant: q.constant}
		switch {
		case q.stack != nil:
			b.Shape = append([]int64{int64(len(q.stack))}, q.stack[0].shape...)
			for _, w := range q.stack {
				b.Weights = append(b.Weights, w.value.Path)
			}
		case q.value != nil && q.value.Leaf == graph.Input:
			b.Input = true
		case q.value != nil:
			b.Weights = []string{q.value.Path}
		}
		b.State, b.Perm, b.Split, b.Quantized = q.state, q.perm, q.split, q.quantized
		if q.stack != nil && q.split >= 0 {
			b.Split++
		}
		list = append(list, b)
	}
	return list
}
