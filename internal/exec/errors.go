package exec

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"hocket.example/hocket/internal/device"
)

// RunError is the failure of a run. Unwrap gives the cause: a *device.Fault, a
// *device.Deadlock, a context's error.
type RunError struct {
	Message string
	Err     error
}

// Error names ranks, streams, statements and their places.
func (e *RunError) Error() string { return e.Message }

// Unwrap returns the cause.
func (e *RunError) Unwrap() error { return e.Err }

// explain says in the program's words what the machine said in its own. replayed tells whether runs come by graph.
func (s symbolizer) explain(err error, replayed bool) error {
	var run *RunError
	var fault *device.Fault
	var dead *device.Deadlock
	var expired *device.Expired
	switch {
	case errors.As(err, &run):
		return err
	case errors.As(err, &fault):
		return &RunError{Message: fmt.Sprintf("rank %d, stream %s: %s: %v", fault.Rank, fault.Stream, s.between(fault.ID, fault.Last, replayed), fault.Err), Err: err}
	case errors.As(err, &dead):
		return &RunError{Message: "deadlock: nothing can run any more" + s.listBlocked(dead.Blocked), Err: err}
	}
	message := err.Error()
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		message = "the time ran out"
	case errors.Is(err, context.Canceled):
		message = "cancelled"
	}
	if errors.As(err, &expired) {
		message += s.listStanding(expired.At, replayed)
	}
	return &RunError{Message: message, Err: err}
}

// issueError wraps what a stream refused; a world that has ended already knows
// a better reason, which explain finds in err.
func (s symbolizer) issueError(err error, id int64) error {
	if errors.Is(err, device.ErrAborted) {
		return err
	}
	c := &s.im.Plan.Cmds[id%int64(len(s.im.Plan.Cmds))]
	message := fmt.Sprintf("rank %d, stream %s: %s: %v", c.Rank, s.im.Plan.Streams[c.Stream].Name, s.im.Plan.Where(id), err)
	return &RunError{Message: message, Err: err}
}

// mostListed is how many streams an error shows.
const mostListed = 8

func (s symbolizer) listBlocked(blocked []device.Blocked) string {
	return listStreams(len(blocked), func(i int) string {
		b := &blocked[i]
		text := fmt.Sprintf("rank %d, stream %s: %s", b.Rank, b.Stream, s.im.Plan.Where(b.ID))
		if b.On != "" {
			text += " waits for " + b.On
		}
		return text
	})
}

func (s symbolizer) listStanding(at []device.Standing, replayed bool) string {
	return listStreams(len(at), func(i int) string {
		a := &at[i]
		return fmt.Sprintf("rank %d, stream %s: %s %s", a.Rank, a.Stream, s.between(a.ID, a.Last, replayed), a.Does)
	})
}

// listStreams lists what is to be said of n streams.
func listStreams(n int, text func(i int) string) string {
	var list strings.Builder
	for i := range min(n, mostListed) {
		list.WriteString("; " + text(i))
	}
	if n > mostListed {
		fmt.Fprintf(&list, "; and %d more streams", n-mostListed)
	}
	return list.String()
}
