package bench

import (
	"math"
	"testing"

	"hocket.example/hocket/internal/machine"
	"hocket.example/hocket/internal/sim"
	"hocket.example/hocket/ir"
)

// TestBounds compares the bounds of a program and its commands with numbers computed by hand.
func TestBounds(t *testing.T) {
	text := `mesh tp[2]
func step(
  %ids: i32[2], %table: f32[100, 16], %w: f32[16, 16], %q: f32[2, 4, 8], %k: f32[6, 2, 8], %v: f32[6, 2, 8],
  %rows: f32[2, 16], %at: i32[2], %kept: inout f32[50, 16], %p: f32[2, 16]
) -> (f32[2, 16], f32[2, 4, 8]) {
  %x = embedding %ids, %table
  %y = linear %x, %w
  %z = linear %y, %w
  %r = alloc f32[2, 16]
  all_reduce %p into %r, over=tp, op=sum
  %s = add %z, %r
  index_copy %rows, %at into %kept, axis=0
  %a = attention %q, %k, %v, causal=true
  return %s, %a
}
`
	p, err := build(nil, text, "", 2)
	if err != nil {
		t.Fatal(err)
	}
	m, err := machine.Load("h100x2")
	if err != nil {
		t.Fatal(err)
	}
	const f32 = 4
	rates := m.Rates()
	if rates.Memory != 2900 || math.Abs(rates.Wire-float64(1<<30)/2711e3) > 1e-9 {
		t.Fatalf("rates %+v", rates)
	}
	read := f32 * (2 /* ids */ + 2*16 /* of the table */ + 16*16 /* w, once */ + 2*4*8 + 2*6*2*8 + 2*16 + 2 /* at */ +
		2*16 /* p */)
	write := f32 * (2*16 /* of kept */ + 2*16 + 2*4*8)
	linear := 2.0 * 2 * 16 * 16
	attention := 4.0 * 4 * 8 * (5 + 6) // the first query sees 5 keys
	moved := f32 * 2 * 16              // twice half of a 16×2 tensor
	b := sim.NewBounds(p, m)
	near := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 1e-9*want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	whole := b.Whole()
	near("memory", whole.Memory, float64(read+write)/2900e3)
	near("compute", whole.Compute, (2*linear+attention)/52e6)
	near("wire", whole.Wire, float64(moved)/(rates.Wire*1e3))
	if whole.By() != "wire" && whole.By() != "memory" {
		t.Errorf("by %s: %+v", whole.By(), whole)
	}
	of := func(op ir.Op) int {
		for i := range p.Cmds {
			if c := &p.Cmds[i]; c.Op == op {
				return i
			}
		}
		t.Fatalf("no %s in\n%s", op, p)
		return 0
	}
	near("embedding", b.Group([]int{of(ir.OpEmbedding)}).Memory, f32*float64(2+2*2*16)/2900e3)
	near("index_copy", b.Group([]int{of(ir.OpIndexCopy)}).Memory, f32*float64(2+2*2*16)/2900e3)
	near("attention", b.Group([]int{of(ir.OpAttention)}).Compute, attention/52e6)
	both := b.Group([]int{of(ir.OpEmbedding), of(ir.OpLinear)})
	near("embedding and linear", both.Memory, f32*float64(2+2*16+16*16+2*16)/2900e3)
}
