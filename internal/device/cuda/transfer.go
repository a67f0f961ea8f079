package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"sync"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
)

// tryTransfers moves some bytes between every two GPUs, once a process: that
// devices say they reach each other does not make it so (virtual machines and
// PCIe switches can lose or mangle such transfers without an error).
func (w *world) tryTransfers() error {
	for _, from := range w.sites {
		for _, to := range w.sites {
			pair := [2]nvlib.Device{from.gpu.dev, to.gpu.dev}
			if _, done := w.m.sys.tried.Load(pair); from == to || done {
				continue
			}
			if err := from.tryTransfer(to); err != nil {
				return fmt.Errorf("a transfer from GPU %d to GPU %d: %w; use fewer ranks, or choose GPUs by CUDA_VISIBLE_DEVICES", pair[0], pair[1], err)
			}
			w.m.sys.tried.Store(pair, true)
		}
	}
	return nil
}

// trialBytes is the size of a trial.
const trialBytes = 1 << 20

// trialPattern is what is sent, from the first 256 bytes on: from where depends on
// the receiver.
var trialPattern = sync.OnceValue(func() []byte {
	b := make([]byte, 256+trialBytes)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
})

// tryTransfer pushes a pattern to the other GPU and reads it back there.
func (s *site) tryTransfer(to *site) error {
	host, err := s.heaps[device.Pinned].takeBound(s, 2*trialBytes)
	if err != nil {
		return err
	}
	here, err := s.heaps[device.Shared].takeBound(s, trialBytes)
	if err != nil {
		return err
	}
	there, err := to.heaps[device.Shared].takeBound(to, trialBytes)
	if err != nil {
		return err
	}
	sent, got := cabi.Bytes(uintptr(host), trialBytes), cabi.Bytes(uintptr(host)+trialBytes, trialBytes)
	copy(sent, trialPattern()[int(to.gpu.dev)&0xff:])
	err = errors.Join(s.move([2]nvlib.Ptr{here, host}, [2]nvlib.Ptr{there, here}), to.move([2]nvlib.Ptr{host + trialBytes, there}))
	if err == nil && !bytes.Equal(sent, got) {
		err = errors.New("other bytes arrived than were sent")
	}
	return errors.Join(err, s.heaps[device.Pinned].give(host, 2*trialBytes),
		s.heaps[device.Shared].give(here, trialBytes), to.heaps[device.Shared].give(there, trialBytes))
}

// takeBound is take with the site's context current.
func (h *heap) takeBound(s *site, bytes int64) (p nvlib.Ptr, err error) {
	if err := s.w.drv.Bind(s.ctx); err != nil {
		return 0, err
	}
	defer s.w.drv.Unbind()
	return h.take(bytes)
}

// move copies from the second of each pair to the first, one after another, and
// waits.
func (s *site) move(pairs ...[2]nvlib.Ptr) error {
	drv := s.w.drv
	if err := drv.Bind(s.ctx); err != nil {
		return err
	}
	defer drv.Unbind()
	var args [4]uintptr
	for _, p := range pairs {
		if err := drv.Copy(p[0], p[1], trialBytes, 0, &args); err != nil {
			return err
		}
	}
	return drv.SyncStream(0)
}
