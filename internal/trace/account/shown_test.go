package account

import (
	"fmt"
	"strings"
	"testing"

	"hocket.example/hocket/internal/trace"
)

// TestTableShowsLargest checks that the table for 100 collectives contains the collective with the longest wait: number
// 61, to which rank 1 comes 500 µs late.
func TestTableShowsLargest(t *testing.T) {
	tr := &trace.Trace{Ranks: 2}
	for g := range 100 {
		at := int64(g) * 1_000_000
		for r := range 2 {
			start := at + 100_000
			if r == 1 && g == 60 {
				start += 500_000
			}
			tr.Events = append(tr.Events,
				trace.Event{Rank: r, Stream: "s", Name: "all_reduce", Class: trace.Comm, Start: start,
					End: at + 700_000, Group: g})
		}
	}
	_, text, _ := strings.Cut(words(t, Of(tr, 0)), "\ncollective ")
	for name, want := range map[string]int{"all_reduce 1": 1, "all_reduce 23": 1, "all_reduce 24": 0,
		"all_reduce 61": 1,
		"… and 76 more, in which ranks waited no longer: --json has them all": 1} {
		if n := strings.Count(text, "\n"+name+" ") + strings.Count(text, "\n"+name+"\n"); n != want {
			t.Errorf("%q is in the table %d times; want %d:\n%s", name, n, want, text)
		}
	}
}

// TestSendsAreNotJudged checks that the sentence about waits excludes sends and receives, of which there are two here.
func TestSendsAreNotJudged(t *testing.T) {
	tr := &trace.Trace{Ranks: 2, Source: "test", Clocks: []int{0, 0}}
	for r := range 2 {
		event := func(name string, class trace.Class, start, end int64, c *trace.Call) {
			tr.Events = append(tr.Events,
				trace.Event{Rank: r, Stream: "s", Name: name, Class: class, Start: start, End: end,
					Group: trace.NoGroup, Call: c})
		}
		event("gemm", trace.Compute, 0, 10_000, nil)
		event("all_reduce", trace.Comm, 10_000, 20_000, &trace.Call{Group: "0", Members: []int{0, 1}, Seq: -1})
		event("recv", trace.Comm, 20_000, 220_000, &trace.Call{Group: "0", PointToPoint: true, Seq: -1})
	}
	const want = "\nno rank waited for another in a collective for longer than the error of the clocks; the waits in 2 sends " +
		"and receives are unknown\n"
	if text := words(t, Of(tr, 0)); !strings.Contains(text, want) {
		t.Errorf("%q is not in\n%s", want, text)
	}
}

// TestCriticalPathBegins checks the sentence that explains a critical path which is shorter than the run. The events of
// rank 1 begin 500 µs after those of rank 0, and the critical path consists of events of rank 1.
func TestCriticalPathBegins(t *testing.T) {
	tr := &trace.Trace{Ranks: 2, Events: []trace.Event{
		{Rank: 0, Stream: "s", Name: "gemm", Class: trace.Compute, Start: 0, End: 100_000, Group: trace.NoGroup},
		{Rank: 1, Stream: "s", Name: "gemm", Class: trace.Compute, Start: 500_000, End: 900_000, Group: trace.NoGroup}}}
	const want = "critical path: 400 µs: compute 400 µs\nit begins on rank 1, 500 µs after the first event on any rank\n"
	if text := words(t, Of(tr, 0)); !strings.Contains(text, want) {
		t.Errorf("%q is not in\n%s", want, text)
	}
}

// TestCallsInTheMiddle checks that calls are matched although a rank lacks one in the middle. If calls are missing in
// two places, the calls cannot be matched, and the reason must be given. The traces have ten calls with growing
// distances.
func TestCallsInTheMiddle(t *testing.T) {
	r := Of(lacking10(5, 5), 0)
	if r.Untold != "" || len(r.Collectives) != 10 || len(r.Problems) != 1 || r.Problems[0].Kind != "missing" {
		t.Errorf("%q, %d collectives, %+v", r.Untold, len(r.Collectives), r.Problems)
	}
	for k, c := range r.Collectives {
		if both := k != 5; (len(c.ByRank) == 2) != both || (c.TransferUS != nil) != both {
			t.Errorf("%+v", c)
		}
	}
	const want = "because ranks have different numbers of calls, and calls in the middle may be missing"
	if r := Of(lacking10(3, 7), 0); !strings.Contains(r.Untold, want) {
		t.Errorf("%q; want %q", r.Untold, want)
	}
}

// lacking10 is a trace of ten calls on two ranks. Rank 1 lacks the calls with the two given indices.
func lacking10(one, other int64) *trace.Trace {
	tr := &trace.Trace{Ranks: 2, Source: "test", Clocks: []int{0, 1}}
	for r := range 2 {
		for k := range int64(10) {
			if r == 1 && (k == one || k == other) {
				continue
			}
			at := k * k * 1_000_000
			tr.Events = append(tr.Events,
				trace.Event{Rank: r, Stream: "s", Name: "all_reduce", Class: trace.Comm, Start: at,
					End: at + 50_000, Group: trace.NoGroup,
					Call: &trace.Call{Group: "0", Members: []int{0, 1}, Seq: -1}})
		}
	}
	return tr
}

// TestPercent checks that a share is written with enough digits to differ from the limit.
func TestPercent(t *testing.T) {
	for _, c := range []struct {
		share, limit float64
		want         string
	}{{0.15003, 0.15, "15.003 %"}, {0.4163, 0.1, "41.6 %"}, {0.15, 0.15, "15.0 %"}, {0.1499999, 0.15, "14.99999 %"}} {
		if got := percent(c.share, c.limit); got != c.want {
			t.Errorf("%s; want %s", got, c.want)
		}
	}
	r := &Report{Ranks: 1, SpanUS: 1000, Exposed: Exposed{TotalUS: 150.04}}
	c, err := ParseCondition("exposed > 15%")
	if err != nil {
		t.Fatal(err)
	}
	if holds, said, err := c.Holds(r); !holds || err != nil || said != "exposed > 15%: it is 15.004 %" {
		t.Error(fmt.Sprint(holds, said, err))
	}
}
