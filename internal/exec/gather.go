package exec

import (
	"context"
	"errors"
	"fmt"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/world"
)

// gatherer collects output blocks that other processes hold at the end of a batch. Each process copies its own blocks
// to a shared-memory segment that the other processes of its node map, and sends them to the processes of other nodes.
type gatherer struct {
	peers  *world.World
	owners []int            // by rank
	at     [][]outputAt     // by process: positions of blocks in the process's segment
	segs   []*world.Segment // segments by process; for a process on another node, a local segment for received data
	wires  uint64           // number of the first wire; there is one wire for each ordered pair of processes
}

// outputAt is the position of an output block in a segment.
type outputAt struct {
	output, part int // index of the output, and of the block in the output
	off, bytes   int64
}

// newGatherer creates this process's segment and maps the segments of the other processes.
func newGatherer(ctx context.Context, peers *world.World, p *plan.Plan, outputs []plan.IO) (*gatherer, error) {
	owners, err := peers.Owners(p.Ranks)
	if err != nil {
		return nil, err
	}
	n := peers.Processes()
	g := &gatherer{peers: peers, owners: owners, at: make([][]outputAt, n), wires: peers.NewWires(n * n)}
	sizes := make([]int64, peers.Processes())
	for i := range outputs {
		for k, part := range outputs[i].Parts {
			to, bytes := owners[part.Ref.Rank], part.Ref.Bytes()
			g.at[to] = append(g.at[to], outputAt{i, k, sizes[to], bytes})
			sizes[to] += plan.Aligned(bytes)
		}
	}
	// Two programs of one process may have equal keys, but all processes create the segments of these programs in the
	// same order.
	own, err := world.NewSegment(int(max(sizes[peers.Process()], 1)))
	if err != nil {
		return nil, err
	}
	g.segs = make([]*world.Segment, peers.Processes())
	g.segs[peers.Process()] = own
	key := fmt.Sprintf("outputs of %s", p.HashString())
	if err := peers.Share(key, own); err != nil {
		return nil, errors.Join(err, own.Close())
	}
	for q := range g.segs {
		if g.segs[q] != nil {
			continue
		}
		if g.far(q) {
			g.segs[q], err = world.NewSegment(int(max(sizes[q], 1)))
		} else {
			g.segs[q], err = peers.Map(ctx, q, key)
		}
		if err != nil {
			g.close()
			return nil, err
		}
	}
	return g, nil
}

// gather completes the outputs of a run. All processes first copy their blocks to the segments, and at the end wait
// until each process has read the other processes' blocks.
func (g *gatherer) gather(ctx context.Context, f *frame) error {
	me := g.peers.Process()
	for _, a := range g.at[me] {
		copy(g.segs[me].Bytes()[a.off:], f.out[a.output].Block(a.part))
	}
	if err := g.exchange(ctx); err != nil {
		return err
	}
	if err := g.meet(ctx, "blocks of outputs are there"); err != nil {
		return err
	}
	for q := range g.segs {
		for _, a := range g.at[q] {
			if q != me {
				copy(f.out[a.output].Block(a.part), g.segs[q].Bytes()[a.off:a.off+a.bytes])
			}
		}
	}
	return g.meet(ctx, "blocks of outputs are read")
}

// far reports whether a process is on another node.
func (g *gatherer) far(process int) bool {
	return g.peers.Node(process) != g.peers.Node(g.peers.Process())
}

// exchange sends this process's blocks to the processes of other nodes, and waits for the blocks of those processes.
func (g *gatherer) exchange(ctx context.Context) error {
	me, n := g.peers.Process(), len(g.segs)
	var receipts []*world.Receipt
	for q, s := range g.segs {
		if !g.far(q) || len(g.at[q]) == 0 {
			continue
		}
		r, err := g.peers.Expect(q, g.wires+uint64(q*n+me), s.Bytes())
		if err != nil {
			return err
		}
		receipts = append(receipts, r)
	}
	for q := range g.segs {
		if !g.far(q) || len(g.at[me]) == 0 {
			continue
		}
		if err := g.peers.Send(ctx, q, g.wires+uint64(me*n+q), g.segs[me].Bytes()); err != nil {
			return err
		}
	}
	for _, r := range receipts {
		if err := r.Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (g *gatherer) meet(ctx context.Context, step string) error {
	_, err := g.peers.Agree(ctx, step, []byte("here"))
	return err
}

func (g *gatherer) close() {
	if g == nil {
		return
	}
	for _, s := range g.segs {
		if s != nil {
			s.Close()
		}
	}
}
