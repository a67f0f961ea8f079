package world

import (
	"math"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	opFutexWait = 0 // these operations are for memory that several processes share
	opFutexWake = 1
)

// futexWait sleeps until a process calls futexWake for word, or until d has passed, and reports whether d has passed.
// futexWait returns immediately if the value of word is not was. futexWait may also return spuriously.
func futexWait(word *atomic.Uint32, was uint32, d time.Duration) (timeout bool) {
	t := unix.NsecToTimespec(d.Nanoseconds())
	_, _, err := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), opFutexWait, uintptr(was),
		uintptr(unsafe.Pointer(&t)), 0, 0)
	return err == unix.ETIMEDOUT
}

// futexWake wakes all threads that sleep on word.
func futexWake(word *atomic.Uint32) {
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), opFutexWake, math.MaxInt32, 0, 0, 0)
}
