package account

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"hocket.example/hocket/internal/trace"
)

// world is a random trace on one clock, and the error of the clock of each rank.
type world struct {
	trace   *trace.Trace
	offsets []int64
	arrive  []int64 // the time at which the last rank entered each collective
	begins  [][]int64
	jitter  int64
}

func drawWorld(t *rapid.T) *world {
	ranks := rapid.IntRange(2, 5).Draw(t, "ranks")
	w := &world{trace: &trace.Trace{Ranks: ranks, Source: "test"}, jitter: rapid.Int64Range(0, 3000).Draw(t, "jitter")}
	now := make([]int64, ranks)
	for r := range ranks {
		w.trace.IDs = append(w.trace.IDs, r)
		w.trace.Clocks = append(w.trace.Clocks, r)
		w.offsets = append(w.offsets, rapid.Int64Range(-1e12, 1e12).Draw(t, "offset"))
		now[r] = rapid.Int64Range(1e6, 2e6).Draw(t, "start")
	}
	add := func(r int, e trace.Event) {
		e.Rank, e.Group = r, trace.NoGroup
		e.Start, e.End = e.Start+w.offsets[r], e.End+w.offsets[r]
		w.trace.Events = append(w.trace.Events, e)
	}
	for k := range rapid.IntRange(2, 12).Draw(t, "collectives") {
		begin := make([]int64, ranks)
		var arrive int64
		for r := range ranks {
			for range rapid.IntRange(0, 3).Draw(t, "kernels") {
				long := rapid.Int64Range(1, 2e6).Draw(t, "kernel")
				gap := rapid.Int64Range(0, 1e5).Draw(t, "gap")
				stream := rapid.SampledFrom([]string{"stream 7", "stream 9"}).Draw(t, "stream")
				add(r, trace.Event{Stream: stream, Name: "gemm", Class: trace.Compute, Start: now[r] + gap,
					End: now[r] + gap + long})
				if stream == "stream 7" {
					now[r] += gap + long
				}
			}
			begin[r] = now[r]
			arrive = max(arrive, now[r])
		}
		transfer := rapid.Int64Range(5e3, 1e6).Draw(t, "transfer")
		for r := range ranks {
			end := arrive + transfer + rapid.Int64Range(0, w.jitter).Draw(t, "late end")
			add(r, trace.Event{Stream: "stream 7", Name: "all_reduce", Class: trace.Comm, Start: begin[r], End: end,
				Bytes: 1 << 20,
				Call:  &trace.Call{Group: "tp", Seq: int64(k), In: 1 << 19, Out: 1 << 19, DType: "Half"}})
			now[r] = end
		}
		w.arrive, w.begins = append(w.arrive, arrive), append(w.begins, begin)
	}
	w.trace.Sort()
	return w
}

// TestProperties checks that waiting and transfer add up to the duration of every member, that exposed and hidden
// communication add up to all communication, and that clocks that were shifted are aligned again.
func TestProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		long := map[int]map[int64]int64{} // durations by rank and number of the call
		union := make([]float64, w.trace.Ranks)
		for _, e := range w.trace.Events {
			if e.Call != nil {
				if long[e.Rank] == nil {
					long[e.Rank] = map[int64]int64{}
				}
				long[e.Rank][e.Call.Seq] = e.End - e.Start
				union[e.Rank] += us(e.End - e.Start) // all events of a rank are on one stream, so they do not overlap
			}
		}
		r := Of(w.trace, 0)
		if err := newFacts(r).all(r); err != nil {
			t.Fatal(err)
		}
		if len(r.Collectives) != len(w.arrive) || r.Untold != "" {
			t.Fatalf("%d collectives of %d: %q, %+v", len(r.Collectives), len(w.arrive), r.Untold, r.Problems)
		}
		// The error of each end is at most the jitter, and the error of each aligned clock at most twice the jitter.
		slack := us(3 * w.jitter)
		if *r.Alignment.ResidualUS > slack+0.01 {
			t.Fatalf("residual %v with jitter of %v", *r.Alignment.ResidualUS, us(w.jitter))
		}
		skews := map[int]float64{} // by rank
		for k, c := range r.Collectives {
			for _, m := range c.ByRank {
				skews[m.Rank] += m.StartSkewUS
				own := us(long[m.Rank][int64(k)]) // the fitted drift of a clock may be wrong by 200 ppm
				if d := *m.WaitUS + m.StartSkewUS + *m.TransferUS - own; math.Abs(d) > 0.002+own*200e-6 {
					t.Fatalf("collective %d, rank %d: %v + %v is %v more than its duration", k, m.Rank, *m.WaitUS,
						*m.TransferUS, d)
				}
				if want := us(w.arrive[k] - w.begins[k][m.Rank]); math.Abs(*m.WaitUS+m.StartSkewUS-want) > 2*slack+0.01 {
					t.Fatalf("collective %d, rank %d waited %v; want %v within %v", k, m.Rank, *m.WaitUS, want, 2*slack)
				}
			}
			if c.Late == nil {
				continue
			}
			latest := w.begins[k][c.Late.Rank]
			if d := us(w.arrive[k] - latest); d > 2*slack {
				t.Fatalf("collective %d: rank %d is reported as late, but arrived %v µs before the last", k,
					c.Late.Rank, d)
			}
		}
		for _, x := range r.Exposed.ByRank {
			if d := x.TotalUS + x.HiddenUS +
				skews[x.Rank] - union[x.Rank]; math.Abs(d) > 0.002*float64(len(r.Collectives))+union[x.Rank]*200e-6 {
				t.Fatalf("rank %d: exposed %v + hidden %v differs from the total %v", x.Rank, x.TotalUS, x.HiddenUS,
					union[x.Rank])
			}
			if d := *x.WaitUS + *x.TransferUS - x.TotalUS; math.Abs(d) > 0.002 {
				t.Fatalf("rank %d: exposed %v is not %v + %v", x.Rank, x.TotalUS, *x.WaitUS, *x.TransferUS)
			}
		}
		var kinds float64
		for _, k := range r.Critical.ByKind {
			kinds += k.US
		}
		if math.Abs(kinds-r.Critical.SpanUS) > 0.01 || r.Critical.SpanUS > r.SpanUS+0.01 {
			t.Fatalf("critical path of %v µs in parts of %v, in a trace of %v", r.Critical.SpanUS, kinds, r.SpanUS)
		}
	})
}

// TestAnyTrace checks that every trace has a report whose sums agree.
func TestAnyTrace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tr := &trace.Trace{Ranks: rapid.IntRange(1, 4).Draw(t, "ranks"),
			Source: rapid.SampledFrom([]string{"", "test"}).Draw(t, "source")}
		if rapid.Bool().Draw(t, "clocks") {
			for r := range tr.Ranks {
				tr.Clocks = append(tr.Clocks, r)
			}
		}
		for range rapid.IntRange(0, 40).Draw(t, "events") {
			e := trace.Event{Rank: rapid.IntRange(0, tr.Ranks-1).Draw(t, "rank"),
				Class:  trace.Class(rapid.IntRange(0, 3).Draw(t, "class")),
				Stream: rapid.SampledFrom([]string{"main", "%s[2]", "stream 11"}).Draw(t, "stream"),
				Group:  trace.NoGroup,
				Name: rapid.SampledFrom([]string{"wait", "linear", "all_reduce", "broadcast", "send"}).Draw(t,
					"name"),
				Start: rapid.Int64Range(-1e6, 1e6).Draw(t, "start"), Run: rapid.Int64Range(0, 1).Draw(t, "run")}
			e.End = e.Start + rapid.Int64Range(0, 1e6).Draw(t, "long")
			if e.Class == trace.Comm {
				e.Group = rapid.IntRange(-1, 3).Draw(t, "group")
				if tr.Source != "" {
					e.Group = trace.NoGroup
					e.Call = &trace.Call{Group: rapid.SampledFrom([]string{"", "a"}).Draw(t, "name of group"), In: 1,
						Out: 1,
						Seq: rapid.Int64Range(-1, 2).Draw(t, "seq"), PointToPoint: e.Name == "send"}
				}
			}
			e.Issued = rapid.SampledFrom([]int64{0, e.Start - 100, e.Start - 50_000}).Draw(t, "issued")
			tr.Events = append(tr.Events, e)
		}
		r := Of(tr, rapid.Int64Range(0, 1e6).Draw(t, "bound"))
		for _, x := range r.Exposed.ByRank {
			var comm, compute []trace.Interval
			var skew float64
			for _, c := range r.Collectives {
				for _, m := range c.ByRank {
					if m.Rank == x.Rank {
						skew += m.StartSkewUS
					}
				}
			}
			for _, e := range tr.Events {
				switch {
				case tr.ID(e.Rank) != x.Rank:
				case e.Class == trace.Comm:
					comm = append(comm, trace.Interval{Lo: e.Start, Hi: e.End})
				case e.Class == trace.Compute:
					compute = append(compute, trace.Interval{Lo: e.Start, Hi: e.End})
				}
			}
			// Other communication may run during the start skew.
			if d := x.TotalUS + x.HiddenUS - us(trace.Length(trace.Union(comm))); d > 0.002 || d < -skew-0.002 {
				t.Fatalf("rank %d: exposed %v + hidden %v is off by %v", x.Rank, x.TotalUS, x.HiddenUS, d)
			}
			if d := x.ComputeUS - us(trace.Length(trace.Union(compute))); math.Abs(d) > 0.002 {
				t.Fatalf("rank %d: compute is off by %v", x.Rank, d)
			}
		}
		for _, c := range r.Collectives {
			for _, m := range c.ByRank {
				if m.WaitUS != nil && (*m.WaitUS < 0 || *m.TransferUS < 0) {
					t.Fatalf("%+v", c)
				}
			}
			if c.Late != nil && (c.Late.After == "" || c.TransferUS == nil) {
				t.Fatalf("%+v", c)
			}
		}
		for _, x := range r.Idle {
			if x.HostUS < 0 || x.EventUS < 0 || x.LaunchUS < 0 || x.UnknownUS < 0 {
				t.Fatalf("%+v", x)
			}
		}
		var b strings.Builder
		if err := r.WriteText(&b); err != nil {
			t.Fatal(err)
		}
		if _, err := json.Marshal(r); err != nil {
			t.Fatal(err)
		}
	})
}

// TestDrift checks that a clock that is 80 ppm too fast is corrected, and that a clock that jumps is refused.
func TestDrift(t *testing.T) {
	make := func(clock func(at int64) int64) *trace.Trace {
		tr := &trace.Trace{Ranks: 2, Source: "test", IDs: []int{0, 1}, Clocks: []int{0, 1}}
		for k := range int64(40) {
			at := k * 25_000_000
			for r := range 2 {
				e := trace.Event{Rank: r, Stream: "s", Name: "all_reduce", Class: trace.Comm, Start: at,
					End: at + 80_000, Group: trace.NoGroup,
					Call: &trace.Call{Group: "g", Seq: k}}
				if r == 1 {
					e.Start, e.End = clock(e.Start), clock(e.End)
				}
				tr.Events = append(tr.Events, e)
			}
		}
		tr.Sort()
		return tr
	}
	r := Of(make(func(at int64) int64 { return at + at/12500 + 5_000_000 }), 0)
	if r.Untold != "" || *r.Alignment.ResidualUS > 0.1 || math.Abs(r.Alignment.Clocks[0].DriftPPM+80) > 0.1 {
		t.Errorf("80 ppm: %+v, %q", r.Alignment, r.Untold)
	}
	r = Of(make(func(at int64) int64 {
		if at > 500_000_000 {
			return at + 90_000
		}
		return at
	}), 0)
	if r.Untold != "" && *r.Alignment.ResidualUS <= 50 {
		t.Errorf("a jump of 90 µs: %+v, %q", r.Alignment, r.Untold)
	}
	r = Of(make(func(at int64) int64 {
		if at > 500_000_000 {
			return at + 900_000
		}
		return at
	}), 0)
	if r.Untold == "" || r.Collectives[0].TransferUS != nil {
		t.Errorf("a jump of 900 µs is not refused: %+v", r.Alignment)
	}
}

// TestProblems checks that calls with different arguments, and a missing call, are reported with their rank.
func TestProblems(t *testing.T) {
	call := func(rank int, seq int64, op, dtype string, n int64) trace.Event {
		return trace.Event{Rank: rank, Stream: "s", Name: op, Class: trace.Comm, Start: seq * 1e6, End: seq*1e6 + 1e5,
			Group: trace.NoGroup,
			Call:  &trace.Call{Group: "g", Seq: seq, DType: dtype, In: n, Out: n, Members: []int{0, 1, 2}}}
	}
	tr := &trace.Trace{Ranks: 3, Source: "test", IDs: []int{0, 1, 2}, Clocks: []int{0, 1, 2}}
	for r := range 3 {
		for seq := range int64(4) {
			e := call(r, seq, "all_reduce", "Half", 64)
			switch {
			case r == 1 && seq == 1:
				e = call(r, seq, "all_reduce", "Float", 64)
			case r == 2 && seq == 2:
				e = call(r, seq, "all_reduce", "Half", 32)
			case r == 0 && seq == 3:
				e = call(r, seq, "broadcast", "Half", 64)
			case r == 2 && seq == 3:
				continue
			}
			tr.Events = append(tr.Events, e)
		}
	}
	tr.Sort()
	r := Of(tr, 0)
	got := map[string]int{}
	for _, p := range r.Problems {
		got[fmt.Sprint(p.Kind, " ", p.Rank)]++
	}
	for _, want := range []string{"dtype 1", "size 2", "missing 2"} {
		if got[want] != 1 {
			t.Errorf("%q is not among %v", want, r.Problems)
		}
	}
	if got["order 0"]+got["order 1"] != 1 {
		t.Errorf("want a problem about the order of ranks 0 and 1: %v", r.Problems)
	}
	if r.Collectives[3].TransferUS != nil {
		t.Error("waiting is reported for a collective that is missing in one member's profile")
	}
}

func TestConditions(t *testing.T) {
	r := accounted(t, "testdata/tp-mlp-ar-late.rank0.json.gz", "testdata/tp-mlp-ar-late.rank1.json.gz")
	for text, want := range map[string]bool{
		"exposed > 10%": true, "exposed>90%": false, "exposed > 12ms": true, "wait > 11ms": true,
		"transfer > 2ms": false,
		"skew > 11.5ms":  true, "skew > 1s": false, "residual > 6us": false, "problems > 0": false,
		"span > 15 ms": true, "span > 16 ms": false, // the span is 16.9 ms, of which 1.3 ms are start skew
	} {
		c, err := ParseCondition(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got, how, err := c.Holds(r); err != nil || got != want {
			t.Errorf("%s: %v (%s), %v; want %v", text, got, how, err, want)
		}
	}
	for _, text := range []string{"", "exposed", "exposed < 3%", "exposed > 10", "skew > 10%", "problems > 3us",
		"nothing > 1us", "exposed > 1.2.3%"} {
		if _, err := ParseCondition(text); err == nil {
			t.Errorf("%q is not a condition, but is accepted", text)
		}
	}
	c, _ := ParseCondition("step > 1us")
	if _, _, err := c.Holds(r); err == nil {
		t.Error("a profile without steps has a median step")
	}
}

func TestAgainst(t *testing.T) {
	r := accounted(t, "testdata/tp-mlp-ar-late.rank0.json.gz", "testdata/tp-mlp-ar-late.rank1.json.gz")
	for _, d := range r.Against(r) {
		if d.Was == nil || d.Is == nil || *d.Was != *d.Is {
			t.Errorf("a profile against itself: %+v", d)
		}
	}
	other := accounted(t, "testdata/nsys-1.txt")
	found := false
	for _, d := range r.Against(other) {
		if d.What == "transfer of all_reduce, median" {
			found = true
			near(t, "was", *d.Was, 261.4, 0.1)
			near(t, "is", *d.Is, 75.9, 0.1)
		}
	}
	if !found {
		t.Error("the all_reduces of the two reports are not compared")
	}
}

// TestStartSkew checks a run whose ranks do the same, but the profile of rank 1 begins 400 µs later than that of rank
// 0. The first event of both profiles is a gemm of 100 µs. Rank 0 enters the first all_reduce at 100 µs and rank 1 at
// 400 + 130 = 530 µs: of the wait of 430 µs, 400 µs are start skew, and 30 µs are counted as waiting. The all_reduce
// moves data for 20 µs, until
// 550. The second step has no waiting: gemm until 650 and all_reduce until 670.
func TestStartSkew(t *testing.T) {
	traced := func(source string) *trace.Trace {
		tr := &trace.Trace{Ranks: 2, Source: source, IDs: []int{0, 1}, Clocks: []int{0, 1}}
		add := func(rank int, name string, class trace.Class, start, end, seq int64) {
			e := trace.Event{Rank: rank, Stream: "s", Name: name, Class: class, Start: start * 1000, End: end * 1000,
				Group: trace.NoGroup}
			if class == trace.Comm {
				e.Call = &trace.Call{Group: "tp", Seq: seq, In: 8, Out: 8}
			}
			tr.Events = append(tr.Events, e)
		}
		for rank, at := range []int64{0, 400} {
			add(rank, "gemm", trace.Compute, at, at+100, 0)
			add(rank, "all_reduce", trace.Comm, []int64{100, 530}[rank], 550, 0)
			add(rank, "gemm", trace.Compute, 550, 650, 0)
			add(rank, "all_reduce", trace.Comm, 650, 670, 1)
		}
		return tr
	}
	r := Of(traced("kineto"), 0)
	s := r.StartSkew
	if s == nil || s.US != 400 || s.WaitUS != 400 || s.Rank != 1 || s.From != 0 {
		t.Fatalf("start skew: %+v", s)
	}
	near(t, "exposed waiting", *r.Exposed.WaitUS, 30, 1e-6)
	near(t, "exposed", r.Exposed.TotalUS, 30+2*(20+20), 1e-6)
	near(t, "skew", *r.Collectives[0].SkewUS, 30, 1e-6)
	near(t, "late", r.Collectives[0].Late.US, 30, 1e-6)
	near(t, "common span", r.commonUS(), 670-400, 1e-6)
	// The time of each rank is 270 µs: that of rank 0 is 670 µs without 400 µs of start skew, and that of rank 1 begins
	// at 400 µs.
	near(t, "time of ranks", r.ranksUS(), 2*270, 1e-6)
	for text, want := range map[string]bool{"exposed > 20%": true, "exposed > 21%": false,
		"skew > 31us": false} { // exposed are 110 / 540 = 20.4 %
		c, err := ParseCondition(text)
		if err != nil {
			t.Fatal(err)
		}
		if got, words, err := c.Holds(r); err != nil || got != want {
			t.Errorf("%s: %v (%s), %v", text, got, words, err)
		}
	}
	if !strings.Contains(words(t, r), "start skew: the profile of rank 1 begins 400 µs after that of rank 0; 400 µs of waiting ") {
		t.Errorf("words:\n%s", words(t, r))
	}
	if r := Of(traced(""), 0); r.StartSkew != nil {
		t.Errorf("a run of hocket is traced on all ranks from its begin, but has start skew: %+v", r.StartSkew)
	}
}

// timesOf returns the report on a profile of ranks each of which runs a gemm and then an all_reduce, n times. Their
// clocks agree.
func timesOf(ranks, n int, gemm, reduce int64) *Report {
	tr := &trace.Trace{Ranks: ranks, Source: "test", Clocks: make([]int, ranks)}
	for r := range ranks {
		tr.IDs = append(tr.IDs, r)
		for k := range n {
			at := int64(k) * (gemm + reduce)
			tr.Events = append(tr.Events,
				trace.Event{Rank: r, Stream: "s", Name: "gemm", Start: at, End: at + gemm, Group: trace.NoGroup},
				trace.Event{Rank: r, Stream: "s", Name: "all_reduce", Class: trace.Comm, Start: at + gemm,
					End: at + gemm + reduce, Group: trace.NoGroup,
					Call: &trace.Call{Group: "tp", Seq: int64(k), In: 8, Out: 8}})
		}
	}
	return Of(tr, 0)
}

// TestAgainstPerCall compares a profile with 6 calls on 2 ranks with two others: 8 calls on 2 ranks, and 6 calls on one
// rank. Each gemm takes 173 µs in all three profiles, so the means are equal, although the sums differ by 8/6 − 1 = 33
// % and by half. Each all_reduce takes 80 µs in the first profile and 60 µs in the second: the mean is 25 % less,
// although the sums 6 · 2 · 80 = 960 and 8 · 2 · 60 = 960 are equal.
func TestAgainstPerCall(t *testing.T) {
	old := timesOf(2, 6, 173_000, 80_000)
	got := map[string]Difference{}
	r := timesOf(2, 8, 173_000, 60_000)
	for _, d := range r.Against(old) {
		got[d.What] = d
	}
	if d, ok := got["gemm"]; ok {
		t.Errorf("gemm is equal per call, but differs: %+v", d)
	}
	d := got["exposed transfer"]
	near(t, "was", *d.Was, 80, 1e-6)
	near(t, "is", *d.Is, 60, 1e-6)
	if d.WasTimes != 6*2 || d.Times != 8*2 {
		t.Errorf("%d and %d calls", d.WasTimes, d.Times)
	}
	var b strings.Builder
	if err := WriteAgainst(&b, r.Against(old), r.Unlike(old)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"warning: the older and the newer profile have 6 and 8 all_reduce collectives: ",
		"-25.0 %", "12 → 16"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in\n%s", want, b.String())
		}
	}
	other := timesOf(2, 6, 173_000, 80_000)
	other.ids = []int{4, 5}
	if w := old.Unlike(other); len(w) != 1 ||
		w[0] != "the older profile has 2 ranks (4-5), and the newer one 2 ranks (0-1)" {
		t.Errorf("warnings: %q", w)
	}
	apart := timesOf(2, 6, 173_000, 80_000)
	apart.Untold = "ends differ by 4950 µs"
	apart.Problems = []Problem{{"runs", 1, "the profiles are of two runs"}}
	want := []string{"in the older profile, waiting cannot be separated from transfer: ends differ by 4950 µs",
		"in the older profile: the profiles are of two runs"}
	if w := old.Unlike(apart); !slices.Equal(w, want) {
		t.Errorf("warnings: %q; want %q", w, want)
	}
	was, is := 100.01, 100.0
	if row := (&Difference{Was: &was, Is: &is}).Row(); row[3] != "+0.0 %" {
		t.Errorf("%q", row)
	}
	if w := old.Unlike(old); len(w) > 0 {
		t.Errorf("a profile against itself: %q", w)
	}
}
