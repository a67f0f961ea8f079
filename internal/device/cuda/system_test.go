package cuda

import (
	"errors"

	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/device/cuda/process"
	"hocket.example/hocket/internal/nvlib"
)

// system returns the CUDA state of a process on a fake driver.
func system(f *fakedriver.GPU) *process.Shared {
	sys, err := process.New(f.Driver(), f.CuBLASLt)
	if err != nil {
		f.Fatal(err)
	}
	sys.NCCL = func() (*nvlib.NCCL, error) { return nil, errors.New("the fake has no NCCL") }
	sys.TrialBytes, sys.ColdBytes = 4<<10, 16<<20 // of a fake, which has no cache, the test needs only few
	return sys
}
