package cuda

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/ir"
)

// multimem is an all_reduce of sums that NVLink's switches add up, in multicast memory
// that operands are copied to and from. It was only ever run on an emulation.
type multimem struct{ reduceAlgorithm }

var multimemAlgorithms = []namedAlgorithm{{"multimem", multimem{reduceAlgorithm{name: "multimem", unrolls: []int{1, 2, 4}}}}}

func (a multimem) supports(t *team, tune device.Tuning, c *collective) error {
	if err := t.multicasts(); err != nil {
		return err
	}
	if err := a.reduceAlgorithm.supports(t, tune, c); err != nil {
		return err
	}
	dt := dtypeOf(c)
	switch {
	case c.Red != ir.Sum || dt != ir.BF16 && dt != ir.F16 && dt != ir.F32:
		return fmt.Errorf("%w: the switches have sums of bf16, f16 and f32 for it, no %s of %s", device.ErrUnsupported, c.Red, dt)
	case !c.AnyOrder:
		return fmt.Errorf("%w: the switches add in an order of their own; order=any allows that", device.ErrUnsupported)
	}
	return nil
}

func (a multimem) prepare(t *team, tune device.Tuning, c *collective) ([][]step, error) {
	r := a.request(tune, c)
	if err := t.pulled(tune, r); err != nil {
		return nil, err
	}
	mc, err := t.joint(int64(len(t.members)) * r.Share * 16)
	if err != nil {
		return nil, err
	}
	r.Data = mc.own
	steps := make([][]step, len(t.members))
	for i, m := range t.members {
		st, err := m.kernel(kernels.Multimem{AllReduce: *r, All: mc.all}.Meeting(i))
		if err != nil {
			return nil, err
		}
		steps[i] = []step{st}
	}
	return steps, nil
}
