package cuda

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/coll"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// ncclName is NVIDIA's library. It adds in an order of its own: where that can change bits it
// is only for those who allow any order.
const ncclName = "nccl"

// supportsNCCL returns nil, or why NCCL cannot do c.
func supportsNCCL(t *team, c *coll.Collective) error {
	if t.w.peers != nil {
		return fmt.Errorf("%w: NCCL between processes", device.ErrUnsupported)
	}
	lib, err := t.w.m.sys.NCCL()
	if err != nil {
		return fmt.Errorf("%w: %w", device.ErrUnsupported, err)
	}
	if c.Op == ir.OpAllGather || c.Op == ir.OpReduceScatter {
		if err := mistaken(lib, nvlib.SwitchedOrder, t.w.m.sys.Multicast); err != nil {
			return err
		}
	}
	sites := map[*site]int{}
	for _, m := range t.members {
		if o, shared := sites[m.dev.site]; shared {
			return fmt.Errorf("%w: members %d and %d share GPU %d; NCCL wants one for each", device.ErrUnsupported, o, m.index, m.dev.site.gpu.Device)
		}
		sites[m.dev.site] = m.index
	}
	if len(sites) < 2 {
		return fmt.Errorf("%w: a team of one", device.ErrUnsupported)
	}
	_, err = coll.PlanNCCL(c, len(t.members))
	return err
}

// mistaken refuses what NCCL of this version gets wrong.
func mistaken(lib *nvlib.NCCL, m nvlib.Mistake, multicast bool) error {
	k := lib.Mistaken(m, multicast)
	if k == nil {
		return nil
	}
	return fmt.Errorf("%w: NCCL %s: %s (%s)", device.ErrUnsupported, lib.Loaded().Version, k.What, k.Source)
}
