package hocket

import (
	"fmt"
	"maps"
	"slices"

	"hocket.example/hocket/internal/exec"
	"hocket.example/hocket/internal/exec/resident"
	"hocket.example/hocket/ir"
)

// BindDevice has all runs to come take a parameter from a device tensor, and, where it is
// inout, leave there what they make of it. Nil takes it back, as Bind of the parameter does.
// A run that is given the parameter, in Args.In or DeviceIn, has nothing to do with the
// tensor: what it makes of an inout one is a result like others. One that is given only what
// is to receive that, in Out or DeviceOut, takes the parameter from the tensor and leaves that
// as it is.
//
// Plans that are loaded from then on work in the tensor itself, and copy nothing, if only
// their own ranks' computations and copies use the parameter: state as large as the devices'
// memory. Where a collective, a copy to another rank or a peer reads or writes it, or it is
// returned under another name, or a run uses the tensor for something else besides, runs
// copy, as with Args.DeviceIn and DeviceOut. A plan works
// in one tensor; for each that is bound in turn there is another, up to LoadOptions.Cache. So
// bind before Prepare and the first Run. A load that a call began has the tensor as the call
// has, and keeps it where it goes on behind that.
//
// A run that fails leaves an inout parameter's tensor without contents, as ever.
func (m *Model) BindDevice(name string, d *DeviceTensor) error {
	if !slices.ContainsFunc(m.fn.Params, func(p *ir.Param) bool { return p.Name == name }) {
		return fmt.Errorf("%s has no parameter %%%s", m.fn.Name, name)
	}
	if d != nil {
		if _, err := m.own(map[string]*DeviceTensor{name: d}); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.bound, name)
	if d == nil {
		delete(m.on, name)
	} else {
		m.on[name] = d
	}
	return nil
}

// onDevices are the bound device tensors at this moment.
func (m *Model) onDevices() map[string]*DeviceTensor {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.on)
}

// takeBound adds bound device tensors to what runs are given.
func (m *Model) takeBound(batch []Args, on map[string]*DeviceTensor) []Args {
	if len(on) == 0 {
		return batch
	}
	batch = slices.Clone(batch)
	for i := range batch {
		batch[i] = m.withBound(batch[i], on)
	}
	return batch
}

func (m *Model) withBound(a Args, on map[string]*DeviceTensor) Args {
	in, out := map[string]*DeviceTensor{}, map[string]*DeviceTensor{}
	for _, p := range m.fn.Params {
		d := on[p.Name]
		_, host := a.In[p.Name]
		_, dev := a.DeviceIn[p.Name]
		if d == nil || host || dev {
			continue
		}
		in[p.Name] = d
		if p.Inout && a.Out[p.Name] == nil && a.DeviceOut[p.Name] == nil {
			out[p.Name] = d
		}
	}
	maps.Copy(in, a.DeviceIn)
	maps.Copy(out, a.DeviceOut)
	a.DeviceIn, a.DeviceOut = in, out
	return a
}

// onlyFitting leaves out the tensors that have other shapes than the parameters that they are
// bound to have for a binding.
func (m *Model) onlyFitting(on map[string]*resident.DeviceTensor, b Binding) error {
	if len(on) == 0 {
		return nil
	}
	bound, err := m.unit.Bind(b.ir())
	if err != nil {
		return m.blame(b, err)
	}
	ports, err := portsOf(bound, m.fn)
	if err != nil {
		return err
	}
	for _, p := range ports {
		if d := on[p.Name]; d != nil && !slices.Equal(d.IO().Shape, p.Shape) {
			delete(on, p.Name)
		}
	}
	return nil
}

// residents are the bound tensors that all runs of a batch take their parameters from and,
// where they are inout, leave them in, and use for nothing else.
func (m *Model) residents(batch []exec.Args, on map[string]*DeviceTensor) map[string]*resident.DeviceTensor {
	all := map[string]*resident.DeviceTensor{}
	for _, p := range m.fn.Params {
		d := on[p.Name]
		if d == nil || len(batch) == 0 {
			continue
		}
		otherwise := func(r exec.Args) bool { return !r.UsesOnlyAs(d.t, p.Name, p.Inout) }
		if !slices.ContainsFunc(batch, otherwise) {
			all[p.Name] = d.t
		}
	}
	return all
}
