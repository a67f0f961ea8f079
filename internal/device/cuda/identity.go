package cuda

import (
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
)

// Identity returns a text that identifies everything on which measurements of teams depend.
func (w *world) Identity() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	g := w.all[0].gpu // the first rank's GPU represents all: all processes have the same model
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

// gpusOf returns one of the given sites for each GPU.
func gpusOf(sites []*site) (list []*site) {
	for _, s := range sites {
		if !slices.ContainsFunc(list, func(o *site) bool { return o.gpu == s.gpu }) {
			list = append(list, s)
		}
	}
	return list
}

// linkOf returns a letter for the path by which the GPU a accesses the memory of b: 's' if both are on the same device,
// 'n' for NVLink, 'p' for a bus without atomic operations on peer memory, and 'h' for host memory.
func linkOf(w *world, a, b *site) byte {
	switch {
	case a == b, a.gpu == b.gpu && !w.hosted:
		return 's'
	case a.unreachable[b] != nil, w.hosted:
		return 'h'
	}
	if ok, err := w.drv.PeerAtomics(a.gpu.Device, b.gpu.Device); err == nil && ok {
		return 'n'
	}
	return 'p'
}

// Multiprocessors returns the smallest number of multiprocessors of the world's GPUs. A GEMM can use this number of
// multiprocessors on every GPU.
func (w *world) Multiprocessors() int {
	least := 0
	for i, s := range w.sites {
		if i == 0 || s.gpu.SMs < least {
			least = s.gpu.SMs
		}
	}
	return least
}

// Held implements device.Status. The size in bytes is the sum of the heaps' regions, including unused parts, and the
// memory that is bound to multicast objects.
func (w *world) Held() device.Held {
	if !w.guard.LockLive() {
		return device.Held{} // unknown, because the mutex was not available
	}
	defer w.mu.Unlock()
	var h device.Held
	for _, s := range w.sites {
		if s.heaps[device.Pinned] == nil {
			continue // the site was not opened
		}
		h.Host += s.heaps[device.Pinned].Held()
		h.Device = max(h.Device, s.heaps[device.Private].Held()+s.heaps[device.Shared].Held()+joinedBytes(w, s))
	}
	return h
}

// joinedBytes returns the number of bytes of the device's memory in multicast objects of teams.
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
