package ir

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// TestCheckSurvivesMissingParts takes parts of statements away that the parser
// always gives them.
func TestCheckSurvivesMissingParts(t *testing.T) {
	for seed := range randomRuns() / 4 {
		r := rand.New(rand.NewPCG(seed, 5))
		p := mustParse(t, "sample", checkSample)
		var all []*Stmt
		for _, f := range p.Funcs {
			f.Body.Walk(func(s *Stmt) { all = append(all, s) })
		}
		maim(r, p, all[r.IntN(len(all))])
		judgeCheck(t, "", p)
	}
}

func maim(r *rand.Rand, p *Program, s *Stmt) {
	switch r.IntN(16) {
	case 0:
		s.Results = nil
	case 1:
		s.Results = append(s.Results, Name{Text: "extra"}, Name{Text: "more"})
	case 2:
		s.Exprs = nil
	case 3:
		s.Exprs = append(s.Exprs, nil)
	case 4:
		s.Type = nil
	case 5:
		s.Body, s.Else = nil, &Block{}
	case 6:
		s.Peer = nil
	case 7:
		s.Args = nil
	case 8:
		s.Op = Op(r.IntN(256))
	case 9:
		s.Into = &Place{}
	case 10:
		s.Attrs = append(s.Attrs, Attr{Name: pickOf(r, "axis", "over", "op", "by", "root"), Kind: AttrKind(r.IntN(7))})
	case 11:
		for i := range s.Attrs {
			s.Attrs[i].Exprs, s.Attrs[i].Words, s.Attrs[i].IsNum = nil, nil, false
		}
	case 12:
		s.Args = append(s.Args, Place{Main: true}, Place{Name: "x", Index: &Expr{Kind: ExprAdd}})
	case 13:
		s.Type = &Type{DType: DType(r.IntN(256)), Dims: []Dimension{{}}}
	case 14:
		f := p.Funcs[r.IntN(len(p.Funcs))]
		f.Params = append(f.Params, &Param{Name: "p"})
		if r.IntN(2) == 0 {
			f.Body = nil
		}
	case 15:
		m := p.Meshes[r.IntN(len(p.Meshes))]
		m.Axes = append(m.Axes, MeshAxis{Name: "n"})
		if r.IntN(2) == 0 {
			m.Axes = nil
		}
	}
}

// TestDuplicateAttr: a second one only comes from Go.
func TestDuplicateAttr(t *testing.T) {
	p := mustParse(t, "built", "func f(%x: f32[8]) -> f32[8] {\n  %y = scale %x, by=2\n  return %y\n}\n")
	s := p.Funcs[0].Body.Stmts[0]
	s.Attrs = append(s.Attrs, NumberAttr("by", 3))
	_, ds := Check(p)
	if len(ds) != 1 || !strings.Contains(ds[0].Message, "by= is given twice") {
		t.Errorf("%v", ds)
	}
}

// TestRefinesCycles: those on a cycle refine themselves, those before it do not.
func TestRefinesCycles(t *testing.T) {
	const src = "func a() refines b { }\nfunc b() refines c { }\nfunc c() refines d { }\nfunc d() refines b { }\nfunc e() refines a { }\nfunc g() { }\nfunc h() refines g { }\n"
	_, ds := Check(mustParse(t, "refines", src))
	var got []string
	for _, d := range ds {
		got = append(got, d.Message)
	}
	if want := "b refines itself, c refines itself, d refines itself"; strings.Join(got, ", ") != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestNestingLimit: what Go nests deeper than a text could is refused, with one
// error.
func TestNestingLimit(t *testing.T) {
	for _, c := range []struct{ depth, errors int }{{maxNesting - 1, 0}, {maxNesting + 5, 1}} {
		body := &Block{}
		for range c.depth {
			body = &Block{Stmts: []*Stmt{{Op: OpIf, Exprs: []*Expr{Int(0), Int(0)}, Cmp: EQ, Body: body}}}
		}
		p := &Program{File: "nested", Funcs: []*Func{{Name: "f", Body: body}}}
		if _, ds := Check(p); len(ds) != c.errors || c.errors > 0 && ds[0].Kind != "limit" {
			t.Errorf("depth %d: %v", c.depth, ds)
		}
	}
}

func TestCallDepthLimit(t *testing.T) {
	p := &Program{File: "calls"}
	const last = 2 * maxNesting
	for i := range last {
		body := &Block{}
		if i+1 < last {
			body.Stmts = []*Stmt{{Op: OpCall, Callee: Name{Text: "f" + itoa(i+1)}}}
		}
		p.Funcs = append(p.Funcs, &Func{Name: "f" + itoa(i), Body: body})
	}
	_, ds := Check(p)
	if len(ds) == 0 || ds[0].Kind != "limit" {
		t.Errorf("%v", ds)
	}
}
