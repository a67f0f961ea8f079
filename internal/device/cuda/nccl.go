package cuda

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/coll"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// ncclName is NVIDIA's library. It adds in an order of its own: where that can change bits it
// is only for those who allow any order.
const ncclName = "nccl"

// supportsNCCL returns nil, or why NCCL cannot do c.
func supportsNCCL(t *team, c *coll.Collective) error {
	if t.w.peers != nil && !t.crosses() {
		return fmt.Errorf("%w: NCCL between processes of one node", device.ErrUnsupported)
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
	if c.Op == ir.OpBarrier {
		return nil
	}
	_, err = coll.PlanNCCL(c, len(t.members))
	return err
}

// crosses reports whether members are on several nodes.
func (t *team) crosses() bool {
	for _, m := range t.members {
		if t.w.Node(m.dev.rank) != t.w.Node(t.members[0].dev.rank) {
			return true
		}
	}
	return false
}

// barrier is an all_reduce of a word that nobody reads, as NCCL has no barrier.
func (t *team) barrier() (*coll.Collective, error) {
	mem, err := t.reserve("barriers by NCCL", ir.I32.Size())
	if err != nil {
		return nil, err
	}
	c := &coll.Collective{Collective: &device.Collective{Op: ir.OpAllReduce, Red: ir.Sum}}
	for i := range t.members {
		v := strided.View{Addr: mem.At[i], DType: ir.I32, N: 1, Shape: []int64{1}, Strides: []int64{1}}
		c.Operands = append(c.Operands, coll.Part{In: v, Out: v, Reads: true, Writes: true})
	}
	return c, nil
}

// mistaken refuses what NCCL of this version gets wrong.
func mistaken(lib *nvlib.NCCL, m nvlib.Mistake, multicast bool) error {
	k := lib.Mistaken(m, multicast)
	if k == nil {
		return nil
	}
	return fmt.Errorf("%w: NCCL %s: %s (%s)", device.ErrUnsupported, lib.Loaded().Version, k.What, k.Source)
}
