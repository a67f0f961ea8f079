package fakedriver

import (
	"fmt"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
)

// User implements kernels.Library. Kernels of the user are Go functions, by name.
func (f *GPU) User(_ kernels.Target, u kernels.User) (kernels.Step, error) {
	do := f.Users[u.File+":"+u.Entry]
	if do == nil {
		return kernels.Step{}, fmt.Errorf("%w: the fake driver has no kernel %s", device.ErrUnsupported, u.Entry)
	}
	s := f.step("user", func() { do(u.Params) })
	s.Shape, s.Params = u.Shape, u.Params
	return s, nil
}

// Unchanged implements kernels.Library.
func (f *GPU) Unchanged(_ kernels.Target, u kernels.Unchanged) (kernels.Step, error) {
	return f.step("unchanged", func() {
		now, before := cabi.Bytes(uintptr(u.Now), int(u.Bytes)), cabi.Bytes(uintptr(u.Before), int(u.Bytes))
		for k := range now {
			if now[k] != before[k] {
				report(kernels.Computation{Fault: u.Fault, Tag: u.Tag}, u.Kind, int64(u.Argument),
					u.First+int64(k)/u.Size, 0)
				return
			}
		}
	}), nil
}

func (f *GPU) step(kind string, do func()) kernels.Step {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	f.next++
	name := fmt.Sprint(kind, f.next)
	f.Named[name] = func(uintptr) { do() }
	return kernels.Step{Image: []byte("fake"), Key: name, Symbol: name,
		Shape: nvlib.Shape{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}}}
}
