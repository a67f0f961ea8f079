package world

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"

	"hocket.example/hocket/internal/ranklist"
)

// Agree is an all-gather: every process calls it with the same step, as it calls Step, and a value
// of at most MaxValue bytes, and gets the values of all, by rank. It waits for the others, so it is
// for times when nothing is in flight. A process at another step is a *DisagreeError; one that does
// not come, nor get on (see Step, At), for T is a *PeerError. An error ends the world: who got the values and who did
// not is then unknown.
func (w *World) Agree(ctx context.Context, step string, value []byte) ([][]byte, error) {
	if len(value) > MaxValue || len(step) > maxStep {
		return nil, fmt.Errorf("agreement on %.80q: a value of %d bytes; at most %d are supported", step, len(value), MaxValue)
	}
	select {
	case w.agreeing <- struct{}{}:
		defer func() { <-w.agreeing }()
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-w.done:
		return nil, w.Err()
	}
	values, err := w.gather(ctx, step, value)
	if err != nil {
		w.Abort(err)
		return nil, w.Err()
	}
	return values, nil
}

func (w *World) gather(ctx context.Context, step string, value []byte) ([][]byte, error) {
	if err := w.Step(step); err != nil {
		return nil, err
	}
	w.agreed++
	mine := agreement{seq: w.agreed, step: step, value: value}
	if err := w.broadcast(mine.encode()); err != nil {
		return nil, err
	}
	values := make([][]byte, w.o.Size)
	values[w.o.Rank] = value
	var late []int
	err := w.awaitPeers(ctx, func() []int { return late }, func() (bool, error) {
		late = late[:0]
		for r, p := range w.peers {
			switch {
			case p == nil || values[r] != nil:
			case len(p.inbox) > 0:
				got := p.inbox[0]
				p.inbox = p.inbox[1:]
				if got.seq != mine.seq || got.step != mine.step {
					return false, w.disagree("the next step", mine.text(), r, got.text())
				}
				values[r] = got.value
			case p.left:
				return false, p.failed("left the world before %q", step)
			default:
				late = append(late, r)
			}
		}
		return len(late) == 0, nil
	})
	switch {
	case err == nil:
		return values, nil
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return nil, fmt.Errorf("waiting for ranks %s to reach %q: %w", ranklist.String(late), step, err)
	case errors.Is(err, context.DeadlineExceeded):
		more := ""
		if len(late) > 1 {
			more = fmt.Sprintf(" (as ranks %s)", ranklist.String(late[1:]))
		}
		return nil, w.blame(late[0], "did not reach %q within %v%s", step, w.o.StallTimeout, more)
	}
	return nil, err
}

// disagree is a DisagreeError of this process and another.
func (w *World) disagree(what, mine string, rank int, theirs string) *DisagreeError {
	e := &DisagreeError{What: what, Values: []Value{{Rank: w.o.Rank, Value: mine}, {Rank: rank, Value: theirs}}}
	if rank < w.o.Rank {
		e.Values[0], e.Values[1] = e.Values[1], e.Values[0]
	}
	return e
}

// broadcast sends a message to all others.
func (w *World) broadcast(message []byte, fds ...int) error {
	for r := range w.o.Size {
		if r == w.o.Rank {
			continue
		}
		if err := w.sendTo(r, message, fds...); err != nil {
			return err
		}
		phase("within " + kinds[message[0]])
	}
	return nil
}

// sendTo sends a message, with files (fds), to a process. It waits only where that process has not
// read for long, and no longer than T.
func (w *World) sendTo(rank int, message []byte, fds ...int) error {
	w.mu.Lock()
	p, left, err := w.peers[rank], w.peers[rank].left, w.err
	w.mu.Unlock()
	switch {
	case err != nil:
		return err
	case left:
		return p.failed("has left the world")
	}
	err = p.link.send(message, w.o.StallTimeout, fds...)
	switch {
	case err == nil:
		return nil
	case isGone(err): // the end of its stream says more
		_ = w.await(context.Background(), func() (bool, error) { return p.left, nil })
		if err := w.Err(); err != nil {
			return err
		}
		return p.failed("has left the world")
	case errors.Is(err, errTimeout):
		return p.failed("stalled: has not read for %v", w.o.StallTimeout)
	}
	return p.failed("cannot be reached: %v", err)
}

// Same returns nil if all processes call it with the same value, and the same *DisagreeError in
// all of them if they do not. The world goes on.
func (w *World) Same(ctx context.Context, what, value string) error {
	return w.same(ctx, what, value, func(int, int) bool { return true })
}

// same compares the values of processes that with holds of, and tells of the first that differ.
func (w *World) same(ctx context.Context, what, value string, with func(p, q int) bool) error {
	text := value
	if len(text) > MaxValue {
		sum := sha256.Sum256([]byte(value))
		text = fmt.Sprintf("%s… (sha256 %s)", text[:MaxValue/2], hex.EncodeToString(sum[:]))
	}
	values, err := w.Agree(ctx, what, []byte(text))
	if err != nil {
		return err
	}
	for p, mine := range values {
		e := &DisagreeError{What: what}
		same := true
		for r, v := range values {
			if with(p, r) {
				e.Values = append(e.Values, Value{Rank: r, Value: string(v)})
				same = same && string(v) == string(mine)
			}
		}
		if !same {
			return e
		}
	}
	return nil
}

// SameList returns nil if all processes call it with the same lines, and the same *DisagreeError in all of them, about
// the first line that differs, if they do not. The world goes on.
func (w *World) SameList(ctx context.Context, what string, lines []string) error {
	return w.sameList(ctx, what, lines, func(int, int) bool { return true })
}

// SameListOfNode is SameList among the processes of each node. All processes of the world call it.
func (w *World) SameListOfNode(ctx context.Context, what string, lines []string) error {
	return w.sameList(ctx, what, lines, func(p, q int) bool { return w.Node(p) == w.Node(q) })
}

// sameList compares the lists of processes that with holds of.
func (w *World) sameList(ctx context.Context, what string, lines []string, with func(p, q int) bool) error {
	h := sha256.New()
	for _, l := range lines {
		fmt.Fprintf(h, "%d %s\n", len(l), l)
	}
	mine := binary.LittleEndian.AppendUint32(nil, uint32(len(lines)))
	all, err := w.Agree(ctx, what, h.Sum(mine))
	if err != nil {
		return err
	}
	same, most := true, uint32(0)
	for r, v := range all {
		if len(v) != len(mine)+sha256.Size {
			return w.member(r).failed("sent a malformed list of %s", what)
		}
		for q := range r {
			same = same && (string(v) == string(all[q]) || !with(r, q))
		}
		most = max(most, binary.LittleEndian.Uint32(v))
	}
	for i := 0; !same && i < int(most); i++ {
		line := "nothing more"
		if i < len(lines) {
			line = lines[i]
		}
		if err := w.same(ctx, what, line, with); err != nil {
			return err
		}
	}
	return nil
}

// Step records that this process begins its next step, such as a batch of runs, and compares it
// with what others record under the same number. It does not wait. Of two processes that differ,
// the later one ends the world with a *DisagreeError.
func (w *World) Step(what string) error {
	w.steps.Lock()
	defer w.steps.Unlock()
	if err := w.Err(); err != nil {
		return err
	}
	w.steps.n++
	mine := w.page.record(w.o.Rank, w.steps.n, what)
	w.tellFar()
	for r := range w.o.Size {
		theirs, ok := w.page.recorded(r, w.steps.n)
		if ok && theirs != mine {
			err := w.disagree(fmt.Sprintf("step %d", w.steps.n), mine, r, theirs)
			w.Abort(err)
			return w.Err()
		}
	}
	return nil
}

// At records how far this process is in its step: others wait longer for one that gets on, and show where
// it is if they wait in vain.
func (w *World) At(command int) { w.page.at(w.o.Rank, command) }
