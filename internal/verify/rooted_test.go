package verify_test

import (
	"fmt"
	"testing"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/verify"
	"hocket.example/hocket/ir"
)

// rootedPrograms use the collectives that have a root or a permutation, which no example uses. The programs contain all
// collectives with a root or a permutation, on two streams, in loops with a varying root, and under a condition.
var rootedPrograms = map[string]string{
	"broadcasts": `
mesh tp[3]
func f(%x: f32[12/tp, 4]) -> f32[12, 4] {
  %s = stream[2]
  %y = alloc f32[12, 4]
  for %j in 0..2 { on %s[%j] { wait main } }
  for %i in 0..3 {
    on %s[%i mod 2] {
      %yi = chunk %y, axis=0, %i of 3
      broadcast %x into %yi, over=tp, root=%i
      relu %yi into %yi
    }
  }
  for %j in 0..2 { wait %s[%j] }
  return %y
}`,
	"there and back": `
mesh tp[3]
func f(%x: f32[12, 4]) -> f32[12, 4] {
  %s = stream
  %p = alloc f32[4, 4]
  %g = alloc f32[12, 4]
  %z = alloc f32[12, 4]
  on %s {
    wait main
    scatter %x into %p, over=tp, root=1
    relu %p into %p
    gather %p into %g, over=tp, root=2
    if rank(tp) == 2 { add %g, %g into %z }
    broadcast %z into %z, over=tp, root=2
  }
  wait %s
  return %z
}`,
	"sum at a root": `
mesh tp[3]
func f(%x: f32[5, 4]) -> f32[5, 4] {
  %s = stream
  %r = alloc f32[5, 4]
  %y = alloc f32[5, 4]
  %z = alloc f32[5, 4]
  relu %x into %y
  on %s {
    wait main
    reduce %y into %r, over=tp, op=sum, root=0
    if rank(tp) == 0 { relu %r into %r }
  }
  wait %s
  broadcast %r into %z, over=tp, root=0
  return %z
}`,
	"rotation": `
mesh tp[3]
func f(%x: f32[12/tp, 4]) -> f32[12, 4] {
  %s = stream
  %got = event[3]
  %have = alloc[3] f32[4, 4]
  %y = alloc f32[12, 4]
  copy %x into %have[0]
  on %s {
    wait main
    for %i in 0..2 {
      permute %have[%i] into %have[%i + 1], over=tp, to=(rank(tp) + 1) mod 3, from=(rank(tp) + 2) mod 3
      record %got[%i + 1]
    }
  }
  for %i in 0..3 {
    if %i > 0 { wait %got[%i] }
    %yi = chunk %y, axis=0, (rank(tp) + 3 - %i) mod 3 of 3
    relu %have[%i] into %yi
  }
  return %y
}`,
	"a line, not a ring": `
mesh tp[4]
func f(%x: f32[4, 4]) -> f32[4, 4] {
  %a = alloc f32[4, 4]
  %y = alloc f32[4, 4]
  fill into %a, value=0
  if rank(tp) == 0 { permute %x into %a, over=tp, to=1, from=0-1 }
  if rank(tp) == 1 { permute %x into %a, over=tp, to=0-1, from=0 }
  if rank(tp) > 1 { permute %x into %a, over=tp, to=0-1, from=0-1 }
  broadcast %a into %y, over=tp, root=1
  return %y
}`,
}

// rooted returns the plans of the rootedPrograms.
func rooted(t testing.TB) []lowering {
	t.Helper()
	var out []lowering
	for name, src := range rootedPrograms {
		prog, p, err := build(parse(t, name+".hkt", src), ir.Binding{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if r := verify.Plan(p, verify.Options{Prog: prog}); r.Verdict != verify.Proved || !r.SerialSafe {
			t.Errorf("%s is %v (%s)\n%s", name, r.Verdict, r.Reason, r.Diagnostics(prog))
		}
		out = append(out, lowering{name, prog, "f", ir.Binding{}, p})
	}
	return out
}

// nextMember changes a collective's root=, to= or from= to the next member, on all ranks or only on the first. The
// result is false if the collective has none of these attributes.
func nextMember(s *ir.Stmt, attr string, alone bool) bool {
	a := s.Attr(attr)
	if a == nil || len(s.Over()) != 1 {
		return false
	}
	axis := s.Over()[0]
	step := ir.Int(1)
	if alone { // (P - rank) / P is 1 on rank 0, 0 on others
		step = ir.FloorDiv(ir.Sub(ir.Size(axis), ir.Rank(axis)), ir.Size(axis))
	}
	a.Exprs = []*ir.Expr{ir.Mod(ir.Add(a.Exprs[0], step), ir.Size(axis))}
	return true
}

// otherMembers gives a planned collective another root, or gives one member of a permute another destination or source.
func otherMembers(p *plan.Plan, coll int32, add func(kind, what string, m *plan.Plan)) {
	c := &p.Colls[coll]
	n := int32(len(c.Parts))
	if n < 2 {
		return
	}
	what := fmt.Sprintf("collective %d", coll)
	switch c.Op {
	case ir.OpBroadcast, ir.OpReduce, ir.OpGather, ir.OpScatter:
		m := clonePlan(p)
		m.Colls[coll].Root = (c.Root + 1) % n
		add("plan: another root", what, m)
	case ir.OpPermute:
		for i := range c.Parts {
			for _, to := range []bool{true, false} {
				m := clonePlan(p)
				parts := append([]plan.CollPart{}, c.Parts...)
				if to {
					parts[i].To = (parts[i].To + 1) % n
				} else {
					parts[i].From = (parts[i].From + 1) % n
				}
				m.Colls[coll].Parts = parts
				add("plan: another way of a permute", fmt.Sprintf("%s, member %d", what, i), m)
			}
		}
	}
}
