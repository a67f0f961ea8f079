package contest

import (
	"hocket.example/hocket/internal/device"
)

// Way is an algorithm with the measurements of a call by it. Times are microseconds per call on the slowest rank.
type Way struct {
	Algorithm string        `json:"algorithm"`
	Tuning    device.Tuning `json:"tuning"`
	// By is the reason why the algorithm was measured: "table" if hocket chooses it by the table, "default" if hocket
	// chooses it without a table, "asked" if the user requested it.
	By       string   `json:"by"`
	Declined []string `json:"declined,omitempty"`
	// Library reports that the algorithm belongs to the vendor's library. Other algorithms are compared with those of
	// the library.
	Library bool `json:"library,omitempty"`
	// Graph is the time of a call in a graph, and Eager the time of a call that the host issues. A field is nil if the
	// time was not measured.
	Graph *Figure `json:"graph_us,omitempty"`
	Eager *Figure `json:"eager_us,omitempty"`
	// Skew is the difference between the times of an eager call on the slowest and on the fastest rank.
	Skew float64 `json:"skew_us"`
	// Form is the chosen form of the graphs, if they have several forms.
	Form string `json:"form,omitempty"`
	// Wrong is the number of wrong elements among the Checked elements that were compared.
	Wrong   int64 `json:"wrong"`
	Checked int64 `json:"checked"`
	// Refused is the reason why the algorithm was not measured; empty if it was.
	Refused string `json:"refused,omitempty"`
}

// Best returns the time in a graph if it was measured, and otherwise the eager time. Best returns 0 if neither was
// measured.
func (w *Way) Best() float64 {
	switch {
	case w.Graph != nil:
		return w.Graph.Median
	case w.Eager != nil:
		return w.Eager.Median
	}
	return 0
}
