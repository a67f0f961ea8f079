package cuda

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/nvlib"
)

// system is what the process has of CUDA: the driver, its devices, and the
// libraries that are loaded when first needed. Contexts, modules and handles
// stay from world to world, because making them takes longer than most runs.
type system struct {
	drv         *nvlib.Driver
	gpus        []*gpu
	reach       *reach
	blas        func() (*nvlib.CuBLASLt, error)
	nccl        func() (*nvlib.NCCL, error)
	pool        ncclPool
	issueLock   issueLock
	coresidency coresidency
	picks       picks
	// patience bounds how long Close waits for work in flight, none of which
	// waits for anything, before it takes the device for hung.
	patience time.Duration
	edges    bool // graphs can have kernels begin early
	// multicast says that the user opted in to NVLink multicast.
	multicast bool
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
		return nil, explain(err)
	}
	s, err := newSystem(drv, sync.OnceValues(nvlib.OpenCuBLASLt))
	if err == nil {
		s.multicast = multicast
	}
	return s, err
})

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

func newSystem(drv *nvlib.Driver, blas func() (*nvlib.CuBLASLt, error)) (*system, error) {
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
		return nil, explain(err)
	}
	if n == 0 {
		return nil, errNoDevice
	}
	reach, err := newReach(os.Getenv(P2PVariable))
	if err != nil {
		return nil, err
	}
	s := &system{drv: drv, reach: reach, blas: blas, edges: version >= edgesCUDA, patience: 30 * time.Second}
	s.nccl = sync.OnceValues(func() (*nvlib.NCCL, error) { return nvlib.OpenNCCL(s.multicast) })
	for i := range n {
		g, err := s.describe(i)
		if err != nil {
			return nil, err
		}
		s.gpus = append(s.gpus, g)
	}
	return s, nil
}

// edgesCUDA is the first version whose graphs have edges between kernels of which
// the second begins before the first has ended.
const edgesCUDA = 12030

// oldestCUDA is the driver's least version, as cuDriverGetVersion tells it.
const oldestCUDA = 12000

var errNoDevice = errors.New("the NVIDIA driver finds no GPU; is one there, and does CUDA_VISIBLE_DEVICES hide it?")

// laterCompiler is what to do about code that the driver does not take.
const laterCompiler = "libnvrtc may be of a later CUDA than the driver: hocket doctor tells both versions, and HOCKET_LIBNVRTC names another file"

// waysOut are what to do about statuses that come where the driver, a GPU or code is first
// used, by the documentation of CUresult.
var waysOut = map[int]string{
	200: laterCompiler, 209: laterCompiler, 222: laterCompiler, // the image, no binary for the GPU, the version of PTX
	46:  "another process may have it for itself: nvidia-smi -q -d COMPUTE tells the compute mode",
	802: "on a host with NVSwitch the service nvidia-fabricmanager has to run, in the driver's version",
	803: "libcuda and the driver in the kernel are of different versions: restart the host after an update; in a container mount the host's libcuda",
	804: "this libcuda is of a package cuda-compat, which is not for this GPU: name the driver's own in HOCKET_LIBCUDA",
}

// explain adds the way out to what the driver says.
func explain(err error) error {
	code := nvlib.CUDACode(err)
	if code == nvlib.CUDANoDevice {
		return fmt.Errorf("%w (%v)", errNoDevice, err)
	}
	if way := waysOut[code]; way != "" {
		return fmt.Errorf("%w; %s", err, way)
	}
	return err
}

// gpu is a device of the process. mu guards what follows it.
type gpu struct {
	sys   *system
	dev   nvlib.Device
	name  string
	pci   string
	arch  string
	sms   int
	block int                  // bytes of shared memory that a block may have
	early bool                 // kernels can begin early there
	total int64                // bytes
	lost  atomic.Pointer[loss] // nil while it can be used

	mu      sync.Mutex
	ctx     nvlib.Context
	lt      nvlib.LtHandle
	modules map[string]nvlib.Module
	funcs   map[string]nvlib.Function
	shared  map[nvlib.Function]uint32 // dynamic shared memory that launches may use
	ran     map[string]bool           // products that ran here, by key; picks.mu guards it
}

func (s *system) describe(ordinal int) (*gpu, error) {
	g := &gpu{sys: s, modules: map[string]nvlib.Module{}, funcs: map[string]nvlib.Function{}, shared: map[nvlib.Function]uint32{}}
	var err error
	if g.dev, err = s.drv.Device(ordinal); err != nil {
		return nil, err
	}
	if g.name, err = s.drv.DeviceName(g.dev); err != nil {
		return nil, err
	}
	if g.pci, err = s.drv.DevicePCI(g.dev); err != nil {
		return nil, err
	}
	if g.total, err = s.drv.DeviceMemory(g.dev); err != nil {
		return nil, err
	}
	var major, minor, vmm int
	for a, v := range map[nvlib.Attribute]*int{
		nvlib.MultiprocessorCount: &g.sms, nvlib.ComputeCapabilityMajor: &major, nvlib.ComputeCapabilityMinor: &minor,
		nvlib.SharedMemoryOfBlock: &g.block, nvlib.VirtualMemoryManagement: &vmm,
	} {
		if *v, err = s.drv.DeviceAttribute(g.dev, a); err != nil {
			return nil, err
		}
	}
	if vmm == 0 {
		return nil, fmt.Errorf("GPU %d, %s, has no virtual memory management, which hocket needs; CUDA_VISIBLE_DEVICES can leave it out", ordinal, g.name)
	}
	g.arch, g.early = arch(major, minor), major >= 9
	return g, nil
}

// arch names a compute capability for NVRTC, with the features that only that
// architecture has.
func arch(major, minor int) string {
	s := fmt.Sprintf("sm_%d%d", major, minor)
	if major >= 9 {
		s += "a"
	}
	return s
}

// context returns the device's primary context, made at the first call.
func (g *gpu) context() (nvlib.Context, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ctx != 0 {
		return g.ctx, nil
	}
	c, err := g.sys.drv.RetainPrimary(g.dev)
	if err != nil {
		return 0, err
	}
	g.ctx = c
	return c, nil
}

// function returns a kernel of an image, loaded at the first call. The context
// is current.
func (g *gpu) function(key string, image []byte, symbol string) (nvlib.Function, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	name := key + "\x00" + symbol
	if f, ok := g.funcs[name]; ok {
		return f, nil
	}
	m, ok := g.modules[key]
	if !ok {
		var err error
		if m, err = g.sys.drv.LoadModule(image); err != nil {
			return 0, fmt.Errorf("loading kernel %s: %w", symbol, explain(err))
		}
		g.modules[key] = m
	}
	f, err := g.sys.drv.Function(m, symbol)
	if err != nil {
		return 0, fmt.Errorf("kernel %s: %w", symbol, err)
	}
	if err := g.sys.drv.LoadFunction(f); err != nil {
		return 0, fmt.Errorf("bringing kernel %s to GPU %d: %w", symbol, g.dev, err)
	}
	g.funcs[name] = f
	return f, nil
}

// allowShared lets launches of f use that much dynamic shared memory, and never
// less than others of f were promised. The context is current.
func (g *gpu) allowShared(f nvlib.Function, bytes uint32) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if bytes <= max(defaultShared, g.shared[f]) {
		return nil
	}
	if err := g.sys.drv.AllowShared(f, int(bytes)); err != nil {
		return err
	}
	g.shared[f] = bytes
	return nil
}

// ltHandle returns cuBLASLt and its handle for the device. The context is
// current.
func (g *gpu) ltHandle() (*nvlib.CuBLASLt, nvlib.LtHandle, error) {
	lib, err := g.sys.blas()
	if err != nil {
		return nil, 0, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.lt == 0 {
		if g.lt, err = lib.Create(); err != nil {
			return nil, 0, err
		}
	}
	return lib, g.lt, nil
}
