package account

import (
	"testing"

	"hocket.example/hocket/internal/trace"
)

// TestVerdict checks the sentence that names what bounded a run: the kind with the most time on the critical path, and
// its longest operation.
func TestVerdict(t *testing.T) {
	event := func(rank int, name string, class trace.Class, start, end int64, group int) trace.Event {
		return trace.Event{Rank: rank, Stream: "main", Name: name, Class: class, Start: start, End: end, Group: group}
	}
	for want, tr := range map[string]*trace.Trace{
		"The run took 100 µs, bounded by computation: 90.0 µs of the critical path, 60.0 µs of it in gelu; 35 % of the ranks' time was exposed communication.": {
			Ranks: 2, Events: []trace.Event{event(0, "linear", trace.Compute, 0, 30_000, trace.NoGroup),
				event(0, "gelu", trace.Compute, 30_000, 90_000, trace.NoGroup), event(0, "all_reduce", trace.Comm, 90_000, 100_000, 0),
				event(1, "linear", trace.Compute, 0, 40_000, trace.NoGroup), event(1, "all_reduce", trace.Comm, 40_000, 100_000, 0)}},
		"The run took 50.0 µs, bounded by computation: 50.0 µs of the critical path, 50.0 µs of it in linear; there was no communication.": {
			Ranks: 1, Events: []trace.Event{event(0, "linear", trace.Compute, 0, 50_000, trace.NoGroup)}},
		"The run took 100 µs, bounded by idle streams: 80.0 µs of the critical path, 80.0 µs of it before gelu; there was no communication.": {
			Ranks: 1, Events: []trace.Event{event(0, "linear", trace.Compute, 0, 10_000, trace.NoGroup),
				event(0, "gelu", trace.Compute, 90_000, 100_000, trace.NoGroup)}},
	} {
		tr.Sort()
		if got := Of(tr, 0).Verdict(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	if got, want := (&Report{}).Verdict(), (&Report{}).Facts(); got != want {
		t.Errorf("without events: %s, want %s", got, want)
	}
}
