package report

import (
	"fmt"
	"time"

	"hocket.example/hocket/internal/trace"
)

func duration(d time.Duration) string { return trace.Microseconds(float64(d.Nanoseconds()) / 1e3) }

// share returns the ratio part/whole in percent, as text for a CSS width.
func share(part, whole float64) string {
	if whole <= 0 || part < 0 {
		return "0"
	}
	return fmt.Sprintf("%.2f", min(100*part/whole, 100))
}

// Slowest returns the longest time of the alternatives that are possible.
func (n *Note) Slowest() float64 {
	most := 0.0
	for _, c := range n.Choices {
		if c.Reason == "" {
			most = max(most, c.Time)
		}
	}
	return most
}
