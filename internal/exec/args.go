package exec

import (
	"hocket.example/hocket/internal/exec/resident"
	"hocket.example/hocket/internal/tensor"
)

// Args are one run's tensors. A device tensor may be in both DeviceIn and DeviceOut.
type Args struct {
	// In are global tensors in the host's memory, by parameter. They are read until the
	// run returns. Parameters that nothing gives are taken from the batch's Weights.
	In map[string]*tensor.Tensor
	// InLocal are, by parameter and rank, the blocks of this process's ranks, instead of a global tensor.
	InLocal map[string]map[int]*tensor.Tensor
	// DeviceIn are taken from the devices instead.
	DeviceIn map[string]*resident.DeviceTensor
	// DeviceOut are, by result, where it is left on the devices.
	DeviceOut map[string]*resident.DeviceTensor
	// InAt and OutAt are, of a run that is Enqueued, parameters and results by addresses in memory of ranks' devices,
	// a dense block each.
	InAt, OutAt map[string]map[int]uintptr
	Enqueued    bool
	// Lend holds results of such a run that stay in place, by name. Enqueue sets the addresses, by rank.
	Lend map[string]map[int]uintptr
	// Into are tensors, of the right types and shapes, that receive other results.
	Into map[string]*tensor.Tensor
}

// Batch is a sequence of runs, and the weights used for arguments that a run does not set. Neither may change once the
// batch has run: a program recognizes the batch that it ran last by its address, and then checks little of it.
type Batch struct {
	Runs    []Args
	Weights *Weights
}

// ready reports whether all device tensors that the runs take hold something, and none that they name is lost.
func (b *Batch) ready() bool {
	for _, a := range b.Runs {
		for _, t := range a.DeviceIn {
			if !t.HasContents() || t.Lost() != nil {
				return false
			}
		}
		for _, t := range a.DeviceOut {
			if t.Lost() != nil {
				return false
			}
		}
	}
	return true
}

// SpoiledError is the error of a run that was to update in place what it was given, and may
// have begun to: it cannot be run again from that.
type SpoiledError struct{ Err error }

// Error says so.
func (e *SpoiledError) Error() string {
	return e.Err.Error() + "; what the run was given to update in place is lost"
}

// Unwrap returns the run's error.
func (e *SpoiledError) Unwrap() error { return e.Err }

// setContents says of what a batch leaves on the devices whether it is there.
func setContents(batch []Args, there bool) {
	for _, a := range batch {
		for _, t := range a.DeviceOut {
			if there {
				t.Put(true)
			} else {
				t.SetContents(false)
			}
		}
	}
}

// updates reports whether a batch writes to a device tensor whose contents it takes.
func updates(batch []Args) bool {
	taken, filled := map[*resident.DeviceTensor]bool{}, map[*resident.DeviceTensor]bool{}
	for _, a := range batch {
		for _, t := range a.DeviceIn {
			taken[t] = taken[t] || !filled[t]
		}
		for _, t := range a.DeviceOut {
			filled[t] = true
		}
	}
	for t := range filled {
		if taken[t] {
			return true
		}
	}
	return false
}

// UsesOnlyAs reports whether a run takes a parameter from t, leaves it there if it is inout, and does nothing else
// with t. A further copy from or to t would conflict with the run's accesses.
func (a Args) UsesOnlyAs(t *resident.DeviceTensor, param string, inout bool) bool {
	other := func(all map[string]*resident.DeviceTensor, name string) bool {
		for n, o := range all {
			if o == t && n != name {
				return true
			}
		}
		return false
	}
	if a.DeviceIn[param] != t || other(a.DeviceIn, param) {
		return false
	}
	if !inout {
		return !other(a.DeviceOut, "")
	}
	return a.DeviceOut[param] == t && !other(a.DeviceOut, param)
}

// Inputs are the arguments of runs that take all from the host's memory.
func Inputs(batch []map[string]*tensor.Tensor) []Args {
	args := make([]Args, len(batch))
	for i, in := range batch {
		args[i].In = in
	}
	return args
}

// Weights are global tensors by parameter whose bytes never change. The map must not change either: programs
// know weights again by their address, and then look at nothing that belongs to them, so that what a
// run costs does not grow with their number.
type Weights struct{ of map[string]*tensor.Tensor }

// NewWeights returns the weights with the tensors of a map, which must not change afterwards.
func NewWeights(of map[string]*tensor.Tensor) *Weights { return &Weights{of} }

// Tensor returns a parameter's; nil for none.
func (w *Weights) Tensor(name string) *tensor.Tensor {
	if w == nil {
		return nil
	}
	return w.of[name]
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
