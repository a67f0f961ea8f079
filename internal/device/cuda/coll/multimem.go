package coll

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// multimem runs an all_reduce in which NVLink switches compute the sums. Operands are copied to multicast memory, and
// results are copied from it. The algorithm was tested only with emulated switches.
type multimem struct{ ReduceAlgorithm }

var multimemAlgorithms = []Entry{{Info{Name: "multimem", Ops: allReduce, FreeOrder: true,
	Takes: "all_reduce: sums of bf16, f16, f32 with order=any",
	How: "operands are copied to multicast memory, NVLink's switches add them, and the results are copied from " +
		"there; only with HOCKET_MULTICAST=on, and not tested on hardware"},
	multimem{ReduceAlgorithm{unrolls: []int{1, 2, 4}}}}}

// Supports returns an error if the algorithm cannot carry out c.
func (a multimem) Supports(t Team, tune device.Tuning, c *Collective) error {
	if err := t.Multicasts(); err != nil {
		return err
	}
	if err := a.ReduceAlgorithm.Supports(t, tune, c); err != nil {
		return err
	}
	dt := DTypeOf(c)
	switch {
	case c.Red != ir.Sum || dt != ir.BF16 && dt != ir.F16 && dt != ir.F32:
		return fmt.Errorf("%w: the switches compute sums of bf16, f16 and f32, but no %s of %s", device.ErrUnsupported, c.Red, dt)
	case !c.AnyOrder:
		return fmt.Errorf("%w: NVLink switches add in an order of their own; order=any allows this", device.ErrUnsupported)
	}
	return nil
}

// Plan returns a plan of one launch on each member, which uses multicast memory.
func (a multimem) Plan(t Team, tune device.Tuning, c *Collective) (*Plan, error) {
	r, p, all := a.request(tune, c), &Plan{}, nvlib.Ptr(0)
	planPull(p, t, tune, r)
	p.joined(int64(t.Members())*r.Share*16, func(a Area) { r.Data, all = a.At, a.All })
	p.Launches = func() ([][]Action, error) {
		list := make([][]Action, t.Members())
		for i := range list {
			list[i] = []Action{Kernel{kernels.Multimem{AllReduce: *r, All: all}.Meeting(i)}}
		}
		return list, nil
	}
	return p, nil
}
