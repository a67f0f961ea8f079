package cuda

import (
	"context"
	"errors"
	"fmt"
	"strings"
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
	w      *world
	gpu    *gpu.GPU
	ctx    nvlib.Context
	beyond map[*site]error // those that are apart from it, and why; nil for none
	heaps  [3]*gpu.Heap
	gemms  *gemm.Host
	events []nvlib.Event // free, without a clock
	seens  [][]int64     // of marks that are gone, for others
	clocks []nvlib.Event // free, with one
	base   base
	faults faults
	least  int // stream priorities
	most   int
	made   []nvlib.Event // all events
	origin *stream       // that graphs are recorded from and launched on; nil until there are any
}

func newWorld(ctx context.Context, m *machine, ranks int) (*world, error) {
	w := &world{m: m, drv: m.sys.Driver, opened: time.Now()}
	m.sys.issueLock.mu.Lock()
	err := w.open(ranks)
	m.sys.issueLock.mu.Unlock()
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
		ctx, err := g.Context()
		if err != nil {
			return g.Unusable(err)
		}
		s := &site{w: w, gpu: g, ctx: ctx}
		s.gemms = gemm.NewHost(s, g, &s.heaps, &w.m.sys.picks, w.m.cache, w.m.opts.TF32, w.m.opts.Skinny)
		s.faults.s = s
		w.sites = append(w.sites, s)
	}
	if err := w.findReach(); err != nil {
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
		device.Private: gpu.NewHeap(gpu.DeviceLeast, gpu.DeviceSlab, grain, gpu.DeviceMemory{GPU: s.gpu, Devices: []nvlib.Device{s.gpu.Device}}),
		device.Shared:  gpu.NewHeap(gpu.DeviceLeast, gpu.DeviceSlab, grain, gpu.DeviceMemory{GPU: s.gpu, Devices: s.reachable()}),
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

// Sync also ends the world with ctx: work in flight cannot be taken back, so a
// cancelled Sync aborts.
func (w *world) Sync(ctx context.Context) error {
	over := false // mu guards it: a context that ends behind Sync is nobody's any more
	stop := context.AfterFunc(ctx, func() { w.expire(ctx, &over) })
	defer stop()
	w.mu.Lock()
	defer w.mu.Unlock()
	defer func() { over = true }()
	began := time.Now()
	for w.cause == nil {
		if w.calls == 0 {
			if blocked := w.blocked(); len(blocked) > 0 {
				w.end(&device.Deadlock{Blocked: blocked})
				break
			}
		}
		idle := w.look()
		if idle && w.calls == 0 && w.cause == nil {
			w.settle()
			w.readFaults()
			w.readTeams()
			w.readNCCL()
			return w.err()
		}
		if time.Since(began) > ncclPatience {
			w.readNCCL()
		}
		w.mu.Unlock()
		gpu.Pause(time.Since(began))
		w.mu.Lock()
	}
	return w.err()
}

// look finds out what the devices have done since the last look, and whether
// they have done all. The caller holds mu.
func (w *world) look() (idle bool) {
	w.asking(func() {
		idle = w.poll()
		w.land()
		w.tell()
	})
	return idle
}

// asking runs f with some context current, which questions about streams and
// events need; which one does not matter to them.
func (w *world) asking(f func()) {
	if err := w.drv.Bind(w.sites[0].ctx); err == nil {
		defer w.drv.Unbind()
	}
	f()
}

// poll reports whether the devices have done all they were given. It notes
// errors. The caller holds mu.
func (w *world) poll() bool {
	if w.capture != nil {
		return false // the driver refuses questions for streams that record; others wait for the end
	}
	for range w.streams {
		s := w.streams[w.asked%len(w.streams)]
		// The next question is for the next stream, also where this one is busy: it may
		// wait for one that has failed, and would for ever.
		w.asked = s.index + 1
		if !s.dirty {
			continue
		}
		idle, err := s.idle()
		if err != nil {
			w.fault(s, err)
			return false
		}
		if !idle {
			return false
		}
		s.rested()
	}
	return true
}

// rested notes that s has done all it was given.
func (s *stream) rested() { s.dirty, s.begun, s.reached = false, 0, s.pos }

// settle forgets what only unfinished work needs. The caller holds mu; the
// devices are at rest.
func (w *world) settle() {
	w.forgetLatest()
	w.tellReplay()
	for _, d := range w.devices {
		for _, c := range d.counters {
			c.settle()
		}
	}
	for _, s := range w.sites {
		s.rebase()
	}
}

// fault ends the world because work on a device failed. s is the stream that
// was asked or given work; the one to blame is, as far as can be told, one of
// the device's that was within a command.
func (w *world) fault(s *stream, err error) {
	s = w.guilty(s, err)
	for _, other := range w.streams {
		if other.dev.site == s.dev.site && other.inside() {
			s = other
			break
		}
	}
	s.dev.site.gpu.Lose(err, s.where())
	f := &device.Fault{Rank: s.dev.rank, Stream: s.name, Err: err}
	f.ID, f.Last = s.within()
	if others := s.suspects(); len(others) > 0 && gpu.IsFatal(err) {
		f.Err = fmt.Errorf("%w; nobody observed the run, so it may as well be of %s", err, strings.Join(others, "; "))
	}
	w.end(f)
}

// guilty returns s, or a stream of another GPU if that one is lost and s's is not: calls
// for several GPUs, as a graph's launch is, fail by any of them. One that is lost says so
// to every question.
func (w *world) guilty(s *stream, err error) *stream {
	if !gpu.IsFatal(err) || w.capture != nil { // streams that record answer nothing
		return s
	}
	for _, o := range append([]*stream{s}, w.streams...) {
		if _, err := o.idle(); gpu.IsFatal(err) {
			return o
		}
	}
	return s
}

// suspects says where other streams of s's device were, any of which may be to
// blame if nobody observed the marks.
func (s *stream) suspects() []string {
	var list []string
	for _, o := range s.dev.w.streams {
		if o != s && o.dev.site == s.dev.site && o.dirty && s.dev.w.observer == nil {
			list = append(list, o.where())
		}
	}
	return list
}

func (w *world) Abort(cause error) {
	if cause == nil {
		cause = errors.New("Abort was called")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.end(cause)
}

// end stops the world; only the first cause counts. What devices were given
// already they finish by themselves. The caller holds mu.
func (w *world) end(cause error) {
	if w.cause != nil {
		return
	}
	w.cause = cause
	w.ended.Store(true)
	w.endTeams()
	for _, s := range w.streams {
		s.queue = nil
	}
	for i := range w.landings {
		w.landings[i].dst = nil // the caller's bytes are no longer ours
	}
}

// expire ends the world because a context is done, unless what it was for is over, and says
// what the world was at.
func (w *world) expire(ctx context.Context, over *bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cause != nil || *over {
		return
	}
	var at []device.Standing
	w.asking(func() {
		w.tell()
		at = w.standing()
	})
	w.end(&device.Expired{Err: ctx.Err(), Cause: context.Cause(ctx), At: at})
}

// err returns what calls on a world that has ended get. The caller holds mu.
func (w *world) err() error {
	if w.cause == nil {
		return nil
	}
	return &device.Aborted{Cause: w.cause}
}

func (w *world) check() error {
	if !w.ended.Load() {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err()
}

var errClosed = errors.New("the world is closed")

// Close waits for what devices still run and frees everything. What lies on a
// GPU that is lost goes with the process: no call could give it back.
func (w *world) Close() error {
	if w.unwatch != nil {
		w.unwatch()
	}
	errs, closed := w.finish()
	if closed {
		return errors.Join(errs...)
	}
	w.m.sys.coresidency.forget(w)
	w.closeNCCL(errs)
	defer w.exclusive()()
	w.trimNCCL(idleMost)
	for _, g := range w.recorded {
		errs = append(errs, g.drop())
	}
	for _, s := range w.sites {
		s.gemms.FreeAll()
	}
	for _, t := range w.teams {
		errs = append(errs, t.freeJoints())
	}
	for _, s := range w.sites {
		if s.lost() {
			continue
		}
		err := w.excuse(s.free())
		if !s.gpu.Lose(err, "when its world was closed") { // else Open tells
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// finish ends the world for good and waits for what devices still run, unless
// that was done before.
func (w *world) finish() (errs []error, before bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cause == errClosed {
		return []error{w.err()}, true
	}
	w.end(errClosed)
	w.cause = errClosed
	return w.drain(), false
}

// drain waits until the devices rest and no host function runs. The caller
// holds mu, which is free meanwhile.
func (w *world) drain() (errs []error) {
	began := time.Now()
	for {
		busy := w.calls > 0
		for _, s := range w.streams {
			if s.dev.site.lost() || !s.dirty {
				continue
			}
			g, patience := s.dev.site.gpu, w.m.sys.Patience
			idle, err := s.idle()
			switch {
			case g.Lose(err, s.where()):
			case err != nil:
				errs = append(errs, err)
				s.dirty = false // it will not tell
			case idle:
				s.dirty = false
			case time.Since(began) > patience:
				errs = append(errs, g.Hang(patience, s.where()))
			case time.Since(began) > ncclPatience:
				w.abortNCCL()
				busy = true
			default:
				busy = true
			}
		}
		if !busy {
			return errs
		}
		w.mu.Unlock()
		gpu.Pause(time.Since(began))
		w.mu.Lock()
	}
}

// free gives back all that the world has of the GPU, which is at rest.
func (s *site) free() error {
	if err := s.w.drv.Bind(s.ctx); err != nil {
		return err
	}
	defer s.w.drv.Unbind()
	var errs []error
	for _, st := range s.w.streams {
		if st.dev.site == s {
			errs = append(errs, s.w.drv.DestroyStream(st.h))
		}
	}
	for _, e := range s.made {
		errs = append(errs, s.w.drv.DestroyEvent(e))
	}
	for _, h := range s.heaps {
		if h != nil {
			errs = append(errs, h.Close())
		}
	}
	return errors.Join(errs...)
}
