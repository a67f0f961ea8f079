package trace

import "fmt"

// Microseconds formats a time with about three digits.
func Microseconds(us float64) string {
	switch {
	case us >= 1e7:
		return fmt.Sprintf("%.1f s", us/1e6)
	case us >= 1e4:
		return fmt.Sprintf("%.1f ms", us/1e3)
	case us >= 100:
		return fmt.Sprintf("%.0f µs", us)
	}
	return fmt.Sprintf("%.1f µs", us)
}
