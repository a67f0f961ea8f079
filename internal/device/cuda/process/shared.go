// Package process holds the CUDA state that all worlds of a process share: Shared, which Open creates once. Examine
// reports on libraries and GPUs.
package process

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device/cuda/doctor"
	"hocket.example/hocket/internal/device/cuda/gemm"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/device/cuda/guard"
	"hocket.example/hocket/internal/device/cuda/nccl"
	"hocket.example/hocket/internal/nvlib"
)

// Shared is the CUDA state of the process, used by all its worlds.
type Shared struct {
	*gpu.System
	Locks guard.Process
	NCCLs nccl.Pool
	Picks gemm.Picks
}

// New returns the state for the driver's GPUs. The function blas opens cuBLASLt when it is first needed.
func New(drv *nvlib.Driver, blas func() (*nvlib.CuBLASLt, error)) (*Shared, error) {
	s, err := gpu.NewSystem(drv, blas)
	if err != nil {
		return nil, err
	}
	return &Shared{System: s, Locks: guard.Process{System: s}}, nil
}

// Open loads the driver once per process, and returns the process's CUDA state.
var Open = sync.OnceValues(func() (*Shared, error) {
	multicast, err := multicastAsked()
	if err != nil {
		return nil, err
	}
	if _, set := cabi.Getenv(QueuesVariable); !set && cabi.Callable {
		if err := cabi.Setenv(QueuesVariable, strconv.Itoa(queues(expected.Load()))); err != nil {
			return nil, err
		}
	}
	drv, err := nvlib.OpenDriver()
	if err != nil {
		return nil, gpu.Explain(err)
	}
	s, err := New(drv, sync.OnceValues(nvlib.OpenCuBLASLt))
	if err == nil {
		s.Multicast = multicast
		opened.Store(s)
	}
	return s, err
})

// opened is the result of Open; nil before Open.
var opened atomic.Pointer[Shared]

// Keep saves the context that is current on the calling thread, and returns a function that makes it current again.
// Keep is called when C code calls Go, because other libraries of the C program, such as torch, rely on their current
// context. Before Open, Keep does nothing.
func Keep() (restore func()) {
	if s := opened.Load(); s != nil {
		return s.Driver.Keep()
	}
	return func() {}
}

// QueuesVariable is the driver's environment variable for the number of hardware queues of a GPU.
const QueuesVariable = "CUDA_DEVICE_MAX_CONNECTIONS"

// expected is the number of streams per GPU that the process declared with ExpectStreams; 0 if it did not.
var expected atomic.Int32

// ExpectStreams declares that no GPU will have more than n streams in use. It must be called before the process opens
// its first machine. The fewer streams are declared, the faster machines open.
func ExpectStreams(n int) { expected.Store(int32(n)) }

// queues returns the number of hardware queues for each GPU. The driver reads the number once. If there are more
// streams than queues, streams that share a queue wait for each other needlessly. The driver's default is 8 queues.
// With the maximum of 32 queues, opening takes 0.35 s longer per GPU.
func queues(streams int32) int {
	if streams <= 0 {
		return 32
	}
	return int(min(max(streams, 8), 32))
}

// multicastAsked reports whether the user has enabled NVLink multicast.
func multicastAsked() (bool, error) {
	switch v := os.Getenv(doctor.MulticastVariable); v {
	case "", doctor.MulticastOff:
		return false, nil
	case doctor.MulticastOn:
		return true, nil
	default:
		return false, fmt.Errorf("%s=%s: it is %s or %s", doctor.MulticastVariable, v,
			doctor.MulticastOn, doctor.MulticastOff)
	}
}
