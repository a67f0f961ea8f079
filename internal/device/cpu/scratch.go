package cpu

import (
	"math/bits"
	"sync"
)

// scratch pools hold buffers of 1<<class bytes, aligned as memory is: kernels
// take them per run, since one launch may run on several streams at a time.
var scratch [48]sync.Pool

// borrow returns n bytes of undefined contents; give them back with restore.
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
