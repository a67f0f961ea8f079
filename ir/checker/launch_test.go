package checker

import (
	"hocket.example/hocket/ir"
	"strings"
	"testing"
)

const launchText = `dim N = 8
mesh tp[2]

func f(%x: f32[N], %s: inout f32[N]) -> f32[N] {
  %y = alloc f32[N]
  let %n = N * 2
  launch "a/b.cu":k(%x, into %y, inout %s, N, i64 %n, i32 %n + 1, f32 0.5, f64 -2), grid=(N, 2), block=32, shared=N
  return %y
}
`

// TestLaunch checks that a launch is printed as it was read, and that values and missing parts in it are reported.
func TestLaunch(t *testing.T) {
	info, ds := Read("t", launchText)
	if len(ds) > 0 || info.Prog.String() != launchText {
		t.Fatalf("%v\n%s", ds, info.Prog)
	}
	s := info.Prog.Funcs[0].Body.Stmts[2]
	if l := s.Launch; l.Name() != "a/b.cu:k" || len(l.Params) != 8 || len(s.Args) != 3 || len(s.Exprs) != 3 ||
		l.Params[7].Num != -2 {
		t.Errorf("%+v", l)
	}
	c := info.Prog.Clone()
	c.Funcs[0].Body.Stmts[2].Launch.Params[0].Kind = ir.LaunchWrites
	if ir.Equal(c, info.Prog) || s.Launch.Params[0].Kind != ir.LaunchReads {
		t.Error("a clone shares its launch")
	}
}

// TestLaunchBroken checks that errors in launches that were built in Go are reported by every function that examines a
// launch.
func TestLaunchBroken(t *testing.T) {
	for name, breaks := range map[string]func(s *ir.Stmt){
		"none":      func(s *ir.Stmt) { s.Launch = nil },
		"elsewhere": func(s *ir.Stmt) { s.Op = ir.OpFree },
		"too few":   func(s *ir.Stmt) { s.Args = s.Args[:1] },
		"too many":  func(s *ir.Stmt) { s.Exprs = append(s.Exprs, ir.Int(3)) },
		"out of it": func(s *ir.Stmt) { s.Launch.Params[3].At = 77 },
		"no type":   func(s *ir.Stmt) { s.Launch.Params[3].DType = ir.InvalidDType },
		"no kind":   func(s *ir.Stmt) { s.Launch.Params[0].Kind = 9 },
		"an order":  func(s *ir.Stmt) { s.Launch.Params[0].At, s.Launch.Params[1].At = 1, 0 },
		"no grid":   func(s *ir.Stmt) { s.Attrs = s.Attrs[1:] },
		"a quote":   func(s *ir.Stmt) { s.Launch.File = "a\"b.cu" },
		"an int":    func(s *ir.Stmt) { s.Launch.Params[7].DType = ir.I32 },
		"half":      func(s *ir.Stmt) { s.Launch.Params[7].DType = ir.BF16 },
	} {
		p, _ := ir.Parse("t", launchText)
		breaks(p.Funcs[0].Body.Stmts[2])
		if _, ds := Check(p); !ds.HasErrors() || strings.Contains(ds.Error(), "panic") {
			t.Errorf("%s: %v", name, ds)
		}
		_ = p.String()
	}
}
