package gpu

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// nap sleeps for less than a millisecond, which time.Sleep takes for one where no
// other goroutine is busy: what the runtime waits with counts milliseconds. The system
// wakes a thread up to its timer slack late, 50 µs by default, so that slack is put
// down for as long as the nap lasts.
func nap(d time.Duration) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)   // without it the nap is longer
	defer unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0) // 0 is the default
	t := unix.NsecToTimespec(d.Nanoseconds())
	_ = unix.Nanosleep(&t, nil) // a signal ends it sooner
}
