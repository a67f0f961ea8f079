// Package peers manages GPU state that the processes of a world share. Look finds the GPUs that each process sees, and
// Place assigns GPUs to ranks. Other processes map the memory that one process allocates, region by region in the same
// order (Owned, Imported). For each GEMM, all processes use the algorithm that one process has selected
// (AgreeProducts). Package cuda implements worlds.
package peers

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/doctor"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/nvlib"
	procs "hocket.example/hocket/internal/world"
)

// View lists the GPUs that each process sees.
type View struct {
	seen  [][]sight       // indexed by process
	alike map[string]bool // by host: whether all processes of the host see the same GPUs
	own   string          // this process's host

	failed []failure // pairs of GPUs of different processes that have no peer access, as the method try found
}

// host returns the host of a process.
func (v *View) host(process int) string { return v.seen[process][0].Host }

// sight describes, for other processes, a GPU that a process sees.
type sight struct {
	Host             string
	PCI, Name, Arch  string
	SMs, BlockShared int
	Memory           int64
	// Apart lists the GPUs with which this one has no peer access: indices in the process's list of GPUs, or the
	// constant all. Why is the reason for one of these pairs; only the first GPU in the process's list has it.
	Apart []int  `json:",omitempty"`
	Why   string `json:",omitempty"`
}

// The constant all in sight.Apart stands for all other GPUs, also those of other processes.
const all = -1

// Look exchanges with the other processes of p which GPUs each of them sees, and finds pairs of GPUs without peer
// access.
func Look(ctx context.Context, p *procs.World, drv *nvlib.Driver, gpus []*gpu.GPU) (*View, error) {
	var own []sight
	host, _ := os.Hostname() // if this fails, all processes count as being on one host
	for _, g := range gpus {
		list, why := apart(g, gpus)
		own = append(own, sight{host, g.PCI, g.Name, g.Arch, g.SMs, g.BlockShared, g.Memory, list, ""})
		own[0].Why = cmp.Or(own[0].Why, why)
	}
	text, err := json.Marshal(own)
	if err != nil {
		return nil, err
	}
	texts, err := p.Agree(ctx, "the GPUs that processes see", text)
	if err != nil {
		return nil, err
	}
	v := &View{alike: map[string]bool{}, own: host}
	first := map[string][]sight{}
	for p, text := range texts {
		var list []sight
		if err := json.Unmarshal(text, &list); err != nil || len(list) == 0 {
			return nil, fmt.Errorf("process %d sent a malformed list of its GPUs: %q (%v)", p, text, err)
		}
		v.seen = append(v.seen, list)
		host := list[0].Host
		if first[host] == nil {
			first[host], v.alike[host] = list, true
		}
		v.alike[host] = v.alike[host] && same(list, first[host])
	}
	return v, v.try(ctx, p, drv, gpus)
}

// same reports whether two processes see the same GPUs.
func same(a, b []sight) bool {
	return slices.EqualFunc(a, b, func(a, b sight) bool { return a.Host == b.Host && a.PCI == b.PCI })
}

// apart returns the values of sight.Apart and sight.Why for the GPU g, as far as they are known without a test
// transfer.
func apart(g *gpu.GPU, gpus []*gpu.GPU) (list []int, why string) {
	if err := g.System.Reach.Off(); err != nil {
		return []int{all}, err.Error()
	}
	for i, o := range gpus {
		if o == g {
			continue
		}
		if err := g.System.ApartNow(g, o); err != nil {
			list, why = append(list, i), err.Error()
		}
	}
	return list, why
}

// Apart returns the reason why two GPUs of one node have no peer access, or nil if no process knows a reason. The
// result is the same in all processes.
func (v *View) Apart(a, b Place) error {
	if a.Host == b.Host && a.PCI == b.PCI {
		return nil
	}
	for _, f := range v.failed {
		at := [2][2]string{{a.Host, a.PCI}, {b.Host, b.PCI}}
		if at == [2][2]string{f.a, f.b} || at == [2][2]string{f.b, f.a} {
			return errors.New(f.why)
		}
	}
	for _, list := range v.seen {
		for _, s := range list {
			for _, pair := range [][2]Place{{a, b}, {b, a}} {
				if s.Host != pair[0].Host || s.PCI != pair[0].PCI {
					continue
				}
				for _, i := range s.Apart {
					if i == all || i < len(list) && list[i].Host == pair[1].Host && list[i].PCI == pair[1].PCI {
						return errors.New(list[0].Why)
					}
				}
			}
		}
	}
	return nil
}

// Separated returns the reason why GPUs that different processes of a node drive have no peer access; nil if they have.
// The result is the same in all processes, also on other nodes, because the choice of collectives' algorithms depends
// on it.
func (v *View) Separated(p *procs.Spread, places []Place) error {
	for r, a := range places {
		for q, b := range places[:r] {
			if why := v.Apart(a, b); why != nil && a.Owner != b.Owner && p.Node(r) == p.Node(q) {
				return why
			}
		}
	}
	return nil
}

// Exchange describes how processes with one rank each exchange data; it is empty if there is only one process.
func (v *View) Exchange(p *procs.World, sys *gpu.System, most int) string {
	if v == nil || p.Processes() == 1 {
		return ""
	}
	spread, err := p.Spread(p.Processes())
	if err != nil {
		return ""
	}
	places, err := v.Place(spread, sys, p.Processes(), most)
	if err != nil {
		return ""
	}
	return doctor.Exchange(v.Separated(spread, places))
}

// GPUs returns the number of GPUs in the world. If all processes of a host see the same GPUs, each GPU is counted once.
// Otherwise the GPUs that each process sees are assumed to differ from those of other processes.
func (v *View) GPUs() int {
	n, counted := 0, map[string]bool{}
	for p, list := range v.seen {
		host := v.host(p)
		if !v.alike[host] || !counted[host] {
			n += len(list)
		}
		counted[host] = true
	}
	return n
}

// Place describes the GPU of a rank.
type Place struct {
	Key     string // Key identifies the GPU in all processes; ranks of one process that share a GPU have the same Key
	GPU     *gpu.GPU
	Owner   int  // the process that drives the GPU
	Foreign bool // another process drives the GPU
	Far     bool // the GPU is on another node, so this process cannot access its memory

	Host, PCI string // where the GPU is
}

// Place assigns GPUs to the ranks of a world of several processes. At most the given number of ranks share a GPU. If
// all processes of a host see the same GPUs, the host's ranks get the GPUs in order. Otherwise the ranks of each
// process get that process's GPUs in order.
func (v *View) Place(p *procs.Spread, sys *gpu.System, ranks, most int) ([]Place, error) {
	var places []Place
	at := map[string]*gpu.GPU{}
	ranksOf, ranksOn, shared := make([]int, p.Processes()), map[string]int{}, map[string]int{}
	for r := range ranks {
		owner := p.Owner(r)
		host := v.host(owner)
		seen, i := v.seen[owner], ranksOf[owner]
		switch seat := procs.Seat(p.World, owner); {
		case seat >= 0 && ranks%p.Processes() != 0:
			return nil, fmt.Errorf("%w: %d ranks in a group of %d processes on GPUs; give each process the same number of ranks",
				device.ErrUnsupported, ranks, p.Processes())
		case v.alike[host] && seat >= 0: // in a group of processes, each process uses the GPUs that it has in the world
			i += seat * ranks / p.Processes()
		case v.alike[host]:
			i = ranksOn[host]
		}
		ranksOf[owner]++
		ranksOn[host]++
		is := seen[i%len(seen)]
		if shared[host+is.PCI]++; shared[host+is.PCI] > most {
			return nil, fmt.Errorf("more than %d ranks are on the GPU at %s, including rank %d: give each process separate GPUs",
				most, is.PCI, r)
		}
		key := fmt.Sprintf("process %d GPU %s", owner, is.PCI)
		if at[key] == nil {
			at[key] = v.known(is, sys)
		}
		places = append(places, Place{Key: key, GPU: at[key], Owner: owner, Foreign: owner != p.Process(),
			Far: p.World.Node(owner) != p.World.Node(p.Process()), Host: host, PCI: is.PCI})
	}
	return places, nil
}

// known returns this process's description of a GPU that another process sees, or a new description if this process
// does not see the GPU.
func (v *View) known(is sight, sys *gpu.System) *gpu.GPU {
	for _, g := range sys.GPUs {
		if g.PCI == is.PCI && is.Host == v.own {
			return g
		}
	}
	return &gpu.GPU{System: sys, Device: -1, PCI: is.PCI, Name: is.Name, Arch: is.Arch, SMs: is.SMs,
		BlockShared: is.BlockShared, Memory: is.Memory}
}
