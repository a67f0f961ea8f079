package cuda

import (
	"bytes"
	"fmt"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
)

// User is a Library's: kernels of the user's are Go functions, by name.
func (f *fakeGPU) User(_ kernels.Target, u kernels.User) (kernels.Step, error) {
	do := f.users[u.File+":"+u.Entry]
	if do == nil {
		return kernels.Step{}, fmt.Errorf("%w: the fake has no %s", device.ErrUnsupported, u.Entry)
	}
	s := f.step("user", func() { do(u.Params) })
	s.Shape, s.Params = u.Shape, u.Params
	return s, nil
}

// Unchanged is a Library's.
func (f *fakeGPU) Unchanged(_ kernels.Target, u kernels.Unchanged) (kernels.Step, error) {
	n := int(u.Now.DType.Size())
	for _, e := range u.Now.Shape {
		n *= int(e)
	}
	return f.step("unchanged", func() {
		now, before := cabi.Bytes(uintptr(u.Now.Addr), n), cabi.Bytes(uintptr(u.Before.Addr), n)
		if !bytes.Equal(now, before) {
			report(kernels.Problem{Fault: u.Fault, Tag: u.Tag}, kernels.FaultWritten, int64(u.Argument), 0, 0)
		}
	}), nil
}

func (f *fakeGPU) step(kind string, do func()) kernels.Step {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next++
	name := fmt.Sprint(kind, f.next)
	f.named[name] = func(uintptr) { do() }
	return kernels.Step{Image: []byte("fake"), Key: name, Symbol: name, Shape: nvlib.Shape{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}}}
}
