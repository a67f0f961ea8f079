package stablehlo

import (
	"fmt"
	"maps"
	"slices"

	"hocket.example/hocket/internal/graph"
)

// layouts selects the mesh for layouts: the first mesh in the text, with axis sizes adjusted to the number of ranks. If
// several meshes have the same axes, all of them get these sizes.
func (b *devices) layouts(o Options) {
	b.meshes = b.module.meshes
	var first *mesh
	for _, name := range slices.Sorted(maps.Keys(b.meshes)) {
		if m := b.meshes[name]; first == nil || len(m.axes) > len(first.axes) {
			first = m
		}
	}
	if first == nil || len(first.axes) == 0 {
		b.g.Mesh = []graph.MeshAxis{{Name: "devices", Size: int64(max(o.Ranks, 1))}}
		return
	}
	list := []graph.MeshAxis{}
	taken := map[string]bool{"world": true}
	for _, a := range first.axes {
		name := graph.Identifier(a.name)
		for taken[name] {
			name += "_"
		}
		taken[name] = true
		list = append(list, graph.MeshAxis{Name: name, Size: a.size})
	}
	if o.Ranks > 0 { // keeps as much as possible of the sizes of the last axes
		left := int64(o.Ranks)
		for i := len(list) - 1; i >= 0; i-- {
			list[i].Size = gcd(list[i].Size, left)
			left /= list[i].Size
		}
		list[len(list)-1].Size *= left
	}
	b.g.Mesh = list
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// meshOf returns the mesh of a sharding.
func (b *devices) meshOf(s *sharding) *mesh {
	m := s.inline
	if m == nil {
		m = b.meshes[s.mesh]
	}
	if m == nil {
		b.wrong("there is no mesh @%s", s.mesh)
	}
	return m
}

// axisOf returns the axis of the graph's mesh that corresponds to an axis of the text, or nil if there is none.
func (b *devices) axisOf(s *sharding, name string) *graph.MeshAxis {
	if !slices.ContainsFunc(b.meshOf(s).axes, func(a axis) bool { return a.name == name }) {
		b.wrong("the mesh has no axis %q", name)
	}
	id := graph.Identifier(name)
	for i := range b.g.Mesh {
		if b.g.Mesh[i].Name == id {
			return &b.g.Mesh[i]
		}
	}
	return nil
}

// layoutOf returns the layout that the attributes of a parameter or result specify. A dimension whose split the graph
// cannot represent is not split, and a note gives the reason.
func (b *devices) layoutOf(name string, shape []int64, attrs map[string]*attr) graph.Layout {
	whole := make(graph.Layout, len(shape))
	a := attrs["sdy.sharding"]
	if a == nil || a.sharding == nil {
		return whole
	}
	layout, reason := b.layout(a.sharding, shape)
	if reason != "" {
		b.g.Notes = append(b.g.Notes, fmt.Sprintf("%%%s is not split as its sharding says: %s.", name, reason))
	}
	return layout
}

// layout converts a sharding to a layout. It returns the reason if a dimension could not be split.
func (b *devices) layout(s *sharding, shape []int64) (graph.Layout, string) {
	layout, reason := make(graph.Layout, len(shape)), ""
	if len(s.dims) != len(shape) {
		b.wrong("a sharding of %d dimensions for a tensor of %d dimensions", len(s.dims), len(shape))
	}
	used := map[string]bool{}
	for i, d := range s.dims {
		var axes []string
		size := int64(1)
		for _, p := range d.parts {
			a := b.axisOf(s, p.axis)
			switch {
			case used[p.axis] && p.size == 0:
				b.wrong("axis %q splits two dimensions", p.axis)
			case p.size != 0:
				reason = fmt.Sprintf("(%d)%d is a part of axis %s", p.pre, p.size, p.axis)
			case a == nil:
				reason = "the sharding's mesh is not the program's"
			default:
				axes, size = append(axes, a.Name), size*a.Size
			}
			used[p.axis] = true
		}
		if len(axes) != len(d.parts) {
			continue
		}
		if shape[i]%size != 0 {
			reason = fmt.Sprintf("%d is not a multiple of %d", shape[i], size)
			continue
		}
		layout[i] = axes
	}
	return layout, reason
}

// constraint returns a value with the layout that a sharding specifies. If the sharding leaves a dimension open and
// splits it over no axis, the layout is left to the program's own rules.
func (b *devices) constraint(in []tens) tens {
	x := in[0]
	s := (*sharding)(nil)
	for _, n := range []string{"sharding", "out_sharding"} {
		if a := b.op.attrs[n]; a != nil {
			s = a.sharding
		}
	}
	if s == nil {
		b.wrong("it has no sharding")
	}
	layout, _ := b.layout(s, x.t.shape)
	for _, d := range s.dims {
		if d.open && len(d.parts) == 0 {
			return x
		}
	}
	if x.lifted || b.devs != nil || b.known(x) != nil {
		return x
	}
	v := b.add(graph.Reshard, graph.Attrs{Layout: layout}, x.t.dt, b.full(x))
	return tens{v: v, t: x.t}
}
