package stablehlo

import (
	"slices"

	"hocket.example/hocket/internal/graph"
)

// indexing builds slices at computed positions, gathers and scatters.
type indexing struct {
	shapes
}

// clamped returns the index x clamped to the range 0..most.
func (b *indexing) clamped(x tens, most int64) tens {
	if c, ok := b.uniform(x); ok && c >= 0 && c <= float64(most) {
		return x
	}
	return b.minimum(b.maximum(x, b.like(x, 0), x.t), b.like(x, float64(most)), x.t)
}

// counted returns 0, 1, … n-1 along dimension d of the shape. It broadcasts along all other dimensions.
func (b *nodes) counted(dt graph.DType, shape []int64, d int) tens {
	b.spend(shape[d])
	c := graph.NewTensor(dt, []int64{shape[d]})
	for i := range c.Elems {
		c.Elems[i] = float64(i)
	}
	ones := slices.Repeat([]int64{1}, len(shape)-d)
	ones[0] = shape[d]
	return tens{v: b.reshaped(b.g.Constant("iota", c), ones), t: typ{dt: dt, shape: shape}}
}

// take returns the elements of x that have the given indices along some dimensions. The result has the dimensions of
// the indices, followed by the remaining dimensions of x.
func (b *shapes) take(x tens, dims []int64, at []tens, shape []int64) tens {
	lifted := anyLifted(append([]tens{x}, at...)...)
	left := rest(len(x.t.shape), dims)
	t := typ{dt: x.t.dt, shape: slices.Concat(shape, graph.Pick(x.t.shape, left))}
	v := b.permuted(b.fullAs(x, lifted), shifted(slices.Concat(dims, left), offOf(lifted)))
	var list []*graph.Value
	if lifted {
		dev := b.counted(graph.I64, append([]int64{b.lift}, shape...), 0)
		list = append(list, dev.v)
	}
	for i, k := range at {
		k.t.shape = shape
		var w *graph.Value
		if i == 0 {
			w = b.fullAs(k, lifted)
		} else {
			w = b.padded(k, lifted)
		}
		if w.DType != graph.I64 {
			w = b.add(graph.Cast, graph.Attrs{}, graph.I64, w)
		}
		list = append(list, w)
	}
	depends := func(w *graph.Value) bool { return !b.folder.IsConstant(w) }
	wide := v.DType
	// Hocket's language selects rows of floating-point tensors only.
	if (depends(v) || slices.ContainsFunc(list, depends)) && !wide.IsFloat() {
		if wide == graph.I64 && b.long {
			b.refuse("a selection of elements of %s by an index", x.t)
		}
		wide = graph.F64
		v = b.add(graph.Cast, graph.Attrs{}, wide, v)
	}
	v = b.add(graph.Take, graph.Attrs{}, wide, append([]*graph.Value{v}, list...)...)
	if wide != t.dt {
		v = b.add(graph.Cast, graph.Attrs{}, t.dt, v)
	}
	return tens{v: v, t: t, lifted: lifted}
}

// moved returns x with its dimension from moved to position to.
func (b *shapes) moved(x tens, from, to int) tens {
	perm := rest(len(x.t.shape), []int64{int64(from)})
	return b.transposed(x, slices.Insert(perm, to, int64(from)))
}

// windowAt returns the part of x that begins at lo along dimension d and has the given size. lo is clamped so that the
// part lies within x.
func (b *indexing) windowAt(x tens, d int, lo tens, size int64) tens {
	n := x.t.shape[d]
	if size == n {
		return x
	}
	lo = b.clamped(lo, n-size)
	if c, ok := b.uniform(lo); ok {
		return b.cut(x, d, int64(c), int64(c)+size)
	}
	i := b.arith(graph.AddOp, b.stretched(lo, []int64{size}), b.counted(lo.t.dt, []int64{size}, 0))
	return b.moved(b.take(x, []int64{int64(d)}, []tens{i}, []int64{size}), 0, d)
}

// starts checks the start indices of a part of a tensor.
func (b *indexing) starts(x tens, at []tens) []tens {
	if len(at) != len(x.t.shape) {
		b.wrong("%d start indices for an operand of type %s", len(at), x.t)
	}
	for _, i := range at {
		if len(i.t.shape) != 0 || i.t.dt.IsFloat() || i.t.dt == graph.Bool {
			b.wrong("a start index has type %s, not that of an integer scalar", i.t)
		}
	}
	return at
}

func (b *indexing) dynamicSlice(in []tens) tens {
	if len(in) == 0 {
		b.wrong("it has no operand")
	}
	x := in[0]
	sizes := b.ints("slice_sizes", "sizes")
	at := b.starts(x, in[1:])
	if len(sizes) != len(at) {
		b.wrong("%d slice sizes for an operand of type %s", len(sizes), x.t)
	}
	for d, n := range sizes {
		if n < 0 || n > x.t.shape[d] {
			b.wrong("a slice of %d elements does not fit dimension %d of %s", n, d, x.t)
		}
		x = b.windowAt(x, d, at[d], n)
	}
	return x
}

func (b *indexing) dynamicUpdateSlice(in []tens) tens {
	if len(in) < 2 {
		b.wrong("it has no update")
	}
	x, u := in[0], in[1]
	at := b.starts(x, in[2:])
	if len(u.t.shape) != len(x.t.shape) || u.t.dt != x.t.dt {
		b.wrong("an update of type %s does not fit an operand of type %s", u.t, x.t)
	}
	for d, n := range u.t.shape {
		if n > x.t.shape[d] {
			b.wrong("an update of type %s does not fit an operand of type %s", u.t, x.t)
		}
	}
	return b.updated(x, u, at, 0)
}

// updated returns x with u written at the position at. The tensors x and u have equal extents in the dimensions before
// d.
func (b *indexing) updated(x, u tens, at []tens, d int) tens {
	for d < len(at) && x.t.shape[d] == u.t.shape[d] {
		d++
	}
	if d == len(at) {
		return u
	}
	n, w := x.t.shape[d], u.t.shape[d]
	if w == 0 {
		return x
	}
	lo := b.clamped(at[d], n-w)
	u = b.updated(b.windowAt(x, d, lo, w), u, at, d+1)
	if c, ok := b.uniform(lo); ok {
		c := int64(c)
		return b.joined(d, b.cut(x, d, 0, c), u, b.cut(x, d, c+w, n))
	}
	i := b.arith(graph.Sub, b.counted(lo.t.dt, []int64{n}, 0), b.stretched(lo, []int64{n}))
	is := b.is(graph.And, b.is(graph.Ge, i, b.like(i, 0)), b.is(graph.Lt, i, b.like(i, float64(w))))
	all := b.moved(b.take(u, []int64{int64(d)}, []tens{b.clamped(i, w-1)}, []int64{n}), 0, d)
	return b.where(b.spread(is, typ{dt: graph.Bool, shape: x.t.shape}, []int64{int64(d)}), all, x)
}

// indices holds the dimension numbers of a gather or scatter. The field mapped lists the operand's dimensions that
// indices select, batch those that it shares with the tensor of indices, and collapsed those that windows lack.
type indices struct {
	offset, collapsed, batch, at, mapped []int64
	vector                               int64 // the dimension of the indices tensor that contains the components of an index
	sizes                                []int64
}

// parts returns the components of the indices, one for each mapped dimension, and their shape.
func (b *indexing) parts(x *indices, idx tens) ([]tens, []int64) {
	v := int(x.vector)
	if v < 0 || v > len(idx.t.shape) || idx.t.dt.IsFloat() || idx.t.dt == graph.Bool {
		b.wrong("indices of type %s with index_vector_dim %d", idx.t, v)
	}
	if v == len(idx.t.shape) {
		idx = b.reshapedTo(idx, append(slices.Clone(idx.t.shape), 1))
	}
	if idx.t.shape[v] != int64(len(x.mapped)) {
		b.wrong("indices of type %s do not have %d components", idx.t, len(x.mapped))
	}
	shape := slices.Delete(slices.Clone(idx.t.shape), v, v+1)
	var list []tens
	for k := range x.mapped {
		list = append(list, b.reshapedTo(b.cut(idx, v, int64(k), int64(k)+1), shape))
	}
	return list, shape
}

// check reports an error for dimension numbers that do not fit the operand and the indices.
func (b *indexing) check(x *indices, operand, idx tens) {
	rank := len(operand.t.shape)
	b.inRange(slices.Concat(x.collapsed, x.batch), rank)
	b.inRange(x.mapped, rank)
	b.inRange(x.at, len(idx.t.shape))
	if len(x.at) != len(x.batch) || len(x.sizes) != rank || slices.Contains(x.at, x.vector) {
		b.wrong("dimension numbers do not fit %s and %s", operand.t, idx.t)
	}
	for d, n := range x.sizes {
		one := slices.Contains(x.collapsed, int64(d)) || slices.Contains(x.batch, int64(d))
		if n < 0 || n > operand.t.shape[d] || one && n > 1 {
			b.wrong("windows with slice sizes %v do not fit an operand of type %s", x.sizes, operand.t)
		}
	}
	for i, d := range x.batch {
		if slices.Contains(x.mapped, d) || operand.t.shape[d] != idx.t.shape[x.at[i]] {
			b.wrong("batching dimension %d of %s does not fit indices of type %s", d, operand.t, idx.t)
		}
	}
}

// reached lists the dimensions of an operand along which the positions of windows differ. For each of these dimensions,
// it also returns the positions of the window elements: one for every index and, if windows have several elements along
// the dimension, for each of these elements. start holds the start positions of windows along the mapped dimensions, in
// the shape of the indices.
func (b *indexing) reached(x *indices, operand tens, start map[int64]tens, shape []int64) (dims []int64, at []tens,
	wide []int64, full []int64) {
	full = slices.Clone(shape)
	for d := range int64(len(operand.t.shape)) {
		_, mapped := start[d]
		if n := x.sizes[d]; mapped && n != 1 && n != operand.t.shape[d] {
			wide = append(wide, d)
			full = append(full, n)
		}
	}
	spread := func(t tens) tens { // spread appends dimensions for the elements of windows
		return b.spread(t, typ{dt: t.t.dt, shape: full}, graph.Counting(len(shape)))
	}
	for d := range int64(len(operand.t.shape)) {
		s, mapped := start[d]
		switch k := slices.Index(x.batch, d); {
		case k >= 0:
			j := x.at[k]
			if j > x.vector {
				j--
			}
			dims, at = append(dims, d), append(at, b.counted(graph.I64, full, int(j)))
		case !mapped || x.sizes[d] == operand.t.shape[d] && x.sizes[d] != 1:
		default:
			i := spread(s)
			if w := slices.Index(wide, d); w >= 0 {
				i = b.arith(graph.AddOp, i, b.counted(i.t.dt, full, len(shape)+w))
			}
			dims, at = append(dims, d), append(at, i)
		}
	}
	return dims, at, wide, full
}

func (b *indexing) gather(in []tens) tens {
	x, idx := in[0], in[1]
	t := b.result()
	a := b.op.attrs["dimension_numbers"]
	if a == nil || a.dict == nil {
		b.wrong("it has no dimension numbers")
	}
	n := &indices{offset: a.dict["offset_dims"].ints(), collapsed: a.dict["collapsed_slice_dims"].ints(),
		batch: a.dict["operand_batching_dims"].ints(), at: a.dict["start_indices_batching_dims"].ints(),
		mapped: a.dict["start_index_map"].ints(), sizes: b.ints("slice_sizes"),
		vector: a.dict["index_vector_dim"].int()}
	b.check(n, x, idx)
	parts, shape := b.parts(n, idx)
	if kept := rest(len(x.t.shape), n.collapsed, n.batch); len(kept) != len(n.offset) ||
		len(shape)+len(kept) != len(t.shape) {
		b.wrong("windows of %d dimensions do not fit a result of type %s", len(kept), t)
	}
	b.inRange(n.offset, len(t.shape))
	start := map[int64]tens{}
	for k, d := range n.mapped {
		start[d] = b.clamped(parts[k], x.t.shape[d]-n.sizes[d])
	}
	// If all windows begin at the same position along a dimension and do not cover it, the operand is sliced along the
	// dimension.
	for d := range int64(len(x.t.shape)) {
		if _, mapped := start[d]; !mapped && !slices.Contains(n.batch, d) {
			x = b.cut(x, int(d), 0, n.sizes[d])
		}
	}
	dims, at, wide, full := b.reached(n, x, start, shape)
	windows := rest(len(x.t.shape), n.collapsed, n.batch)
	if len(dims) == 0 { // the result does not depend on the indices: all windows are equal
		return b.spread(b.reshapedTo(x, graph.Pick(x.t.shape, windows)), t, slices.Sorted(slices.Values(n.offset)))
	}
	y := b.take(x, dims, at, full)
	order := rest(len(x.t.shape), dims) // dimensions of x, in the order of the last dimensions of y
	// The dimensions of y are those of the indices, then the wide ones, then the others. Dimensions of extent 1 are
	// last.
	of := slices.Concat(wide, order)
	perm := make([]int64, len(t.shape))
	next := int64(0)
	for i := range perm {
		k := slices.Index(n.offset, int64(i))
		if k < 0 {
			perm[i] = next
			next++
			continue
		}
		j := slices.Index(of, windows[k])
		if j < 0 { // of one element
			y = b.reshapedTo(y, append(slices.Clone(y.t.shape), 1))
			perm[i] = int64(len(y.t.shape)) - 1
			continue
		}
		perm[i] = int64(len(shape) + j)
	}
	// Collapsed dimensions that no index selects have extent 1 and are removed.
	y = b.transposed(y, slices.Concat(perm, rest(len(y.t.shape), perm)))
	return b.reshapedTo(y, t.shape)
}

// maxOneHot is the largest number of elements in the table that assigns updates to rows.
const maxOneHot = 1 << 32

func (b *indexing) scatter(in []tens, s *scope) tens {
	if len(in) != 3 {
		b.refuse("a scatter of %d operands", len(in))
	}
	x, idx, u := in[0], in[1], in[2]
	n, windows := b.scatterDims(x, u)
	rank := len(x.t.shape)
	b.check(n, x, idx)
	parts, shape := b.parts(n, idx)
	if !slices.Equal(graph.Pick(u.t.shape, rest(len(u.t.shape), n.offset)), shape) {
		b.wrong("updates of type %s do not fit indices of type %s", u.t, idx.t)
	}
	how := b.scatterBody()
	start, valid := b.scatterStarts(n, x, parts)
	for _, d := range windows {
		if _, mapped := start[d]; !mapped && n.sizes[d] != x.t.shape[d] {
			start[d] = b.stretched(b.scalar(graph.I64, 0), shape) // the window begins at 0
		}
	}
	dims, at, wide, full := b.reached(n, x, start, shape)
	left := rest(rank, dims)
	u = b.transposed(u, updateOrder(n, len(u.t.shape), windows, wide, left))
	count, width := graph.Product(full), graph.Product(graph.Pick(x.t.shape, left))
	u = b.reshapedTo(u, []int64{count, width})
	rows := graph.Product(graph.Pick(x.t.shape, dims))
	if rows == 0 || count == 0 || width == 0 {
		return x
	}
	base := b.reshapedTo(b.transposed(x, slices.Concat(dims, left)), []int64{rows, width})
	sums := how == "add" && !anyLifted(x, idx, u) && b.addsRows(u.t.dt)
	if !sums && rows > maxOneHot/count {
		b.refuse("%d updates of %d rows, which need too large a table", count, rows)
	}
	row := b.stretched(b.scalar(graph.I64, 0), full)
	for i, d := range dims {
		k := b.convert(at[i], typ{dt: graph.I64})
		row = b.arith(graph.AddOp, b.arith(graph.Mul, row, b.like(row, float64(x.t.shape[d]))), k)
	}
	if valid != nil {
		is := b.spread(*valid, typ{dt: graph.Bool, shape: full}, graph.Counting(len(shape)))
		row = b.where(is, row, b.stretched(b.like(row, -1), full))
	}
	return b.unpermuted(b.scattered(base, u, row, how, sums), x, dims, left)
}

// scatterDims returns the dimension numbers of a scatter of the updates u into x, and the dimensions of x that windows
// have.
func (b *indexing) scatterDims(x, u tens) (n *indices, windows []int64) {
	a := b.op.attrs["scatter_dimension_numbers"]
	if a == nil || a.dict == nil {
		b.wrong("it has no dimension numbers")
	}
	n = &indices{offset: a.dict["update_window_dims"].ints(), collapsed: a.dict["inserted_window_dims"].ints(),
		batch: a.dict["input_batching_dims"].ints(), at: a.dict["scatter_indices_batching_dims"].ints(),
		mapped: a.dict["scatter_dims_to_operand_dims"].ints(), vector: a.dict["index_vector_dim"].int()}
	rank := len(x.t.shape)
	b.inRange(slices.Concat(n.collapsed, n.batch), rank)
	b.inRange(n.offset, len(u.t.shape))
	windows = rest(rank, n.collapsed, n.batch)
	if len(windows) != len(n.offset) || u.t.dt != x.t.dt {
		b.wrong("updates of type %s do not fit an operand of type %s", u.t, x.t)
	}
	n.sizes = slices.Repeat([]int64{1}, rank)
	for i, d := range windows {
		n.sizes[d] = u.t.shape[n.offset[i]]
	}
	return n, windows
}

// scatterBody returns how the body of a scatter combines an element with an update: add or set.
func (b *indexing) scatterBody() string {
	body := b.op.region(&b.nodes, 0)
	if bodyOp(body, 0, 1) == "add" {
		return "add"
	}
	if bodyOp(body, 0, 1) != "" || len(body.ops) != 1 || len(body.args) != 2 || len(body.ops[0].in) != 1 ||
		body.ops[0].in[0] != body.args[1].name {
		b.refuse("a body that neither adds the update nor returns it")
	}
	return "set"
}

// scatterStarts returns, for each mapped dimension, where the windows begin, and whether each window lies within x. The
// latter is nil if all do. Windows that do not lie within x have no effect.
func (b *indexing) scatterStarts(n *indices, x tens, parts []tens) (start map[int64]tens, valid *tens) {
	start = map[int64]tens{}
	for k, d := range n.mapped {
		most := x.t.shape[d] - n.sizes[d]
		is := b.is(graph.And, b.is(graph.Ge, parts[k], b.like(parts[k], 0)),
			b.is(graph.Le, parts[k], b.like(parts[k], float64(most))))
		if c, ok := b.uniform(is); !ok || c == 0 {
			if valid != nil {
				is = b.is(graph.And, *valid, is)
			}
			valid = &is
		}
		start[d] = b.clamped(parts[k], most)
	}
	return start, valid
}

// updateOrder returns the order of the dimensions of updates: those of the indices, then the window dimensions that
// indices select, then the others. Dimensions of extent 1 are last.
func updateOrder(n *indices, rank int, windows, wide, left []int64) []int64 {
	perm := rest(rank, n.offset)
	for _, d := range wide {
		perm = append(perm, n.offset[slices.Index(windows, d)])
	}
	var ones []int64
	for i, d := range windows {
		switch {
		case slices.Contains(wide, d):
		case slices.Contains(left, d):
			perm = append(perm, n.offset[i])
		default:
			ones = append(ones, n.offset[i])
		}
	}
	return slices.Concat(perm, ones)
}

// scattered returns base[R, W] with the rows of u[N, W] added or set at the given rows. If sums is set, the language
// adds the rows; otherwise a table assigns updates to rows.
func (b *indexing) scattered(base, u, row tens, how string, sums bool) tens {
	rows, count := base.t.shape[0], u.t.shape[0]
	if sums {
		v := b.add(graph.IndexAdd, graph.Attrs{K: rows}, u.t.dt, b.fullAs(u, false),
			b.fullAs(b.reshapedTo(row, []int64{count}), false))
		y := tens{v: v, t: base.t}
		if c, ok := b.uniform(base); !ok || c != 0 {
			y = b.arith(graph.AddOp, base, y)
		}
		return y
	}
	table := []int64{rows, count}
	row = b.spread(b.reshapedTo(row, []int64{1, count}), typ{dt: graph.I64, shape: table}, []int64{0, 1})
	hot := b.is(graph.Eq, row, b.counted(graph.I64, table, 0))
	if how == "add" {
		return b.added(hot, base, u)
	}
	return b.placed(hot, base, u)
}

// addsRows reports whether the language can add rows of this type selected by ids.
func (b *indexing) addsRows(dt graph.DType) bool {
	return slices.Contains([]graph.DType{graph.F16, graph.BF16, graph.F32, graph.F64, graph.I32, graph.I64}, dt)
}

// unpermuted returns y in the shape of x. The rows of y run along the dimensions dims of x, and the elements of a row
// along the dimensions left.
func (b *indexing) unpermuted(y, x tens, dims, left []int64) tens {
	y = b.reshapedTo(y, slices.Concat(graph.Pick(x.t.shape, dims), graph.Pick(x.t.shape, left)))
	return b.transposed(y, graph.Inverse(slices.Concat(dims, left)))
}

// added returns base[R, W] plus, for each row, the sum of the rows of u[N, W] that hot[R, N] assigns to it, as a matrix
// product.
func (b *indexing) added(hot, base, u tens) tens {
	dt := graph.F32
	if u.t.dt != graph.F16 && u.t.dt != graph.BF16 && u.t.dt != graph.F32 {
		dt = graph.F64 // f64 represents all integers below 2⁵³ exactly
	}
	lifted := anyLifted(hot, base, u)
	cast := func(x tens) *graph.Value {
		if x.t.dt != dt {
			x = b.elementwise(graph.Cast, dt, x)
		}
		return b.fullAs(x, lifted)
	}
	v := b.add(graph.MatMul, graph.Attrs{}, dt, cast(hot), cast(u))
	y := tens{v: v, t: typ{dt: dt, shape: base.t.shape}, lifted: lifted}
	if dt != base.t.dt {
		y = b.elementwise(graph.Cast, base.t.dt, y)
	}
	if c, ok := b.uniform(base); ok && c == 0 {
		return y
	}
	return b.arith(graph.AddOp, base, y)
}

// placed returns base[R, W] with each row replaced by the row of u[N, W] that hot[R, N] assigns to it. If hot assigns
// several rows of u to one row, the last of them is used.
func (b *indexing) placed(hot, base, u tens) tens {
	rows := base.t.shape[0]
	lifted := anyLifted(hot)
	number := b.elementwise(graph.Cast, graph.I32, hot)
	number = b.arith(graph.Mul, number, b.counted(graph.I32, hot.t.shape, 1))
	of := func(op graph.Op, x tens) tens {
		v := b.add(op, graph.Attrs{Axes: []int64{1 + int64(hot.off())}}, x.t.dt, b.fullAs(x, lifted))
		return tens{v: v, t: typ{dt: x.t.dt, shape: []int64{rows}}, lifted: lifted}
	}
	which, is := of(graph.MaxOf, number), of(graph.MaxOf, hot)
	all := b.take(u, []int64{0}, []tens{which}, []int64{rows})
	return b.where(b.spread(is, typ{dt: graph.Bool, shape: base.t.shape}, []int64{0}), all, base)
}
