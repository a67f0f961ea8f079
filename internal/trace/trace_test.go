package trace

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// sample returns a trace of two ranks. Rank 1 is late, so rank 0 waits in the all_reduce. A put on the stream %push is
// hidden by computation during half of its time.
func sample() *Trace {
	ev := func(rank int, stream, name string, class Class, start, end, bytes int64) Event {
		return Event{Rank: rank, Stream: stream, Name: name, Class: class, Start: start, End: end, Bytes: bytes,
			Group: NoGroup}
	}
	t := &Trace{Ranks: 2, Events: []Event{
		ev(0, "main", "input", IO, 1000, 1000, 64),
		ev(0, "main", "linear", Compute, 1000, 21000, 0),
		ev(0, "main", "all_reduce", Comm, 21000, 61000, 100),
		ev(0, "main", "output", IO, 61000, 62000, 64),
		ev(0, "%s[10]", "signal", Sync, 31000, 31000, 0),
		ev(0, "%s[2]", "wait", Sync, 1000, 11000, 0),
		ev(0, "%s[2]", "put", Comm, 11000, 31000, 50),
		ev(1, "main", "linear", Compute, 1000, 41000, 0),
		ev(1, "main", "all_reduce", Comm, 41000, 61000, 100),
	}}
	for i := range t.Events {
		t.Events[i].ID = int64(i)
		if t.Events[i].Name == "all_reduce" {
			t.Events[i].Group = 0
		}
	}
	return t
}

func TestTotals(t *testing.T) {
	want := []OpTotal{
		{"linear", Compute, 2, 60000},
		{"all_reduce", Comm, 2, 60000}, {"put", Comm, 1, 20000},
		{"wait", Sync, 1, 10000}, {"signal", Sync, 1, 0},
		{"output", IO, 1, 1000}, {"input", IO, 1, 0},
	}
	if got := sample().Totals(); !slices.Equal(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestCritical(t *testing.T) {
	var path []int64
	for _, e := range sample().Critical() {
		path = append(path, e.ID)
	}
	// the path, from its end: output, all_reduce of rank 0, all_reduce of rank 1, which came last, linear of rank 1
	if want := []int64{7, 8, 2, 3}; !slices.Equal(path, want) {
		t.Errorf("got %v, want %v", path, want)
	}
}

// TestCriticalWait checks that the chain goes from a wait to the event on another stream that ended it.
func TestCriticalWait(t *testing.T) {
	tr := &Trace{Ranks: 2, Events: []Event{
		{ID: 0, Rank: 0, Stream: "main", Name: "wait", Class: Sync, Start: 0, End: 50, Group: NoGroup,
			Tie: &Tie{Counter: "%c[1]", Count: 1, Peer: -1}},
		{ID: 1, Rank: 0, Stream: "main", Name: "linear", Class: Compute, Start: 50, End: 60, Group: NoGroup},
		{ID: 2, Rank: 1, Stream: "%p", Name: "put", Class: Comm, Start: 10, End: 45, Group: NoGroup},
		{ID: 3, Rank: 1, Stream: "%p", Name: "signal", Class: Sync, Start: 45, End: 50, Group: NoGroup,
			Tie: &Tie{Counter: "%c[1]", Peer: 0}},
		{ID: 4, Rank: 1, Stream: "main", Name: "linear", Class: Compute, Start: 0, End: 55, Group: NoGroup},
	}}
	var path []int64
	for _, e := range tr.Critical() {
		path = append(path, e.ID)
	}
	if want := []int64{2, 3, 0, 1}; !slices.Equal(path, want) {
		t.Errorf("got %v, want %v", path, want)
	}
	if got := (&Trace{}).Critical(); got != nil {
		t.Errorf("an empty trace has the chain %v", got)
	}
}

// TestOverlap compares exposed time with a count of single nanoseconds.
func TestOverlap(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		tr := &Trace{Ranks: 1}
		for range rng.IntN(12) {
			start := rng.Int64N(60)
			tr.Events = append(tr.Events,
				Event{Stream: "main", Class: Class(rng.IntN(int(numClasses))), Start: start,
					End: start + rng.Int64N(20)})
		}
		var want [3]int64 // times of computation, of communication, and of exposed communication
		for ns := range int64(80) {
			var compute, comm bool
			for _, e := range tr.Events {
				in := e.Start <= ns && ns < e.End
				compute = compute || in && e.Class == Compute
				comm = comm || in && e.Class == Comm
			}
			want[0] += count(compute)
			want[1] += count(comm)
			want[2] += count(comm && !compute)
		}
		a, b := tr.busy(Compute)[0], tr.busy(Comm)[0]
		if got := [3]int64{Length(a), Length(b), Length(b) - Overlap(a, b)}; got != want {
			t.Fatalf("got %+v, want %+v of %+v", got, want, tr.Events)
		}
	}
}

func count(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

const golden = `
             µs 0              20             40             60
               ┌┬──────────────┬──────────────┬───────────────┬┐
rank 0  main   │LLLLLLLLLLLLLLL────────────────aaaaaaaaaaaaaaa>│
        %s[2]  │········pppppppppppppppp                       │
        %s[10] │                       !                       │
rank 1  main   │LLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLaaaaaaaaaaaaaaaa│
L linear   a all_reduce   p put   ! signal   · wait   > output
─ waiting for peers   too short to show: input
`

func TestTimeline(t *testing.T) {
	tr := sample()
	for i := range 5 {
		rand.New(rand.NewPCG(uint64(i), 0)).Shuffle(len(tr.Events), func(a, b int) {
			tr.Events[a], tr.Events[b] = tr.Events[b], tr.Events[a]
		})
		var b strings.Builder
		if err := tr.Timeline(&b, 64); err != nil {
			t.Fatal(err)
		}
		if "\n"+b.String() != golden {
			t.Fatalf("got:\n%s\nwant:%s", b.String(), golden)
		}
	}
}

func TestTimelineASCII(t *testing.T) {
	var b strings.Builder
	if err := sample().Draw(&b, Style{Width: 80, ASCII: true}); err != nil {
		t.Fatal(err)
	}
	for _, r := range b.String() {
		if r > 126 {
			t.Fatalf("%q in:\n%s", r, b.String())
		}
	}
}

// TestTimelineShapes checks, for many kinds of times, that the timeline has the requested width and shows every event.
func TestTimelineShapes(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for i := range 100 {
		tr := &Trace{Ranks: 1 + rng.IntN(3), Virtual: i%2 == 0}
		scale := int64(1) << rng.IntN(40)
		for range rng.IntN(20) {
			start := rng.Int64N(100) * scale
			tr.Events = append(tr.Events,
				Event{Rank: rng.IntN(tr.Ranks), Stream: []string{"main", "%a", "%b[1]"}[rng.IntN(3)],
					Name: []string{"linear", "add", "put", "all_gather"}[rng.IntN(4)], Class: Class(rng.IntN(2)),
					Start: start, End: start + rng.Int64N(3)*scale, Group: NoGroup})
		}
		width := 40 + rng.IntN(80)
		var b strings.Builder
		if err := tr.Timeline(&b, width); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(b.String()) {
			if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > width {
				t.Fatalf("%d columns of %d: %s", n, width, b.String())
			}
		}
	}
}

// TestZeroLengthShows checks that an event without duration is drawn if nothing else runs at that time, and that
// otherwise the legend says that it is not drawn.
func TestZeroLengthShows(t *testing.T) {
	tr := &Trace{Ranks: 1, Events: []Event{
		{Stream: "main", Name: "linear", Class: Compute, Start: 0, End: 1000000, Group: NoGroup},
		{Stream: "main", Name: "get", Class: Comm, Start: 500000, End: 500000, Group: NoGroup},
		{Stream: "other", Name: "put", Class: Comm, Start: 500000, End: 500000, Group: NoGroup},
	}}
	var b strings.Builder
	if err := tr.Timeline(&b, 80); err != nil {
		t.Fatal(err)
	}
	if s := b.String(); !strings.Contains(s, " p ") || !strings.Contains(s, "LLL│") ||
		!strings.Contains(s, "too short to show: get") {
		t.Errorf("the put is lost, or the get hides the linear:\n%s", s)
	}
}

// TestColumnShowsMost draws random streams and checks that each column shows the operation that takes most of its time.
// The test counts single nanoseconds.
func TestColumnShowsMost(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	ops := []string{"linear", "relu", "add", "wait", "all_gather"}
	for round := range 400 {
		const columns = 40 - int64(len("rank 0  main ")) - 2
		tr := &Trace{Ranks: 1}
		at := int64(0)
		for at < 3000 {
			name := ops[rng.IntN(len(ops))]
			e := Event{Stream: "main", Name: name, Group: NoGroup, Start: at,
				End: at + 1 + rng.Int64N(1+[]int64{6, 400}[rng.IntN(2)])}
			if e.Class = Compute; name == "wait" {
				e.Class = Sync
			} else if name == "all_gather" {
				e.Class = Comm
			}
			tr.Events = append(tr.Events, e)
			at = e.End + rng.Int64N(40)*rng.Int64N(2)
		}
		_, hi := tr.Bounds()
		counts := make([]map[rune]int64, columns) // in units of 1/columns nanoseconds
		for i := range counts {
			counts[i] = map[rune]int64{}
		}
		p := newPainter(tr, tr.lanes(), Style{})
		if p.columns != int(columns) {
			t.Fatalf("%d columns, the test expects %d", p.columns, columns)
		}
		for _, e := range tr.Events {
			for sub := e.Start * columns; sub < e.End*columns; sub++ {
				counts[sub/hi][p.letters[opKey{e.Class, e.Name}]]++
			}
		}
		var b strings.Builder
		if err := tr.Timeline(&b, 0); err != nil {
			t.Fatal(err)
		}
		_, row, _ := strings.Cut(b.String(), "│")
		for c, shown := range []rune(row)[:columns] {
			for op, n := range counts[c] {
				if n > counts[c][shown] {
					t.Fatalf("round %d, column %d shows %c, which takes %d; %c takes %d:\n%s", round, c, shown,
						counts[c][shown], op, n, b.String())
				}
			}
			if (shown == ' ') != (len(counts[c]) == 0) {
				t.Fatalf("round %d, column %d shows %q: %v", round, c, shown, counts[c])
			}
		}
	}
}

func TestJSON(t *testing.T) {
	var b bytes.Buffer
	if err := sample().WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	var doc struct {
		TraceEvents []struct {
			Name string
			Ph   string
			PID  int
			TID  int
			TS   float64
			Dur  float64
			Args struct {
				Name       string
				Bytes      int64
				Collective *int
			}
		}
	}
	if err := json.Unmarshal(b.Bytes(), &doc); err != nil {
		t.Fatalf("%v in %s", err, b.String())
	}
	meta, spans := 0, 0
	for _, e := range doc.TraceEvents {
		switch e.Ph {
		case "M":
			meta++
		case "X":
			spans++
			if e.Name == "put" && (e.TS != 10 || e.Dur != 20 || e.Args.Bytes != 50 || e.TID != 1) {
				t.Errorf("put is %+v", e)
			}
			if c := e.Args.Collective; (c != nil) != (e.Name == "all_reduce") || c != nil && *c != 0 {
				t.Errorf("%s has a wrong collective, or none", e.Name)
			}
		}
	}
	if meta != 2+4 || spans != len(sample().Events) {
		t.Errorf("%d names and %d events", meta, spans)
	}
}

// TestRecorder checks that marks of many streams become events and that commands that have not ended are omitted.
func TestRecorder(t *testing.T) {
	r := NewRecorder()
	for id := range int64(4) {
		r.Began(0, "main", id, 10*id)
		r.Began(1, "main", id, 10*id+1)
		r.Ended(0, "main", id, 10*id+5)
		if id != 2 {
			r.Ended(1, "main", id, 10*id+6)
		}
	}
	r.Ended(3, "main", 1, 7)
	describe := func(id int64) Event { return Event{ID: id, Name: "add"} }
	events := r.Drain(describe)
	if len(events) != 7 {
		t.Fatalf("%d events: %+v", len(events), events)
	}
	for _, e := range events {
		if e.Duration() != 5 || e.Name != "add" || e.Start != 10*e.ID+int64(e.Rank) {
			t.Errorf("event %+v", e)
		}
	}
	if again := r.Drain(describe); len(again) != 0 {
		t.Errorf("drained twice: %+v", again)
	}
}

// TestExposedOnAnotherRank checks that communication that is hidden on one rank is reported as exposed if it is not
// hidden on another rank, even if it takes less time there.
func TestExposedOnAnotherRank(t *testing.T) {
	tr := &Trace{Ranks: 3, Events: []Event{
		{Rank: 0, Stream: "%s", Class: Comm, Bytes: 8, Start: 0, End: 100},
		{Rank: 0, Stream: "main", Class: Compute, Start: 0, End: 100},
		{Rank: 1, Stream: "%s", Class: Comm, Bytes: 8, Start: 0, End: 60},
		{Rank: 2, Stream: "%s", Class: Comm, Bytes: 8, Start: 0, End: 90},
		{Rank: 2, Stream: "main", Class: Compute, Start: 60, End: 100},
	}}
	got := tr.ExposedBy(func(int64) int { return 0 }, 1)
	if want := []Exposure{{90, 60}}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestExposedBy(t *testing.T) {
	tr := sample()
	tr.Events = append(tr.Events, Event{ID: 9, Rank: 0, Stream: "main", Name: "barrier", Class: Comm, Start: 0,
		End: 1000000, Group: NoGroup})
	got := tr.ExposedBy(func(id int64) int {
		switch tr.Events[id%int64(len(tr.Events))].Name {
		case "put":
			return 1
		case "all_reduce":
			return 0
		}
		return -1
	}, 2)
	// Rank 0 has the most exposed communication in both groups. The all_reduce of rank 0 is not hidden at all. The put
	// of rank 0 runs from 11 to 31 µs, during a linear that ends at 21 µs.
	if want := []Exposure{{40000, 40000}, {20000, 10000}}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
