package planner

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// body returns a program with one function over tp[n] that contains stmts.
func body(n int, stmts string) string {
	return fmt.Sprintf("mesh tp[%d]\nfunc f(%%x: f32[8, 4]) -> f32[8, 4] {\n  %%y = alloc f32[8, 4]\n%s\n  copy %%x into %%y\n  return %%y\n}\n", n, stmts)
}

func TestRefusedPrograms(t *testing.T) {
	for _, c := range []struct {
		name  string
		ranks int
		stmts string
		kind  string
		words []string
	}{
		{"two channels in opposite order", 2, `
  %s = stream[2]
  if rank(tp) == 0 {
    on %s[0] { barrier over=tp }
    on %s[1] { wait %s[0]
      barrier over=tp }
  } else {
    on %s[0] { wait %s[1] 
      barrier over=tp }
    on %s[1] { wait %s[0]
      barrier over=tp }
  }
  %c = counter[2]
  wait %c[0] >= 1
  signal %c[0] at tp[1 - rank(tp)]`, "deadlock", []string{"rank 0", "rank 1", "%c[0] >= 1"}},
		{"wait before the signal that needs it", 3, `
  %c = counter
  wait %c >= 1
  signal %c at tp[(rank(tp) + 1) mod 3]`, "deadlock", []string{"rank 0, main", "waits for %c[0] >= 1, which is 0", "3 streams"}},
		{"a barrier against a counter", 2, `
  %c = counter
  if rank(tp) == 0 { wait %c >= 1 }
  barrier over=tp
  if rank(tp) == 1 { signal %c at tp[0] }`, "deadlock", []string{"waits in barrier for ranks [0]"}},
		{"send to a peer that receives later", 2, `
  %b = alloc f32[8, 4]
  send %x to tp[1 - rank(tp)]
  recv %b from tp[1 - rank(tp)]`, "deadlock", []string{"waits for a transfer whose other side is never posted", "into one group"}},
		{"too few signals", 2, `
  %c = counter
  signal %c at tp[1 - rank(tp)]
  wait %c >= 2`, "deadlock", []string{"the wait needs %c[0] >= 2, but the counter is signalled only 1 times in a run"}},
		{"two raisers", 3, `
  %c = counter
  if rank(tp) != 0 { signal %c at tp[0] }`, "match", []string{"signalled by rank 1 and by rank 2"}},
		{"unordered signals", 2, `
  %s = stream
  %c = counter
  on %s { wait main
    signal %c at tp[1 - rank(tp)] }
  signal %c at tp[1 - rank(tp)]
  wait %s
  wait %c >= 1`, "match", []string{"%c[0] >= 1 does not identify its signals", "of the 2 signals of a run", "%s"}},
		{"signals of the next run", 2, `
  %s = stream
  %c = counter
  on %s { signal %c at tp[1 - rank(tp)] }
  wait %s
  signal %c at tp[1 - rank(tp)]
  wait %c >= 2`, "match", []string{"%c[0] >= 2 does not identify its signals"}},
		{"never met", 2, `
  if rank(tp) == 0 { barrier over=tp }`, "match", []string{"this barrier has no matching collective on rank 1"}},
		{"one more on one rank", 2, `
  barrier over=tp
  if rank(tp) == 1 { barrier over=tp }`, "match", []string{"no matching collective on rank 0", "the last collective of rank 0 over this team is this barrier"}},
		{"different ops", 2, `
  %b = alloc f32[8, 4]
  if rank(tp) == 0 { barrier over=tp } else { all_reduce %x into %b, over=tp, op=sum }`, "match", []string{"all_reduce of f32[8 4] is matched with barrier"}},
		{"different reductions", 2, `
  %b = alloc f32[8, 4]
  if rank(tp) == 0 { all_reduce %x into %b, over=tp, op=max } else { all_reduce %x into %b, over=tp, op=sum }`, "match", []string{"op=sum and op=max"}},
		{"different roots", 2, `
  %b = alloc f32[8, 4]
  if rank(tp) == 0 { broadcast %x into %b, over=tp, root=0 } else { broadcast %x into %b, over=tp, root=1 }`, "match", []string{"root=1 and root=0"}},
		{"different shapes", 2, `
  %b = alloc f32[2 + rank(tp), 4]
  fill into %b, value=1
  all_reduce %b into %b, over=tp, op=sum`, "match", []string{"shapes [3 4] and [2 4]"}},
		{"permute that does not pair up", 3, `
  %b = alloc f32[8, 4]
  permute %x into %b, over=tp, to=(rank(tp) + 1) mod 3, from=(rank(tp) + 1) mod 3`, "match", []string{"of the ranks do not match"}},
		{"unmatched send", 2, `
  if rank(tp) == 0 { send %x to tp[1] }`, "match", []string{"send has no matching recv on rank 1", "1 sends and 0 recvs"}},
		{"unequal ends", 2, `
  %b = alloc f32[4, 4]
  if rank(tp) == 0 { send %x to tp[1] } else { recv %b from tp[0] }`, "match", []string{"send of f32[8 4] is matched with a recv of f32[4 4]"}},
		{"event without record", 2, `
  %e = event
  wait %e`, "structure", []string{"which no statement above records", "rank 0"}},
		{"event recorded on one rank only", 2, `
  %e = event
  if rank(tp) == 0 { record %e }
  wait %e`, "structure", []string{"which no statement above records", "rank 1"}},
		{"event of an earlier iteration's declaration", 1, `
  for %i in 0..2 {
    %e = event
    if %i == 0 { record %e }
    wait %e
  }`, "structure", []string{"%i=1"}},
		{"chunk index", 2, `
  for %i in 0..5 {
    %c = chunk %x, axis=0, %i of 4
    %b = alloc f32[extent(%c, 0), 4]
    copy %c into %b
  }`, "bind", []string{"chunk index %i=4 is not in 0..4", "rank 0, %i=4"}},
		{"array index", 2, `
  %b = alloc[3] f32[8]
  for %i in 0..4 { fill into %b[%i], value=1 }`, "bind", []string{"index %i=3 is not in 0..3", "%i=3"}},
		{"peer", 2, `
  %c = counter
  for %i in 0..3 { signal %c at tp[%i] }`, "bind", []string{"tp[%i=2] is not a rank"}},
		{"root", 2, `
  %b = alloc f32[8, 4]
  broadcast %x into %b, over=tp, root=2`, "bind", []string{"root=2"}},
		{"no blocks", 2, `
  %b = alloc f32[8, 4]
  broadcast %x into %b, over=tp, root=0, ctas=0`, "bind", []string{"ctas=0", "use 1 to 65536"}},
		{"blocks that differ", 2, `
  %b = alloc f32[8, 4]
  broadcast %x into %b, over=tp, root=0, ctas=rank(tp) + 1`, "match", []string{"ctas=2 and ctas=1"}},
		{"no multiprocessors", 2, `
  %w = alloc f32[4, 4] zero
  %b = alloc f32[8, 4]
  linear %x, %w into %b, sms=0`, "bind", []string{"sms=0 is not a valid number of multiprocessors: use 1 to 65536"}},
		{"too many multiprocessors", 2, `
  %w = alloc f32[4, 4] zero
  %b = alloc f32[8, 4]
  matmul %x, %w into %b, sms=65536 + rank(tp)`, "bind", []string{"sms=65537", "rank 1"}},
		{"a copy by no blocks", 2, `
  %b = alloc f32[8, 4] symmetric
  put %x into %b at tp[0], engine=sm, ctas=rank(tp)`, "bind", []string{"ctas=0 is not a valid number of thread blocks: use 1 to 65536"}},
		{"not dense", 2, `
  %b = alloc f32[8, 2]
  %v = slice %x, axis=1, 1..3
  all_reduce %v into %b, over=tp, op=sum`, "alias", []string{"copy %v", "view with gaps"}},
		{"reshape of a view with gaps", 2, `
  %b = alloc f32[8, 4]
  %v = slice %b, axis=1, 1..3
  %w = reshape %v, shape=(16)
  fill into %w, value=1`, "alias", []string{"copy the tensor first"}},
		{"use of a freed element", 1, `
  %b = alloc[2] f32[8]
  fill into %b[0], value=1
  free %b[1]
  for %i in 0..2 { fill into %b[%i], value=2 }`, "lifetime", []string{"%b[%i] is used after it was freed", "%i=1"}},
		{"division by zero", 1, `
  for %i in 0..2 { let %k = floordiv(6, 1 - %i) }`, "bind", []string{"division by zero", "%i=1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ds := refused(t, body(c.ranks, c.stmts), ir.Binding{}, c.kind, c.words...)
			if !ds[0].Pos.Valid() {
				t.Errorf("no position:\n%s", ds)
			}
		})
	}
}

func TestDeadlockListsAtMostEightHeads(t *testing.T) {
	ds := refused(t, body(12, `
  %c = counter
  wait %c >= 1
  signal %c at tp[(rank(tp) + 1) mod 12]`), ir.Binding{}, "deadlock", "12 streams")
	if n := len(ds[0].Notes); n != maxHeads-1 {
		t.Errorf("%d notes", n)
	}
}

func TestLimits(t *testing.T) {
	calls := "mesh tp[1]\nfunc g0(%x: f32[8, 4]) -> f32[8, 4] {\n  return %x\n}\n"
	for i := 1; i < 30; i++ {
		calls += fmt.Sprintf("func g%d(%%x: f32[8, 4]) -> f32[8, 4] {\n  %%a = call g%d %%x\n  %%b = call g%d %%a\n  return %%b\n}\n", i, i-1, i-1)
	}
	for _, c := range []struct{ name, src, word string }{
		{"2^62 iterations", body(2, "  for %i in 0..4611686018427387904 { barrier over=tp }"), "loop iterations"},
		{"more than 2^63 iterations", body(2, "  for %i in 0 - 9223372036854775807..9223372036854775807 { barrier over=tp }"), "loop iterations"},
		{"nested loops", body(1, "  for %i in 0..9000000 {\n    for %j in 0..9000000 {\n      for %k in 0..9000000 { barrier over=tp }\n    }\n  }"), "loop iterations"},
		{"streams", body(2, "  %s = stream[1000000000000]"), "streams"},
		{"worker streams", body(2, "  for %i in 0..1 stream(100000) { barrier over=tp }"), "streams"},
		{"counters", body(2, "  %c = counter[4611686018427387904]"), "counter elements"},
		{"events", body(2, "  %c = event[4611686018427387904]"), "buffers and events"},
		{"buffers", body(2, "  %b = alloc[4611686018427387904] f32[0]"), "buffers and events"},
		{"one large buffer", body(2, "  %b = alloc f32[1152921504606846975]\n  fill into %b, value=1"), "bytes"},
		{"calls that double", calls, "1000000 calls"},
	} {
		t.Run(c.name, func(t *testing.T) { refused(t, c.src, ir.Binding{}, "limit", c.word) })
	}
	large := "  %s = stream[40]\n"
	for i := range 40 {
		large += fmt.Sprintf("  %%b%d = alloc f32[60000000000000]\n  on %%s[%d] { fill into %%b%d, value=1 }\n", i, i, i)
	}
	refused(t, body(1, large), ir.Binding{}, "limit", "memory for %b")
}

func TestImplicitProgramsAreRefused(t *testing.T) {
	refused(t, `
mesh tp[2]
func f(%x: f32[8/tp, 4], %w: f32[6, 4]) -> f32[8, 6] {
  %y = linear %x, %w
  return %y
}
`, ir.Binding{}, "internal", "lower the program first")
}

func TestErrorsOfDifferentStreamsNameThem(t *testing.T) {
	ds := refused(t, body(2, `
  %s = stream[2]
  for %i in 0..2 {
    on %s[%i] {
      wait main
      if rank(tp) == %i { barrier over=tp }
    }
  }
  if rank(tp) == 0 { barrier over=tp }`), ir.Binding{}, "match")
	if !strings.Contains(ds.String(), "rank") {
		t.Error(ds)
	}
}

func TestBlocksOfCollectives(t *testing.T) {
	p, _ := mustPlan(t, body(2, "  %b = alloc f32[8, 4]\n  broadcast %x into %b, over=tp, root=0, algorithm=direct, ctas=2 * size(tp)"), ir.Binding{})
	if p.Colls[0].CTAs != 4 || !strings.Contains(p.String(), " algorithm=direct ctas=4 ") {
		t.Errorf("ctas is %d in\n%s", p.Colls[0].CTAs, p)
	}
	other := p.Hash()
	p.Colls[0].CTAs = 5
	if p.Hash() == other {
		t.Error("plans with other ctas have one hash")
	}
}

func TestMultiprocessorsOfProducts(t *testing.T) {
	p, _ := mustPlan(t, body(2, "  %w = alloc f32[4, 4] zero\n  linear %x, %w into %y, sms=62 * size(tp)\n  matmul %x, %w into %y, tb=true"), ir.Binding{})
	var got []int32
	for i := range p.Cmds {
		if c := &p.Cmds[i]; c.Kind == plan.Compute && c.Rank == 0 && c.Op != ir.OpFill {
			got = append(got, int32(c.Attr.SMs))
		}
	}
	if !slices.Equal(got, []int32{124, 0}) || !strings.Contains(p.String(), "linear sms=124 ") {
		t.Errorf("sms are %v in\n%s", got, p)
	}
}

func TestEnginesOfCopies(t *testing.T) {
	p, _ := mustPlan(t, body(2, "  %b = alloc f32[8, 4] symmetric\n  put %x into %b at tp[0], engine=sm, ctas=4 * size(tp)\n  get %b at tp[1] into %y, engine=sm\n  put %x into %b at tp[0], engine=ce"), ir.Binding{})
	for _, want := range []string{"copy engine=sm ctas=8 %x f32[8 4] -> %b", "copy engine=sm r1:%b f32[8 4] -> %y", "copy %x f32[8 4] -> %b"} {
		if !strings.Contains(p.String(), want) {
			t.Errorf("no %q in\n%s", want, p)
		}
	}
}
