package nvfuser

import "hocket.example/hocket/ir"

// statements translates a list of statements and adds the result to the current block.
func (t *translator) statements(list []*stmt) {
	for i := 0; i < len(list) && !t.r.full(); i++ {
		switch s := list[i]; s.kind {
		case stStartGroup:
			i = t.coalesced(list, i)
		case stP2P:
			i = t.consecutive(list, i)
		case stEndGroup:
			t.errorf(s.pos, "EndCoalescing without StartCoalescing")
		default:
			t.statement(s)
		}
	}
}

func (t *translator) statement(s *stmt) {
	switch s.kind {
	case stGetStream:
		t.captured[s.stream.name] = t.current(s.pos)
	case stSetStream:
		t.cur = t.resolve(s.stream)
	case stSync:
		t.waitFor(t.resolve(s.stream), s.pos)
	case stFor:
		t.forLoop(s)
	case stIf:
		t.conditional(s)
	case stAllocate:
		t.allocateStmt(s)
	case stDeallocate:
		// A Deallocate has no translation: a buffer lives until the end of its block.
	case stAlias, stShard, stSlice:
		t.alias(s)
	case stCompute:
		t.computeStmt(s)
	case stComm:
		t.communicate(s)
	case stWait:
		t.waitComm(s)
	case stShareHandles:
		// ShareMemHandles has no translation: hocket exchanges handles when the plan is made.
	case stPost:
		t.postUnit(s)
	}
}

// waitFor adds a statement with which the current stream waits for the given other stream.
func (t *streams) waitFor(other streamRef, pos ir.Pos) {
	if other.key == unknownKey || other.key == t.current(pos).key {
		return
	}
	other.place.Pos = pos
	t.emit(&ir.Stmt{Op: ir.OpWait, Pos: pos, Args: []ir.Place{other.place}}, nil)
}

func (t *translator) forLoop(s *stmt) {
	if t.loop(s.id) != nil || t.symbols[s.id] != nil || t.defs[s.id] != nil {
		t.errorf(s.pos, "the loop variable %s has a name that is already in use", brief(s.id))
		return
	}
	before := cloneRefs(t.captured)
	l := &loop{name: s.id, lo: s.index, hi: s.hi, fromTo: s.fromTo, depth: t.blk.depth + 1}
	after := t.enterLoop(s)
	loopStmt := &ir.Stmt{Op: ir.OpFor, Pos: s.pos, Results: []ir.Name{{Pos: s.pos, Text: s.id}},
		Exprs: []*ir.Expr{t.expr(s.index), t.expr(s.hi)}, Body: &ir.Block{}}
	t.open(loopStmt, !t.changesStreams(s), func(*ir.Block) {
		t.blk.names[s.id] = true
		t.loops, t.around = append(t.loops, l), append(t.around, s)
		t.statements(s.body)
		t.loops, t.around = t.loops[:len(t.loops)-1], t.around[:len(t.around)-1]
	})
	t.cur, t.captured = after, t.eitherWay(s, before, t.captured)
}

func (t *translator) conditional(s *stmt) {
	left, right, cmp := s.index, &scalar{pos: s.pos}, ir.NE
	if c, ok := comparisons[s.index.op]; ok {
		left, right, cmp = s.index.args[0], s.index.args[1], c
	}
	out := &ir.Stmt{Op: ir.OpIf, Pos: s.pos, Exprs: []*ir.Expr{t.expr(left), t.expr(right)}, Cmp: cmp,
		Body: &ir.Block{}}
	if len(s.alt) > 0 {
		out.Else = &ir.Block{}
	}
	before, captured := t.cur, t.captured
	var ends []streamRef
	var caught []map[string]streamRef
	t.open(out, !t.changesStreams(s), func(body *ir.Block) {
		t.cur, t.captured = before, cloneRefs(captured)
		if body == out.Body {
			t.statements(s.body)
		} else {
			t.statements(s.alt)
		}
		ends, caught = append(ends, t.cur), append(caught, t.captured)
	})
	if out.Else == nil {
		ends, caught = append(ends, before), append(caught, captured)
	}
	t.cur, t.captured = ends[0], t.eitherWay(s, caught[0], caught[1])
	if ends[0].key != ends[1].key {
		t.cur = streamRef{key: unknownKey, why: s.pos}
	}
}

func cloneRefs(m map[string]streamRef) map[string]streamRef {
	out := make(map[string]streamRef, len(m))
	for k, v := range m {
		out[k] = v
	}
	return out
}

func (t *translator) allocateStmt(s *stmt) {
	if !t.consistent(s.out) {
		return
	}
	t.checkSize(s)
	if t.lookup(s.out.id) != nil {
		return // the tensor is already bound, for example by a select, so the ALLOCATE has no effect
	}
	b := t.allocate(s.out)
	if s.zero {
		b.mem.written = s.pos
		t.emit(&ir.Stmt{Op: ir.OpFill, Pos: s.pos, Into: ptr(b.at(s.out.pos)),
			Attrs: []ir.Attr{ir.NumberAttr("value", 0)}}, s.out.mesh.ranks())
	}
}

func ptr(p ir.Place) *ir.Place { return &p }

// checkSize compares the size that an ALLOCATE states with the extents of the tensor's axes, if both are numbers.
func (t *translator) checkSize(s *stmt) {
	if s.size == nil || !s.size.isInt() {
		return
	}
	n := int64(1)
	for _, a := range s.out.axes {
		if a.reduced() {
			continue
		}
		if !a.extent.isInt() || a.extent.val <= 0 || n > (1<<62)/a.extent.val {
			return
		}
		n *= a.extent.val
	}
	if n != s.size.val {
		t.errorf(s.pos, "ALLOCATE states that %s has %d elements, but its printed axes have %d", s.out.id, s.size.val,
			n).Help = "the dump contradicts itself"
	}
}

// alias translates select, ShardByStream and slice, whose results refer to a part of the operand's memory.
func (t *memories) alias(s *stmt) {
	if !t.consistent(s.out) {
		return
	}
	in := t.naming(s.in[0].t)
	if in == nil {
		return
	}
	var v *binding
	switch s.kind {
	case stAlias:
		v = t.selection(s, in)
	case stShard:
		v = t.shardByStream(s, in)
	default:
		v = t.slice(s, in)
	}
	if v == nil {
		return
	}
	v.t = s.out
	v.axes = localAxes(s.out, s.kind == stShard)
	if len(v.axes) != len(v.shape) {
		t.errorf(s.pos, "%s has %d axes on each device, but the part of %s that it refers to has %d", s.out.id,
			len(v.axes),
			s.in[0].t.id, len(v.shape)).Help = "the dump contradicts itself"
		return
	}
	t.bind(t.blk, s.out.id, v)
}

func (t *memories) selection(s *stmt, in *binding) *binding {
	for i, a := range in.axes {
		if a.num != s.axis {
			continue
		}
		index := t.expr(s.index)
		if s.op == "HirAliasSelect" && isOne(in.shape[i]) {
			index = num(s.pos, 0) // nvFuser ignores the index if the operand has no such axis
		}
		return t.selected(in, i, index, t.fresh(s.out.id), s.pos)
	}
	for _, a := range s.in[0].t.axes {
		if a.num == s.axis && (a.device() || a.reduced()) {
			// Each device holds one index of a device axis, and its buffer does not have that axis. If the selected
			// axis is the device axis or was reduced, the selection has no effect.
			if own := a.reduced() || s.index.isInt() && s.index.val == 0 || s.index.op == "" &&
				(s.index.name == "rank" || s.index.name == deviceIndex); !own {
				t.errorf(s.pos, "axis %d of %s is split over devices, and each device holds only one index of it: "+
					"index %s cannot be selected", s.axis, s.in[0].t.id, s.index).
					Help = "index 0 selects the part that the device holds"
			}
			v := *in
			return &v
		}
	}
	t.errorf(s.pos, "%s has no axis number %d to select from", s.in[0].t.id, s.axis)
	return nil
}

// shardByStream defines a view of the part of the operand that one stream uses. If the operand is printed with the
// stream axis, the part is one index of that axis. Otherwise the part is a chunk of the axis along which the result is
// split.
func (t *memories) shardByStream(s *stmt, in *binding) *binding {
	count := (*scalar)(nil)
	for _, a := range s.out.axes {
		if a.stream() && !a.reduced() {
			count = a.extent
		}
	}
	if count == nil {
		t.errorf(s.pos, "%s is the result of ShardByStream but has no stream axis", s.out.id)
		return nil
	}
	for i, a := range in.axes {
		if a.stream() && a.extent.String() == count.String() {
			return t.selected(in, i, t.expr(s.index), t.fresh(s.out.id), s.pos)
		}
	}
	out := localAxes(s.out, true)
	for i, a := range in.axes {
		if i >= len(out) || out[i].extent.String() == a.extent.String() {
			continue
		}
		v := &binding{name: t.fresh(s.out.id), mem: in.mem, value: in.value}
		v.shape = append(v.shape, in.shape...)
		v.shape[i] = ir.Extent(v.name, int64(i))
		t.define(t.blk, &ir.Stmt{Op: ir.OpChunk, Pos: s.pos, Results: []ir.Name{{Pos: s.pos, Text: v.name}},
			Args:  []ir.Place{in.at(s.pos)},
			Exprs: []*ir.Expr{t.expr(s.index), t.expr(count)},
			Attrs: []ir.Attr{ir.ExprAttr("axis", num(s.pos, int64(i)))}})
		return v
	}
	t.errorf(s.pos, "it is unclear along which axis %s is split over streams", s.in[0].t.id)
	return nil
}

// slice defines a view of rows lo..hi of each axis.
func (t *memories) slice(s *stmt, in *binding) *binding {
	var axes []axis // the printed axes to which the ranges of the slice apply
	for _, a := range s.in[0].t.axes {
		if !a.reduced() {
			axes = append(axes, a)
		}
	}
	if len(axes) != len(s.ranges) {
		t.errorf(s.pos, "this slice has %d ranges, but %s has %d axes", len(s.ranges), s.in[0].t.id, len(axes))
		return nil
	}
	v := *in
	v.shape = append([]*ir.Expr(nil), in.shape...)
	at := 0
	for i, x := range s.ranges {
		if !x.step.isInt() || x.step.val != 1 {
			t.errorf(x.step.pos, "the step of this slice is not 1; only slices with step 1 are supported")
			return nil
		}
		if axes[i].device() {
			continue
		}
		if !x.lo.isInt() || x.lo.val != 0 || x.hi.String() != axes[i].extent.String() {
			lo, hi := t.expr(x.lo), t.expr(x.hi)
			name := t.fresh(s.out.id)
			t.define(t.blk, &ir.Stmt{Op: ir.OpSlice, Pos: s.pos, Results: []ir.Name{{Pos: s.pos, Text: name}},
				Args:  []ir.Place{v.at(s.pos)},
				Exprs: []*ir.Expr{lo, hi}, Attrs: []ir.Attr{ir.ExprAttr("axis", num(s.pos, int64(at)))}})
			v.name, v.shape[at] = name, bin(ir.ExprSub, hi, lo)
		}
		at++
	}
	return &v
}

// postUnit emits, on the current stream, the statements of the kernel of a HostUnit.
func (t *translator) postUnit(s *stmt) {
	u := t.d.units[s.id]
	switch {
	case u == nil:
		t.errorf(s.pos, "the dump does not contain %s",
			brief(s.id)).Help = "copy the dump with its HostUnits, which follow the statements"
		return
	case len(u.inputs) != len(s.ins) || len(u.outputs) != len(s.outs):
		t.errorf(s.pos, "%s has %d inputs and %d outputs, but is posted with %d and %d", s.id, len(u.inputs),
			len(u.outputs),
			len(s.ins), len(s.outs))
		return
	}
	state := &unitState{binds: map[string]*binding{}, seen: map[string]*tensor{}}
	for i, x := range s.ins {
		t.pass(state, u.inputs[i], t.reading(x))
	}
	for i, x := range s.outs {
		t.pass(state, u.outputs[i], t.writing(x))
	}
	t.unit = state
	for _, x := range u.body {
		t.statement(x)
	}
	t.unit = nil
}

// elided reports an error for each HostUnit whose text is not in the dump.
func (t *translator) elided() {
	said := map[string]bool{}
	t.d.everyStmt(func(s *stmt) {
		u := t.d.units[s.id]
		if s.kind != stPost || u == nil || !u.elided || said[s.id] {
			return
		}
		said[s.id] = true
		d := t.errorf(u.pos, "it is not known what %s computes: the dump contains \"[...]\" in place of its text", s.id)
		d.Notes = append(d.Notes, ir.Note{Pos: s.pos, Message: "it is posted here"})
		d.Help = "print the dump with NVFUSER_DUMP=host_ir and copy all of it, with the %kernel of each HostUnit"
	})
}

// pass binds a tensor of a HostUnit to the binding of the container's tensor that is passed as its argument.
func (t *translator) pass(u *unitState, inner *tensor, outer *binding) {
	if outer == nil {
		return
	}
	b := *outer
	b.axes = localAxes(inner, false)
	if len(b.axes) != len(b.shape) {
		t.errorf(inner.pos, "this tensor has %d axes on each device, but the tensor that is passed for it has %d",
			len(b.axes),
			len(b.shape))
		return
	}
	for i, a := range b.axes {
		if is := b.shape[i]; a.extent.isInt() && a.kind != 'b' && is.Kind == ir.ExprInt && is.Val != a.extent.val {
			t.errorf(a.pos, "this axis has extent %d, but that of the tensor that is passed for it has %d",
				a.extent.val,
				is.Val).Help = "the dump contradicts itself"
			return
		}
	}
	u.binds[inner.id] = &b
}
