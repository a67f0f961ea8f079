package cuda

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/device/cuda/peers"
	"hocket.example/hocket/internal/nvlib"
	procs "hocket.example/hocket/internal/world"
)

// The ranks of a world can be spread over several processes. Every process opens the world, and allocates the same
// memory, streams and counters on every rank in the same order. A site in world.foreign represents the GPU of another
// process. Devices of type foreignDev represent the ranks on that GPU; their streams and launches execute nothing. If
// that GPU is on the same node, its shared memory is mapped region by region, as its owner allocates it (see package
// peers). Since all processes create the same streams, they compute the same limits for kernels of teams, which wait
// for each other in mapped memory. Counters are words of device memory (see peer_counters.go).

// maxRanks returns the largest number of ranks that a world can have.
func (m *machine) maxRanks() int {
	if m.view == nil {
		return len(m.sys.GPUs) * m.opts.RanksPerGPU
	}
	return m.view.GPUs() * m.opts.RanksPerGPU
}

// share agrees with the other processes that they open a new world with the given number of ranks.
func (m *machine) share(ctx context.Context, ranks int) (*procs.Spread, error) {
	p, err := m.opts.Peers.Spread(ranks)
	if err != nil {
		return nil, err
	}
	return p, p.Begin(ctx, fmt.Sprintf("cuda world %d", m.opened.Add(1)))
}

// Exchange implements device.Machine, for a world with one rank in each process.
func (m *machine) Exchange() string {
	return m.view.Exchange(m.opts.Peers, m.sys.System, m.opts.RanksPerGPU)
}

// Peers implements device.Machine.
func (m *machine) Peers() *procs.World { return m.opts.Peers }

// Local implements device.World.
func (w *world) Local(rank int) bool { return w.peers.Local(rank) }

// Node implements device.World.
func (w *world) Node(rank int) int { return w.peers.Node(rank) }

// Transport implements device.World. Between nodes, NCCL transfers the data of collectives.
func (w *world) Transport() string {
	if w.peers == nil || w.peers.Nodes() == 1 {
		return ""
	}
	return ncclName
}

// spread creates the sites of a world of several processes: the GPUs that its ranks use.
func spread(w *world, ranks int) error {
	places, err := w.m.view.Place(w.peers, w.m.sys.System, ranks, w.m.opts.RanksPerGPU)
	if err != nil {
		return err
	}
	w.hosted = w.m.view.Separated(w.peers, places) != nil
	at := map[string]*site{}
	for r, p := range places {
		s := at[p.Key]
		if s == nil {
			s = newSite(w, p.GPU)
			s.owner, s.key, s.far, s.place, s.index = p.Owner, p.Key, p.Far, p, len(w.all)
			at[p.Key] = s
			w.all = append(w.all, s)
			if p.Foreign {
				w.foreign = append(w.foreign, s)
			} else {
				w.sites = append(w.sites, s)
			}
		}
		d := &dev{w: w, rank: r, site: s}
		w.devices = append(w.devices, d)
		if !p.Foreign {
			w.own = append(w.own, d)
		}
	}
	return nil
}

// HostShared implements device.World.
func (w *world) HostShared() bool { return w.hosted }

// apart returns the reason why two sites have no access to each other, or nil if they have access. For GPUs of
// different processes, apart makes no test transfer, because a test needs a context on each GPU.
func apart(a, b *site) (why, err error) {
	switch w := a.w; {
	case w.hosted && w.peers.World.Node(a.owner) == w.peers.World.Node(b.owner):
		return w.m.view.Apart(a.place, b.place), nil
	case !w.hosted && a.owner == b.owner && slices.Contains(w.sites, a):
		return w.m.sys.Apart(a.gpu, b.gpu)
	}
	return nil, nil
}

// first returns the device of this process's first rank.
func (w *world) first() *dev {
	if len(w.own) > 0 {
		return w.own[0]
	}
	return w.devices[0]
}

// nameless sets the address of memory that only another process accesses, to one that is never mapped. Each such memory
// has different addresses, so that views of different memory do not overlap.
func (d *dev) nameless(m *memory) *memory {
	d.w.nowhere++
	m.addr, m.nowhere = nvlib.Ptr(1<<60+d.w.nowhere<<44), true
	return m
}

// reach returns an error unless streams of the device from can access memory of the site s.
func (s *site) reach(from *dev) error {
	if from.site == s || !s.far {
		return nil
	}
	w := s.w
	return fmt.Errorf("rank %d is on node %d, but the memory is of process %d on node %d: nodes share no memory",
		from.rank, w.Node(from.rank), s.owner, w.peers.World.Node(s.owner))
}

// blame adds the name of a process to the error of a kernel that timed out waiting for members of that process.
func (w *world) blame(err error, owner int) error {
	if w.peers == nil || owner == w.peers.Process() {
		return err
	}
	return errors.Join(w.peers.Blame(owner, "did not reach a launch in which this process waits"), err)
}

// Settle implements device.World. Settle makes all processes compute GEMMs with the same algorithms, and compares the
// properties that must be equal in all processes.
func (w *world) Settle(ctx context.Context) ([]string, error) {
	if w.peers == nil {
		return nil, nil
	}
	var products []peers.Products
	for _, s := range w.sites {
		products = append(products, peers.Products{Host: s.gemms, Bound: s.bound})
	}
	if err := peers.SettleProducts(ctx, w.peers, w.guard.Exclusive, products); err != nil {
		return nil, fmt.Errorf("cuda: %w", err)
	}
	w.mu.Lock()
	lines := matched(w)
	w.mu.Unlock()
	if w.peers.Nodes() == 1 {
		return lines, nil
	}
	// Only the processes of one node map each other's memory, so only these processes must agree on addresses.
	return nil, w.peers.SameListOfNode(ctx, w.peers.Name+": memory and kernels of the node", lines)
}

// hostGrain is the size of a page of host memory.
const hostGrain = 4096

// sharedHeap creates the heap of a GPU's memory that peers access, including peers in other processes.
func (s *site) sharedHeap(grain int64) *gpu.Heap {
	w, m := s.w, gpu.DeviceMemory{GPU: s.gpu, Devices: s.reachable(), Driver: s.w.drv}
	from := gpu.Source(m)
	switch {
	case w.hosted:
		from, grain = peers.Hosted(w.drv, w.peers, s.key, s.owner), hostGrain
	case w.peers == nil:
	case s.owner == w.peers.Process():
		from = peers.Owned(m, w.peers, s.key)
	default:
		from = peers.Imported(m, w.peers, s.key, s.owner)
	}
	return gpu.NewHeap(gpu.DeviceLeast, gpu.DeviceSlab, grain, from)
}

// mapShared creates a heap for the shared memory of a GPU that another process drives, if that GPU is on this node.
// Calls that concern this memory are made in the context of this process's first GPU.
func (s *site) mapShared() error {
	here := s.w.sites[0]
	s.ctx = here.ctx
	if s.far {
		return nil
	}
	return s.bound(func() error {
		grain, err := s.w.drv.Granularity(here.gpu.Device)
		if err == nil {
			s.heaps[device.Shared] = s.sharedHeap(grain)
		}
		return err
	})
}

// hostShared allocates, for a rank, host memory that the GPUs of all processes can access. The caller holds the world
// exclusively.
func (d *dev) hostShared(bytes int64) (*memory, error) {
	p := d.w.peers
	if d.site.far {
		return d.nameless(&memory{dev: d, kind: device.Pinned, bytes: bytes}), nil
	}
	d.w.hostShares++
	key := fmt.Sprintf("%s: rank %d, host memory %d", p.Name, d.rank, d.w.hostShares)
	seg, err := peers.HostSegment(p, d.rank, key, bytes)
	if err != nil {
		return nil, d.errorf("mapping %d bytes of host memory that processes share: %w", bytes, err)
	}
	at := nvlib.Ptr(seg.Address())
	if err := d.bound(func() error { return d.w.drv.HostRegister(at, int64(len(seg.Bytes()))) }); err != nil {
		return nil, d.errorf("mapping %d bytes of host memory that processes share: %w", bytes,
			errors.Join(err, seg.Close()))
	}
	m := &memory{dev: d, kind: device.Pinned, addr: at, bytes: bytes, seg: seg}
	d.w.segments = append(d.w.segments, m)
	return m, nil
}

// dropSegment frees memory that hostShared allocated.
func (m *memory) dropSegment() error {
	err := m.dev.bound(func() error { return m.dev.w.drv.HostUnregister(m.addr) })
	err = errors.Join(err, m.seg.Close())
	m.seg = nil
	return err
}
