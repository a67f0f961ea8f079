// Package cuda switches the NVIDIA machine on: import it for its effect, and
// hocket.Open takes the name "cuda".
//
//	import _ "hocket.example/hocket/cuda"
//
// Nothing is loaded before the machine is opened. Needed then are the NVIDIA
// driver for CUDA 12 or newer, libnvrtc and libcublasLt; libnccl is used where
// it is there. Each is looked for by its usual name, in the folders of the CUDA
// toolkit and of Python's nvidia packages; HOCKET_LIBCUDA, HOCKET_LIBNVRTC,
// HOCKET_LIBCUBLASLT, HOCKET_LIBNCCL and HOCKET_LIBNVML name files instead. On
// systems other than Linux, and with the build tag nocuda, opening it is an
// error, and nothing of hocket needs the loader of shared libraries: the binary is static where
// CGO_ENABLED=0 makes Go's own packages so.
package cuda

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda"
	"hocket.example/hocket/internal/device/cuda/coll"
	"hocket.example/hocket/internal/device/cuda/doctor"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/device/cuda/process"
	"hocket.example/hocket/internal/world"
)

// SharedVariable names the environment variable with the number of ranks that
// may share a GPU, 1 by default: for trying programs with more ranks than there
// are GPUs.
const SharedVariable = "HOCKET_RANKS_PER_GPU"

// ProductsVariable names the environment variable that, as "fixed", has cuBLASLt
// compute each product by its first guess of an algorithm that does not split
// sums, instead of the fastest of several that are timed, and as "library" leaves
// hocket's kernel for few rows out of these; TF32Variable the one
// that, as "1", has products of f32 multiply operands of 11 bits.
//
// GraphsVariable names the one that has programs replayed as "one" graph over all
// GPUs or as a graph for "each", instead of the faster. TimeoutVariable names the
// one with how long a GPU waits for another within a collective before the run ends
// with an error, "30s" by default.
//
// P2PVariable names the one that keeps GPUs from using each other's memory: "off" all
// of them, "0-1,0-2" those pairs. What they exchange then goes through host memory, as
// it does where the driver gives no access or a real transfer fails.
//
// MulticastVariable names the one that, as "on", opts in to NVLink multicast: NCCL may
// use it as its own variables say, and sums in any order may be added up by the
// switches (algorithm multimem, which its authors never ran on GPUs). On a host that
// others share a fault of multicast can put GPUs out of service.
const (
	P2PVariable       = gpu.P2PVariable
	MulticastVariable = doctor.MulticastVariable
	GraphsVariable    = "HOCKET_GRAPHS"
	TimeoutVariable   = cuda.TimeoutVariable
	ProductsVariable  = "HOCKET_PRODUCTS"
	TF32Variable      = "HOCKET_TF32"
)

func init() {
	device.Register(device.Kind{Name: "cuda", Open: open, Graphs: true, Profiles: true, Algorithms: coll.Described()})
}

func open(peers *world.World) (device.Machine, error) {
	opts := cuda.Options{Peers: peers}
	if v := os.Getenv(SharedVariable); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%s=%s is no number of ranks", SharedVariable, v)
		}
		opts.RanksPerGPU = n
	}
	switch v := os.Getenv(ProductsVariable); v {
	case "", "measured", "own": // own is what it was called when measured left hocket's kernel out
		opts.Skinny = true
	case "library":
	case "fixed":
		opts.FixedProducts = true
	default:
		return nil, fmt.Errorf("%s=%s: it is measured, library or fixed", ProductsVariable, v)
	}
	switch v := os.Getenv(GraphsVariable); v {
	case "", "measured":
	case "one", "each":
		opts.Graphs = v
	default:
		return nil, fmt.Errorf("%s=%s: it is measured, one or each", GraphsVariable, v)
	}
	if v := os.Getenv(TimeoutVariable); v != "" {
		d, err := time.ParseDuration(v)
		if err != nil || d <= 0 {
			return nil, fmt.Errorf("%s=%s is no time like 30s", TimeoutVariable, v)
		}
		opts.TeamTimeout = d
	}
	switch v := os.Getenv(TF32Variable); v {
	case "", "0":
	case "1":
		opts.TF32 = true
	default:
		return nil, fmt.Errorf("%s=%s: it is 0 or 1", TF32Variable, v)
	}
	return cuda.New(opts)
}

// ExpectStreams says that no rank will have more streams at work than that, in this
// process. Said before a machine is opened it makes that faster, since the driver
// then makes fewer queues; more streams than was said wait for each other without a
// reason, and kernels of collectives then perhaps for good.
func ExpectStreams(rank int) {
	if n, err := strconv.Atoi(os.Getenv(SharedVariable)); err == nil {
		rank *= n
	}
	process.ExpectStreams(rank)
}
