package tensor

import (
	"runtime"
	"sync"
)

const (
	// leastShare is the least number of bytes that one goroutine copies. Copying them takes about
	// 50 µs at 10 GB/s, far longer than starting a goroutine and waiting for it.
	leastShare = 512 << 10
	// mostShares is the largest number of goroutines, so that some processors stay free for other
	// work.
	mostShares = 8
)

// CopyBytes is the builtin copy, run by several goroutines if that is faster.
func CopyBytes(dst, src []byte) int {
	n := min(len(dst), len(src))
	Share(int64(n), int64(n), func(lo, hi int64) { copy(dst[lo:hi], src[lo:hi]) })
	return n
}

// Share calls do on parts of [0, n) that together cover it. bytes is how much data all of the work
// moves. If that is enough for several goroutines, the parts run concurrently. do must not panic.
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
