package trace

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
)

// chromeEvent is an entry of the Chrome trace event format, which Perfetto
// and chrome://tracing read.
type chromeEvent struct {
	Name string         `json:"name"`
	Cat  string         `json:"cat,omitempty"`
	Ph   string         `json:"ph"`
	PID  int            `json:"pid"`
	TID  int            `json:"tid"`
	TS   float64        `json:"ts"`
	Dur  *float64       `json:"dur,omitempty"`
	Args map[string]any `json:"args,omitempty"`
}

// WriteJSON writes the trace in the Chrome trace event format: a process per
// rank, a thread per stream, times in microseconds from the first event.
func (t *Trace) WriteJSON(w io.Writer) error {
	out := bufio.NewWriter(w)
	fmt.Fprint(out, `{"displayTimeUnit":"ns","traceEvents":[`)
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
	for _, l := range t.lanes() {
		if l.index == 0 {
			out = append(out, chromeEvent{Name: "process_name", Ph: "M", PID: l.rank, Args: map[string]any{"name": fmt.Sprintf("rank %d", l.rank)}})
		}
		out = append(out, chromeEvent{Name: "thread_name", Ph: "M", PID: l.rank, TID: l.index, Args: map[string]any{"name": l.stream}})
		for _, e := range l.events {
			out = append(out, e.chrome(l.index, origin))
		}
	}
	return out
}

func (e *Event) chrome(tid int, origin int64) chromeEvent {
	dur := float64(e.Duration()) / 1e3
	args := map[string]any{"run": e.Run}
	if e.Detail != "" {
		args["statement"] = e.Detail
	}
	if e.Bytes > 0 {
		args["bytes"] = e.Bytes
	}
	if e.Group != NoGroup { // with the run, what its other members are found by
		args["collective"] = e.Group
	}
	return chromeEvent{Name: e.Name, Cat: e.Class.String(), Ph: "X", PID: e.Rank, TID: tid,
		TS: float64(e.Start-origin) / 1e3, Dur: &dur, Args: args}
}

// lane is the events of one stream.
type lane struct {
	rank   int
	stream string
	index  int // among the rank's streams
	events []*Event
}

// lanes returns the streams in the order of Sort, each with its events.
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
