package modelprogram

import (
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/internal/graph"
)

// Exports that state layouts have a mesh and its axes in place of a plan.

// layoutText is a type with a layout as programs write it.
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

// typeOf is the type of an instruction as printed, split along dimension split or, where it has one, in its layout.
func (p *printer) typeOf(in *inst, split int) string {
	switch {
	case in.layout != nil:
		return layoutText(in.dt, in.shape, in.layout)
	case split >= 0 && len(p.g.Mesh) == 1 && in.shape[split]%p.g.Mesh[0].Size == 0:
		layout := make(graph.Layout, len(in.shape))
		layout[split] = []string{p.g.Mesh[0].Name}
		return layoutText(in.dt, in.shape, layout)
	case len(p.g.Mesh) > 0:
		split = -1
	}
	return typeText(in.dt, in.shape, split)
}

// paramType is the type of a parameter as printed.
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

// mesh is the statement of the mesh: one of an axis whose size -n sets, or of several.
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

// resultLayout is the layout of result i; nil for a whole one.
func (l *lowerer) resultLayout(i int) graph.Layout {
	if i < len(l.g.OutputLayouts) {
		return l.g.OutputLayouts[i]
	}
	return nil
}

// splitOf is the dimension that a layout over the only axis of a mesh splits; -1 for none.
func (l *lowerer) splitOf(layout graph.Layout) int {
	if len(l.g.Mesh) != 1 {
		return -1
	}
	return slices.IndexFunc(layout, func(axes []string) bool { return len(axes) > 0 })
}

// reshard lowers a change of layout.
func (l *lowerer) reshard(n *graph.Node) (*val, error) {
	x, err := l.plain(n.In[0])
	if err != nil {
		return nil, err
	}
	y := l.emitted(n, "reshard", "", x.dtype(), n.Out[0].Shape, l.splitOf(n.Attrs.Layout), x)
	y.in.typed, y.in.layout = true, n.Attrs.Layout
	return y, nil
}
