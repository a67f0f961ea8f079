package hocket

import (
	"fmt"
	"slices"

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
	m.snapshot = nil
	delete(m.bound, name)
	if d == nil {
		delete(m.on, name)
	} else {
		m.on[name] = d
	}
	return nil
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
