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
