package cuda

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

// Settle has all processes compute products by the same algorithms, which each has timed for itself: those of
// the process with the lowest number that has the product. Sums are then taken in one order on all ranks.
func (w *world) Settle(ctx context.Context) ([]string, error) {
	if w.peers == nil {
		return nil, nil
	}
	if err := w.settleProducts(ctx); err != nil {
		return nil, err
	}
	w.mu.Lock()
	lines := w.alike()
	w.mu.Unlock()
	if w.peers.Nodes() == 1 {
		return lines, nil
	}
	// Where things lie only those need have alike that map them.
	return nil, w.peers.SameListOfNode(ctx, w.peers.Name+": memory and kernels of the node", lines)
}

func (w *world) settleProducts(ctx context.Context) error {
	w.mu.Lock()
	own := map[gemm.Sum][]byte{}
	for _, s := range w.sites {
		maps.Copy(own, s.gemms.Chosen())
	}
	w.mu.Unlock()
	all, err := w.agreeProducts(ctx, own)
	if err != nil {
		return err
	}
	defer w.guard.Exclusive()()
	for _, s := range w.sites {
		if err := s.bound(func() error { return s.gemms.Adopt(all) }); err != nil {
			return fmt.Errorf("cuda: %w", err)
		}
	}
	return nil
}

// agreeProducts collects what all processes have chosen, in as many rounds as the one with the most takes.
func (w *world) agreeProducts(ctx context.Context, own map[gemm.Sum][]byte) (map[gemm.Sum][]byte, error) {
	const entry = len(gemm.Sum{}) + gemm.ChosenBytes
	const most = procs.MaxValue / entry
	sums := slices.SortedFunc(maps.Keys(own), func(a, b gemm.Sum) int { return bytes.Compare(a[:], b[:]) })
	var count [8]byte
	binary.LittleEndian.PutUint64(count[:], uint64(len(sums)))
	counts, err := w.peers.Agree(ctx, w.peers.Name+": how many products", count[:])
	if err != nil {
		return nil, err
	}
	rounds := uint64(0)
	for p, c := range counts {
		if len(c) != len(count) {
			return nil, fmt.Errorf("process %d says of its products %q", p, c)
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
			value = []byte{0} // this process has named all of its own
		}
		all, err := w.peers.Agree(ctx, w.peers.Name+": products", value)
		if err != nil {
			return nil, err
		}
		for p, v := range all {
			for ; len(v) >= entry; v = v[entry:] {
				s := gemm.Sum(v[:len(gemm.Sum{})])
				if of, there := lowestOf[s]; !there || p < of {
					lowest[s], lowestOf[s] = slices.Clone(v[len(gemm.Sum{}):entry]), p
				}
			}
		}
	}
	return lowest, nil
}
