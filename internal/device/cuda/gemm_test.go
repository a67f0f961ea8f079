package cuda

import (
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gemm"
	"hocket.example/hocket/internal/nvlib"
)

// fill fills memory of the site's GPU with a repeated pattern, and waits until it is filled.
func (s *site) fill(at nvlib.Ptr, bytes int64, pattern []byte, h nvlib.Stream) error {
	return gemm.FillPattern(s.w.drv, s.heaps[device.Pinned], at, bytes, pattern, h)
}
