package tensor

import (
	"runtime"
	"sync"
)

const (
	// leastShare is how many bytes a processor copies at the least: so many take some 50
	// µs at 10 GB/s, far more than to begin a goroutine and wait for it.
	leastShare = 512 << 10
	// mostShares is how many processors copy at once, so that others have some left.
	mostShares = 8
)

// CopyBytes is the builtin copy, by several processors where that is faster.
func CopyBytes(dst, src []byte) int {
	n := min(len(dst), len(src))
	Share(int64(n), int64(n), func(lo, hi int64) { copy(dst[lo:hi], src[lo:hi]) })
	return n
}

// Share has do work on all of [0, n), which moves so many bytes, in parts side by side if
// they are many. do must not panic.
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
