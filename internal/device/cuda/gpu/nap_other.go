//go:build !linux

package gpu

import "time"

func nap(d time.Duration) { time.Sleep(d) }
