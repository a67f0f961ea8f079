// Package world is a set of processes that run one program together: who they are, what they
// agree on, memory and counters that they share, and how each learns that another has failed.
//
// The processes of a world are on one node or several. Those of a node share memory. Each process
// has a socket to each other, a connection over TCP where that is of another node: the end of a
// socket's stream without a goodbye is the death of a process, and ends the world for all. A
// heartbeat, in shared memory or over TCP, tells a stopped process from a busy one. No wait is
// without a bound, and every error names the process that is to blame.
package world

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"hocket.example/hocket/internal/ranklist"
)

const (
	// MaxProcesses bounds the size of a world.
	MaxProcesses = 256
	// MaxValue bounds what a process hands to Agree.
	MaxValue = 4 << 10

	// beat is the time between two heartbeats of a process.
	beat = 100 * time.Millisecond
)

// Options say who this process is, and how long it waits for others.
type Options struct {
	Rank, Size       int // this process, and how many there are; Size 0 means a world of one
	Local, LocalSize int // likewise among the processes of this node; LocalSize 0 means all

	// ID names the run: equal in all its processes, different in any other run of the user.
	ID string
	// Dir is where processes meet: a folder of this host that all of them can write.
	// Default: XDG_RUNTIME_DIR, or else the folder for temporary files.
	Dir string

	// Meet is where processes of several nodes meet, "host:port": process 0 listens there. Empty for a world
	// of one node. With it Local and LocalSize are found out.
	Meet string
	// MeetFD is the descriptor of a socket that listens at Meet already; 0 for none.
	MeetFD int
	// Node names this process's node: processes of a world with equal names share memory. Default: the host's name.
	Node string
	// Token is what processes show each other over TCP: the same in all of them, and secret.
	Token string
	// Cert and Key are PEM files of a certificate and its key, the same in all processes: with them
	// connections between nodes are encrypted, and each end shows that certificate. Empty for none.
	Cert, Key string

	// JoinTimeout is how long Join waits for others. Default: 60 s.
	JoinTimeout time.Duration
	// StallTimeout (T) is how long a process may show no sign of life, or not arrive where
	// others wait for it. Default: 30 s.
	StallTimeout time.Duration

	// Ranks are the program's ranks that this process owns. Default, if no process names any:
	// ranks are split evenly, in contiguous blocks.
	Ranks []int
}

// phase is called between steps that others can see. Tests end processes there.
var phase = func(name string) {}

// member is a process of a world.
type member struct {
	Rank int
	PID  int
	Host string
}

// failed is an error that blames a member.
func (m member) failed(format string, args ...any) *PeerError {
	return &PeerError{Rank: m.Rank, PID: m.PID, Host: m.Host, Why: fmt.Sprintf(format, args...)}
}

// World is a process's end of a set of processes. Its methods may be called by several
// goroutines, but Agree, Same and Step must come in the same order in all processes.
type World struct {
	o     Options
	self  member
	ranks map[int]int // the owner of each of the program's ranks; nil for an even split

	agreeing chan struct{} // held by the caller of Agree
	agreed   uint64        // calls of Agree; guarded by agreeing

	steps struct {
		sync.Mutex
		n uint64 // calls of Step
	}

	silent []atomic.Int32 // for how many beats each process has shown no sign of life

	mu      sync.Mutex
	changed chan struct{} // closed and replaced when anything below changes
	peers   []*peer       // by rank; nil for this process, and for those that have not joined
	secret  *secret       // where there are several nodes
	called  *rollCall     // of process 0
	roll    []arrival     // by rank, where there are several nodes: complete before there are peers
	nodes   []int         // by rank, likewise
	page    *page         // nil until all have joined
	err     error         // why the world ended
	left    bool

	done    chan struct{} // closed with err set
	running sync.WaitGroup

	wires wires
}

// peer is another process of the world. World.mu guards what changes.
type peer struct {
	member
	link  link
	ready bool // it has joined: it has a link to all
	left  bool // it has said goodbye

	inbox []agreement         // what it has sent to Agree and is not read yet
	files map[string]*os.File // what it has exported and nobody has imported yet
}

const (
	maxInbox = 4    // a process can be ahead of another by one call of Agree
	maxFiles = 1024 // exports of a process that wait for their import
)

// Join makes this process a member of the world of o.Size processes, and returns when all have
// joined. It ends after JoinTimeout, or with ctx, with an error that names who is absent; or
// as soon as a process fails that had come.
func Join(ctx context.Context, o Options) (*World, error) {
	o.Size = max(o.Size, 1)
	o.LocalSize = cmp.Or(o.LocalSize, o.Size)
	o.JoinTimeout = cmp.Or(o.JoinTimeout, 60*time.Second)
	o.StallTimeout = cmp.Or(o.StallTimeout, 30*time.Second)
	switch {
	case o.Size > MaxProcesses:
		return nil, fmt.Errorf("a world of %d processes: at most %d are supported", o.Size, MaxProcesses)
	case o.Rank < 0 || o.Rank >= o.Size:
		return nil, fmt.Errorf("rank %d is not in a world of %d processes", o.Rank, o.Size)
	case o.LocalSize != o.Size && o.Meet == "":
		return nil, fmt.Errorf("%d of the world's %d processes are on this node, and it is not said where the nodes "+
			"meet: set HOCKET_MEET to host:port in all processes, the host of process 0 and a port that is free there",
			o.LocalSize, o.Size)
	case o.Size > 1 && o.ID == "":
		return nil, errors.New("a world of several processes needs the run's ID")
	case o.Size > 1 && o.Meet != "" && (o.Token == "" || len(o.Token) > maxToken):
		return nil, fmt.Errorf("a token of %d bytes, want 1 to %d: processes of several nodes show each other the run's "+
			"token; set HOCKET_TOKEN to the same secret text in all of them", len(o.Token), maxToken)
	case (o.Cert == "") != (o.Key == ""):
		return nil, errors.New("TLS needs a certificate and its key: set HOCKET_TLS_CERT and HOCKET_TLS_KEY")
	}
	host, err := os.Hostname()
	if err != nil {
		host = "this host"
	}
	w := &World{
		o:        o,
		self:     member{Rank: o.Rank, PID: os.Getpid(), Host: host},
		agreeing: make(chan struct{}, 1),
		changed:  make(chan struct{}),
		peers:    make([]*peer, o.Size),
		silent:   make([]atomic.Int32, o.Size),
		done:     make(chan struct{}),
	}
	if o.Size > 1 {
		err = w.meet(ctx)
	} else {
		w.page, err = newPage(1)
	}
	if err == nil {
		err = w.agreeRanks(ctx)
	}
	if err != nil {
		w.Abort(err)
		err = w.Err() // the first cause, if another process had one
		w.Leave()
		return nil, err
	}
	return w, nil
}

// Process returns the rank of this process among the world's.
func (w *World) Process() int { return w.o.Rank }

// Processes returns how many processes the world has.
func (w *World) Processes() int { return w.o.Size }

// Local returns the rank of this process among those of its node.
func (w *World) Local() int { return w.o.Local }

// Node returns the node of a process. Nodes are numbered in the order of their first processes.
func (w *World) Node(process int) int {
	if w.nodes == nil {
		return 0
	}
	return w.nodes[process]
}

// Nodes returns how many nodes the world's processes are on.
func (w *World) Nodes() int {
	if w.nodes == nil {
		return 1
	}
	return 1 + slices.Max(w.nodes)
}

// OnHost returns how many processes are on this process's host, this one among them.
func (w *World) OnHost() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 1
	for _, p := range w.peers {
		if p != nil && p.Host == w.self.Host {
			n++
		}
	}
	return n
}

// near reports whether a process is of this node.
func (w *World) near(process int) bool { return w.Node(process) == w.Node(w.o.Rank) }

// StallTimeout returns T, the bound of waits for other processes.
func (w *World) StallTimeout() time.Duration { return w.o.StallTimeout }

// Done is closed when the world has ended: by Abort in any process, by a failure, or by Leave.
func (w *World) Done() <-chan struct{} { return w.done }

// Err returns why the world has ended, nil while it has not.
func (w *World) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Abort ends the world for all processes, unless it has ended. Others get cause as it is if it
// is a *PeerError or a *DisagreeError, or else as the *PeerError of this process.
func (w *World) Abort(cause error) {
	if cause == nil {
		cause = errors.New("aborted")
	}
	w.end(causeOf(w.self, cause), cause)
}

// end ends the world, in all processes, for the first cause that any of them has.
func (w *World) end(c cause, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return
	}
	if w.page != nil {
		if first, own := w.page.abort(w.o.Rank, c); !own {
			c, err = first, first.err()
		}
	}
	w.finish(err)
	message := encodeCause(c)
	for _, p := range w.peers {
		if p != nil && !p.left {
			p.link.post(message) // one that cannot take it finds the cause on the page
			p.link.hangUp()
		}
	}
}

// finish sets err. It is called with mu locked, once.
func (w *World) finish(err error) {
	w.err = err
	close(w.done)
	w.notify()
}

// notify wakes whoever is in await. It is called with mu locked.
func (w *World) notify() {
	close(w.changed)
	w.changed = make(chan struct{})
}

// await waits until ready, called with mu locked, returns true or an error, and no longer than
// ctx and the world last.
func (w *World) await(ctx context.Context, ready func() (bool, error)) error {
	for {
		w.mu.Lock()
		ok, err := ready()
		if !ok && err == nil {
			err = w.err
		}
		changed := w.changed
		w.mu.Unlock()
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

// Leave says goodbye to the other processes and gives back what the world holds. They may go
// on, but whatever waits for this process fails. It returns why the world had ended before, if
// it had. Segments and counters must not be used afterwards.
func (w *World) Leave() error {
	w.mu.Lock()
	if w.left {
		w.mu.Unlock()
		return nil
	}
	w.left = true
	err := w.err
	if err == nil {
		w.finish(ErrLeft)
	}
	peers := slices.Clone(w.peers)
	w.mu.Unlock()

	for _, p := range peers {
		if p == nil {
			continue
		}
		if err == nil {
			p.link.send(encodeBye(), time.Second) // one that has gone needs no goodbye
		}
		p.link.close()
		phase("within goodbye")
	}
	w.running.Wait()
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

// Owners returns the process that owns each of the program's ranks.
func (w *World) Owners(ranks int) ([]int, error) {
	if w.ranks == nil {
		if ranks < w.o.Size {
			return nil, fmt.Errorf("%d ranks for %d processes: each process needs at least one", ranks, w.o.Size)
		}
		owners := make([]int, ranks)
		for p := range w.o.Size {
			for r := p * ranks / w.o.Size; r < (p+1)*ranks/w.o.Size; r++ {
				owners[r] = p
			}
		}
		return owners, nil
	}
	if len(w.ranks) != ranks {
		return nil, fmt.Errorf("the program has %d ranks, the processes own %d", ranks, len(w.ranks))
	}
	owners := make([]int, ranks)
	for r := range owners {
		p, ok := w.ranks[r]
		if !ok {
			return nil, fmt.Errorf("no process owns rank %d of the program", r)
		}
		owners[r] = p
	}
	return owners, nil
}

// agreeRanks collects which process owns which of the program's ranks.
func (w *World) agreeRanks(ctx context.Context) error {
	text, err := encodeRanks(w.o.Ranks)
	if err != nil {
		return err
	}
	lists, err := w.Agree(ctx, "the ranks that processes own", text)
	if err != nil {
		return err
	}
	var without []int
	for p, text := range lists {
		ranks, err := decodeRanks(text)
		if err != nil {
			return w.member(p).failed("sent a malformed list of ranks: %v", err)
		}
		if len(ranks) == 0 {
			without = append(without, p)
			continue
		}
		if w.ranks == nil {
			w.ranks = map[int]int{}
		}
		for _, r := range ranks {
			if q, taken := w.ranks[r]; taken {
				return fmt.Errorf("processes %d and %d both own rank %d of the program", q, p, r)
			}
			w.ranks[r] = p
		}
	}
	if w.ranks != nil && without != nil {
		return fmt.Errorf("processes %s name no ranks of the program to own, others do", ranklist.String(without))
	}
	return nil
}

// member returns a process of the world; one that has not joined has no PID.
func (w *World) member(rank int) member {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case rank == w.o.Rank:
		return w.self
	case w.peers[rank] != nil:
		return w.peers[rank].member
	}
	return member{Rank: rank}
}

// watch shows that this process lives, and finds out when another does not, or has aborted.
func (w *World) watch() {
	tick := time.NewTicker(beat)
	defer tick.Stop()
	seen := make([]uint64, w.o.Size)
	for {
		select {
		case <-w.done:
			return
		case <-tick.C:
		}
		w.page.beat(w.o.Rank)
		w.tellFar()
		if c, aborted := w.page.cause(); aborted {
			w.end(c, c.err())
			return
		}
		for r := range seen {
			// Time is counted in own beats: a process that was stopped itself blames nobody for it.
			silent := int(w.silent[r].Add(1))
			if now := w.page.beats(r); now != seen[r] || r == w.o.Rank || w.hasLeft(r) {
				seen[r], silent = now, 0
				w.silent[r].Store(0)
			}
			if silent > w.patience() {
				w.Abort(w.stalled(r))
				return
			}
		}
	}
}

// tellFar tells processes of other nodes what those of this node find on the page. Where one cannot be told
// now, the next beat is soon.
func (w *World) tellFar() {
	if len(w.page.far) == 0 {
		return
	}
	message := w.page.pulse(w.o.Rank).encode()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.peers {
		if p != nil && !p.left && !w.near(p.Rank) {
			p.link.post(message)
		}
	}
}

// heard notes what a process of another node tells of itself, and compares its step with the own one.
func (w *World) heard(p *peer, m pulse) error {
	w.mu.Lock()
	page := w.page
	w.mu.Unlock()
	if w.near(p.Rank) {
		return errors.New("a process of this node tells what is on the page")
	}
	if page == nil { // before all have joined
		return nil
	}
	step := page.hear(p.Rank, m)
	if step == 0 {
		return nil
	}
	if mine, ok := page.recorded(w.o.Rank, step); ok && mine != m.text {
		err := w.disagree(fmt.Sprintf("step %d", step), mine, p.Rank, m.text)
		w.Abort(err)
	}
	return nil
}

// Blame returns the error of a process that something is waited for in vain: why is what it did not do. One
// that shows no sign of life, or has not begun the step that this process is in, is to blame first.
func (w *World) Blame(process int, why string) *PeerError {
	mine := w.page.steps(w.o.Rank)
	for r := range w.o.Size {
		if r != w.o.Rank && w.page.steps(r) < mine {
			process = r
		}
	}
	return w.blame(process, "%s", why)
}

// stalled blames a process that shows no sign of life.
func (w *World) stalled(rank int) *PeerError {
	d := time.Duration(w.silent[rank].Load()) * beat
	return w.member(rank).failed("stalled: no sign of life for %v, %s", d.Round(beat), w.page.last(rank))
}

// awaitPeers is await for what others do. It ends when none of those that late returns, after ready
// was called, has got on for T.
func (w *World) awaitPeers(ctx context.Context, late func() []int, ready func() (bool, error)) error {
	const looks = 10 // within T
	seen := make([]progress, w.o.Size)
	for r := range seen {
		seen[r] = w.page.progress(r)
	}
	for still := 0; ; still++ {
		bounded, cancel := context.WithTimeout(ctx, w.o.StallTimeout/looks)
		err := w.await(bounded, ready)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return err
		}
		for _, r := range late() {
			if now := w.page.progress(r); now != seen[r] {
				seen[r], still = now, -1
			}
		}
		if still == looks-1 {
			return err
		}
	}
}

// blame returns the error of a process that others wait for in vain. Where a process has stalled
// it is to blame: the one that is late may wait for it, too.
func (w *World) blame(late int, format string, args ...any) *PeerError {
	const many = 5 // beats that a busy machine does not lose
	stalled := late
	for r := range w.silent {
		if w.silent[r].Load() > w.silent[stalled].Load() {
			stalled = r
		}
	}
	why := fmt.Sprintf(format, args...)
	if w.silent[stalled].Load() < many {
		return w.member(late).failed("%s, %s", why, w.page.last(late))
	}
	e := w.stalled(stalled)
	if stalled == late {
		e.Why += "; it " + why
	} else {
		e.Why += fmt.Sprintf("; rank %d %s", late, why)
	}
	return e
}

// patience is how many beats T is.
func (w *World) patience() int { return int(max(w.o.StallTimeout/beat, 1)) }

func (w *World) hasLeft(rank int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.peers[rank] != nil && w.peers[rank].left
}

// listen handles what a peer sends, until its stream ends.
func (w *World) listen(p *peer) {
	for {
		m, fds, err := p.link.receive()
		if err == nil {
			err = w.handle(p, m, fds)
			if err == nil {
				continue
			}
			err = p.failed("sent a message that no hocket sends: %v", err)
		} else {
			err = p.failed("its process ended")
		}
		w.mu.Lock()
		gone := p.left || w.left
		w.mu.Unlock()
		if !gone {
			w.end(causeOf(w.self, err), err)
		}
		return
	}
}

// handle handles a message of a peer, with the files that came with it.
func (w *World) handle(p *peer, m message, fds []int) error {
	defer closeAll(fds) // those that are not taken
	switch m := m.(type) {
	case malformed:
		return m
	case aborted:
		w.end(m.cause, m.cause.err())
		return nil
	case bye:
		w.mu.Lock()
		defer w.mu.Unlock()
		p.left = true
		p.link.hangUp()
		w.notify()
		return nil
	case ready:
		return w.isReady(p, fds)
	case pulse:
		return w.heard(p, m)
	case wanted:
		if m.bytes == 0 || m.bytes > maxWire {
			return fmt.Errorf("%d bytes are wanted", m.bytes)
		}
		return w.want(wireEnd{p.Rank, m.wire}, int(m.bytes))
	case data:
		return w.arrived(wireEnd{p.Rank, m.wire}, m.bytes)
	case agreement:
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(p.inbox) == maxInbox {
			return errors.New("too many values to agree on")
		}
		p.inbox = append(p.inbox, m)
		w.notify()
		return nil
	case export:
		if len(fds) != 1 {
			return errors.New("an export without a file")
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if _, twice := p.files[m.key]; twice || len(p.files) == maxFiles {
			return fmt.Errorf("export of %q: exported twice, or too many", m.key)
		}
		if p.files == nil {
			p.files = map[string]*os.File{}
		}
		p.files[m.key] = os.NewFile(uintptr(take(&fds[0])), m.key)
		w.notify()
		return nil
	}
	return fmt.Errorf("a %T out of place", m)
}

// take takes a descriptor over from who would close it.
func take(fd *int) int {
	taken := *fd
	*fd = -1
	return taken
}
