package verify_test

import (
	"os"
	"testing"
	"time"

	"hocket.example/hocket/internal/compile"
	"hocket.example/hocket/internal/verify"
	"hocket.example/hocket/ir"
)

// symmetric checks a program by one rank.
func symmetric(prog *ir.Program, b ir.Binding, strategy string) (*verify.SymmetryProof, error) {
	info, ds := ir.Check(prog)
	if ds.HasErrors() {
		return nil, ds
	}
	unit, err := compile.Build(info, compile.Options{Strategy: strategy})
	if err != nil {
		return nil, err
	}
	grid, unroller, err := unit.Ranks(b)
	if err != nil {
		return nil, err
	}
	return verify.Symmetric(verify.Symmetry{Grid: grid, Unroller: unroller})
}

func TestZZ(t *testing.T) {
	src, err := os.ReadFile(os.Getenv("ZZ"))
	if err != nil {
		t.Skip()
	}
	prog := parse(t, "x.hkt", string(src))
	s := time.Now()
	r, err := symmetric(prog, ir.Binding{}, os.Getenv("STRAT"))
	if err != nil {
		t.Fatal(err)
	}
	t.Log(time.Since(s), r.Verdict, r.Reason, r.Commands, r.Differing, r.SerialSafe, r.Stats)
	t.Log(r.Diagnostics(prog))
}
