package cuda

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/nvlib"
)

// findReach finds and records the pairs of GPUs (sites) without access to each other's memory.
func findReach(w *world, apart func(a, b *site) (why, err error)) error {
	for i, a := range w.all {
		for _, b := range w.all[:i] {
			why, err := apart(b, a)
			if err != nil {
				return err
			}
			if why != nil {
				a.keepFrom(b, why)
				b.keepFrom(a, why)
			}
		}
	}
	return nil
}

func (s *site) keepFrom(o *site, why error) {
	if s.unreachable == nil {
		s.unreachable = map[*site]error{}
	}
	s.unreachable[o] = why
}

// reachable returns the devices that can access memory of the site s.
func (s *site) reachable() []nvlib.Device {
	var list []nvlib.Device
	for _, o := range s.w.sites {
		if s.unreachable[o] == nil {
			list = append(list, o.gpu.Device)
		}
	}
	return list
}

// reaches reports whether work on the site's GPU can access the memory of the view r.
func (s *site) reaches(r *strided.View) bool {
	return s.w.hosted || r.Mem == nil || r.Mem.Kind() == device.Pinned || s.unreachable[s.w.devices[r.Mem.Rank()].site] == nil
}

// whole reports whether every GPU (site) can access the memory of all other GPUs.
func (w *world) whole() bool {
	return !slices.ContainsFunc(w.all, func(s *site) bool { return len(s.unreachable) > 0 })
}

// Apart returns the reason why two ranks cannot access each other's device memory, or nil if they can.
func (w *world) Apart(rank, peer int) error {
	a, b := w.devices[rank].site, w.devices[peer].site
	if why := a.unreachable[b]; why != nil {
		return fmt.Errorf("%w: GPU %s and GPU %s cannot access each other's memory (%w)", device.ErrUnsupported, a.gpu.Text(), b.gpu.Text(), why)
	}
	return nil
}

// Detours describes the pairs of GPUs without peer access and states the reason for each pair.
func (w *world) Detours() []string {
	var gpus []*gpu.GPU
	of := map[*gpu.GPU]*site{}
	for _, s := range gpusOf(w.all) {
		gpus, of[s.gpu] = append(gpus, s.gpu), s
	}
	return gpu.Detours(gpus, func(a, b *gpu.GPU) error { return of[a].unreachable[of[b]] })
}

// apart returns an error if the kernels of some member of the team cannot access the shared memory of another.
func (t *team) apart() error {
	if t.w.hosted {
		return nil
	}
	return anyApart(t.w.Apart, t.members)
}

// anyApart calls apart for each two members, and returns its first error.
func anyApart(apart func(rank, peer int) error, members []*member) error {
	for i, m := range members {
		for _, o := range members[:i] {
			if err := apart(o.dev.rank, m.dev.rank); err != nil {
				return err
			}
		}
	}
	return nil
}
