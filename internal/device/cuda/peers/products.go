package peers

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"hocket.example/hocket/internal/device/cuda/gemm"
	procs "hocket.example/hocket/internal/world"
)

// Products is the preparation of GEMMs on one GPU of this process.
type Products struct {
	*gemm.Host
	Bound func(func() error) error // runs a function with the GPU's context current
}

// SettleProducts makes all processes compute GEMMs with the same algorithms. It prepares a GEMM again if this process
// had chosen another algorithm than the agreed one. The function lock locks the world's mutex.
func SettleProducts(ctx context.Context, p *procs.Spread, lock func() (unlock func()), here []Products) error {
	unlock := lock()
	own := map[gemm.Sum][]byte{}
	for _, h := range here {
		maps.Copy(own, h.Chosen())
	}
	unlock()
	all, err := AgreeProducts(ctx, p, own)
	if err != nil {
		return err
	}
	defer lock()()
	for _, h := range here {
		if err := h.Bound(func() error { return h.Adopt(all) }); err != nil {
			return err
		}
	}
	return nil
}

// AgreeProducts returns, for each GEMM, the algorithm that all processes use, so that all ranks compute sums in the
// same order. Before, each process has measured and chosen for itself. Of different choices, that of the process with
// the lowest number is used. One choice overrides this rule: if any process runs linears with a common operand as
// separate launches, all processes do. The processes exchange their choices in several rounds; the process with the
// most choices determines the number of rounds.
func AgreeProducts(ctx context.Context, p *procs.Spread, own map[gemm.Sum][]byte) (map[gemm.Sum][]byte, error) {
	const entry = len(gemm.Sum{}) + gemm.ChosenBytes
	const most = procs.MaxValue / entry
	sums := slices.SortedFunc(maps.Keys(own), func(a, b gemm.Sum) int { return bytes.Compare(a[:], b[:]) })
	var count [8]byte
	binary.LittleEndian.PutUint64(count[:], uint64(len(sums)))
	counts, err := p.Agree(ctx, p.Name+": how many products", count[:])
	if err != nil {
		return nil, err
	}
	rounds := uint64(0)
	for process, c := range counts {
		if len(c) != len(count) {
			return nil, fmt.Errorf("process %d sent a malformed list of its GEMMs: %q", process, c)
		}
		rounds = max(rounds, (binary.LittleEndian.Uint64(c)+uint64(most)-1)/uint64(most))
	}
	lowest := map[gemm.Sum][]byte{}
	lowestOf := map[gemm.Sum]int{}
	for i := range rounds {
		var value []byte
		lo := min(len(sums), int(i)*most)
		for _, s := range sums[lo:min(len(sums), lo+most)] {
			value = append(append(value, s[:]...), own[s]...)
		}
		if value == nil {
			value = []byte{0} // this process has no more choices to send
		}
		all, err := p.Agree(ctx, p.Name+": products", value)
		if err != nil {
			return nil, err
		}
		for process, v := range all {
			for ; len(v) >= entry; v = v[entry:] {
				s := gemm.Sum(v[:len(gemm.Sum{})])
				choice := v[len(gemm.Sum{}):entry]
				of, there := lowestOf[s]
				if !there || gemm.Apart(choice) || process < of && !gemm.Apart(lowest[s]) {
					lowest[s], lowestOf[s] = slices.Clone(choice), process
				}
			}
		}
	}
	return lowest, nil
}
