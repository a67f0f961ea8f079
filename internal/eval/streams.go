package eval

import (
	"errors"
	"fmt"

	"hocket.example/hocket/ir"
)

// stream is a queue of one rank's tasks, run in order.
type stream struct {
	rank  int
	name  string
	tasks []task
	done  int
}

// task is one resolved operation. run does all of it and returns nil, or does
// nothing visible and returns *pending; then it is tried again later.
type task struct {
	stmt *ir.Stmt
	uses []*storage
	run  func() error
}

// mark is a point in a stream's work: everything issued to it so far.
type mark struct {
	stream *stream
	count  int
}

func (s *stream) mark() mark { return mark{s, len(s.tasks)} }

// reached returns *pending until the work before the mark is done.
func (k mark) reached() error {
	if k.stream.done >= k.count {
		return nil
	}
	return &pending{fmt.Sprintf("the work issued to %s", k.stream.name)}
}

// event is the last mark recorded in host order; nil before.
type event struct{ last *mark }

// schedule runs ready heads, round robin, until nothing is left.
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

// drain runs a stream's tasks until one is not ready, and counts them.
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
		s.tasks[s.done] = task{} // let go of what it holds
		s.done++
		n++
	}
	return n, nil
}

const maxBlockedShown = 32

// deadlock reports what every blocked head waits for.
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
				d = m.prog.Diag("deadlock", t.stmt.Pos, "the program deadlocks: every stream with work left is waiting")
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
