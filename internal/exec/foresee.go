package exec

import (
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/plan"
)

// Where kernels are compiled, a program's are begun before the first is prepared,
// which would wait for one after the other.

// foresights reports whether the machine takes hints.
func (p *Program) foresights() bool {
	_, ok := p.world.Device(0).(device.Foresighted)
	return ok
}

// foresee has rank's device begin with k.
func (p *Program) foresee(rank int32, k device.Kernel) {
	if d, ok := p.world.Device(int(rank)).(device.Foresighted); ok {
		d.PrepareAhead(k)
	}
}

// foreseeChains takes it that the machine takes every chain of the runs.
func (f *chainFinder) foreseeChains(runs [][]int) {
	if !f.p.foresights() {
		return
	}
	looked := 0
	for _, run := range runs {
		for len(run) > 1 && looked < foreseenMost {
			n := f.longest(run)
			looked += n
			if n > 1 {
				if k, err := f.p.chainKernel(run[:n]); err == nil {
					f.p.foresee(f.p.plan.Cmds[run[0]].Rank, k)
				}
			}
			run = run[n:]
		}
	}
}

// foreseenMost bounds how many commands are looked at: loops are unrolled, and what
// comes late mostly came before.
const foreseenMost = 4096

// foreseeCommands is for those that are in no chain.
func (p *Program) foreseeCommands() {
	if !p.foresights() {
		return
	}
	for i := range min(len(p.plan.Cmds), foreseenMost) {
		c := &p.plan.Cmds[i]
		if c.Kind != plan.Compute || p.chains[i] != nil || !writes(c) {
			continue
		}
		if k, err := p.kernel(c); err == nil {
			p.foresee(c.Rank, k)
		}
	}
}
