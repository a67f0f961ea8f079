package capi

import (
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/ir"
)

// TestWrongBlock checks the error for a whole tensor that is given as a rank's block.
func TestWrongBlock(t *testing.T) {
	layouts := []hocket.Layout{{Port: hocket.Port{Name: "up.bias", DType: ir.BF16, Shape: []int64{1024}}, Blocks: []hocket.Block{
		{Rank: 0, Shape: []int64{512}}, {Rank: 1, Lo: []int64{512}, Shape: []int64{512}}}}}
	p := Placed{Name: "up.bias", Rank: 1, DType: "bf16", Shape: []int64{1024}, Address: 256}
	const want = "wrong inputs: parameter up.bias, bf16[1024], has the block bf16[512] on rank 1, but bf16[1024] is given: " +
		"each process must pass the block of its rank, and set dims if the run has another size"
	if err := p.check(layouts, "parameter"); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	p.Shape = []int64{512}
	if err := p.check(layouts, "parameter"); err != nil {
		t.Error(err)
	}
}

// TestBoundBlocksConflict checks that bound blocks that runs update must not share memory with each other.
func TestBoundBlocksConflict(t *testing.T) {
	block := func(rank int, address, bytes uintptr, updated bool) *boundBlock {
		return &boundBlock{at: Placed{Rank: rank, Address: address}, bytes: bytes, updated: updated}
	}
	for _, c := range []struct {
		a, b *boundBlock
		want bool
	}{
		{block(0, 256, 64, true), block(0, 256, 64, true), true},
		{block(0, 256, 64, true), block(0, 319, 64, true), true},
		{block(0, 256, 64, true), block(0, 319, 64, false), false},
		{block(0, 256, 64, true), block(0, 320, 64, true), false},
		{block(0, 256, 64, true), block(1, 256, 64, true), false},
		{block(0, 256, 64, false), block(0, 256, 64, false), false},
	} {
		if c.a.conflicts(c.b) != c.want || c.b.conflicts(c.a) != c.want {
			t.Errorf("%+v and %+v: want %v", c.a, c.b, c.want)
		}
	}
}
