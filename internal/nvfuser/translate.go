package nvfuser

import (
	"fmt"
	"strings"

	"hocket.example/hocket/ir"
)

// FuncName is the name of the function that a dump becomes.
const FuncName = "host_ir"

// translator makes a program of a dump's tree.
type translator struct {
	r    *reader
	d    *dump
	prog *ir.Program

	// defs are the definitions of indices, the dump's and those given;
	// missing are names that were reported, defining those being defined.
	defs     map[string]*scalar
	missing  map[string]bool
	defining map[string]bool
	inlined  int
	sizes    map[*ir.Expr]int // of expressions, in nodes
	tooLarge bool             // said once
	// symbols are the extents of inputs, which become dims.
	symbols    map[string]*ir.Dim
	symbolList []string
	streamsDim bool

	world    int64
	teams    map[string]*team
	teamList []*team

	// State of the place being translated.
	blk     *block
	cur     streamRef
	loops   []*loop
	unit    *unitState
	slicing *loop // the stream-parallel loop whose part a statement works on
	serial  map[string]int

	// Streams.
	names       map[string]bool      // that GetCurrentStream gives
	captured    map[string]streamRef // what they stand for
	declared    map[string]bool
	headStmts   []*ir.Stmt
	limits      map[string]bool
	streamCount *ir.Expr
	changes     map[*stmt]bool

	// Tensors.
	homes    map[string]*node
	seen     map[string]*tensor
	outputs  map[string]bool
	outputAt map[string]ir.Pos
	results  map[string]string
	memory   []*storage
	locals   map[string]*ir.Stmt // inputs' local views
	posted   map[string]*posted
	// collectives are the Communications among them.
	collectives []*posted
}

// loop is a loop around the statement being translated.
type loop struct {
	name   string
	lo, hi *scalar
	fromTo bool
	depth  int // of its body
}

// unitState is the scope of a HostUnit, whose tensors are its own.
type unitState struct {
	binds map[string]*binding
	seen  map[string]*tensor
}

// posted is a communication that was posted, and on which stream.
type posted struct {
	stream streamRef
	pos    ir.Pos
	waited bool
}

func (t *translator) errorf(pos ir.Pos, format string, args ...any) *ir.Diagnostic {
	return t.r.errorf(pos, format, args...)
}

func (t *translator) loop(name string) *loop {
	for i := len(t.loops) - 1; i >= 0; i-- {
		if t.loops[i].name == name {
			return t.loops[i]
		}
	}
	return nil
}

func newTranslator(r *reader, d *dump, defines map[string]*scalar) *translator {
	t := &translator{
		r: r, d: d, prog: r.prog, defs: map[string]*scalar{}, missing: map[string]bool{}, defining: map[string]bool{}, sizes: map[*ir.Expr]int{},
		symbols: map[string]*ir.Dim{}, teams: map[string]*team{}, serial: map[string]int{},
		names: map[string]bool{}, captured: map[string]streamRef{}, declared: map[string]bool{}, limits: map[string]bool{},
		changes: map[*stmt]bool{}, homes: map[string]*node{}, seen: map[string]*tensor{}, outputs: map[string]bool{},
		outputAt: map[string]ir.Pos{}, results: map[string]string{}, locals: map[string]*ir.Stmt{}, posted: map[string]*posted{},
	}
	for name, s := range d.defs {
		t.defs[name] = s
	}
	for name, s := range defines {
		t.defs[name] = s
	}
	return t
}

// translate makes the program: one function, whose parameters and results are
// the container's.
func (t *translator) translate() {
	t.collectTeams()
	t.collectSymbols()
	t.findNames()
	for _, x := range t.d.outputs {
		t.outputs[x.id], t.outputAt[x.id] = true, x.pos
	}
	t.collectUses()
	f := &ir.Func{Pos: t.d.pos, Name: FuncName, Body: &ir.Block{End: t.d.end}}
	t.prog.Funcs = []*ir.Func{f}
	for _, x := range t.d.inputs {
		t.parameter(f, x)
	}
	for _, x := range t.d.outputs {
		t.consistent(x)
		f.Results = append(f.Results, t.signatureType(x))
	}
	t.cur = mainStream()
	t.blk = newBlock(nil, f.Body, t.cur)
	for _, x := range t.d.inputs {
		t.bindInput(x)
	}
	t.statements(t.d.body)
	t.blk.group = nil
	t.finish(f)
}

// collectSymbols makes dims of the names in the inputs' extents. A device
// axis is as long as its mesh.
func (t *translator) collectSymbols() {
	for _, x := range t.d.inputs {
		for i := range x.axes {
			a := &x.axes[i]
			a.extent.names(func(s *scalar) {
				if isSymbol(s.name) && t.symbols[s.name] == nil && t.defs[s.name] == nil {
					t.symbols[s.name] = &ir.Dim{Pos: s.pos, Name: s.name}
					t.symbolList = append(t.symbolList, s.name)
				}
			})
			if d := t.symbols[a.extent.name]; a.device() && d != nil && a.extent.op == "" && x.mesh != nil {
				d.Default, d.HasValue = int64(len(x.mesh.devices)), true
			}
		}
	}
}

// signatureType is the type of a parameter or result: its printed axes, those
// reduced away left out, device axes split over the mesh.
func (t *translator) signatureType(x *tensor) *ir.Type {
	typ := &ir.Type{Pos: x.pos, DType: x.dtype}
	tm := t.teamOf(x.mesh)
	if tm != nil && !tm.main {
		typ.Mesh = tm.axis
	}
	split := false
	for _, a := range x.axes {
		if a.reduced() {
			continue
		}
		dim := ir.Dimension{Extent: t.expr(a.extent)}
		switch {
		case !a.device():
		case tm == nil:
			t.errorf(a.pos, "%s has a device axis and no DeviceMesh", x.id)
		case a.par != "deviceIdx.x" || split:
			t.errorf(a.pos, "%s is spread over more than one mesh dimension", x.id).Help = "meshes of one dimension, and one device axis a tensor, can be read"
		case a.extent.isInt() && a.extent.val != int64(len(tm.devices)):
			t.errorf(a.pos, "this device axis is %d long and its mesh has %d devices", a.extent.val, len(tm.devices)).Help = "each device holds one index of a device axis"
		default:
			split = true
			dim.Axes = []string{tm.axis}
		}
		typ.Dims = append(typ.Dims, dim)
	}
	return typ
}

func (t *translator) parameter(f *ir.Func, x *tensor) {
	if t.seen[x.id] != nil {
		t.errorf(x.pos, "the input %s is listed twice", x.id)
		return
	}
	t.consistent(x)
	f.Params = append(f.Params, &ir.Param{Pos: x.pos, Name: x.id, Type: t.signatureType(x)})
}

// bindInput defines what the rank holds of an input, if the dump uses it.
func (t *translator) bindInput(x *tensor) {
	t.blk.names[x.id] = true
	if t.outputs[x.id] {
		t.results[x.id] = x.id
	}
	if t.homes[x.id] == nil || t.blk.binds[x.id] != nil {
		return
	}
	name := t.fresh(x.id + "_l")
	s := &ir.Stmt{Op: ir.OpLocal, Pos: x.pos, Results: []ir.Name{{Pos: x.pos, Text: name}}, Args: []ir.Place{place(x.id, x.pos)}, Type: t.shardType(x)}
	t.locals[x.id] = s
	t.define(t.blk, s)
	b := t.withoutDevices(t.blk, x, name)
	b.mem, b.value = &storage{id: x.id, input: true}, true
	t.memory = append(t.memory, b.mem)
	t.bind(t.blk, x.id, b)
}

// finish returns the results and declares what the body turned out to need.
func (t *translator) finish(f *ir.Func) {
	t.unused()
	t.unwaited()
	inout := map[string]bool{}
	for _, m := range t.memory {
		if m.input && m.written.Valid() {
			inout[m.id] = true
		}
	}
	for _, p := range f.Params {
		if p.Inout = inout[p.Name]; p.Inout {
			writable(t.locals[p.Name])
		}
	}
	ret := &ir.Stmt{Op: ir.OpReturn, Pos: t.d.end}
	types := f.Results
	f.Results = nil
	for i, x := range t.d.outputs {
		if name := t.results[x.id]; !inout[name] {
			f.Results = append(f.Results, types[i])
			ret.Args = append(ret.Args, place(name, x.pos))
		}
	}
	if len(ret.Args) > 0 {
		f.Body.Stmts = append(f.Body.Stmts, ret)
	}
	head := t.headStmts
	if t.streamCount != nil {
		head = append(head, &ir.Stmt{Op: ir.OpStream, Pos: t.streamCount.Pos, Results: []ir.Name{{Text: workers}}, Count: t.streamCount})
	}
	f.Body.Stmts = append(head, f.Body.Stmts...)
	t.declareDims(f)
	f.Comments.Lead = []ir.Comment{{Text: " From " + t.source() + ". Line numbers are those of the dump."}}
}

// source names the dump's file in a comment, which must stay one line.
func (t *translator) source() string {
	name := t.prog.File[strings.LastIndexAny(t.prog.File, `/\`)+1:]
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(name, "?"))
}

// writable makes an input's local view one of a buffer, which an inout
// parameter is.
func writable(s *ir.Stmt) {
	var shape []*ir.Expr
	for _, d := range s.Type.Dims {
		shape = append(shape, d.Extent)
	}
	s.Op, s.Type = ir.OpReshape, nil
	s.Attrs = []ir.Attr{ir.ExprsAttr("shape", shape...)}
}

// declareDims declares the dims that do not declare themselves by standing
// bare in a parameter, and those with a default.
func (t *translator) declareDims(f *ir.Func) {
	bare := map[string]bool{}
	for _, p := range f.Params {
		for _, d := range p.Type.Dims {
			if d.Extent.Kind == ir.ExprName {
				bare[d.Extent.Name] = true
			}
		}
	}
	for _, name := range t.symbolList {
		if d := t.symbols[name]; d.HasValue || !bare[name] {
			t.prog.Dims = append(t.prog.Dims, d)
		}
	}
	if t.streamsDim {
		t.prog.Dims = append(t.prog.Dims, &ir.Dim{Name: numberOfStreams, Default: 4, HasValue: true})
	}
}

// statements translates a list of statements into the block at hand.
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
		// A buffer ends with its block; freeing it earlier would only save memory.
	case stAlias, stShard, stSlice:
		t.alias(s)
	case stCompute:
		t.computeStmt(s)
	case stComm:
		t.communicate(s)
	case stWait:
		t.waitComm(s)
	case stShareHandles:
		// Handles are exchanged when a plan is made.
	case stPost:
		t.postUnit(s)
	}
}

// waitFor makes the current stream wait for another.
func (t *translator) waitFor(other streamRef, pos ir.Pos) {
	if other.key == unknownKey || other.key == t.current(pos).key {
		return
	}
	other.place.Pos = pos
	t.emit(&ir.Stmt{Op: ir.OpWait, Pos: pos, Args: []ir.Place{other.place}}, nil)
}

func (t *translator) forLoop(s *stmt) {
	if t.loop(s.id) != nil || t.symbols[s.id] != nil || t.defs[s.id] != nil {
		t.errorf(s.pos, "the loop variable %s is the name of something else already", brief(s.id))
		return
	}
	l := &loop{name: s.id, lo: s.index, hi: s.hi, fromTo: s.fromTo, depth: t.blk.depth + 1}
	after := t.enterLoop(s)
	loopStmt := &ir.Stmt{Op: ir.OpFor, Pos: s.pos, Results: []ir.Name{{Pos: s.pos, Text: s.id}}, Exprs: []*ir.Expr{t.expr(s.index), t.expr(s.hi)}, Body: &ir.Block{}}
	t.open(loopStmt, !t.changesStreams(s), func(*ir.Block) {
		t.blk.names[s.id] = true
		t.loops = append(t.loops, l)
		t.statements(s.body)
		t.loops = t.loops[:len(t.loops)-1]
	})
	t.cur = after
}

func (t *translator) conditional(s *stmt) {
	left, right, cmp := s.index, &scalar{pos: s.pos}, ir.NE
	if c, ok := comparisons[s.index.op]; ok {
		left, right, cmp = s.index.args[0], s.index.args[1], c
	}
	out := &ir.Stmt{Op: ir.OpIf, Pos: s.pos, Exprs: []*ir.Expr{t.expr(left), t.expr(right)}, Cmp: cmp, Body: &ir.Block{}}
	if len(s.alt) > 0 {
		out.Else = &ir.Block{}
	}
	before, captured := t.cur, t.captured
	var ends []streamRef
	t.open(out, !t.changesStreams(s), func(body *ir.Block) {
		t.cur, t.captured = before, cloneRefs(captured)
		if body == out.Body {
			t.statements(s.body)
		} else {
			t.statements(s.alt)
		}
		ends = append(ends, t.cur)
	})
	if out.Else == nil {
		ends = append(ends, before)
	}
	t.cur, t.captured = ends[0], captured
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
		return // bound already, by a select for example: then ALLOCATE does nothing
	}
	b := t.allocate(s.out)
	if s.zero {
		b.mem.written = s.pos
		t.emit(&ir.Stmt{Op: ir.OpFill, Pos: s.pos, Into: ptr(b.at(s.out.pos)), Attrs: []ir.Attr{ir.NumberAttr("value", 0)}}, s.out.mesh.ranks())
	}
}

func ptr(p ir.Place) *ir.Place { return &p }

// checkSize compares an ALLOCATE's size with its axes, where both are numbers.
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
		t.errorf(s.pos, "ALLOCATE says that %s has %d elements, and its axes make %d", s.out.id, s.size.val, n).Help = "the dump contradicts itself"
	}
}

// alias translates select, ShardByStream and slice: the result names part of
// the operand's memory.
func (t *translator) alias(s *stmt) {
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
		t.errorf(s.pos, "%s has %d axes on each device, and what it names of %s has %d", s.out.id, len(v.axes), s.in[0].t.id, len(v.shape)).Help = "the dump contradicts itself"
		return
	}
	t.bind(t.blk, s.out.id, v)
}

func (t *translator) selection(s *stmt, in *binding) *binding {
	for i, a := range in.axes {
		if a.num == s.axis {
			return t.selected(in, i, t.expr(s.index), t.fresh(s.out.id), s.pos)
		}
	}
	for _, a := range s.in[0].t.axes {
		if a.num == s.axis && (a.device() || a.reduced()) {
			// A device holds one index of a device axis, which its buffer lacks.
			t.expr(s.index)
			v := *in
			return &v
		}
	}
	t.errorf(s.pos, "%s has no axis number %d to select from", s.in[0].t.id, s.axis)
	return nil
}

// shardByStream names one stream's part. Where the operand is printed with the
// stream's axis that is one index of it, else a chunk of the axis that the
// result is split along.
func (t *translator) shardByStream(s *stmt, in *binding) *binding {
	count := (*scalar)(nil)
	for _, a := range s.out.axes {
		if a.stream() && !a.reduced() {
			count = a.extent
		}
	}
	if count == nil {
		t.errorf(s.pos, "%s has no stream axis", s.out.id)
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
		t.define(t.blk, &ir.Stmt{Op: ir.OpChunk, Pos: s.pos, Results: []ir.Name{{Pos: s.pos, Text: v.name}}, Args: []ir.Place{in.at(s.pos)},
			Exprs: []*ir.Expr{t.expr(s.index), t.expr(count)}, Attrs: []ir.Attr{ir.ExprAttr("axis", num(s.pos, int64(i)))}})
		return v
	}
	t.errorf(s.pos, "along which axis %s is split over streams cannot be told", s.in[0].t.id)
	return nil
}

// slice names rows lo..hi of each axis.
func (t *translator) slice(s *stmt, in *binding) *binding {
	var axes []axis // printed axes that ranges count
	for _, a := range s.in[0].t.axes {
		if !a.reduced() {
			axes = append(axes, a)
		}
	}
	if len(axes) != len(s.ranges) {
		t.errorf(s.pos, "slice has %d ranges, and %s has %d axes", len(s.ranges), s.in[0].t.id, len(axes))
		return nil
	}
	v := *in
	v.shape = append([]*ir.Expr(nil), in.shape...)
	at := 0
	for i, x := range s.ranges {
		if !x.step.isInt() || x.step.val != 1 {
			t.errorf(x.step.pos, "only slices with step 1 can be read")
			return nil
		}
		if axes[i].device() {
			continue
		}
		if !x.lo.isInt() || x.lo.val != 0 || x.hi.String() != axes[i].extent.String() {
			lo, hi := t.expr(x.lo), t.expr(x.hi)
			name := t.fresh(s.out.id)
			t.define(t.blk, &ir.Stmt{Op: ir.OpSlice, Pos: s.pos, Results: []ir.Name{{Pos: s.pos, Text: name}}, Args: []ir.Place{v.at(s.pos)},
				Exprs: []*ir.Expr{lo, hi}, Attrs: []ir.Attr{ir.ExprAttr("axis", num(s.pos, int64(at)))}})
			v.name, v.shape[at] = name, bin(ir.ExprSub, hi, lo)
		}
		at++
	}
	return &v
}

// postUnit runs a HostUnit's kernel on the current stream.
func (t *translator) postUnit(s *stmt) {
	u := t.d.units[s.id]
	switch {
	case u == nil:
		t.errorf(s.pos, "%s is not printed in this dump", brief(s.id)).Help = "copy the dump with its HostUnits, which stand behind the statements"
		return
	case len(u.inputs) != len(s.ins) || len(u.outputs) != len(s.outs):
		t.errorf(s.pos, "%s takes %d tensors and gives %d, not %d and %d", s.id, len(u.inputs), len(u.outputs), len(s.ins), len(s.outs))
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

// elided reports HostUnits whose text was left out.
func (t *translator) elided() {
	said := map[string]bool{}
	t.d.everyStmt(func(s *stmt) {
		u := t.d.units[s.id]
		if s.kind != stPost || u == nil || !u.elided || said[s.id] {
			return
		}
		said[s.id] = true
		d := t.errorf(u.pos, "what %s computes is not known: its text was left out as \"[...]\"", s.id)
		d.Notes = append(d.Notes, ir.Note{Pos: s.pos, Message: "it is posted here"})
		d.Help = "print the dump with NVFUSER_DUMP=host_ir and copy all of it: the %kernel of a HostUnit says what it computes"
	})
}

// pass makes a unit's tensor stand for one of the container's.
func (t *translator) pass(u *unitState, inner *tensor, outer *binding) {
	if outer == nil {
		return
	}
	b := *outer
	b.axes = localAxes(inner, false)
	if len(b.axes) != len(b.shape) {
		t.errorf(inner.pos, "this tensor has %d axes on each device, and the one passed for it has %d", len(b.axes), len(b.shape))
		return
	}
	u.binds[inner.id] = &b
}

// Import reads a dump. defines give indices that the dump uses and does not
// define, in the dump's notation: "i84": "(rank+streamIdx)%8"; those that name
// nothing in the dump come back, for they may be dims of the program. With
// errors the program is nil.
func Import(file, src string, defines map[string]string) (prog *ir.Program, rest map[string]string, ds ir.Diagnostics) {
	r := &reader{prog: &ir.Program{File: file, Source: src}}
	d := r.read()
	if len(r.ds) > 0 {
		r.ds.Sort()
		return nil, defines, r.ds
	}
	given, rest, ds := d.takeDefines(file, defines)
	if len(ds) > 0 {
		return nil, rest, ds
	}
	t := newTranslator(r, d, given)
	if t.elided(); len(r.ds) == 0 {
		t.translate()
	}
	if r.ds.Sort(); r.ds.HasErrors() {
		return nil, rest, r.ds
	}
	return r.prog, rest, r.ds
}

// takeDefines parses the definitions of names that the dump uses as indices.
func (d *dump) takeDefines(file string, defines map[string]string) (given map[string]*scalar, rest map[string]string, ds ir.Diagnostics) {
	given, rest = map[string]*scalar{}, map[string]string{}
	if len(defines) == 0 {
		return given, rest, nil
	}
	used := map[string]bool{}
	d.everyScalar(func(s *scalar) { used[s.name] = true })
	dims := map[string]bool{numberOfStreams: true}
	for _, x := range d.inputs {
		for _, a := range x.axes {
			a.extent.names(func(s *scalar) { dims[s.name] = dims[s.name] || isSymbol(s.name) && d.defs[s.name] == nil })
		}
	}
	for name, text := range defines {
		if !used[name] || dims[name] {
			rest[name] = text
			continue
		}
		s, errs := parseDefine(fmt.Sprintf("--define %s", name), text)
		ds = append(ds, errs...)
		given[name] = s
	}
	return given, rest, ds
}

// everyScalar calls see for every name that stands in an expression.
func (d *dump) everyScalar(see func(*scalar)) {
	d.everyStmt(func(s *stmt) {
		s.index.names(see)
		s.hi.names(see)
		s.stream.index.names(see)
		for _, r := range s.ranges {
			r.lo.names(see)
			r.hi.names(see)
		}
		for _, x := range s.tensors() {
			for _, a := range x.axes {
				a.extent.names(see)
			}
		}
	})
	for _, s := range d.defs {
		s.names(see)
	}
}
