package cuda

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gemm"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/device/cuda/guard"
	"hocket.example/hocket/internal/device/cuda/peers"
	"hocket.example/hocket/internal/device/cuda/signal"
	"hocket.example/hocket/internal/device/cuda/staging"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/device/cuda/timeline"
	"hocket.example/hocket/internal/nvlib"
	procs "hocket.example/hocket/internal/world"
)

// world implements device.World: a set of devices and their state. The mutex mu guards all fields. Driver calls that
// enqueue work are made while mu is held.
type world struct {
	m       *machine
	drv     *nvlib.Driver
	guard   *guard.World
	sites   []*site       // GPUs that this process uses, each once
	foreign []*site       // GPUs that other processes drive
	all     []*site       // the sites of both lists, in the order of ranks
	peers   *procs.Spread // connects this process to the others; nil if all ranks belong to this process
	devices []*dev        // by rank
	own     []*dev        // the devices of this process
	opened  time.Time
	unwatch func() bool // ends the observation of the context that was passed to Open

	mu       sync.Mutex
	flight   flight
	capture  *capture  // the capture in progress; nil for none
	latest   *graphRun // the graph launch that later work must wait for; nil for none
	marked   *form     // the form of a graph that was launched last, if its marks are not reported yet; nil for none
	recorded []*graph  // graphs that have been recorded and not closed
	staging  staging.Pool
	teams    []*team
	abort    nvlib.Ptr // address of the word that makes teams' kernels stop waiting; 0 for none
	copies   strided.Launches
	observer device.Observer
	naming   *naming // labels work for a profiler; nil unless a profiler captures and NVTX is available
	cause    error   // the reason why the world has ended; nil if it has not

	// The following fields are used only in a world of several processes.
	hosted     bool      // shared memory is host memory: GPUs of different processes have no peer access
	nowhere    int       // number of unmapped addresses, given to memory that only other processes access
	hostShares int       // number of shared segments of host memory
	segments   []*memory // these segments
	wired      wired

	called bool // the caller's streams may contain work of the world (see standalone_collectives.go)
}

// site is the part of a world that concerns one GPU.
type site struct {
	w           *world
	owner       int         // the process that drives the GPU
	far         bool        // the GPU is on another node, so this process cannot access its memory
	key         string      // the key by which all processes identify the GPU, if there are other processes
	place       peers.Place // location of the GPU, if there are other processes
	index       int         // index in world.all, if there are other processes
	gpu         *gpu.GPU
	ctx         nvlib.Context
	unreachable map[*site]error // by site: the reason why this site cannot access its memory; nil for none
	heaps       [3]*gpu.Heap    // by kind of memory; nil for memory that is not mapped in this process
	gemms       *gemm.Host
	seens       [][]int64 // slices of freed marks' positions, for reuse
	clock       *timeline.Clock
	report      *signal.Report
	reporters   []*launch   // by tag
	signals     *signal.GPU // the GPU's memory for flags
	least       int         // stream priorities
	most        int
	origin      *stream // the stream on which graphs of the GPU are recorded and launched; nil until it is needed

	foreignStreams int // number of streams on the GPU, if another process drives it
}

func newWorld(ctx context.Context, m *machine, ranks int) (*world, error) {
	w := &world{m: m, opened: time.Now()}
	w.guard, w.wired.w, w.flight.w = m.guard(w), w, w
	w.guard.Open(ctx)
	w.drv = m.sys.Driver.Watched(&w.guard.Calls)
	var err error
	if m.opts.Peers != nil {
		if w.peers, err = m.share(ctx, ranks); err != nil {
			return nil, err
		}
	}
	lost := w.Do(ctx, func() {
		w.guard.Alone(func() { err = w.open(ranks) })
	})
	if lost != nil {
		return nil, lost
	}
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	w.unwatch = context.AfterFunc(ctx, func() { w.expire(ctx, new(bool)) })
	if w.peers != nil {
		go w.peers.Watch(w.Abort)
	}
	return w, nil
}

// guard returns the guard (see package guard) of a new world.
func (m *machine) guard(w *world) *guard.World {
	rests := func() bool { return w.flight.calls == 0 && w.flight.look() }
	return m.sys.Locks.New(guard.Host{Mu: &w.mu, Err: w.err, Rests: rests})
}

// Do implements device.World.
func (w *world) Do(ctx context.Context, f func()) error { return w.guard.Do(ctx, f) }

// Batch implements device.World.
func (w *world) Batch(issue func() error) error {
	return w.guard.Batch(nil, func() bool { return waitsOnDevices(w) }, issue)
}

// waitsOnDevices reports whether w has kernels that wait on devices for other kernels: kernels of teams, or kernels of
// graphs whose sections are joined by flags.
func waitsOnDevices(w *world) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.teams) > 0 || slices.ContainsFunc(w.recorded, (*graph).flagged)
}

func (w *world) open(ranks int) error {
	if err := w.place(ranks); err != nil {
		return err
	}
	for _, s := range w.sites {
		if l := s.gpu.Lost.Load(); l != nil {
			return l
		}
	}
	for _, s := range w.sites {
		w.guard.Opening.Store(s.gpu)
		var err error
		if s.ctx, err = s.gpu.Context(); err != nil {
			return s.gpu.Unusable(err)
		}
	}
	if err := findReach(w, apart); err != nil {
		return err
	}
	for _, s := range w.sites {
		if err := s.prepare(); err != nil {
			return s.gpu.Unusable(err)
		}
	}
	for _, s := range w.foreign {
		if err := s.mapShared(); err != nil {
			return s.gpu.Unusable(err)
		}
	}
	return nil
}

func newSite(w *world, g *gpu.GPU) *site {
	s := &site{w: w, gpu: g, clock: timeline.NewClock(w.drv)}
	s.gemms = gemm.NewHost(s, w.drv, g, &s.heaps, &w.m.sys.Picks, w.m.cache, w.m.opts.TF32, w.m.opts.Skinny)
	s.report = signal.NewReport(w.drv, &s.heaps)
	s.signals = &signal.GPU{Drv: w.drv, Heaps: &s.heaps, Bound: s.bound, Lost: s.lost,
		Alloc: func(bytes int64) (nvlib.Ptr, error) {
			m, err := s.origin.dev.alloc(bytes, device.Shared)
			if err != nil {
				return 0, err
			}
			return m.addr, nil
		}}
	return s
}

// place assigns ranks to sites.
func (w *world) place(ranks int) error {
	if w.m.opts.Peers != nil {
		return spread(w, ranks)
	}
	for _, g := range w.m.sys.GPUs[:min(ranks, len(w.m.sys.GPUs))] {
		w.sites = append(w.sites, newSite(w, g))
	}
	w.all = w.sites
	for r := range ranks {
		w.devices = append(w.devices, &dev{w: w, rank: r, site: w.sites[r%len(w.sites)]})
	}
	w.own = w.devices
	return nil
}

func (s *site) prepare() error {
	if err := s.w.drv.Bind(s.ctx); err != nil {
		return err
	}
	defer s.w.drv.Unbind()
	grain, err := s.w.drv.Granularity(s.gpu.Device)
	if err != nil {
		return err
	}
	if s.least, s.most, err = s.w.drv.StreamPriorities(); err != nil {
		return err
	}
	s.heaps = [3]*gpu.Heap{
		device.Private: gpu.NewHeap(gpu.DeviceLeast, gpu.DeviceSlab, grain, gpu.DeviceMemory{GPU: s.gpu, Devices: []nvlib.Device{s.gpu.Device}, Driver: s.w.drv}),
		device.Shared:  s.sharedHeap(grain),
		device.Pinned:  gpu.NewHeap(gpu.HostSlab, gpu.HostSlab, hostGrain, gpu.HostMemory{Driver: s.w.drv}),
	}
	return nil
}

func (w *world) Ranks() int { return len(w.devices) }

// For a rank outside [0, Ranks()), the result is nil.
func (w *world) Device(rank int) device.Device {
	if rank < 0 || rank >= len(w.devices) {
		return nil
	}
	d := w.devices[rank]
	if !w.Local(rank) {
		return foreignDev{device.ForeignDevice{Device: d}, d}
	}
	return d
}

func (w *world) Abort(cause error) {
	if cause == nil {
		cause = errors.New("Abort was called")
	}
	if w.guard.LockLive() {
		defer w.mu.Unlock()
		if w.cause == nil && w.peers != nil { // other processes may wait for work that this process has not issued
			w.peers.Abort(cause)
		}
		w.end(cause)
	}
}

// end stops the world. If end is called again, the first cause remains. The devices still complete the work that has
// been issued to them. The caller holds mu.
func (w *world) end(cause error) {
	if w.cause != nil {
		return
	}
	w.cause = cause
	w.guard.End()
	endTeams(w)
	if w.peers != nil {
		w.peers.End(cause, w.flight.busy())
	}
	for _, s := range w.flight.streams {
		s.queue = nil
	}
	w.staging.Disown()
}

// err returns the error of calls on a world that has ended; nil if it has not. The caller holds mu.
func (w *world) err() error {
	if w.cause == nil && w.guard.GivenUp() != nil {
		w.cause = w.guard.GivenUp()
	}
	if w.cause == nil {
		return nil
	}
	return &device.Aborted{Cause: w.cause}
}

func (w *world) check() error {
	if !w.guard.Ended() {
		return nil
	}
	if !w.guard.LockLive() {
		return &device.Aborted{Cause: w.guard.GivenUp()}
	}
	defer w.mu.Unlock()
	return w.err()
}
