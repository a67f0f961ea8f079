package ir_test

import (
	"fmt"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/irtest"
	"strings"
	"testing"
)

// inBody returns a function that contains a statement.
func inBody(stmt string) string { return "func f() {\n" + stmt + "\n}\n" }

func nested(open, inner, end string, n int) string {
	return strings.Repeat(open, n) + inner + strings.Repeat(end, n)
}

// nestings holds functions that return texts with n levels of nesting, each of a different kind.
var nestings = map[string]func(n int) string{
	"parentheses": func(n int) string { return inBody("let %a = " + nested("(", "1", ")", n)) },
	"signs":       func(n int) string { return inBody("let %a = " + nested("-", "T", "", n)) },
	"calls":       func(n int) string { return inBody("let %a = " + nested("min(1, ", "2", ")", n)) },
	"calls left":  func(n int) string { return inBody("let %a = " + nested("max(", "2", ", 1)", n)) },
	"sum":         func(n int) string { return inBody("let %a = " + nested("1 + ", "2", "", n)) },
	"product":     func(n int) string { return inBody("let %a = " + nested("1 * ", "2", "", n)) },
	"tree": func(n int) string {
		return inBody("let %a = " + nested("(1 + 1 + ", "1", ")", n/4) + strings.Repeat(" mod 3", n))
	},
	"type":       func(n int) string { return inBody("%a = alloc f32[" + nested("(", "T", ")", n) + "]") },
	"attribute":  func(n int) string { return inBody("%a = reshape %b, shape=(" + nested("(", "T", ")", n) + ")") },
	"number":     func(n int) string { return inBody("%a = scale %b, by=" + nested("(", "T", ")", n)) },
	"mesh":       func(n int) string { return "mesh tp[" + nested("(", "1", ")", n) + "]\n" },
	"blocks":     func(n int) string { return inBody(nested("on main {\n", "", "}\n", n)) },
	"one line":   func(n int) string { return inBody(nested("group {", "", "}", n)) },
	"else if":    func(n int) string { return inBody(nested("if 1 == 1 {\n} else ", "{\n}", "", n)) },
	"else":       func(n int) string { return inBody(nested("if 1 == 1 {\n} else {\n", "", "}\n", n)) },
	"only open":  func(n int) string { return strings.Repeat("(", n) },
	"only brace": func(n int) string { return inBody(strings.Repeat("{", n)) },
	"brackets":   func(n int) string { return inBody("wait %s" + strings.Repeat("[", n)) },
	"no end":     func(n int) string { return inBody(strings.Repeat("on main {\n", n)) },
}

func TestDeepNestingIsRefused(t *testing.T) {
	const deep = 1_000_000
	for name, text := range nestings {
		t.Run(name, func(t *testing.T) {
			p, ds := ir.Parse("deep", text(deep))
			if p == nil || !ds.HasErrors() {
				t.Fatal("no error")
			}
			limited := ds[len(ds)-1].Message
			if strings.HasPrefix(name, "only open") || name == "brackets" {
				return // refused because it is not a statement at all
			}
			if !strings.Contains(limited, "nested deeper than 1000") || len(ds) > 2 {
				t.Errorf("got %d errors: %.2000s", len(ds), ds)
			}
		})
	}
}

func TestNestingWithinTheLimit(t *testing.T) {
	for name, text := range nestings {
		if strings.Contains("only open only brace brackets no end mesh", name) {
			continue
		}
		irtest.RoundTrip(t, name, text(500))
	}
	irtest.RoundTrip(t, "blocks", nestings["blocks"](ir.MaxNesting-1))
	if _, ds := ir.Parse("blocks", nestings["blocks"](ir.MaxNesting)); !ds.HasErrors() {
		t.Error("one block more than the limit was taken")
	}
	irtest.RoundTrip(t, "sum", nestings["sum"](ir.MaxNesting-1))
	if _, ds := ir.Parse("sum", nestings["sum"](ir.MaxNesting)); !ds.HasErrors() {
		t.Error("one operand more than the limit was taken")
	}
}

func TestErrorsAreCapped(t *testing.T) {
	_, ds := ir.Parse("many", inBody(strings.Repeat("  oops %x\n", 1000)))
	if len(ds) != ir.MaxDiagnostics {
		t.Errorf("got %d errors, want %d", len(ds), ir.MaxDiagnostics)
	}
}

func TestOneErrorALineDoesNotHideTheRest(t *testing.T) {
	src := inBody("  %a = add %x,, %y\n  %b = ad %x, %y\n  %c = add %x, %y\n  for %i in 0 {\n    wiat main\n  }\n  return %c")
	p, ds := ir.Parse("several", src)
	var lines []string
	for _, d := range ds {
		lines = append(lines, fmt.Sprint(d.Pos.Line))
	}
	if got := strings.Join(lines, " "); got != "2 3 5 6" {
		t.Errorf("errors in lines %s: %s", got, ds)
	}
	if len(p.Funcs) != 1 || len(p.Funcs[0].Body.Stmts) != 2 {
		t.Errorf("of the right statements is left:\n%s", p)
	}
}

func TestPositions(t *testing.T) {
	src := "\ufeffdim T\r\nfunc f() {\n\tlet %a = T + 1 // ä\n  %b = chunk %x[2], axis=0, 1 of 2\r\n}\n"
	p := irtest.MustParse(t, "positions", src)
	let, row, chunk := p.Funcs[0].Body.Stmts[0], p.Funcs[0].Body.Stmts[1], p.Funcs[0].Body.Stmts[2]
	for _, c := range []struct {
		what string
		got  ir.Pos
		want ir.Pos
	}{
		{"dim", p.Dims[0].Pos, ir.Pos{1, 4}}, // after the three bytes of the byte order mark
		{"let's result", let.Pos, ir.Pos{3, 6}},
		{"expression", let.Exprs[0].Pos, ir.Pos{3, 11}},
		{"second operand", let.Exprs[0].Args[1].Pos, ir.Pos{3, 15}},
		{"operation", chunk.Pos, ir.Pos{4, 8}},
		{"result", chunk.Results[0].Pos, ir.Pos{4, 3}},
		{"operand", chunk.Args[0].Pos, ir.Pos{4, 14}},
		{"row of a tensor", row.Pos, ir.Pos{4, 14}},
		{"attribute", chunk.Attrs[0].Pos, ir.Pos{4, 21}},
		{"count", chunk.Exprs[1].Pos, ir.Pos{4, 34}},
		{"closing brace", p.Funcs[0].Body.End, ir.Pos{5, 1}},
	} {
		if c.got != c.want {
			t.Errorf("%s at %v, want %v", c.what, c.got, c.want)
		}
	}
}
