package ir_test

import (
	"fmt"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
	"strings"
	"testing"
)

// TestLongProgramsAreRefused checks the limits on the numbers of statements, words and comments of a program.
func TestLongProgramsAreRefused(t *testing.T) {
	const statements, words = "the program has more than 65536 statements",
		"the program has more than 1048576 words and signs"
	repeat := strings.Repeat
	for name, c := range map[string]struct{ text, want string }{
		"statements": {inBody(repeat("%a = relu %x\n", 1<<16+1)), statements},
		"nested":     {inBody(repeat("%a = relu (relu %x)\n", 1<<15+1)), statements},
		"blocks":     {inBody(repeat("on main { }\n", 1<<16+1)), statements},
		"comments":   {repeat("//\n", 1<<20+2), words},
		"in body":    {inBody(repeat("//\n", 1<<20+2)), words},
		"functions":  {repeat("func f() {}\n", 1<<18), words},
		"dims":       {repeat("dim A = 1\n", 1<<18), words},
		"parameters": {"func f(" + repeat("%a: f32[1], ", 1<<18) + ") {}\n", words},
		"sums":       {inBody(repeat("let %a = 1"+repeat("+1", 500)+"\n", 1100)), words},
		"rubbish":    {"func f(" + repeat("+", 1<<20+2), words},
	} {
		p, ds := checker.Read("long", c.text)
		if p == nil || !ds.HasErrors() {
			t.Errorf("%s: no error", name)
			continue
		}
		if all := ds.String(); !strings.Contains(all, c.want) && name != "rubbish" {
			t.Errorf("%s: got %.500s", name, all)
		}
		for _, d := range ds {
			if line := strings.Split(c.text, "\n")[d.Pos.Line-1]; int(d.Pos.Col) > len(line)+1 {
				t.Errorf("%s: the position %v is outside the text", name, d.Pos)
			}
		}
	}
	for _, n := range []int{1<<16 - 1, 1 << 16} {
		var b strings.Builder
		for i := range n - 1 {
			fmt.Fprintf(&b, "let %%a%d = 1\n", i)
		}
		if _, ds := ir.Parse("long", "func f(%x: f32[1]) -> f32[1] {\n"+b.String()+"return %x\n}\n"); ds.HasErrors() {
			t.Errorf("%d statements: %.300s", n, ds)
		}
	}
}
