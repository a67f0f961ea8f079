package checker

import (
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/irtest"
	"math/rand/v2"
	"strings"
	"testing"
)

// TestCheckSurvivesMissingParts removes parts of statements that the parser always provides.
func TestCheckSurvivesMissingParts(t *testing.T) {
	for seed := range irtest.RandomRuns() / 4 {
		r := rand.New(rand.NewPCG(seed, 5))
		p := irtest.MustParse(t, "sample", checkSample)
		var all []*ir.Stmt
		for _, f := range p.Funcs {
			f.Body.Walk(func(s *ir.Stmt) { all = append(all, s) })
		}
		maim(r, p, all[r.IntN(len(all))])
		judgeCheck(t, "", p)
	}
}

func maim(r *rand.Rand, p *ir.Program, s *ir.Stmt) {
	switch r.IntN(16) {
	case 0:
		s.Results = nil
	case 1:
		s.Results = append(s.Results, ir.Name{Text: "extra"}, ir.Name{Text: "more"})
	case 2:
		s.Exprs = nil
	case 3:
		s.Exprs = append(s.Exprs, nil)
	case 4:
		s.Type = nil
	case 5:
		s.Body, s.Else = nil, &ir.Block{}
	case 6:
		s.Peer = nil
	case 7:
		s.Args = nil
	case 8:
		s.Op = ir.Op(r.IntN(256))
	case 9:
		s.Into = &ir.Place{}
	case 10:
		s.Attrs = append(s.Attrs, ir.Attr{Name: pickOf(r, "axis", "over", "op", "by", "root"),
			Kind: ir.AttrKind(r.IntN(7))})
	case 11:
		for i := range s.Attrs {
			s.Attrs[i].Exprs, s.Attrs[i].Words, s.Attrs[i].IsNum = nil, nil, false
		}
	case 12:
		s.Args = append(s.Args, ir.Place{Main: true}, ir.Place{Name: "x", Index: &ir.Expr{Kind: ir.ExprAdd}})
	case 13:
		s.Type = &ir.Type{DType: ir.DType(r.IntN(256)), Dims: []ir.Dimension{{}}}
	case 14:
		f := p.Funcs[r.IntN(len(p.Funcs))]
		f.Params = append(f.Params, &ir.Param{Name: "p"})
		if r.IntN(2) == 0 {
			f.Body = nil
		}
	case 15:
		m := p.Meshes[r.IntN(len(p.Meshes))]
		m.Axes = append(m.Axes, ir.MeshAxis{Name: "n"})
		if r.IntN(2) == 0 {
			m.Axes = nil
		}
	}
}

// TestDuplicateAttr checks a second attribute of the same name, which only programs built in Go can have.
func TestDuplicateAttr(t *testing.T) {
	p := irtest.MustParse(t, "built", "func f(%x: f32[8]) -> f32[8] {\n  %y = scale %x, by=2\n  return %y\n}\n")
	s := p.Funcs[0].Body.Stmts[0]
	s.Attrs = append(s.Attrs, ir.NumberAttr("by", 3))
	_, ds := Check(p)
	if len(ds) != 1 || !strings.Contains(ds[0].Message, "by= is given twice") {
		t.Errorf("%v", ds)
	}
}

// TestRefinesCycles checks that the functions on a cycle refine themselves, and that functions that lead to the cycle
// do not.
func TestRefinesCycles(t *testing.T) {
	const src = "func a() refines b { }\nfunc b() refines c { }\nfunc c() refines d { }\nfunc d() refines b { }\nfunc e() refines a { }\nfunc g() { }\nfunc h() refines g { }\n"
	_, ds := Check(irtest.MustParse(t, "refines", src))
	var got []string
	for _, d := range ds {
		got = append(got, d.Message)
	}
	if want := "b refines itself, c refines itself, d refines itself"; strings.Join(got, ", ") != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestNestingLimit checks that a program built in Go that exceeds the nesting limit is refused with one error.
func TestNestingLimit(t *testing.T) {
	for _, c := range []struct{ depth, errors int }{{ir.MaxNesting - 1, 0}, {ir.MaxNesting + 5, 1}} {
		body := &ir.Block{}
		for range c.depth {
			body = &ir.Block{Stmts: []*ir.Stmt{{Op: ir.OpIf, Exprs: []*ir.Expr{ir.Int(0), ir.Int(0)}, Cmp: ir.EQ,
				Body: body}}}
		}
		p := &ir.Program{File: "nested", Funcs: []*ir.Func{{Name: "f", Body: body}}}
		if _, ds := Check(p); len(ds) != c.errors || c.errors > 0 && ds[0].Kind != "limit" {
			t.Errorf("depth %d: %v", c.depth, ds)
		}
	}
}

func TestCallDepthLimit(t *testing.T) {
	p := &ir.Program{File: "calls"}
	const last = 2 * ir.MaxNesting
	for i := range last {
		body := &ir.Block{}
		if i+1 < last {
			body.Stmts = []*ir.Stmt{{Op: ir.OpCall, Callee: ir.Name{Text: "f" + itoa(i+1)}}}
		}
		p.Funcs = append(p.Funcs, &ir.Func{Name: "f" + itoa(i), Body: body})
	}
	_, ds := Check(p)
	if len(ds) == 0 || ds[0].Kind != "limit" {
		t.Errorf("%v", ds)
	}
}
