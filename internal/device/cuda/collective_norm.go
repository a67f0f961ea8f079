package cuda

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/coll"
	"hocket.example/hocket/ir"
)

// NormAlgorithm implements device.Team.
func (t *team) NormAlgorithm() device.Algorithm { return coll.Norm }

func (t *team) SupportsNorm(n *device.Norm) error {
	t.w.mu.Lock()
	defer t.w.mu.Unlock()
	_, err := t.worthwhile(n)
	return err
}

// worthwhile resolves the views of n's parts. It returns an error unless one launch is faster than separate launches.
func (t *team) worthwhile(n *device.Norm) ([]coll.NormPart, error) {
	all, err := t.norms(n.Parts)
	if err != nil {
		return nil, err
	}
	return all, coll.CheckNorm(t, n, all)
}

// norms resolves parts and checks that the parts agree with each other and that the kernel supports them.
func (t *team) norms(parts []device.NormPart) ([]coll.NormPart, error) {
	if err := t.w.err(); err != nil {
		return nil, err
	}
	if t.closed || len(parts) != len(t.members) || len(parts) < 2 {
		return nil, fmt.Errorf("a normalised sum: %d parts for a team of %d members (closed: %v)", len(parts), len(t.members), t.closed)
	}
	if err := t.apart(); err != nil {
		return nil, fmt.Errorf("a normalised sum: %w", err)
	}
	all := make([]coll.NormPart, len(parts))
	for i, p := range parts {
		n := &all[i]
		for k, v := range []device.View{p.In, p.Residual, p.Weight, p.Sum, p.Out} {
			if k == coll.NormSum && !p.Stores() {
				continue
			}
			r, err := t.members[i].dev.resolve(v, false)
			if err != nil {
				return nil, fmt.Errorf("a normalised sum: member %d: %w", i, err)
			}
			r.Detach()
			*n.List()[k] = r
		}
		if err := n.Check(&all[0], coll.NormRoom(t, n.Packs())); err != nil {
			return nil, fmt.Errorf("a normalised sum: member %d: %w", i, err)
		}
	}
	return all, nil
}

func (t *team) PrepareNorm(n *device.Norm) ([]device.Launch, error) {
	defer t.w.guard.Exclusive()()
	all, err := t.worthwhile(n)
	if err != nil {
		return nil, err
	}
	launches := make([]device.Launch, len(all))
	if all[0].In.N == 0 {
		return launches, nil
	}
	steps, err := t.carryOut(coll.PlanNorm(t, n, all))
	if err != nil {
		return nil, fmt.Errorf("a normalised sum: %w", err)
	}
	what := fmt.Sprintf("%s, add and %s", ir.OpAllReduce, ir.OpRMSNorm)
	for _, m := range t.own {
		launches[m.index] = &launch{dev: m.dev, name: what, steps: steps[m.index], member: m, id: -1}
	}
	t.together(what, launches)
	return launches, nil
}

// PrepareNormAhead starts to compile the kernel that computes n, an all_reduce with rms_norm.
func (t *team) PrepareNormAhead(n *device.Norm) {
	t.w.mu.Lock()
	defer t.w.mu.Unlock()
	all, err := t.worthwhile(n)
	if err != nil || all[0].In.N == 0 {
		return
	}
	t.compileAhead(coll.PlanNorm(t, n, all))
}
