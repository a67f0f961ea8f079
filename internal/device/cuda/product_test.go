package cuda

import (
	"testing"

	"hocket.example/hocket/internal/device/cuda/gemm"
	"hocket.example/hocket/ir"
)

// TestRowsInGroups checks a linear whose rows are in groups with gaps, such as a chunk of every rank's rows. CuBLASLt
// computes it as a batched GEMM with one weight.
func TestRowsInGroups(t *testing.T) {
	const groups, rows, k, n = 4, 6, 32, 16
	p := gemm.Product{DType: ir.BF16, Depth: k, Ka: 1, Kb: 1, Dims: []gemm.Axis{
		{N: groups, Out: rows * n, A: 100 * k},
		{N: rows, Out: n, A: k},
		{N: n, Out: 1, B: k},
	}}
	p.Merge()
	g, ok := p.Problem()
	if !ok || g.Batch != groups || g.M != rows || g.N != n || g.K != k || g.BStep != 0 || g.AStep != 100*k || g.OutStep != rows*n || g.Am != k {
		t.Errorf("got %+v, %v", g, ok)
	}
	p.Dims = append([]gemm.Axis{{N: 3, Out: 1000, A: 5000}}, p.Dims...)
	if g, ok := p.Problem(); ok {
		t.Errorf("three axes of rows were merged to %+v", g)
	}
}
