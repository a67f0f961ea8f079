package nvfuser

import "hocket.example/hocket/ir"

// storage describes the memory of an input, of an output, or of the result of an ALLOCATE. Several tensors may share
// it. storage records whether any statement writes the memory and whether any statement reads it: a dump that only
// reads or only writes a memory is incomplete.
type storage struct {
	id            string
	input, output bool
	written, read ir.Pos
}

// binding describes the buffer or view in the converted program to which a tensor's id refers at one point of the
// dump. It also holds the printed axes that this buffer or view has.
type binding struct {
	name string
	t    *tensor
	// axes lists, in order, the printed axes that the buffer has. Axes that are reduced or distributed over devices are
	// omitted, and so is the stream axis unless the buffer holds all parts along it.
	axes  []axis
	shape []*ir.Expr
	mem   *storage
	// value reports that the binding is a value and not a buffer. The shard of a parameter is a value, because ranks
	// outside the parameter's mesh do not have it.
	value bool
}

// localAxes returns the axes of the buffer in which one rank holds its part of t. If sharded is set, the buffer holds
// only the part of t that one stream uses.
func localAxes(t *tensor, sharded bool) []axis {
	var list []axis
	for _, a := range t.axes {
		if !a.reduced() && !a.device() && !(sharded && a.stream()) {
			list = append(list, a)
		}
	}
	return list
}

// memories assigns buffers, values and views to tensors.
type memories struct {
	streams
	unit    *unitState
	slicing *loop // the stream-parallel loop in which each iteration uses one part of the tensor
	// The following fields describe tensors.
	homes    map[string]*node
	seen     map[string]*tensor
	outputs  map[string]bool
	outputAt map[string]ir.Pos
	results  map[string]string
	memory   []*storage
	locals   map[string]*ir.Stmt // local views of inputs
}

func (t *memories) shapeOf(axes []axis) []*ir.Expr {
	shape := make([]*ir.Expr, len(axes))
	for i, a := range axes {
		shape[i] = t.expr(a.extent)
	}
	return shape
}

func typeOf(t *tensor, shape []*ir.Expr) *ir.Type {
	typ := &ir.Type{Pos: t.pos, DType: t.dtype}
	for _, e := range shape {
		typ.Dims = append(typ.Dims, ir.Dimension{Extent: e})
	}
	return typ
}

func place(name string, pos ir.Pos) ir.Place { return ir.Place{Name: name, Pos: pos} }

func (b *binding) at(pos ir.Pos) ir.Place { return place(b.name, pos) }

// lookup returns the current binding of a tensor, or nil if it has none yet.
func (t *memories) lookup(id string) *binding {
	if t.unit != nil {
		return t.unit.binds[id]
	}
	for b := t.blk; b != nil; b = b.parent {
		if x := b.binds[id]; x != nil {
			return x
		}
	}
	return nil
}

// bind binds id to x until the end of block b.
func (t *memories) bind(b *block, id string, x *binding) {
	if t.unit != nil {
		t.unit.binds[id] = x
		return
	}
	b.binds[id] = x
}

// consistent compares the axes of x with the axes of the first occurrence of the same tensor in the dump. If the axes
// differ, it reports an error.
func (t *memories) consistent(x *tensor) bool {
	seen := t.seen
	if t.unit != nil {
		seen = t.unit.seen
	}
	first := seen[x.id]
	if first == nil {
		seen[x.id] = x
		return true
	}
	same := first == x || len(first.axes) == len(x.axes) && first.dtype == x.dtype
	for i := range x.axes {
		if !same || first == x {
			break
		}
		a, b := &first.axes[i], &x.axes[i]
		same = a.kind == b.kind && a.par == b.par && a.num == b.num && a.extent.String() == b.extent.String()
	}
	if !same {
		d := t.errorf(x.pos, "%s is printed with other axes here than where it occurs first", x.id)
		d.Notes = append(d.Notes, ir.Note{Pos: first.pos, Message: "the first occurrence, with other axes"})
		d.Help = "a tensor has the same axes everywhere in a dump; check that the text comes from one program"
	}
	return same
}

// reading returns the binding of a tensor that a statement reads. It returns nil after an error.
func (t *memories) reading(x *tensor) *binding {
	b := t.naming(x)
	if b == nil {
		return nil
	}
	if !b.mem.read.Valid() {
		b.mem.read = x.pos
	}
	return t.streamPart(b, x.pos)
}

// naming returns the binding of a tensor that a statement reads, or of which a statement makes an alias. If no
// statement has written the tensor so far but a later one does, naming creates the binding.
func (t *memories) naming(x *tensor) *binding {
	if !t.consistent(x) {
		return nil
	}
	if b := t.lookup(x.id); b != nil {
		return b
	}
	if t.unit == nil {
		return t.allocate(x)
	}
	t.errorf(x.pos, "tensor %s is read, but no statement writes it", x.id).Help =
		"it is no input of this HostUnit, and no statement of the HostUnit computes it"
	return nil
}

// writing returns the binding of a tensor that a statement writes. If there is none, writing creates it.
func (t *memories) writing(x *tensor) *binding {
	if !t.consistent(x) {
		return nil
	}
	b := t.lookup(x.id)
	if b == nil {
		b = t.allocate(x)
	}
	if !b.mem.written.Valid() {
		b.mem.written = x.pos
	}
	return t.streamPart(b, x.pos)
}

// node is a block in the tree of the dump.
type node struct {
	parent *node
	depth  int
}

func common(a, b *node) *node {
	for a != b {
		if a.depth >= b.depth {
			a = a.parent
		} else {
			b = b.parent
		}
	}
	return a
}

// collectUses finds, for each tensor, the innermost block that contains all of its uses. The tensor's buffer is
// defined in that block, wherever in the block the ALLOCATE of the tensor is.
func (t *memories) collectUses() {
	root := &node{}
	use := func(x *tensor, n *node) {
		if have := t.homes[x.id]; have != nil {
			n = common(have, n)
		}
		t.homes[x.id] = n
	}
	var walk func(list []*stmt, n *node)
	walk = func(list []*stmt, n *node) {
		for _, s := range list {
			for _, x := range s.tensors() {
				use(x, n)
			}
			for _, body := range [][]*stmt{s.body, s.alt} {
				if len(body) > 0 {
					walk(body, &node{n, n.depth + 1})
				}
			}
		}
	}
	walk(t.d.body, root)
	for id := range t.outputs {
		t.homes[id] = root
	}
}

// allocate defines a buffer for x in the block that contains all its uses.
func (t *memories) allocate(x *tensor) *binding {
	b := t.blk
	if home := t.homes[x.id]; home != nil && t.unit == nil {
		for b.depth > home.depth {
			b = b.parent
		}
	}
	return t.allocateIn(b, x)
}

func (t *memories) allocateIn(b *block, x *tensor) *binding {
	inner := t.blk
	if b != inner && t.unit == nil {
		t.blk = b // resolves the buffer's extents and name in the outer block
		b.pushed++
		defer func() { t.blk = inner; b.pushed-- }()
	}
	if t.unit == nil && t.outputs[x.id] {
		return t.allocateOutput(b, x)
	}
	y := t.newBuffer(x, localAxes(x, t.streamLoop(x) != nil), x.id)
	t.bind(b, x.id, y)
	return y
}

// newBuffer defines a buffer with the given axes in the current block.
func (t *memories) newBuffer(x *tensor, axes []axis, name string) *binding {
	y := &binding{t: x, axes: axes, shape: t.shapeOf(axes), mem: &storage{id: x.id}}
	y.name = t.fresh(name)
	t.memory = append(t.memory, y.mem)
	t.define(t.blk, &ir.Stmt{Op: ir.OpAlloc, Pos: x.pos, Results: []ir.Name{{Pos: x.pos, Text: y.name}}, Type: typeOf(x, y.shape)})
	return y
}

// allocateOutput defines the buffer of an output x. As in the signature of the program, the buffer has the device
// axes of x, each with extent 1.
func (t *memories) allocateOutput(b *block, x *tensor) *binding {
	name := t.fresh(x.id)
	t.define(b, &ir.Stmt{Op: ir.OpAlloc, Pos: x.pos, Results: []ir.Name{{Pos: x.pos, Text: name}}, Type: t.shardType(x)})
	y := t.withoutDevices(b, x, name)
	y.mem = &storage{id: x.id, output: true}
	t.memory = append(t.memory, y.mem)
	t.bind(b, x.id, y)
	t.results[x.id] = name
	return y
}

// shardType returns the type of the part that one rank holds of the parameter or result x.
func (t *memories) shardType(x *tensor) *ir.Type {
	typ := &ir.Type{Pos: x.pos, DType: x.dtype}
	for _, a := range x.axes {
		switch {
		case a.reduced():
		case a.device():
			typ.Dims = append(typ.Dims, ir.Dimension{Extent: num(a.pos, 1)})
		default:
			typ.Dims = append(typ.Dims, ir.Dimension{Extent: t.expr(a.extent)})
		}
	}
	return typ
}

// withoutDevices defines a view, without the device axes, of the part that one rank holds of the parameter or
// result x.
func (t *memories) withoutDevices(b *block, x *tensor, name string) *binding {
	at := 0
	for _, a := range x.axes {
		switch {
		case a.reduced():
		case a.device():
			view := t.fresh(x.id + "_d")
			t.define(b, &ir.Stmt{Op: ir.OpSelect, Pos: x.pos, Results: []ir.Name{{Pos: x.pos, Text: view}}, Args: []ir.Place{place(name, x.pos)},
				Attrs: []ir.Attr{ir.ExprAttr("axis", num(a.pos, int64(at))), ir.ExprAttr("index", num(a.pos, 0))}})
			name = view
		default:
			at++
		}
	}
	axes := localAxes(x, false)
	return &binding{name: name, t: x, axes: axes, shape: t.shapeOf(axes)}
}

// streamLoop returns the loop around the current statement that iterates over the stream axis of x. streamLoop is used
// for dumps of the second generation ("FOR i from 0 to 3"), in which all loops are stream-parallel.
func (t *memories) streamLoop(x *tensor) *loop {
	for _, a := range x.axes {
		if !a.stream() || a.reduced() {
			continue
		}
		for i := len(t.loops) - 1; i >= 0; i-- {
			l := t.loops[i]
			if l.fromTo && l.depth <= t.blk.depth && l.lo.isInt() && l.lo.val == 0 && l.hi.String() == a.extent.String() {
				return l
			}
		}
	}
	return nil
}

// streamPart returns the part of b that one iteration of a stream-parallel loop uses, if the buffer of b holds the
// parts of all iterations.
func (t *memories) streamPart(b *binding, pos ir.Pos) *binding {
	if t.slicing == nil {
		return b
	}
	for i, a := range b.axes {
		if !a.stream() || a.extent.String() != t.slicing.hi.String() {
			continue
		}
		key := b.name + " of " + t.slicing.name
		if v := t.blk.binds[key]; v != nil {
			return v
		}
		v := t.selected(b, i, &ir.Expr{Kind: ir.ExprVar, Pos: pos, Name: t.slicing.name}, t.fresh(b.name+"_"+t.slicing.name), pos)
		t.blk.binds[key] = v
		return v
	}
	return b
}

// selected defines a view that selects one index along dimension i.
func (t *memories) selected(b *binding, i int, index *ir.Expr, name string, pos ir.Pos) *binding {
	v := &binding{name: name, t: b.t, mem: b.mem, value: b.value}
	v.axes = append(append(v.axes, b.axes[:i]...), b.axes[i+1:]...)
	v.shape = append(append(v.shape, b.shape[:i]...), b.shape[i+1:]...)
	t.define(t.blk, &ir.Stmt{Op: ir.OpSelect, Pos: pos, Results: []ir.Name{{Pos: pos, Text: name}}, Args: []ir.Place{b.at(pos)},
		Attrs: []ir.Attr{ir.ExprAttr("axis", num(pos, int64(i))), ir.ExprAttr("index", index)}})
	return v
}

// unused reports memory that is read but never written, and outputs that are never written.
func (t *memories) unused() {
	for _, m := range t.memory {
		switch {
		case m.input || m.written.Valid():
		case m.output:
			t.errorf(t.outputAt[m.id], "no statement writes the output %s", m.id).Help =
				"check that the dump is complete"
		case m.read.Valid():
			t.errorf(m.read, "tensor %s is read, but no statement writes it", m.id).Help =
				"check that the dump is complete"
		}
	}
	for _, x := range t.d.outputs {
		if t.results[x.id] == "" && len(t.r.ds) == 0 {
			t.errorf(x.pos, "no statement writes the output %s", x.id).Help = "check that the dump is complete"
		}
	}
}
