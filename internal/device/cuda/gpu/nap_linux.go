package gpu

import (
	"time"

	"golang.org/x/sys/unix"
)

// nap sleeps for less than a millisecond, which time.Sleep takes for one where no
// other goroutine is busy: what the runtime waits with counts milliseconds. Threads
// are woken up to 50 µs late by default, to wake several at a time, but for those that nap.
func nap(d time.Duration) {
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) // without it the nap is longer
	t := unix.NsecToTimespec(d.Nanoseconds())
	_ = unix.Nanosleep(&t, nil) // a signal ends it sooner
}
