package stablehlo

import (
	"slices"
	"strings"

	"hocket.example/hocket/internal/graph"
)

// manual describes a manual computation, which each device along some axes of a mesh executes on the device's data. The
// devices are numbered along these axes in row-major order.
type manual struct {
	mesh *mesh
	axes []axis // the manual axes
	// replicas and partitions are the numbers of replicas and partitions in a test. Both are 0 in a manual computation.
	replicas, partitions int64
}

// maxDevices is the largest number of devices in a manual computation.
const maxDevices = 4096

// index returns the number of a device within the computation, and the number of its position along the other axes.
func (m *manual) index(device int64) (at, other int64) {
	step := m.mesh.size()
	for _, a := range m.mesh.axes {
		step /= a.size
		c := device / step % a.size
		if slices.Contains(m.axes, a) {
			at = at*a.size + c
		} else {
			other = other*a.size + c
		}
	}
	return at, other
}

func (m *manual) sizes() []int64 {
	list := []int64{}
	for _, a := range m.axes {
		list = append(list, a.size)
	}
	return list
}

// manual translates a manual computation.
func (b *builder) manual(in []tens, s *scope) []tens {
	o := b.op
	if b.lift != 0 {
		b.refuse("a manual computation within another one")
	}
	shardings := func(name string) []*sharding {
		a := o.attrs[name]
		if a == nil {
			return nil
		}
		list := a.per
		for _, x := range a.list {
			list = append(list, x.sharding)
		}
		return list
	}
	ins, outs := shardings("in_shardings"), shardings("out_shardings")
	if len(ins) != len(in) || len(outs) != len(o.types) {
		b.wrong("in_shardings has %d elements and out_shardings %d, but there are %d operands and %d results",
			len(ins), len(outs), len(in), len(o.types))
	}
	m := &manual{}
	for _, x := range slices.Concat(ins, outs) {
		of := b.meshOf(x)
		if m.mesh == nil || len(of.axes) > len(m.mesh.axes) {
			m.mesh = of
		}
	}
	if m.mesh == nil {
		b.refuse("a manual computation without operands and results")
	}
	if len(m.mesh.order) > 0 && !slices.Equal(m.mesh.order, graph.Counting(len(m.mesh.order))) {
		b.refuse("a mesh whose devices are not in ascending order")
	}
	names := o.attrs["manual_axes"]
	for _, a := range m.mesh.axes {
		if names != nil && slices.ContainsFunc(names.list, func(x *attr) bool { return x.text == a.name }) {
			m.axes = append(m.axes, a)
		}
	}
	if names == nil || len(m.axes) != len(names.list) {
		b.wrong("the manual axes are not those of the mesh")
	}
	blk := o.region(&b.nodes, 0)
	if len(blk.args) != len(in) {
		b.wrong("a region has %d parameters, but gets %d values", len(blk.args), len(in))
	}
	lift := graph.Product(m.sizes())
	if lift > maxDevices {
		b.refuse("a manual computation on %d devices; the limit is %d", lift, maxDevices)
	}
	local := make([]tens, len(in))
	for i, x := range in {
		local[i] = b.localized(m, x, ins[i], blk.args[i].t, lift)
	}
	b.lift, b.devs = lift, m
	got := b.inner(blk, local, s, len(o.types))
	b.op = o
	out := make([]tens, len(got))
	for i, x := range got {
		out[i] = b.globalized(m, x, outs[i], o.types[i])
	}
	b.lift, b.devs = 0, nil
	return out
}

// devices builds operations that involve several devices: layouts, manual computations and collectives.
type devices struct {
	complexes
	module *module
	meshes map[string]*mesh // maps a name to the mesh, with the axis sizes that layouts use
	devs   *manual          // the manual computation
}

// split describes how a sharding splits a value over the manual axes. The results are the sizes of the axes that split
// each dimension, and a list of all these axes in the order of the dimensions.
func (b *devices) split(m *manual, s *sharding, rank int) (sizes [][]int64, order []axis) {
	if len(s.dims) != rank {
		b.wrong("a sharding of %d dimensions for a tensor of %d dimensions", len(s.dims), rank)
	}
	sizes = make([][]int64, rank)
	for d, dim := range s.dims {
		for _, p := range dim.parts {
			i := slices.IndexFunc(m.axes, func(a axis) bool { return a.name == p.axis })
			if i < 0 {
				continue
			}
			if p.size != 0 {
				b.refuse("a dimension split over a part of an axis")
			}
			if slices.Contains(order, m.axes[i]) {
				b.wrong("axis %q splits two dimensions", p.axis)
			}
			sizes[d] = append(sizes[d], m.axes[i].size)
			order = append(order, m.axes[i])
		}
	}
	return sizes, order
}

// localized returns the part of x that each device holds.
func (b *devices) localized(m *manual, x tens, s *sharding, t typ, lift int64) tens {
	sizes, order := b.split(m, s, len(x.t.shape))
	if len(order) == 0 {
		if !slices.Equal(x.t.shape, t.shape) || x.t.dt != t.dt {
			b.wrong("the sharding does not divide a value of type %s into parts of type %s", x.t, t)
		}
		return x
	}
	// Each split dimension is replaced by the dimensions of its axes and the local dimension.
	var shape, axes, locals []int64
	for d, n := range x.t.shape {
		total := graph.Product(sizes[d])
		if n%total != 0 || len(t.shape) != len(x.t.shape) || n/total != t.shape[d] || t.dt != x.t.dt {
			b.wrong("the sharding does not divide a value of type %s into parts of type %s", x.t, t)
		}
		for range sizes[d] {
			axes = append(axes, int64(len(shape)))
			shape = append(shape, 0)
		}
		copy(shape[len(shape)-len(sizes[d]):], sizes[d])
		locals = append(locals, int64(len(shape)))
		shape = append(shape, n/total)
	}
	v := b.reshaped(b.full(x), shape)
	// The axes are moved to the front, in the order of the mesh. The value is repeated along axes that split no dimension.
	var perm, front []int64
	for _, a := range m.axes {
		if i := slices.Index(order, a); i >= 0 {
			perm, front = append(perm, axes[i]), append(front, a.size)
		} else {
			front = append(front, 1)
		}
	}
	v = b.permuted(v, slices.Concat(perm, locals))
	v = b.reshaped(v, slices.Concat(front, t.shape))
	if want := slices.Concat(m.sizes(), t.shape); !slices.Equal(v.Shape, want) {
		v = b.add(graph.Broadcast, graph.Attrs{Shape: want}, v.DType, v)
	}
	return tens{v: b.reshaped(v, append([]int64{lift}, t.shape...)), t: t, lifted: true}
}

// globalized returns the whole value, given the part of each device.
func (b *devices) globalized(m *manual, x tens, s *sharding, t typ) tens {
	sizes, order := b.split(m, s, len(t.shape))
	if len(t.shape) != len(x.t.shape) || t.dt != x.t.dt {
		b.wrong("the sharding does not join parts of type %s to a value of type %s", x.t, t)
	}
	for d, n := range x.t.shape {
		if n*graph.Product(sizes[d]) != t.shape[d] {
			b.wrong("the sharding does not join parts of type %s to a value of type %s", x.t, t)
		}
	}
	if len(order) == 0 && !x.lifted {
		return x
	}
	v := b.reshaped(b.fullAs(x, true), slices.Concat(m.sizes(), x.t.shape))
	var kept []axis
	for i := len(m.axes) - 1; i >= 0; i-- { // along an axis that splits no dimension, all devices have equal parts
		if !slices.Contains(order, m.axes[i]) {
			v = b.cut(tens{v: v, t: typ{dt: v.DType, shape: v.Shape}}, i, 0, 1).v
			v = b.reshaped(v, slices.Delete(slices.Clone(v.Shape), i, i+1))
		}
	}
	for _, a := range m.axes {
		if slices.Contains(order, a) {
			kept = append(kept, a)
		}
	}
	var perm []int64
	next := 0
	for d := range t.shape {
		for range sizes[d] {
			perm = append(perm, int64(slices.Index(kept, order[next])))
			next++
		}
		perm = append(perm, int64(len(kept)+d))
	}
	return tens{v: b.reshaped(b.permuted(v, perm), t.shape), t: t}
}

// groups returns the groups of devices of a collective. Devices are numbered within the computation.
func (b *devices) groups() [][]int64 {
	if b.lift == 0 || b.devs == nil {
		b.refuse("a collective outside of sdy.manual_computation")
	}
	a := b.op.attrs["replica_groups"]
	if a != nil && a.dict["axes"] != nil {
		return b.alongAxes(a.dict["axes"].list)
	}
	if a == nil || a.dense == nil && a.list == nil {
		b.refuse("a collective without groups")
	}
	rows := b.groupRows(a)
	if b.devs.replicas > 0 {
		rows = b.processes(rows)
	}
	if len(rows) == 0 {
		return [][]int64{graph.Counting(int(b.lift))}
	}
	var groups [][]int64
	seen := map[int64]bool{}
	for _, r := range rows {
		g := b.groupOf(r, seen)
		switch {
		case len(g) == 0:
			continue
		case len(g) != len(r):
			b.refuse("groups of devices that differ along axes that are not manual")
		}
		groups = append(groups, g)
	}
	for _, g := range groups {
		if len(g) != len(groups[0]) {
			b.refuse("groups of different sizes")
		}
	}
	if int64(len(seen)) != b.lift {
		b.refuse("groups that lack devices")
	}
	return groups
}

// groupRows returns the groups that an attribute lists.
func (b *devices) groupRows(a *attr) (rows [][]int64) {
	if a.dense == nil {
		for _, r := range a.list {
			rows = append(rows, r.ints())
		}
		return rows
	}
	shape := a.dense.t.shape
	if len(shape) != 2 {
		b.wrong("groups of type %s", a.dense.t)
	}
	list := a.ints()
	for i := range shape[0] {
		rows = append(rows, list[i*shape[1]:(i+1)*shape[1]])
	}
	return rows
}

// groupOf returns the numbers within the computation of those devices of a group whose position along the other axes is
// the first. It records them in seen.
func (b *devices) groupOf(row []int64, seen map[int64]bool) (g []int64) {
	for _, d := range row {
		if d < 0 {
			b.refuse("groups of different sizes")
		}
		at, other := b.devs.index(d)
		if other != 0 {
			continue
		}
		if seen[at] {
			b.wrong("device %d is in two groups", d)
		}
		seen[at] = true
		g = append(g, at)
	}
	return g
}

// alongAxes lists the groups of devices whose positions differ only along the given axes. Within a group, the position
// along the first given axis varies slowest.
func (b *devices) alongAxes(refs []*attr) [][]int64 {
	sizes := b.devs.sizes()
	var along []int64
	for _, r := range refs {
		name := r.dict["name"]
		if name == nil || r.dict["sub_axis_info"] != nil {
			b.refuse("a collective over a part of an axis")
		}
		d := slices.IndexFunc(b.devs.axes, func(a axis) bool { return a.name == name.text })
		if d < 0 {
			b.refuse("a collective over axis %q, which is not manual", name.text)
		}
		along = append(along, int64(d))
	}
	b.inRange(along, len(sizes))
	// The devices are ordered by their positions along the other axes, and then along the given axes.
	order := slices.Concat(rest(len(sizes), along), along)
	size := graph.Product(graph.Pick(sizes, along))
	groups := make([][]int64, b.lift/size)
	for i := range b.lift {
		device, left := int64(0), i
		at := make([]int64, len(sizes))
		for k := len(order) - 1; k >= 0; k-- {
			at[order[k]] = left % sizes[order[k]]
			left /= sizes[order[k]]
		}
		for d, n := range sizes {
			device = device*n + at[d]
		}
		groups[i/size] = append(groups[i/size], device)
	}
	return groups
}

// grouped returns a lifted value whose dimension of devices is replaced by two dimensions: the groups, and the devices
// in a group.
func (b *devices) grouped(x tens, groups [][]int64) *graph.Value {
	v := b.ordered(b.fullAs(x, true), slices.Concat(groups...))
	return b.reshaped(v, slices.Concat([]int64{int64(len(groups)), int64(len(groups[0]))}, v.Shape[1:]))
}

// ungrouped is the inverse of grouped.
func (b *devices) ungrouped(v *graph.Value, groups [][]int64, t typ) tens {
	v = b.reshaped(v, append([]int64{b.lift}, v.Shape[2:]...))
	return tens{v: b.ordered(v, graph.Inverse(slices.Concat(groups...))), t: t, lifted: true}
}

// ordered returns v with the indices of its first dimension in another order. If the order is a permutation of axes, it
// is made by a transposition.
func (b *devices) ordered(v *graph.Value, order []int64) *graph.Value {
	if slices.Equal(order, graph.Counting(len(order))) {
		return v
	}
	// Test whether the order exchanges two factors of the dimension, like the rows and columns of a matrix.
	n := int64(len(order))
	for f := int64(2); f < n; f++ {
		if n%f != 0 {
			continue
		}
		same := true
		for i, d := range order {
			same = same && d == int64(i)%(n/f)*f+int64(i)/(n/f)
		}
		if same {
			w := b.reshaped(v, slices.Concat([]int64{n / f, f}, v.Shape[1:]))
			w = b.permuted(w, slices.Concat([]int64{1, 0}, shifted(graph.Counting(len(v.Shape)-1), 2)[2:]))
			return b.reshaped(w, v.Shape)
		}
	}
	var parts []*graph.Value
	for _, d := range order {
		parts = append(parts, b.add(graph.SliceOp, graph.Attrs{Axis: 0, Lo: d, Hi: d + 1, Step: 1}, v.DType, v))
	}
	return b.add(graph.Concat, graph.Attrs{Axis: 0}, v.DType, parts...)
}

// shared gives every device the part of v that belongs to the device's group. Along its first dimension, v has one part
// for each group.
func (b *devices) shared(v *graph.Value, groups [][]int64, t typ) tens {
	if len(groups) == 1 {
		return tens{v: b.reshaped(v, t.shape), t: t}
	}
	v = b.reshaped(v, slices.Concat([]int64{int64(len(groups)), 1}, t.shape))
	v = b.add(graph.Broadcast, graph.Attrs{Shape: slices.Concat([]int64{int64(len(groups)), int64(len(groups[0]))},
		t.shape)}, v.DType, v)
	return b.ungrouped(v, groups, t)
}

// reducedOver reduces over the devices of each group.
func (b *devices) reducedOver(x tens, groups [][]int64) *graph.Value {
	r, ok := reducers[bodyOp(b.op.region(&b.nodes, 0), 0, 1)]
	if !ok {
		b.refuse("a body that is not a sum, a maximum or a minimum")
	}
	return b.add(r.op, graph.Attrs{Axes: []int64{1}}, x.t.dt, b.grouped(x, groups))
}

func (b *devices) allReduce(in []tens) []tens {
	groups := b.groups()
	var out []tens
	for _, x := range in {
		out = append(out, b.shared(b.reducedOver(x, groups), groups, x.t))
	}
	return out
}

// dimension returns the dimension of a value that an attribute of the operation names.
func (b *devices) dimension(x tens, names ...string) int {
	d := b.number(names...)
	if d < 0 || d >= int64(len(x.t.shape)) {
		b.wrong("%s has no dimension %d", x.t, d)
	}
	return int(d)
}

func (b *devices) allGather(in []tens) []tens {
	groups := b.groups()
	var out []tens
	for _, x := range in {
		d := b.dimension(x, "all_gather_dim")
		v := b.grouped(x, groups) // [G, S, …]
		perm := rest(len(v.Shape), []int64{1})
		v = b.permuted(v, slices.Insert(perm, d+1, 1))
		t := typ{dt: x.t.dt, shape: slices.Clone(x.t.shape)}
		t.shape[d] *= int64(len(groups[0]))
		out = append(out, b.shared(b.reshaped(v, append([]int64{int64(len(groups))}, t.shape...)), groups, t))
	}
	return out
}

// parted splits dimension d of v into two dimensions: the first has extent n and becomes dimension 1, the second has
// the remaining extent.
func (b *devices) parted(v *graph.Value, d int, n int64) *graph.Value {
	if v.Shape[d]%n != 0 {
		b.wrong("%d is not a multiple of %d", v.Shape[d], n)
	}
	shape := slices.Insert(slices.Clone(v.Shape), d, n)
	shape[d+1] /= n
	v = b.reshaped(v, shape)
	perm := rest(len(shape), []int64{int64(d)})
	return b.permuted(v, slices.Insert(perm, 1, int64(d)))
}

func (b *devices) reduceScatter(in []tens) []tens {
	b.want(in, 1)
	x, groups := in[0], b.groups()
	d := b.dimension(x, "scatter_dimension")
	n := int64(len(groups[0]))
	t := typ{dt: x.t.dt, shape: slices.Clone(x.t.shape)}
	t.shape[d] /= n
	return []tens{b.ungrouped(b.parted(b.reducedOver(x, groups), d+1, n), groups, t)}
}

func (b *devices) allToAll(in []tens) []tens {
	groups := b.groups()
	var out []tens
	for _, x := range in {
		from, to := b.dimension(x, "split_dimension"), b.dimension(x, "concat_dimension")
		n := int64(len(groups[0]))
		if b.number("split_count") != n {
			b.wrong("split_count is %d, but groups have %d devices", b.number("split_count"), n)
		}
		t := typ{dt: x.t.dt, shape: slices.Clone(x.t.shape)}
		t.shape[from] /= n
		t.shape[to] *= n
		v := b.parted(b.grouped(x, groups), from+2, n) // [G, receiver, sender, …]
		perm := rest(len(v.Shape), []int64{2})
		v = b.permuted(v, slices.Insert(perm, to+2, 2))
		v = b.reshaped(v, slices.Concat([]int64{int64(len(groups)), n}, t.shape))
		out = append(out, b.ungrouped(v, groups, t))
	}
	return out
}

func (b *devices) collectivePermute(in []tens) []tens {
	b.want(in, 1)
	if b.lift == 0 || b.devs == nil {
		b.refuse("a collective outside of sdy.manual_computation")
	}
	x := in[0]
	a := b.op.attrs["source_target_pairs"]
	if a == nil || a.dense == nil || len(a.dense.t.shape) != 2 || a.dense.t.shape[1] != 2 {
		b.wrong("it has no pairs")
	}
	list := a.ints()
	if b.devs.replicas > 0 {
		var rows [][]int64
		for i := 0; i+1 < len(list); i += 2 {
			rows = append(rows, list[i:i+2])
		}
		list = slices.Concat(b.processes(rows)...)
	}
	from := slices.Repeat([]int64{-1}, int(b.lift))
	for i := 0; i+1 < len(list); i += 2 {
		s, other := b.devs.index(list[i])
		t, beside := b.devs.index(list[i+1])
		if other != beside {
			b.refuse("pairs of devices that differ along axes that are not manual")
		}
		if other == 0 {
			if from[t] >= 0 {
				b.wrong("device %d gets two values", list[i+1])
			}
			from[t] = s
		}
	}
	v := b.fullAs(x, true)
	var parts []*graph.Value
	for _, s := range from {
		if s < 0 {
			parts = append(parts, b.add(graph.Broadcast, graph.Attrs{Shape: append([]int64{1}, x.t.shape...)}, v.DType,
				b.g.Scalar(v.DType, 0)))
		} else {
			parts = append(parts, b.add(graph.SliceOp, graph.Attrs{Axis: 0, Lo: s, Hi: s + 1, Step: 1}, v.DType, v))
		}
	}
	if v = parts[0]; len(parts) > 1 {
		v = b.add(graph.Concat, graph.Attrs{Axis: 0}, v.DType, parts...)
	}
	return []tens{{v: v, t: x.t, lifted: true}}
}

// partition returns the number of each device.
func (b *devices) partition([]tens) []tens {
	if b.lift == 0 || b.devs == nil {
		b.refuse("a device number outside of sdy.manual_computation")
	}
	if len(b.devs.axes) != len(b.devs.mesh.axes) {
		b.refuse("a device number where not all axes are manual")
	}
	c := b.counted(graph.I64, []int64{b.lift}, 0)
	if n := b.devs.partitions; n > 0 {
		for i := range c.v.Data.Elems {
			if c.v.Data.Elems[i] = float64(int64(i) % n); strings.HasSuffix(b.op.name, "replica_id") {
				c.v.Data.Elems[i] = float64(int64(i) / n)
			}
		}
	} else if strings.HasSuffix(b.op.name, "replica_id") {
		clear(c.v.Data.Elems)
	}
	return []tens{{v: c.v, t: b.result(), lifted: true}}
}
