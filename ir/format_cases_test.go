package ir_test

import (
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/irtest"
	"testing"
)

// TestFormat checks the placement of comments, empty lines and blocks on one line.
func TestFormat(t *testing.T) {
	for _, c := range []struct{ name, src, want string }{
		{"empty lines", "\n\n\ndim A\n\n\ndim B\nmesh tp[2]\nfunc f(){\n\n\nwait main\n\n\n\nreturn\n\n}\nfunc g(){}\ndim C\n\n\n",
			"dim A\n\ndim B\nmesh tp[2]\n\nfunc f() {\n  wait main\n\n  return\n}\n\nfunc g() {}\n\ndim C\n"},
		{"comments", "// head\n\n// of A\ndim A   // trails\n// of f\n\nfunc f() { // after the brace\n// first\n\nreturn//x\n\n// tail\n}// end\n// last\n",
			"// head\n\n// of A\ndim A  // trails\n\n// of f\n\nfunc f() {  // after the brace\n  // first\n\n  return  //x\n\n  // tail\n  // end\n}\n// last\n"},
		{"inside", "func f(%x: f32[4], // the x\n %y: f32[4]) -> f32[4] {\n  add %x, // one\n    // two\n %y into %z // three\n}\n",
			"// the x\nfunc f(%x: f32[4], %y: f32[4]) -> f32[4] {\n  // one\n  // two\n  add %x, %y into %z  // three\n}\n"},
		{"one line", "func f() {\nfor %i in 0..4 {\n  wait %s[%i]\n}\non main { wait main } // why\non main { wait main // in\n}\non main {\n\n  wait main\n} // after\n}\n",
			"func f() {\n  for %i in 0..4 { wait %s[%i] }\n  on main { wait main }  // why\n  on main {\n    wait main  // in\n  }\n  on main {\n    wait main\n    // after\n  }\n}\n"},
		{"too wide", "func f() {\n  on %a_rather_long_name { linear %another_long_name, %and_one_more into %destination_ab }\n  on %a_rather_long_name { linear %another_long_name, %and_one_mor into %destinatio }\n}\n",
			"func f() {\n  on %a_rather_long_name {\n    linear %another_long_name, %and_one_more into %destination_ab\n  }\n  on %a_rather_long_name {\n    linear %another_long_name, %and_one_mor into %destinatio\n  }\n}\n"},
		{"else", "func f() {\nif 1==2 {\n} else if 2<3 { // a\n wait main } else { // b\n} // c\n}\n",
			"func f() {\n  if 1 == 2 {\n  } else if 2 < 3 {  // a\n    wait main\n  } else {\n    // b\n    // c\n  }\n}\n"},
		{"else if with a comment", "func f() {\nif 1==2 {\n} else if min(2, // a\n3) < 3 {\n} // c\n}\n",
			"func f() {\n  if 1 == 2 {\n  } else {\n    // a\n    if min(2, 3) < 3 {\n    }\n    // c\n  }\n}\n"},
		{"parentheses", "func f() {\nlet %a = ((1 + (2 * 3)) - (4 - 5)) mod (6 * 7)\nlet %b = -(%a) + -3 - (-%a * 2)\n}\n",
			"func f() {\n  let %a = (1 + 2 * 3 - (4 - 5)) mod (6 * 7)\n  let %b = 0 - %a + -3 - (0 - %a) * 2\n}\n"},
		{"attributes", "func f() {\n %y:f32[4/(dp,tp),\n T]partial(tp,sum)@d=reshape %x,shape=((T+1)*2,4)\n all_reduce %x,op=sum into %y[0],over=(tp)\n get %x,engine=ce into %y at tp[0]\n %z=scale %x,by=-1e6\n %q = chunk %x, 1 of 2, axis=0\n%s=stream[2],priority=high\n%p=alloc[2]f32[]host zero\n}\n",
			"func f() {\n  %y: f32[4/(dp, tp), T] partial(tp, sum) @d = reshape %x, shape=((T + 1) * 2, 4)\n  all_reduce %x into %y[0], op=sum, over=(tp)\n  get %x at tp[0] into %y, engine=ce\n  %z = scale %x, by=-1e6\n  %q = chunk %x, axis=0, 1 of 2\n  %s = stream[2], priority=high\n  %p = alloc[2] f32[] zero host\n}\n"},
		{"tensor ops", "func f() {\n reduce_slots %x,lo..hi into %y,resume=true\n reduce_slots %x,axis=1,0..%i+1 into %y,resume=true\n%z=broadcast %x,\n shape=(4,over)\nbroadcast %x into %y,root=0,over=tp\n%c=concat %a,%b,%c,axis=1\n}\n",
			"func f() {\n  reduce_slots %x, lo..hi into %y, resume=true\n  reduce_slots %x, axis=1, 0..%i + 1 into %y, resume=true\n  %z = broadcast %x, shape=(4, over)\n  broadcast %x into %y, root=0, over=tp\n  %c = concat %a, %b, %c, axis=1\n}\n"},
		{"mesh list", "mesh a[2]=\t{0,\n2 // two\n4}\nfunc f(){}", "// two\nmesh a[2] = {0 2 4}\n\nfunc f() {}\n"},
		{"long head", "func f(%first: bf16[T/tp, K], %second: bf16[T/tp, K], %third: bf16[T/tp, K]) -> (bf16[T/tp, K], f32[]) {}",
			"func f(\n  %first: bf16[T/tp, K],\n  %second: bf16[T/tp, K],\n  %third: bf16[T/tp, K],\n) -> (bf16[T/tp, K], f32[]) {}\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, ds := ir.Format(c.name, c.src)
			if len(ds) > 0 {
				t.Fatal(ds)
			}
			if got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
			if again, _ := ir.Format(c.name, got); again != got {
				t.Errorf("formatted twice:\n%s\nonce:\n%s", again, got)
			}
		})
	}
}

// TestStrings checks the one-line forms of parts of programs.
func TestStrings(t *testing.T) {
	p := irtest.MustParse(t, "strings", "func f() {\n  %x = alloc[4] f32[4]\n  for %i in 0..4 stream(2) {\n    %y: f32[4] = scale %x[%i + 1], by=0.5 // c\n  }\n  wait main\n}\n")
	loop, wait := p.Funcs[0].Body.Stmts[1], p.Funcs[0].Body.Stmts[2]
	scale := loop.Body.Stmts[0]
	for want, got := range map[string]string{
		"for %i in 0..4 stream(2)":              loop.String(),
		"%y: f32[4] = scale %x[%i + 1], by=0.5": scale.String(),
		"by=0.5":                                scale.Attrs[0].String(),
		"%x[%i + 1]":                            scale.Args[0].String(),
		"%i + 1":                                scale.Args[0].Index.String(),
		"f32[4]":                                scale.Type.String(),
		"main":                                  wait.Args[0].String(),
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestEqualSeesDifferences(t *testing.T) {
	base := "dim T = 4\nfunc f(%x: f32[T/tp]) -> f32[T] {\n  %y = scale %x, by=0\n  on main { put %x into %z at tp[1], engine=ce }\n}\n"
	same := "// c\ndim T = 4\n\nfunc f(%x: f32[T/(tp)]) -> f32[(T)] {\n%y = scale %x, by=0.0\n on main {\n put %x into %z, engine=ce at tp[1]\n // d\n}\n}\n"
	if !ir.Equal(irtest.MustParse(t, "base", base), irtest.MustParse(t, "same", same)) {
		t.Error("layout or comments made a difference")
	}
	for _, other := range []string{
		"dim T = 5\nfunc f(%x: f32[T/tp]) -> f32[T] {\n  %y = scale %x, by=0\n  on main { put %x into %z at tp[1], engine=ce }\n}\n",
		"dim T\nfunc f(%x: f32[T/tp]) -> f32[T] {\n  %y = scale %x, by=0\n  on main { put %x into %z at tp[1], engine=ce }\n}\n",
		"dim T = 4\nfunc f(%x: f32[T/dp]) -> f32[T] {\n  %y = scale %x, by=0\n  on main { put %x into %z at tp[1], engine=ce }\n}\n",
		"dim T = 4\nfunc f(%x: f16[T/tp]) -> f32[T] {\n  %y = scale %x, by=0\n  on main { put %x into %z at tp[1], engine=ce }\n}\n",
		"dim T = 4\nfunc f(%x: f32[T/tp]) -> f32[T] {\n  %y = scale %x, by=-0\n  on main { put %x into %z at tp[1], engine=ce }\n}\n",
		"dim T = 4\nfunc f(%x: f32[T/tp]) -> f32[T] {\n  %y = scale %x, by=0\n  on main { put %x into %z at tp[2], engine=ce }\n}\n",
		"dim T = 4\nfunc f(%x: f32[T/tp]) -> f32[T] {\n  %y = scale %x, by=0\n  on main { put %x into %z at tp[1], engine=sm }\n}\n",
		"dim T = 4\nfunc f(%x: f32[T/tp]) -> f32[T] {\n  %y = scale %x, by=0\n  on main { }\n}\n",
		"dim T = 4\nfunc f(%x: f32[T/tp]) -> f32[T] refines g {\n  %y = scale %x, by=0\n  on main { put %x into %z at tp[1], engine=ce }\n}\n",
	} {
		if ir.Equal(irtest.MustParse(t, "base", base), irtest.MustParse(t, "other", other)) {
			t.Errorf("Equal to the base:\n%s", other)
		}
	}
}

// TestPrintAfterPass checks that declarations that a pass removed are not printed, and that declarations that it added
// without an entry in Order are printed last.
func TestPrintAfterPass(t *testing.T) {
	p := irtest.MustParse(t, "pass", "func a() {}\ndim T\nfunc b() {}\n")
	p.Funcs = append(p.Funcs[1:], &ir.Func{Name: "c", Body: &ir.Block{}})
	want := "dim T\n\nfunc b() {}\n\nfunc c() {}\n"
	if got := p.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
