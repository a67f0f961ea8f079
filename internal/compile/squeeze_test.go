package compile

import (
	"errors"
	"testing"

	"hocket.example/hocket/internal/planner"
	"hocket.example/hocket/ir"
)

// TestSqueeze reduces the memory of an overlapped program: the buffers of its chunks share memory until the plan needs
// no more than the sequential plan and one chunk. Each plan is proved.
func TestSqueeze(t *testing.T) {
	const src = `mesh tp[2]
func f(%x: bf16[T, H], %w: bf16[H, H]) -> bf16[T, H] {
  %s = stream
  %y = alloc bf16[T, H]
  for %i in 0..8 {
    %xi = chunk %x, axis=0, %i of 8
    %yi = chunk %y, axis=0, %i of 8
    %p = alloc bf16[extent(%xi, 0), H]
    linear %xi, %w into %p
    on %s {
      wait main
      all_reduce %p into %yi, over=tp, op=sum
    }
  }
  wait %s
  return %y
}
`
	const chunk = 1024 / 8 * 256 * 2
	u, err := Build(check(t, "dim T = 1024\ndim H = 256\n"+src), Options{Machine: "h200x4"})
	if err != nil {
		t.Fatal(err)
	}
	p, err := u.Plan(ir.Binding{})
	if err != nil {
		t.Fatal(err)
	}
	inputs := p.Memory.Inputs
	if want := inputs + 8*chunk + 8*chunk; p.ArenaBytes != want {
		t.Fatalf("%d bytes without a budget, want %d", p.ArenaBytes, want)
	}
	for _, chunks := range []int64{8, 5, 3, 2, 1} {
		budget := inputs + (8+chunks)*chunk
		q, waits, before, after, err := u.Squeeze(t.Context(), p, budget)
		if err != nil {
			t.Fatalf("%d chunks: %v", chunks, err)
		}
		t.Logf("%d chunks: %d bytes, %d waits, %.1f µs, %.1f before", chunks, q.ArenaBytes, len(waits), after, before)
		if q.ArenaBytes > budget || after < 0.8*before { // without overlap, single operations are faster
			t.Errorf("%d chunks: %d bytes of %d, %v µs after %v", chunks, q.ArenaBytes, budget, after, before)
		}
		if err := proved(q, u.Lowered); err != nil {
			t.Errorf("%d chunks: %v", chunks, err)
		}
		// Each chunk waits for the chunk that precedes it by the number of buffers, which implies all other waits.
		if len(waits) > 8-int(chunks) {
			t.Errorf("%d chunks: %d waits, want at most %d", chunks, len(waits), 8-chunks)
		}
		if q == p != (chunks == 8) {
			t.Errorf("%d chunks: the plan was changed, or was not", chunks)
		}
	}
	q, _, _, _, err := u.Squeeze(t.Context(), p, inputs+8*chunk)
	if !errors.Is(err, planner.ErrBudget) || q.ArenaBytes != inputs+9*chunk {
		t.Errorf("less than a chunk: %v, %d bytes", err, q.ArenaBytes)
	}
}
