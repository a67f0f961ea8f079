package tensor

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
)

// TestCopyBytes checks CopyBytes for lengths near those at which another goroutine is started, and from longer to
// shorter slices. No other bytes may be written.
func TestCopyBytes(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(7))
	for _, n := range []int{0, 1, leastShare - 1, 2*leastShare - 1, 2 * leastShare, 3*leastShare + 5,
		9*leastShare + 1} {
		src := make([]byte, n)
		for i := range src {
			src[i] = byte(i*7 + i>>12)
		}
		for _, more := range []int{0, 3} {
			dst := bytes.Repeat([]byte{0xee}, n+2*more)
			if got := CopyBytes(dst[more:], src); got != n {
				t.Errorf("%d of %d bytes copied", got, n)
			}
			edge := bytes.Repeat([]byte{0xee}, more)
			if !bytes.Equal(dst, slices.Concat(edge, src, edge)) {
				t.Errorf("copy of %d bytes between %d others: wrong bytes", n, more)
			}
			short := make([]byte, max(n-more, 0))
			if got := CopyBytes(short, src); got != len(short) || !bytes.Equal(short, src[:len(short)]) {
				t.Errorf("copy of %d bytes into %d: %d copied, or wrong bytes", n, len(short), got)
			}
		}
	}
}

// TestShare checks that the parts cover the range exactly once, and that there are no more parts
// than processors or elements.
func TestShare(t *testing.T) {
	for _, procs := range []int{1, 2, 3, 16} {
		was := runtime.GOMAXPROCS(procs)
		for _, tc := range []struct{ bytes, n, parts int64 }{
			{0, 0, 1}, {leastShare, 10, 1}, {2 * leastShare, 10, 2}, {3 * leastShare, 2, 2}, {100 * leastShare, 7, 7},
			{100 * leastShare, 1000, mostShares}, {100 * leastShare, 1, 1},
		} {
			want := min(tc.parts, int64(procs))
			var mu sync.Mutex
			var los, his []int64
			Share(tc.bytes, tc.n, func(lo, hi int64) {
				mu.Lock()
				defer mu.Unlock()
				los, his = append(los, lo), append(his, hi)
			})
			slices.Sort(los)
			slices.Sort(his)
			if int64(len(los)) != want || los[0] != 0 || his[len(his)-1] != tc.n ||
				!slices.Equal(los[1:], his[:len(his)-1]) {
				t.Errorf("%+v, %d processors: parts start at %v and end at %v, want %d parts", tc, procs, los, his, want)
			}
		}
		runtime.GOMAXPROCS(was)
	}
}

func BenchmarkCopyBytes(b *testing.B) {
	src, dst := make([]byte, 64<<20), make([]byte, 64<<20)
	for _, procs := range []int{1, 2, 4, 8} {
		b.Run(fmt.Sprint(procs), func(b *testing.B) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
			b.SetBytes(int64(len(src)))
			for b.Loop() {
				CopyBytes(dst, src)
			}
		})
	}
}
