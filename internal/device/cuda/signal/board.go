package signal

import (
	"encoding/binary"
	"errors"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
)

// Board allocates flags and lists of flags in the memory of several GPUs. Kernels of each of these GPUs can write all
// flags.
type Board struct {
	chunks []*chunk
	lists  []*List
}

// GPU is a GPU in whose memory a board allocates.
type GPU struct {
	Drv   *nvlib.Driver
	Heaps *[3]*gpu.Heap
	Bound func(func() error) error             // calls a function while the GPU's context is current
	Alloc func(bytes int64) (nvlib.Ptr, error) // allocates shared memory
	Lost  func() bool                          // reports whether the GPU is lost to the process
}

// List is a list, in a GPU's memory, of the flags that a kernel of that GPU raises.
type List struct {
	At    nvlib.Ptr
	Flags []nvlib.Ptr
}

// Full reports whether the list has no room for another flag.
func (l *List) Full() bool { return len(l.Flags) >= kernels.JoinMost }

// Meeting is one GPU's part of a synchronization in which several GPUs wait for each other. The GPU waits for Flag,
// and raises the flags in List.
type Meeting struct {
	Flag nvlib.Ptr
	List *List
}

// chunk is a block of a GPU's memory, of which a Board uses parts for flags and lists. It is initially zero.
type chunk struct {
	g    *GPU
	at   nvlib.Ptr
	used int64
}

const (
	flagBytes  = 32 // the size of a memory sector, so that no two flags share one
	listBytes  = 8 * (1 + kernels.JoinMost)
	chunkBytes = 64 << 10
)

// Flag allocates a flag in g's memory.
func (b *Board) Flag(g *GPU) (nvlib.Ptr, error) { return b.cut(g, flagBytes) }

// List allocates an empty list in g's memory.
func (b *Board) List(g *GPU) (*List, error) {
	at, err := b.cut(g, listBytes)
	if err != nil {
		return nil, err
	}
	l := &List{At: at}
	b.lists = append(b.lists, l)
	return l, nil
}

// cut allocates bytes in a chunk of g's memory.
func (b *Board) cut(g *GPU, bytes int64) (nvlib.Ptr, error) {
	for _, c := range b.chunks {
		if c.g == g && c.used+bytes <= chunkBytes {
			c.used += bytes
			return c.at + nvlib.Ptr(c.used-bytes), nil
		}
	}
	at, err := g.Alloc(chunkBytes)
	if err != nil {
		return 0, err
	}
	b.chunks = append(b.chunks, &chunk{g, at, bytes})
	return at, nil
}

// Meet allocates flags and lists with which the given GPUs can wait for each other. Each GPU raises the flags of all
// others.
func (b *Board) Meet(gpus []*GPU) (at []Meeting, err error) {
	for _, g := range gpus {
		flag, err := b.Flag(g)
		if err != nil {
			return nil, err
		}
		l, err := b.List(g)
		if err != nil {
			return nil, err
		}
		at = append(at, Meeting{flag, l})
	}
	for i := range at {
		for j := range at {
			if i != j {
				at[i].List.Flags = append(at[i].List.Flags, at[j].Flag)
			}
		}
	}
	return at, nil
}

// Fill sets the flags in device memory to zero and writes the lists. All lists must be complete, and no kernel may use
// the board yet.
func (b *Board) Fill() error {
	var errs []error
	for _, c := range b.chunks {
		errs = append(errs, c.g.Bound(func() error { return b.fill(c) }))
	}
	return errors.Join(errs...)
}

func (b *Board) fill(c *chunk) error {
	drv, pinned := c.g.Drv, c.g.Heaps[device.Pinned]
	buf, err := pinned.Alloc(chunkBytes)
	if err != nil {
		return err
	}
	image := cabi.Bytes(uintptr(buf), chunkBytes)
	clear(image)
	for _, l := range b.lists {
		if l.At < c.at || l.At >= c.at+chunkBytes {
			continue
		}
		words := image[l.At-c.at:]
		binary.LittleEndian.PutUint64(words, uint64(len(l.Flags)))
		for i, at := range l.Flags {
			binary.LittleEndian.PutUint64(words[8*(i+1):], uint64(at))
		}
	}
	var args [4]uintptr
	return errors.Join(drv.Copy(c.at, buf, chunkBytes, 0, &args), drv.SyncStream(0), pinned.Free(buf, chunkBytes))
}

// Free frees the memory. No kernel may be using the board.
func (b *Board) Free() error {
	var errs []error
	for _, c := range b.chunks {
		if !c.g.Lost() {
			errs = append(errs, c.g.Bound(func() error { return c.g.Heaps[device.Shared].Free(c.at, chunkBytes) }))
		}
	}
	b.chunks = nil
	return errors.Join(errs...)
}
