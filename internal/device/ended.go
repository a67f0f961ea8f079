package device

import (
	"fmt"
	"time"
)

// Aborted is the error of every call on a world that has ended. It wraps ErrAborted and the first cause.
type Aborted struct{ Cause error }

// Error returns a message with the cause.
func (e *Aborted) Error() string { return e.Cause.Error() }

// Unwrap returns the cause.
func (e *Aborted) Unwrap() error { return e.Cause }

// Is reports whether target is ErrAborted.
func (e *Aborted) Is(target error) bool { return target == ErrAborted }

// Expired reports that a context ended before the work was finished.
type Expired struct {
	// Err is the context.Context's error, and Cause is its cause.
	Err, Cause error
	// At describes, for each stream with unfinished work, the operation that the stream executes or waits for.
	At []Standing
}

// Standing describes the current operation of a stream with unfinished work, or its operation when its world ended.
type Standing struct {
	Rank   int
	Stream string
	ID     int64  // id of the innermost Begin mark; -1 for none
	Last   int64  // if greater than ID, the mark is one of ID to Last
	Does   string // for example "waits for counter 3 ≥ 2 (now 1)" or "still runs"
	// Since is the time at which the stream began this operation; zero if unknown.
	Since time.Time
}

// String returns a text with the rank, the stream, the mark and the activity.
func (s Standing) String() string {
	return fmt.Sprintf("rank %d, stream %s%s %s", s.Rank, s.Stream, MarkText(s.ID, s.Last), s.Does)
}

// Error returns a message with the context's error, its cause and up to eight streams.
func (e *Expired) Error() string {
	s := e.Err.Error()
	if e.Cause != nil && e.Cause != e.Err {
		s += " (" + e.Cause.Error() + ")"
	}
	const most = 8
	for i, at := range e.At {
		if i == most {
			return fmt.Sprintf("%s; and %d more streams", s, len(e.At)-most)
		}
		s += "; " + at.String()
	}
	return s
}

// Unwrap returns the context's error and its cause.
func (e *Expired) Unwrap() []error { return []error{e.Err, e.Cause} }

// MarkText returns a phrase that names the Begin mark id, or the marks from id to last, for use in a message about a
// stream. It returns "" if id is -1.
func MarkText(id, last int64) string {
	switch {
	case id < 0:
		return ""
	case last > id:
		return fmt.Sprintf(", marks %d to %d", id, last)
	}
	return fmt.Sprintf(", mark %d", id)
}
