package compile

import (
	"context"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/planner"
	"hocket.example/hocket/internal/sim"
)

// ErrBudget is returned by Squeeze if no set of waits makes a plan fit the budget of memory.
var ErrBudget = planner.ErrBudget

// Squeeze inserts waits into a plan until its arena has at most budget bytes. The cost of the waits is predicted for
// the unit's machine. Squeeze returns the plan, the waits, and the predicted times of a run, in microseconds, without
// and with the waits. See planner.Squeeze.
func (u *Unit) Squeeze(
	ctx context.Context, p *plan.Plan, budget int64,
) (q *plan.Plan, waits []planner.Wait, before, after float64, err error) {
	m, _, err := u.machine(p.Ranks)
	if err != nil {
		return nil, nil, 0, 0, err
	}
	time := func(p *plan.Plan) (float64, error) {
		t, err := sim.Plan(p, m)
		if err != nil {
			return 0, err
		}
		return t.Time, nil
	}
	if before, err = time(p); err != nil {
		return nil, nil, 0, 0, err
	}
	q, waits, err = planner.Squeeze(ctx, p, budget, time)
	after = before
	for _, w := range waits {
		after += w.Time
	}
	return q, waits, before, after, err
}
