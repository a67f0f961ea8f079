package exec

import (
	"hocket.example/hocket/internal/exec/resident"
	"hocket.example/hocket/internal/tensor"
)

// Args holds the arguments of one run. A device tensor may be in both DeviceIn and DeviceOut.
type Args struct {
	// In holds global tensors in host memory, by parameter. The run reads these tensors until it returns. A parameter
	// without an argument is read from the batch's Weights.
	In map[string]*tensor.Tensor
	// InLocal holds, by parameter and rank, the blocks of this process's ranks, as an alternative to a global tensor.
	InLocal map[string]map[int]*tensor.Tensor
	// DeviceIn holds, by parameter, device tensors that the run reads.
	DeviceIn map[string]*resident.DeviceTensor
	// DeviceOut holds, by result, device tensors that the run writes.
	DeviceOut map[string]*resident.DeviceTensor
	// InAt and OutAt hold, for an enqueued run, the addresses of parameters and results by name and rank. Each address is
	// that of a dense block in the memory of the rank's device.
	InAt, OutAt map[string]map[int]uintptr
	Enqueued    bool
	// Lend names results of an enqueued run that remain in place in the arena. Enqueue stores the addresses of these
	// results in Lend, by rank.
	Lend map[string]map[int]uintptr
	// Into holds tensors, of the right types and shapes, that receive the results that DeviceOut, OutAt and Lend do not
	// contain.
	Into map[string]*tensor.Tensor
}

// Batch is a sequence of runs, together with the weights used for arguments that a run does not set. Neither the runs
// nor the weights may change after the batch has run. A program recognizes the batch that it ran last by its address,
// and then skips most checks.
type Batch struct {
	Runs    []Args
	Weights *Weights
}

// ready reports whether all device tensors that the runs read have contents, and no device tensor of the runs is lost.
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

// SpoiledError is the error of a run that may have begun to update its arguments in place. The run cannot be repeated
// with these arguments.
type SpoiledError struct{ Err error }

// Error returns the run's error and states that the updated arguments are lost.
func (e *SpoiledError) Error() string {
	return e.Err.Error() + "; arguments that the run updates in place now have undefined contents"
}

// Unwrap returns the run's error.
func (e *SpoiledError) Unwrap() error { return e.Err }

// setContents records for each device tensor that a batch writes whether its contents are defined.
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

// updates reports whether a batch writes to a device tensor whose earlier contents it reads.
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

// UsesOnlyAs reports whether a run reads a parameter from t, writes the new value to t if the parameter is inout, and
// does not use t otherwise. An additional copy from or to t would conflict with these accesses.
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

// Inputs returns the arguments of runs that read all parameters from host memory.
func Inputs(batch []map[string]*tensor.Tensor) []Args {
	args := make([]Args, len(batch))
	for i, in := range batch {
		args[i].In = in
	}
	return args
}

// Weights holds global tensors by parameter whose bytes never change. The map must not change either: programs
// recognize weights by their address and then skip checking and uploading them, so that the cost of a run does not grow
// with the number of weights.
type Weights struct{ of map[string]*tensor.Tensor }

// NewWeights returns the weights with the tensors of a map, which must not change afterwards.
func NewWeights(of map[string]*tensor.Tensor) *Weights { return &Weights{of} }

// Tensor returns the weight for a parameter; nil if there is none.
func (w *Weights) Tensor(name string) *tensor.Tensor {
	if w == nil {
		return nil
	}
	return w.of[name]
}

// gives reports whether the arguments of a run contain a parameter, in place of its weight.
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

// host returns the host tensor from which a run reads a parameter; nil if the run reads the parameter from a device
// tensor or an address.
func (a Args) host(name string, weights *Weights) *tensor.Tensor {
	if t := a.In[name]; t != nil {
		return t
	}
	if a.DeviceIn[name] != nil || a.InLocal[name] != nil || a.InAt[name] != nil {
		return nil
	}
	return weights.Tensor(name)
}
