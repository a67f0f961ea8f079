package cuda

import (
	"cmp"
	"errors"
	"math/bits"
	"time"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/internal/tensor"
)

const (
	// chunkBytes is the most that goes through one pinned buffer.
	chunkBytes = 8 << 20
	// leastChunk is the smallest pinned buffer.
	leastChunk = 4 << 10
	// stagingBytes is how much pinned memory a world takes before it rather
	// waits for transfers that are under way.
	stagingBytes = 512 << 20
)

// staging is pinned memory for transfers, in buffers of powers of two.
type staging struct {
	free     map[int64][]nvlib.Ptr // by size
	total    int64
	bound    int64 // on total; 0 for stagingBytes
	landings []landing
}

func (s *staging) most() int64 { return cmp.Or(s.bound, stagingBytes) }

// landing is a transfer under way through a pinned buffer. A download is copied
// to dst when it is over.
type landing struct {
	mark *mark
	buf  nvlib.Ptr
	size int64 // of buf
	dst  []byte
}

// stagingBuffer returns a pinned buffer of at least n bytes, and its size. It may wait
// for transfers under way. The context is current.
func stagingBuffer(s *stream, n int64) (nvlib.Ptr, int64, error) {
	w := s.dev.w
	size := bufferSize(n)
	if w.staging.free == nil {
		w.staging.free = map[int64][]nvlib.Ptr{}
	}
	for began := time.Now(); ; {
		if list := w.staging.free[size]; len(list) > 0 {
			w.staging.free[size] = list[:len(list)-1]
			return list[len(list)-1], size, nil
		}
		if w.staging.total+size <= w.staging.most() || !w.staging.inFlight(size) {
			break
		}
		if err := errors.Join(awaitTransfer(w, began), s.dev.rebind()); err != nil {
			return 0, 0, err
		}
	}
	buf, err := growStaging(w, s.dev.site, size)
	return buf, size, err
}

// awaitTransfer finishes what transfers it can, in the wait for a buffer of theirs. The
// caller holds mu, which is free for a while, so that a context can end the world. Other
// contexts are made current.
func awaitTransfer(w *world, began time.Time) error {
	before := len(w.staging.landings)
	w.staging.land()
	if len(w.staging.landings) < before {
		return nil
	}
	w.flight.poll() // a transfer that failed is not over, and would never be
	if w.cause == nil {
		w.mu.Unlock()
		gpu.Pause(time.Since(began))
		w.mu.Lock()
	}
	return w.err()
}

// bufferSize is the size of the buffer for n bytes.
func bufferSize(n int64) int64 {
	if n <= leastChunk {
		return leastChunk
	}
	return 1 << bits.Len64(uint64(n-1))
}

// growStaging takes another buffer. The context is current.
func growStaging(w *world, s *site, size int64) (nvlib.Ptr, error) {
	buf, err := s.heaps[device.Pinned].Alloc(size)
	if err == nil {
		w.staging.total += size
	}
	return buf, err
}

// Stage makes buffers for transfers of so many bytes each, all under way at once
// that many times, as far as that much is staged at all.
func (w *world) Stage(transfers []int64, times int) error {
	defer w.guard.Exclusive()()
	if err := w.err(); err != nil {
		return err
	}
	need := map[int64]int{}
	for _, n := range transfers {
		for ; n > 0; n -= chunkBytes {
			need[bufferSize(min(n, chunkBytes))] += times
		}
	}
	if w.staging.free == nil {
		w.staging.free = map[int64][]nvlib.Ptr{}
	}
	d := w.first()
	return d.bound(func() error {
		for size, n := range need {
			for len(w.staging.free[size]) < n && w.staging.total+size <= w.staging.most() {
				buf, err := growStaging(w, d.site, size)
				if err != nil {
					return err
				}
				w.staging.free[size] = append(w.staging.free[size], buf)
			}
		}
		return nil
	})
}

// inFlight reports whether a buffer of that size will come free.
func (t *staging) inFlight(size int64) bool {
	for i := range t.landings {
		if l := &t.landings[i]; l.size == size && !l.mark.stream.dev.site.lost() {
			return true
		}
	}
	return false
}

// land finishes the transfers that are over. The caller holds mu.
func (t *staging) land() {
	kept := t.landings[:0]
	for _, l := range t.landings {
		if !l.mark.over() {
			kept = append(kept, l)
			continue
		}
		if l.dst != nil {
			tensor.CopyBytes(l.dst, cabi.Bytes(uintptr(l.buf), len(l.dst)))
		}
		t.free[l.size] = append(t.free[l.size], l.buf)
		l.mark.release()
	}
	clear(t.landings[len(kept):])
	t.landings = kept
}

// noteTransfer notes a transfer that was just issued.
func noteTransfer(s *stream, buf nvlib.Ptr, size int64, dst []byte) error {
	s.worked()
	m, err := s.here()
	if err != nil {
		return err
	}
	t := &s.dev.w.staging
	t.landings = append(t.landings, landing{m, buf, size, dst})
	return nil
}

// uploadView copies dense host bytes to dst. The context is current.
func uploadView(s *stream, dst *strided.View, src []byte) error {
	if dst.Dense() {
		return uploadDense(s, dst.Addr, src)
	}
	n := int64(len(src))
	if n == 0 {
		return nil
	}
	buf, size, err := stagingBuffer(s, n)
	if err != nil {
		return err
	}
	tensor.CopyBytes(cabi.Bytes(uintptr(buf), len(src)), src)
	from := dst.At(buf)
	if err := s.copy(dst, &from); err != nil {
		return err
	}
	s.led = false // kernels that begin early may read a constant before they wait: see device.Kernel
	return noteTransfer(s, buf, size, nil)
}

func uploadDense(s *stream, at nvlib.Ptr, src []byte) error {
	for len(src) > 0 {
		n := min(int64(len(src)), chunkBytes)
		buf, size, err := stagingBuffer(s, n)
		if err != nil {
			return err
		}
		tensor.CopyBytes(cabi.Bytes(uintptr(buf), int(n)), src[:n])
		if err := s.dev.w.drv.Copy(at, buf, n, s.h, &s.args); err != nil {
			return err
		}
		if err := noteTransfer(s, buf, size, nil); err != nil {
			return err
		}
		at, src = at+nvlib.Ptr(n), src[n:]
	}
	return nil
}

// downloadView copies src to dense host bytes, where they are after the next Sync.
// The context is current.
func downloadView(s *stream, dst []byte, src *strided.View) error {
	if src.Dense() {
		return downloadDense(s, dst, src.Addr)
	}
	n := int64(len(dst))
	if n == 0 {
		return nil
	}
	buf, size, err := stagingBuffer(s, n)
	if err != nil {
		return err
	}
	to := src.At(buf)
	if err := s.copy(&to, src); err != nil {
		return err
	}
	return noteTransfer(s, buf, size, dst)
}

func downloadDense(s *stream, dst []byte, at nvlib.Ptr) error {
	for len(dst) > 0 {
		n := min(int64(len(dst)), chunkBytes)
		buf, size, err := stagingBuffer(s, n)
		if err != nil {
			return err
		}
		if err := s.dev.w.drv.Copy(buf, at, n, s.h, &s.args); err != nil {
			return err
		}
		if err := noteTransfer(s, buf, size, dst[:n]); err != nil {
			return err
		}
		at, dst = at+nvlib.Ptr(n), dst[n:]
	}
	return nil
}
