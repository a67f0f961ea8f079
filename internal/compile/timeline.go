package compile

import (
	"io"
	"strings"

	"hocket.example/hocket/internal/trace"
)

// mostDrawn is the maximum length of a timeline in microseconds, about thirty years. Longer timelines would overflow,
// because they are drawn with nanoseconds in 64 bits.
const mostDrawn = 1e15

// WriteTimeline draws the predicted run of one rank in width columns.
func (e *Explanation) WriteTimeline(w io.Writer, width int) error {
	if e.Time > mostDrawn {
		_, err := io.WriteString(w, "No timeline is drawn, because the predicted time of the run is more than thirty years.\n")
		return err
	}
	return e.Trace().Timeline(w, width)
}

// Trace returns the predicted run of one rank as a trace.
func (e *Explanation) Trace() *trace.Trace {
	t := &trace.Trace{Ranks: 1}
	for i, s := range e.Timeline {
		name, _, _ := strings.Cut(s.Name, " ")
		class := trace.Compute
		if s.Comm {
			class = trace.Comm
		}
		t.Events = append(t.Events, trace.Event{Stream: s.Stream, ID: int64(i), Name: name, Detail: s.Name, Class: class,
			Start: int64(s.Start * 1e3), End: int64(s.End * 1e3), Group: trace.NoGroup})
	}
	t.Sort()
	return t
}
