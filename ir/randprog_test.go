package ir

import (
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
)

// progGen makes random programs that are syntactically right and otherwise
// nonsense: every operation, attribute, type and expression, with names that
// a careless parser takes for something else.
type progGen struct {
	*rand.Rand
	depth int
}

// randomProgram returns a program without positions and comments.
func randomProgram(seed uint64) *Program {
	g := &progGen{Rand: rand.New(rand.NewPCG(seed, 1))}
	p := &Program{File: "random"}
	for range g.IntN(3) {
		d := &Dim{Name: g.dimName(), HasValue: g.coin()}
		if d.HasValue {
			d.Default = g.Int64N(1 << 40)
		}
		p.Dims = append(p.Dims, d)
	}
	for range g.IntN(3) {
		p.Meshes = append(p.Meshes, g.mesh())
	}
	for range 1 + g.IntN(2) {
		p.Funcs = append(p.Funcs, g.function())
	}
	if g.coin() {
		for _, d := range p.Dims {
			p.Order = append(p.Order, d)
		}
		for _, m := range p.Meshes {
			p.Order = append(p.Order, m)
		}
		for _, f := range p.Funcs {
			p.Order = append(p.Order, f)
		}
		g.Shuffle(len(p.Order), func(i, j int) { p.Order[i], p.Order[j] = p.Order[j], p.Order[i] })
		p.sortLike(p.Order)
	}
	return p
}

// sortLike brings the lists into the order of the text, as the parser has them.
func (p *Program) sortLike(order []Decl) {
	p.Dims, p.Meshes, p.Funcs = nil, nil, nil
	for _, d := range order {
		switch d := d.(type) {
		case *Dim:
			p.Dims = append(p.Dims, d)
		case *Mesh:
			p.Meshes = append(p.Meshes, d)
		case *Func:
			p.Funcs = append(p.Funcs, d)
		}
	}
}

func pick[T any](g *progGen, list ...T) T { return list[g.IntN(len(list))] }

// some returns up to most of what make makes.
func some[T any](g *progGen, least, most int, make func() T) []T {
	var list []T
	for range least + g.IntN(most-least+1) {
		list = append(list, make())
	}
	return list
}

func (g *progGen) coin() bool { return g.IntN(2) == 0 }

func (g *progGen) word() string {
	return pick(g, "tp", "dp", "x_1", "into", "at", "to", "from", "in", "stream", "sum", "func", "dim", "linear",
		"symmetric", "partial", "if", "T", "_")
}

func (g *progGen) dimName() string {
	return pick(g, "T", "K", "N", "C", "into", "in", "stream", "at", "func", "over", "e1", "op", "symmetric")
}

func (g *progGen) varName() string {
	return pick(g, "x", "y.1", "0", "main", "into", "a.b.c", "7.7", "rank", "_", "mod", "for", "x_long_name_0123456789")
}

func (g *progGen) expr() *Expr {
	g.depth++
	defer func() { g.depth-- }()
	leaves := 6
	if g.depth < 5 {
		leaves = 14
	}
	switch k := ExprKind(g.IntN(leaves)); k {
	case ExprInt:
		return Int(pick[int64](g, 0, 1, 2, -1, -7, 64, math.MaxInt64, math.MinInt64))
	case ExprName:
		return dimRef(g.dimName())
	case ExprVar:
		return Var(g.varName())
	case ExprRank:
		return Rank(g.word())
	case ExprSize:
		return Size(g.word())
	case ExprExtent:
		return Extent(g.varName(), g.Int64N(4))
	default:
		return Bin(k, g.expr(), g.expr())
	}
}

func (g *progGen) typ() *Type {
	t := &Type{DType: pick(g, DTypes()...)}
	t.Dims = some(g, 0, 3, func() Dimension {
		return Dimension{Extent: g.expr(), Axes: some(g, 0, 2, g.word)}
	})
	t.Partial = some(g, 0, 2, func() Partial { return Partial{Axis: g.word(), Red: pick(g, Sum, Max, Min, Avg)} })
	if g.IntN(4) == 0 {
		t.Mesh = g.word()
	}
	return t
}

func (g *progGen) mesh() *Mesh {
	m := &Mesh{Axes: some(g, 1, 3, func() MeshAxis { return MeshAxis{Name: g.word(), Size: g.expr()} })}
	if m.HasDevices = g.coin(); m.HasDevices {
		m.Devices = some(g, 0, 5, func() int64 { return g.Int64N(100) })
	}
	return m
}

func (g *progGen) function() *Func {
	f := &Func{Name: g.word(), Body: g.block()}
	f.Params = some(g, 0, 4, func() *Param { return &Param{Name: g.varName(), Inout: g.coin(), Type: g.typ()} })
	f.Results = some(g, 0, 2, g.typ)
	if g.coin() {
		f.Refines.Text = g.word()
	}
	return f
}

func (g *progGen) block() *Block {
	g.depth++
	defer func() { g.depth-- }()
	most := 6
	if g.depth > 4 {
		most = 1
	}
	b := &Block{}
	for _, s := range some(g, 0, most, g.stmt) {
		b.Stmts = append(b.Stmts, g.inside(s)...)
	}
	return b
}

func givesValue(op Op) bool {
	class := op.Info().Class
	return class == ClassTensor || class == ClassView || class == ClassCollective
}

// isOperand reports whether s can be an operand of another operation.
func isOperand(s *Stmt) bool { return len(s.Results) == 1 && s.Into == nil && givesValue(s.Op) }

// inside returns s behind some operations that are its operands. What is indexed there is declared nowhere, so it would be
// a row of a tensor.
func (g *progGen) inside(s *Stmt) []*Stmt {
	if !isOperand(s) {
		return []*Stmt{s}
	}
	g.depth++
	defer func() { g.depth-- }()
	var list []*Stmt
	for i := range s.Args {
		s.Args[i].Index = nil
		if g.IntN(2+g.depth) > 0 {
			continue
		}
		n := &Stmt{Op: pick(g, OpSelect, OpLinear, OpConcat, OpAllGather, OpChunk, OpExpand, OpBroadcast, OpSilu), Nested: true}
		for g.operands(n); !isOperand(n); g.operands(n) {
			n.Into = nil
		}
		n.Type, n.Results = nil, []Name{{Text: s.Results[0].Text + "." + strconv.Itoa(i)}}
		s.Args[i] = Place{Name: s.Results[0].Text + "." + strconv.Itoa(i)}
		list = append(list, g.inside(n)...)
	}
	return append(list, s)
}

func (g *progGen) place() Place {
	p := Place{Name: g.varName()}
	if g.IntN(4) == 0 {
		p.Index = g.expr()
	}
	return p
}

func (g *progGen) stream() Place {
	if g.coin() {
		return Main()
	}
	return g.place()
}

func (g *progGen) name() Name { return Name{Text: g.varName()} }

func (g *progGen) count() *Expr {
	if g.coin() {
		return nil
	}
	return g.expr()
}

func (g *progGen) stmt() *Stmt {
	s := &Stmt{Op: pick(g, Ops()...)}
	switch s.Op {
	case OpLet:
		s.Results, s.Exprs = []Name{g.name()}, []*Expr{g.expr()}
	case OpAlloc:
		s.Results, s.Count, s.Type, s.Flags = []Name{g.name()}, g.count(), g.typ(), AllocFlags(g.IntN(8))
	case OpStream, OpEvent, OpCounter:
		s.Results, s.Count, s.Attrs = []Name{g.name()}, g.count(), g.attrs(s.Op)
	case OpFree, OpRecord:
		s.Args = []Place{g.place()}
	case OpWait:
		s.Args, s.Exprs = []Place{g.stream()}, some(g, 0, 1, g.expr)
	case OpOn:
		s.Args, s.Body = []Place{g.stream()}, g.block()
	case OpGroup:
		s.Body = g.block()
	case OpFor:
		s.Results, s.Exprs, s.Streams, s.Body = []Name{g.name()}, []*Expr{g.expr(), g.expr()}, g.Int64N(3), g.block()
	case OpIf:
		s.Exprs, s.Cmp, s.Body = []*Expr{g.expr(), g.expr()}, Cmp(g.IntN(6)), g.block()
		if g.coin() {
			s.Else = g.block()
		}
	case OpCall:
		s.Results, s.Callee.Text, s.Args = some(g, 0, 3, g.name), g.word(), some(g, 0, 3, g.place)
		if len(s.Results) == 1 && g.coin() {
			s.Type = g.typ()
		}
	case OpLaunch:
		g.launch(s)
	case OpReturn:
		s.Args = some(g, 0, 3, g.place)
	default:
		g.operands(s)
	}
	return s
}

func (g *progGen) launch(s *Stmt) {
	s.Launch = &Launch{File: g.word() + "/" + g.word() + pick(g, KernelEndings...), Kernel: Name{Text: g.word()}}
	for range 1 + g.IntN(4) {
		p := LaunchParam{Kind: LaunchKind(g.IntN(4)), At: -1}
		if p.Kind != LaunchNumber {
			p.At = len(s.Args)
			s.Args = append(s.Args, g.place())
		} else if p.DType = pick(g, I32, I64, F32, F64); p.DType.IsInt() {
			p.At = len(s.Exprs)
			s.Exprs = append(s.Exprs, g.expr())
		} else {
			var a Attr
			if g.number(&a); a.IsNum {
				p.Num = a.Num
			} else {
				p.At = len(s.Exprs)
				s.Exprs = append(s.Exprs, a.Exprs[0])
			}
		}
		s.Launch.Params = append(s.Launch.Params, p)
	}
	s.Attrs = g.attrs(s.Op)
}

func (g *progGen) operands(s *Stmt) {
	info := s.Op.Info()
	s.Args, s.Attrs = some(g, info.MinArgs, min(info.MaxArgs, info.MinArgs+3), g.place), g.attrs(s.Op)
	if s.Op == OpChunk || s.Op == OpSlice || s.Op == OpReduceSlots {
		s.Exprs = []*Expr{g.expr(), g.expr()}
	}
	if s.Op == OpSignal || info.Class == ClassTransfer && s.Op != OpGroup {
		s.Peer = &Peer{Axis: g.word(), Index: g.expr()}
	}
	if info.Into == IntoMust || info.Into == IntoMay && g.coin() {
		into := g.place()
		s.Into = &into
	} else if givesValue(s.Op) {
		s.Results = []Name{g.name()}
		if g.coin() {
			s.Type = g.typ()
		}
	}
}

func (g *progGen) attrs(op Op) []Attr {
	var list []Attr
	for _, spec := range op.Info().Attrs {
		if spec.Required || g.coin() {
			list = append(list, g.attr(spec))
		}
	}
	g.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

func (g *progGen) attr(spec AttrSpec) Attr {
	a := Attr{Name: spec.Name, Kind: spec.Kind, Paren: g.coin()}
	switch spec.Kind {
	case AttrExpr:
		a.Exprs = []*Expr{g.expr()}
	case AttrExprs:
		a.Exprs = some(g, 0, 3, g.expr)
	case AttrWord:
		a.Words = []string{strings.Join(some(g, 1, 3, g.word), "-")}
		if spec.Words != nil {
			a.Words = []string{pick(g, spec.Words...)}
		}
	case AttrWords:
		a.Words = some(g, 0, 3, g.word)
	case AttrNumber:
		g.number(&a)
	}
	return a
}

func (g *progGen) number(a *Attr) {
	if e := g.expr(); e.Kind != ExprInt {
		a.Exprs = []*Expr{e}
		return
	}
	a.IsNum = true
	a.Num = pick[float64](g, 0, math.Copysign(0, -1), 1, -3, 0.5, 1e6, -1e-7, math.Pi, math.MaxFloat64,
		math.SmallestNonzeroFloat64, math.Inf(1), math.Inf(-1), math.NaN(), 1<<60, g.NormFloat64())
}

// dimRef names a dim.
func dimRef(name string) *Expr { return &Expr{Kind: ExprName, Name: name} }

// testValues gives names values.
type testValues struct {
	testEnv
	dims, vars, ranks, sizes map[string]int64
}

func (v testValues) Dim(n string) (int64, bool) { x, ok := v.dims[n]; return x, ok }

func (v testValues) Var(n string) (int64, bool) { x, ok := v.vars[n]; return x, ok }

func (v testValues) Rank(n string) (int64, bool) { x, ok := v.ranks[n]; return x, ok }

func (v testValues) Size(n string) (int64, bool) { x, ok := v.sizes[n]; return x, ok }

func mustParse(t testing.TB, file, src string) *Program {
	t.Helper()
	p, ds := Parse(file, src)
	if len(ds) > 0 {
		t.Fatalf("%s\nof\n%s", ds, src)
	}
	return p
}

// checkRoundTrip demands that the printed text parses to the same program and
// prints the same again, comments included.
func checkRoundTrip(t testing.TB, file, src string) {
	t.Helper()
	p := mustParse(t, file, src)
	text := p.String()
	again := mustParse(t, file+" printed", text)
	if !Equal(p, again) {
		t.Fatalf("%s: printed and parsed is another program:\n%s", file, text)
	}
	if twice := again.String(); twice != text {
		t.Fatalf("%s: fmt of\n%s\ngives\n%s", file, text, twice)
	}
}

// randomRuns is the number of random programs of a test.
func randomRuns() uint64 {
	if testing.Short() {
		return 1000
	}
	return 10000
}

const goldenMark = "==== diagnostics\n"

// testEnv knows no names.
type testEnv struct{}

func (testEnv) Dim(string) (int64, bool)         { return 0, false }
func (testEnv) Var(string) (int64, bool)         { return 0, false }
func (testEnv) Rank(string) (int64, bool)        { return 0, false }
func (testEnv) Size(string) (int64, bool)        { return 0, false }
func (testEnv) Extent(string, int) (int64, bool) { return 0, false }
