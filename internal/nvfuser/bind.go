package nvfuser

import "hocket.example/hocket/ir"

// storage describes the memory of one or several tensors: an input, an output, or the result of an ALLOCATE. It records
// whether the memory is ever written and read, because a dump that only reads it or only writes it computes nothing.
type storage struct {
	id            string
	input, output bool
	written, read ir.Pos
}

// binding describes the buffer or view of the program to which a tensor's id refers at one point of the dump, and the
// printed axes that the buffer or view has.
type binding struct {
	name string
	t    *tensor
	// axes lists, in order, the printed axes that the buffer has. It omits axes that are reduced or distributed over
	// devices, and omits the stream axis unless the buffer holds all parts along it.
	axes  []axis
	shape []*ir.Expr
	mem   *storage
	// value reports that the binding is a value and not a buffer: the shard of a parameter, which ranks outside its mesh
	// do not have.
	value bool
}

// localAxes returns the axes of the buffer that a rank holds for t. If sharded is set, the buffer holds only the part
// for one stream.
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
	slicing *loop // the stream-parallel loop whose part of a tensor the current statement uses
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

// consistent reports an error if a tensor is not printed with the same axes everywhere.
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
		d := t.errorf(x.pos, "%s has other axes here than elsewhere", x.id)
		d.Notes = append(d.Notes, ir.Note{Pos: first.pos, Message: "it is printed like this first"})
		d.Help = "a tensor has one shape; is the dump from one program?"
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

// naming returns the binding of a tensor that is read or from which an alias is made. If only later statements write
// the tensor, naming creates the binding.
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
	t.errorf(x.pos, "%s is read and never written", x.id).Help = "nothing in this HostUnit gives it a value"
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

// collectUses finds the innermost block that contains all uses of each tensor. The tensor's buffer is defined in that
// block, independent of the position of the ALLOCATE within it.
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
		t.blk = b // extents and names are those of the outer block
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

// allocateOutput defines the buffer of an output. The buffer has the device axes, with extent 1, as the signature has
// them.
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

// shardType returns the type of a rank's part of a parameter or result.
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

// withoutDevices defines a view of a rank's part of a parameter or result. The view omits the device axes.
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

// streamLoop returns the loop around the current statement that iterates over the stream axis of x. It applies to dumps
// of the second generation, in which all loops are stream-parallel.
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

// streamPart returns the part of a tensor on which one iteration of a stream-parallel loop works, if the buffer holds
// the parts of all iterations.
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
			t.errorf(t.outputAt[m.id], "the output %s is never written", m.id).Help = "no statement of the dump gives it a value; is the dump complete?"
		case m.read.Valid():
			t.errorf(m.read, "%s is read and never written", m.id).Help = "nothing in the dump gives it a value; is the dump complete?"
		}
	}
	for _, x := range t.d.outputs {
		if t.results[x.id] == "" && len(t.r.ds) == 0 {
			t.errorf(x.pos, "the output %s is never written", x.id).Help = "no statement of the dump gives it a value; is the dump complete?"
		}
	}
}
