package lower

import (
	"slices"

	"hocket.example/hocket/ir"
)

// meshes finds the mesh that a type's values are placed on.
type meshes struct {
	main   *place
	byAxis map[string]*place
}

// place is a mesh. Its ranks are known where the text lists them, or, of the
// main mesh, which is all ranks, where it gives small numbers for its sizes.
type place struct {
	main    bool
	axes    []ir.MeshAxis
	devices []int64 // of the main mesh, none where they are not known
	// sizes of the axes; nil where the text leaves one open.
	sizes []int64
}

func newMeshes(p *ir.Program) meshes {
	ms := meshes{main: &place{main: true}, byAxis: map[string]*place{}}
	for _, m := range p.Meshes {
		pl := &place{axes: m.Axes}
		if m.HasDevices {
			pl.devices, pl.sizes = m.Devices, knownSizes(m)
		} else {
			pl.main, ms.main = true, pl
			pl.devices, pl.sizes = allRanks(m)
		}
		for _, ax := range m.Axes {
			ms.byAxis[ax.Name] = pl
		}
	}
	return ms
}

// maxListed bounds the size of main meshes for which the text of a reshard names single ranks.
const maxListed = 1024

// allRanks returns the ranks of the main mesh and its sizes, where they are
// few enough and the text gives them as numbers.
func allRanks(m *ir.Mesh) (devices, sizes []int64) {
	n := int64(1)
	for _, ax := range m.Axes {
		if ax.Size.Kind != ir.ExprInt || ax.Size.Val < 1 || ax.Size.Val > maxListed {
			return nil, nil
		}
		sizes = append(sizes, ax.Size.Val)
		if n *= ax.Size.Val; n > maxListed {
			return nil, nil
		}
	}
	for r := range n {
		devices = append(devices, r)
	}
	return devices, sizes
}

// of returns the mesh of t's values: the named one, else the main mesh.
func (ms meshes) of(t *ir.Type) *place {
	if pl := ms.byAxis[t.Mesh]; pl != nil {
		return pl
	}
	return ms.main
}

// knownSizes returns the axes' sizes if the text gives them all and they fill
// the device list. A single axis is as long as the list.
func knownSizes(m *ir.Mesh) []int64 {
	if len(m.Axes) == 1 {
		return []int64{int64(len(m.Devices))}
	}
	var sizes []int64
	places := int64(1)
	for _, ax := range m.Axes {
		if ax.Size.Kind != ir.ExprInt || ax.Size.Val < 1 || ax.Size.Val > int64(len(m.Devices)) {
			return nil
		}
		sizes = append(sizes, ax.Size.Val)
		places *= ax.Size.Val
		if places > int64(len(m.Devices)) {
			return nil
		}
	}
	if places != int64(len(m.Devices)) {
		return nil
	}
	return sizes
}

func (pl *place) axisNames() []string {
	out := make([]string, len(pl.axes))
	for i, ax := range pl.axes {
		out[i] = ax.Name
	}
	return out
}

// known reports whether the text says which ranks the mesh has and how they
// are arranged.
func (pl *place) known() bool { return pl.sizes != nil }

// parts returns into how many blocks axes cut a dimension.
func (pl *place) parts(axes []string) int64 {
	n := int64(1)
	for _, a := range axes {
		n *= pl.sizes[pl.axis(a)]
	}
	return n
}

// block returns which block of a dimension cut by axes the i-th device holds.
func (pl *place) block(axes []string, i int) int64 {
	b := int64(0)
	for _, a := range axes {
		k := pl.axis(a)
		stride := int64(1)
		for _, n := range pl.sizes[k+1:] {
			stride *= n
		}
		b = b*pl.sizes[k] + int64(i)/stride%pl.sizes[k]
	}
	return b
}

// index returns which device of the mesh a rank is, -1 for none.
func (pl *place) index(rank int64) int {
	switch {
	case !pl.main:
		return slices.Index(pl.devices, rank)
	case rank < int64(len(pl.devices)):
		return int(rank)
	}
	return -1
}

// blocks returns the block that the i-th device holds of each dimension of t.
func (pl *place) blocks(t *ir.Type, i int) []int64 {
	out := make([]int64, len(t.Dims))
	for k, d := range t.Dims {
		out[k] = pl.block(d.Axes, i)
	}
	return out
}

func (pl *place) axis(name string) int {
	return slices.IndexFunc(pl.axes, func(ax ir.MeshAxis) bool { return ax.Name == name })
}
