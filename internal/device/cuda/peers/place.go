// Package peers has what the processes of one world share about their GPUs. Look finds out which GPUs there are, and
// Place assigns them to ranks. Memory that one process allocates, others map (Owned, Imported), region by region in
// the same order. What one process measured, all use (AgreeProducts). Package cuda has the worlds.
package peers

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gpu"
	procs "hocket.example/hocket/internal/world"
)

// View is which GPUs each process sees.
type View struct {
	seen  [][]sight       // by process
	alike map[string]bool // by host: all its processes see the same
	own   string          // this process's host
}

// host is that of a process.
func (v *View) host(process int) string { return v.seen[process][0].Host }

// sight is what others need to know of a GPU.
type sight struct {
	Host             string
	PCI, Name, Arch  string
	SMs, BlockShared int
	Memory           int64
}

// Look tells the other processes of p which GPUs this one sees, and learns what they do.
func Look(ctx context.Context, p *procs.World, gpus []*gpu.GPU) (*View, error) {
	var own []sight
	host, _ := os.Hostname() // without one all are of one host
	for _, g := range gpus {
		own = append(own, sight{host, g.PCI, g.Name, g.Arch, g.SMs, g.BlockShared, g.Memory})
	}
	text, err := json.Marshal(own)
	if err != nil {
		return nil, err
	}
	all, err := p.Agree(ctx, "the GPUs that processes see", text)
	if err != nil {
		return nil, err
	}
	v := &View{alike: map[string]bool{}, own: host}
	first := map[string][]sight{}
	for p, text := range all {
		var list []sight
		if err := json.Unmarshal(text, &list); err != nil || len(list) == 0 {
			return nil, fmt.Errorf("process %d sent a malformed list of its GPUs: %q (%v)", p, text, err)
		}
		v.seen = append(v.seen, list)
		host := list[0].Host
		if first[host] == nil {
			first[host], v.alike[host] = list, true
		}
		v.alike[host] = v.alike[host] && slices.Equal(list, first[host])
	}
	return v, nil
}

// GPUs is how many there are, as far as processes can have them for themselves.
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

// Place is the GPU of a rank.
type Place struct {
	Key     string // the same in all processes, and of ranks that share the GPU within theirs
	GPU     *gpu.GPU
	Owner   int  // the process that drives it
	Foreign bool // that is another
	Far     bool // of another node: nothing of it is reached from here
}

// Place gives the ranks of a world of several processes their GPUs, of which each has most ranks: a rank's GPU is that
// of its number among its host's ranks where all processes there see the same GPUs, else that of its number among its
// process's ranks.
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
		case v.alike[host] && seat >= 0: // of a group: the process has the GPUs that it has in the world
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
			Far: p.World.Node(owner) != p.World.Node(p.Process())})
	}
	return places, nil
}

// known returns a GPU that some process sees: as this process sees it, or as a description.
func (v *View) known(is sight, sys *gpu.System) *gpu.GPU {
	for _, g := range sys.GPUs {
		if g.PCI == is.PCI && is.Host == v.own {
			return g
		}
	}
	return &gpu.GPU{System: sys, Device: -1, PCI: is.PCI, Name: is.Name, Arch: is.Arch, SMs: is.SMs,
		BlockShared: is.BlockShared, Memory: is.Memory}
}
