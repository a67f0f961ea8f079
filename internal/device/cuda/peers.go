package cuda

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gemm"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/nvlib"
	procs "hocket.example/hocket/internal/world"
)

// A world whose ranks are spread over processes. Every process opens it, and takes the same memory, streams
// and counters on every rank in the same order. The others' GPUs are sites that this process drives not: their
// shared memory is mapped, region by region as its owner takes it (peer_memory.go); their streams are names;
// what is prepared for them is nothing. So every process finds the same room for kernels of teams, which meet
// in mapped memory. Counters are words of device memory (wired.go).

// vista is which GPUs each process sees.
type vista struct {
	seen  [][]sight       // by process
	alike map[string]bool // by host: all its processes see the same
	own   string          // this process's host
}

// host is that of a process.
func (v *vista) host(process int) string { return v.seen[process][0].Host }

// sight is what others need to know of a GPU.
type sight struct {
	Host             string
	PCI, Name, Arch  string
	SMs, BlockShared int
	Memory           int64
}

// look tells the other processes which GPUs this one sees, and learns what they do.
func (m *machine) look(ctx context.Context) error {
	var own []sight
	host, _ := os.Hostname() // without one all are of one host
	for _, g := range m.sys.GPUs {
		own = append(own, sight{host, g.PCI, g.Name, g.Arch, g.SMs, g.BlockShared, g.Memory})
	}
	text, err := json.Marshal(own)
	if err != nil {
		return err
	}
	all, err := m.opts.Peers.Agree(ctx, "the GPUs that processes see", text)
	if err != nil {
		return err
	}
	m.vista.alike = map[string]bool{}
	first := map[string][]sight{}
	for p, text := range all {
		var list []sight
		if err := json.Unmarshal(text, &list); err != nil || len(list) == 0 {
			return fmt.Errorf("process %d says of its GPUs %q (%v)", p, text, err)
		}
		m.vista.seen = append(m.vista.seen, list)
		host := list[0].Host
		if first[host] == nil {
			first[host], m.vista.alike[host] = list, true
		}
		m.vista.alike[host] = m.vista.alike[host] && slices.Equal(list, first[host])
	}
	m.vista.own = host
	return nil
}

// maxRanks is how many ranks there can be.
func (m *machine) maxRanks() int {
	if m.vista.seen == nil {
		return len(m.sys.GPUs) * m.opts.RanksPerGPU
	}
	n, counted := 0, map[string]bool{}
	for p, list := range m.vista.seen {
		host := m.vista.host(p)
		if !m.vista.alike[host] || !counted[host] {
			n += len(list)
		}
		counted[host] = true
	}
	return n * m.opts.RanksPerGPU
}

// share agrees on a new world of ranks.
func (m *machine) share(ctx context.Context, ranks int) (*procs.Spread, error) {
	p, err := m.opts.Peers.Spread(ranks)
	if err != nil {
		return nil, err
	}
	return p, p.Begin(ctx, fmt.Sprintf("cuda world %d", m.opened.Add(1)))
}

// Peers implements device.Machine.
func (m *machine) Peers() *procs.World { return m.opts.Peers }

// Local implements device.World.
func (w *world) Local(rank int) bool { return w.peers.Local(rank) }

// Node implements device.World.
func (w *world) Node(rank int) int { return w.peers.Node(rank) }

// Transport implements device.World: between nodes NCCL carries collectives.
func (w *world) Transport() string {
	if w.peers == nil || w.peers.Nodes() == 1 {
		return ""
	}
	return ncclName
}

// spread gives the ranks of a world of several processes their sites: a rank's GPU is that of its number among its
// host's ranks where all processes there see the same GPUs, else that of its number among its process's ranks.
func (w *world) spread(ranks int) error {
	p, at := w.peers, map[string]*site{}
	ranksOf, ranksOn, shared := make([]int, p.Processes()), map[string]int{}, map[string]int{}
	for r := range ranks {
		owner := p.Owner(r)
		host := w.m.vista.host(owner)
		seen, i := w.m.vista.seen[owner], ranksOf[owner]
		if w.m.vista.alike[host] {
			i = ranksOn[host]
		}
		ranksOf[owner]++
		ranksOn[host]++
		is := seen[i%len(seen)]
		if shared[host+is.PCI]++; shared[host+is.PCI] > w.m.opts.RanksPerGPU {
			return fmt.Errorf("more than %d ranks on the GPU at %s, the last rank %d: each process wants GPUs of its own", w.m.opts.RanksPerGPU, is.PCI, r)
		}
		key := fmt.Sprintf("process %d GPU %s", owner, is.PCI)
		s := at[key]
		if s == nil {
			s = &site{w: w, gpu: w.m.sys.known(is, w.m.vista.own), foreign: owner != p.Process(), owner: owner,
				key: key,
				far: p.World.Node(owner) != p.World.Node(p.Process())}
			s.faults.s = s
			at[key] = s
			w.all = append(w.all, s)
			if !s.foreign {
				s.gemms = gemm.NewHost(s, w.drv, s.gpu, &s.heaps, &w.m.sys.picks, w.m.cache, w.m.opts.TF32, false)
				w.sites = append(w.sites, s)
			}
		}
		w.devices = append(w.devices, &dev{w: w, rank: r, site: s})
	}
	return nil
}

// known returns a GPU that some process sees: as this process sees it, or as a description.
func (s *system) known(is sight, host string) *gpu.GPU {
	for _, g := range s.GPUs {
		if g.PCI == is.PCI && is.Host == host {
			return g
		}
	}
	return &gpu.GPU{System: s.System, Device: -1, PCI: is.PCI, Name: is.Name, Arch: is.Arch, SMs: is.SMs,
		BlockShared: is.BlockShared, Memory: is.Memory}
}

// apart returns why two sites are apart. Between processes no transfer is tried: it takes a context on each
// GPU, and what is mapped is tried by its use.
func (w *world) apart(a, b *site) (why, err error) {
	if !a.foreign && !b.foreign {
		return w.m.sys.Apart(a.gpu, b.gpu)
	}
	if a.gpu == b.gpu || a.gpu.Device < 0 || b.gpu.Device < 0 || a.far || b.far {
		return nil, nil
	}
	if why := w.m.sys.ApartNow(a.gpu, b.gpu); why != nil {
		return nil, fmt.Errorf("%w: ranks of several processes on GPUs that do not reach each other: GPU %d and GPU %d (%w); "+
			"one process can drive both, or NCCL carries collectives of processes on nodes of their own (HOCKET_NODE)",
			device.ErrUnsupported, a.gpu.Device, b.gpu.Device, why)
	}
	return nil, nil
}

// busy reports whether anything was given to a stream that may not be over. The caller holds mu.
func (w *world) busy() bool {
	return w.calls > 0 || w.called || slices.ContainsFunc(w.streams,
		func(s *stream) bool { return s.dirty || len(s.queue) > 0 })
}

// first is the first rank of this process.
func (w *world) first() *dev {
	for _, d := range w.devices {
		if !d.site.foreign {
			return d
		}
	}
	return w.devices[0]
}

// nameless is memory of a foreign device that its process alone uses: an address that is nowhere, so that
// views of it are apart from each other.
func (d *dev) nameless(m *memory) *memory {
	d.w.nowhere++
	m.addr, m.nowhere = nvlib.Ptr(1<<60+d.w.nowhere<<44), true
	return m
}

// reach returns an error unless memory of the site can be reached from a stream of another.
func (s *site) reach(from *dev) error {
	if from.site.foreign || !s.far { // of a foreign stream nothing is done here
		return nil
	}
	w := s.w
	return fmt.Errorf("rank %d is on node %d, and process %d, whose memory it is, on node %d: nodes share no memory",
		from.rank, w.Node(from.rank), s.owner, w.peers.World.Node(s.owner))
}

// foreignLaunch is what is prepared for a device of another process.
func (d *dev) foreignLaunch(name string) *launch { return &launch{dev: d, name: name, id: -1} }

// blame names who is to blame where a kernel waited for members of another process in vain.
func (w *world) blame(err error, owner int) error {
	if w.peers == nil || owner == w.peers.Process() {
		return err
	}
	return errors.Join(w.peers.Blame(owner, "did not come to a launch that this process waits in"), err)
}
