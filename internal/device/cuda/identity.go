package cuda

import (
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
)

// Identity names all that measurements of teams depend on.
func (w *world) Identity() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	g := w.all[0].gpu // the first rank's: of the same model in all processes
	version, _ := w.drv.Version()
	gpus := gpusOf(w.all)
	links := make([]string, 0, len(gpus))
	for _, a := range gpus {
		var row strings.Builder
		for _, b := range gpus {
			row.WriteByte(linkOf(w, a, b))
		}
		links = append(links, row.String())
	}
	return fmt.Sprintf("%s %s, %d GPUs, links %s, ranks a GPU %d, driver for CUDA %d.%d, kernels %.16s",
		g.Name, g.Arch, len(gpus), strings.Join(links, "/"), w.m.opts.RanksPerGPU, version/1000, version%1000/10, kernels.MeetingsHash())
}

// gpusOf has a site of each GPU.
func gpusOf(sites []*site) (list []*site) {
	for _, s := range sites {
		if !slices.ContainsFunc(list, func(o *site) bool { return o.gpu == s.gpu }) {
			list = append(list, s)
		}
	}
	return list
}

// linkOf returns how a reaches b's memory: 's' on the same device; 'n' by NVLink; 'p' by a bus without atomic
// operations on peers' memory; 'h' through host memory.
func linkOf(w *world, a, b *site) byte {
	if a.gpu == b.gpu {
		return 's'
	}
	if a.unreachable[b] != nil {
		return 'h'
	}
	if ok, err := w.drv.PeerAtomics(a.gpu.Device, b.gpu.Device); err == nil && ok {
		return 'n'
	}
	return 'p'
}

// Multiprocessors is how many there are on the GPU with the fewest: what a
// product can count on.
func (w *world) Multiprocessors() int {
	least := 0
	for i, s := range w.sites {
		if i == 0 || s.gpu.SMs < least {
			least = s.gpu.SMs
		}
	}
	return least
}

// Held implements device.Status. It lists regions of heaps, however much of them is in use, and memory joined to
// multicast objects.
func (w *world) Held() device.Held {
	if !w.guard.LockLive() {
		return device.Held{} // unknown: the lock was not available
	}
	defer w.mu.Unlock()
	var h device.Held
	for _, s := range w.sites {
		if s.heaps[device.Pinned] == nil {
			continue // it never came up
		}
		h.Host += s.heaps[device.Pinned].Held()
		h.Device = max(h.Device, s.heaps[device.Private].Held()+s.heaps[device.Shared].Held()+joinedBytes(w, s))
	}
	return h
}

// joinedBytes is the device's memory in teams' multicast objects.
func joinedBytes(w *world, s *site) int64 {
	n := int64(0)
	for _, t := range w.teams {
		for _, m := range t.members {
			if m.dev.site != s {
				continue
			}
			for _, mc := range t.joints {
				n += mc.Bytes
			}
		}
	}
	return n
}
