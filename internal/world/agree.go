package world

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
)

// Agree is an all-gather. Every process calls it with the same description of a step, like Step, and with a value of at
// most MaxValue bytes. Agree returns the values of all processes, ordered by rank. Agree waits for the other processes,
// so no work may be in flight. If a process is at another step, the error is a *DisagreeError. If a process does not
// call Agree and makes no progress for StallTimeout (see Step, At), the error is a *PeerError. An error ends the world,
// because it is then unknown which processes received the values.
func (w *World) Agree(ctx context.Context, step string, value []byte) ([][]byte, error) {
	if len(value) > MaxValue || len(step) > maxStep {
		return nil, fmt.Errorf("agreement on %.80q: a value of %d bytes; at most %d are supported", step, len(value), MaxValue)
	}
	select {
	case w.agreeing <- struct{}{}:
		defer func() { <-w.agreeing }()
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-w.mesh.done:
		return nil, w.mesh.err()
	}
	values, err := w.gather(ctx, step, value)
	if err != nil {
		w.mesh.abort(err)
		return nil, w.mesh.err()
	}
	return values, nil
}

func (w *World) gather(ctx context.Context, step string, value []byte) ([][]byte, error) {
	if err := w.Step(step); err != nil {
		return nil, err
	}
	w.agreed++
	mine := agreement{seq: w.agreed, step: step, value: value}
	if err := w.mesh.broadcast(mine.encode()); err != nil {
		return nil, err
	}
	values := make([][]byte, w.mesh.o.Size)
	values[w.mesh.o.Rank] = value
	var late []int
	var gone *peer
	err := w.detector.awaitPeers(ctx, everyOther, func() []int { return late }, func() (bool, error) {
		late = late[:0]
		for r, p := range w.mesh.peers {
			switch {
			case p == nil || values[r] != nil:
			case len(p.inbox) > 0:
				got := p.inbox[0]
				p.inbox = p.inbox[1:]
				if got.seq != mine.seq || got.step != mine.step {
					return false, w.mesh.disagree("the next step", mine.text(), r, got.text())
				}
				values[r] = got.value
			case p.left:
				gone = p
				return false, ErrLeft
			default:
				late = append(late, r)
			}
		}
		return len(late) == 0, nil
	})
	switch {
	case gone != nil:
		return nil, w.mesh.leftBy(gone)
	case err == nil:
		return values, nil
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return nil, fmt.Errorf("waiting for ranks %s to reach step %q: %w", w.mesh.list(late), step, err)
	case errors.Is(err, context.DeadlineExceeded):
		more := ""
		if len(late) > 1 {
			more = fmt.Sprintf(" (as ranks %s)", w.mesh.list(late[1:]))
		}
		return nil, w.detector.blame(late[0], "did not reach %s within %v%s",
			w.mesh.page.step(w.mesh.o.Rank, w.mesh.page.steps(w.mesh.o.Rank)), w.mesh.o.StallTimeout, more)
	}
	return nil, err
}

// Same returns nil if all processes call it with the same value. If the values differ, Same returns the same
// *DisagreeError in all processes. The world remains usable.
func (w *World) Same(ctx context.Context, what, value string) error {
	return w.same(ctx, what, value, func(int, int) bool { return true })
}

// same compares the values of the processes p and q for which with(p, q) is true. It reports the first difference.
func (w *World) same(ctx context.Context, what, value string, with func(p, q int) bool) error {
	if call, place := CallOf(ctx); call != "" {
		w.Calls(call, place)
	}
	text := value
	if len(text) > MaxValue {
		sum := sha256.Sum256([]byte(value))
		text = fmt.Sprintf("%s… (sha256 %s)", text[:MaxValue/2], hex.EncodeToString(sum[:]))
	}
	values, err := w.Agree(ctx, what, []byte(text))
	if err != nil {
		return err
	}
	step := w.mesh.page.steps(w.mesh.o.Rank)
	for p, mine := range values {
		e := &DisagreeError{What: what + w.mesh.o.ofGroup()}
		same := true
		for r, v := range values {
			if with(p, r) {
				e.Values = append(e.Values, w.mesh.value(r, step, string(v)))
				same = same && string(v) == string(mine)
			}
		}
		if !same {
			e.Values = withoutDetails(e.Values)
			return e
		}
	}
	return nil
}

// SameList returns nil if all processes call it with the same lines. If the lists differ, SameList returns the same
// *DisagreeError in all processes, which describes the first line that differs. The world remains usable.
func (w *World) SameList(ctx context.Context, what string, lines []string) error {
	return w.sameList(ctx, what, lines, func(int, int) bool { return true })
}

// SameListOfNode is like SameList, but compares only the lists of processes on the same node. All processes of the
// world must call SameListOfNode.
func (w *World) SameListOfNode(ctx context.Context, what string, lines []string) error {
	return w.sameList(ctx, what, lines, func(p, q int) bool { return w.mesh.node(p) == w.mesh.node(q) })
}

// sameList compares the lists of the processes p and q for which with(p, q) is true.
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
			return w.mesh.member(r).failed("sent a malformed list of %s", what)
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

// Calls records the current call of this process's program: the name of the called function and the position of the
// call. Errors in other processes contain both. Processes may make different calls.
func (w *World) Calls(call, place string) {
	e := entry{call: call, place: place}
	if last := w.call.Load(); last == nil || *last != e {
		w.call.Store(&entry{call: call, place: place})
	}
}

// Failed records the error with which this process's call has ended; nil if it succeeded. The world remains usable. If
// other processes wait for this process until a timeout, or until it leaves, they report the error.
func (w *World) Failed(err error) {
	why := ""
	if err != nil {
		why = err.Error()
	}
	w.mesh.page.idle(w.mesh.o.Rank)
	if w.mesh.page.failing(w.mesh.o.Rank) == cutText(why, maxError) {
		return
	}
	w.mesh.page.fails(w.mesh.o.Rank, why)
	w.detector.sendPulse()
}

// Step records that this process begins its next step, such as a batch of runs. Step compares the description with
// those that the other processes passed for the step with the same number. If all descriptions are equal, Step does not
// wait. If descriptions differ, one of the processes ends the world with a *DisagreeError, which lists all processes
// that begin the step soon.
func (w *World) Step(what string) error {
	w.steps.Lock()
	defer w.steps.Unlock()
	if err := w.mesh.err(); err != nil {
		return err
	}
	w.steps.n++
	e := entry{what: what}
	if call := w.call.Load(); call != nil {
		e.call, e.place = call.call, call.place
	}
	mine := w.mesh.page.record(w.mesh.o.Rank, w.steps.n, e)
	w.detector.sendPulse()
	for r := range w.mesh.o.Size {
		if !w.mesh.page.matches(r, w.steps.n, mine.what) {
			w.mesh.abort(w.detector.differ(w.steps.n))
			return w.mesh.err()
		}
	}
	return nil
}

// At records the command that this process has reached in its step. Other processes wait longer for a process that
// makes progress. If a wait for this process fails, the error contains the command.
func (w *World) At(command int) { w.mesh.page.at(w.mesh.o.Rank, command) }

type callKey struct{}

// WithCall returns a context that carries the name of a call of the program and its place in the source.
func WithCall(ctx context.Context, call, place string) context.Context {
	return context.WithValue(ctx, callKey{}, entry{call: call, place: place})
}

// CallOf returns the call and place that WithCall stored in ctx, or empty strings if there are none.
func CallOf(ctx context.Context) (call, place string) {
	e, _ := ctx.Value(callKey{}).(entry)
	return e.call, e.place
}
