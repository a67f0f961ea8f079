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

// Args are the tensors of one run, by name. All are global.
type Args struct {
	// In holds every parameter that neither Bind nor BindDevice set.
	In map[string]*Tensor
	// InLocal gives parameters as blocks, by the ranks of this process. It is for machines with a World of several
	// processes, and one process may use it too. The dims of such parameters must follow from Dims, the binding, or
	// other parameters.
	InLocal map[string]map[int]*Tensor
	// Out names tensors that receive results; other results are allocated. If the run fails, or its context ends
	// first, these tensors may be partly written; one that is in In too has then lost its contents. If several
	// results, of one run or a batch, name the same tensor, it holds the last.
	Out map[string]*Tensor
	// Dims are those that neither the binding nor the shapes of other tensors fix. Blocks in InLocal do not fix dims.
	Dims map[string]int64
	// DeviceIn gives parameters that are on the devices, instead of In or what is bound.
	DeviceIn map[string]*DeviceTensor
	// DeviceOut names device tensors that receive results; the report then lacks these results. One tensor may be in
	// both DeviceIn and DeviceOut: an inout parameter is then updated in place.
	//
	// If the run fails, or is aborted because its context and LoadOptions.Grace have ended, the tensors of DeviceOut
	// hold nothing. Tensors that the run only read are unchanged. So alternate between two tensors if state must
	// survive such a failure. A run that ends within the grace leaves its results in DeviceOut, although it returns
	// its context's error. An InputError that has not Begun leaves every tensor unchanged.
	DeviceOut map[string]*DeviceTensor
}

// batched gives the arguments of every run of a batch.
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

// arguments joins bound parameters and a run's arguments.
func arguments(a Args, weights map[string]*tensor.Tensor) (map[string]*tensor.Tensor, error) {
	in := make(map[string]*tensor.Tensor, len(weights)+len(a.In))
	maps.Copy(in, weights)
	for name, t := range a.In {
		if t == nil {
			return nil, fmt.Errorf("%w: %%%s is nil", blocks.ErrInput, name)
		}
		if err := t.host().Check(); err != nil { // a shape without bytes must not set dims
			return nil, fmt.Errorf("%w: %%%s: %w", blocks.ErrInput, name, err)
		}
		in[name] = t.host()
	}
	for name := range a.DeviceIn {
		if a.In[name] == nil {
			delete(in, name) // the bound tensor
		}
	}
	for name := range a.InLocal {
		if a.In[name] == nil {
			delete(in, name)
		}
	}
	return in, nil
}

// shapes adds to the tensors of a run the known shapes of those on the devices.
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

// onDevices reports whether a run has any device tensors.
func (a Args) onDevices() bool { return len(a.DeviceIn)+len(a.DeviceOut) > 0 }

// execArgs returns the arguments of a batch's runs; in returns the host tensors of one run.
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
				return nil, fmt.Errorf("%w: result %%%s has two tensors to receive it, in Out and in DeviceOut",
					blocks.ErrInput, name)
			default:
				r.Into[name] = t.host()
			}
		}
	}
	return runs, nil
}

// hostBlocks converts blocks to those of package exec.
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

// own checks that tensors belong to the model's machine.
func (m *Machine) own(tensors map[string]*DeviceTensor) (map[string]*resident.DeviceTensor, error) {
	own := map[string]*resident.DeviceTensor{}
	for _, name := range slices.Sorted(maps.Keys(tensors)) {
		switch d := tensors[name]; {
		case d == nil, d.t == nil:
			return nil, fmt.Errorf("%w: the device tensor for %%%s is nil, or was not made by NewDeviceTensor",
				blocks.ErrInput, name)
		case !d.t.Of(m.tensors):
			return nil, fmt.Errorf("%w: the device tensor for %%%s is another machine's", blocks.ErrInput, name)
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
