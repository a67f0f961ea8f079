// Package staging manages the pinned memory for transfers between host and devices. A Pool holds the buffers and the
// transfers in flight. Once a download has ended, the pool copies the buffer to the caller's bytes.
package staging

import (
	"cmp"
	"math/bits"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/internal/tensor"
)

const (
	// Chunk is the size of the largest buffer. Larger transfers are split.
	Chunk = 8 << 20
	// Least is the size of the smallest buffer.
	Least = 4 << 10
	// most is the default limit of a pool's size in bytes. At the limit, a transfer waits until another transfer
	// releases its buffer.
	most = 512 << 20
)

// Size returns the size of the buffer for n bytes: a power of two.
func Size(n int64) int64 {
	if n <= Least {
		return Least
	}
	return 1 << bits.Len64(uint64(n-1))
}

// Pool holds a world's staging buffers. The world's mutex guards it. The zero value is an empty pool.
type Pool struct {
	Bound    int64                 // limit of the total size in bytes of all buffers; 0 for the default
	free     map[int64][]nvlib.Ptr // by size
	total    int64
	landings []landing
}

// Mark is the position in a stream after a transfer.
type Mark interface {
	Over() bool // reports whether the device has reached the mark
	Lost() bool // reports whether the GPU is lost, so that it will never reach the mark
	Release()
}

// landing is a transfer in flight. When a download has ended, the pool copies buf to dst.
type landing struct {
	mark Mark
	buf  nvlib.Ptr
	size int64 // of buf
	dst  []byte
}

// Take returns a free buffer of the given size, or false if there is none.
func (p *Pool) Take(size int64) (nvlib.Ptr, bool) {
	n := len(p.free[size])
	if n == 0 {
		return 0, false
	}
	buf := p.free[size][n-1]
	p.free[size] = p.free[size][:n-1]
	return buf, true
}

func (p *Pool) give(buf nvlib.Ptr, size int64) {
	if p.free == nil {
		p.free = map[int64][]nvlib.Ptr{}
	}
	p.free[size] = append(p.free[size], buf)
}

// Grows reports whether the pool may allocate another buffer of the given size.
func (p *Pool) Grows(size int64) bool { return p.total+size <= cmp.Or(p.Bound, most) }

// Grow allocates another buffer of the given size in pinned memory. A context is current.
func (p *Pool) Grow(pinned *gpu.Heap, size int64) (nvlib.Ptr, error) {
	buf, err := pinned.Alloc(size)
	if err == nil {
		p.total += size
	}
	return buf, err
}

// Stage allocates buffers in advance: for each of the given sizes in bytes, as many as the given number of concurrent
// transfers (times) need. It stops when the pool has its largest permitted size. A context is current.
func (p *Pool) Stage(pinned *gpu.Heap, transfers []int64, times int) error {
	need := map[int64]int{}
	for _, n := range transfers {
		for ; n > 0; n -= Chunk {
			need[Size(min(n, Chunk))] += times
		}
	}
	for size, n := range need {
		for len(p.free[size]) < n && p.Grows(size) {
			buf, err := p.Grow(pinned, size)
			if err != nil {
				return err
			}
			p.give(buf, size)
		}
	}
	return nil
}

// Note records a transfer that uses the buffer buf. The transfer has ended when the mark is reached; the pool then
// releases the mark. The slice dst is the destination of a download, or nil for an upload.
func (p *Pool) Note(m Mark, buf nvlib.Ptr, size int64, dst []byte) {
	p.landings = append(p.landings, landing{m, buf, size, dst})
}

// InFlight reports whether a transfer in flight will release a buffer of the given size.
func (p *Pool) InFlight(size int64) bool {
	for i := range p.landings {
		if l := &p.landings[i]; l.size == size && !l.mark.Lost() {
			return true
		}
	}
	return false
}

// Land releases the buffers of transfers that have ended, and reports whether there were any.
func (p *Pool) Land() bool {
	kept := p.landings[:0]
	for _, l := range p.landings {
		if !l.mark.Over() {
			kept = append(kept, l)
			continue
		}
		if l.dst != nil {
			tensor.CopyBytes(l.dst, cabi.Bytes(uintptr(l.buf), len(l.dst)))
		}
		p.give(l.buf, l.size)
		l.mark.Release()
	}
	landed := len(kept) < len(p.landings)
	clear(p.landings[len(kept):])
	p.landings = kept
	return landed
}

// Disown makes the pool forget the destinations of all downloads, because the callers may use these bytes for other
// purposes.
func (p *Pool) Disown() {
	for i := range p.landings {
		p.landings[i].dst = nil
	}
}
