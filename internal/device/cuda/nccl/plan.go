package nccl

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/coll"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// Usable returns nil if NCCL can be used for op, and otherwise the reason why not: NCCL is missing, or its version
// computes op wrongly.
func Usable(sys *gpu.System, op ir.Op) error {
	lib, err := sys.NCCL()
	if err != nil {
		return fmt.Errorf("%w: %w", device.ErrUnsupported, err)
	}
	if op != ir.OpAllGather && op != ir.OpReduceScatter {
		return nil
	}
	k := lib.Mistaken(nvlib.SwitchedOrder, sys.Multicast)
	if k == nil {
		return nil
	}
	return fmt.Errorf("%w: NCCL %s: %s (%s)", device.ErrUnsupported, lib.Loaded().Version, k.What, k.Source)
}

// Reserve returns memory of the given size on every member. Calls with the same name return the same memory.
type Reserve func(name string, bytes int64) (coll.Area, error)

// Plan calls coll.PlanNCCL. Since NCCL has no barrier, a barrier becomes an all_reduce of one word whose result is
// ignored.
func Plan(c *coll.Collective, n int, reserve Reserve) (*coll.NCCLWork, error) {
	if c.Op == ir.OpBarrier {
		mem, err := reserve("barriers by NCCL", ir.I32.Size())
		if err != nil {
			return nil, err
		}
		c = &coll.Collective{Collective: &device.Collective{Op: ir.OpAllReduce, Red: ir.Sum}}
		for i := range n {
			v := strided.View{Addr: mem.At[i], DType: ir.I32, N: 1, Shape: []int64{1}, Strides: []int64{1}}
			c.Operands = append(c.Operands, coll.Part{In: v, Out: v, Reads: true, Writes: true})
		}
	}
	return coll.PlanNCCL(c, n)
}

// Share holds one member's call of NCCL, and the copies before and after the call.
type Share struct {
	Call          coll.NCCLCall
	Before, After []coll.Copy
}

// Pack returns the Share of member i. It contains copies for operands that are not laid out as NCCL requires.
func Pack(w *coll.NCCLWork, i int, reserve Reserve) (x Share, err error) {
	s := &w.Shares[i]
	if s.In != nil {
		x.Call.In = s.In.Addr
		if s.Pack || s.Staged {
			mem, err := reserve("inputs for NCCL", s.In.Bytes())
			if err != nil {
				return x, err
			}
			x.Call.In = mem.At[i]
			x.Before = append(x.Before, coll.Copy{Dst: s.In.At(x.Call.In), Src: *s.In})
		}
	}
	if s.Out != nil {
		x.Call.Out = s.Out.Addr
		if s.Unpack {
			mem, err := reserve("results of NCCL", s.Out.Bytes())
			if err != nil {
				return x, err
			}
			x.Call.Out = mem.At[i]
			x.After = append(x.After, coll.Copy{Dst: *s.Out, Src: s.Out.At(x.Call.Out)})
		}
	}
	return x, nil
}
