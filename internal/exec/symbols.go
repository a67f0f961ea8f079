package exec

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"hocket.example/hocket/fault"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/exec/image"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/trace"
	"hocket.example/hocket/ir"
)

// symbolizer translates marks into the program's names. The mark of a command is its index in the plan plus the product
// of the run's number and the number of commands; mark -1 belongs to the program's graph.
type symbolizer struct{ im *image.Image }

// describe returns the trace event for a mark.
func (s symbolizer) describe(id int64) trace.Event {
	n := int64(len(s.im.Plan.Cmds))
	i := id % n
	c := &s.im.Plan.Cmds[i]
	e := trace.Event{Run: id / n, ID: i, Name: s.name(c), Detail: s.im.Plan.Where(i),
		Group: trace.NoGroup, Class: class(c)}
	if g := s.im.Groups[int(i)]; g != nil {
		e.Name = g.Name
	}
	switch c.Kind {
	case plan.Copy:
		e.Bytes = c.Outs[0].Bytes()
	case plan.Collective:
		cmd := &s.im.Cmds[i]
		e.Group, e.Bytes = int(c.Coll), cmd.Channel.Moved(cmd.Seq, cmd.Part)
		e.Detail += ", by " + s.im.Algorithms[c.Coll]
	case plan.Group:
		for _, t := range c.Group {
			if !t.Send {
				e.Bytes += s.im.Plan.Pairs[t.Pair].Dst.Bytes()
			}
		}
	case plan.Input:
		e.Bytes = s.im.Inputs[c.IO].Of(c.Rank).Ref.Bytes()
	case plan.Output:
		e.Bytes = s.im.Outputs[c.IO].Of(c.Rank).Ref.Bytes()
	}
	return e
}

func class(c *plan.Cmd) trace.Class {
	switch c.Kind {
	case plan.Compute:
		return trace.Compute
	case plan.Collective, plan.Group:
		return trace.Comm
	case plan.Copy:
		if c.Peer >= 0 && c.Peer != c.Rank {
			return trace.Comm
		}
		return trace.Compute
	case plan.Input, plan.Output:
		return trace.IO
	}
	return trace.Sync
}

// profiled returns the name that a profiler shows for the work of a mark; mark -1 stands for the graph.
func (s symbolizer) profiled(id int64) string {
	if id < 0 {
		return s.im.Plan.Func + " as one graph"
	}
	c := &s.im.Plan.Cmds[id%int64(len(s.im.Plan.Cmds))]
	at := &s.im.Plan.Sites[c.Site]
	text := at.Text
	if c.Kind == plan.Input || c.Kind == plan.Output || text == "" {
		text = s.name(c)
	}
	return fmt.Sprintf("%s (line %d, rank %d)", text, at.Pos.Line, c.Rank)
}

// name returns the name of the command in the program's language.
func (s symbolizer) name(c *plan.Cmd) string {
	switch c.Kind {
	case plan.Compute:
		return s.im.Plan.Called(c)
	case plan.Collective:
		return s.im.Plan.Colls[c.Coll].Op.String()
	case plan.WaitEvent, plan.WaitCounter:
		return ir.OpWait.String()
	case plan.Input, plan.Output:
		return c.Kind.String()
	}
	if op := s.im.Plan.Sites[c.Site].Op; op != ir.InvalidOp {
		return op.String()
	}
	return c.Kind.String()
}

// between returns text that names the statement of mark id or, if last is greater, the statements of all marks from id
// to last. replayed reports whether runs are graph launches.
func (s symbolizer) between(id, last int64, replayed bool) string {
	switch {
	case id < 0 && replayed:
		return "in the graph of the program (to find the command, run without a graph and with a trace)"
	case last <= id:
		return s.im.Plan.Where(id)
	}
	return fmt.Sprintf("one of the commands from %s to %s (to find it, trace the run)", s.im.Plan.Where(id),
		s.im.Plan.Where(last))
}

// explain rewrites an error of the machine with the program's names. replayed reports whether runs are graph launches.
func (s symbolizer) explain(err error, replayed bool) error {
	var run *fault.RunError
	var broke *device.Fault
	var dead *device.Deadlock
	var expired *device.Expired
	switch {
	case errors.As(err, &run):
		return err
	case errors.As(err, &broke):
		return failedAt(broke.Rank, broke.Stream, s.between(broke.ID, broke.Last, replayed), broke.Err, err)
	case errors.As(err, &dead):
		return &fault.RunError{Rank: -1, Message: "deadlock: no stream can continue" + s.listBlocked(dead.Blocked), Err: err}
	}
	message := err.Error()
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		message = "the time limit was reached"
	case errors.Is(err, context.Canceled):
		message = "cancelled"
	}
	if errors.As(err, &expired) {
		message += s.listStanding(expired.At, replayed)
	}
	return &fault.RunError{Rank: -1, Message: message, Err: err}
}

// failedAt returns the error of a run for which one statement is known as the cause. why is the part of error err that
// the message contains.
func failedAt(rank int, stream, statement string, why, err error) error {
	return &fault.RunError{Rank: rank, Stream: stream, Statement: statement, Err: err,
		Message: fmt.Sprintf("rank %d, stream %s: %s: %v", rank, stream, statement, why)}
}

// issueError wraps the error of a stream that refused a command. If the world has ended, err already contains the
// reason, and explain uses it.
func (s symbolizer) issueError(err error, id int64) error {
	if errors.Is(err, device.ErrAborted) {
		return err
	}
	c := &s.im.Plan.Cmds[id%int64(len(s.im.Plan.Cmds))]
	return failedAt(int(c.Rank), s.im.Plan.Streams[c.Stream].Name, s.im.Plan.Where(id), err, err)
}

// mostListed is the largest number of streams that an error lists.
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

// listStreams returns a list of the texts of n streams.
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
