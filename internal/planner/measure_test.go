package planner

import (
	"math/bits"
	"testing"

	"pgregory.net/rapid"

	"hocket.example/hocket/ir"

	"hocket.example/hocket/internal/plan"
)

// TestBoundIsTheHeaviestAntichain compares Bound with the maximum over all sets of buffers, whose order it takes from
// the explicit graph.
func TestBoundIsTheHeaviestAntichain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		src := randomProgram(t)
		p, _, ds := try(src, ir.Binding{})
		if ds.HasErrors() {
			return
		}
		got, err := Measure(p)
		if err != nil {
			t.Fatal(err)
		}
		want := int64(0)
		for r := range p.Ranks {
			want = max(want, bruteBound(t, p, int32(r)))
		}
		if want += p.Memory.Inputs; got.Bound != want {
			t.Fatalf("bound %d, want %d\n%s\n%s", got.Bound, want, src, p)
		}
		sum := int64(0)
		for _, b := range got.BoundAt {
			sum += plan.Aligned(p.Buffers[b].Bytes)
		}
		if sum != got.Bound {
			t.Fatalf("the buffers at the bound take %d bytes, not %d", sum, got.Bound)
		}
		if p.ArenaBytes < got.Bound || got.Sequential > got.Bound || got.Sequential != p.Memory.Bound {
			t.Fatalf("peak %d, bound %d, sequential %d, live in issue order %d", p.ArenaBytes, got.Bound,
				got.Sequential, p.Memory.Bound)
		}
	})
}

func bruteBound(t *rapid.T, p *plan.Plan, rank int32) int64 {
	g := newOrderGraph(p)
	if err := g.close(); err != nil {
		t.Fatal(err)
	}
	uses := map[int32][]int{}
	for i := range p.Cmds {
		refs(p, &p.Cmds[i], func(r *plan.Ref) {
			if b := &p.Buffers[r.Buf]; r.Rank == rank && b.Role != plan.RoleInput && b.Bytes > 0 &&
				b.Space == plan.Arena {
				uses[r.Buf] = append(uses[r.Buf], i)
			}
		})
	}
	var ids []int32
	for b := range uses {
		ids = append(ids, b)
	}
	precedes := func(a, b int32) bool {
		for _, x := range uses[a] {
			for _, y := range uses[b] {
				if x >= y || !g.before(0, x, 0, y) {
					return false
				}
			}
		}
		return true
	}
	comparable := make([]uint, len(ids))
	for i := range ids {
		for j := range ids {
			if i != j && (precedes(ids[i], ids[j]) || precedes(ids[j], ids[i])) {
				comparable[i] |= 1 << j
			}
		}
	}
	best := int64(0)
	for set := uint(0); set < 1<<len(ids); set++ {
		sum, ok := int64(0), true
		for rest := set; rest != 0; rest &= rest - 1 {
			i := bits.TrailingZeros(rest)
			ok = ok && comparable[i]&set == 0
			sum += plan.Aligned(p.Buffers[ids[i]].Bytes)
		}
		if ok {
			best = max(best, sum)
		}
	}
	return best
}
