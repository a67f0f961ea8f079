package cuda

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
)

// poisonWord is a NaN in f16, bf16, f32 and f64 and a large number in i32 and
// i64, wherever it is read at an even offset.
const poisonWord = 0x7fff7fff

// Poison overwrites bytes [off, off+n), at once; what lies outside the memory is
// ignored. An error shows in the next Sync.
func (m *memory) Poison(off, n int64) {
	w := m.dev.w
	w.mu.Lock()
	defer w.mu.Unlock()
	lo := min(max(off, 0), m.bytes)
	hi := lo + min(max(n, 0), m.bytes-lo)
	if w.err() != nil || m.freed || lo == hi {
		return
	}
	if err := m.dev.bound(func() error { return m.fill(lo, hi) }); err != nil {
		m.dev.site.gpu.Lose(err, fmt.Sprintf("rank %d", m.dev.rank))
		w.end(&device.Fault{Rank: m.dev.rank, ID: -1, Err: err})
	}
}

// fill sets bytes [lo, hi), words where they are whole. The context is current.
func (m *memory) fill(lo, hi int64) error {
	drv := m.dev.w.drv
	at := func(i int64) nvlib.Ptr { return m.addr + nvlib.Ptr(i) }
	for ; lo < hi && lo%4 != 0 || lo < hi && hi-lo < 4; lo++ {
		if err := drv.Fill8(at(lo), byte(uint32(poisonWord)>>(8*(lo%2))), 1, 0); err != nil {
			return err
		}
	}
	if words := (hi - lo) / 4; words > 0 {
		if err := drv.Fill32(at(lo), poisonWord, words, 0); err != nil {
			return err
		}
		if lo += 4 * words; lo < hi {
			return m.fill(lo, hi)
		}
	}
	return drv.SyncStream(0)
}
