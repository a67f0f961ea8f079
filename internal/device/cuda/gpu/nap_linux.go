package gpu

import (
	"syscall"
	"time"
)

// nap sleeps for less than a millisecond, which time.Sleep takes for one where no
// other goroutine is busy: what the runtime waits with counts milliseconds.
func nap(d time.Duration) {
	t := syscall.NsecToTimespec(d.Nanoseconds())
	_ = syscall.Nanosleep(&t, nil) // a signal ends it sooner
}
