// Package trace holds the events of a run with their times. The package computes busy time, exposed communication
// (during which the rank computes nothing), waiting and transfer in collectives, and the chain of events that
// determined the duration of the run.
package trace

import (
	"cmp"
	"slices"
	"strings"
)

// Class is the kind of an event.
type Class uint8

// Classes of events.
const (
	Compute Class = iota // computes on the rank
	Comm                 // moves data between ranks: collectives, puts, gets, sends, receives, barriers
	Sync                 // waits and signals
	IO                   // the caller's uploads and read-backs
	numClasses
)

// String returns the name of the class.
func (c Class) String() string {
	if c >= numClasses {
		return "unknown"
	}
	return [numClasses]string{"compute", "comm", "sync", "io"}[c]
}

// NoGroup is the Group of an event that belongs to no collective.
const NoGroup = -1

// Event is the time of one command on its stream.
type Event struct {
	Rank   int
	Stream string // name of the stream: "main", "%s[1]"
	Run    int64  // number of the run, from 0
	ID     int64  // index of the command in its plan
	Name   string // name of the operation: "linear", "all_reduce", "put"
	Detail string // the statement and its position in the program
	Class  Class
	// Start and End are nanoseconds on a clock that all ranks share.
	Start, End int64
	// Bytes is the number of bytes that the event moved between memories; 0 for computation.
	Bytes int64
	// Group identifies the collective of which the event is a part, by its index in the plan. Group is NoGroup if the
	// event belongs to no collective.
	Group int
	// Issued is the time at which the host enqueued the event; 0 if unknown.
	Issued int64
	// Call describes the call of a collective. Call is set only in profiles of other tools.
	Call *Call
	// Tie describes how the event depends on another stream or rank. Tie is nil if this is not recorded.
	Tie *Tie
}

// Tie describes how a command of hocket depends on another stream or rank.
type Tie struct {
	// A wait between streams waits for those commands of the stream Stream, on its own rank, whose index is less
	// than Until.
	Stream string `json:"stream,omitempty"`
	Until  int64  `json:"until,omitempty"`
	// A signal raises an element of a counter of the rank Peer. A wait for signals has Peer -1, and ends when the
	// element of its own rank has been raised Count times in the run.
	Counter string `json:"counter,omitempty"`
	Count   int64  `json:"count,omitempty"`
	// For a put or a get, Peer is the other rank.
	Peer int `json:"peer"`
}

// Call describes how one rank called a collective. By their descriptions, the calls of several ranks are matched to
// collectives.
type Call struct {
	Group   string // the name of the group of ranks
	Members []int  // members of the group, by their numbers in the job; nil if unknown
	Seq     int64  // number of the call in its group; -1 if not recorded
	DType   string // element type, such as "BFloat16"; empty if unknown
	// In and Out are the numbers of elements that are passed in and received; -1 if unknown.
	In, Out int64
	// PointToPoint reports that the call is a send or a receive, in which only some ranks of the group take part.
	PointToPoint bool
}

// HostCall is an activity of a rank's host with its duration.
type HostCall struct {
	Rank       int
	Name       string
	Start, End int64
}

// Step is one iteration of a rank, if the program marked iterations.
type Step struct {
	Rank       int
	Name       string
	Start, End int64
}

// Duration returns End - Start in nanoseconds.
func (e *Event) Duration() int64 { return e.End - e.Start }

// Trace contains the events of one or several runs.
type Trace struct {
	Ranks int
	// Virtual reports that times are steps of a scheduled machine and not nanoseconds.
	Virtual bool
	// Events are ordered by rank, stream and start; see Sort.
	Events []Event

	// Source names the tool that recorded the trace, such as "kineto" or "nsys". It is empty for hocket.
	Source string
	// IDs are the numbers of the ranks in their job; nil if they are 0, 1, 2 and so on.
	IDs []int
	// World is the number of ranks of the job, of which the trace may have only some; 0 if it is not recorded.
	World int
	// Clocks holds a number for the clock of each rank. Ranks with equal numbers share a clock. If Clocks is nil,
	// all ranks share one clock. Times of different clocks may agree to within microseconds, or not at all.
	Clocks []int
	// Repeats reports that a device occurs in several sessions of nsys. The ranks ran in separate containers, or the rows
	// are of several runs.
	Repeats bool
	// Host holds the calls of the hosts. Steps holds the iterations that the profiled program marked. Host and Steps
	// are empty in hocket's traces.
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

// Sort sorts the events by rank, stream (main first, then by name), start, end, run and ID.
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

// CompareStreams compares the names of streams: "main" is first, and numbers in names are compared by value.
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

// stem returns the name of a stream without the index or number at its end.
func stem(s string) string {
	if i := strings.IndexByte(s, '['); i >= 0 {
		return s[:i]
	}
	return strings.TrimRight(s, "0123456789")
}

// Bounds returns the first start and the last end of an event. Bounds returns zeros if there are no events.
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

// Merge joins the traces of several runs, whose times must be of the same clock.
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
