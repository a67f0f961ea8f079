package account

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/trace"
	"hocket.example/hocket/internal/trace/flight"
)

// TestSteps checks that a step takes as long as its slowest rank, and that the first steps, which warm up, are not
// included in the statistics.
func TestSteps(t *testing.T) {
	tr := &trace.Trace{Ranks: 2, Source: "test", Clocks: []int{0, 0}}
	at := int64(0)
	for k, long := range []int64{900, 100, 110, 90, 120, 100, 105, 95, 100, 100} {
		for r := range 2 {
			end := at + long*1000 - int64(r)*5000
			tr.Steps = append(tr.Steps, trace.Step{Rank: r, Name: "ProfilerStep#" + string(rune('0'+k)), Start: at,
				End: end})
			tr.Events = append(tr.Events,
				trace.Event{Rank: r, Stream: "s", Name: "k", Start: at, End: end, Group: trace.NoGroup})
		}
		at += long * 1000
	}
	s := Of(tr, 0).Steps
	if s == nil || s.Count != 9 || s.Cut != 1 || s.P50US != 100 || s.P95US != 120 || s.LeastUS != 90 ||
		s.MostUS != 120 {
		t.Errorf("%+v", s)
	}
}

// TestIdle checks to what idle time is attributed: to the host until it issued the next work. The remaining time is
// attributed to the launch if it is short, and otherwise it is unknown.
func TestIdle(t *testing.T) {
	event := func(start, end, issued int64) trace.Event {
		return trace.Event{Stream: "s", Name: "k", Class: trace.Compute, Start: start, End: end, Issued: issued,
			Group: trace.NoGroup}
	}
	tr := &trace.Trace{Ranks: 1, Source: "test", Events: []trace.Event{
		event(1_000, 100_000, 500),
		event(160_000, 200_000, 150_000), // before this event the device is idle for 60 µs: 50 µs host, 10 µs launch
		event(300_000, 400_000, 190_000), // 100 µs of idle time that the profile does not explain
		event(405_000, 410_000, 200_000), // 5 µs launch
		event(500_000, 600_000, 0),       // 90 µs unknown
	}}
	x := Of(tr, 0).Idle[0]
	if x.HostUS != 50 || x.LaunchUS != 15 || x.EventUS != 0 || x.UnknownUS != 190 || x.TotalUS != 255 {
		t.Errorf("%+v", x)
	}
}

// TestFlightStates checks that the report names the ranks that have not made a call, those whose devices have not begun
// it, and those without a record.
func TestFlightStates(t *testing.T) {
	record := func(rank int, states ...string) *flight.Record {
		r := &flight.Record{Rank: rank, Groups: map[string]flight.Group{"0": {Name: "tp", Members: []int{0, 1, 2}}}}
		for i, s := range states {
			r.Entries = append(r.Entries,
				flight.Entry{Op: "all_reduce", Group: "0", Seq: int64(i + 1), State: s, In: 8, Out: 8,
					DType: "Half", Created: int64(1e9 + i*1e6), Stack: []string{"step (train.py:7)"}})
		}
		return r
	}
	found := func(r *Report, kind string, rank int, text string) bool {
		return slices.ContainsFunc(r.Problems, func(p Problem) bool {
			return p.Kind == kind && p.Rank == rank && strings.Contains(p.Text, text)
		})
	}
	r := OfFlight([]*flight.Record{record(0, "completed", "started"), record(1, "completed"),
		record(2, "completed", "started")})
	if !found(r, "missing", 1, "rank 1 has not called it; its last call is call 1 of group \"tp\", all_reduce, completed; rank 1 called "+
		"from step (train.py:7)") {
		t.Errorf("want a problem that rank 1 did not make call 2: %+v", r.Problems)
	}
	r = OfFlight([]*flight.Record{record(0, "completed", "started"), record(1, "completed", "scheduled"),
		record(2, "completed", "started")})
	if !found(r, "late", 1, "its device has not begun it, unlike those of ranks 0, 2;") || len(r.Problems) != 1 {
		t.Errorf("want a problem that rank 1's device has not begun: %+v", r.Problems)
	}
	c, err := ParseCondition("problems > 0") // the metric problems is the length of Problems
	if err != nil {
		t.Fatal(err)
	}
	if holds, words, err := c.Holds(r); err != nil || !holds || !strings.HasSuffix(words, "it is 1") {
		t.Errorf("%v, %s, %v; want 1 problem", holds, words, err)
	}
	r = OfFlight([]*flight.Record{record(0, "completed", "started"), record(1, "completed", "started")})
	if !found(r, "missing", 2, "rank 2 gave no record") {
		t.Errorf("want a problem that rank 2 has no record: %+v", r.Problems)
	}
	if want := "2 collectives of 2 ranks of 3 (without 2), flight; clocks not compared"; r.Facts() != want {
		t.Errorf("%q; want %q", r.Facts(), want)
	}
	r = OfFlight([]*flight.Record{record(0, "completed"), record(1, "completed"), record(2, "completed")})
	if len(r.Problems) != 0 {
		t.Errorf("all is well: %+v", r.Problems)
	}
}

// TestAbsentRanks checks profiles of two ranks of a group of four: the report names the missing ranks, and does not
// claim that no rank waited.
func TestAbsentRanks(t *testing.T) {
	for members, absent := range map[string]string{"0 1 2 3": "2, 3", "0 1": ""} {
		tr := &trace.Trace{Ranks: 2, Source: "test", IDs: []int{0, 1}}
		for r := range 2 {
			call := &trace.Call{Group: "g", Seq: 0, In: 4, Out: 4}
			for _, m := range strings.Fields(members) {
				call.Members = append(call.Members, int(m[0]-'0'))
			}
			tr.Events = append(tr.Events, trace.Event{Rank: r, Stream: "s", Name: "all_reduce", Class: trace.Comm,
				Start: 1000, End: 50_000, Group: trace.NoGroup, Call: call})
		}
		r := Of(tr, 0)
		var text bytes.Buffer
		if err := r.WriteText(&text); err != nil {
			t.Fatal(err)
		}
		problem := slices.ContainsFunc(r.Problems, func(p Problem) bool {
			return p.Kind == "missing" &&
				strings.Contains(p.Text, `group "g" has no calls of rank `+absent+": its waits are unknown")
		})
		waits := strings.Contains(text.String(),
			"waits are unknown: no collective has the profiles of all its members\n")
		if nobody := strings.Contains(text.String(), "no rank waited"); problem != (absent != "") || waits == nobody ||
			waits != (absent != "") {
			t.Errorf("members %s: %+v\n%s", members, r.Problems, &text)
		}
	}
}

// TestShorter checks that the calls of a profile that begins later and ends earlier are matched by the ends of its
// collectives.
func TestShorter(t *testing.T) {
	tr := &trace.Trace{Ranks: 2, Source: "test", IDs: []int{0, 1}, Clocks: []int{0, 1}}
	at := int64(0)
	for k := range int64(12) {
		at += 100_000 + k*k*1_000 // different distances, so that only one shift of the calls fits
		for r := range 2 {
			if r == 1 && (k < 3 || k > 9) {
				continue
			}
			off := int64(r) * 7_000_000
			tr.Events = append(tr.Events,
				trace.Event{Rank: r, Stream: "s", Name: "all_reduce", Class: trace.Comm, Start: at + off,
					End: at + 50_000 + off, Group: trace.NoGroup,
					Call: &trace.Call{Group: "g", Seq: -1, In: 4, Out: 4}})
		}
	}
	r := Of(tr, 0)
	if r.Untold != "" || *r.Alignment.ResidualUS > 0.01 || len(r.Collectives) != 12 {
		t.Fatalf("%+v, %q, %d collectives", r.Alignment, r.Untold, len(r.Collectives))
	}
	for k, c := range r.Collectives {
		if want := 1; k >= 3 && k <= 9 {
			want = 2
			if len(c.ByRank) != want {
				t.Errorf("collective %d has %d members", k, len(c.ByRank))
			}
		}
	}
	if !slices.ContainsFunc(r.Problems, func(p Problem) bool { return p.Kind == "missing" && p.Rank == 1 }) {
		t.Errorf("%+v", r.Problems)
	}
}

// TestTwoRuns gives profiles of two ranks that are of two runs. The periods of torch's profiler do not overlap in this
// case.
func TestTwoRuns(t *testing.T) {
	said := func(r *Report) string {
		if i := slices.IndexFunc(r.Problems, func(p Problem) bool { return p.Kind == "runs" }); i >= 0 {
			return fmt.Sprint(i, " ", r.Problems[i].Rank, ": ", r.Problems[i].Text)
		}
		return ""
	}
	dir := strings.TrimSuffix(corpus(t, "kineto/tp-mlp-ar.rank0.json.gz")[0], "tp-mlp-ar.rank0.json.gz")
	for _, c := range [][3]string{
		{"tp-mlp-ar-late.rank0", "tp-mlp-agrs.rank1",
			"0 1: the profile of rank 1 begins 23.8 ms after that of rank 0 has ended, " +
				"by the hosts' clocks: if they are of two runs, give the profiles of one run"},
		{"tp-mlp-ar.rank0", "tp-mlp-ar.rank1", ""},
		{"tp-mlp-ar-late.rank0", "tp-mlp-ar-late.rank1", ""},
		{"tp-mlp-agrs.rank0", "tp-mlp-agrs.rank1", ""},
		{"row-parallel-streams.rank0", "row-parallel-streams.rank1", ""},
	} {
		if got := said(accounted(t, dir+c[0]+".json.gz", dir+c[1]+".json.gz")); got != c[2] {
			t.Errorf("%s, %s: got %q, want %q", c[0], c[1], got, c[2])
		}
	}
	// This text has the rows of two runs. The rows of one run can have the same devices in several sessions, too, if
	// each rank runs in a container.
	var rows []byte
	for _, name := range []string{"testdata/nsys-1.txt", "testdata/nsys-2.txt"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, text...)
	}
	container := regexp.MustCompile(`80GB HBM3 \(\d\)`).ReplaceAll(rows[bytes.Index(rows, []byte("$ mpirun")):],
		[]byte("80GB HBM3 (0)"))
	for want, text := range map[string][]byte{"": container,
		"0 0: a device occurs in several sessions: if the rows are of several runs, put each run into a separate file": rows} {
		path := filepath.Join(t.TempDir(), "rows.txt")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if r := accounted(t, path); said(r) != want || (r.Untold != "") != (want != "") {
			t.Errorf("got %q, want %q; untold: %s", said(r), want, r.Untold)
		}
	}
	// The collectives of these two profiles agree. A short time between the profiles is therefore attributed to the
	// clocks of the hosts, and a long time to two runs.
	for off, want := range map[int64]bool{0: false, 900_000: false, 1_000_000_000: false, 60_000_000_000: true} {
		tr := &trace.Trace{Ranks: 2, Source: "kineto", IDs: []int{0, 1}, Clocks: []int{0, 1}}
		for k := range int64(4) {
			for r := range 2 {
				at := k*100_000 + int64(r)*off
				tr.Events = append(tr.Events,
					trace.Event{Rank: r, Stream: "s", Name: "all_reduce", Class: trace.Comm, Start: at,
						End: at + 50_000, Group: trace.NoGroup, Call: &trace.Call{Group: "g", Seq: -1, In: 4, Out: 4}})
			}
		}
		if r := Of(tr, 0); r.Untold != "" || (said(r) != "") != want {
			t.Errorf("%d ns apart: %q; %q", off, r.Untold, said(r))
		}
	}
}

// partly is a job of two ranks on one clock with three all-reduces of 200 µs each, for which rank 0 waits 300 µs for
// rank 1. The profile of rank 1 lacks the last all-reduce. The known transfer is 2 · 2 · 200 = 800 µs, and the known
// waiting is 2 · 300 = 600 µs. The 500 µs of rank 0 in the last all-reduce are unknown.
func partly() *trace.Trace {
	tr := &trace.Trace{Ranks: 2, Source: "test", IDs: []int{0, 1}, Clocks: []int{0, 1}}
	for k := range int64(3) {
		for r := range int64(2) {
			at := k * 1_000_000
			arrive := at + 100_000 + r*300_000
			tr.Events = append(tr.Events, trace.Event{Rank: int(r), Stream: "s", Name: "gemm", Class: trace.Compute,
				Start: at, End: arrive,
				Group: trace.NoGroup})
			if k == 2 && r == 1 {
				continue
			}
			tr.Events = append(tr.Events, trace.Event{Rank: int(r), Stream: "s", Name: "all_reduce", Class: trace.Comm,
				Start: arrive,
				End:   at + 600_000, Group: trace.NoGroup, Call: &trace.Call{Group: "g", Seq: k, In: 4, Out: 4,
					Members: []int{0, 1}}})
		}
	}
	return tr
}

// TestUnknownExposed checks that communication whose waiting is unknown is counted neither as waiting nor as transfer.
func TestUnknownExposed(t *testing.T) {
	r := Of(partly(), 0)
	x := r.Exposed
	if x.WaitUS == nil || *x.WaitUS != 600 || *x.TransferUS != 800 || x.UnknownUS != 500 || x.TotalUS != 1900 {
		t.Fatalf("%+v, %v, %v", x, x.WaitUS, x.TransferUS)
	}
	if a := x.ByRank[0]; *a.WaitUS != 600 || *a.TransferUS != 400 || a.UnknownUS != 500 {
		t.Errorf("%+v", a)
	}
	if b := x.ByRank[1]; *b.WaitUS != 0 || *b.TransferUS != 400 || b.UnknownUS != 0 {
		t.Errorf("%+v", b)
	}
	for _, f := range r.Findings { // a rank's transfer
		if f.Kind == "exposed" && !slices.Contains(f.Details, "on rank 0 no kernel ran during 400 µs of the 400 µs in "+
			"which it moved data") {
			t.Errorf("%+v", f)
		}
	}
	for _, k := range r.Critical.ByKind {
		if k.Kind == "communication" && k.US != 500 {
			t.Errorf("critical path: %+v", r.Critical.ByKind)
		}
	}
	if text := words(t, r); !regexp.MustCompile(`exposed waiting +exposed transfer +exposed waiting or transfer(.|\n)*600 µs +400 µs +500 µs`).MatchString(text) {
		t.Error(text)
	}
	// The sum over all ranks of the waiting is from 600 to 1100 µs, and that of the transfer from 800 to 1300 µs.
	for text, want := range map[string]string{
		"wait > 599us": "true wait > 599us: it is 600 µs",
		"wait > 600us": "wait > 600us: it is at least 600 µs, and may include 500 µs of communication whose " +
			"waiting is unknown",
		"wait > 1099us": "wait > 1099us: it is at least 600 µs, and may include 500 µs of communication whose " +
			"waiting is unknown",
		"wait > 1101us":    "false wait > 1101us: it is 600 µs",
		"transfer > 799us": "true transfer > 799us: it is 800 µs",
		"transfer > 1ms": "transfer > 1ms: it is at least 800 µs, and may include 500 µs of communication whose " +
			"waiting is unknown",
		"transfer > 1.4ms": "false transfer > 1.4ms: it is 800 µs",
		// each of two ranks has a span of 2600 µs: the share is from 800 / 5200 = 15.4 % to 1300 / 5200 = 25 %
		"transfer > 20%": "transfer > 20%: it is at least 15.4 %, and may include 9.6 % of communication whose " +
			"waiting is unknown",
		"exposed > 1901us": "false exposed > 1901us: it is 1900 µs",
	} {
		c, err := ParseCondition(text)
		if err != nil {
			t.Fatal(err)
		}
		holds, said, err := c.Holds(r)
		got := fmt.Sprint(holds, " ", said)
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

// pairs is a job of two groups of two ranks that both have the name tp, without a collective of all ranks. In each of
// four steps ranks 0 and 3 compute for 1000 µs, rank 1 for 4000 and rank 2 for 2000. An all-reduce takes 200 µs. In
// each step, rank 0 therefore waits 3000 µs for rank 1, and rank 3 waits 1000 µs for rank 2. The clock of rank r is off
// by r · 7.654321 s.
func pairs() *trace.Trace {
	tr := &trace.Trace{Ranks: 4, Source: "kineto", IDs: []int{0, 1, 2, 3}, Clocks: []int{0, 1, 2, 3}}
	works := []int64{1_000_000, 4_000_000, 2_000_000, 1_000_000}
	for r := range 4 {
		pair := r / 2 * 2
		step := max(works[pair], works[pair+1]) + 200_000
		for k := range int64(4) {
			at := k*step + int64(r)*7_654_321_000
			tr.Events = append(tr.Events,
				trace.Event{Rank: r, Stream: "s", Name: "gemm", Class: trace.Compute, Start: at, End: at + works[r],
					Group: trace.NoGroup},
				trace.Event{Rank: r, Stream: "s", Name: "all_reduce", Class: trace.Comm, Start: at + works[r],
					End:   at + step,
					Group: trace.NoGroup,
					Call:  &trace.Call{Group: "tp", Seq: -1, In: 4, Out: 4, Members: []int{pair, pair + 1}}})
		}
	}
	return tr
}

// TestParts checks that the clocks of groups of ranks that share no collective are aligned separately.
func TestParts(t *testing.T) {
	r := Of(pairs(), 0)
	if r.Untold != "" || r.Alignment.ResidualUS == nil || *r.Alignment.ResidualUS != 0 ||
		fmt.Sprint(r.Alignment.Parts) != "[[0 1] [2 3]]" || len(r.Collectives) != 8 {
		t.Fatalf("%q, %+v, %d collectives", r.Untold, r.Alignment, len(r.Collectives))
	}
	for _, c := range r.Collectives {
		late, waits, group := 1, 3000.0, "tp (ranks 0-1)"
		if c.ByRank[0].Rank == 2 {
			late, waits, group = 2, 1000, "tp (ranks 2-3)"
		}
		if c.Late == nil || c.Late.Rank != late || c.Late.US != waits || *c.TransferUS != 200 || *c.SkewUS != waits ||
			c.Group != group {
			t.Errorf("%+v, late %+v", c, c.Late)
		}
	}
	// The waiting is 4 · 3000 + 4 · 1000 µs, and the transfer 4 · 4 · 200 µs.
	if x := r.Exposed; *x.WaitUS != 16_000 || *x.TransferUS != 3200 || x.UnknownUS != 0 {
		t.Errorf("%+v: %v, %v", x, *x.WaitUS, *x.TransferUS)
	}
	// Both parts begin at 0. The first part lasts longer, 4 · 4200 µs, so the critical path is in this part.
	if r.SpanUS != 16_800 || r.Critical == nil || r.Critical.SpanUS != 16_800 ||
		slices.ContainsFunc(r.Critical.Path, func(p CriticalPart) bool { return p.Rank != 1 }) {
		t.Errorf("span %v, critical path %+v", r.SpanUS, r.Critical)
	}
	if text := words(t, r); !strings.Contains(text, "put on 2 clocks by ends of collectives (ranks 0-1; 2-3), which "+
		"are not "+
		"compared with each other\n") {
		t.Error(text)
	}
	for _, p := range r.Problems { // because clocks differ by seconds, the profiles look like those of several runs
		if p.Kind != "runs" {
			t.Errorf("%+v", p)
		}
	}
	// A broadcast between the parts does not end on all ranks at the same time, so it cannot be used to align clocks.
	tr := pairs()
	for r := range 4 {
		tr.Events = append(tr.Events, trace.Event{Rank: r, Stream: "s", Name: "broadcast", Class: trace.Comm,
			Start: 1e15, End: 1e15 + 1000,
			Group: trace.NoGroup, Call: &trace.Call{Group: "world", Seq: -1, In: 4, Out: 4,
				Members: []int{0, 1, 2, 3}}})
	}
	r = Of(tr, 0)
	for _, c := range r.Collectives {
		if known := c.Op != "broadcast"; (c.TransferUS != nil) != known || (c.SkewUS != nil) != known {
			t.Errorf("%+v", c)
		}
	}
	if len(r.Collectives) != 9 || r.Exposed.UnknownUS != 4 {
		t.Errorf("%d collectives, %v µs unknown", len(r.Collectives), r.Exposed.UnknownUS)
	}
}

// TestFlightGaps checks that no call is reported as missing if the rank must have made it, because the call is complete
// on another rank or the rank's status counts it, or may have made it, because its record is empty.
func TestFlightGaps(t *testing.T) {
	record := func(rank, enqueued int, states ...string) *flight.Record {
		r := &flight.Record{Rank: rank, Groups: map[string]flight.Group{"0": {Name: "tp", Members: []int{0, 1}}},
			Enqueued: map[string]int64{"0": int64(enqueued)}}
		for i, s := range states {
			r.Entries = append(r.Entries, flight.Entry{Op: "all_reduce", Group: "0", Seq: int64(i + 1), State: s, In: 8,
				Out:   8,
				DType: "Half", Created: int64(1e9 + i*1e6)})
		}
		return r
	}
	full := record(0, 4, "completed", "completed", "completed", "started")
	for _, c := range []struct {
		other *flight.Record
		want  []string
	}{
		{record(1, 4), []string{
			`the record of rank 1 has no entries, so its calls are unknown; by its status it has made 4 calls of group "tp"`,
			`call 4 of group "tp", all_reduce: it is not complete on rank 0, whose device has begun it`}},
		{record(1, 1, "completed"), []string{"call 4 of group \"tp\", all_reduce: rank 1 has not called it; its last " +
			"call is call 1 of group \"tp\", all_reduce, completed",
			`the record of rank 1 lacks calls between 2 and 3 of group "tp", which the rank has made: it was written before them, or entries were lost`}},
		{record(1, 4, "completed"), []string{
			`the record of rank 1 lacks calls between 2 and 4 of group "tp", which the rank has made: it was written before them, or entries were lost`}},
	} {
		r := OfFlight([]*flight.Record{full, c.other})
		var got []string
		for _, p := range r.Problems {
			if (p.Kind != "missing" || p.Rank != 1) && p.Kind != "open" {
				t.Errorf("%+v", p)
			}
			got = append(got, p.Text)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("got  %q\nwant %q", got, c.want)
		}
		if want := strings.ToUpper(c.want[0][:1]) + c.want[0][1:] + "."; r.Verdict() != want {
			t.Errorf("verdict %q; want %q", r.Verdict(), want)
		}
		for _, c := range r.Collectives { // a collective with a single member has no skew
			if (c.SkewUS != nil) != (len(c.ByRank) > 1) {
				t.Errorf("%+v", c)
			}
		}
	}
	two := &flight.Record{Groups: map[string]flight.Group{"3": {Name: "tp"}, "5": {Name: "tp"},
		"7": {Name: "undefined"}}}
	for k, g := range []string{"3", "5", "7"} {
		two.Entries = append(two.Entries, flight.Entry{Op: "all_reduce", Group: g, Seq: 1, State: "completed",
			Created: int64(k + 1)})
	}
	var groups []string
	for _, c := range OfFlight([]*flight.Record{two}).Collectives {
		groups = append(groups, c.Group)
	}
	if want := []string{"tp (3)", "tp (5)", "7"}; !slices.Equal(groups, want) {
		t.Errorf("groups %q; want %q", groups, want)
	}
}

// calling returns the record of a rank that makes calls of equal sizes in groups "0" and "1". Each call is written as
// the group, the number and the state, such as "0 6 started", and optionally the number of elements.
func calling(t *testing.T, rank int, calls ...string) *flight.Record {
	t.Helper()
	r := &flight.Record{Rank: rank, Groups: map[string]flight.Group{"0": {Name: "A", Members: []int{0, 1}},
		"1": {Name: "B", Members: []int{0, 1}}}}
	for i, c := range calls {
		e := flight.Entry{Op: "all_reduce", DType: "Float", In: 8, Created: int64(1e9 + i*1e6)}
		if n, err := fmt.Sscan(c+" 8", &e.Group, &e.Seq, &e.State, &e.In); n < 4 {
			t.Fatal(c, err)
		}
		e.Out = e.In
		r.Entries = append(r.Entries, e)
	}
	return r
}

// TestFlightOpen checks the reports on incomplete calls that all ranks have made at the same time, on several calls
// with the same number, and on two groups that two ranks enter in opposite orders.
func TestFlightOpen(t *testing.T) {
	for name, c := range map[string]struct {
		one, two []string // calls of ranks 0 and 1
		want     []string // kinds and texts of all problems
	}{
		"started": {[]string{"0 1 completed", "0 2 started"}, []string{"0 1 completed", "0 2 started"}, []string{
			`open: call 2 of group "A", all_reduce: it is not complete on ranks 0-1, whose devices have begun it`}},
		"scheduled": {[]string{"0 1 scheduled", "0 2 scheduled", "0 3 scheduled"},
			[]string{"0 1 scheduled", "0 2 scheduled", "0 3 scheduled"}, []string{
				`open: call 1 of group "A", all_reduce: it is not complete on ranks 0-1, whose devices have not begun it; ` +
					`later calls of the group that are not complete: 2`}},
		"one complete": {[]string{"0 1 completed"}, []string{"0 1 started"}, []string{
			`open: call 1 of group "A", all_reduce: it is complete on rank 0, and not on rank 1, whose device has begun it`}},
		"first of two differs": {[]string{"0 2 started 1000", "0 2 started 2000"},
			[]string{"0 2 started 1500", "0 2 started 2000"}, []string{
				`size: call 2 of group "A", all_reduce: rank 1 has all_reduce of 1500 elements in and 1500 out, ` +
					`rank 0 has 1000 elements in and 1000 out`}},
		"second of two is missing": {[]string{"0 2 started 1000", "0 2 started 2000"}, []string{"0 2 started 1000"},
			[]string{`missing: part 2 of call 2 of group "A", all_reduce: rank 1 has not called it; its last call is ` +
				`call 2 of group "A", all_reduce, started`}},
		"circle": {[]string{"0 1 completed", "0 2 started", "1 1 scheduled"},
			[]string{"0 1 completed", "1 1 started", "0 2 scheduled"}, []string{
				`order: rank 0 is in call 2 of group "A", all_reduce, which rank 1 has not begun; ` +
					`rank 1 is in call 1 of group "B", all_reduce, which rank 0 has not begun: they wait for each other; ` +
					`all ranks must call these groups in one order`}},
		"circle of hosts that wait": {[]string{"0 1 started"}, []string{"1 1 started"}, []string{
			`order: rank 0 is in call 1 of group "A", all_reduce, which rank 1 has not begun; ` +
				`rank 1 is in call 1 of group "B", all_reduce, which rank 0 has not begun: they wait for each other; ` +
				`all ranks must call these groups in one order`}},
		"no circle": {[]string{"0 1 started", "1 1 scheduled"}, []string{"0 1 started"}, []string{
			`missing: call 1 of group "B", all_reduce: rank 1 has not called it; its last call is ` +
				`call 1 of group "A", all_reduce, started`,
			`open: call 1 of group "A", all_reduce: it is not complete on ranks 0-1, whose devices have begun it`}},
		"complete": {[]string{"0 1 completed"}, []string{"0 1 completed"}, nil},
	} {
		r := OfFlight([]*flight.Record{calling(t, 0, c.one...), calling(t, 1, c.two...)})
		var got []string
		for _, p := range r.Problems {
			got = append(got, p.Kind+": "+p.Text)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got\n%s\nwant\n%s", name, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
		}
	}
}

// TestFlightPairs checks the reports on sends and receives: a call without a partner, two ranks that both send, unequal
// sizes, and unknown partners. The ranks 3 and 5 have the numbers 0 and 1 in the group.
func TestFlightPairs(t *testing.T) {
	record := func(rank int, whole bool, calls ...string) *flight.Record {
		r := &flight.Record{Rank: rank, Whole: whole,
			Groups: map[string]flight.Group{"0": {Name: "pp", Members: []int{3, 5}}}}
		for i, c := range calls {
			e := flight.Entry{Group: "0", P2P: true, DType: "Float", Created: int64(1e9 + i*1e6), In: 8}
			if n, _ := fmt.Sscan(c+" 8", &e.Op, &e.From, &e.To, &e.State, &e.In); n < 5 {
				t.Fatal(c)
			}
			e.Out = e.In
			r.Entries = append(r.Entries, e)
		}
		return r
	}
	for name, c := range map[string]struct {
		records []*flight.Record
		want    []string
	}{
		"equal": {[]*flight.Record{record(3, true, "send 0 1 completed", "recv 1 0 completed"),
			record(5, true, "recv 0 1 completed", "send 1 0 completed")}, nil},
		"no recv": {[]*flight.Record{record(3, true, "send 0 1 completed", "send 0 1 started"),
			record(5, true, "recv 0 1 completed")}, []string{`missing 5: send 2 of rank 3 to rank 5 in group "pp": ` +
			`rank 5 has not called the recv; its last call is recv of rank 5 from rank 3 in group "pp", completed`}},
		"no send": {[]*flight.Record{record(3, true, "recv 1 0 completed"), record(5, true, "recv 0 1 started")},
			[]string{`missing 3: recv 1 of rank 5 from rank 3 in group "pp": rank 3 has not called the send; its last ` +
				`call is recv of rank 3 from rank 5 in group "pp", completed`}},
		"both send": {[]*flight.Record{record(3, true, "send 0 1 started"), record(5, true, "send 1 0 started")},
			[]string{`order 3: ranks 3 and 5 send to each other in group "pp", and neither has called the recv`}},
		"both receive": {[]*flight.Record{record(3, true, "recv 1 0 started"), record(5, true, "recv 0 1 started")},
			[]string{`order 3: ranks 3 and 5 receive from each other in group "pp", and neither has called the send`}},
		"sizes": {[]*flight.Record{record(3, true, "send 0 1 started 1000"), record(5, true, "recv 0 1 started 2000")},
			[]string{`size 5: send 1 of rank 3 to rank 5 in group "pp": rank 3 sends 1000 elements, rank 5 receives 2000`}},
		"open": {[]*flight.Record{record(3, true, "send 0 1 started"), record(5, true, "recv 0 1 scheduled")},
			[]string{`open 3: send 1 of rank 3 to rank 5 in group "pp": both ranks have called it, and it is not complete`}},
		"cut": {[]*flight.Record{record(3, false, "send 0 1 completed", "send 0 1 started"),
			record(5, true, "recv 0 1 completed 9")},
			[]string{`open 3: send of rank 3 to rank 5 in group "pp": it is not complete; the records of the two ranks do ` +
				`not begin with their first calls, so its partner is unknown`}},
		"one record": {[]*flight.Record{record(3, true, "send 0 1 started")},
			[]string{`open 3: send of rank 3 to rank 5 in group "pp": it is not complete; rank 5 gave no record`}},
	} {
		r := OfFlight(c.records)
		var got []string
		for _, p := range r.Problems {
			got = append(got, fmt.Sprintf("%s %d: %s", p.Kind, p.Rank, p.Text))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got\n%s\nwant\n%s", name, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
		}
	}
}

// TestGapThatDiffers checks that a long gap of both ranks is not named as a cause of delay, but a gap of 105 µs that
// only the late rank has.
func TestGapThatDiffers(t *testing.T) {
	tr := &trace.Trace{Ranks: 2, Source: "test", Clocks: []int{0, 0}}
	for r, late := range []int64{0, 105_000} {
		add := func(name string, class trace.Class, start, end, issued int64) {
			e := trace.Event{Rank: r, Stream: "s", Name: name, Class: class, Start: start, End: end, Issued: issued,
				Group: trace.NoGroup}
			if class == trace.Comm {
				e.Call = &trace.Call{Group: "0", Members: []int{0, 1}, Seq: -1, In: 8, Out: 8}
			}
			tr.Events = append(tr.Events, e)
		}
		add("gemm", trace.Compute, 0, 100_000, 1)
		add("all_reduce", trace.Comm, 100_000, 160_000, 2)
		add("gemm", trace.Compute, 560_000, 760_000, 540_000)
		add("all_reduce", trace.Comm, 760_000+late, 925_000, 740_000+late)
	}
	tr.Host = append(tr.Host, trace.HostCall{Rank: 1, Name: "aten::item", Start: 700_000, End: 840_000})
	r := Of(tr, 0)
	const want = "nothing ran on its stream for 505 µs, and for 400 µs on that of rank 0; the gap that differs most took " +
		"105 µs, and 0.0 µs on rank 0; it is before all_reduce, which its host issued 85.0 µs after the gap began; " +
		"until then its host was in aten::item for 80.0 µs"
	if c := r.Collectives[1]; c.Late == nil || c.Late.Rank != 1 || c.Late.After != want {
		t.Errorf("%+v; want %s", c.Late, want)
	}
}
