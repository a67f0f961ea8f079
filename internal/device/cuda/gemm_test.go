package cuda

import (
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gemm"
	"hocket.example/hocket/internal/nvlib"
)

// fill has memory of the site's GPU repeat a pattern, and waits for it.
func (s *site) fill(at nvlib.Ptr, bytes int64, pattern []byte, h nvlib.Stream) error {
	return gemm.FillPattern(s.w.drv, s.heaps[device.Pinned], at, bytes, pattern, h)
}
