package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/world"
)

// If the ranks of a plan are distributed over several processes, either all of them load the plan, or none does. The
// processes compare the plans before they reserve any resources, and exchange the results of the load at its end.

// hash is the text before the hash of a plan in the texts that processes compare. Errors omit the hash if the texts
// also differ elsewhere.
const hash = " [plan "

// agreePlan returns an error unless the peers load the same plan, with the same options that affect how it is resolved.
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
	if o.Gather {
		what += ", gather"
	}
	what += fmt.Sprintf("%s%.16s]", hash, p.HashString())
	err := g.Same(ctx, "the plan to load", what)
	if d := (*world.DisagreeError)(nil); o.MadeOf != nil && errors.As(err, &d) && strings.Contains(d.Values[0].Value, hash) {
		// Only hashes differ. All processes have the same error d, and therefore take the same branch here.
		if from := g.SameList(ctx, "the source of the plan", o.MadeOf()); from != nil {
			// If the calls differ, both errors name the calls.
			if _, why, _ := strings.Cut(from.Error(), ": "); !strings.HasSuffix(err.Error(), why) {
				err = fmt.Errorf("%w; %w", err, from)
			}
		}
		_, _ = g.Agree(ctx, "the end of the comparison", nil) // no process may abort while another still compares
	}
	if err != nil { // so that processes that compare later also get the error
		g.Abort(err)
	}
	return err
}

// loadedBy is the report that a process sends about its load.
type loadedBy struct {
	Held            device.Held
	Err             string `json:",omitempty"`
	Short, TooLarge bool   `json:",omitempty"` // Err is due to a lack of memory
	Follows         bool   `json:",omitempty"` // Err reports only that another process has abandoned the load
}

// agreeLoaded combines the results of the load in all processes: it returns the largest amount of memory that any
// process has allocated, or an error if the load failed in any process. All processes return the worst kind of error
// that occurred, so that either all processes try again, or none does.
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
			return nil, fmt.Errorf("process %d sent a malformed report about its load, %q: %w", process, text, jerr)
		}
		most.Device, most.Host = max(most.Device, l.Held.Device), max(most.Host, l.Held.Host)
		if k := l.kind(); k > worst {
			worst, err = k, fmt.Errorf("process %d: %w: %s", process, loadErrors[k], l.Err)
		}
	}
	return most, err
}

// settle makes all processes execute the plan in the same way. All processes adopt the measurements of one process, and
// compare the properties that each process has determined. If one process used another algorithm or another size of
// staging, the others would wait for it forever.
func (im *Image) settle(ctx context.Context, g *world.World) error {
	lines, err := im.World.Settle(ctx)
	if err != nil { // the other processes report the difference
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

// loadErrors lists the kinds of errors of a load, from the kind that is easiest to recover from to the permanent kind.
var loadErrors = []error{nil, device.ErrOutOfMemory, errors.New("it could not load the plan"), device.ErrTooLarge}

// kind returns the index of an error's kind in loadErrors.
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
