package hocket

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"hocket.example/hocket/ir"
)

// nested returns a program of nested loops, each of which has two trips.
func nested(loops int) string {
	var b strings.Builder
	b.WriteString("func f(%x: f32[4]) -> f32[4] {\n%y = alloc f32[4]\n")
	for i := range loops {
		fmt.Fprintf(&b, "for %%i%d in 0..2 {\n", i)
	}
	b.WriteString("add %x, %x into %y\n" + strings.Repeat("}\n", loops) + "return %y\n}\n")
	return b.String()
}

// TestLimits checks that the resources and the time for preparing a program are limited, and that exceeding a limit
// gives a diagnostic of kind "limit" at the statement.
func TestLimits(t *testing.T) {
	loops, err := Parse("loops.hkt", nested(40)) // of 2⁴⁰ commands
	if err != nil {
		t.Fatal(err)
	}
	wide, err := Parse("wide.hkt", "mesh tp[64]\nfunc f(%x: f32[64/tp]) -> f32[64/tp] {\n%y = add %x, %x\nreturn %y\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	m, err := Open(t.Context(), MachineOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for _, c := range []struct {
		name string
		p    *Program
		l    Limits
		want string
	}{
		{"commands", loops, Limits{Commands: 5000}, "more than 5000 commands"},
		{"memory", loops, Limits{Memory: 10 << 20}, "more than 2048 commands"},
		{"time", loops, Limits{Time: time.Millisecond, Commands: 1 << 22}, "time limit of 1ms"},
		{"ranks", wide, Limits{Ranks: 8}, "64 ranks; the limit is 8"},
	} {
		model, err := m.Load(c.p.Within(c.l), Binding{}, LoadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		in, err := model.RandomInputs("zeros")
		if err == nil {
			_, err = model.Run(t.Context(), Args{In: in})
		}
		ds, ok := err.(Diagnostics)
		if !ok || ds[0].Kind != "limit" || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
		v, err := Check(c.p.Within(c.l), Binding{})
		if err != nil || v.Kind != Unknown || !strings.Contains(v.Reason, c.want) {
			t.Errorf("%s: check: %v, %v", c.name, v, err)
		}
	}
	// Within the limits, everything works as without limits.
	v, err := Check(wide.Within(Limits{Commands: 1000, Memory: 1 << 30, Ranks: 64, Time: time.Hour}), Binding{})
	if err != nil || v.Kind != Proved {
		t.Errorf("within: %v, %v", v, err)
	}
}

// TestNoProgram checks that functions return errors for nil and zero Programs, and that the String methods of invalid
// values do not panic.
func TestNoProgram(t *testing.T) {
	m, err := Open(t.Context(), MachineOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for _, p := range []*Program{nil, {}} {
		if p.String() != "" || p.Warnings() != nil || len(p.IR().Funcs) != 0 || p.Within(Limits{Ranks: 1}) != p {
			t.Error("a program that nobody parsed has something")
		}
		for what, f := range map[string]func() error{
			"check":   func() error { _, err := Check(p, Binding{}); return err },
			"fix":     func() error { _, err := Fix(p, Binding{}); return err },
			"load":    func() error { _, err := m.Load(p, Binding{}, LoadOptions{}); return err },
			"lower":   func() error { _, err := p.Lower(LowerOptions{}); return err },
			"bind":    func() error { _, err := p.Bind(Binding{}); return err },
			"explain": func() error { _, err := p.Explain(LowerOptions{}); return err },
			"memory":  func() error { _, err := p.PlanMemory(LowerOptions{}); return err },
		} {
			if err := f(); err == nil || !strings.Contains(err.Error(), "the Program is nil or zero") {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
	if _, err := New(nil); err == nil {
		t.Error("New takes nil")
	}
	if d := ir.DType(200); d.Size() != 0 || d.IntBits() != 0 || d.String() != "dtype(200)" {
		t.Errorf("an element type that there is not is %v of %d bytes", d, d.Size())
	}
	(&ir.Block{Stmts: []*ir.Stmt{{}}}).Walk(nil)
}
