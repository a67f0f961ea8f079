package hocket

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"hocket.example/hocket/internal/exec"
	"hocket.example/hocket/internal/exec/blocks"
	"hocket.example/hocket/internal/exec/resident"
	"hocket.example/hocket/internal/tensor"
)

// Args holds the arguments of one run: its tensors, keyed by the names of parameters and results, and its dims. All
// tensors are global, except the blocks in InLocal.
type Args struct {
	// In holds a tensor for every parameter that neither Bind nor BindDevice has set.
	In map[string]*Tensor
	// InLocal holds parameters as blocks, keyed by the parameter's name and then by the rank, which this process must
	// drive. It is meant for machines with a World of several processes, but a single process may use it too. The dims of
	// a parameter in InLocal must follow from Dims, from the binding, or from other parameters.
	InLocal map[string]map[int]*Tensor
	// Out holds tensors that receive results, keyed by the results' names. The run allocates the tensor of a result
	// that Out lacks or maps to nil. If the run fails, or its context ends first, the tensors in Out may be partly
	// written; a tensor that is also in In has then lost its contents. If several results of one run, or of one batch,
	// name the same tensor, the tensor holds the last result. If two tensors that are each in In and in Out under one
	// name share memory, the run returns ErrInput.
	Out map[string]*Tensor
	// Dims sets the dims that neither the binding nor the shapes of other tensors fix. The shapes of blocks in InLocal do
	// not fix dims.
	Dims map[string]int64
	// DeviceIn holds parameters as tensors on the devices. A tensor in DeviceIn is used instead of the parameter's
	// tensor in In or its bound tensor.
	DeviceIn map[string]*DeviceTensor
	// DeviceOut holds device tensors that receive results; the run's report omits these results. The same tensor may be
	// in both DeviceIn and DeviceOut, so that the run updates an inout parameter in place.
	//
	// If the run fails, or is aborted because its context and then LoadOptions.Grace have ended, the tensors in
	// DeviceOut have no defined contents. Tensors that the run only read are unchanged. To keep state across such a
	// failure, alternate between two tensors. If the context ends and the run still succeeds within the grace, its
	// results are in DeviceOut although it returns the context's error. An InputError whose Begun is false leaves every
	// tensor unchanged.
	DeviceOut map[string]*DeviceTensor
}

// batched returns the arguments of every run of a batch, each joined with the bound parameters.
func batched(batch []Args, weights map[string]*tensor.Tensor) ([]map[string]*tensor.Tensor, error) {
	ins := make([]map[string]*tensor.Tensor, len(batch))
	for i, a := range batch {
		in, err := arguments(a, weights)
		if err != nil {
			return nil, err
		}
		ins[i] = in
	}
	return ins, nil
}

// arguments joins the bound parameters and the arguments of a run.
func arguments(a Args, weights map[string]*tensor.Tensor) (map[string]*tensor.Tensor, error) {
	in := make(map[string]*tensor.Tensor, len(weights)+len(a.In))
	maps.Copy(in, weights)
	for name, t := range a.In {
		if t == nil {
			return nil, fmt.Errorf("%w: the tensor for %%%s is nil", blocks.ErrInput, name)
		}
		if err := t.host().Check(); err != nil { // a tensor with a shape but too few elements must not set dims
			return nil, fmt.Errorf("%w: %%%s: %w", blocks.ErrInput, name, err)
		}
		in[name] = t.host()
	}
	for name := range a.DeviceIn {
		if a.In[name] == nil {
			delete(in, name) // the run's argument replaces the bound tensor
		}
	}
	for name := range a.InLocal {
		if a.In[name] == nil {
			delete(in, name)
		}
	}
	return in, nil
}

// shapes returns the host tensors of a run, and a header in place of each device tensor of the run. A header has the
// device tensor's shape and no elements.
func shapes(a Args, in map[string]*tensor.Tensor) map[string]*tensor.Tensor {
	if len(a.DeviceIn) == 0 {
		return in
	}
	in = maps.Clone(in)
	for name, d := range a.DeviceIn {
		in[name] = d.header()
	}
	return in
}

// onDevices reports whether the arguments contain any device tensors.
func (a Args) onDevices() bool { return len(a.DeviceIn)+len(a.DeviceOut) > 0 }

// execArgs converts the arguments of a batch's runs to the types of package exec. in holds each run's host tensors.
func (m *Machine) execArgs(batch []Args, in []map[string]*tensor.Tensor) ([]exec.Args, error) {
	runs := make([]exec.Args, len(batch))
	for i, a := range batch {
		var err, oerr error
		r := &runs[i]
		r.In, r.InLocal = in[i], hostBlocks(a.InLocal)
		r.DeviceIn, err = m.own(a.DeviceIn)
		r.DeviceOut, oerr = m.own(a.DeviceOut)
		if err := errors.Join(err, oerr); err != nil {
			return nil, err
		}
		r.Into = map[string]*tensor.Tensor{}
		for _, name := range slices.Sorted(maps.Keys(a.Out)) {
			switch t := a.Out[name]; {
			case t == nil:
			case a.DeviceOut[name] != nil:
				return nil, fmt.Errorf("%w: result %%%s has two destinations, in Out and in DeviceOut: remove one of them",
					blocks.ErrInput, name)
			default:
				r.Into[name] = t.host()
			}
		}
	}
	return runs, nil
}

// hostBlocks converts blocks to the type that package exec uses.
func hostBlocks(all map[string]map[int]*Tensor) map[string]map[int]*tensor.Tensor {
	if len(all) == 0 {
		return nil
	}
	out := map[string]map[int]*tensor.Tensor{}
	for name, parts := range all {
		out[name] = map[int]*tensor.Tensor{}
		for rank, t := range parts {
			if t != nil {
				out[name][rank] = t.host()
			}
		}
	}
	return out
}

// own checks that every tensor belongs to the machine, and returns the resident.DeviceTensor of each.
func (m *Machine) own(tensors map[string]*DeviceTensor) (map[string]*resident.DeviceTensor, error) {
	own := map[string]*resident.DeviceTensor{}
	for _, name := range slices.Sorted(maps.Keys(tensors)) {
		switch d := tensors[name]; {
		case d == nil, d.t == nil:
			return nil, fmt.Errorf("%w: the device tensor for %%%s is nil, or was not created by NewDeviceTensor",
				blocks.ErrInput, name)
		case !d.t.Of(m.tensors):
			return nil, fmt.Errorf("%w: the device tensor for %%%s belongs to another machine", blocks.ErrInput, name)
		default:
			own[name] = d.t
		}
	}
	return own, nil
}

// usesOf returns the device tensors that a batch reads and those that it writes.
func usesOf(batch []exec.Args) (reads, writes []*resident.DeviceTensor) {
	read, written := map[*resident.DeviceTensor]bool{}, map[*resident.DeviceTensor]bool{}
	for _, a := range batch {
		for _, t := range a.DeviceOut {
			written[t] = true
		}
	}
	for _, a := range batch {
		for _, t := range a.DeviceIn {
			if !written[t] {
				read[t] = true
			}
		}
	}
	return slices.Collect(maps.Keys(read)), slices.Collect(maps.Keys(written))
}
