package lower

import (
	"slices"

	"hocket.example/hocket/ir"
)

// meshes finds the mesh on which the values of a type are placed.
type meshes struct {
	main   *place
	byAxis map[string]*place
}

// place describes a mesh. The ranks of a sub-mesh are known if the text lists them. The ranks of the main mesh are
// known if the text gives the sizes of its axes as numbers and the product of the sizes is at most maxListed.
type place struct {
	main    bool
	axes    []ir.MeshAxis
	devices []int64 // the ranks; empty for a main mesh whose ranks are not known
	// sizes holds the sizes of the axes, or is nil if the text leaves one of them open.
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

// maxListed is the maximum size of a main mesh for which the text of a reshard names single ranks.
const maxListed = 1024

// allRanks returns the ranks of the main mesh and the sizes of its axes. Both results are nil if the text does not give
// the sizes as numbers or if there are more than maxListed ranks.
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

// of returns the mesh on which values of type t are placed: the mesh that t names, or the main mesh if it names none.
func (ms meshes) of(t *ir.Type) *place {
	if pl := ms.byAxis[t.Mesh]; pl != nil {
		return pl
	}
	return ms.main
}

// knownSizes returns the sizes of the axes if the text gives all of them and their product is the length of the device
// list. The size of a single axis is the length of the list.
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

// known reports whether the text determines the ranks of the mesh and their arrangement.
func (pl *place) known() bool { return pl.sizes != nil }

// parts returns the number of blocks into which a dimension is cut if it is split over axes.
func (pl *place) parts(axes []string) int64 {
	n := int64(1)
	for _, a := range axes {
		n *= pl.sizes[pl.axis(a)]
	}
	return n
}

// block returns the index of the block that the i-th device holds of a dimension that is split over axes.
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

// index returns the index of a rank among the mesh's devices, or -1 if the mesh does not contain it.
func (pl *place) index(rank int64) int {
	switch {
	case !pl.main:
		return slices.Index(pl.devices, rank)
	case rank < int64(len(pl.devices)):
		return int(rank)
	}
	return -1
}

// blocks returns, for each dimension of t, the index of the block that the i-th device holds.
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
