package trace

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
)

// chromeEvent is an entry of the Chrome trace event format, which Perfetto and chrome://tracing read.
type chromeEvent struct {
	Name string         `json:"name"`
	Cat  string         `json:"cat,omitempty"`
	Ph   string         `json:"ph"`
	PID  int            `json:"pid"`
	TID  int            `json:"tid"`
	TS   float64        `json:"ts"`
	Dur  *float64       `json:"dur,omitempty"`
	ID   int            `json:"id,omitempty"`
	BP   string         `json:"bp,omitempty"`
	Args map[string]any `json:"args,omitempty"`
}

// Head is the information about a trace that WriteJSON writes in a field "hocket" next to the events.
type Head struct {
	Virtual bool  `json:"virtual,omitempty"`
	Clocks  []int `json:"clocks,omitempty"`
}

// WriteJSON writes the trace in the Chrome trace event format. Each rank is a process and each stream a thread.
// Times are in microseconds from the first event. For each collective, arrows lead from the member that arrived
// last to the other members.
func (t *Trace) WriteJSON(w io.Writer) error {
	out := bufio.NewWriter(w)
	head, err := json.Marshal(Head{t.Virtual, t.Clocks})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, `{"displayTimeUnit":"ns","hocket":%s,"traceEvents":[`, head)
	for i, e := range t.chromeEvents() {
		if i > 0 {
			out.WriteByte(',')
		}
		line, err := json.Marshal(e)
		if err != nil {
			return err
		}
		out.WriteByte('\n')
		out.Write(line)
	}
	fmt.Fprint(out, "\n]}\n")
	return out.Flush()
}

func (t *Trace) chromeEvents() []chromeEvent {
	var out []chromeEvent
	origin, _ := t.Bounds()
	places := map[instance][]place{}
	for _, l := range t.lanes() {
		if l.index == 0 {
			out = append(out, chromeEvent{Name: "process_name", Ph: "M", PID: l.rank,
				Args: map[string]any{"name": fmt.Sprintf("rank %d", l.rank)}})
		}
		out = append(out, chromeEvent{Name: "thread_name", Ph: "M", PID: l.rank, TID: l.index,
			Args: map[string]any{"name": l.stream}})
		for _, e := range l.events {
			out = append(out, e.chrome(l.index, origin))
			if e.Group != NoGroup {
				k := instance{e.Run, e.Group}
				places[k] = append(places[k], place{e, l.index})
			}
		}
	}
	return append(out, flows(places, origin)...)
}

// place is an event, with the number of its thread in the exported trace.
type place struct {
	*Event
	tid int
}

// flows returns, for each collective, arrows from the member that entered it last to the other members.
func flows(places map[instance][]place, origin int64) []chromeEvent {
	keys := slices.SortedFunc(maps.Keys(places), func(a, b instance) int {
		return cmp.Or(cmp.Compare(a.run, b.run), cmp.Compare(a.group, b.group))
	})
	var out []chromeEvent
	id := 0
	for _, k := range keys {
		last := slices.MaxFunc(places[k], func(a, b place) int { return cmp.Compare(a.Start, b.Start) })
		at := float64(last.Start-origin) / 1e3
		for _, m := range places[k] {
			if m.Event == last.Event || m.End < last.Start {
				continue
			}
			id++
			e := chromeEvent{Name: "last to come", Cat: "flow", Ph: "s", PID: last.Rank, TID: last.tid, TS: at, ID: id}
			out = append(out, e)
			e.Ph, e.BP, e.PID, e.TID = "f", "e", m.Rank, m.tid
			out = append(out, e)
		}
	}
	return out
}

func (e *Event) chrome(tid int, origin int64) chromeEvent {
	dur := float64(e.Duration()) / 1e3
	args := map[string]any{"run": e.Run, "id": e.ID}
	if e.Tie != nil {
		args["tie"] = e.Tie
	}
	if e.Detail != "" {
		args["statement"] = e.Detail
	}
	if e.Bytes > 0 {
		args["bytes"] = e.Bytes
	}
	if e.Group != NoGroup { // together with the run, the group identifies the collective
		args["collective"] = e.Group
	}
	return chromeEvent{Name: e.Name, Cat: e.Class.String(), Ph: "X", PID: e.Rank, TID: tid,
		TS: float64(e.Start-origin) / 1e3, Dur: &dur, Args: args}
}

// lane holds the events of one stream.
type lane struct {
	rank   int
	stream string
	index  int // the number of the stream within its rank
	events []*Event
}

// lanes returns a lane for each stream, in the order of Sort.
func (t *Trace) lanes() []lane {
	sorted := Merge(t)
	var out []lane
	for i := range sorted.Events {
		e := &sorted.Events[i]
		last := len(out) - 1
		if last < 0 || out[last].rank != e.Rank || out[last].stream != e.Stream {
			index := 0
			if last >= 0 && out[last].rank == e.Rank {
				index = out[last].index + 1
			}
			out = append(out, lane{rank: e.Rank, stream: e.Stream, index: index})
			last++
		}
		out[last].events = append(out[last].events, e)
	}
	return out
}
