package comm

import (
	"errors"
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// openTeam returns the channel's team, which it opens at the first call. If that fails, every later call returns the
// same error.
func (c *Channel) openTeam() (device.Team, error) {
	if c.team == nil && c.teamErr == nil {
		c.team, c.teamErr = c.dispatch.teams.OpenTeam(c.members)
	}
	return c.team, c.teamErr
}

// prepare prepares the launches of instance i, if launches run it. If the machine turns out not to support the
// algorithm, prepare continues with the next candidate.
func (c *Channel) prepare(i int) error {
	in := &c.insts[i]
	if done, err := c.prepareNorm(i); done || err != nil {
		return err
	}
	for c.choices[i].schedule == nil {
		x := c.choices[i]
		l, err := c.team.Prepare(x.Tuning, &in.Collective)
		if err == nil && len(l) != len(c.members) {
			err = fmt.Errorf("the machine prepared %d launches for a team of %d members", len(l), len(c.members))
		}
		if err == nil {
			x.launches = l
			return nil
		}
		err = fmt.Errorf("%s: algorithm %s: %w", in.Op, x.Tuning.Algo, err)
		if in.Pin.Algo != "" || !errors.Is(err, device.ErrUnsupported) {
			return err
		}
		declined := append(x.Declined, err.Error())
		if c.choices[i], err = c.dispatch.first(in, x.rest, declined, c.openTeam); err != nil {
			return err
		}
	}
	return nil
}

// closeTeam releases the launches and closes the team.
func (c *Channel) closeTeam() error {
	for _, x := range c.choices {
		for _, l := range x.launches {
			if l != nil {
				l.Release()
			}
		}
		x.launches = nil
	}
	if c.team == nil {
		return nil
	}
	t := c.team
	c.team, c.teamErr = nil, errors.New("the channel is closed")
	return t.Close()
}

// moved returns the number of bytes that each member receives from peers if the machine's own algorithm a runs the
// instance in. The result is the smallest possible number, except for an all_reduce in one shot.
func moved(a device.Algorithm, in *Instance) []int64 {
	n := make([]int64, len(in.Parts))
	for m := range n {
		n[m] = in.least(m)
		if in.Op == ir.OpAllReduce && a.OneShot {
			n[m] = viewBytes(in.Parts[m].In) * int64(len(n)-1)
		}
	}
	return n
}
