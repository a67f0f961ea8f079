package cuda

import (
	"strconv"
	"sync"
	"sync/atomic"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device/cuda/gemm"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/device/cuda/guard"
	"hocket.example/hocket/internal/device/cuda/nccl"
	"hocket.example/hocket/internal/nvlib"
)

// system is what the process has of CUDA, and what its worlds share.
type system struct {
	*gpu.System
	locks guard.Process
	pool  nccl.Pool
	picks gemm.Picks
}

func newSystem(drv *nvlib.Driver, blas func() (*nvlib.CuBLASLt, error)) (*system, error) {
	s, err := gpu.NewSystem(drv, blas)
	if err != nil {
		return nil, err
	}
	return &system{System: s, locks: guard.Process{System: s}}, nil
}

// theSystem loads the driver once a process.
var theSystem = sync.OnceValues(func() (*system, error) {
	multicast, err := multicastAsked()
	if err != nil {
		return nil, err
	}
	if _, set := cabi.Getenv(queuesVariable); !set && cabi.Callable {
		if err := cabi.Setenv(queuesVariable, strconv.Itoa(queues(expected.Load()))); err != nil {
			return nil, err
		}
	}
	drv, err := nvlib.OpenDriver()
	if err != nil {
		return nil, gpu.Explain(err)
	}
	s, err := newSystem(drv, sync.OnceValues(nvlib.OpenCuBLASLt))
	if err == nil {
		s.Multicast = multicast
	}
	return s, err
})

// queuesVariable is how many hardware queues the driver gives a GPU.
const queuesVariable = "CUDA_DEVICE_MAX_CONNECTIONS"

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
