package nvfuser

import (
	"strings"

	"hocket.example/hocket/ir"
)

// FuncName is the name of the function to which a dump is converted.
const FuncName = "host_ir"

// translator converts the tree of a dump to a program.
type translator struct {
	comms
}

// loop is one of the loops around the statement that is being translated.
type loop struct {
	name   string
	lo, hi *scalar
	fromTo bool
	depth  int // nesting depth of the loop body
}

// unitState is the scope of a HostUnit. Tensors of a HostUnit are separate from those of the container.
type unitState struct {
	binds map[string]*binding
	seen  map[string]*tensor
}

func (t *output) errorf(pos ir.Pos, format string, args ...any) *ir.Diagnostic {
	return t.r.errorf(pos, format, args...)
}

func (t *output) loop(name string) *loop {
	for i := len(t.loops) - 1; i >= 0; i-- {
		if t.loops[i].name == name {
			return t.loops[i]
		}
	}
	return nil
}

func newTranslator(r *reader, d *dump, defines map[string]*scalar) *translator {
	t := &translator{}
	t.r, t.d, t.prog, t.defs, t.missing = r, d, r.prog, map[string]*scalar{}, map[string]bool{}
	t.defining, t.sizes, t.symbols = map[string]bool{}, map[*ir.Expr]int{}, map[string]*ir.Dim{}
	t.teams, t.serial, t.names = map[string]*team{}, map[string]int{}, map[string]bool{}
	t.captured, t.declared, t.limits = map[string]streamRef{}, map[string]bool{}, map[string]bool{}
	t.changes, t.homes, t.seen = map[*stmt]bool{}, map[string]*node{}, map[string]*tensor{}
	t.outputs, t.outputAt, t.results = map[string]bool{}, map[string]ir.Pos{}, map[string]string{}
	t.copies = map[string][]*ir.Stmt{}
	t.locals, t.posted = map[string]*ir.Stmt{}, map[string]*posted{}
	for name, s := range d.defs {
		t.defs[name] = s
	}
	for name, s := range defines {
		t.defs[name] = s
	}
	return t
}

// translate builds the program. The program has one function with the parameters and results of the container.
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

// collectSymbols declares a dim for each name in the extents of inputs. The extent of a device axis needs no dim,
// since it is the size of the axis's mesh.
func (t *scalars) collectSymbols() {
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

// signatureType returns the type of a parameter or result. The type has the printed axes except the reduced ones.
// Its device axes are split over the mesh.
func (t *memories) signatureType(x *tensor) *ir.Type {
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
			t.errorf(a.pos, "%s has a device axis but is printed without a DeviceMesh", x.id)
		case a.par != "deviceIdx.x" || split:
			t.errorf(a.pos, "%s has more than one device axis",
				x.id).Help = "a tensor may have one device axis, and its mesh one dimension"
		case a.extent.isInt() && a.extent.val != int64(len(tm.devices)):
			t.errorf(a.pos, "this device axis has extent %d, but its mesh has %d devices", a.extent.val,
				len(tm.devices)).Help = "the extent of a device axis is the number of devices"
		default:
			split = true
			dim.Axes = []string{tm.axis}
		}
		typ.Dims = append(typ.Dims, dim)
	}
	return typ
}

func (t *memories) parameter(f *ir.Func, x *tensor) {
	if t.seen[x.id] != nil {
		t.errorf(x.pos, "the input %s is listed twice", x.id)
		return
	}
	t.consistent(x)
	f.Params = append(f.Params, &ir.Param{Pos: x.pos, Name: x.id, Type: t.signatureType(x)})
}

// bindInput defines the part of an input that a rank holds, if the dump uses the input.
func (t *memories) bindInput(x *tensor) {
	t.blk.names[x.id] = true
	if t.outputs[x.id] {
		t.results[x.id] = x.id
	}
	if t.homes[x.id] == nil || t.blk.binds[x.id] != nil {
		return
	}
	name := t.fresh(x.id + "_l")
	s := &ir.Stmt{Op: ir.OpLocal, Pos: x.pos, Results: []ir.Name{{Pos: x.pos, Text: name}},
		Args: []ir.Place{place(x.id, x.pos)}, Type: t.shardType(x)}
	t.locals[x.id] = s
	t.define(t.blk, s)
	b := t.withoutDevices(t.blk, x, name)
	b.mem, b.value = &storage{id: x.id, input: true}, true
	t.memory = append(t.memory, b.mem)
	t.bind(t.blk, x.id, b)
}

// finish sets the results of f. It also declares the dims and streams that the translated body needs.
func (t *translator) finish(f *ir.Func) {
	t.unused()
	t.idleWaits()
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
		head = append(head, &ir.Stmt{Op: ir.OpStream, Pos: t.streamCount.Pos, Results: []ir.Name{{Text: workers}},
			Count: t.streamCount})
	}
	f.Body.Stmts = append(head, f.Body.Stmts...)
	t.declareDims(f)
	f.Comments.Lead = []ir.Comment{{Text: " From " + t.source() + ". Line numbers are those of the dump."}}
}

// source returns the name of the dump's file, for a comment. The comment must be a single line.
func (t *translator) source() string {
	name := t.prog.File[strings.LastIndexAny(t.prog.File, `/\`)+1:]
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(name, "?"))
}

// writable turns s, which defines the local part of an input as a value, into a view of a buffer, because an inout
// parameter is a buffer.
func writable(s *ir.Stmt) {
	var shape []*ir.Expr
	for _, d := range s.Type.Dims {
		shape = append(shape, d.Extent)
	}
	s.Op, s.Type = ir.OpReshape, nil
	s.Attrs = []ir.Attr{ir.ExprsAttr("shape", shape...)}
}

// declareDims declares the dims that have a default. It also declares the dims of which no parameter has the name
// alone as an extent, because such dims are not declared implicitly.
func (t *scalars) declareDims(f *ir.Func) {
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
