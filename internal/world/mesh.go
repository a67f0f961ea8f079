package world

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"hocket.example/hocket/internal/ranklist"
)

// mesh holds a process's links to all others. The mesh also records the end of the world, which any process can cause.
type mesh struct {
	o      Options
	self   member
	handle func(*peer, message, []int) error // handles a message of a peer, with the files received with it

	mu      sync.Mutex
	changed chan struct{} // closed and replaced when any of the fields below changes
	peers   []*peer       // by rank; nil for this process, and for processes that have not joined
	nodes   []int         // by rank, if there are several nodes; complete before any process becomes a peer
	page    *page         // nil until all have joined
	why     error         // the reason why the world has ended; nil before that
	left    bool

	launched *launched // nil if no launcher listens
	release  func()    // ends this process's claim to its rank

	done    chan struct{} // closed when why is set
	running sync.WaitGroup
}

// peer is another process of the world. The mesh's mu guards its mutable fields.
type peer struct {
	member
	link  link
	ready bool // whether it has joined, that is, has links to all others
	left  bool // whether it has left the world

	inbox []agreement         // values that it has sent for Agree and that have not been read yet
	files map[string]*os.File // files that it has exported and that have not been imported yet
}

const (
	maxInbox = 4    // largest number of a process's unread values; it can be only one Agree ahead
	maxFiles = 1024 // largest number of a process's exports that wait for their import
)

// node returns the node of a process.
func (m *mesh) node(process int) int {
	if m.nodes == nil {
		return 0
	}
	return m.nodes[process]
}

// near reports whether a process is on this node.
func (m *mesh) near(process int) bool { return m.node(process) == m.node(m.o.Rank) }

// err returns the reason why the world has ended, or nil if it has not ended.
func (m *mesh) err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.why
}

// abort ends the world for all processes, unless it has already ended.
func (m *mesh) abort(cause error) {
	if cause == nil {
		cause = errors.New("aborted")
	}
	c := causeOf(m.self, cause)
	if errors.Is(cause, ErrInterrupted) && c.Peer != nil && c.Peer.Rank == m.self.Outer {
		c.Peer.Why = ErrInterrupted.Error() + m.lastOf(&peer{member: m.self})
	}
	m.end(c, cause)
}

// end ends the world in all processes. The cause is c unless a process has ended the world before for another cause.
func (m *mesh) end(c cause, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.why != nil {
		return
	}
	// A process that ends the world ends its groups a moment later. If the process exits in between, the members of a
	// group first observe its exit, but the cause is on the page of the world.
	if m.o.group != nil {
		if first, ended := m.o.group.of.mesh.page.cause(); ended {
			c, err = first, first.err()
		}
	}
	if m.page != nil {
		if first, own := m.page.abort(m.o.Rank, c); !own {
			c, err = first, first.err()
		}
	}
	m.finish(err)
	m.launched.ended(c)
	message := encodeCause(c)
	for _, p := range m.peers {
		if p != nil && !p.left {
			p.link.post(message) // a process that cannot receive the message reads the cause from the page
			p.link.hangUp()
		}
	}
}

// finish sets why. It must be called only once, with mu locked.
func (m *mesh) finish(err error) {
	m.why = err
	close(m.done)
	m.notify()
}

// notify wakes all calls of await. The caller holds mu.
func (m *mesh) notify() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// await waits until ready returns true or an error, or until ctx or the world ends. await calls ready with mu locked.
func (m *mesh) await(ctx context.Context, ready func() (bool, error)) error {
	for {
		m.mu.Lock()
		ok, err := ready()
		if !ok && err == nil {
			err = m.why
		}
		changed := m.changed
		m.mu.Unlock()
		if ok || err != nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// leave reports to the other processes that this process leaves, and closes all links. leave returns the reason why the
// world had already ended; nil if the world had not ended.
func (m *mesh) leave() error {
	m.mu.Lock()
	if m.left {
		m.mu.Unlock()
		return nil
	}
	m.left = true
	err := m.why
	if err == nil {
		m.finish(ErrLeft)
	}
	peers := slices.Clone(m.peers)
	m.mu.Unlock()

	for _, p := range peers {
		if p == nil {
			continue
		}
		if err == nil {
			p.link.send(encodeBye(), time.Second) // fails only if the process has ended
		}
		p.link.close()
		phase("within goodbye")
	}
	m.launched.close()
	m.release()
	m.running.Wait()
	for _, p := range peers {
		if p == nil {
			continue
		}
		for _, f := range p.files {
			f.Close()
		}
	}
	return err
}

// member returns the identity of a process. If the process has not joined, it has no PID.
func (m *mesh) member(rank int) member {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case rank == m.o.Rank:
		return m.self
	case m.peers[rank] != nil:
		return m.peers[rank].member
	}
	return member{Rank: rank, Outer: m.o.outer(rank)}
}

// list formats a list of processes. Processes of a group are named by their ranks in the outer
// world.
func (m *mesh) list(ranks []int) string {
	outer := make([]int, len(ranks))
	for i, r := range ranks {
		outer[i] = m.o.outer(r)
	}
	return ranklist.String(outer)
}

func (m *mesh) hasLeft(rank int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.peers[rank] != nil && m.peers[rank].left
}

// listen handles the messages of a peer until its link is closed.
func (m *mesh) listen(p *peer) {
	for {
		msg, fds, err := p.link.receive()
		if err == nil {
			err = m.handle(p, msg, fds)
			if err == nil {
				continue
			}
			err = p.failed("sent an invalid message: %v", err)
		} else {
			err = p.failed("its process ended%s", m.lastOf(p))
		}
		m.mu.Lock()
		gone := p.left || m.left
		m.mu.Unlock()
		if !gone {
			m.end(causeOf(m.self, err), err)
		}
		return
	}
}

// lastOf describes, after a comma, the last step of a peer that has ended; empty if not all
// processes have joined.
func (m *mesh) lastOf(p *peer) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.page == nil || m.page.steps(p.Rank) == 0 {
		return ""
	}
	return ", " + m.page.last(p.Rank)
}

// leftBy returns the error of a wait for a peer that has left the world.
func (m *mesh) leftBy(p *peer) error {
	m.mu.Lock()
	page := m.page
	m.mu.Unlock()
	if page == nil {
		return p.failed("left the world")
	}
	step := page.steps(m.o.Rank)
	if e := m.alone(step); e != nil {
		return e
	}
	why := page.failing(p.Rank)
	if why == "" {
		why = "its program ended"
		if e, ok := page.recorded(p.Rank, page.steps(p.Rank)); ok && e.call != "" {
			why += "; its last call was " + e.text()
		}
	}
	return p.failed("left the world before %s: %s", page.step(m.o.Rank, step), why)
}

// alone returns an error if this process, one of at least three, is the only one that begins a step, because all others
// have left without an error. Otherwise it returns nil. alone waits a short time for processes that may be about to
// leave.
func (m *mesh) alone(step uint64) error {
	e := &DisagreeError{}
	for i := 0; i < patienceRounds; i++ {
		e.Values = e.Values[:0]
		waiting := false
		for r := range m.o.Size {
			own, ok := m.page.recorded(r, step)
			switch {
			case r == m.o.Rank && ok:
				e.Values = append(e.Values, m.value(r, step, own.what))
			case ok || m.page.failing(r) != "":
				return nil
			case m.hasLeft(r):
				e.Values = append(e.Values, m.value(r, 0, "no more calls"))
			default:
				waiting = true
			}
		}
		if !waiting {
			break
		}
		select {
		case <-m.done:
			return nil
		case <-time.After(patiencePause):
		}
	}
	if len(e.Values) < m.o.Size || m.o.Size < 3 {
		return nil
	}
	e.What = m.nextOf(e.Values, step)
	e.Values = withoutDetails(e.Values)
	return e
}

// nextOf returns words for the step that processes begin with different values: "the next call" of the program or, if
// all calls are unknown, the step. A single call of the program may take several steps.
func (m *mesh) nextOf(values []Value, step uint64) string {
	if slices.ContainsFunc(values, func(v Value) bool { return v.Call != "" }) {
		return "the next call" + m.o.ofGroup()
	}
	return fmt.Sprintf("step %d%s", step, m.o.ofGroup())
}

// These constants set how long an error waits for the values of other processes, which show which
// process differs.
const (
	patienceRounds = 50
	patiencePause  = 10 * time.Millisecond
)

// value returns a process's value at a step, and the call of the program that the process is executing.
func (m *mesh) value(rank int, step uint64, text string) Value {
	who := m.member(rank)
	v := Value{Rank: who.Outer, Value: text, PID: who.PID, Host: who.Host}
	if e, ok := m.page.recorded(rank, step); ok {
		v.Call, v.At = e.call, e.place
	}
	return v
}

// disagree returns a DisagreeError between this process and another.
func (m *mesh) disagree(what, mine string, rank int, theirs string) *DisagreeError {
	e := &DisagreeError{What: what, Values: []Value{{Rank: m.o.outer(m.o.Rank), Value: mine},
		{Rank: m.o.outer(rank), Value: theirs}}}
	if rank < m.o.Rank {
		e.Values[0], e.Values[1] = e.Values[1], e.Values[0]
	}
	return e
}

// broadcast sends a message to all others.
func (m *mesh) broadcast(message []byte) error {
	for r := range m.o.Size {
		if r == m.o.Rank {
			continue
		}
		if err := m.sendTo(r, message); err != nil {
			return err
		}
		phase("within " + kinds[message[0]])
	}
	return nil
}

// sendTo sends a message, with the files fds, to a process. If that process has not read earlier messages, sendTo waits
// for at most StallTimeout.
func (m *mesh) sendTo(rank int, message []byte, fds ...int) error {
	m.mu.Lock()
	p, left, err := m.peers[rank], m.peers[rank].left, m.why
	m.mu.Unlock()
	switch {
	case err != nil:
		return err
	case left:
		return m.leftBy(p)
	}
	err = p.link.send(message, m.o.StallTimeout, fds...)
	switch {
	case err == nil:
		return nil
	case isGone(err): // ignored, because the error about the closed link has a more precise cause
		_ = m.await(context.Background(), func() (bool, error) { return p.left, nil })
		if err := m.err(); err != nil {
			return err
		}
		return m.leftBy(p)
	case errors.Is(err, errTimeout):
		return p.failed("stalled: has not read its messages for %v", m.o.StallTimeout)
	}
	return p.failed("cannot be reached: %v", err)
}

func (m *mesh) linkTo(process int) link {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.peers[process].link
}

// absent returns an error that blames the processes that had not arrived when ctx ended.
func (m *mesh) absent(ctx context.Context, what string, absent []int) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("waiting for ranks %s to %s: %w", m.list(absent), what, ctx.Err())
	}
	why := fmt.Sprintf("absent: did not %s within %v", what, m.o.JoinTimeout)
	if len(absent) > 1 {
		why += fmt.Sprintf("; ranks %s are absent", m.list(absent))
	}
	return m.member(absent[0]).failed("%s", why+m.o.awaiting())
}
