package peers

import (
	"errors"
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/nvlib"
	procs "hocket.example/hocket/internal/world"
)

// If GPUs that different processes drive have no peer access, processes share host memory instead of device memory. For
// each region of a GPU, the process that drives the GPU creates a segment of host memory, and all other processes map
// the segment. In each process, the driver then grants the GPUs access.

// hosted is a source of regions in host memory that all processes map.
type hosted struct {
	drv      *nvlib.Driver
	peers    *procs.Spread
	key      string
	owner    int
	taken    int
	segments map[*gpu.Region]*procs.Segment
}

// Hosted returns a source of regions in host memory. The owner creates the regions. The key identifies the GPU in all
// processes. Calls need a current context.
func Hosted(drv *nvlib.Driver, peers *procs.Spread, key string, owner int) gpu.Source {
	return &hosted{drv: drv, peers: peers, key: key, owner: owner, segments: map[*gpu.Region]*procs.Segment{}}
}

func (h *hosted) Reserve(most, least int64) (*gpu.Region, error) {
	h.taken++
	key := regionKey(h.peers, h.key, h.taken)
	if h.owner == h.peers.Process() {
		return h.create(key, most, least)
	}
	seg, err := h.peers.Map(h.peers.Ctx, h.owner, key)
	if err != nil {
		return nil, err
	}
	if int64(len(seg.Bytes())) < least {
		return nil, errors.Join(fmt.Errorf("%w: process %d could not allocate %d bytes of host memory",
			device.ErrOutOfMemory, h.owner, least), seg.Close())
	}
	return h.register(seg)
}

// create creates a region and shares it. If it cannot create the region, it shares a segment that is too small for any
// region, which the other processes take for the failure.
func (h *hosted) create(key string, most, least int64) (*gpu.Region, error) {
	r, err := h.reserve(most)
	if gpu.OutOfMemory(err) && least < most {
		r, err = h.reserve(least)
	}
	if err == nil {
		if err = h.peers.Share(key, h.segments[r]); err != nil {
			return nil, errors.Join(err, h.Release(r))
		}
		return r, nil
	}
	none, nerr := procs.NewSegment(1)
	if nerr == nil {
		nerr = errors.Join(h.peers.Share(key, none), none.Close())
	}
	return nil, errors.Join(err, nerr)
}

func (h *hosted) reserve(bytes int64) (*gpu.Region, error) {
	seg, err := procs.NewSegment(int(bytes))
	if err != nil {
		return nil, err
	}
	return h.register(seg)
}

// register gives the process's GPUs access to a segment.
func (h *hosted) register(seg *procs.Segment) (*gpu.Region, error) {
	r := &gpu.Region{Addr: nvlib.Ptr(seg.Address()), Bytes: int64(len(seg.Bytes()))}
	if err := h.drv.HostRegister(r.Addr, r.Bytes); err != nil {
		return nil, errors.Join(fmt.Errorf("giving GPUs access to %d bytes of shared host memory: %w", r.Bytes, err), seg.Close())
	}
	h.segments[r] = seg
	return r, nil
}

func (h *hosted) Release(r *gpu.Region) error {
	seg := h.segments[r]
	delete(h.segments, r)
	return errors.Join(h.drv.HostUnregister(r.Addr), seg.Close())
}
