package gpu

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// nap sleeps for less than a millisecond. time.Sleep would sleep for a whole millisecond if no other goroutine is
// running, because the runtime then waits in units of milliseconds. By default, Linux wakes a thread up to 50 µs late
// (its timer slack), so nap lowers the slack during the sleep.
func nap(d time.Duration) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)   // on failure the thread only sleeps longer
	defer unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0) // 0 is the default
	t := unix.NsecToTimespec(d.Nanoseconds())
	_ = unix.Nanosleep(&t, nil) // a signal ends it early
}
