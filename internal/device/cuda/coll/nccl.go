package coll

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// NCCLName is the name of the algorithm that uses NVIDIA's library NCCL.
const NCCLName = "nccl"

// NCCL describes the algorithm that calls NCCL. It is not an Algorithm of this package: package cuda calls the library
// with the result of PlanNCCL.
var NCCL = Info{Name: NCCLName, Formerly: []string{"nccl-window"}, Ops: device.Even, FreeOrder: true,
	Library: true, Takes: "all but uneven ones",
	How: "NVIDIA's library, if it is installed. It adds in its own order, so it is selected only if this cannot change a " +
		"bit, or with order=any"}

// ncclTypes and ncclReductions are NCCL's numbers of types and reductions.
var ncclTypes = map[ir.DType]nvlib.NCCLType{
	ir.F32: nvlib.NCCLF32, ir.F64: nvlib.NCCLF64, ir.F16: nvlib.NCCLF16, ir.BF16: nvlib.NCCLBF16, ir.I32: nvlib.NCCLInt32, ir.I64: nvlib.NCCLInt64,
	ir.F8E4M3: nvlib.NCCLInt8, ir.F8E5M2: nvlib.NCCLInt8, // only moved, never reduced
}

var ncclReds = map[ir.Red]nvlib.NCCLRed{ir.Sum: nvlib.NCCLSum, ir.Max: nvlib.NCCLMax, ir.Min: nvlib.NCCLMin, ir.Avg: nvlib.NCCLAvg}

// pairwise reports whether op is implemented by NCCL's sends and receives.
func pairwise(op ir.Op) bool {
	return op == ir.OpAllToAll || op == ir.OpGather || op == ir.OpScatter || op == ir.OpPermute
}

func reduces(op ir.Op) bool {
	return op == ir.OpAllReduce || op == ir.OpReduceScatter || op == ir.OpReduce
}

// ncclExact returns nil if NCCL's result has the same bits as a sum in the order that the language defines (S11). For
// other reductions it returns an error.
func ncclExact(c *Collective, n int) error {
	dt := DTypeOf(c)
	switch {
	case c.Red == ir.Avg && dt.IsInt():
		return fmt.Errorf("%w: the average of integers", device.ErrUnsupported)
	case c.Red == ir.Avg && n&(n-1) != 0:
		return fmt.Errorf("%w: NCCL divides by %d before it adds", device.ErrUnsupported, n)
	case c.AnyOrder || dt.IsInt() || c.Red == ir.Sum && n == 2:
		return nil
	case c.Red == ir.Sum:
		return fmt.Errorf("%w: NCCL adds in an order of its own and rounds after each addition; order=any allows this", device.ErrUnsupported)
	}
	return fmt.Errorf("%w: NCCL's %s treats NaNs, zeros and tiny numbers in its own way; order=any allows that", device.ErrUnsupported, c.Red)
}

// NCCLShare is one member's part of an NCCL call. The operands of an NCCL call are dense and consist of one or n
// blocks. Views that are not dense are copied before and after the call.
type NCCLShare struct {
	In, Out      *strided.View // in NCCL's layout: one or n blocks; nil if the member has no such operand
	Pack, Unpack bool          // the input is copied to dense memory before the call; the result, from it after the call
	Staged       bool          // set if the input is copied to other memory because the result overlaps it
}

// NCCLWork is a collective in the form that NCCL requires.
type NCCLWork struct {
	Op     ir.Op
	Shares []NCCLShare
	Count  int64 // elements per block
	DType  ir.DType
	Red    ir.Red
	Root   int
	gives  func(i, p int) bool
}

// PlanNCCL converts c to the form that NCCL requires. It returns an error if NCCL cannot run c.
func PlanNCCL(c *Collective, n int) (*NCCLWork, error) {
	if reduces(c.Op) {
		if err := ncclExact(c, n); err != nil {
			return nil, err
		}
	}
	if err := sameShapes(c, n); err != nil {
		return nil, err
	}
	w := &NCCLWork{Op: c.Op, DType: DTypeOf(c), Red: c.Red, Root: c.Root, Shares: make([]NCCLShare, n)}
	if c.Op == ir.OpAllReduce {
		w.gives = func(int, int) bool { return true }
	} else {
		f, err := FlowOf(c, n)
		if err != nil {
			return nil, err
		}
		w.gives = f.Gives
	}
	for i := range w.Shares {
		s, p := &w.Shares[i], &c.Operands[i]
		if !p.Reads && !p.Writes && !pairwise(c.Op) {
			return nil, fmt.Errorf("%w: member %d does not participate, but NCCL's %s needs all members", device.ErrUnsupported, i, c.Op)
		}
		if p.Reads {
			v := cutView(p.In, InAxis(c), n)
			s.In, s.Pack = &v, !v.Dense()
			w.Count = v.N
			if InAxis(c) != Whole {
				w.Count /= int64(n)
			}
		}
		if p.Writes {
			v := cutView(p.Out, OutAxis(c), n)
			s.Out, s.Unpack = &v, !v.Dense()
		}
		if s.In != nil && s.Out != nil && !s.Pack && !s.Unpack && s.In.Overlaps(s.Out) {
			s.Staged = !inPlace(c.Op, s, i, w.Count*w.DType.Size())
		}
		for _, v := range []*strided.View{s.In, s.Out} {
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

// sameShapes returns an error unless the blocks of all members have the same shape.
func sameShapes(c *Collective, n int) error {
	var views []strided.View
	if c.Op == ir.OpAllReduce {
		for i := range c.Operands {
			views = append(views, c.Operands[i].In, c.Operands[i].Out)
		}
		return Alike(views)
	}
	f, err := FlowOf(c, n)
	if err != nil {
		return err
	}
	f.Pairs(func(i, p int) { views = append(views, f.In(i, p), f.Out(p, i)) })
	return Alike(views)
}

// cutView views r as n consecutive blocks along axis.
func cutView(r strided.View, axis, n int) strided.View {
	if axis == Whole {
		return r
	}
	b := r.Block(axis, 0, n)
	v := r
	v.Shape = append([]int64{int64(n)}, b.Shape...)
	v.Strides = append([]int64{b.Shape[axis] * r.Strides[axis]}, r.Strides...)
	return v
}

// inPlace reports whether input and output overlap in the way that NCCL supports as an in-place call.
func inPlace(op ir.Op, s *NCCLShare, i int, block int64) bool {
	switch op {
	case ir.OpAllReduce, ir.OpReduce, ir.OpBroadcast:
		return s.In.Addr == s.Out.Addr
	case ir.OpAllGather:
		return s.In.Addr == s.Out.Addr+nvlib.Ptr(int64(i)*block)
	case ir.OpReduceScatter:
		return s.Out.Addr == s.In.Addr+nvlib.Ptr(int64(i)*block)
	}
	return false
}

// TakesPart reports whether member i has an operand in the collective.
func (w *NCCLWork) TakesPart(i int) bool { return w.Shares[i].In != nil || w.Shares[i].Out != nil }

// NCCLCall holds the addresses of a member's dense operands.
type NCCLCall struct{ In, Out nvlib.Ptr }

// Issue makes the NCCL calls of member i.
func (w *NCCLWork) Issue(lib *nvlib.NCCL, c nvlib.Comm, i int, call NCCLCall, s nvlib.Stream) error {
	dt, red := ncclTypes[w.DType], ncclReds[w.Red]
	bytes := w.Count * w.DType.Size()
	switch w.Op {
	case ir.OpAllReduce:
		return lib.AllReduce(call.In, call.Out, w.Count, dt, red, c, s)
	case ir.OpReduceScatter:
		return lib.ReduceScatter(call.In, call.Out, w.Count, dt, red, c, s)
	case ir.OpReduce:
		return lib.Reduce(call.In, call.Out, w.Count, dt, red, w.Root, c, s)
	case ir.OpAllGather:
		return lib.AllGather(call.In, call.Out, bytes, nvlib.NCCLInt8, c, s)
	case ir.OpBroadcast:
		if call.Out == 0 { // NCCL requires a result on the root; it is the root's input here
			call.Out = call.In
		}
		return lib.Broadcast(call.In, call.Out, bytes, nvlib.NCCLInt8, w.Root, c, s)
	}
	block := func(base nvlib.Ptr, cut bool, k int) nvlib.Ptr {
		if cut {
			base += nvlib.Ptr(int64(k) * bytes)
		}
		return base
	}
	cutIn, cutOut := w.Op == ir.OpAllToAll || w.Op == ir.OpScatter, w.Op == ir.OpAllToAll || w.Op == ir.OpGather
	for p := range w.Shares {
		if w.gives(i, p) {
			if err := lib.Send(block(call.In, cutIn, p), bytes, nvlib.NCCLInt8, p, c, s); err != nil {
				return err
			}
		}
		if w.gives(p, i) {
			if err := lib.Recv(block(call.Out, cutOut, p), bytes, nvlib.NCCLInt8, p, c, s); err != nil {
				return err
			}
		}
	}
	return nil
}
