package cuda

import (
	"context"
	"errors"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/nccl"
)

var errClosed = errors.New("the world is closed")

// Close waits for work that still runs on the devices and frees everything. Memory of a lost GPU is freed only when the
// process ends, because no driver call can free it earlier.
func (w *world) Close() error {
	w.guard.Closing()
	if w.guard.GivenUp() != nil {
		return nil // the next Open returns the error
	}
	var err error
	if lost := w.Do(context.Background(), func() { err = w.close() }); lost != nil {
		return lost
	}
	return err
}

func (w *world) close() error {
	if w.unwatch != nil {
		w.unwatch()
	}
	errs, closed := w.finish()
	if closed {
		return errors.Join(errs...)
	}
	if w.peers != nil {
		w.peers.Forget(w.peers.Name + ":") // includes the state of a failed load
	}
	w.guard.Forget()
	closeNCCL(w, errs)
	defer w.guard.Exclusive()()
	w.guard.AbortBy(0)
	trimNCCL(w, nccl.IdleMost)
	for _, g := range w.recorded {
		errs = append(errs, g.drop())
	}
	for _, s := range w.sites {
		s.gemms.FreeAll()
	}
	for _, t := range w.teams {
		errs = append(errs, freeJoints(t))
	}
	for _, m := range w.segments {
		errs = append(errs, m.giveBack())
	}
	for _, s := range w.foreign {
		errs = append(errs, s.close(s.unmap))
	}
	for _, s := range w.sites {
		errs = append(errs, s.close(s.free))
	}
	return errors.Join(errs...)
}

// finish ends the world permanently and waits for work that still runs on the devices. The result before reports
// whether finish was called earlier.
func (w *world) finish() (errs []error, before bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cause == errClosed {
		return []error{w.err()}, true
	}
	w.end(errClosed)
	w.cause = errClosed
	return w.flight.drain(), false
}

// close frees the world's resources on a GPU, unless that GPU is lost.
func (s *site) close(giveBack func() error) error {
	if s.lost() {
		return nil
	}
	err := s.w.excuse(giveBack())
	if s.gpu.Lose(err, "when its world was closed") { // the next Open returns it
		return nil
	}
	return err
}

// unmap unmaps the memory of another process's GPU.
func (s *site) unmap() error {
	h := s.heaps[device.Shared]
	if h == nil || s.w.sites[0].lost() {
		return nil
	}
	return s.bound(h.Close)
}

// free frees the world's resources on the GPU of s, which must be idle.
func (s *site) free() error {
	if s.ctx == 0 { // the world was not opened
		return nil
	}
	if err := s.w.drv.Bind(s.ctx); err != nil {
		return err
	}
	defer s.w.drv.Unbind()
	var errs []error
	for _, st := range s.w.flight.streams {
		if st.dev.site == s {
			errs = append(errs, s.w.drv.DestroyStream(st.h))
		}
	}
	errs = append(errs, s.gemms.EndBranches(), s.clock.Destroy())
	for _, h := range s.heaps {
		if h != nil {
			errs = append(errs, h.Close())
		}
	}
	return errors.Join(errs...)
}
