package exec

import (
	"fmt"
	"maps"
	"slices"

	"hocket.example/hocket/internal/exec/blocks"
	"hocket.example/hocket/internal/exec/resident"
	"hocket.example/hocket/internal/plan"
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
	// Into are tensors, of the right types and shapes, that receive other results.
	Into map[string]*tensor.Tensor
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
			t.SetContents(there)
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

// UsesOnlyAs reports whether a run takes a parameter from t, leaves it there if it is inout,
// and does nothing else with t: what is copied from it, or to it, would meet what the run
// does there.
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

// checkBatch lists everything that is wrong with the names, types, shapes and places of the
// tensors of the first run that something is wrong with.
func (p *Program) checkBatch(batch []Args, weights *Weights, ins []int) error {
	filled := map[*resident.DeviceTensor]bool{} // by the runs before
	for i, a := range batch {
		wrong := p.wrongInputs(a, weights, ins)
		for _, name := range slices.Sorted(maps.Keys(a.DeviceIn)) {
			if t := a.DeviceIn[name]; !filled[t] && !t.HasContents() {
				wrong = append(wrong, fmt.Sprintf("the device tensor for %s holds nothing: %s", name, resident.HowToFill))
			}
		}
		wrong = append(wrong, p.wrongOutputs(a.DeviceOut)...)
		wrong = append(wrong, p.wrongResidents(a)...)
		wrong = append(wrong, p.wrongEnqueued(a)...)
		if err := blocks.InputError(wrong); err != nil {
			if len(batch) > 1 {
				return fmt.Errorf("run %d of %d: %w", i+1, len(batch), err)
			}
			return err
		}
		for _, t := range a.DeviceOut {
			filled[t] = true
		}
	}
	return nil
}

func (p *Program) wrongInputs(a Args, weights *Weights, ins []int) (wrong []string) {
	for _, i := range ins {
		io := &p.im.Inputs[i]
		switch t := a.DeviceIn[io.Name]; {
		case a.InAt[io.Name] != nil && (t != nil || a.In[io.Name] != nil):
			wrong = append(wrong, fmt.Sprintf("%s is given twice, by addresses and otherwise", io.Name))
		case a.InAt[io.Name] != nil:
			wrong = append(wrong, p.wrongAt(io, a.InAt[io.Name])...)
		case a.InLocal[io.Name] != nil:
			wrong = append(wrong, p.wrongLocal(io, a)...)
		case t == nil:
			wrong = append(wrong, blocks.Wrong(io, a.host(io.Name, weights))...)
		case a.In[io.Name] != nil:
			wrong = append(wrong, fmt.Sprintf("%s is given twice, in the host's memory and on the devices", io.Name))
		default:
			wrong = append(wrong, t.Unlike(io, p.im.Plan.Ranks)...)
		}
	}
	for _, name := range p.unknown(a) {
		wrong = append(wrong, fmt.Sprintf("there is no parameter %s", name))
	}
	return wrong
}

// wrongLocal says what is wrong with blocks for io.
func (p *Program) wrongLocal(io *plan.IO, a Args) (wrong []string) {
	if a.In[io.Name] != nil || a.DeviceIn[io.Name] != nil {
		wrong = append(wrong, fmt.Sprintf("%s is given twice, in blocks and otherwise", io.Name))
	}
	given := a.InLocal[io.Name]
	for _, rank := range slices.Sorted(maps.Keys(given)) {
		if rank < 0 || rank >= p.im.Plan.Ranks || !p.im.World.Local(rank) || io.Of(int32(rank)) == nil {
			wrong = append(wrong, fmt.Sprintf("%s: rank %d has no block of it in this process", io.Name, rank))
		}
	}
	for _, part := range io.Parts {
		rank := int(part.Ref.Rank)
		if !p.im.World.Local(rank) {
			continue
		}
		name := fmt.Sprintf("the block of %s for rank %d", io.Name, rank)
		block := plan.IO{Name: name, DType: io.DType, Shape: part.Ref.Shape}
		wrong = append(wrong, blocks.Wrong(&block, given[rank])...)
	}
	return wrong
}

// unknown lists the names that no parameter has. A run has few, and may have many others.
func (p *Program) unknown(a Args) (names []string) {
	for name := range a.In {
		if _, ok := p.im.FirstBlock[name]; !ok {
			names = append(names, name)
		}
	}
	for name := range a.InLocal {
		if _, ok := p.im.FirstBlock[name]; !ok {
			names = append(names, name)
		}
	}
	for name := range a.DeviceIn {
		if _, ok := p.im.FirstBlock[name]; !ok {
			names = append(names, name)
		}
	}
	for name := range a.InAt {
		if _, ok := p.im.FirstBlock[name]; !ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (p *Program) wrongOutputs(outputs map[string]*resident.DeviceTensor) (wrong []string) {
	taken := map[*resident.DeviceTensor]string{}
	for _, name := range slices.Sorted(maps.Keys(outputs)) {
		t := outputs[name]
		i := slices.IndexFunc(p.im.Outputs, func(io plan.IO) bool { return io.Name == name })
		if i < 0 {
			wrong = append(wrong, fmt.Sprintf("there is no result %s to leave on the devices", name))
			continue
		}
		if other, twice := taken[t]; twice {
			wrong = append(wrong, fmt.Sprintf("one device tensor is to receive %s and %s", other, name))
		}
		taken[t] = name
		wrong = append(wrong, t.Unlike(&p.im.Outputs[i], p.im.Plan.Ranks)...)
	}
	return wrong
}

// wrongResidents says which residents a run is to be given otherwise: it would find, and
// change, what lies there.
func (p *Program) wrongResidents(a Args) (wrong []string) {
	for i, t := range p.im.Residents {
		if io := &p.im.Inputs[i]; t != nil && !a.UsesOnlyAs(t, io.Name, io.Inout) {
			wrong = append(wrong, fmt.Sprintf("%s lies in a device tensor, and the run is to use that otherwise", io.Name))
		}
	}
	return wrong
}

// Inputs are the arguments of runs that take all from the host's memory.
func Inputs(batch []map[string]*tensor.Tensor) []Args {
	args := make([]Args, len(batch))
	for i, in := range batch {
		args[i].In = in
	}
	return args
}
