package tensor

import (
	"runtime"
	"sync"
)

const (
	// leastShare is the minimum number of bytes that one goroutine copies. At 10 GB/s, copying them takes about 50 µs,
	// which is much longer than starting a goroutine and waiting for it.
	leastShare = 512 << 10
	// mostShares is the maximum number of goroutines. It is limited so that other processors remain available for other
	// work.
	mostShares = 8
)

// CopyBytes is like the builtin function copy, but several goroutines copy if that is faster.
func CopyBytes(dst, src []byte) int {
	n := min(len(dst), len(src))
	Share(int64(n), int64(n), func(lo, hi int64) { copy(dst[lo:hi], src[lo:hi]) })
	return n
}

// Share calls do for disjoint parts that together cover [0, n). The argument bytes is the number of bytes that the
// calls move in total. If that number is large enough, the calls run concurrently in several goroutines. The function
// do must not panic.
func Share(bytes, n int64, do func(lo, hi int64)) {
	parts := min(bytes/leastShare, n, mostShares, int64(runtime.GOMAXPROCS(0)))
	if parts < 2 {
		do(0, n)
		return
	}
	var others sync.WaitGroup
	for i := range parts - 1 {
		others.Go(func() { do(n*i/parts, n*(i+1)/parts) })
	}
	do(n*(parts-1)/parts, n)
	others.Wait()
}
