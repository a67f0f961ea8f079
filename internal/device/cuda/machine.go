// Package cuda is the NVIDIA machine. It drives GPUs through the driver API, one rank on each. One process drives all
// GPUs, or several processes, on one node or several, drive some each (see processes.go).
//
// # Order
//
// The machine never issues a wait before the work that the wait depends on. If an event's record or a counter's signals
// have not been issued yet, the host holds back the wait and all later work of the stream until they are issued.
// Signals, and waits for counters, become event records and event waits, which the driver can schedule. Therefore
// streams that share a hardware queue cannot deadlock each other. If no remaining call can release the work that is
// held back, the machine reports a deadlock without delay.
//
// Three kinds of work do wait on devices. Kernels of teams wait for each other (see team.go). Graphs of one GPU each
// wait for flags that the others raise (see graph_flags.go). Streams wait for counters of other processes (see
// peer_counters.go). Such waits on devices have a time limit, and end when the world ends. The work that they wait for
// is issued before any call that could block the driver (see package guard), or another process issues this work in the
// order of the same plan.
//
// # Host memory
//
// No device reads or writes Go memory: uploads and downloads go through pinned buffers. A download is copied to the
// caller's bytes during Sync. Copies between GPUs without peer access (see peer_access.go) go through pinned buffers,
// too (see host_staged.go).
//
// # Faults
//
// An error of a device ends the world. After an error of a driver call, another world can be opened. After an error of
// work on a device, such as an illegal address, the driver answers every call about that device with the same error
// until the process ends: the device is lost, worlds on it end, and Open fails with device.ErrDeviceLost and the cause.
package cuda

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/coll"
	"hocket.example/hocket/internal/device/cuda/peers"
	"hocket.example/hocket/internal/device/cuda/process"
	"hocket.example/hocket/internal/kernels"
	procs "hocket.example/hocket/internal/world"
	"hocket.example/hocket/ir"
)

// Options choose how the machine runs; the zero value is usable.
type Options struct {
	// Kernels makes the kernels. If nil, package kernels is used, which compiles with NVRTC and caches on disk.
	Kernels Library
	// RanksPerGPU is the largest number of ranks that share a GPU. Tests set it for programs that need more ranks than
	// there are GPUs. 0 means 1.
	RanksPerGPU int
	// FixedProducts selects, for each GEMM, the first algorithm that cuBLASLt proposes and that does not split sums,
	// instead of timing several algorithms. Timing may select different algorithms on different machines or on
	// different days, so that sums are computed in a different order, within the same error bound (S11).
	FixedProducts bool
	// Skinny enables hocket's own kernel for GEMMs of few rows, which is timed in addition to cuBLASLt's algorithms.
	Skinny bool
	// TF32 rounds the operands of f32 GEMMs to 11 significant bits and accumulates in f32. TF32 is about eight times as
	// fast as f32, but its error exceeds the bound (S11).
	TF32 bool
	// Cache stores the selected algorithms on disk. If nil, the cache of package kernels is used. If Kernels is set
	// too, nothing is stored.
	Cache *kernels.Cache
	// Graphs selects the form of recorded graphs: "one" for one graph that covers all GPUs, "each" for a graph for each
	// GPU, joined by flags. If empty, both forms are recorded, so that the caller can measure both and select one.
	Graphs string
	// TeamTimeout limits how long a team's kernel waits for a peer, how long a graph's section waits for the section of
	// another GPU, and how long NCCL may take to load for its first call. The world ends if a wait exceeds this limit.
	// 0 means 30 seconds.
	TeamTimeout time.Duration
	// Peers represents the processes that share the ranks of every world; nil if this process runs all ranks. All of
	// these processes must open a machine with Peers set, and open the same worlds in the same order.
	Peers *procs.World

	teamsLate bool // a team's kernel never begins before the previous kernel has ended
	// teamsApart issues each member's kernel when it is the next task of its stream, without waiting for the other
	// members.
	teamsApart bool
	hostParts  *coll.HostParts // replaces the measured sizes of parts that go through host memory; nil to use these
}

func (o *Options) teamTimeout() time.Duration {
	if o.TeamTimeout == 0 {
		return teamTimeout
	}
	return o.TeamTimeout
}

// New returns a machine with the GPUs that this process sees. If there is no driver or no GPU, the error says which of
// them is missing and where New searched for it.
func New(opts Options) (device.Machine, error) {
	sys, err := process.Open()
	if err != nil {
		return nil, fmt.Errorf("cuda: %w", err)
	}
	return newJoined(sys, opts)
}

// newJoined calls newMachine. If there are other processes, the processes then exchange lists of the GPUs that each of
// them sees.
func newJoined(sys *process.Shared, opts Options) (*machine, error) {
	m := newMachine(sys, opts)
	if opts.Peers == nil {
		return m, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), opts.Peers.StallTimeout())
	defer cancel()
	var err error
	if m.view, err = peers.Look(ctx, opts.Peers, m.sys.Driver, m.sys.GPUs); err != nil {
		return nil, fmt.Errorf("cuda: %w", err)
	}
	return m, nil
}

func newMachine(sys *process.Shared, opts Options) *machine {
	opts.RanksPerGPU = max(opts.RanksPerGPU, 1)
	if opts.Kernels == nil {
		if opts.Cache == nil {
			opts.Cache = kernels.OpenCache(nil)
		}
		opts.Kernels = kernels.New(kernels.NVRTC(), opts.Cache)
	}
	return &machine{sys: sys, opts: opts, cache: opts.Cache}
}

type machine struct {
	sys   *process.Shared
	opts  Options
	cache *kernels.Cache // of choices
	// The next two fields are used only if there are peers: the GPUs that the peers see, and the number of worlds that
	// were opened.
	view   *peers.View
	opened atomic.Int64
}

func (m *machine) Name() string { return "cuda" }

func (m *machine) Caps() device.Caps {
	return device.Caps{
		MaxRanks:   m.maxRanks(),
		DTypes:     ir.DTypes(),
		MoreRanks:  "one for each GPU, or as many times that as HOCKET_RANKS_PER_GPU says",
		Graphs:     true,
		Chains:     true,
		Concurrent: true,
		Deadlocks:  true,
		Traces:     true,
		// Each GPU has a separate clock: see the field base.
		DeviceClocks: true,
		Precompile:   m.precompiles(),
		ScaleColumns: true,
		HostCalls:    true,
		Poison:       true,
		Borrows:      true,
		Moves:        true,
	}
}

func (m *machine) Open(ctx context.Context, ranks int) (device.World, error) {
	if most := m.Caps().MaxRanks; ranks < 1 || ranks > most {
		return nil, fmt.Errorf("cuda: cannot run %d ranks: 1 to %d are possible, one for each GPU", ranks, most)
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("cuda: open: %w", err)
	}
	w, err := newWorld(ctx, m, ranks)
	if err != nil {
		return nil, fmt.Errorf("cuda: %w", err)
	}
	return w, nil
}
