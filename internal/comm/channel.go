package comm

import (
	"errors"
	"fmt"

	"hocket.example/hocket/internal/device"
)

// Channel runs the collectives that one team issues on one stream of each
// member, in one order that is the same in every run.
//
// Instances run by schedules share two memories on each member, of two halves
// each that are used in turn: staging, which its member writes and peers read,
// and slots, one for each peer, which that peer writes and the member reads. And
// they share 3·n counters: element i counts what member i told it, element n+i
// how often member i has read its staging, element 2n+i how often member i has
// read what it pushed to it. Counters are never reset. Each is raised by the same
// number in every run, so the value to await in run k is a constant plus k times
// that number, and runs may follow each other without a barrier.
//
// Those run by launches of the machine's own go through one device.Team, opened
// when the first of them is met, which sees to all that by itself. Both kinds
// mix: streams keep them in order.
type Channel struct {
	dispatch *Dispatch
	world    device.World
	members  []Member
	insts    []Instance
	choices  []*choice
	team     device.Team // nil until it is needed
	teamErr  error       // why there is none

	halfBytes int64 // of staging
	slotBytes int64 // of one slot of a half
	half      int   // that the next schedule uses
	staging   []device.Memory
	slots     []device.Memory       // nil without pushes
	owner     map[device.Memory]int // of staging and slots
	counters  []device.Counters
	// plans[i][m] are the steps of member m in instance i; moved likewise the
	// bytes that come from peers.
	plans [][][]step
	moved [][]int64

	// While building: how often in this run the first member told the second.
	told [][]int64
	// staged and pushed record which members have read what was written to staging and to slots.
	staged, pushed *ledger
	// scratch is where each member's steps of one piece are collected.
	scratch [][]step
}

// ledger counts, while building, the acknowledgements by which writers know that
// readers are done with a memory.
type ledger struct {
	base int // the counters' first element
	// acked[r][w] is how often in this run reader r acknowledged writer w.
	acked [][]int64
	// awaited[w][r] is the most acknowledgements of r that w has awaited.
	awaited [][]int64
	// lastUse[w][half][r] is what acked[r][w] was after w's last use of half.
	lastUse [][2][]int64
}

func newLedger(base, n int) *ledger {
	l := &ledger{base: base, acked: square(n, 0), awaited: square(n, -1), lastUse: make([][2][]int64, n)}
	for w := range l.lastUse {
		l.lastUse[w] = [2][]int64{make([]int64, n), make([]int64, n)}
	}
	return l
}

// least returns how many acknowledgements of reader r, by this run's count,
// writer w has to await before it writes half: those up to its last use. Before
// the first use in a run that is all of the run before, which this run's count
// calls zero. False when it has awaited as many.
func (l *ledger) least(w, half, r int) (int64, bool) {
	n := l.lastUse[w][half][r]
	if n <= l.awaited[w][r] {
		return 0, false
	}
	l.awaited[w][r] = n
	return n, true
}

// use notes that w used half for r, which acknowledges that as its latest.
func (l *ledger) use(w, half, r int) { l.lastUse[w][half][r] = l.acked[r][w] }

// InstanceError says which instance of a channel cannot be run.
type InstanceError struct {
	Index int
	Err   error
}

// Error says why; the caller knows which instance it is better than its number.
func (e *InstanceError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *InstanceError) Unwrap() error { return e.Err }

// Design checks the instances, in channel order, and chooses how each is run.
// It reserves nothing yet but what a team takes. Its errors are *InstanceError.
func (d *Dispatch) Design(members []Member, insts []Instance) (*Channel, error) {
	c := &Channel{dispatch: d, world: d.world, members: members, insts: insts}
	apart, nodes := d.apart(members), d.nodes(members)
	for i := range insts {
		insts[i].apart, insts[i].nodes = apart, nodes
		err := insts[i].check(len(members))
		var x *choice
		if err == nil {
			x, err = d.choose(&insts[i], c.openTeam)
		}
		if err != nil {
			return nil, errors.Join(&InstanceError{i, err}, c.Close())
		}
		c.choices = append(c.choices, x)
		c.normalise(i)
	}
	c.measure()
	return c, nil
}

// measure says how large halves of staging and slots have to be.
func (c *Channel) measure() {
	c.halfBytes, c.slotBytes = 0, 0
	for i, x := range c.choices {
		if x.schedule == nil {
			continue
		}
		for _, in := range pieces(x.schedule, &c.insts[i]) {
			c.halfBytes = max(c.halfBytes, alignUp(x.schedule.Staging(&in)))
			if p, ok := x.schedule.(pusher); ok {
				c.slotBytes = max(c.slotBytes, alignUp(p.Slot(&in)), 256)
			}
		}
	}
}

// pieces cuts an instance as its schedule wants it.
func pieces(a Algorithm, in *Instance) []Instance {
	if s, ok := a.(splitter); ok {
		return s.Split(in)
	}
	return []Instance{*in}
}

// alignUp rounds up to what device memory is aligned to.
func alignUp(n int64) int64 { return (n + 255) &^ 255 }

// StagingBytes returns the device memory that the channel takes on each member:
// all of it after Open, before at least what schedules need.
func (c *Channel) StagingBytes() int64 {
	n := 2*c.halfBytes + 2*c.slotBytes*int64(len(c.members))
	if c.team != nil {
		n += c.team.Bytes()
	}
	return n
}

// Algorithm returns the name of the algorithm chosen for instance i.
func (c *Channel) Algorithm(i int) string { return c.choices[i].Tuning.Algo }

// Choice returns how instance i is run and why.
func (c *Channel) Choice(i int) Choice { return c.choices[i].Choice }

// Moved returns the bytes that member m gets from peers in instance i. Of
// launches of the machine's own it is what their kind of algorithm moves.
func (c *Channel) Moved(i, m int) int64 { return c.moved[i][m] }

// Precompile has the machine begin with what Open will wait for, where it can: a
// program with several channels compiles for all of them at once.
func (c *Channel) Precompile() {
	if c.team == nil {
		return
	}
	for i, x := range c.choices {
		switch {
		case x.normed:
			c.team.PrepareNormAhead(c.insts[i].Norm)
		case x.schedule == nil:
			c.team.PrepareAhead(x.Tuning, &c.insts[i].Collective)
		}
	}
}

// Open reserves staging and counters, prepares launches and builds all steps.
// On error it leaves nothing behind.
func (c *Channel) Open() error {
	if err := c.open(); err != nil {
		return errors.Join(err, c.Close())
	}
	return nil
}

func (c *Channel) open() error {
	scheduled := false
	for i := range c.insts {
		if err := c.prepare(i); err != nil {
			return &InstanceError{i, err}
		}
		scheduled = scheduled || c.choices[i].schedule != nil
	}
	c.measure()
	if scheduled {
		if err := c.reserve(); err != nil {
			return err
		}
	}
	for i := range c.insts {
		if err := c.build(i); err != nil {
			return &InstanceError{i, err}
		}
	}
	c.settle()
	c.scratch = nil
	for i := range c.insts {
		c.insts[i].Norm = nil // launches have what they need of it
	}
	return nil
}

// reserve makes what schedules need on each member.
func (c *Channel) reserve() error {
	n := len(c.members)
	c.owner = make(map[device.Memory]int, n)
	for m := range c.members {
		mem, err := c.device(m).Alloc(max(2*c.halfBytes, 256), device.Shared)
		if err != nil {
			return fmt.Errorf("staging memory of a collective channel: %w", err)
		}
		c.staging = append(c.staging, mem)
		c.owner[mem] = m
		if c.slotBytes > 0 {
			if mem, err = c.device(m).Alloc(2*c.slotBytes*int64(n), device.Shared); err != nil {
				return fmt.Errorf("slots of a collective channel: %w", err)
			}
			c.slots = append(c.slots, mem)
			c.owner[mem] = m
		}
		ctr, err := c.device(m).NewCounters(3 * n)
		if err != nil {
			return fmt.Errorf("counters of a collective channel: %w", err)
		}
		c.counters = append(c.counters, ctr)
	}
	c.told, c.staged, c.pushed = square(n, 0), newLedger(n, n), newLedger(2*n, n)
	c.scratch = make([][]step, n)
	return nil
}

// build makes the steps of instance i, none where launches run it.
func (c *Channel) build(i int) error {
	x, in := c.choices[i], &c.insts[i]
	if x.schedule == nil {
		c.plans, c.moved = append(c.plans, nil), append(c.moved, moved(c.dispatch.Info(x.Tuning.Algo), in))
		return nil
	}
	steps, got := make([][]step, len(c.members)), make([]int64, len(c.members))
	c.plans, c.moved = append(c.plans, steps), append(c.moved, got)
	for _, piece := range pieces(x.schedule, in) {
		b := newBuild(c, &piece, c.half)
		c.half = 1 - c.half
		x.schedule.Build(b)
		err := b.finish()
		for m := range b.log { // also after an error, for launches to be released
			c.scratch[m] = b.log[m].steps
			steps[m] = append(steps[m], b.log[m].steps...)
			got[m] += b.log[m].moved
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func square(n int, v int64) [][]int64 {
	s := make([][]int64, n)
	for i := range s {
		s[i] = make([]int64, n)
		for j := range s[i] {
			s[i][j] = v
		}
	}
	return s
}

func (c *Channel) device(m int) device.Device { return c.world.Device(c.members[m].Rank) }

// settle gives every await its raise per run, which is known only now, and
// drops those that wait for nothing in any run.
func (c *Channel) settle() {
	n := len(c.members)
	for _, inst := range c.plans {
		for m, steps := range inst {
			kept := steps[:0]
			for _, s := range steps {
				if s.kind == stepAwait {
					from := int(s.elem)
					s.perRun = [][][]int64{c.told, c.staged.acked, c.pushed.acked}[from/n][from%n][m]
					if s.perRun == 0 && s.least <= 0 {
						continue
					}
				}
				kept = append(kept, s)
			}
			inst[m] = kept
		}
	}
}

// Issue enqueues member m's share of instance i of run run, counted from 0.
// Each member's instances and runs must be issued in order.
func (c *Channel) Issue(i, m int, run int64) error {
	s := c.members[m].Stream
	if l := c.choices[i].launches; l != nil {
		if l[m] == nil {
			return nil
		}
		return s.Launch(l[m])
	}
	steps := c.plans[i][m]
	for k := range steps {
		if err := steps[k].issue(s, run); err != nil {
			return err
		}
	}
	return nil
}

func (st *step) issue(s device.Stream, run int64) error {
	switch st.kind {
	case stepCopy:
		return s.Copy(st.copied.dst, st.copied.src)
	case stepReduce:
		return s.Launch(st.launch)
	case stepTell:
		return s.Signal(st.counters, int(st.elem), 1)
	}
	if least := st.least + run*st.perRun; least > 0 {
		return s.WaitCounter(st.counters, int(st.elem), least)
	}
	return nil
}

// Close releases everything; nothing issued may still run.
func (c *Channel) Close() error {
	var errs []error
	for _, inst := range c.plans {
		for _, steps := range inst {
			for k := range steps {
				if l := steps[k].launch; l != nil {
					l.Release()
				}
			}
		}
	}
	errs = append(errs, c.closeTeam())
	for _, ctr := range c.counters {
		ctr.Release()
	}
	for _, mem := range append(c.staging, c.slots...) {
		errs = append(errs, mem.Free())
	}
	c.plans, c.counters, c.staging, c.slots = nil, nil, nil, nil
	return errors.Join(errs...)
}
