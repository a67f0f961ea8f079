// Package trace holds what a run did and when, and computes where the time went: busy time, communication that nothing
// hides, waiting and transfer in collectives, and the chain of events that determined the length of the run.
package trace

import (
	"cmp"
	"slices"
	"strings"
)

// Class says what an event is.
type Class uint8

// Classes of events.
const (
	Compute Class = iota // computes on the rank
	Comm                 // moves data between ranks: collectives, puts, gets, sends, receives, barriers
	Sync                 // waits and signals
	IO                   // the caller's uploads and read-backs
	numClasses
)

// String returns the class in a word.
func (c Class) String() string {
	if c >= numClasses {
		return "unknown"
	}
	return [numClasses]string{"compute", "comm", "sync", "io"}[c]
}

// NoGroup is the Group of an event that belongs to no collective.
const NoGroup = -1

// Event is one command's time on its stream.
type Event struct {
	Rank   int
	Stream string // "main", "%s[1]"
	Run    int64  // number of the run, from 0
	ID     int64  // the command's index in its plan
	Name   string // the operation: "linear", "all_reduce", "put"
	Detail string // the statement, with its place
	Class  Class
	// Start and End are nanoseconds on a clock that all ranks share.
	Start, End int64
	// Bytes moved between memories for this event; 0 for computation.
	Bytes int64
	// Group is the collective that the event is one member's share of, an
	// index in the plan, or NoGroup.
	Group int
	// Issued is when the host enqueued the event; 0 where that is not known.
	Issued int64
	// Call says what a profile by others knows of a collective; nil elsewhere.
	Call *Call
	// Tie says what the event has to do with another stream or rank; nil where that is not recorded.
	Tie *Tie
}

// Tie is what one command of hocket's has to do with another stream or rank.
type Tie struct {
	// A wait between streams: it waits for the commands of a stream of its rank before the one with index Until.
	Stream string `json:"stream,omitempty"`
	Until  int64  `json:"until,omitempty"`
	// A signal raises an element of a counter of rank Peer. A wait for signals has Peer -1, and passes once its own
	// rank's element was raised Count times in the run.
	Counter string `json:"counter,omitempty"`
	Count   int64  `json:"count,omitempty"`
	// Peer is also the other rank of a put or a get.
	Peer int `json:"peer"`
}

// Call identifies one rank's call of a collective among its others, and determines which calls of other ranks belong
// to it.
type Call struct {
	Group   string // of ranks: its name
	Members []int  // of the group, by their numbers in the job; nil where unknown
	Seq     int64  // number of the call in its group; -1 where not recorded
	DType   string // "BFloat16"; empty where unknown
	// Elements handed in and got back; -1 where unknown.
	In, Out int64
	// PointToPoint: it is a send or a receive, which not all of the group take part in.
	PointToPoint bool
}

// HostCall is what a rank's host did for some time, as far as it was recorded.
type HostCall struct {
	Rank       int
	Name       string
	Start, End int64
}

// Step is one iteration of a rank, where the program marked it.
type Step struct {
	Rank       int
	Name       string
	Start, End int64
}

// Duration returns End - Start in nanoseconds.
func (e *Event) Duration() int64 { return e.End - e.Start }

// Trace is what one or several runs did.
type Trace struct {
	Ranks int
	// Virtual: times are steps of a scheduled machine, not nanoseconds.
	Virtual bool
	// Events by rank, stream, start; see Sort.
	Events []Event

	// Source names who recorded it, where that was not hocket: "kineto", "nsys".
	Source string
	// IDs are the ranks' numbers in their job; nil where they are 0, 1, 2 and so on.
	IDs []int
	// Clocks says which ranks' times are of one clock, those of one number; nil: all. Of
	// several clocks times agree to within microseconds, or not at all.
	Clocks []int
	// Host holds what hosts did, Steps the marked iterations; both are empty in own traces.
	Host  []HostCall
	Steps []Step
}

// ID returns the number of a rank in its job.
func (t *Trace) ID(rank int) int {
	if rank < len(t.IDs) {
		return t.IDs[rank]
	}
	return rank
}

// Sort puts the events into their order: rank, stream (main first, then by
// name), start, end, run, ID.
func (t *Trace) Sort() {
	if !slices.IsSortedFunc(t.Events, inOrder) {
		slices.SortStableFunc(t.Events, inOrder)
	}
}

func inOrder(a, b Event) int {
	if a.Rank != b.Rank {
		return cmp.Compare(a.Rank, b.Rank)
	}
	if c := CompareStreams(a.Stream, b.Stream); c != 0 {
		return c
	}
	return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.End, b.End), cmp.Compare(a.Run, b.Run),
		cmp.Compare(a.ID, b.ID))
}

// CompareStreams puts main first and numbers in the order of their values.
func CompareStreams(a, b string) int {
	switch {
	case a == b:
		return 0
	case a == "main":
		return -1
	case b == "main":
		return 1
	}
	return cmp.Or(cmp.Compare(stem(a), stem(b)), cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}

// stem returns the name without its index, or the number that it ends in.
func stem(s string) string {
	if i := strings.IndexByte(s, '['); i >= 0 {
		return s[:i]
	}
	return strings.TrimRight(s, "0123456789")
}

// Bounds returns the first start and the last end; zeros without events.
func (t *Trace) Bounds() (lo, hi int64) {
	for i := range t.Events {
		e := &t.Events[i]
		if i == 0 {
			lo, hi = e.Start, e.End
		}
		lo, hi = min(lo, e.Start), max(hi, e.End)
	}
	return lo, hi
}

// Merge returns one trace of several runs on the same clock.
func Merge(traces ...*Trace) *Trace {
	m := &Trace{}
	for _, t := range traces {
		if t == nil {
			continue
		}
		m.Ranks = max(m.Ranks, t.Ranks)
		m.Virtual = m.Virtual || t.Virtual
		if m.Clocks == nil {
			m.Clocks = t.Clocks
		}
		m.Events = append(m.Events, t.Events...)
	}
	m.Sort()
	return m
}
