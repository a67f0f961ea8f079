package comm

import (
	"errors"
	"fmt"

	"hocket.example/hocket/internal/device"
)

// normalise has instance i and what follows it run as one launch where that can be.
// What is measured or asked for comes first: only in the place of another of the
// machine's own launches, which the table chose.
func (c *Channel) normalise(i int) {
	x, in := c.choices[i], &c.insts[i]
	if in.Norm == nil {
		return
	}
	if err := c.mayNormalise(x, in); err != nil {
		x.Declined = append(x.Declined, fmt.Sprintf("with its norm: %v", err))
		return
	}
	x.normed = true
}

func (c *Channel) mayNormalise(x *choice, in *Instance) error {
	policy := c.dispatch.policy
	switch {
	case in.Pin.Algo != "", policy.Algorithm != "":
		return errors.New("an algorithm is asked for")
	case policy.Fixed:
		return errors.New("sums of all sizes are to be run in the same way")
	case policy.Sparing:
		return errors.New("memory is short")
	case in.CTAs != 0:
		return errors.New("its blocks are bounded")
	case x.schedule != nil, c.dispatch.Info(x.Tuning.Algo).Library:
		return fmt.Errorf("%s is known to be faster", x.Tuning.Algo)
	}
	if c.team == nil {
		return device.ErrUnsupported
	}
	return c.team.SupportsNorm(in.Norm)
}

// prepareNorm makes the launches of instance i if they are to do what follows it
// too. If that turns out to be beyond the machine the sum is run by itself.
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

// Normed reports whether instance i, of an open channel, does what Norm says too.
func (c *Channel) Normed(i int) bool { return c.choices[i].normed }
