package eval

import (
	"fmt"
	"slices"

	"hocket.example/hocket/ir"
)

// value is one instance of an immutable global tensor (S2). A value is computed once for all ranks, when it is first
// used. The layout of a value determines only the shard of each rank, and the contribution of each rank to a partial
// sum.
type value struct {
	m     *machine
	name  string
	typ   *ir.Type
	shape []int64 // shape of the global tensor
	// from computes the whole value. For a partial sum, this is the total.
	from func() (*array, error)
	// part computes the contribution of a group of ranks to a partial sum, as a global tensor. The group consists
	// of the ranks that have the same coordinates on the partial axes as the given rank. part is nil for values
	// that are not partial.
	part func(rank int) (*array, error)
	// own, if not nil, returns the shard of the rank, computed from data that only this rank has.
	own func(rank int) *array

	done  *array
	parts map[string]*array
}

// pending is the error of an operation that cannot run yet. The field what describes the event for which it waits.
type pending struct{ what string }

func (p *pending) Error() string { return p.what }

// whole returns the value, or *pending.
func (v *value) whole() (*array, error) {
	if v.done != nil {
		return v.done, nil
	}
	if err := v.m.reserve(v.typ.DType, v.shape); err != nil {
		return nil, err
	}
	a, err := v.from()
	if err != nil {
		v.m.release(v.typ.DType, v.shape)
		return nil, err
	}
	if !slices.Equal(a.shape, v.shape) {
		return nil, fmt.Errorf("%%%s has shape %v, but its type requires %v", v.name, a.shape, v.shape)
	}
	v.done = a
	return a, nil
}

// contribution returns, as a global tensor, the contribution of the ranks that have the same coordinates on the partial
// axes as the given rank. If the value is not partial, contribution returns the whole value.
func (v *value) contribution(rank int) (*array, error) {
	if v.part == nil {
		return v.whole()
	}
	key := v.m.coords(v.typ, rank)
	if a := v.parts[key]; a != nil {
		return a, nil
	}
	if err := v.m.reserve(v.typ.DType, v.shape); err != nil {
		return nil, err
	}
	a, err := v.part(rank)
	if err != nil {
		v.m.release(v.typ.DType, v.shape)
		return nil, err
	}
	if v.parts == nil {
		v.parts = map[string]*array{}
	}
	v.parts[key] = a
	return a, nil
}

// shard returns the block of the value that rank holds.
func (v *value) shard(rank int) (*array, error) {
	if v.own != nil {
		if a := v.own(rank); a != nil {
			return a, nil
		}
	}
	a, err := v.contribution(rank)
	if err != nil {
		return nil, err
	}
	local, err := v.m.localShape(v.typ, v.shape)
	if err != nil {
		return nil, err
	}
	return a.box(v.m.b.Offset(v.typ, local, rank), local), nil
}

// coords returns rank's coordinates on t's partial axes as text.
func (m *machine) coords(t *ir.Type, rank int) string {
	var c []int64
	for _, p := range t.Partial {
		i, _ := m.b.Coord(p.Axis, rank)
		c = append(c, i)
	}
	return fmt.Sprint(c)
}

// parts returns the number of ranks over which a dimension is split.
func (m *machine) parts(axes []string) int64 {
	n := int64(1)
	for _, ax := range axes {
		size, _ := m.b.AxisSize(ax)
		n *= size
	}
	return n
}

// localShape returns the shape of the block of a value of type t and the given
// global shape that each rank holds.
func (m *machine) localShape(t *ir.Type, shape []int64) ([]int64, error) {
	local := slices.Clone(shape)
	for i, d := range t.Dims {
		n := m.parts(d.Axes)
		if local[i]%n != 0 {
			return nil, fmt.Errorf("extent %d of dimension %d is not a multiple of the %d ranks it is split over", local[i], i, n)
		}
		local[i] /= n
	}
	return local, nil
}

// restricted returns the block of a that rank holds along the dimension dim, which the type typ splits over ranks.
// In all other dimensions, the block has the extent of a.
func (m *machine) restricted(a *array, typ *ir.Type, dim, rank int) (*array, error) {
	n := m.parts(typ.Dims[dim].Axes)
	if n == 1 {
		return a, nil
	}
	blocks, err := a.split(dim, n)
	if err != nil {
		return nil, err
	}
	block := int64(0)
	for _, ax := range typ.Dims[dim].Axes {
		size, _ := m.b.AxisSize(ax)
		c, _ := m.b.Coord(ax, rank)
		block = block*size + c
	}
	return blocks[block], nil
}

// resharded returns the value v in the layout of type t. The partial axes of t must be partial axes of v, because a
// value that is not partial cannot become partial. Along the other partial axes of v, the contributions of the
// ranks are added.
func (m *machine) resharded(v *value, t *ir.Type, anyOrder bool) (*value, error) {
	if t == nil || ir.SameLayout(t, v.typ) {
		return v, nil
	}
	var gone []string
	red := ir.NoRed
	for _, p := range v.typ.Partial {
		if !slices.Contains(t.Partial, p) {
			gone, red = append(gone, p.Axis), p.Red
		}
	}
	for _, p := range t.Partial {
		if !slices.Contains(v.typ.Partial, p) {
			return nil, fmt.Errorf("%%%s is not partial over %s and cannot become partial", v.name, p.Axis)
		}
	}
	out := &value{m: m, name: v.name, typ: t, shape: v.shape}
	n := m.parts(gone)
	out.from = func() (*array, error) {
		a, err := v.whole()
		if err != nil {
			return nil, err
		}
		return reducedTotal(a, n, len(t.Partial) > 0, m.parts(partialAxes(t)), anyOrder), nil
	}
	if len(t.Partial) > 0 {
		out.part = func(rank int) (*array, error) { return m.reducedContributions(v, gone, red, rank, anyOrder) }
	}
	return out, nil
}

func partialAxes(t *ir.Type) []string {
	var axes []string
	for _, p := range t.Partial {
		axes = append(axes, p.Axis)
	}
	return axes
}

// reducedTotal converts the total of a partial sum to the result of adding the contributions of n ranks. The result is
// the rounded value. If partial is set, the result is instead the total of a partial sum over the left remaining ranks.
func reducedTotal(a *array, n int64, partial bool, left int64, anyOrder bool) *array {
	if a.mag == nil {
		return a
	}
	out := newArray(a.dt, a.shape)
	if partial {
		out.mag = make([]float64, out.len())
	}
	for i := range out.len() {
		y, e, mag := a.f[i], a.e[i], a.mag[i]
		switch {
		case !partial:
			out.f[i], out.e[i] = reduced(a.dt, y, e, mag, n, anyOrder)
			continue
		case n > 1 && (e != 0 || mag > holdsIntegers(a.dt)):
			e, mag = contributions(a.dt, e+additions(a.dt, mag, n, anyOrder), mag, left)
		}
		out.f[i], out.e[i], out.mag[i] = y, e, mag
	}
	return out
}

// reducedContributions adds the contributions of those ranks whose coordinates equal those of rank except along the
// axes in gone.
func (m *machine) reducedContributions(v *value, gone []string, red ir.Red, rank int, anyOrder bool) (*array, error) {
	if len(gone) == 0 {
		return v.contribution(rank)
	}
	var all []*array
	for _, r := range m.b.Team(gone, rank) {
		a, err := v.contribution(r)
		if err != nil {
			return nil, err
		}
		all = append(all, a)
	}
	return reduceArrays(red, all, anyOrder)
}
