package ir

import (
	"fmt"
	"slices"
)

// boundMesh is a mesh whose axis sizes are known. Rank devices[i] is at position i of the mesh, counted with the last
// axis fastest.
type boundMesh struct {
	names   []string
	sizes   []int64
	devices []int
	indexOf map[int]int // device → i
}

// bindMeshes evaluates axis sizes and device lists.
func (b *Bound) bindMeshes(bind Binding) *Diagnostic {
	p := b.Info.Prog
	world := 0
	for _, m := range p.Meshes {
		bm, d := b.bindMesh(m)
		if d != nil {
			return d
		}
		for _, dev := range bm.devices {
			world = max(world, dev+1)
		}
		b.meshes = append(b.meshes, bm)
		for _, n := range bm.names {
			b.axes[n] = bm
		}
	}
	if len(p.Meshes) == 0 {
		world = max(bind.Ranks, 1)
	}
	if main := p.MainMesh(); main != nil {
		bm := b.axes[main.Axes[0].Name]
		for i, m := range b.meshes {
			for _, dev := range m.devices {
				if dev >= len(bm.devices) {
					return p.bindError(p.Meshes[i].Pos, "ranks are numbered from 0",
						"the sub-mesh lists rank %d, but the main mesh has only %d ranks", dev, len(bm.devices))
				}
			}
		}
		world = len(bm.devices)
	}
	if bind.Ranks != 0 && bind.Ranks != world {
		return p.bindError(Pos{}, fmt.Sprintf("run it on %d ranks, or make the mesh's size a dim for which no other value is given", world),
			"%d ranks are requested, but the program's mesh has %d", bind.Ranks, world)
	}
	b.Ranks = world
	all := &boundMesh{names: []string{WorldAxis}, sizes: []int64{int64(world)}}
	for r := range world {
		all.devices = append(all.devices, r)
	}
	b.axes[WorldAxis] = all.index()
	return nil
}

func (b *Bound) bindMesh(m *Mesh) (*boundMesh, *Diagnostic) {
	p := b.Info.Prog
	bm := &boundMesh{}
	total := int64(1)
	for _, ax := range m.Axes {
		n, err := ax.Size.Eval(b.Env(0, nil))
		switch {
		case err != nil:
			return nil, p.bindError(ax.Pos, "set its dims with --dim, or the number of ranks with -n",
				"cannot compute the size of mesh axis %s: %v", ax.Name, err)
		case n < 1 || n > MaxRanks || total*n > MaxRanks:
			return nil, p.bindError(ax.Pos, "change the dims of the mesh's size",
				"mesh axis %s has size %d, but a mesh has between 1 and %d ranks", ax.Name, n, MaxRanks)
		}
		total *= n
		bm.names = append(bm.names, ax.Name)
		bm.sizes = append(bm.sizes, n)
	}
	if !m.HasDevices {
		for r := range int(total) {
			bm.devices = append(bm.devices, r)
		}
		return bm.index(), nil
	}
	if int64(len(m.Devices)) != total {
		return nil, p.bindError(m.Pos, "list one rank for each position of the mesh; the last axis varies fastest",
			"the mesh has %d positions but lists %d ranks", total, len(m.Devices))
	}
	seen := map[int64]bool{}
	for _, d := range m.Devices {
		if d < 0 || d >= MaxRanks || seen[d] {
			return nil, p.bindError(m.Pos, "ranks are numbered from 0, and each may be listed only once",
				"rank %d is listed twice or out of range", d)
		}
		seen[d] = true
		bm.devices = append(bm.devices, int(d))
	}
	return bm.index(), nil
}

func (m *boundMesh) index() *boundMesh {
	m.indexOf = make(map[int]int, len(m.devices))
	for i, d := range m.devices {
		m.indexOf[d] = i
	}
	return m
}

// axis returns the position of the named axis.
func (m *boundMesh) axis(name string) int { return slices.Index(m.names, name) }

// coord returns the coordinate along axis a of position i in the mesh.
func (m *boundMesh) coord(i, a int) int64 {
	for k := len(m.sizes) - 1; k > a; k-- {
		i /= int(m.sizes[k])
	}
	return int64(i) % m.sizes[a]
}

// stride returns the difference between the positions of neighbours along axis a.
func (m *boundMesh) stride(a int) int {
	s := int64(1)
	for _, n := range m.sizes[a+1:] {
		s *= n
	}
	return int(s)
}

// AxisSize returns the number of ranks along axis.
func (b *Bound) AxisSize(axis string) (int64, bool) {
	m := b.axes[axis]
	if m == nil {
		return 0, false
	}
	return m.sizes[m.axis(axis)], true
}

// Coord returns the coordinate of a rank along an axis. Coord returns false if the mesh with that axis does not contain
// the rank.
func (b *Bound) Coord(axis string, rank int) (int64, bool) {
	m := b.axes[axis]
	if m == nil {
		return 0, false
	}
	i, ok := m.indexOf[rank]
	if !ok {
		return 0, false
	}
	return m.coord(i, m.axis(axis)), true
}

// Peer returns the rank whose coordinate along axis is index and whose other coordinates are those of rank. Peer
// returns false if the mesh does not contain rank or if index is out of range.
func (b *Bound) Peer(axis string, index int64, rank int) (int, bool) {
	m := b.axes[axis]
	if m == nil {
		return 0, false
	}
	i, ok := m.indexOf[rank]
	a := m.axis(axis)
	if !ok || index < 0 || index >= m.sizes[a] {
		return 0, false
	}
	return m.devices[i+int(index-m.coord(i, a))*m.stride(a)], true
}

// Grid returns the axis sizes of a mesh that contains all ranks in order, with the last axis fastest. If there are
// several such meshes, Grid uses the one with the most axes.
func (b *Bound) Grid() []int64 {
	grid := []int64{int64(b.Ranks)}
	for _, m := range b.meshes {
		inOrder := len(m.devices) == b.Ranks
		for i, d := range m.devices {
			inOrder = inOrder && i == d
		}
		if inOrder && len(m.sizes) > len(grid) {
			grid = m.sizes
		}
	}
	return grid
}

// Team returns the ranks whose coordinates equal those of the given rank on all axes except the given ones. The ranks
// are in the order of the given axes, of which the last varies fastest. Team returns nil if the mesh does not contain
// the rank.
func (b *Bound) Team(axes []string, rank int) []int {
	team := []int{rank}
	for _, ax := range axes {
		n, ok := b.AxisSize(ax)
		if !ok {
			return nil
		}
		var next []int
		for _, r := range team {
			for c := range n {
				p, ok := b.Peer(ax, c, r)
				if !ok {
					return nil
				}
				next = append(next, p)
			}
		}
		team = next
	}
	return team
}

// Devices returns the ranks on which a value of type t is placed, in mesh order.
func (b *Bound) Devices(t *Type) []int {
	if m := b.meshOf(t); m != nil {
		return m.devices
	}
	return nil
}

// Holds reports whether rank holds a part of a value of type t.
func (b *Bound) Holds(t *Type, rank int) bool {
	m := b.meshOf(t)
	if m == nil {
		return false
	}
	_, ok := m.indexOf[rank]
	return ok
}

// meshOf returns the mesh on which values of type t are placed: the mesh that the type names, the main mesh if it names
// none, or all ranks if there is no main mesh.
func (b *Bound) meshOf(t *Type) *boundMesh {
	if t.Mesh != "" {
		return b.axes[t.Mesh]
	}
	if m := b.Info.Prog.MainMesh(); m != nil {
		return b.axes[m.Axes[0].Name]
	}
	return b.axes[WorldAxis]
}
