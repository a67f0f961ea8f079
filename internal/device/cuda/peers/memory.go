package peers

import (
	"encoding/binary"
	"errors"
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gpu"
	procs "hocket.example/hocket/internal/world"
)

// Processes map each other's device memory region by region. In every process, a heap manages the shared memory of each
// GPU, and all heaps of a GPU allocate in the same way. When the heap of the GPU's own process adds a region, that
// process exports it. The heaps of the other processes need a region of the same size at the same time, and map the
// exported region. The GPU's process first shares the size of the region; size 0 means that it could not allocate the
// region.

// owned is the source of regions for a GPU of this process.
type owned struct {
	gpu.DeviceMemory
	peers *procs.Spread
	key   string
	taken int
}

// Owned returns a source of regions that allocates memory of m and exports it to the other processes. The key
// identifies the GPU in all processes.
func Owned(m gpu.DeviceMemory, peers *procs.Spread, key string) gpu.Source {
	m.Exported = true
	return &owned{DeviceMemory: m, peers: peers, key: key}
}

// imported is the source of regions for a GPU of another process.
type imported struct {
	gpu.DeviceMemory
	peers *procs.Spread
	key   string
	owner int
	taken int
}

// Imported returns a source of regions that maps the regions that the owner of the GPU exports.
func Imported(m gpu.DeviceMemory, peers *procs.Spread, key string, owner int) gpu.Source {
	return &imported{DeviceMemory: m, peers: peers, key: key, owner: owner}
}

const noteBytes = 8

func regionKey(p *procs.Spread, key string, n int) string {
	return fmt.Sprintf("%s: %s, region %d", p.Name, key, n)
}

func (o *owned) Reserve(most, least int64) (*gpu.Region, error) {
	o.taken++
	p, key := o.peers, regionKey(o.peers, o.key, o.taken)
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
		return nil, errors.Join(fmt.Errorf("exporting device memory to other processes: %w", err), p.Share(key, note),
			o.Release(r))
	}
	defer file.Close()
	if err := errors.Join(p.Share(key, note), p.Export(key+", memory", file)); err != nil {
		return nil, errors.Join(err, o.Release(r))
	}
	return r, nil
}

func (i *imported) Reserve(_, least int64) (*gpu.Region, error) {
	i.taken++
	p, key := i.peers, regionKey(i.peers, i.key, i.taken)
	note, err := p.Map(p.Ctx, i.owner, key)
	if err != nil {
		return nil, err
	}
	bytes := int64(binary.LittleEndian.Uint64(note.Bytes()))
	note.Close() // the mapping is no longer needed, so the caller ignores an error
	if bytes < least {
		return nil, fmt.Errorf("%w: process %d could not allocate %d bytes on its GPU", device.ErrOutOfMemory, i.owner,
			least)
	}
	file, err := p.Import(p.Ctx, i.owner, key+", memory")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	r, err := i.Import(file, bytes)
	if err != nil {
		return nil, fmt.Errorf("mapping %d bytes of process %d: %w", bytes, i.owner, err)
	}
	return r, nil
}

// HostSegment returns a segment of host memory that belongs to a rank and that processes share under a key. The rank's
// process creates it, and the others map it.
func HostSegment(p *procs.Spread, rank int, key string, bytes int64) (*procs.Segment, error) {
	if !p.Local(rank) {
		return p.Map(p.Ctx, p.Owner(rank), key)
	}
	seg, err := procs.NewSegment(int(bytes))
	if err == nil {
		err = p.Share(key, seg)
	}
	return seg, err
}
