package signal

import (
	"errors"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/nvlib"
)

// SetWord writes eight bytes of device memory. The context is current.
func SetWord(drv *nvlib.Driver, at nvlib.Ptr, v uint64) error {
	return errors.Join(drv.Fill32(at, uint32(v), 1, 0), drv.Fill32(at+4, uint32(v>>32), 1, 0), drv.SyncStream(0))
}

// Fill sets n words of four bytes. The context is current.
func Fill(drv *nvlib.Driver, at nvlib.Ptr, v uint32, n int64) error {
	return errors.Join(drv.Fill32(at, v, n, 0), drv.SyncStream(0))
}

// Read returns bytes of device memory. It copies the bytes through pinned host memory. The context is current.
func Read(drv *nvlib.Driver, pinned *gpu.Heap, at nvlib.Ptr, bytes int64) ([]byte, error) {
	buf, err := pinned.Alloc(bytes)
	if err != nil {
		return nil, err
	}
	var args [4]uintptr
	err = errors.Join(drv.Copy(buf, at, bytes, 0, &args), drv.SyncStream(0))
	read := append([]byte(nil), cabi.Bytes(uintptr(buf), int(bytes))...)
	return read, errors.Join(err, pinned.Free(buf, bytes))
}

// poisonWord is the content of poisoned memory. It reads as a NaN in f16, bf16, f32 and f64, and as a large number in
// i32 and i64, at any even offset.
const poisonWord = 0x7fff7fff

// Poison fills bytes [lo, hi) of memory with poisonWord. If the first or last bytes are not an entire word, they get
// the corresponding bytes of poisonWord. The context is current.
func Poison(drv *nvlib.Driver, memory nvlib.Ptr, lo, hi int64) error {
	at := func(i int64) nvlib.Ptr { return memory + nvlib.Ptr(i) }
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
			return Poison(drv, memory, lo, hi)
		}
	}
	return drv.SyncStream(0)
}
