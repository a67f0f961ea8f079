package ir

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// MaxRanks bounds the number of ranks a program may be bound to.
const MaxRanks = 1 << 16

// WorldAxis is the built-in mesh axis of all ranks: rank(world) is the global
// rank, over=world is everybody.
const WorldAxis = "world"

// Binding fixes what a program leaves open.
type Binding struct {
	// Func is the function to run; empty for the last one.
	Func string
	// Ranks is the number of ranks; 0 for the main mesh's size.
	Ranks int
	// Dims overrides the defaults of dims.
	Dims map[string]int64
	// Defines sets dims to index expressions over other dims and size(AXIS).
	Defines map[string]string
}

// Bound is a program bound to a function, a number of ranks and dims: from
// here on everything is concrete.
type Bound struct {
	Info  *Info
	Func  *Func
	Ranks int
	// Dims holds the value of every dim that has one.
	Dims map[string]int64

	axes    map[string]*boundMesh
	meshes  []*boundMesh
	defines map[string]*Expr // Binding.Defines, parsed
}

// boundMesh is a mesh with sizes: rank devices[i] has the coordinates of i.
type boundMesh struct {
	names   []string
	sizes   []int64
	devices []int
	indexOf map[int]int // device → i
}

// Bind resolves dims, meshes and ranks, and checks what can be checked then:
// every dim the function needs has a value, shards divide, sizes fit 64 bits,
// and every constraint over dims alone holds.
func Bind(in *Info, b Binding) (*Bound, Diagnostics) {
	bd := &Bound{Info: in, Dims: map[string]int64{}, axes: map[string]*boundMesh{}}
	p := in.Prog
	if len(p.Funcs) == 0 {
		return nil, Diagnostics{p.bindError(Pos{}, "func f(%x: f32[4]) -> f32[4] { return %x }", "the program has no function")}
	}
	bd.Func = p.Funcs[len(p.Funcs)-1]
	if b.Func != "" {
		if bd.Func = p.Func(b.Func); bd.Func == nil {
			return nil, Diagnostics{p.bindError(Pos{}, "one of: "+joinFuncs(p), "there is no function %s", clip(b.Func))}
		}
	}
	given := map[string]int64{} // a copy: defineEarly adds to it
	maps.Copy(given, b.Dims)
	b.Dims = given
	steps := []func(Binding) *Diagnostic{bd.bindDims, bd.parseDefines, bd.defineEarly, bd.solveRanks, bd.needDims, bd.bindMeshes, bd.defineLate}
	for _, step := range steps {
		if d := step(b); d != nil {
			return nil, Diagnostics{d}
		}
	}
	if ds := bd.checkFuncs(); ds.HasErrors() {
		return nil, ds
	}
	return bd, nil
}

func (p *Program) bindError(pos Pos, help, format string, args ...any) *Diagnostic {
	d := p.Diag("bind", pos, format, args...)
	d.Help = help
	return d
}

func joinFuncs(p *Program) string {
	names := make([]string, len(p.Funcs))
	for i, f := range p.Funcs {
		names[i] = f.Name
	}
	return strings.Join(names, ", ")
}

// bindDims takes defaults and overrides.
func (b *Bound) bindDims(bind Binding) *Diagnostic {
	p := b.Info.Prog
	for _, name := range slices.Sorted(maps.Keys(bind.Dims)) {
		v := bind.Dims[name]
		if b.Info.Dims[name] == nil {
			return b.unknownDim(name)
		}
		if v < 0 {
			return p.bindError(b.Info.Dims[name].Pos, "0 is allowed", "dim %s is %d; an extent cannot be negative", name, v)
		}
		b.Dims[name] = v
	}
	for name, d := range b.Info.Dims {
		if _, set := b.Dims[name]; !set && d.HasValue {
			b.Dims[name] = d.Default
		}
	}
	return nil
}

// mainMesh returns the mesh declared without a device list, or nil.
func (p *Program) mainMesh() *Mesh {
	for _, m := range p.Meshes {
		if !m.HasDevices {
			return m
		}
	}
	return nil
}

// solveRanks makes the number of ranks and the main mesh agree: where exactly
// one axis size is a dim, -n sets that dim.
func (b *Bound) solveRanks(bind Binding) *Diagnostic {
	b.Ranks = bind.Ranks
	m := b.Info.Prog.mainMesh()
	if b.Ranks < 0 || b.Ranks > MaxRanks {
		return b.Info.Prog.bindError(Pos{}, "leave it out to take the mesh's size", "%d ranks asked for; between 1 and %d are possible", b.Ranks, MaxRanks)
	}
	if b.Ranks == 0 || m == nil {
		return nil
	}
	var free *MeshAxis
	others := int64(1)
	for i := range m.Axes {
		ax := &m.Axes[i]
		if ax.Size.Kind == ExprName && free == nil {
			if _, set := bind.Dims[ax.Size.Name]; !set {
				free = ax
				continue
			}
		} else if ax.Size.Kind == ExprName && free != nil {
			if _, set := bind.Dims[ax.Size.Name]; !set {
				return nil // two free axes: their defaults decide
			}
		}
		n, err := ax.Size.Eval(b.Env(0, nil))
		if err != nil || n < 1 || n > MaxRanks || others > MaxRanks {
			return nil // bindMeshes reports it
		}
		others *= n
	}
	if free == nil {
		return nil
	}
	if int64(b.Ranks)%others != 0 {
		return b.Info.Prog.bindError(free.Pos, fmt.Sprintf("run it with a multiple of %d ranks", others), "%d ranks do not fill the mesh: its other axes take %d at a time", b.Ranks, others)
	}
	b.Dims[free.Size.Name] = int64(b.Ranks) / others
	return nil
}

// bindMeshes evaluates axis sizes and device lists.
func (b *Bound) bindMeshes(bind Binding) *Diagnostic {
	p := b.Info.Prog
	world := 0
	for _, m := range p.Meshes {
		bm, d := b.bindMesh(m)
		if d != nil {
			return d
		}
		for _, dev := range bm.devices {
			world = max(world, dev+1)
		}
		b.meshes = append(b.meshes, bm)
		for _, n := range bm.names {
			b.axes[n] = bm
		}
	}
	if len(p.Meshes) == 0 {
		world = max(bind.Ranks, 1)
	}
	if main := p.mainMesh(); main != nil {
		bm := b.axes[main.Axes[0].Name]
		for i, m := range b.meshes {
			for _, dev := range m.devices {
				if dev >= len(bm.devices) {
					return p.bindError(p.Meshes[i].Pos, "ranks count from 0", "a sub-mesh names rank %d, and the main mesh has %d ranks", dev, len(bm.devices))
				}
			}
		}
		world = len(bm.devices)
	}
	if bind.Ranks != 0 && bind.Ranks != world {
		return p.bindError(Pos{}, fmt.Sprintf("run it with -n %d, or make the mesh's size a dim", world),
			"%d ranks asked for, and the program's mesh has %d", bind.Ranks, world)
	}
	b.Ranks = world
	all := &boundMesh{names: []string{WorldAxis}, sizes: []int64{int64(world)}}
	for r := range world {
		all.devices = append(all.devices, r)
	}
	b.axes[WorldAxis] = all.index()
	return nil
}

func (b *Bound) bindMesh(m *Mesh) (*boundMesh, *Diagnostic) {
	p := b.Info.Prog
	bm := &boundMesh{}
	total := int64(1)
	for _, ax := range m.Axes {
		n, err := ax.Size.Eval(b.Env(0, nil))
		switch {
		case err != nil:
			return nil, p.bindError(ax.Pos, "give it with --dim or -n", "the size of mesh axis %s: %v", ax.Name, err)
		case n < 1 || n > MaxRanks || total*n > MaxRanks:
			return nil, p.bindError(ax.Pos, "give its dims other values", "mesh axis %s has size %d; a mesh has between 1 and %d ranks", ax.Name, n, MaxRanks)
		}
		total *= n
		bm.names = append(bm.names, ax.Name)
		bm.sizes = append(bm.sizes, n)
	}
	if !m.HasDevices {
		for r := range int(total) {
			bm.devices = append(bm.devices, r)
		}
		return bm.index(), nil
	}
	if int64(len(m.Devices)) != total {
		return nil, p.bindError(m.Pos, "list one rank for each place, last axis fastest", "the mesh has %d places and lists %d ranks", total, len(m.Devices))
	}
	seen := map[int64]bool{}
	for _, d := range m.Devices {
		if d < 0 || d >= MaxRanks || seen[d] {
			return nil, p.bindError(m.Pos, "ranks count from 0, and each can be listed once", "rank %d is listed twice or out of range", d)
		}
		seen[d] = true
		bm.devices = append(bm.devices, int(d))
	}
	return bm.index(), nil
}

func (m *boundMesh) index() *boundMesh {
	m.indexOf = make(map[int]int, len(m.devices))
	for i, d := range m.devices {
		m.indexOf[d] = i
	}
	return m
}

// axis returns the position of the named axis.
func (m *boundMesh) axis(name string) int { return slices.Index(m.names, name) }

// coord returns the coordinate of the i-th place along axis a.
func (m *boundMesh) coord(i, a int) int64 {
	for k := len(m.sizes) - 1; k > a; k-- {
		i /= int(m.sizes[k])
	}
	return int64(i) % m.sizes[a]
}

// stride returns how far apart neighbours along axis a are.
func (m *boundMesh) stride(a int) int {
	s := int64(1)
	for _, n := range m.sizes[a+1:] {
		s *= n
	}
	return int(s)
}

// AxisSize returns the number of ranks along axis.
func (b *Bound) AxisSize(axis string) (int64, bool) {
	m := b.axes[axis]
	if m == nil {
		return 0, false
	}
	return m.sizes[m.axis(axis)], true
}

// Coord returns rank's coordinate along axis; false when the rank is not in
// the axis' mesh.
func (b *Bound) Coord(axis string, rank int) (int64, bool) {
	m := b.axes[axis]
	if m == nil {
		return 0, false
	}
	i, ok := m.indexOf[rank]
	if !ok {
		return 0, false
	}
	return m.coord(i, m.axis(axis)), true
}

// Peer returns the rank at coordinate index along axis with rank's other
// coordinates; false when rank is not in the mesh or index is out of range.
func (b *Bound) Peer(axis string, index int64, rank int) (int, bool) {
	m := b.axes[axis]
	if m == nil {
		return 0, false
	}
	i, ok := m.indexOf[rank]
	a := m.axis(axis)
	if !ok || index < 0 || index >= m.sizes[a] {
		return 0, false
	}
	return m.devices[i+int(index-m.coord(i, a))*m.stride(a)], true
}

// Team returns the ranks that share rank's coordinates on all other axes, in
// order of the given axes, first one major; nil when rank is not in the mesh.
func (b *Bound) Team(axes []string, rank int) []int {
	team := []int{rank}
	for _, ax := range axes {
		n, ok := b.AxisSize(ax)
		if !ok {
			return nil
		}
		var next []int
		for _, r := range team {
			for c := range n {
				p, ok := b.Peer(ax, c, r)
				if !ok {
					return nil
				}
				next = append(next, p)
			}
		}
		team = next
	}
	return team
}

// Devices returns the ranks a value of type t lives on, in mesh order.
func (b *Bound) Devices(t *Type) []int {
	if m := b.meshOf(t); m != nil {
		return m.devices
	}
	return nil
}

// Holds reports whether rank holds a part of a value of type t.
func (b *Bound) Holds(t *Type, rank int) bool {
	m := b.meshOf(t)
	if m == nil {
		return false
	}
	_, ok := m.indexOf[rank]
	return ok
}

// meshOf returns the mesh a type's values are placed on: the named one, else
// the main mesh, else all ranks.
func (b *Bound) meshOf(t *Type) *boundMesh {
	if t.Mesh != "" {
		return b.axes[t.Mesh]
	}
	if m := b.Info.Prog.mainMesh(); m != nil {
		return b.axes[m.Axes[0].Name]
	}
	return b.axes[WorldAxis]
}

// Env returns the environment of one rank: dims, mesh functions, and vars,
// which may be nil.
func (b *Bound) Env(rank int, vars Vars) Env { return boundEnv{b, rank, vars} }

// Vars gives an unroller's variables and tensors to index expressions.
type Vars interface {
	Var(name string) (int64, bool)
	Extent(name string, axis int) (int64, bool)
}

type boundEnv struct {
	b    *Bound
	rank int
	vars Vars
}

func (e boundEnv) Dim(name string) (int64, bool) { v, ok := e.b.Dims[name]; return v, ok }
func (e boundEnv) Rank(ax string) (int64, bool)  { return e.b.Coord(ax, e.rank) }
func (e boundEnv) Size(ax string) (int64, bool)  { return e.b.AxisSize(ax) }
func (e boundEnv) Var(name string) (int64, bool) {
	if e.vars == nil {
		return 0, false
	}
	return e.vars.Var(name)
}
func (e boundEnv) Extent(name string, axis int) (int64, bool) {
	if e.vars == nil {
		return 0, false
	}
	return e.vars.Extent(name, axis)
}

// GlobalShape evaluates t's extents: the global shape of a value, the local
// shape of a buffer.
func (b *Bound) GlobalShape(t *Type, env Env) ([]int64, error) {
	shape := make([]int64, len(t.Dims))
	total := t.DType.Size()
	for i, d := range t.Dims {
		n, err := d.Extent.Eval(env)
		if err != nil {
			return nil, fmt.Errorf("extent %d: %w", i, err)
		}
		if n < 0 {
			return nil, fmt.Errorf("extent %d is %d; an extent cannot be negative", i, n)
		}
		shape[i] = n
		if total, err = mulChecked(total, max(n, 1)); err != nil {
			return nil, fmt.Errorf("the tensor's size in bytes does not fit 64 bits")
		}
	}
	return shape, nil
}

// LocalShape evaluates the shape of the block of t that each rank holds; its
// error names a dimension whose extent does not divide.
func (b *Bound) LocalShape(t *Type, env Env) ([]int64, error) {
	shape, err := b.GlobalShape(t, env)
	if err != nil {
		return nil, err
	}
	for i, d := range t.Dims {
		parts := int64(1)
		for _, ax := range d.Axes {
			n, _ := b.AxisSize(ax)
			parts *= n
		}
		if parts > 1 && shape[i]%parts != 0 {
			return nil, errors.New(indivisible(d, shape[i], parts))
		}
		shape[i] /= max(parts, 1)
	}
	return shape, nil
}

// indivisible says that d's extent does not divide over parts ranks.
func indivisible(d Dimension, extent, parts int64) string {
	s := fmt.Sprintf("%s is not a multiple of %s=%d", valued(d.Extent, extent), sizeWords(d.Axes), parts)
	if next := (extent/parts + 1) * parts; next > 0 { // fits 64 bits
		s += fmt.Sprintf("; next: %d", next)
	}
	return s
}

func sizeWords(axes []string) string {
	words := make([]string, len(axes))
	for i, a := range axes {
		words[i] = "size(" + a + ")"
	}
	return strings.Join(words, "*")
}

// Offset returns where rank's block of a value of type t with the given local
// shape begins in the global tensor.
func (b *Bound) Offset(t *Type, local []int64, rank int) []int64 {
	lo := make([]int64, len(t.Dims))
	for i, d := range t.Dims {
		block := int64(0)
		for _, ax := range d.Axes {
			n, _ := b.AxisSize(ax)
			c, _ := b.Coord(ax, rank)
			block = block*n + c
		}
		lo[i] = block * local[i]
	}
	return lo
}

// reached returns f and every function it calls, in order of first call.
func (p *Program) reached(f *Func) []*Func {
	byName := make(map[string]*Func, len(p.Funcs))
	for _, g := range p.Funcs {
		byName[g.Name] = g
	}
	list := []*Func{f}
	seen := map[*Func]bool{f: true}
	for i := 0; i < len(list); i++ {
		list[i].Body.Walk(func(s *Stmt) {
			if g := byName[s.Callee.Text]; s.Op == OpCall && g != nil && !seen[g] {
				seen[g] = true
				list = append(list, g)
			}
		})
	}
	return list
}

// needDims reports all dims without a value that the meshes, the function and
// what it calls use.
func (b *Bound) needDims(Binding) *Diagnostic {
	p := b.Info.Prog
	var missing []*Expr
	seen := map[string]bool{}
	look := func(e *Expr) {
		if e.Kind != ExprName || seen[e.Name] {
			return
		}
		seen[e.Name] = true
		if _, has := b.Dims[e.Name]; !has && b.defines[e.Name] == nil {
			missing = append(missing, e)
		}
	}
	for _, m := range p.Meshes {
		for _, ax := range m.Axes {
			ax.Size.Walk(look)
		}
	}
	for _, f := range p.reached(b.Func) {
		f.walkExprs(func(e *Expr) { e.Walk(look) })
	}
	if len(missing) == 0 {
		return nil
	}
	names, flags := make([]string, len(missing)), make([]string, len(missing))
	for i, e := range missing {
		names[i], flags[i] = e.Name, "--dim "+e.Name+"=64"
	}
	return p.bindError(missing[0].Pos, "give "+strings.Join(flags, " ")+", or defaults: dim "+names[0]+" = 64",
		"no value for %s", strings.Join(names, ", "))
}

// walkExprs calls see for every expression of the signature and body, nil included.
func (f *Func) walkExprs(see func(*Expr)) {
	types := func(t *Type) {
		if t != nil {
			for _, d := range t.Dims {
				see(d.Extent)
			}
		}
	}
	for _, p := range f.Params {
		types(p.Type)
	}
	for _, t := range f.Results {
		types(t)
	}
	f.Body.Walk(func(s *Stmt) {
		types(s.Type)
		for _, e := range s.Exprs {
			see(e)
		}
		for _, a := range s.Attrs {
			for _, e := range a.Exprs {
				see(e)
			}
		}
		for _, p := range s.Args {
			see(p.Index)
		}
		if s.Into != nil {
			see(s.Into.Index)
		}
		if s.Peer != nil {
			see(s.Peer.Index)
		}
		see(s.Count)
	})
}

// boundCheck checks the signatures of the bound function and all it calls, and
// in their bodies every early constraint of blocks that run.
type boundCheck struct {
	*Bound
	funcs map[string]*Func
	seen  map[*Func]bool
	ds    Diagnostics
}

func (b *Bound) checkFuncs() Diagnostics {
	c := &boundCheck{Bound: b, funcs: map[string]*Func{}, seen: map[*Func]bool{}}
	for _, f := range b.Info.Prog.Funcs {
		c.funcs[f.Name] = f
	}
	c.checkFunc(b.Func)
	c.ds.Sort()
	return c.ds
}

func (b *boundCheck) checkFunc(f *Func) {
	if f == nil || b.seen[f] {
		return
	}
	b.seen[f] = true
	b.ds = append(b.ds, b.checkSignature(f)...)
	b.checkBlock(f.Body)
}

func (b *boundCheck) checkBlock(blk *Block) {
	if blk == nil {
		return
	}
	for _, s := range blk.Stmts {
		for i := range b.Info.Constraints[s] {
			if c := &b.Info.Constraints[s][i]; !c.late && len(b.ds) < maxDiagnostics {
				b.ds = appendDiag(b.ds, b.check(c, b.Env(0, nil)))
			}
		}
		if s.Op == OpCall {
			b.checkFunc(b.funcs[s.Callee.Text])
		}
		then, other := b.runs(s)
		if then {
			b.checkBlock(s.Body)
		}
		if other {
			b.checkBlock(s.Else)
		}
	}
}

// runs reports which blocks of s may run, as far as dims decide it.
func (b *Bound) runs(s *Stmt) (then, other bool) {
	if s.Op != OpIf && s.Op != OpFor || !static(s.Exprs[0]) || !static(s.Exprs[1]) {
		return true, true
	}
	x, err1 := s.Exprs[0].Eval(b.Env(0, nil))
	y, err2 := s.Exprs[1].Eval(b.Env(0, nil))
	switch {
	case err1 != nil || err2 != nil:
		return true, true
	case s.Op == OpFor:
		return x < y, false
	}
	holds := s.Cmp.Holds(x, y)
	return holds, !holds
}

func appendDiag(ds Diagnostics, d *Diagnostic) Diagnostics {
	if d != nil {
		return append(ds, d)
	}
	return ds
}

func (b *Bound) checkSignature(f *Func) Diagnostics {
	var ds Diagnostics
	said := map[string]*Diagnostic{} // one dim may be wrong in every type
	check := func(t *Type) {
		_, err := b.LocalShape(t, b.Env(0, nil))
		if err == nil {
			return
		}
		if d := said[err.Error()]; d != nil {
			d.Notes = append(d.Notes, Note{t.Pos, "and here"})
			return
		}
		d := b.Info.Prog.bindError(t.Pos, "give dims that fit, or lay it out otherwise", "%v", err)
		ds, said[err.Error()] = append(ds, d), d
	}
	for _, p := range f.Params {
		check(p.Type)
	}
	for _, t := range f.Results {
		check(t)
	}
	for i := range b.Info.SigConstraints[f] {
		ds = appendDiag(ds, b.check(&b.Info.SigConstraints[f][i], b.Env(0, nil)))
	}
	return ds
}

// static reports whether e needs no loop variables, lets, ranks or local extents.
func static(e *Expr) bool {
	ok := true
	e.Walk(func(e *Expr) {
		switch e.Kind {
		case ExprVar, ExprRank, ExprExtent:
			ok = false
		}
	})
	return ok
}

// CheckStmt checks the constraints of one instance of s that depend on loop
// variables or ranks.
func (b *Bound) CheckStmt(s *Stmt, env Env) *Diagnostic {
	for i := range b.Info.Constraints[s] {
		c := &b.Info.Constraints[s][i]
		if !c.late {
			continue
		}
		if d := b.check(c, env); d != nil {
			return d
		}
	}
	return nil
}

func (b *Bound) check(c *Constraint, env Env) *Diagnostic {
	p := b.Info.Prog
	x, err := c.A.Eval(env)
	if err != nil {
		return p.Diag("bind", c.Pos, "%s: %v", c.Message, err)
	}
	y, err := c.B.Eval(env)
	if err != nil {
		return p.Diag("bind", c.Pos, "%s: %v", c.Message, err)
	}
	ok := true
	switch c.Rel {
	case CheckEqual:
		ok = x == y
	case CheckMultiple:
		ok = y != 0 && x%y == 0
	case CheckAtMost:
		ok = x <= y
	case CheckLess:
		ok = x < y
	}
	if ok {
		return nil
	}
	return p.bindError(c.Pos, c.Help, "%s: %s", c.Message, c.Rel.broken(c.A, valued(c.A, x), valued(c.B, y)))
}

// valued prints "T=64", or just the number for a constant.
func valued(e *Expr, v int64) string {
	if e.Kind == ExprInt {
		return fmt.Sprint(v)
	}
	return fmt.Sprintf("%s=%d", brief(e), v)
}

// Walk calls f for every statement of b and of the blocks in it, in text order.
func (b *Block) Walk(f func(*Stmt)) {
	if b == nil {
		return
	}
	for _, s := range b.Stmts {
		f(s)
		s.Body.Walk(f)
		s.Else.Walk(f)
	}
}
