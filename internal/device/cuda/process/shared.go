// Package process has the CUDA state that all worlds of a process share: Shared, which Open creates once. Examine
// reports on it.
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

// Shared is what the process has of CUDA, and what its worlds share.
type Shared struct {
	*gpu.System
	Locks guard.Process
	NCCLs nccl.Pool
	Picks gemm.Picks
}

// New describes the driver's GPUs. blas opens cuBLASLt when it is first needed.
func New(drv *nvlib.Driver, blas func() (*nvlib.CuBLASLt, error)) (*Shared, error) {
	s, err := gpu.NewSystem(drv, blas)
	if err != nil {
		return nil, err
	}
	return &Shared{System: s, Locks: guard.Process{System: s}}, nil
}

// Open loads the driver once a process.
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

// opened is what Open made.
var opened atomic.Pointer[Shared]

// Keep returns what makes the context current again that is current on the calling thread: where C calls Go, its other
// libraries, such as torch, count on theirs. Before Open there is no driver to ask.
func Keep() (restore func()) {
	if s := opened.Load(); s != nil {
		return s.Driver.Keep()
	}
	return func() {}
}

// QueuesVariable is how many hardware queues the driver gives a GPU.
const QueuesVariable = "CUDA_DEVICE_MAX_CONNECTIONS"

// expected is how many streams of a GPU are expected to be at work; 0 for any.
var expected atomic.Int32

// ExpectStreams says that no GPU will have more streams at work than that, before
// the first machine of the process is made: it is then opened faster.
func ExpectStreams(n int) { expected.Store(int32(n)) }

// queues is how many hardware queues a GPU is to have, which the driver reads
// once. Streams beyond it share one, and then wait for each other without a reason.
// The driver's own number is 8 and the most 32, which take it 0.35 s longer a GPU.
func queues(streams int32) int {
	if streams <= 0 {
		return 32
	}
	return int(min(max(streams, 8), 32))
}

// multicastAsked reports whether the user opted in.
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
