package account

import (
	"strings"
	"testing"

	"hocket.example/hocket/internal/trace"
)

// TestVerdict checks the sentence that names the kind of activity that limited a run, which has the most time on the
// critical path, and its longest operation.
func TestVerdict(t *testing.T) {
	event := func(rank int, name string, class trace.Class, start, end int64, group int) trace.Event {
		return trace.Event{Rank: rank, Stream: "main", Name: name, Class: class, Start: start, End: end, Group: group}
	}
	for want, tr := range map[string]*trace.Trace{
		"The run took 100 µs, bounded by computation: 90.0 µs of the critical path, 60.0 µs of it in gelu; 35 % of the ranks' time was exposed communication. " +
			"The largest loss: all_reduce 1 of 1: rank 1 waited 50.0 µs for rank 0.": {
			Ranks: 2, Events: []trace.Event{event(0, "linear", trace.Compute, 0, 30_000, trace.NoGroup),
				event(0, "gelu", trace.Compute, 30_000, 90_000, trace.NoGroup),
				event(0, "all_reduce", trace.Comm, 90_000, 100_000, 0),
				event(1, "linear", trace.Compute, 0, 40_000, trace.NoGroup),
				event(1, "all_reduce", trace.Comm, 40_000, 100_000, 0)}},
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

// TestSteadilyLate checks that the text and the verdict have a single finding about a rank that is late in every step
// for the same cause, with the number of collectives and the total delay. Rank 1 computes for 300 µs in each of 12
// steps, and the others for 100 µs: the total is 12 · 200 = 2400 µs.
func TestSteadilyLate(t *testing.T) {
	tr := &trace.Trace{Ranks: 3}
	at := int64(0)
	for g := range 12 {
		for r := range 3 {
			begin := at + 100_000
			if r == 1 {
				begin = at + 300_000
			}
			tr.Events = append(tr.Events,
				trace.Event{Rank: r, Stream: "main", Name: "gemm", Class: trace.Compute, Start: at, End: begin,
					Group: trace.NoGroup},
				trace.Event{Rank: r, Stream: "main", Name: "all_reduce", Class: trace.Comm, Start: begin,
					End: at + 320_000, Group: g})
		}
		at += 321_000
	}
	tr.Sort()
	r := Of(tr, 0)
	const want = "rank 1 was late in 12 of 12 all_reduce, by 2400 µs in all and 200 µs at most"
	late := 0
	for _, f := range r.Findings {
		if f.Kind == "late" {
			late++
		}
	}
	list, _ := r.Shown()
	if len(list) == 0 || list[0].Text != want || len(list) > 1 && list[1].Kind == "late" || late != 12 {
		t.Errorf("%d findings of the report are late ones, and shown is %+v", late, list)
	}
	var b strings.Builder
	if err := r.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	if text := b.String(); !strings.Contains(text, "\n"+want+"\n  the longest: all_reduce 1 of 12: ") ||
		!strings.Contains(text, r.Verdict()+"\n") || !strings.Contains(r.Verdict(), " The largest loss: "+want+".") {
		t.Errorf("%s\nverdict %s", text, r.Verdict())
	}
}

// TestVerdictOfLongPath checks the sums over a critical path that is longer than the list in the report. A gemm of 100
// µs and a gelu of 40 µs run 500 times: in total 500 · 140 = 70,000 µs, of which the gemms take 50,000.
func TestVerdictOfLongPath(t *testing.T) {
	const n = 500
	tr := &trace.Trace{Ranks: 1}
	at := int64(0)
	add := func(name string, long int64) {
		tr.Events = append(tr.Events, trace.Event{Stream: "main", Name: name, Class: trace.Compute, Start: at, End: at +
			long, Group: trace.NoGroup})
		at += long
	}
	for range n {
		add("gemm", 100_000)
		add("gelu", 40_000)
	}
	r := Of(tr, 0)
	const want = "bounded by computation: 70.0 ms of the critical path, 50.0 ms of it in gemm;"
	if got := r.Verdict(); 2*n <= maxPath || len(r.Critical.Path) != maxPath || !strings.Contains(got, want) {
		t.Errorf("%d parts: %s; want %s", len(r.Critical.Path), got, want)
	}
}
