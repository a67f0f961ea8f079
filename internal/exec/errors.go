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

// explain says in the program's words what the machine said in its own.
func (p *Program) explain(err error) error {
	var run *RunError
	var fault *device.Fault
	var dead *device.Deadlock
	var expired *device.Expired
	switch {
	case errors.As(err, &run):
		return err
	case errors.As(err, &fault):
		return &RunError{Message: fmt.Sprintf("rank %d, stream %s: %s: %v", fault.Rank, fault.Stream, p.between(fault.ID, fault.Last), fault.Err), Err: err}
	case errors.As(err, &dead):
		return &RunError{Message: "deadlock: nothing can run any more" + p.listBlocked(dead.Blocked), Err: err}
	}
	message := err.Error()
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		message = "the time ran out"
	case errors.Is(err, context.Canceled):
		message = "cancelled"
	}
	if errors.As(err, &expired) {
		message += p.listStanding(expired.At)
	}
	return &RunError{Message: message, Err: err}
}

// issueError wraps what a stream refused; a world that has ended already knows
// a better reason, which breakDown finds in err.
func (p *Program) issueError(err error, id int64) error {
	if errors.Is(err, device.ErrAborted) {
		return err
	}
	c := &p.im.Plan.Cmds[id%int64(len(p.im.Plan.Cmds))]
	message := fmt.Sprintf("rank %d, stream %s: %s: %v", c.Rank, p.im.Plan.Streams[c.Stream].Name, p.im.Plan.Where(id), err)
	return &RunError{Message: message, Err: err}
}

// mostListed is how many streams an error shows.
const mostListed = 8

func (p *Program) listBlocked(blocked []device.Blocked) string {
	return listStreams(len(blocked), func(i int) string {
		b := &blocked[i]
		text := fmt.Sprintf("rank %d, stream %s: %s", b.Rank, b.Stream, p.im.Plan.Where(b.ID))
		if b.On != "" {
			text += " waits for " + b.On
		}
		return text
	})
}

func (p *Program) listStanding(at []device.Standing) string {
	return listStreams(len(at), func(i int) string {
		a := &at[i]
		return fmt.Sprintf("rank %d, stream %s: %s %s", a.Rank, a.Stream, p.between(a.ID, a.Last), a.Does)
	})
}

// listStreams lists what is to be said of n streams.
func listStreams(n int, text func(i int) string) string {
	var s strings.Builder
	for i := range min(n, mostListed) {
		s.WriteString("; " + text(i))
	}
	if n > mostListed {
		fmt.Fprintf(&s, "; and %d more streams", n-mostListed)
	}
	return s.String()
}

// between names the statements behind marks, where the mark is one from id to
// last if last is the greater.
func (p *Program) between(id, last int64) string {
	switch {
	case id < 0 && p.replay.ready():
		return "within the graph of the program (run without a graph, and with a trace, to see which command)"
	case last <= id:
		return p.im.Plan.Where(id)
	}
	return fmt.Sprintf("from %s to %s (trace the run to see which)", p.im.Plan.Where(id), p.im.Plan.Where(last))
}
