package modelprogram

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"hocket.example/hocket/internal/graph"
)

// An export that contains layouts has a mesh with axes, and no tensor-parallel plan is used.

// layoutText returns a type with its layout in the language's notation.
func layoutText(dt graph.DType, shape []int64, layout graph.Layout) string {
	var dims []string
	for i, d := range shape {
		text := fmt.Sprint(d)
		if i < len(layout) {
			switch axes := layout[i]; len(axes) {
			case 0:
			case 1:
				text += "/" + axes[0]
			default:
				text += "/(" + strings.Join(axes, ", ") + ")"
			}
		}
		dims = append(dims, text)
	}
	return string(dt) + "[" + strings.Join(dims, ", ") + "]"
}

// typeOf returns the type that is printed for an instruction's result. Without a mesh in the export, the type is split
// along dimension split. With a mesh, it has the layout that the instruction requests, or otherwise the layout that its
// operand probably has.
func (p *printer) typeOf(in *inst, split int) string {
	switch {
	case in.layout != nil:
		return layoutText(in.dt, in.shape, in.layout)
	case len(p.g.Mesh) > 0:
		return layoutText(in.dt, in.shape, p.likely(operand{in: in}))
	}
	return typeText(in.dt, in.shape, split)
}

// likely returns the probable layout of an operand. The layout is derived from the layouts of parameters and from the
// operations. A wrong result causes an unnecessary reshard.
func (p *printer) likely(o operand) graph.Layout {
	if o.p != nil {
		if o.p.value != nil && o.p.stack == nil && o.p.value.Layout != nil {
			return o.p.value.Layout
		}
		return make(graph.Layout, len(o.p.shape))
	}
	if have, ok := p.guesses[o.in]; ok {
		return have
	}
	layout := make(graph.Layout, len(o.in.shape))
	if p.guesses == nil {
		p.guesses = map[*inst]graph.Layout{}
	}
	p.guesses[o.in] = layout
	copy(layout, p.after(o.in))
	used := map[string]bool{}
	for d, axes := range layout { // an axis can split only one dimension, and only evenly
		size := int64(1)
		for _, a := range axes {
			if used[a] {
				size = 0
			}
			used[a] = true
			size *= p.axisSize(a)
		}
		if size == 0 || o.in.shape[d]%size != 0 {
			layout[d] = nil
		}
	}
	return layout
}

func (p *printer) axisSize(name string) int64 {
	for _, a := range p.g.Mesh {
		if a.Name == name {
			return a.Size
		}
	}
	return 0
}

// after returns the layout of an instruction's result, or nil if each rank holds the whole result.
func (p *printer) after(in *inst) graph.Layout {
	if in.layout != nil || len(in.args) == 0 {
		return in.layout
	}
	x := p.likely(in.args[0])
	from := in.args[0].shape()
	var layout graph.Layout
	switch {
	case in.op == "linear" || in.op == "matmul":
		w := p.likely(in.args[1])
		col := len(w) - 1
		if in.op == "linear" || in.attrs != "" { // the weight is stored transposed
			col = len(w) - 2
		}
		return append(slices.Clone(x[:len(x)-1]), w[col])
	case in.op == "transpose":
		for _, d := range numbers(in.attrs) {
			layout = append(layout, x[d])
		}
	case in.op == "reshape":
		layout = make(graph.Layout, len(in.shape))
		for d, axes := range x {
			if to := reshapedSplit(from, in.shape, d); to >= 0 && len(axes) > 0 {
				layout[to] = axes
			}
		}
	case slices.Contains([]string{"sum", "mean", "max", "min"}, in.op):
		gone := numbers(in.attrs)
		for d, axes := range x {
			if !slices.Contains(gone, d) {
				layout = append(layout, axes)
			}
		}
	case slices.Equal(from, in.shape) || slices.Contains([]string{"broadcast", "slice", "concat"}, in.op):
		return p.aligned(in)
	}
	return layout
}

// aligned returns the layout of a result to which the operands broadcast. The shapes are aligned at their last
// dimensions.
func (p *printer) aligned(in *inst) graph.Layout {
	layout := make(graph.Layout, len(in.shape))
	for _, a := range in.args {
		for d, axes := range p.likely(a) {
			to := d + len(in.shape) - len(a.shape())
			if to >= 0 && a.shape()[d] == in.shape[to] && len(layout[to]) == 0 {
				layout[to] = axes
			}
		}
	}
	return layout
}

// numbers returns the integers in the text of an attribute, such as axis=(0, 1).
func numbers(text string) (list []int) {
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return r < '0' || r > '9' }) {
		if n, err := strconv.Atoi(word); err == nil {
			list = append(list, n)
		}
	}
	return list
}

// paramType returns the printed type of a parameter.
func (p *printer) paramType(q *param) string {
	shape, split, front := q.shape, q.split, 0
	if q.stack != nil {
		shape, front = append([]int64{int64(len(q.stack))}, q.stack[0].shape...), 1
		if split >= 0 {
			split++
		}
	}
	if q.value != nil && q.value.Layout != nil {
		return layoutText(q.dt, shape, slices.Concat(make(graph.Layout, front), q.value.Layout))
	}
	return typeText(q.dt, shape, split)
}

// mesh returns the statement that declares the mesh: a mesh with one axis whose size -n sets, or with several axes.
func (p *printer) mesh() string {
	switch list := p.g.Mesh; len(list) {
	case 0:
		return fmt.Sprintf("dim P = %d\nmesh %s[P]\n", p.ranks, axis)
	case 1:
		return fmt.Sprintf("dim P = %d\nmesh %s[P]\n", list[0].Size, list[0].Name)
	default:
		text := "mesh"
		for _, a := range list {
			text += fmt.Sprintf(" %s[%d]", a.Name, a.Size)
		}
		return text + "\n"
	}
}

// resultLayout returns the layout of result i, or nil if each rank holds the whole result.
func (l *recognition) resultLayout(i int) graph.Layout {
	if i < len(l.g.OutputLayouts) {
		return l.g.OutputLayouts[i]
	}
	return nil
}

// splitOf returns the dimension that a layout splits over the only axis of a mesh, or -1.
func (l *recognition) splitOf(layout graph.Layout) int {
	if len(l.g.Mesh) != 1 {
		return -1
	}
	return slices.IndexFunc(layout, func(axes []string) bool { return len(axes) > 0 })
}

// allReduce converts a collective that the model itself calls. In such a model, each rank has its own tensors, so
// weights keep the shapes of the export.
func (l *lowering) allReduce(n *graph.Node) (*val, error) {
	if len(l.plan) > 0 {
		return nil, refuse(n, "the model reduces over ranks itself, and a plan has hocket reduce: leave --plan and --shard out")
	}
	v := n.In[0]
	x, err := l.lower(v)
	if err != nil {
		return nil, err
	}
	if !isProduct(v) || x.in == nil || len(l.users[v]) > 1 || slices.Contains(l.g.Outputs, v) {
		from, err := l.plain(v)
		if err != nil {
			return nil, err
		}
		x = l.emitted(n, "copy", "", from.dtype(), v.Shape, -1, from)
	}
	x.in.reduce = "over=" + axis + ", op=" + n.Attrs.Red // in place
	return x, nil
}

// reshard converts a change of layout.
func (l *lowering) reshard(n *graph.Node) (*val, error) {
	x, err := l.plain(n.In[0])
	if err != nil {
		return nil, err
	}
	y := l.emitted(n, "reshard", "", x.dtype(), n.Out[0].Shape, l.splitOf(n.Attrs.Layout), x)
	y.in.typed, y.in.layout = true, n.Attrs.Layout
	return y, nil
}
