package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/world"
)

// A plan whose ranks are spread over processes is loaded by all of them, or by none. Before anything is
// reserved they compare what they load; in the end, how it went.

// agreePlan holds the plan, and what of the options decides how it is resolved, to that of the peers.
func agreePlan(ctx context.Context, m device.Machine, p *plan.Plan, o Options) error {
	g := m.Peers()
	if g == nil {
		return nil
	}
	what := fmt.Sprintf("%s on %d ranks, machine %s", p.Title(), p.Ranks, m.Name())
	if o.Algorithm != "" {
		what += ", algorithm " + o.Algorithm
	}
	if o.Fixed {
		what += ", fixed"
	}
	what += fmt.Sprintf(" [plan %.16s]", p.HashString())
	err := g.Same(ctx, "the plan to load", what)
	if err != nil { // whoever compares later is to learn of it, too
		g.Abort(err)
	}
	return err
}

// loadedBy is what a process tells of its load.
type loadedBy struct {
	Held            device.Held
	Err             string `json:",omitempty"`
	Short, TooLarge bool   `json:",omitempty"` // Err is for want of memory
	Follows         bool   `json:",omitempty"` // Err is only that another process has given up
}

// agreeLoaded returns how the load went in all processes: the most memory that one of them has taken, or
// an error if any failed. It is of one kind in all of them, so that all try again, or none: the worst.
func agreeLoaded(ctx context.Context, g *world.World, held device.Held, err error) (*device.Held, error) {
	mine := loadedBy{Held: held, Short: errors.Is(err, device.ErrOutOfMemory),
		TooLarge: errors.Is(err, device.ErrTooLarge), Follows: errors.Is(err, world.ErrWentOn)}
	if err != nil {
		mine.Err = err.Error()
		mine.Err = mine.Err[:min(len(mine.Err), world.MaxValue/4)]
	}
	text, jerr := json.Marshal(mine)
	if jerr != nil {
		return nil, jerr
	}
	all, aerr := g.Agree(ctx, "how the load went", text)
	if aerr != nil {
		return nil, errors.Join(err, aerr)
	}
	most := &device.Held{}
	worst := mine.kind()
	for process, text := range all {
		var l loadedBy
		if jerr := json.Unmarshal(text, &l); jerr != nil {
			return nil, fmt.Errorf("process %d says of its load %q: %w", process, text, jerr)
		}
		most.Device, most.Host = max(most.Device, l.Held.Device), max(most.Host, l.Held.Host)
		if k := l.kind(); k > worst {
			worst, err = k, fmt.Errorf("process %d: %w: %s", process, loadErrors[k], l.Err)
		}
	}
	return most, err
}

// settle has all processes run the plan alike: they take over what one of them has measured, and compare what each
// has resolved for itself. Whoever takes another algorithm, or reserves other memory, would be waited for in vain.
func (im *Image) settle(ctx context.Context, g *world.World) error {
	lines, err := im.World.Settle(ctx)
	if err != nil { // the others learn of it as of a difference
		lines = []string{err.Error()}
	}
	var own []string
	for i, algorithm := range im.Algorithms {
		own = append(own, fmt.Sprintf("collective %d (%s) by %s", i, im.Plan.Colls[i].Op, algorithm))
	}
	for i, c := range im.channels {
		own = append(own, fmt.Sprintf("%d bytes of staging for the collectives of ranks %v",
			c.StagingBytes(), im.Plan.Channels[i].Team))
	}
	return errors.Join(err, g.SameList(ctx, "how the plan runs", append(own, lines...)))
}

// loadErrors are kinds of errors of a load, from what may be mended to what nothing mends.
var loadErrors = []error{nil, device.ErrOutOfMemory, errors.New("it could not load the plan"), device.ErrTooLarge}

// kind is an index in loadErrors.
func (l *loadedBy) kind() int {
	switch {
	case l.Err == "", l.Follows:
		return 0
	case l.TooLarge:
		return 3
	case l.Short:
		return 1
	}
	return 2
}
