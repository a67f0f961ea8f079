package gpu

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"hocket.example/hocket/internal/nvlib"
)

// System holds the driver, its devices, and the libraries, which are loaded when they are first needed. Contexts,
// modules and handles are kept for the life of the process, because creating them takes longer than most executions.
type System struct {
	Driver *nvlib.Driver
	// Lent is the driver for the world that currently has exclusive use of the process's GPUs. The nvlib.Watch of that
	// world monitors the calls.
	Lent  *nvlib.Driver
	GPUs  []*GPU
	Reach *reach
	BLAS  func() (*nvlib.CuBLASLt, error)
	NCCL  func() (*nvlib.NCCL, error)
	NVTX  func() (*nvlib.NVTX, error)
	// Patience is the time limit for unfinished work that does not wait for other work. If work takes longer, its
	// device counts as hung.
	Patience     time.Duration
	CallPatience Patience
	EarlyEdges   bool // graphs support programmatic dependent launch
	// TrialBytes is the size in bytes of a test transfer between two GPUs, at most trialBytes.
	TrialBytes int64
	// ColdBytes is the number of bytes of weights that a trial of a GEMM with few rows reads before it reads the same
	// weight again.
	ColdBytes int64
	// Multicast reports whether the user opted in to NVLink multicast.
	Multicast bool
	contexts  sync.Map // GPU by nvlib.Context
}

// OfContext returns the GPU to which a context belongs; nil if unknown.
func (s *System) OfContext(c nvlib.Context) *GPU {
	g, _ := s.contexts.Load(c)
	gpu, _ := g.(*GPU)
	return gpu
}

// NewSystem describes the driver's devices.
func NewSystem(drv *nvlib.Driver, blas func() (*nvlib.CuBLASLt, error)) (*System, error) {
	version, err := drv.Version()
	if err != nil {
		return nil, err
	}
	if version < oldestCUDA {
		return nil, fmt.Errorf("the NVIDIA driver supports CUDA %d.%d; hocket needs a driver for CUDA %d.%d or newer (branch 525)",
			version/1000, version%1000/10, oldestCUDA/1000, oldestCUDA%1000/10)
	}
	n, err := drv.DeviceCount()
	if err != nil {
		return nil, Explain(err)
	}
	if n == 0 {
		return nil, ErrNoDevice
	}
	reach, err := NewReach(os.Getenv(P2PVariable))
	if err != nil {
		return nil, err
	}
	s := &System{Driver: drv, Lent: drv.Watched(nil), Reach: reach, BLAS: blas, EarlyEdges: version >= edgesCUDA, Patience: 30 * time.Second, CallPatience: defaultPatience,
		TrialBytes: trialBytes, ColdBytes: coldBytes}
	s.NCCL = sync.OnceValues(func() (*nvlib.NCCL, error) { return nvlib.OpenNCCL(s.Multicast) })
	s.NVTX = sync.OnceValues(nvlib.OpenNVTX)
	for i := range n {
		g, err := s.describe(i)
		if err != nil {
			return nil, err
		}
		s.GPUs = append(s.GPUs, g)
	}
	return s, nil
}

// Patience is the time limit of a driver call. A GPU for which a call takes longer counts as lost.
type Patience struct {
	Call  time.Duration // limit while a caller waits for the result
	Late  time.Duration // limit after that caller's context has ended and the grace period has passed
	Close time.Duration // limit while the world is being closed
}

// With these limits Run returns within a second after its deadline and grace period, and Machine.Close within five
// seconds.
var defaultPatience = Patience{Call: time.Minute, Late: 500 * time.Millisecond, Close: 3 * time.Second}

// coldBytes is the default of System.ColdBytes. That many bytes do not fit into the L2 cache, because weights are usually
// not in the cache when a program needs them.
const coldBytes = 128 << 20

// edgesCUDA is the first CUDA version whose graphs support edges of programmatic dependent launch.
const edgesCUDA = 12030

// oldestCUDA is the oldest supported driver version, as cuDriverGetVersion returns it.
const oldestCUDA = 12000

// ErrNoDevice reports that there is no GPU, and suggests causes.
var ErrNoDevice = errors.New("the NVIDIA driver finds no GPU: check that the host has one and that CUDA_VISIBLE_DEVICES does not hide it")

// laterCompiler is the advice for code that the driver rejects.
const laterCompiler = "libnvrtc may be from a later CUDA version than the driver: hocket doctor shows both versions; HOCKET_LIBNVRTC selects another file"

// WaysOut maps CUDA statuses to advice. These statuses can occur at the first use of the driver, of a GPU or of code.
// The advice follows the documentation of CUresult.
var WaysOut = map[int]string{
	200: laterCompiler, 209: laterCompiler, 222: laterCompiler, // invalid image, no binary for the GPU, version of PTX
	46:  "another process may use the GPU exclusively: nvidia-smi -q -d COMPUTE shows the compute mode",
	802: "on a host with NVSwitch the service nvidia-fabricmanager must run, in the version of the driver",
	803: "libcuda and the kernel's driver have different versions: restart the host after an update; in a container, mount the host's libcuda",
	804: "this libcuda is from a cuda-compat package that does not support this GPU: set HOCKET_LIBCUDA to the driver's libcuda",
}

// Explain adds advice to an error of the driver.
func Explain(err error) error {
	code := nvlib.CUDACode(err)
	if code == nvlib.CUDANoDevice {
		return fmt.Errorf("%w (%v)", ErrNoDevice, err)
	}
	if way := WaysOut[code]; way != "" {
		return fmt.Errorf("%w; %s", err, way)
	}
	return err
}
