package cpu

import (
	"math/bits"
	"sync"
)

// scratch holds pools of buffers. The buffers of scratch[class] have 1<<class bytes and the alignment of device
// memory. Kernels borrow buffers for each execution, because one launch may execute on several streams at once.
var scratch [48]sync.Pool

// borrow returns n bytes with undefined contents. The caller must return the bytes with restore.
func borrow(n int64) *[]byte {
	class := bits.Len64(uint64(max(n, 1) - 1))
	if b, ok := scratch[class].Get().(*[]byte); ok {
		*b = (*b)[:n]
		return b
	}
	b := alignedBytes(1 << class)[:n]
	return &b
}

func restore(b *[]byte) {
	scratch[bits.Len64(uint64(cap(*b)-1))].Put(b)
}
