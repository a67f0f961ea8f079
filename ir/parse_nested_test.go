package ir_test

import (
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/irtest"
	"strings"
	"testing"
)

// TestNestedOperands checks that operations and rows of tensors that are written as operands are parsed as the
// statements that would name them, and are printed as they were written.
func TestNestedOperands(t *testing.T) {
	for _, c := range []struct{ text, long string }{
		{"%y = gelu %w[%l + 1]", "%y.0 = select %w, axis=0, index=%l + 1\n%y = gelu %y.0"},
		{"%y: f32[4] = mul (silu (linear %x, %g[0])), (linear %x, %u[0])  // c",
			"%y.0.0.1 = select %g, axis=0, index=0\n%y.0.0 = linear %x, %y.0.0.1\n%y.0 = silu %y.0.0\n" +
				"%y.1.1 = select %u, axis=0, index=0\n%y.1 = linear %x, %y.1.1\n%y: f32[4] = mul %y.0, %y.1"},
		{"%y = all_reduce (broadcast %x, shape=(2, 3)), over=tp", "%y.0 = broadcast %x, shape=(2, 3)\n%y = all_reduce %y.0, over=tp"},
		{"%y = slice (select (reshape %x, shape=(2, 3)), axis=0, index=1), axis=0, 0..1",
			"%y.0.0 = reshape %x, shape=(2, 3)\n%y.0 = select %y.0.0, axis=0, index=1\n%y = slice %y.0, axis=0, 0..1"},
		{"%y = add %x, (chunk %bufs[1], axis=0, 0 of 2)", "%y.1 = chunk %bufs[1], axis=0, 0 of 2\n%y = add %x, %y.1"},
	} {
		in := func(body string) string {
			return "func f() {\n  %bufs = alloc[2] f32[4]\n  " + strings.ReplaceAll(body, "\n", "\n  ") + "\n}\n"
		}
		p := irtest.MustParse(t, "nested", in(c.text))
		if !ir.Equal(p, irtest.MustParse(t, "long", in(c.long))) {
			t.Errorf("%s is another program than\n%s", c.text, c.long)
		}
		if got := p.String(); got != in(c.text) {
			t.Errorf("%s is printed as\n%s", c.text, got)
		}
		stmts := p.Funcs[0].Body.Stmts
		for _, s := range stmts[1 : len(stmts)-1] {
			if s.Pos.Line != 3 || !s.Nested {
				t.Errorf("%s at %v, nested %v", s, s.Pos, s.Nested)
			}
		}
		// If a pass inserts another statement between them, all statements are printed separately.
		cut := &ir.Stmt{Op: ir.OpFree, Args: []ir.Place{{Name: "bufs"}}}
		p.Funcs[0].Body.Stmts = append(append(stmts[:len(stmts)-1:len(stmts)-1], cut), stmts[len(stmts)-1])
		long, last := c.long[:strings.LastIndex(c.long, "\n")+1], c.long[strings.LastIndex(c.long, "\n")+1:]
		again := irtest.MustParse(t, "cut", p.String())
		if !ir.Equal(again, irtest.MustParse(t, "long", in(long+"free %bufs\n"+last))) {
			t.Errorf("with a statement between it is printed as\n%s", p)
		}
	}
}

// TestNestedErrors checks that text that cannot be an operand is reported at its own position.
func TestNestedErrors(t *testing.T) {
	for text, want := range map[string]string{
		"  %y = gelu (gelu %x\n  return %y":             `the "(" is not closed`,
		"  %y = add (gelu %x %x)":                       `expected "," or ")"`,
		"  %y = mul silu %x, %x":                        "in parentheses: (silu …)",
		"  %y = mul (gelu silu %x), %x":                 "in parentheses: (silu …)",
		"  %y = add(%x, %x)":                            "write operands without parentheses: add %x, …",
		"  %y = add %x, (%x)":                           "remove the parentheses",
		"  %y = gelu %x[0][1]":                          "an index in brackets selects along dimension 0",
		"  %y = for %i in 0..2 carry %h = (gelu %x) {}": "name its result",
		"  %y = gelu (gelu %x":                          `expected "," or ")"`,
		"  %y = gelu (wiat main)":                       "2:14",
		"  %y = gelu (wait main)":                       "wait has no result",
		"  %y = gelu (alloc f32[4])":                    "alloc has no result",
		"  %y = gelu (gelu %x into %z)":                 "both a result and a destination",
		"  gelu (gelu %x) into %z":                      "gelu has no result",
		"  return (gelu %x)":                            "name its result",
		"  %y = gelu ()":                                "expected an operation",
		"  %y = gelu ((gelu %x))":                       "remove the parentheses",
		"  %y = " + strings.Repeat("gelu (", 1001) + "": "operands are nested deeper than 1000",
	} {
		_, ds := ir.Parse("errors", "func f(%x: f32[4]) {\n"+text+"\n}\n")
		if len(ds) == 0 || !strings.Contains(ds[0].String(), want) || ds[0].Pos.Line < 2 {
			t.Errorf("%.60s: %v, want %q", text, ds, want)
		}
	}
}
