package cuda

import (
	"encoding/binary"
	"errors"
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/nvlib"
	procs "hocket.example/hocket/internal/world"
)

// Shared memory of a GPU is divided by a heap, in its process and in all others alike. Whenever the owner's
// heap takes a region, it exports that, and the others' heaps, which want one of the same size at the same
// time, map it. Before each region goes a note of how large it is; one of no bytes says that there is no memory.

// owned are the regions of a GPU of this process.
type owned struct {
	gpu.DeviceMemory
	s     *site
	taken int
}

// imported are those of a GPU of another.
type imported struct {
	gpu.DeviceMemory
	s     *site
	taken int
}

const noteBytes = 8

func regionKey(s *site, n int) string {
	return fmt.Sprintf("%s: %s, region %d", s.w.peers.Name, s.key, n)
}

// Reserve implements gpu.Source.
func (o *owned) Reserve(most, least int64) (*gpu.Region, error) {
	o.taken++
	p, key := o.s.w.peers, regionKey(o.s, o.taken)
	r, err := o.DeviceMemory.Reserve(most, least)
	note, nerr := procs.NewSegment(noteBytes)
	if nerr != nil {
		return nil, errors.Join(err, nerr)
	}
	defer note.Close()
	if err != nil {
		return nil, errors.Join(err, p.Share(key, note))
	}
	binary.LittleEndian.PutUint64(note.Bytes(), uint64(r.Bytes))
	file, err := o.Export(r)
	if err != nil {
		clear(note.Bytes())
		return nil, errors.Join(fmt.Errorf("exporting memory to other processes: %w", err), p.Share(key, note),
			o.Release(r))
	}
	defer file.Close()
	if err := errors.Join(p.Share(key, note), p.Export(key+", memory", file)); err != nil {
		return nil, errors.Join(err, o.Release(r))
	}
	return r, nil
}

// Reserve implements gpu.Source.
func (i *imported) Reserve(_, least int64) (*gpu.Region, error) {
	i.taken++
	p, key := i.s.w.peers, regionKey(i.s, i.taken)
	note, err := p.Map(p.Ctx, i.s.owner, key)
	if err != nil {
		return nil, err
	}
	bytes := int64(binary.LittleEndian.Uint64(note.Bytes()))
	note.Close() // of shared memory that nobody uses any more there is nothing to say
	if bytes < least {
		return nil, fmt.Errorf("%w: process %d could not take %d bytes of its GPU", device.ErrOutOfMemory, i.s.owner,
			least)
	}
	file, err := p.Import(p.Ctx, i.s.owner, key+", memory")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	r, err := i.Import(file, bytes)
	if err != nil {
		return nil, fmt.Errorf("mapping %d bytes of process %d: %w", bytes, i.s.owner, err)
	}
	return r, nil
}

// sharedHeap is the heap of memory that other processes map, or that this one maps of another.
func (s *site) sharedHeap(grain int64) *gpu.Heap {
	m := gpu.DeviceMemory{GPU: s.gpu, Devices: s.reachable(), Driver: s.w.drv}
	switch {
	case s.w.peers == nil:
		return gpu.NewHeap(gpu.DeviceLeast, gpu.DeviceSlab, grain, m)
	case s.foreign:
		return gpu.NewHeap(gpu.DeviceLeast, gpu.DeviceSlab, grain, &imported{DeviceMemory: m, s: s})
	}
	m.Exported = true
	return gpu.NewHeap(gpu.DeviceLeast, gpu.DeviceSlab, grain, &owned{DeviceMemory: m, s: s})
}

// hostShared is host memory of a device that the GPUs of all processes reach. The caller holds the world
// exclusively.
func (d *dev) hostShared(bytes int64) (*memory, error) {
	p := d.w.peers
	if d.site.far {
		return d.nameless(&memory{dev: d, kind: device.Pinned, bytes: bytes}), nil
	}
	d.w.hostShares++
	key := fmt.Sprintf("%s: rank %d, host memory %d", p.Name, d.rank, d.w.hostShares)
	var seg *procs.Segment
	var err error
	if d.site.foreign {
		seg, err = p.Map(p.Ctx, d.site.owner, key)
	} else if seg, err = procs.NewSegment(int(bytes)); err == nil {
		err = p.Share(key, seg)
	}
	if err != nil {
		return nil, d.errorf("%d bytes of host memory that other processes map: %w", bytes, err)
	}
	at := nvlib.Ptr(seg.Address())
	if err := d.bound(func() error { return d.w.drv.HostRegister(at, int64(len(seg.Bytes()))) }); err != nil {
		return nil, d.errorf("%d bytes of host memory that other processes map: %w", bytes,
			errors.Join(err, seg.Close()))
	}
	m := &memory{dev: d, kind: device.Pinned, addr: at, bytes: bytes, seg: seg}
	d.w.segments = append(d.w.segments, m)
	return m, nil
}

// dropSegment gives back what hostShared took.
func (m *memory) dropSegment() error {
	err := m.dev.bound(func() error { return m.dev.w.drv.HostUnregister(m.addr) })
	err = errors.Join(err, m.seg.Close())
	m.seg = nil
	return err
}
