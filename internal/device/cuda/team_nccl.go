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

var ncclTypes = map[ir.DType]nvlib.NCCLType{
	ir.F32: nvlib.NCCLF32, ir.F64: nvlib.NCCLF64, ir.F16: nvlib.NCCLF16, ir.BF16: nvlib.NCCLBF16, ir.I32: nvlib.NCCLInt32, ir.I64: nvlib.NCCLInt64,
}

var ncclReds = map[ir.Red]nvlib.NCCLRed{ir.Sum: nvlib.NCCLSum, ir.Max: nvlib.NCCLMax, ir.Min: nvlib.NCCLMin, ir.Avg: nvlib.NCCLAvg}

// supportsNCCL returns nil, or why NCCL cannot do c.
func (t *team) supportsNCCL(c *coll.Collective) error {
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
	if reduces(c.Op) {
		if err := ncclExact(c, len(t.members)); err != nil {
			return err
		}
	}
	_, err = ncclPlan(t, c)
	return err
}

// pairwise reports whether an op is sends and receives to NCCL.
func pairwise(op ir.Op) bool {
	return op == ir.OpAllToAll || op == ir.OpGather || op == ir.OpScatter || op == ir.OpPermute
}

func reduces(op ir.Op) bool {
	return op == ir.OpAllReduce || op == ir.OpReduceScatter || op == ir.OpReduce
}

// ncclExact refuses reductions whose bits might be others than S11 has.
func ncclExact(c *coll.Collective, n int) error {
	dt := coll.DTypeOf(c)
	switch {
	case c.Red == ir.Avg && dt.IsInt():
		return fmt.Errorf("%w: the average of integers", device.ErrUnsupported)
	case c.Red == ir.Avg && n&(n-1) != 0:
		return fmt.Errorf("%w: NCCL divides by %d before it adds", device.ErrUnsupported, n)
	case c.AnyOrder || dt.IsInt() || c.Red == ir.Sum && n == 2:
		return nil
	case c.Red == ir.Sum:
		return fmt.Errorf("%w: NCCL adds in an order of its own, rounding each time; order=any allows that", device.ErrUnsupported)
	}
	return fmt.Errorf("%w: NCCL's %s treats NaNs, zeros and tiny numbers in its own way; order=any allows that", device.ErrUnsupported, c.Red)
}

// ncclShare is one member's part of a call: dense operands in units of count
// elements, with copies around it where views are not dense.
type ncclShare struct {
	in, out      *strided.View // as NCCL sees them: n blocks one behind the other, or one; nil for none
	pack, unpack bool          // by way of dense memory
	staged       bool          // likewise, because the result lies over the input
}

// ncclWork is a collective as NCCL takes it.
type ncclWork struct {
	op     ir.Op
	shares []ncclShare
	count  int64 // elements of a block
	dt     ir.DType
	red    ir.Red
	root   int
	gives  func(i, p int) bool
}

// ncclPlan says what each member's operands are to NCCL.
func ncclPlan(t *team, c *coll.Collective) (*ncclWork, error) {
	n := len(t.members)
	if err := sameShapes(t, c); err != nil {
		return nil, err
	}
	w := &ncclWork{op: c.Op, dt: coll.DTypeOf(c), red: c.Red, root: c.Root, shares: make([]ncclShare, n)}
	if c.Op == ir.OpAllReduce {
		w.gives = func(int, int) bool { return true }
	} else {
		f, err := coll.FlowOf(c, len(t.members))
		if err != nil {
			return nil, err
		}
		w.gives = f.Gives
	}
	for i := range w.shares {
		s, p := &w.shares[i], &c.Operands[i]
		if !p.Reads && !p.Writes && !pairwise(c.Op) {
			return nil, fmt.Errorf("%w: member %d takes no part, and NCCL's %s wants all", device.ErrUnsupported, i, c.Op)
		}
		if p.Reads {
			v := cutView(p.In, coll.InAxis(c), n)
			s.in, s.pack = &v, !v.Dense()
			w.count = v.N
			if coll.InAxis(c) != coll.Whole {
				w.count /= int64(n)
			}
		}
		if p.Writes {
			v := cutView(p.Out, coll.OutAxis(c), n)
			s.out, s.unpack = &v, !v.Dense()
		}
		if s.in != nil && s.out != nil && !s.pack && !s.unpack && s.in.Overlaps(s.out) {
			s.staged = !inPlace(c.Op, s, i, w.count*w.dt.Size())
		}
		for _, v := range []*strided.View{s.in, s.out} {
			if v == nil {
				continue
			}
			d := v.At(v.Addr)
			if err := strided.CheckDims(strided.Merge(v, &d)); err != nil {
				return nil, err
			}
		}
	}
	return w, nil
}

// sameShapes wants members' blocks to be of one shape.
func sameShapes(t *team, c *coll.Collective) error {
	var views []strided.View
	if c.Op == ir.OpAllReduce {
		for i := range c.Operands {
			views = append(views, c.Operands[i].In, c.Operands[i].Out)
		}
		return coll.Alike(views)
	}
	f, err := coll.FlowOf(c, len(t.members))
	if err != nil {
		return err
	}
	f.Pairs(func(i, p int) { views = append(views, f.In(i, p), f.Out(p, i)) })
	return coll.Alike(views)
}

// cutView is r as n blocks along axis, one behind the other.
func cutView(r strided.View, axis, n int) strided.View {
	if axis == coll.Whole {
		return r
	}
	b := r.Block(axis, 0, n)
	v := r
	v.Shape = append([]int64{int64(n)}, b.Shape...)
	v.Strides = append([]int64{b.Shape[axis] * r.Strides[axis]}, r.Strides...)
	return v
}

// inPlace reports whether NCCL takes operands that lie over each other so.
func inPlace(op ir.Op, s *ncclShare, i int, block int64) bool {
	switch op {
	case ir.OpAllReduce, ir.OpReduce, ir.OpBroadcast:
		return s.in.Addr == s.out.Addr
	case ir.OpAllGather:
		return s.in.Addr == s.out.Addr+nvlib.Ptr(int64(i)*block)
	case ir.OpReduceScatter:
		return s.out.Addr == s.in.Addr+nvlib.Ptr(int64(i)*block)
	}
	return false
}

// mistaken refuses what NCCL of this version gets wrong.
func mistaken(lib *nvlib.NCCL, m nvlib.Mistake, multicast bool) error {
	k := lib.Mistaken(m, multicast)
	if k == nil {
		return nil
	}
	return fmt.Errorf("%w: NCCL %s: %s (%s)", device.ErrUnsupported, lib.Loaded().Version, k.What, k.Source)
}
