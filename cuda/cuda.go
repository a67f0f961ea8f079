// Package cuda registers the NVIDIA machine as "cuda", a name that hocket.Open then accepts. It is imported for this
// effect only.
//
//	import _ "hocket.example/hocket/cuda"
//
// Importing it loads no library. Opening the machine loads the NVIDIA driver for CUDA 12 or newer, libnvrtc,
// libcublasLt and, if it is installed, libnccl. Each library is searched for by its usual
// name, in the folders of the CUDA toolkit and of Python's nvidia packages. The variables HOCKET_LIBCUDA,
// HOCKET_LIBNVRTC, HOCKET_LIBCUBLASLT, HOCKET_LIBNCCL and HOCKET_LIBNVML name files to load instead. On systems other
// than Linux, and with the build tag nocuda, opening the machine returns an error. Hocket then needs no loader of
// shared libraries, so with CGO_ENABLED=0 the binary is static.
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

// SharedVariable names the environment variable that sets how many ranks may share a GPU, 1 by default. Larger values
// serve to try programs with more ranks than GPUs.
const SharedVariable = "HOCKET_RANKS_PER_GPU"

// ProductsVariable names the environment variable that selects how matrix products are computed. By default, several
// algorithms are timed, and the fastest is used. With "library", hocket's kernel for few rows is not among them. With
// "fixed", cuBLASLt computes each product by the first algorithm of its heuristic that does not split sums.
// TF32Variable names the variable that, if it is "1", rounds the operands of f32 products to TF32, which has 11 bits of
// precision.
//
// GraphsVariable names the variable that selects how programs are replayed: "one" graph over all GPUs, or "each" GPU a
// graph. By default the faster form is used. TimeoutVariable names the variable that sets how long a GPU waits for
// another one within a collective before the run ends with an error, "30s" by default.
//
// P2PVariable names the variable that disables peer access between GPUs: "off" for all, "0-1,0-2" for these pairs. Data
// between such GPUs goes through host memory, as if the driver refused peer access or a test transfer had failed.
//
// MulticastVariable names the variable that, if it is "on", enables NVLink multicast. NCCL may then use multicast as
// NCCL's own variables say, and NVLink switches may compute sums with order=any, by the algorithm multimem, which has
// never run on GPUs. On a host that is shared with others, a failure of multicast can make GPUs unusable for all.
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
	case "", "measured", "own": // "own" is the former name of "measured", from when the default left out hocket's kernel
		opts.Skinny = true
	case "library":
	case "fixed":
		opts.FixedProducts = true
	default:
		return nil, fmt.Errorf("%s=%s: the values are measured, library and fixed", ProductsVariable, v)
	}
	switch v := os.Getenv(GraphsVariable); v {
	case "", "measured":
	case "one", "each":
		opts.Graphs = v
	default:
		return nil, fmt.Errorf("%s=%s: the values are measured, one and each", GraphsVariable, v)
	}
	if v := os.Getenv(TimeoutVariable); v != "" {
		d, err := time.ParseDuration(v)
		if err != nil || d <= 0 {
			return nil, fmt.Errorf("%s=%s is not a duration such as 30s", TimeoutVariable, v)
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

// ExpectStreams declares that no rank of this process will use more than the given number of streams at the same time.
// If it is called before a machine is opened, opening is faster, because the driver then creates fewer hardware queues.
// If a rank uses more streams than that, streams wait for each other without need, and kernels of collectives may wait
// forever.
func ExpectStreams(rank int) {
	if n, err := strconv.Atoi(os.Getenv(SharedVariable)); err == nil {
		rank *= n
	}
	process.ExpectStreams(rank)
}
