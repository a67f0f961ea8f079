package sim

import (
	"math"
	"strings"
	"testing"

	"hocket.example/hocket/internal/machine"
	"hocket.example/hocket/ir"
)

func h200(t *testing.T) *machine.Description {
	t.Helper()
	m, err := machine.Load("h200x4")
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func layer(comm ir.Op, m, n, k int64) Pair { return Layer(comm, 4, m, n, k) }

// TestAgainstMeasured compares predictions with measurements on 4 H200: of sequential, and of a
// prototype that pushes directly between ranks.
func TestAgainstMeasured(t *testing.T) {
	m := h200(t)
	const percent = 16
	for _, c := range []struct {
		comm      ir.Op
		m, n, k   int64
		seq, push float64
	}{
		{ir.OpAllGather, 8192, 28672, 8192, 1552, 1221},
		{ir.OpAllGather, 8192, 8192, 28672, 2306, 1303},
		{ir.OpAllGather, 32768, 8192, 16384, 5195, 2846},
		{ir.OpAllGather, 8192, 49152, 12288, 3645, 3124},
		{ir.OpAllGather, 2048, 28672, 8192, 446, 333},
		{ir.OpAllGather, 2048, 8192, 28672, 604, 420},
		{ir.OpReduceScatter, 8192, 28672, 8192, 2428, 1566},
		{ir.OpReduceScatter, 8192, 8192, 28672, 1620, 1320},
		{ir.OpReduceScatter, 32768, 8192, 16384, 4180, 3211},
		{ir.OpReduceScatter, 2048, 28672, 8192, 636, 457},
		{ir.OpReduceScatter, 2048, 8192, 28672, 411, 347},
		{ir.OpAllReduce, 8192, 28672, 8192, 3313, 0},
		{ir.OpAllReduce, 8192, 8192, 28672, 1888, 0},
		{ir.OpAllReduce, 2048, 8192, 28672, 482, 0},
	} {
		p := layer(c.comm, c.m, c.n, c.k)
		seq, err := Sequential(p, m)
		if err != nil {
			t.Fatal(err)
		}
		push, err := Exchange(p, 1, 0, m)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s %d,%d,%d: sequential %.0f (measured %.0f), exchange %.0f (%.0f)", c.comm, c.m, c.n, c.k, seq.Time,
			c.seq, push.Time, c.push)
		if math.Abs(seq.Time-c.seq) > c.seq*percent/100 {
			t.Errorf("%s %d,%d,%d: sequential %.0f µs, measured %.0f", c.comm, c.m, c.n, c.k, seq.Time, c.seq)
		}
		if c.push > 0 && math.Abs(push.Time-c.push) > c.push*percent/100 {
			t.Errorf("%s %d,%d,%d: exchange %.0f µs, measured %.0f", c.comm, c.m, c.n, c.k, push.Time, c.push)
		}
	}
}

// TestChunksOfNCCL checks that chunked all-reduces by NCCL are predicted to gain nothing, as
// measured: NCCL needs the multiprocessors that the GEMM needs.
func TestChunksOfNCCL(t *testing.T) {
	m := h200(t)
	for _, c := range []struct {
		m, n, k int64
		us      [3]float64 // measured with 2, 4 and 8 chunks
	}{
		{8192, 28672, 8192, [3]float64{3389, 3459, 3537}},
		{8192, 8192, 28672, [3]float64{1899, 1902, 2043}},
		{2048, 8192, 28672, [3]float64{524, 562, 673}},
	} {
		p := layer(ir.OpAllReduce, c.m, c.n, c.k)
		for i, chunks := range []int64{2, 4, 8} {
			got, err := Chunked(p, chunks, m)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d,%d,%d in %d chunks: %.0f µs, measured %.0f", c.m, c.n, c.k, chunks, got.Time, c.us[i])
			if math.Abs(got.Time-c.us[i]) > 0.1*c.us[i] {
				t.Errorf("%d,%d,%d in %d chunks: %.0f µs, measured %.0f", c.m, c.n, c.k, chunks, got.Time, c.us[i])
			}
		}
	}
}

// TestAheadAgainstMeasured compares predictions of strategy ahead with measurements of a chain of
// pairs on 4 H200. Times are multiples of the bound (docs/measured/studies.tsv).
func TestAheadAgainstMeasured(t *testing.T) {
	m := h200(t)
	const percent = 3
	for _, c := range []struct {
		m, n, k int64
		bounds  float64
	}{{2048, 28672, 8192, 1.063}, {2048, 8192, 28672, 1.138}, {8192, 10240, 8192, 1.086}} {
		p := layer(ir.OpAllGather, c.m, c.n, c.k)
		got, err := Ahead(p, true, m)
		if err != nil {
			t.Fatal(err)
		}
		bound := max(p.Ops[0].Time(m), m.CopyTime(p.Moved()))
		if over := got.Time / bound; math.Abs(over-c.bounds) > c.bounds*percent/100 {
			t.Errorf("%d,%d,%d: %.3f bounds, measured %.3f", c.m, c.n, c.k, over, c.bounds)
		} else {
			t.Logf("%d,%d,%d: %.3f bounds, measured %.3f", c.m, c.n, c.k, over, c.bounds)
		}
	}
}

// TestBeyondNumbers checks that an infinite or NaN time ends in an error, not in an endless loop.
func TestBeyondNumbers(t *testing.T) {
	for _, us := range []float64{math.Inf(1), math.NaN()} {
		m := *h200(t)
		m.Launch = us
		if p, err := Sequential(layer(ir.OpAllGather, 2048, 8192, 8192), &m); err == nil ||
			!strings.Contains(err.Error(), "infinite or not numbers") {
			t.Errorf("launches of %v µs: %v µs, %v", us, p.Time, err)
		}
	}
}
