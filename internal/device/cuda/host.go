package cuda

import (
	"errors"
	"time"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/device/cuda/staging"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/internal/tensor"
)

// stagingBuffer returns a pinned buffer of at least n bytes, and the size of the buffer in bytes. It may wait until a
// transfer in flight releases a buffer. The context is current.
func stagingBuffer(s *stream, n int64) (nvlib.Ptr, int64, error) {
	w, size := s.dev.w, staging.Size(n)
	for began := time.Now(); ; {
		if buf, ok := w.staging.Take(size); ok {
			return buf, size, nil
		}
		if w.staging.Grows(size) || !w.staging.InFlight(size) {
			break
		}
		if err := errors.Join(awaitTransfer(w, began), s.dev.rebind()); err != nil {
			return 0, 0, err
		}
	}
	buf, err := w.staging.Grow(s.dev.site.heaps[device.Pinned], size)
	return buf, size, err
}

// awaitTransfer waits for a free buffer: it completes every transfer that has ended. The caller holds mu. It unlocks mu
// at times, so that a context that is done can end the world. It may change the current context.
func awaitTransfer(w *world, began time.Time) error {
	if w.staging.Land() {
		return nil
	}
	w.flight.poll() // a failed transfer never reaches its mark (its recorded end), so poll must detect the failure
	if w.cause == nil {
		w.mu.Unlock()
		gpu.Pause(time.Since(began))
		w.mu.Lock()
	}
	return w.err()
}

// Stage implements device.World.
func (w *world) Stage(transfers []int64, times int) error {
	defer w.guard.Exclusive()()
	if err := w.err(); err != nil {
		return err
	}
	d := w.first()
	return d.bound(func() error { return w.staging.Stage(d.site.heaps[device.Pinned], transfers, times) })
}

// noteTransfer adds a transfer that was just issued to those in flight.
func noteTransfer(s *stream, buf nvlib.Ptr, size int64, dst []byte) error {
	s.worked()
	m, err := s.here()
	if err != nil {
		return err
	}
	s.dev.w.staging.Note(m, buf, size, dst)
	return nil
}

// uploadView copies dense host bytes to the view dst. The context is current.
func uploadView(s *stream, dst *strided.View, src []byte) error {
	if dst.Dense() && !s.dev.site.inHost(dst) {
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
	s.led = false // an early kernel may read a constant before it waits: see device.Linear
	return noteTransfer(s, buf, size, nil)
}

func uploadDense(s *stream, at nvlib.Ptr, src []byte) error {
	for len(src) > 0 {
		n := min(int64(len(src)), staging.Chunk)
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

// downloadView copies the view src to dense host bytes. The bytes are valid after the next Sync. The context is
// current.
func downloadView(s *stream, dst []byte, src *strided.View) error {
	if src.Dense() && !s.dev.site.inHost(src) {
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
		n := min(int64(len(dst)), staging.Chunk)
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
