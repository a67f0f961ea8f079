package world

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// detector is the failure detector. The detector finds processes that send no heartbeats or make no progress. When a
// wait times out, it determines which process is at fault.
type detector struct {
	mesh   *mesh
	world  *World
	silent []atomic.Int32 // for each process, the number of beats since its last heartbeat

	seen    []circleLink // the circle of waits with this process, as first observed; used only by watch
	circled int          // number of beats for which the circle has been observed
}

// watch sends this process's heartbeats, and detects processes that send none and processes that
// have aborted.
func (d *detector) watch() {
	tick := time.NewTicker(beat)
	defer tick.Stop()
	seen := make([]uint64, d.mesh.o.Size)
	for {
		select {
		case <-d.mesh.done:
			return
		case <-tick.C:
		}
		d.mesh.page.beat(d.mesh.o.Rank)
		d.sendPulse()
		if d.mesh.o.group == nil && d.world.grouped.Load() {
			d.findCircle()
		}
		if c, aborted := d.mesh.page.cause(); aborted {
			d.mesh.end(c, c.err())
			return
		}
		for r := range seen {
			// Time is measured in beats of this process. A process that was itself stopped therefore does not blame
			// other processes.
			silent := int(d.silent[r].Add(1))
			if now := d.mesh.page.beats(r); now != seen[r] || r == d.mesh.o.Rank || d.mesh.hasLeft(r) {
				seen[r], silent = now, 0
				d.silent[r].Store(0)
			}
			if silent > d.patience() {
				d.mesh.abort(d.stalled(r))
				return
			}
		}
	}
}

// sendPulse sends this process's heartbeat and step to processes of other nodes. Processes of this node read them from
// the page. If a message cannot be sent now, the next beat sends another one.
func (d *detector) sendPulse() {
	if len(d.mesh.page.far) == 0 {
		return
	}
	message := d.mesh.page.pulse(d.mesh.o.Rank).encode()
	d.mesh.mu.Lock()
	defer d.mesh.mu.Unlock()
	for _, p := range d.mesh.peers {
		if p != nil && !p.left && !d.mesh.near(p.Rank) {
			p.link.post(message)
		}
	}
}

// receivePulse records the heartbeat and step of a process on another node, and compares its step with
// that of this process.
func (d *detector) receivePulse(p *peer, m pulse) error {
	d.mesh.mu.Lock()
	page := d.mesh.page
	d.mesh.mu.Unlock()
	if d.mesh.near(p.Rank) {
		return errors.New("another process of this node reports what the page contains")
	}
	if page == nil { // not all processes have joined yet
		return nil
	}
	step := page.storePulse(p.Rank, m)
	if step == 0 {
		return nil
	}
	if mine, ok := page.recorded(d.mesh.o.Rank, step); ok && mine.what != m.texts[0] {
		d.mesh.running.Go(func() { d.mesh.abort(d.differ(step)) }) // this goroutine must continue to receive
	}
	return nil
}

// differ returns the error for a step that is not the same in all processes. differ waits a short time for processes
// that have not begun the step, because their values show which process differs from the others.
func (d *detector) differ(step uint64) *DisagreeError {
	e := &DisagreeError{}
	for i := 0; ; i++ {
		e.Values = e.Values[:0]
		for r := range d.mesh.o.Size {
			if theirs, ok := d.mesh.page.recorded(r, step); ok {
				e.Values = append(e.Values, d.mesh.value(r, step, theirs.what))
			}
		}
		if len(e.Values) == d.mesh.o.Size || i == patienceRounds {
			break
		}
		select {
		case <-d.mesh.done: // another process has reported the difference first
			i = patienceRounds - 1
		case <-time.After(patiencePause):
		}
	}
	e.What = d.mesh.nextOf(e.Values, step)
	e.Values = withoutDetails(e.Values)
	return e
}

// withoutDetails removes text in brackets, such as hashes, at the ends of values, unless different values would become
// equal.
func withoutDetails(values []Value) []Value {
	short := slices.Clone(values)
	for i, v := range values {
		if j := strings.LastIndex(v.Value, " ["); j > 0 && strings.HasSuffix(v.Value, "]") {
			short[i].Value = v.Value[:j]
		}
	}
	for i := range values {
		for j := range i {
			if short[i].Value == short[j].Value && values[i].Value != values[j].Value {
				return values
			}
		}
	}
	return short
}

// stalled returns an error that blames a process that sends no heartbeats.
func (d *detector) stalled(rank int) *PeerError {
	silent := time.Duration(d.silent[rank].Load()) * beat
	return d.mesh.member(rank).failed("stalled: no progress and no reaction for %v, %s", silent.Round(beat),
		d.mesh.page.last(rank))
}

// awaitPeers is like await, for an action of the process from, or of all other processes if from is Any. late returns
// the processes for which the most recent call of ready was still waiting. awaitPeers returns an error when none of
// these has made progress for StallTimeout.
func (d *detector) awaitPeers(ctx context.Context, from int, late func() []int, ready func() (bool, error)) error {
	const looks = 10 // number of times that awaitPeers looks for progress within StallTimeout
	seen := make([]progress, d.mesh.o.Size)
	for r := range seen {
		seen[r] = d.mesh.page.progress(r)
	}
	defer d.waits(from)()
	for still := 0; ; still++ {
		bounded, cancel := context.WithTimeout(ctx, d.mesh.o.StallTimeout/looks)
		err := d.mesh.await(bounded, ready)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return err
		}
		for _, r := range late() {
			if now := d.mesh.page.progress(r); now != seen[r] {
				seen[r], still = now, -1
			}
		}
		if still == looks-1 {
			return err
		}
	}
}

// blame returns the error about a process that did not arrive in time. If some process has stalled, the error blames
// the stalled process instead, because the late process may also be waiting for it.
func (d *detector) blame(late int, format string, args ...any) *PeerError {
	const many = 5 // number of beats that a process may miss because the machine is busy
	stalled := late
	for r := range d.silent {
		if d.silent[r].Load() > d.silent[stalled].Load() {
			stalled = r
		}
	}
	why := fmt.Sprintf(format, args...)
	if d.silent[stalled].Load() < many {
		return d.mesh.member(late).failed("%s, %s; the limit is HOCKET_STALL_TIMEOUT, or stall_timeout", why,
			d.mesh.page.last(late))
	}
	e := d.stalled(stalled)
	if stalled == late {
		e.Why += "; it " + why
	} else {
		e.Why += fmt.Sprintf("; rank %d %s", d.mesh.o.outer(late), why)
	}
	return e
}

// patience returns the number of beats in StallTimeout.
func (d *detector) patience() int { return int(max(d.mesh.o.StallTimeout/beat, 1)) }

// Any selects all other processes. A wait uses Any if it is not known which process will raise a counter.
const Any = -1

// vigil measures the time for which a process that is not in the waiting process's step has made no progress.
type vigil struct {
	beats int
	rank  int
	seen  progress
}

// check returns an error if it is useless to wait longer for the process from.
func (d *detector) check(ctx context.Context, from int, v *vigil) error {
	if err := d.mesh.err(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		if from != Any {
			err = fmt.Errorf("waiting for rank %d, %s: %w", d.mesh.o.outer(from), d.mesh.page.last(from), err)
		}
		return err
	}
	mine := d.mesh.page.steps(d.mesh.o.Rank)
	late := d.late(from, mine)
	if late < 0 {
		v.beats = 0
		return nil
	}
	if d.mesh.hasLeft(late) {
		return d.mesh.leftBy(d.mesh.peers[late])
	}
	if now := d.mesh.page.progress(late); v.rank != late || v.seen != now {
		*v = vigil{rank: late, seen: now}
	}
	if v.beats <= d.patience() {
		return nil
	}
	d.mesh.abort(d.blame(late, "did not begin %s within %v", d.mesh.page.step(d.mesh.o.Rank, mine),
		d.mesh.o.StallTimeout))
	return d.mesh.err()
}

// late returns a process that prevents a step from ending; -1 if there is none. A process that prevents this has left
// the world, or has not begun the step. If from is Any, a process that left during the step or later may have finished
// its part. A process that left is then ignored, unless all other processes have left.
func (d *detector) late(from int, step uint64) int {
	if from != Any {
		if from != d.mesh.o.Rank && (d.mesh.hasLeft(from) || d.mesh.page.steps(from) < step) {
			return from
		}
		return -1
	}
	left := 0
	for r := range d.mesh.o.Size {
		switch {
		case r == d.mesh.o.Rank:
		case d.mesh.page.steps(r) < step:
			return r
		case d.mesh.hasLeft(r):
			left++
		}
	}
	if left > 0 && left == d.mesh.o.Size-1 {
		return (d.mesh.o.Rank + 1) % d.mesh.o.Size
	}
	return -1
}

// until waits until pending returns nil, under the conditions of Counters.Wait. Until then, pending returns a channel
// that is closed when its result may have changed.
func (d *detector) until(ctx context.Context, process int, pending func() <-chan struct{}) error {
	tick := time.NewTicker(beat)
	defer tick.Stop()
	defer d.waits(process)()
	for v := (vigil{}); ; {
		c := pending()
		if c == nil {
			return nil
		}
		select {
		case <-c:
			continue
		default:
		}
		if err := d.check(ctx, process, &v); err != nil {
			if pending() == nil { // the data have arrived, because a process sends all its data before it leaves
				return nil
			}
			return err
		}
		select {
		case <-c:
		case <-ctx.Done():
		case <-d.mesh.done:
		case <-tick.C:
			v.beats++
		}
	}
}
