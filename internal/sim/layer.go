package sim

import (
	"fmt"
	"strings"

	"hocket.example/hocket/internal/machine"
	"hocket.example/hocket/ir"
)

// Layer returns the pair of a GEMM m, n, k of bf16, of extents over all ranks: an all_gather's weight is cut along n,
// a reduction's along k.
func Layer(comm ir.Op, ranks, m, n, k int64) Pair {
	p := Pair{Comm: comm, Ranks: ranks, Whole: 2 * m * k, DType: ir.BF16,
		Ops: []Op{{Name: "linear", M: m, N: n / ranks, K: k, DType: ir.BF16}}}
	if comm != ir.OpAllGather {
		p.Whole, p.Ops[0].N, p.Ops[0].K = 2*m*n, n, k/ranks
	}
	return p
}

// Named predicts a pair under the strategy of that name: "chunked(4)". A gather that goes ahead is taken to be one of
// many, computed with as a whole.
func Named(p Pair, strategy string, m *machine.Description) (Prediction, error) {
	word, _, counted := strings.Cut(strategy, "(")
	count, own := int64(1), int64(0)
	if _, err := fmt.Sscanf(strategy, "exchange(1,%d)", &own); err == nil {
		return Exchange(p, 1, own, m)
	}
	if counted {
		if _, err := fmt.Sscanf(strategy, word+"(%d)", &count); err != nil || count < 1 {
			return Prediction{}, fmt.Errorf("strategy %q: no number of parts", strategy)
		}
	}
	switch word {
	case "sequential":
		return Sequential(p, m)
	case "chunked":
		return Chunked(p, count, m)
	case "exchange":
		return Exchange(p, count, 0, m)
	case "ahead":
		return Ahead(p, true, m)
	}
	return Prediction{}, fmt.Errorf("there is no strategy %q", strategy)
}

// Alone is what one of so many parts of a pair takes by itself: its GEMM and its collective, in microseconds.
type Alone struct {
	Parts            int64
	GEMM, Collective float64
}

// Timed returns a description with a pair's own GEMM and collective as they were timed. Copies, sums, signals and
// what one costs beside another are as described.
func Timed(p Pair, list []Alone, d *machine.Description) *machine.Description {
	out := *d
	out.KernelBesideGEMM = d.Contested(p.Collective(1, d))
	out.GEMM.Measured = nil
	// No GEMM is faster than this peak says: those that were timed are not to be slowed down to the described one.
	out.GEMM.Peak = map[string]float64{d.GEMM.Of: 4 * d.GEMM.Peak[d.GEMM.Of]}
	var points []machine.Point
	for _, a := range list {
		o := p.Ops[0]
		out.GEMM.Measured = append(out.GEMM.Measured,
			[4]float64{float64((o.M + a.Parts - 1) / a.Parts), float64(o.N), float64(o.K), a.GEMM})
		points = append([]machine.Point{{float64(p.Whole / a.Parts), a.Collective}}, points...)
	}
	for i := 1; i < len(points); i++ { // tables do not fall
		points[i][1] = max(points[i][1], points[i-1][1])
	}
	out.Times = fixed(points)
	return &out
}

// fixed are the times of one kind of collective.
type fixed []machine.Point

func (f fixed) Points(*machine.Collective) []machine.Point { return f }
