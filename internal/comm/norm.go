package comm

import (
	"errors"
	"fmt"

	"hocket.example/hocket/internal/device"
)

// normalise makes instance i run as one launch together with the add and the norm that follow it, if that is possible.
// It replaces only the machine's own launches. An algorithm that the program names, a schedule, and the vendor's
// library are left unchanged.
func (c *Channel) normalise(i int) {
	x, in := c.choices[i], &c.insts[i]
	if in.Norm == nil {
		return
	}
	if err := c.mayNormalise(x, in); err != nil {
		x.Declined = append(x.Declined, fmt.Sprintf("fused with its rms_norm: %v", err))
		return
	}
	x.normed = true
}

func (c *Channel) mayNormalise(x *choice, in *Instance) error {
	policy := c.dispatch.policy
	switch {
	case in.Pin.Algo != "", policy.Algorithm != "":
		return errors.New("the program or the policy requires a particular algorithm")
	case policy.Fixed:
		return errors.New("the policy requires the same algorithm for all message sizes")
	case policy.Sparing:
		return errors.New("the policy asks for algorithms that need little memory")
	case in.CTAs != 0:
		return errors.New("the collective limits the number of blocks")
	case x.schedule != nil, c.dispatch.Info(x.Tuning.Algo).Library:
		return fmt.Errorf("%s is expected to be faster", x.Tuning.Algo)
	}
	if c.team == nil {
		return device.ErrUnsupported
	}
	return c.team.SupportsNorm(in.Norm)
}

// prepareNorm prepares the launches of instance i if they are to include the add and the norm that follow it. If the
// machine does not support that, the all_reduce is run by itself.
func (c *Channel) prepareNorm(i int) (bool, error) {
	x := c.choices[i]
	if !x.normed {
		return false, nil
	}
	name := c.team.NormAlgorithm().Name
	l, err := c.team.PrepareNorm(c.insts[i].Norm)
	switch {
	case errors.Is(err, device.ErrUnsupported):
		x.normed, x.Declined = false, append(x.Declined, fmt.Sprintf("%s: %v", name, err))
		return false, nil
	case err != nil:
		return false, fmt.Errorf("%s: algorithm %s: %w", c.insts[i].Op, name, err)
	}
	x.launches, x.Tuning = l, device.Tuning{Algo: name}
	return true, nil
}

// Normed reports whether the launches of instance i include the add and the norm of Instance.Norm. The channel must be
// open.
func (c *Channel) Normed(i int) bool { return c.choices[i].normed }
