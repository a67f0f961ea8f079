package comm

import (
	"errors"
	"fmt"

	"hocket.example/hocket/internal/device"
)

// Channel runs the collectives that one team issues on one stream of each member, in an order that is the same in every
// run.
//
// Instances that run by schedules share two memories on each member, staging and slots. A member writes its own staging
// and its peers read it. A member has a slot for each peer, which the peer writes and the member reads. Staging and
// slots each have two halves, which instances use alternately. The instances also share 3·n counters on each of the n
// members. Element i counts the signals of member i to this member. Element n+i counts how often member i has read this
// member's staging. Element 2n+i counts how often member i has read the data that this member pushed to it. Counters
// are never reset. Every run raises a counter by the same number, so the value to await in run k is a constant plus k
// times that number, and runs may follow each other without a barrier.
//
// Instances that run by the machine's own launches use one device.Team, which is opened when the first of them is met
// and which does its own synchronisation. A channel can have instances of both kinds: streams keep them in order.
type Channel struct {
	dispatch *Dispatch
	world    device.World
	members  []Member
	insts    []Instance
	choices  []*choice
	team     device.Team // nil until an instance needs it
	teamErr  error       // the reason why team could not be opened

	halfBytes int64 // size in bytes of a half of staging
	slotBytes int64 // size in bytes of one slot of a half
	half      int   // index of the half that the next schedule uses
	staging   []device.Memory
	slots     []device.Memory       // nil if no schedule pushes
	owner     map[device.Memory]int // by staging or slot memory: the member that owns it
	counters  []device.Counters
	// plans[i][m] holds the steps of member m in instance i, and moved[i][m] the bytes that the member receives from
	// peers.
	plans [][][]step
	moved [][]int64

	// signalled[a][b] is the number of signals from member a to member b in a run; it is used while the channel is
	// built.
	signalled [][]int64
	// staged and pushed count the members' acknowledgements of reads of staging and of slots.
	staged, pushed *ledger
	// scratch collects each member's steps for one piece of an instance.
	scratch [][]step
}

// ledger counts acknowledgements while the channel is built. With an acknowledgement, a reader reports to a writer
// that it has finished reading a memory.
type ledger struct {
	base int // first element of the counters
	// acked[r][w] is the number of acknowledgements from reader r to writer w in a run.
	acked [][]int64
	// awaited[w][r] is the number of reader r's acknowledgements for which writer w has waited.
	awaited [][]int64
	// lastUse[w][half][r] is the value of acked[r][w] after w last used half.
	lastUse [][2][]int64
}

func newLedger(base, n int) *ledger {
	l := &ledger{base: base, acked: square(n, 0), awaited: square(n, -1), lastUse: make([][2][]int64, n)}
	for w := range l.lastUse {
		l.lastUse[w] = [2][]int64{make([]int64, n), make([]int64, n)}
	}
	return l
}

// least returns the number of reader r's acknowledgements in this run for which writer w has to wait before it writes
// half: those up to the last use of half. Before the first use of half in a run, w has to wait for all acknowledgements
// of the previous run, which is expressed as zero acknowledgements in this run. The second result is false if w has
// already waited for that many acknowledgements.
func (l *ledger) least(w, half, r int) (int64, bool) {
	n := l.lastUse[w][half][r]
	if n <= l.awaited[w][r] {
		return 0, false
	}
	l.awaited[w][r] = n
	return n, true
}

// use records that w used half for r, and that r's latest acknowledgement covers that use.
func (l *ledger) use(w, half, r int) { l.lastUse[w][half][r] = l.acked[r][w] }

// InstanceError reports which instance of a channel cannot be run, and why.
type InstanceError struct {
	Index int
	Err   error
}

// Error returns the reason without the instance's index, because callers can describe the instance better than by its
// index.
func (e *InstanceError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *InstanceError) Unwrap() error { return e.Err }

// Design checks the instances, which are in channel order, and chooses the algorithm of each. It reserves no memory,
// except for a team that it opens if an instance needs one. Design returns errors of type *InstanceError.
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

// measure computes the required sizes of the halves of staging and slots.
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

// pieces splits an instance as its schedule requires.
func pieces(a Algorithm, in *Instance) []Instance {
	if s, ok := a.(splitter); ok {
		return s.Split(in)
	}
	return []Instance{*in}
}

// alignUp rounds n up to the alignment of device memory.
func alignUp(n int64) int64 { return (n + 255) &^ 255 }

// StagingBytes returns the device memory that the channel uses on each member. Before Open the result is a lower bound:
// the memory that schedules need.
func (c *Channel) StagingBytes() int64 {
	n := 2*c.halfBytes + 2*c.slotBytes*int64(len(c.members))
	if c.team != nil {
		n += c.team.Bytes()
	}
	return n
}

// Algorithm returns the name of the algorithm that was chosen for instance i.
func (c *Channel) Algorithm(i int) string { return c.choices[i].Tuning.Algo }

// Choice returns the algorithm of instance i and the reason for it.
func (c *Channel) Choice(i int) Choice { return c.choices[i].Choice }

// Moved returns the bytes that member m receives from peers in instance i. For the machine's own launches it is
// computed from the description of the algorithm.
func (c *Channel) Moved(i, m int) int64 { return c.moved[i][m] }

// Precompile starts the compilations for which Open waits, on machines that support this. A program with several
// channels calls Precompile on all of them first, so that all compilations run concurrently.
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

// Open reserves staging and counters, prepares launches and builds all steps. On error, Open releases everything that
// it reserved.
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
		c.insts[i].Norm = nil // the launches no longer need the description
	}
	return nil
}

// reserve allocates the memory and counters that schedules need on each member.
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
	c.signalled, c.staged, c.pushed = square(n, 0), newLedger(n, n), newLedger(2*n, n)
	c.scratch = make([][]step, n)
	return nil
}

// build creates the steps of instance i. An instance that runs by launches has no steps.
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
		for m := range b.log { // also after an error, because the launches must be released
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

// settle sets the amount by which the awaited value of each wait grows from run to run. The amount is known only after
// all instances are built. settle also removes waits that are always satisfied.
func (c *Channel) settle() {
	n := len(c.members)
	for _, inst := range c.plans {
		for m, steps := range inst {
			kept := steps[:0]
			for _, s := range steps {
				if s.kind == stepAwait {
					from := int(s.elem)
					s.perRun = [][][]int64{c.signalled, c.staged.acked, c.pushed.acked}[from/n][from%n][m]
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

// Issue enqueues member m's part of instance i in run number run, counted from 0. The instances and runs of each member
// must be issued in order.
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

// Close releases everything that the channel holds. No issued instance may still be running.
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
