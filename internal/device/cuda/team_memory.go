package cuda

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/coll"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/device/cuda/signal"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
)

// hold reserves the memory that a plan requests by x, and returns it. The team frees the memory when it is closed.
func (t *team) hold(x coll.Want) (coll.Area, error) {
	switch x.Kind {
	case coll.Halves:
		return t.halves(x.Name, x.Bytes/2)
	case coll.Unsent:
		return t.reserveOf(x.Name, x.Bytes, kernels.Unsent)
	case coll.Pinned:
		return t.pinned(x.Name, x.Bytes)
	case coll.Joined:
		return joinMemory(t, x.Bytes)
	}
	return t.reserve(x.Name, x.Bytes)
}

// reserve returns memory of at least the given number of bytes on every member. They are initially zero. Calls with the
// same name return the same memory, unless that memory is too small; then reserve returns new memory.
func (t *team) reserve(name string, bytes int64) (coll.Area, error) {
	return t.reserveOf(name, bytes, 0)
}

// reserveOf does the same as reserve, for memory that is initially filled with the given 32-bit word.
func (t *team) reserveOf(name string, bytes int64, word uint32) (coll.Area, error) {
	if r, held := t.regions[name]; held && r.Bytes >= bytes {
		return r, nil
	}
	n := int64(64 << 10)
	for n < bytes {
		n *= 2
	}
	at, err := t.alloc(n, word)
	if err != nil {
		return coll.Area{}, fmt.Errorf("allocating %d bytes of %s on each member: %w", n, name, err)
	}
	t.regions[name] = coll.Area{At: at, Bytes: n}
	return t.regions[name], nil
}

// halves returns two halves of at least half bytes each, for flags that are stored among data. Kernels set the halves
// to zero when the launch numbers wrap around. The area may be larger than requested; each half is then half of the
// area.
func (t *team) halves(name string, half int64) (coll.Area, error) {
	before := t.regions[name]
	r, err := t.reserve(name, 2*half)
	if err != nil || r.Bytes == before.Bytes {
		return r, err
	}
	if t.named == kernels.RegionsMost {
		return coll.Area{}, fmt.Errorf("the team has %d areas with flags already, the most that kernels can clear", t.named)
	}
	for _, m := range t.own {
		entry := m.control + kernels.ControlRegions + 4 + nvlib.Ptr(16*t.named)
		for k, v := range []int64{int64(r.At[m.index]), r.Bytes / 2} {
			if err := m.dev.bound(func() error { return signal.SetWord(t.w.drv, entry+nvlib.Ptr(8*k), uint64(v)) }); err != nil {
				return coll.Area{}, err
			}
		}
		if err := m.set(m.control+kernels.ControlRegions, uint32(t.named+1), 1); err != nil {
			return coll.Area{}, err
		}
	}
	t.named++
	return r, nil
}

// pinned reserves the given number of bytes of pinned host memory under a name, as reserve does for device memory.
func (t *team) pinned(name string, bytes int64) (coll.Area, error) {
	if r, held := t.regions[name]; held && r.Bytes >= bytes {
		return r, nil
	}
	a := coll.Area{Bytes: gpu.RoundUp(bytes, 1<<20)}
	for _, m := range t.members {
		take := m.dev.hostShared
		if t.w.peers == nil {
			take = func(bytes int64) (*memory, error) { return m.dev.alloc(bytes, device.Pinned) }
		}
		mem, err := take(a.Bytes)
		if err != nil {
			return coll.Area{}, fmt.Errorf("cannot allocate %d bytes of host memory for each member: %w", a.Bytes, err)
		}
		t.memory = append(t.memory, mem)
		a.At = append(a.At, mem.addr)
	}
	t.regions[name] = a
	return a, nil
}
