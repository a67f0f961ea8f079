package gpu

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// nap sleeps for less than a millisecond. time.Sleep would take a whole millisecond if no other goroutine is busy,
// because the runtime waits in units of milliseconds. Linux wakes a thread up to its timer slack late, by default 50
// µs, so nap lowers the slack while it sleeps.
func nap(d time.Duration) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)   // on failure the nap is longer
	defer unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0) // 0 is the default
	t := unix.NsecToTimespec(d.Nanoseconds())
	_ = unix.Nanosleep(&t, nil) // a signal ends it early
}
