package report

import (
	"fmt"
	"time"
)

// Microseconds writes a time in three digits or so.
func Microseconds(us float64) string {
	switch {
	case us >= 1e4:
		return fmt.Sprintf("%.1f ms", us/1e3)
	case us >= 100:
		return fmt.Sprintf("%.0f µs", us)
	}
	return fmt.Sprintf("%.1f µs", us)
}

func duration(d time.Duration) string { return Microseconds(float64(d.Nanoseconds()) / 1e3) }

// share returns part of whole in percent, for widths.
func share(part, whole float64) string {
	if whole <= 0 || part < 0 {
		return "0"
	}
	return fmt.Sprintf("%.2f", min(100*part/whole, 100))
}

// Slowest returns the longest time of the choices that can be had.
func (n *Note) Slowest() float64 {
	most := 0.0
	for _, c := range n.Choices {
		if c.Reason == "" {
			most = max(most, c.Time)
		}
	}
	return most
}
