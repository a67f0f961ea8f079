package cuda

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gemm"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/nvlib"
)

// world is a set of devices. mu guards everything; driver calls that enqueue
// work are made under it.
type world struct {
	m       *machine
	drv     *nvlib.Driver
	hung    hung
	sites   []*site // GPUs in use, each once
	devices []*dev
	opened  time.Time
	unwatch func() bool // stops watching the context of Open

	issuing atomic.Int32 // batches under way

	mu sync.Mutex
	// issueLocked is set while the owner of mu also holds the issue lock alone.
	issueLocked bool
	streams     []*stream
	woken       []*stream // to be flushed
	asked       int       // the stream that is asked next whether it is idle; see poll
	calls       int       // functions of HostCallers that run or are waited for
	landings    []landing
	capture     *capture  // under way; nil for none
	latest      *graphRun // that later work must come behind; nil for none
	marked      *form     // launched last, and not told of yet; nil for none
	recorded    []*graph  // and not closed
	staging     staging
	teams       []*team
	abort       nvlib.Ptr // the word that ends the waits of teams' kernels; 0 for none
	copies      map[copyKey][]*nvlib.Launch
	observer    device.Observer
	cause       error // why the world has ended; nil while it lives
	ended       atomic.Bool
}

// site is a GPU as a world uses it.
type site struct {
	w           *world
	gpu         *gpu.GPU
	ctx         nvlib.Context
	unreachable map[*site]error // those that are apart from it, and why; nil for none
	heaps       [3]*gpu.Heap
	gemms       *gemm.Host
	events      []nvlib.Event // free, without a clock
	seens       [][]int64     // of marks that are gone, for others
	clocks      []nvlib.Event // free, with one
	base        base
	faults      faults
	least       int // stream priorities
	most        int
	made        []nvlib.Event // all events
	origin      *stream       // that graphs are recorded from and launched on; nil until there are any
}

func newWorld(ctx context.Context, m *machine, ranks int) (*world, error) {
	w := &world{m: m, opened: time.Now(), hung: hung{ctx: ctx, lost: make(chan struct{})}}
	w.drv = m.sys.Driver.Watched(&w.hung.calls)
	var err error
	lost := w.Do(ctx, func() {
		w.lockIssue()
		err = w.open(ranks)
		w.unlockIssue()
	})
	if lost != nil {
		return nil, lost
	}
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	w.unwatch = context.AfterFunc(ctx, func() { w.expire(ctx, new(bool)) })
	return w, nil
}

func (w *world) open(ranks int) error {
	gpus := w.m.sys.GPUs[:min(ranks, len(w.m.sys.GPUs))]
	for _, g := range gpus {
		if l := g.Lost.Load(); l != nil {
			return l
		}
	}
	for _, g := range gpus {
		w.hung.opening.Store(g)
		ctx, err := g.Context()
		if err != nil {
			return g.Unusable(err)
		}
		s := &site{w: w, gpu: g, ctx: ctx}
		s.gemms = gemm.NewHost(s, w.drv, g, &s.heaps, &w.m.sys.picks, w.m.cache, w.m.opts.TF32, w.m.opts.Skinny)
		s.faults.s = s
		w.sites = append(w.sites, s)
	}
	if err := findReach(w); err != nil {
		return err
	}
	for _, s := range w.sites {
		if err := s.prepare(); err != nil {
			return s.gpu.Unusable(err)
		}
	}
	w.place(ranks)
	return nil
}

// place puts ranks on the sites.
func (w *world) place(ranks int) {
	for r := range ranks {
		w.devices = append(w.devices, &dev{w: w, rank: r, site: w.sites[r%len(w.sites)]})
	}
}

func (s *site) prepare() error {
	if err := s.w.drv.Bind(s.ctx); err != nil {
		return err
	}
	defer s.w.drv.Unbind()
	var err error
	if s.least, s.most, err = s.w.drv.StreamPriorities(); err != nil {
		return err
	}
	grain, err := s.w.drv.Granularity(s.gpu.Device)
	if err != nil {
		return err
	}
	s.heaps = [3]*gpu.Heap{
		device.Private: gpu.NewHeap(gpu.DeviceLeast, gpu.DeviceSlab, grain, gpu.DeviceMemory{GPU: s.gpu, Devices: []nvlib.Device{s.gpu.Device}, Driver: s.w.drv}),
		device.Shared:  gpu.NewHeap(gpu.DeviceLeast, gpu.DeviceSlab, grain, gpu.DeviceMemory{GPU: s.gpu, Devices: s.reachable(), Driver: s.w.drv}),
		device.Pinned:  gpu.NewHeap(gpu.HostSlab, gpu.HostSlab, 4096, gpu.HostMemory{Driver: s.w.drv}),
	}
	return nil
}

func (w *world) Ranks() int { return len(w.devices) }

// Device returns nil for a rank outside [0, Ranks()).
func (w *world) Device(rank int) device.Device {
	if rank < 0 || rank >= len(w.devices) {
		return nil
	}
	return w.devices[rank]
}

func (w *world) Abort(cause error) {
	if cause == nil {
		cause = errors.New("Abort was called")
	}
	if w.lockLive() {
		defer w.mu.Unlock()
		w.end(cause)
	}
}

// end stops the world; only the first cause counts. What devices were given
// already they finish by themselves. The caller holds mu.
func (w *world) end(cause error) {
	if w.cause != nil {
		return
	}
	w.cause = cause
	w.ended.Store(true)
	endTeams(w)
	for _, s := range w.streams {
		s.queue = nil
	}
	for i := range w.landings {
		w.landings[i].dst = nil // the caller's bytes are no longer ours
	}
}

// err returns what calls on a world that has ended get. The caller holds mu.
func (w *world) err() error {
	if w.cause == nil && w.hung.why() != nil {
		w.cause = w.hung.why()
	}
	if w.cause == nil {
		return nil
	}
	return &device.Aborted{Cause: w.cause}
}

func (w *world) check() error {
	if !w.ended.Load() {
		return nil
	}
	if !w.lockLive() {
		return &device.Aborted{Cause: w.hung.why()}
	}
	defer w.mu.Unlock()
	return w.err()
}
