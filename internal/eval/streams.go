package eval

import (
	"errors"
	"fmt"

	"hocket.example/hocket/ir"
)

// stream is a queue of one rank's tasks, which are executed in order.
type stream struct {
	rank  int
	name  string
	tasks []task
	done  int
}

// task is one operation whose operands are known. The function run of a task either performs the whole operation and
// returns nil, or has no visible effect and returns *pending. If run returns *pending, it is called again later.
type task struct {
	stmt *ir.Stmt
	uses []*storage
	run  func() error
}

// mark identifies a point in a stream: the tasks that were issued to the stream before it.
type mark struct {
	stream *stream
	count  int
}

func (s *stream) mark() mark { return mark{s, len(s.tasks)} }

// reached returns *pending until all tasks before the mark are complete.
func (k mark) reached() error {
	if k.stream.done >= k.count {
		return nil
	}
	return &pending{fmt.Sprintf("the work issued to %s", k.stream.name)}
}

// event holds the last mark that was recorded in host order, or nil if none was.
type event struct{ last *mark }

// schedule visits the streams in round-robin order and runs the tasks that are ready, until all queues are empty.
func (m *machine) schedule() error {
	for {
		moved, left := false, false
		for _, r := range m.ranks {
			for i := 0; i < len(r.streams); i++ {
				n, err := m.drain(r.streams[i])
				if err != nil {
					return err
				}
				moved = moved || n > 0
				left = left || r.streams[i].done < len(r.streams[i].tasks)
			}
		}
		switch {
		case !left:
			return nil
		case !moved:
			return m.deadlock()
		}
	}
}

// drain runs a stream's tasks until one is not ready, and returns the number of tasks that ran.
func (m *machine) drain(s *stream) (int, error) {
	n := 0
	for s.done < len(s.tasks) {
		if err := m.ctx.Err(); err != nil {
			return n, err
		}
		t := &s.tasks[s.done]
		err := t.run()
		var p *pending
		if errors.As(err, &p) {
			return n, nil
		}
		if err != nil {
			return n, m.located(t.stmt, err)
		}
		for _, st := range t.uses {
			st.close()
		}
		s.tasks[s.done] = task{} // allows the task's memory to be released
		s.done++
		n++
	}
	return n, nil
}

const maxBlockedShown = 32

// deadlock returns an error that lists the condition for which each blocked task waits.
func (m *machine) deadlock() error {
	var d *ir.Diagnostic
	blocked := 0
	for _, r := range m.ranks {
		for _, s := range r.streams {
			if s.done == len(s.tasks) {
				continue
			}
			blocked++
			t := s.tasks[s.done]
			what := fmt.Sprintf("rank %d, %s: %s waits for %v", s.rank, s.name, t.stmt.Op, t.run())
			if d == nil {
				d = m.prog.Diag("deadlock", t.stmt.Pos, "the program deadlocks: every stream that has work left "+
					"waits for another")
			}
			if blocked <= maxBlockedShown {
				d.Notes = append(d.Notes, ir.Note{Pos: t.stmt.Pos, Message: what})
			}
		}
	}
	if blocked > maxBlockedShown {
		d.Notes = append(d.Notes, ir.Note{Message: fmt.Sprintf("and %d more streams", blocked-maxBlockedShown)})
	}
	return d
}
