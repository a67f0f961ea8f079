// Package irtest contains helpers for tests: random programs, and environments in which expressions are evaluated.
package irtest

import (
	"hocket.example/hocket/ir"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
)

// progGen generates random programs that are syntactically valid but have no meaning. The programs contain every
// operation, attribute, type and kind of expression, and names that a careless parser would confuse with keywords.
type progGen struct {
	*rand.Rand
	depth int
}

// RandomProgram returns a program without positions and comments.
func RandomProgram(seed uint64) *ir.Program {
	g := &progGen{Rand: rand.New(rand.NewPCG(seed, 1))}
	p := &ir.Program{File: "random"}
	for range g.IntN(3) {
		d := &ir.Dim{Name: g.dimName(), HasValue: g.coin()}
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
		sortLike(p, p.Order)
	}
	return p
}

// sortLike sorts the program's lists of declarations by order, the order of the text. The parser returns the lists in
// this order.
func sortLike(p *ir.Program, order []ir.Decl) {
	p.Dims, p.Meshes, p.Funcs = nil, nil, nil
	for _, d := range order {
		switch d := d.(type) {
		case *ir.Dim:
			p.Dims = append(p.Dims, d)
		case *ir.Mesh:
			p.Meshes = append(p.Meshes, d)
		case *ir.Func:
			p.Funcs = append(p.Funcs, d)
		}
	}
}

func pick[T any](g *progGen, list ...T) T { return list[g.IntN(len(list))] }

// some returns the results of a random number of calls of the function make: at least least, and at most most.
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

func (g *progGen) expr() *ir.Expr {
	g.depth++
	defer func() { g.depth-- }()
	leaves := 6
	if g.depth < 5 {
		leaves = 14
	}
	switch k := ir.ExprKind(g.IntN(leaves)); k {
	case ir.ExprInt:
		return ir.Int(pick[int64](g, 0, 1, 2, -1, -7, 64, math.MaxInt64, math.MinInt64))
	case ir.ExprName:
		return DimRef(g.dimName())
	case ir.ExprVar:
		return ir.Var(g.varName())
	case ir.ExprRank:
		return ir.Rank(g.word())
	case ir.ExprSize:
		return ir.Size(g.word())
	case ir.ExprExtent:
		return ir.Extent(g.varName(), g.Int64N(4))
	default:
		return ir.Bin(k, g.expr(), g.expr())
	}
}

func (g *progGen) typ() *ir.Type {
	t := &ir.Type{DType: pick(g, ir.DTypes()...)}
	t.Dims = some(g, 0, 3, func() ir.Dimension {
		return ir.Dimension{Extent: g.expr(), Axes: some(g, 0, 2, g.word)}
	})
	t.Partial = some(g, 0, 2, func() ir.Partial {
		return ir.Partial{Axis: g.word(),
			Red: pick(g, ir.Sum, ir.Max, ir.Min, ir.Avg)}
	})
	if g.IntN(4) == 0 {
		t.Mesh = g.word()
	}
	return t
}

func (g *progGen) mesh() *ir.Mesh {
	m := &ir.Mesh{Axes: some(g, 1, 3, func() ir.MeshAxis { return ir.MeshAxis{Name: g.word(), Size: g.expr()} })}
	if m.HasDevices = g.coin(); m.HasDevices {
		m.Devices = some(g, 0, 5, func() int64 { return g.Int64N(100) })
	}
	return m
}

func (g *progGen) function() *ir.Func {
	f := &ir.Func{Name: g.word(), Body: g.block()}
	f.Params = some(g, 0, 4, func() *ir.Param { return &ir.Param{Name: g.varName(), Inout: g.coin(), Type: g.typ()} })
	f.Results = some(g, 0, 2, g.typ)
	if g.coin() {
		f.Refines.Text = g.word()
	}
	return f
}

func (g *progGen) block() *ir.Block {
	g.depth++
	defer func() { g.depth-- }()
	most := 6
	if g.depth > 4 {
		most = 1
	}
	b := &ir.Block{}
	for _, s := range some(g, 0, most, g.stmt) {
		b.Stmts = append(b.Stmts, g.inside(s)...)
	}
	return b
}

func givesValue(op ir.Op) bool {
	class := op.Info().Class
	return class == ir.ClassTensor || class == ir.ClassView || class == ir.ClassCollective
}

// isOperand reports whether s can be an operand of another operation.
func isOperand(s *ir.Stmt) bool { return len(s.Results) == 1 && s.Into == nil && givesValue(s.Op) }

// inside returns s, preceded by random operations that are its operands. It removes the indices of operands, because
// the parser would read an indexed name that is not declared as an array as a row of a tensor.
func (g *progGen) inside(s *ir.Stmt) []*ir.Stmt {
	if !isOperand(s) {
		return []*ir.Stmt{s}
	}
	g.depth++
	defer func() { g.depth-- }()
	var list []*ir.Stmt
	for i := range s.Args {
		s.Args[i].Index = nil
		if g.IntN(2+g.depth) > 0 {
			continue
		}
		n := &ir.Stmt{Op: pick(g, ir.OpSelect, ir.OpLinear, ir.OpConcat, ir.OpAllGather, ir.OpChunk, ir.OpExpand,
			ir.OpBroadcast, ir.OpSilu), Nested: true}
		for g.operands(n); !isOperand(n); g.operands(n) {
			n.Into = nil
		}
		n.Type, n.Results = nil, []ir.Name{{Text: s.Results[0].Text + "." + strconv.Itoa(i)}}
		s.Args[i] = ir.Place{Name: s.Results[0].Text + "." + strconv.Itoa(i)}
		list = append(list, g.inside(n)...)
	}
	return append(list, s)
}

func (g *progGen) place() ir.Place {
	p := ir.Place{Name: g.varName()}
	if g.IntN(4) == 0 {
		p.Index = g.expr()
	}
	return p
}

func (g *progGen) stream() ir.Place {
	if g.coin() {
		return ir.Main()
	}
	return g.place()
}

func (g *progGen) name() ir.Name { return ir.Name{Text: g.varName()} }

func (g *progGen) count() *ir.Expr {
	if g.coin() {
		return nil
	}
	return g.expr()
}

func (g *progGen) stmt() *ir.Stmt {
	s := &ir.Stmt{Op: pick(g, ir.Ops()...)}
	switch s.Op {
	case ir.OpLet:
		s.Results, s.Exprs = []ir.Name{g.name()}, []*ir.Expr{g.expr()}
	case ir.OpAlloc:
		s.Results, s.Count, s.Type, s.Flags = []ir.Name{g.name()}, g.count(), g.typ(), ir.AllocFlags(g.IntN(8))
	case ir.OpStream, ir.OpEvent, ir.OpCounter:
		s.Results, s.Count, s.Attrs = []ir.Name{g.name()}, g.count(), g.attrs(s.Op)
	case ir.OpFree, ir.OpRecord:
		s.Args = []ir.Place{g.place()}
	case ir.OpWait:
		s.Args, s.Exprs = []ir.Place{g.stream()}, some(g, 0, 1, g.expr)
	case ir.OpOn:
		s.Args, s.Body = []ir.Place{g.stream()}, g.block()
	case ir.OpGroup:
		s.Body = g.block()
	case ir.OpFor:
		s.Results, s.Exprs, s.Streams, s.Body = []ir.Name{g.name()}, []*ir.Expr{g.expr(), g.expr()}, g.Int64N(3),
			g.block()
	case ir.OpIf:
		s.Exprs, s.Cmp, s.Body = []*ir.Expr{g.expr(), g.expr()}, ir.Cmp(g.IntN(6)), g.block()
		if g.coin() {
			s.Else = g.block()
		}
	case ir.OpCall:
		s.Results, s.Callee.Text, s.Args = some(g, 0, 3, g.name), g.word(), some(g, 0, 3, g.place)
		if len(s.Results) == 1 && g.coin() {
			s.Type = g.typ()
		}
	case ir.OpLaunch:
		g.launch(s)
	case ir.OpReturn:
		s.Args = some(g, 0, 3, g.place)
	default:
		g.operands(s)
	}
	return s
}

func (g *progGen) launch(s *ir.Stmt) {
	s.Launch = &ir.Launch{File: g.word() + "/" + g.word() + pick(g, ir.KernelEndings...),
		Kernel: ir.Name{Text: g.word()}}
	for range 1 + g.IntN(4) {
		p := ir.LaunchParam{Kind: ir.LaunchKind(g.IntN(4)), At: -1}
		if p.Kind != ir.LaunchNumber {
			p.At = len(s.Args)
			s.Args = append(s.Args, g.place())
		} else if p.DType = pick(g, ir.I32, ir.I64, ir.F32, ir.F64); p.DType.IsInt() {
			p.At = len(s.Exprs)
			s.Exprs = append(s.Exprs, g.expr())
		} else {
			var a ir.Attr
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

func (g *progGen) operands(s *ir.Stmt) {
	info := s.Op.Info()
	s.Args, s.Attrs = some(g, info.MinArgs, min(info.MaxArgs, info.MinArgs+3), g.place), g.attrs(s.Op)
	if s.Op == ir.OpChunk || s.Op == ir.OpSlice || s.Op == ir.OpReduceSlots {
		s.Exprs = []*ir.Expr{g.expr(), g.expr()}
	}
	if s.Op == ir.OpSignal || info.Class == ir.ClassTransfer && s.Op != ir.OpGroup {
		s.Peer = &ir.Peer{Axis: g.word(), Index: g.expr()}
	}
	if info.Into == ir.IntoMust || info.Into == ir.IntoMay && g.coin() {
		into := g.place()
		s.Into = &into
	} else if givesValue(s.Op) {
		s.Results = []ir.Name{g.name()}
		if g.coin() {
			s.Type = g.typ()
		}
	}
}

func (g *progGen) attrs(op ir.Op) []ir.Attr {
	var list []ir.Attr
	for _, spec := range op.Info().Attrs {
		if spec.Required || g.coin() {
			list = append(list, g.attr(spec))
		}
	}
	g.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

func (g *progGen) attr(spec ir.AttrSpec) ir.Attr {
	a := ir.Attr{Name: spec.Name, Kind: spec.Kind, Paren: g.coin()}
	switch spec.Kind {
	case ir.AttrExpr:
		a.Exprs = []*ir.Expr{g.expr()}
	case ir.AttrExprs:
		a.Exprs = some(g, 0, 3, g.expr)
	case ir.AttrWord:
		a.Words = []string{strings.Join(some(g, 1, 3, g.word), "-")}
		if spec.Words != nil {
			a.Words = []string{pick(g, spec.Words...)}
		}
	case ir.AttrWords:
		a.Words = some(g, 0, 3, g.word)
	case ir.AttrNumber:
		g.number(&a)
	}
	return a
}

func (g *progGen) number(a *ir.Attr) {
	if e := g.expr(); e.Kind != ir.ExprInt {
		a.Exprs = []*ir.Expr{e}
		return
	}
	a.IsNum = true
	a.Num = pick[float64](g, 0, math.Copysign(0, -1), 1, -3, 0.5, 1e6, -1e-7, math.Pi, math.MaxFloat64,
		math.SmallestNonzeroFloat64, math.Inf(1), math.Inf(-1), math.NaN(), 1<<60, g.NormFloat64())
}

// DimRef returns the expression that refers to a dim.
func DimRef(name string) *ir.Expr { return &ir.Expr{Kind: ir.ExprName, Name: name} }

// Values is an ir.Env that returns the values of names from maps.
type Values struct {
	NoNames
	Dims, Vars, Ranks, Sizes map[string]int64
}

func (v Values) Dim(n string) (int64, bool) { x, ok := v.Dims[n]; return x, ok }

func (v Values) Var(n string) (int64, bool) { x, ok := v.Vars[n]; return x, ok }

func (v Values) Rank(n string) (int64, bool) { x, ok := v.Ranks[n]; return x, ok }

func (v Values) Size(n string) (int64, bool) { x, ok := v.Sizes[n]; return x, ok }

func MustParse(t testing.TB, file, src string) *ir.Program {
	t.Helper()
	p, ds := ir.Parse(file, src)
	if len(ds) > 0 {
		t.Fatalf("%s\nof\n%s", ds, src)
	}
	return p
}

// RoundTrip fails the test unless the printed text of src parses to an equal program and prints as the same text again,
// including comments.
func RoundTrip(t testing.TB, file, src string) {
	t.Helper()
	p := MustParse(t, file, src)
	text := p.String()
	again := MustParse(t, file+" printed", text)
	if !ir.Equal(p, again) {
		t.Fatalf("%s: printed and parsed is another program:\n%s", file, text)
	}
	if twice := again.String(); twice != text {
		t.Fatalf("%s: fmt of\n%s\ngives\n%s", file, text, twice)
	}
}

// RandomRuns returns the number of random programs that a test generates.
func RandomRuns() uint64 {
	if testing.Short() {
		return 1000
	}
	return 10000
}

const GoldenMark = "==== diagnostics\n"

// NoNames is an ir.Env in which no name has a value.
type NoNames struct{}

func (NoNames) Dim(string) (int64, bool)         { return 0, false }
func (NoNames) Var(string) (int64, bool)         { return 0, false }
func (NoNames) Rank(string) (int64, bool)        { return 0, false }
func (NoNames) Size(string) (int64, bool)        { return 0, false }
func (NoNames) Extent(string, int) (int64, bool) { return 0, false }
