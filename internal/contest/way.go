package contest

import (
	"hocket.example/hocket/internal/device"
)

// Way is an algorithm with what was measured of it. Times are microseconds a
// Call on the slowest rank.
type Way struct {
	Algorithm string        `json:"algorithm"`
	Tuning    device.Tuning `json:"tuning"`
	// By says who chose it: "table", "default", or "asked" where it was measured
	// because it was asked for.
	By       string   `json:"by"`
	Declined []string `json:"declined,omitempty"`
	// Library: the algorithm is the vendor's library, which others are compared with.
	Library bool `json:"library,omitempty"`
	// Graph is the time within a graph, Eager that of calls issued one by one;
	// nil where it was not measured.
	Graph *Figure `json:"graph_us,omitempty"`
	Eager *Figure `json:"eager_us,omitempty"`
	// Skew is how much longer a call takes the slowest rank than the fastest,
	// eagerly.
	Skew float64 `json:"skew_us"`
	// Form is the way in which its graphs are launched, where there are several.
	Form string `json:"form,omitempty"`
	// Wrong is how many of the elements looked at (Checked) were wrong.
	Wrong   int64 `json:"wrong"`
	Checked int64 `json:"checked"`
	// Refused says why nothing was measured; empty where something was.
	Refused string `json:"refused,omitempty"`
}

// Best is the time by graph, or else eager; 0 where nothing was measured.
func (w *Way) Best() float64 {
	switch {
	case w.Graph != nil:
		return w.Graph.Median
	case w.Eager != nil:
		return w.Eager.Median
	}
	return 0
}
