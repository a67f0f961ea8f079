package exec

import (
	"slices"
	"weak"

	"hocket.example/hocket/internal/exec/resident"
	"hocket.example/hocket/internal/tensor"
)

// Weights are global tensors by parameter whose bytes never change. The map must not change either: programs
// know weights again by their address, and then look at nothing that belongs to them, so that what a
// run costs does not grow with their number.
type Weights struct{ of map[string]*tensor.Tensor }

// NewWeights returns the tensors of a map that nobody will change.
func NewWeights(of map[string]*tensor.Tensor) *Weights { return &Weights{of} }

// Tensor returns a parameter's; nil for none.
func (w *Weights) Tensor(name string) *tensor.Tensor {
	if w == nil {
		return nil
	}
	return w.of[name]
}

// settled is what a batch found, and left, of its weights: they fit, and are on the devices.
type settled struct {
	// of are the weights; the zero value for none.
	of weak.Pointer[Weights]
	// changes is the number of resident.Changes then.
	changes uint64
	// rest are the inputs that a run is given otherwise, or that are uploaded for each run.
	rest []int
	// inputs are the commands of rest that a replayed run issues.
	inputs []int
}

// settle notes what a batch has left on the devices.
func (p *Program) settle(weights *Weights) {
	p.settled = settled{}
	if weights == nil {
		return
	}
	s := settled{of: weak.Make(weights), changes: resident.Changes()}
	for i := range p.im.Inputs {
		if weights.of[p.im.Inputs[i].Name] == nil || p.im.Uploads[i] == nil || p.im.Residents[i] != nil {
			s.rest = append(s.rest, i)
		}
	}
	if p.replay != nil {
		for _, c := range p.replay.inputs {
			if cmd := &p.im.Cmds[c]; !p.uploaded.skip[cmd.Part] {
				s.inputs = append(s.inputs, c)
			}
		}
	}
	p.settled = s
}

// unsettled returns the inputs that a batch has to look at, and whether all others are as the batch before has left
// them.
func (p *Program) unsettled(batch []Args, weights *Weights) (ins []int, rest bool) {
	s := &p.settled
	if weights == nil || s.of != weak.Make(weights) || s.changes != resident.Changes() {
		return p.all, false
	}
	if slices.ContainsFunc(batch, func(a Args) bool { return a.gives(weights) }) {
		return p.all, false
	}
	return s.rest, true
}

// gives reports whether a run is given a weight itself.
func (a Args) gives(weights *Weights) bool {
	return names(a.In, weights) || names(a.InLocal, weights) || names(a.DeviceIn, weights) || names(a.InAt, weights)
}

func names[T any](given map[string]T, weights *Weights) bool {
	for name := range given {
		if weights.Tensor(name) != nil {
			return true
		}
	}
	return false
}

// host returns what a run takes a parameter from in the host's memory; nil for nothing.
func (a Args) host(name string, weights *Weights) *tensor.Tensor {
	if t := a.In[name]; t != nil {
		return t
	}
	if a.DeviceIn[name] != nil || a.InLocal[name] != nil || a.InAt[name] != nil {
		return nil
	}
	return weights.Tensor(name)
}
