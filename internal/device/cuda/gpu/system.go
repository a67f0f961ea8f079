package gpu

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"hocket.example/hocket/internal/nvlib"
)

// System is the driver, its devices, and the libraries that are loaded when first
// needed. Contexts, modules and handles stay for the life of the process, because making
// them takes longer than most runs.
type System struct {
	Driver *nvlib.Driver
	// Lent is the driver for who has the process's GPUs for itself, whose calls are shown by
	// the nvlib.Watch that it was lent to with.
	Lent  *nvlib.Driver
	GPUs  []*GPU
	Reach *reach
	BLAS  func() (*nvlib.CuBLASLt, error)
	NCCL  func() (*nvlib.NCCL, error)
	NVTX  func() (*nvlib.NVTX, error)
	// Patience bounds how long work in flight, none of which waits for anything, is waited
	// for before its device is taken for hung.
	Patience     time.Duration
	CallPatience Patience
	EarlyEdges   bool // graphs can have kernels begin early
	// Multicast says that the user opted in to NVLink multicast.
	Multicast bool
	contexts  sync.Map // GPUs by nvlib.Context
}

// OfContext returns the GPU that a context is of; nil where it is not known.
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
	s := &System{Driver: drv, Lent: drv.Watched(nil), Reach: reach, BLAS: blas, EarlyEdges: version >= edgesCUDA, Patience: 30 * time.Second, CallPatience: defaultPatience}
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

// Patience is how long a call of the driver may take to return before its GPU is lost.
type Patience struct {
	Call  time.Duration // while somebody waits for the result
	Late  time.Duration // when the context of who does has ended, the grace included
	Close time.Duration // when the world is to be closed
}

// Run returns within a second of its deadline and grace, and Machine.Close within five.
var defaultPatience = Patience{Call: time.Minute, Late: 500 * time.Millisecond, Close: 3 * time.Second}

// edgesCUDA is the first version whose graphs have edges between kernels of which
// the second begins before the first has ended.
const edgesCUDA = 12030

// oldestCUDA is the driver's least version, as cuDriverGetVersion tells it.
const oldestCUDA = 12000

// ErrNoDevice says that there is no GPU, and what may hide one.
var ErrNoDevice = errors.New("the NVIDIA driver finds no GPU: check that the host has one and that CUDA_VISIBLE_DEVICES does not hide it")

// laterCompiler is what to do about code that the driver does not take.
const laterCompiler = "libnvrtc may be from a later CUDA version than the driver: hocket doctor shows both versions; HOCKET_LIBNVRTC selects another file"

// WaysOut are what to do about statuses that come where the driver, a GPU or code is first
// used, by the documentation of CUresult.
var WaysOut = map[int]string{
	200: laterCompiler, 209: laterCompiler, 222: laterCompiler, // the image, no binary for the GPU, the version of PTX
	46:  "another process may use the GPU exclusively: nvidia-smi -q -d COMPUTE shows the compute mode",
	802: "on a host with NVSwitch the service nvidia-fabricmanager must run, in the version of the driver",
	803: "libcuda and the kernel's driver have different versions: restart the host after an update; in a container, mount the host's libcuda",
	804: "this libcuda is from a cuda-compat package that does not support this GPU: set HOCKET_LIBCUDA to the driver's libcuda",
}

// Explain adds the way out to what the driver says.
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
