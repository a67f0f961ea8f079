package sim

import (
	"fmt"
	"strings"

	"hocket.example/hocket/internal/machine"
	"hocket.example/hocket/ir"
)

// Layer returns the pair of a collective and a bf16 GEMM with the global extents m, n, k. With an
// all_gather, the weight is cut along n; with a reduction, along k.
func Layer(comm ir.Op, ranks, m, n, k int64) Pair {
	p := Pair{Comm: comm, Ranks: ranks, Whole: 2 * m * k, DType: ir.BF16,
		Ops: []Op{{Name: "linear", M: m, N: n / ranks, K: k, DType: ir.BF16}}}
	if comm != ir.OpAllGather {
		p.Whole, p.Ops[0].N, p.Ops[0].K = 2*m*n, n, k/ranks
	}
	return p
}

// Named predicts a pair under the strategy with the given name, for example "chunked(4)". For "ahead", Named assumes
// one GEMM over the whole gathered operand, within a sequence of such pairs.
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
