package image

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/plan"
)

// checkNodes returns an error if a command of one rank uses the memory or the counters of a rank on another node.
// Collectives between nodes are permitted, because their channels use the transport.
func checkNodes(p *plan.Plan, w device.World) error {
	if w.Transport() == "" {
		return nil
	}
	for i := range p.Cmds {
		c := &p.Cmds[i]
		what, peer := "", c.Rank
		advice := "collectives go through " + w.Transport()
		switch c.Kind {
		case plan.Copy:
			what, peer = "copies to or from", c.Peer
		case plan.Signal:
			what, peer = "signals", c.Peer
		case plan.Group:
			for _, t := range c.Group {
				pair := &p.Pairs[t.Pair]
				for _, r := range []int32{pair.Src.Rank, pair.Dst.Rank} {
					if w.Node(int(r)) != w.Node(int(c.Rank)) {
						what, peer = "sends to or receives from", r
						advice = "a permute goes through " + w.Transport()
					}
				}
			}
		}
		if peer < 0 || w.Node(int(peer)) == w.Node(int(c.Rank)) {
			continue
		}
		return fmt.Errorf("%s: rank %d on node %d %s rank %d on node %d, and nodes share no memory: use puts, gets, "+
			"signals, sends and the strategy exchange only on axes inside a node, the inner axes of the mesh; %s: %w",
			p.Where(int64(i)), c.Rank, w.Node(int(c.Rank)), what, peer, w.Node(int(peer)), advice, device.ErrUnsupported)
	}
	return nil
}
