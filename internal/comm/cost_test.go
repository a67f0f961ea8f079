package comm

import (
	"testing"

	"hocket.example/hocket/internal/machine"
	"hocket.example/hocket/ir"
)

// TestHierarchicalCost checks a prediction by hand. In an all_gather of four members on two nodes every byte crosses
// once: half of the gathered tensor, 4 MiB, crosses to each node at 2 GB/s. For collectives that hierarchical does not
// support, the cost is that of each member fetching its data by itself.
func TestHierarchicalCost(t *testing.T) {
	d, err := machine.Load("h200x4")
	if err != nil {
		t.Fatal(err)
	}
	d.Nodes = []int{0, 0, 1, 1}
	d.Across = &machine.Across{Latency: 10, Bandwidth: 1, NICs: 2}
	d.Costs = Costs()
	mib := int64(1 << 20)
	gather := machine.Collective{Op: ir.OpAllGather, DType: ir.BF16, Members: 4, Message: 8 * mib, Moved: 6 * mib}
	sum := machine.Collective{Op: ir.OpAllReduce, Red: ir.Sum, DType: ir.BF16, Members: 4, Message: 8 * mib, Moved: 12 * mib}
	free, whole, pinned := sum, sum, gather
	free.AnyOrder, whole.DType, pinned.Algorithm = true, ir.I32, "across"
	small, average := gather, whole
	small.Message, small.Moved, average.Red = 1024, 768, ir.Avg
	for _, tc := range []struct {
		what     string
		c        machine.Collective
		team     []int
		from, to float64
	}{
		{"gather", gather, []int{0, 1, 2, 3}, 2100, 2200},
		{"gather, interleaved", gather, []int{0, 2, 1, 3}, 2100, 2200},
		{"gather by another", pinned, []int{0, 1, 2, 3}, 4190, 4210},
		{"small gather", small, []int{0, 1, 2, 3}, 10, 11},
		{"sum in any order", free, []int{0, 1, 2, 3}, 4200, 4300},
		{"sum of integers", whole, []int{0, 1, 2, 3}, 4200, 4300},
		{"average of integers", average, []int{0, 1, 2, 3}, 8400, 8500},
		{"sum", sum, []int{0, 1, 2, 3}, 8400, 8500},
		{"uneven nodes", machine.Collective{Op: ir.OpAllGather, DType: ir.BF16, Members: 3, Message: 3 * mib, Moved: 2 * mib},
			[]int{0, 1, 2}, 1050, 1070},
		{"one node", gather, []int{0, 1}, 0, 100},
	} {
		d.Span(&tc.c, tc.team)
		if got := d.CollectiveTime(&tc.c); got < tc.from || got > tc.to {
			t.Errorf("%s: %v µs, want %v to %v", tc.what, got, tc.from, tc.to)
		}
	}
}
