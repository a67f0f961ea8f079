package hostmem

import (
	"fmt"
	"runtime/debug"

	"hocket.example/hocket/fault"
)

// large is the smallest request, in bytes, that Check compares with the free memory. Reading the amount of free memory
// takes longer than a smaller allocation.
const large = 64 << 20

// Check returns an error that wraps fault.ErrOutOfMemory if a request of the given number of bytes is large and exceeds
// the host's free memory. Go would end the process. Memory that the process no longer uses is freed first if necessary.
func Check(bytes int64) error { return check(bytes, Available, debug.FreeOSMemory) }

func check(bytes int64, available func() int64, free func()) error {
	if bytes < large {
		return nil
	}
	left := available()
	if left > 0 && bytes > left {
		free()
		left = available()
	}
	if left > 0 && bytes > left {
		return fmt.Errorf("%w: %d bytes of host memory were requested, and %d are free", fault.ErrOutOfMemory, bytes, left)
	}
	return nil
}
