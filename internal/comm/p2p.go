package comm

import (
	"fmt"

	"hocket.example/hocket/internal/device"
)

// Pair is one matched send and receive of a run.
type Pair struct {
	SrcRank, DstRank int
	Src, Dst         device.View
}

// Post is one side of a pair within a group.
type Post struct {
	Pair int
	Send bool
}

// Pairs runs matched sends and receives by rendezvous:
//
//	sender:   signal "ready" to the receiver … wait for "done"
//	receiver: wait for "ready", copy from the sender's memory, signal "done"
//
// A send's buffer is therefore in use until the receiver has copied it, and a receive's buffer is not written before
// the sender is ready. Two ungrouped sends of ranks to each other wait forever, as the language specifies. Each pair
// has one counter at each end, which is raised once per run: run k waits for k+1. Consecutive runs need no other
// synchronisation (S13), because "ready" of run k+1 follows "done" of run k on the sender's stream.
type Pairs struct {
	world    device.World
	pairs    []Pair
	ready    []int // index of the pair's counter among the receiver's counters
	done     []int // index of the pair's counter among the sender's counters
	counters []device.Counters
	lanes    map[device.Stream][]lane
}

// OpenPairs checks the pairs and allocates their counters.
func OpenPairs(w device.World, pairs []Pair) (*Pairs, error) {
	p := &Pairs{world: w, lanes: map[device.Stream][]lane{}, pairs: make([]Pair, len(pairs)), ready: make([]int, len(pairs)), done: make([]int, len(pairs))}
	need := make([]int, w.Ranks())
	for i, pr := range pairs {
		if err := pr.match(); err != nil {
			return nil, err
		}
		if pr.Src.Elements() > 0 {
			if err := w.Device(pr.DstRank).PrepareCopy(pr.Dst, pr.Src); err != nil {
				return nil, err
			}
		}
		p.pairs[i] = pr
		p.ready[i] = need[pr.DstRank]
		need[pr.DstRank]++
		p.done[i] = need[pr.SrcRank]
		need[pr.SrcRank]++
	}
	p.counters = make([]device.Counters, len(need))
	for r, n := range need {
		if n == 0 {
			continue
		}
		c, err := w.Device(r).NewCounters(n)
		if err != nil {
			p.Close()
			return nil, fmt.Errorf("counters of sends and receives: %w", err)
		}
		p.counters[r] = c
	}
	return p, nil
}

// match gives both views of a pair the same shape, because the operands of a send and its receive may be dense tensors
// of different shapes with the same number of elements.
func (p *Pair) match() error {
	n := p.Src.Elements()
	switch {
	case p.Src.DType != p.Dst.DType:
		return fmt.Errorf("rank %d sends %s, rank %d receives %s", p.SrcRank, p.Src.DType, p.DstRank, p.Dst.DType)
	case n != p.Dst.Elements():
		return fmt.Errorf("rank %d sends %d elements, rank %d receives %d elements", p.SrcRank, n, p.DstRank, p.Dst.Elements())
	case dense(p.Src) && dense(p.Dst):
		p.Src, p.Dst = flat(p.Src, 0, n), flat(p.Dst, 0, n)
	}
	return nil
}

// Close releases the counters. No issued group may still be running.
func (p *Pairs) Close() {
	for _, c := range p.counters {
		if c != nil {
			c.Release()
		}
	}
	p.counters = nil
}
