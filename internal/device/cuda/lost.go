package cuda

import "hocket.example/hocket/internal/device/cuda/gpu"

// lost reports whether the GPU is lost to the process.
func (s *site) lost() bool { return s.gpu.Lost.Load() != nil }

// excuse returns err, or nil where it only repeats that a GPU of the world is
// lost: so do other GPUs' calls about memory that they share with it.
func (w *world) excuse(err error) error {
	if !gpu.IsFatal(err) {
		return err
	}
	for _, s := range w.sites {
		if s.lost() {
			return nil
		}
	}
	return err
}
