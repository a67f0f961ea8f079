// Package staging has the pinned memory for transfers between the host and devices. A Pool has the buffers and the
// transfers under way: a downloaded buffer is copied to the caller's bytes once the download has ended.
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
	// Chunk is the most bytes that go through one buffer.
	Chunk = 8 << 20
	// Least is the size of the smallest buffer.
	Least = 4 << 10
	// most is how many bytes a pool takes before transfers rather wait for others that are under way.
	most = 512 << 20
)

// Size is the size of the buffer for n bytes: a power of two.
func Size(n int64) int64 {
	if n <= Least {
		return Least
	}
	return 1 << bits.Len64(uint64(n-1))
}

// Pool is a world's buffers. The world's mutex guards it. The zero value has none.
type Pool struct {
	Bound    int64                 // on all buffers' bytes; 0 for the usual
	free     map[int64][]nvlib.Ptr // by size
	total    int64
	landings []landing
}

// Mark is the place behind a transfer in its stream's order.
type Mark interface {
	Over() bool // reports whether all before is done
	Lost() bool // reports whether the GPU is lost, so that it will never be
	Release()
}

// landing is a transfer under way through a buffer. A download is copied
// to dst when it is over.
type landing struct {
	mark Mark
	buf  nvlib.Ptr
	size int64 // of buf
	dst  []byte
}

// Take returns a free buffer of that size; false where there is none.
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

// Grows reports whether the pool is to have another buffer of that size.
func (p *Pool) Grows(size int64) bool { return p.total+size <= cmp.Or(p.Bound, most) }

// Grow takes another buffer of that size from pinned memory. A context is current.
func (p *Pool) Grow(pinned *gpu.Heap, size int64) (nvlib.Ptr, error) {
	buf, err := pinned.Alloc(size)
	if err == nil {
		p.total += size
	}
	return buf, err
}

// Stage makes buffers for transfers of so many bytes each, all under way at once that many times, as far as that much
// is staged at all. A context is current.
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

// Note notes a transfer through a buffer that ends before a mark, which the pool releases; dst is that of a download.
func (p *Pool) Note(m Mark, buf nvlib.Ptr, size int64, dst []byte) {
	p.landings = append(p.landings, landing{m, buf, size, dst})
}

// InFlight reports whether a buffer of that size will come free.
func (p *Pool) InFlight(size int64) bool {
	for i := range p.landings {
		if l := &p.landings[i]; l.size == size && !l.mark.Lost() {
			return true
		}
	}
	return false
}

// Land finishes the transfers that are over, and reports whether any was.
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

// Disown has downloads write nowhere: the callers' bytes are theirs again.
func (p *Pool) Disown() {
	for i := range p.landings {
		p.landings[i].dst = nil
	}
}
