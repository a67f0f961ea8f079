package cuda

import (
	"testing"

	"hocket.example/hocket/ir"
)

// TestRowsInGroups has a linear whose rows lie in groups with gaps, as a chunk of
// every rank's rows does: cuBLASLt takes it as a batch with one weight.
func TestRowsInGroups(t *testing.T) {
	const groups, rows, k, n = 4, 6, 32, 16
	p := product{dt: ir.BF16, depth: k, ka: 1, kb: 1, dims: []axis{
		{n: groups, out: rows * n, a: 100 * k},
		{n: rows, out: n, a: k},
		{n: n, out: 1, b: k},
	}}
	p.merge()
	g, ok := p.gemm()
	if !ok || g.batch != groups || g.m != rows || g.n != n || g.k != k || g.bSt != 0 || g.aStep != 100*k || g.outStep != rows*n || g.am != k {
		t.Errorf("got %+v, %v", g, ok)
	}
	p.dims = append([]axis{{n: 3, out: 1000, a: 5000}}, p.dims...)
	if g, ok := p.gemm(); ok {
		t.Errorf("three axes of rows taken as %+v", g)
	}
}
