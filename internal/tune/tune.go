// Package tune measures which algorithm is the fastest for each collective on a machine, and writes the results as a
// table.
package tune

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/contest"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// Options choose what is tuned; the zero value is the embedded machine,
// quickly.
type Options struct {
	Machine string
	Ranks   int // 0 for as many as the machine has, at most 8
	// Full tries more sizes, and how each algorithm is launched, types of 4 bytes,
	// maxima, and smaller teams of the same world. Otherwise it ends within seconds.
	Full bool
	// Ops are what is tuned; nil for all of TunedOps.
	Ops []ir.Op
	// Within is how long after Begun, which is now if it is zero, a quick tuning of
	// the machine's own sizes is to end: collectives that there is no time for stay as
	// they were, but the first one is always measured. 0 is for any time.
	Begun  time.Time
	Within time.Duration
	// Sizes of messages in bytes; nil for a list that suits the machine.
	Sizes []int64
	// Base is the table that there is. Its entries stay where nothing is measured;
	// those that were measured on this machine, and as fully as is asked for, are
	// not measured anew, unless Again is set or Sizes are given.
	Base  comm.Found
	Again bool
	// Made goes into the table: by what it was made.
	Made string
	// Progress gets a line now and then; nil for none.
	Progress func(string)
	// File is where the table is written, after each entry, so that an interrupted tuning keeps what it measured.
	// Empty for nowhere. The file that worlds read by default (TableFile) is merged: it only gets measured entries,
	// and keeps its other entries. Any other file is overwritten.
	File string

	opened  device.Machine   // by Find
	shipped *comm.Table      // nil for the program's
	sizes   []int64          // of a quick tuning; nil for a list that suits the machine
	now     func() time.Time // nil for the real time
}

// KeepError says why a table cannot be kept in Options.File.
type KeepError struct{ Err error }

func (e *KeepError) Error() string { return "the table cannot be kept: " + e.Err.Error() }

// Unwrap returns the reason.
func (e *KeepError) Unwrap() error { return e.Err }

// Tuned is a table with what it rests on.
type Tuned struct {
	Table *comm.Table `json:"table"`
	Hash  string      `json:"hash"`
	// File is where the table lies; empty where it was not written.
	File string `json:"file,omitempty"`
	// Fresh says that something of it was measured now.
	Fresh bool    `json:"fresh"`
	Took  float64 `json:"took_s,omitempty"`
	// Phases are of Took.
	Phases *Phases `json:"phases_s,omitempty"`
	// Notes are what went wrong and was passed over.
	Notes []string `json:"notes,omitempty"`
}

// Tune measures the collectives of a machine by all its algorithms and returns
// the table of the fastest.
func Tune(ctx context.Context, o Options) (*Tuned, error) {
	m := o.opened
	var err error
	if m == nil {
		if m, err = contest.Open(o.Machine); err != nil {
			return nil, err
		}
	}
	if o.Ranks, err = tuneRanks(m, o.Ranks); err != nil {
		return nil, err
	}
	for _, n := range o.Sizes {
		if err := contest.CheckSize(n); err != nil {
			return nil, err
		}
	}
	slices.Sort(o.Sizes) // brackets ascend
	o.Sizes = slices.Compact(o.Sizes)
	if o.File != "" {
		if err := comm.Writable(o.File); err != nil { // before minutes of measuring
			return nil, &KeepError{err}
		}
	}
	u := newTuner(o, m)
	todo := u.kinds()
	if len(todo) == 0 {
		return TunedFrom(o.Base), nil
	}
	a, err := contest.OpenArena(ctx, m, o.Ranks, u.largest(), ir.BF16, false)
	if err != nil {
		return nil, err
	}
	u.pace.opened = u.pace.now()
	u.own = len(a.World.TeamAlgorithms()) > 0
	u.identity = comm.Identity(m.Name(), a.World)
	t := &comm.Table{Version: comm.TableVersion, Identity: u.identity, Ranks: o.Ranks, Made: o.Made, Entries: u.inherited()}
	if b := u.Base.Table; b != nil {
		t.Describe(b.Algorithms)
	}
	t.Describe(a.World.TeamAlgorithms())
	for _, k := range todo {
		u.total += len(u.calls(k))
	}
	if u.Base.PassedOver() && !u.shared() { // else keep tells of it
		u.note("%s", u.Base.Ignored)
	}
	err = contest.Within(ctx, a.World, func() error {
		u.precompile(a, todo)
		return errors.Join(u.tuneKinds(ctx, a, todo, t), u.forget())
	})
	if err := a.Close(err); err != nil {
		return nil, err
	}
	out := &Tuned{Table: t, File: o.File, Hash: t.Hash(), Fresh: true, Took: u.pace.took(), Phases: u.pace.phases(), Notes: u.notes}
	return out, t.Check()
}

func newTuner(o Options, m device.Machine) *tuner {
	u := &tuner{Options: o, machine: m, wrongs: map[string]bool{}, pace: pace{now: time.Now, begun: o.Begun}}
	if o.now != nil {
		u.pace.now = o.now
	}
	if o.Begun.IsZero() {
		u.pace.begun = u.pace.now()
	}
	if !o.Full && o.Sizes == nil {
		u.pace.within = o.Within
	}
	if o.shipped == nil {
		u.shipped = comm.Shipped()
	}
	return u
}

// tuneKinds measures kinds, as long as there is time.
func (u *tuner) tuneKinds(ctx context.Context, a *contest.Arena, todo []kind, t *comm.Table) error {
	var late []kind
	for _, k := range todo {
		if !u.pace.hasTime(len(u.calls(k))) {
			late = append(late, k)
			continue
		}
		if err := u.tuneKind(ctx, a, k, t); err != nil {
			return err
		}
	}
	if late != nil {
		u.note("%s", u.lateText(late))
	}
	return nil
}

// Find opens the machine, for Tune, and sets Base to the table that its worlds of
// Ranks use, of which it may say how many. What a quick tuning will launch is compiled
// meanwhile.
func (o *Options) Find(ctx context.Context) error {
	m, err := contest.Open(o.Machine)
	if err != nil {
		return err
	}
	if o.Ranks, err = tuneRanks(m, o.Ranks); err != nil {
		return err
	}
	newTuner(*o, m).precompileOpening()
	w, err := m.Open(ctx, o.Ranks)
	if err != nil {
		return err
	}
	o.opened, o.Base = m, comm.Find(m.Name(), w)
	return w.Close()
}

// TableOf returns the table that a machine's worlds of so many ranks use, and
// where it comes from.
func TableOf(ctx context.Context, machine string, ranks int) (comm.Found, error) {
	m, err := contest.Open(machine)
	if err != nil {
		return comm.Found{}, err
	}
	if ranks, err = tuneRanks(m, ranks); err != nil {
		return comm.Found{}, err
	}
	w, err := m.Open(ctx, ranks)
	if err != nil {
		return comm.Found{}, err
	}
	return comm.Find(m.Name(), w), w.Close()
}

// TableFile is where worlds of the machine that f was found for look for their
// tuned table.
func TableFile(f comm.Found, ranks int) (string, error) { return comm.Path(f.Identity, ranks) }

func tuneRanks(m device.Machine, ranks int) (int, error) {
	most := m.Caps().MaxRanks
	if ranks == 0 {
		ranks = min(most, 8)
		if m.Caps().OnHost {
			ranks = 4
		}
	}
	switch {
	case ranks < 2:
		return 0, contest.Usagef("collectives need 2 ranks or more, not %d", ranks)
	case ranks > most:
		return 0, contest.ErrTooMany(m, ranks)
	}
	return ranks, nil
}

// tuner is a tuning under way.
type tuner struct {
	Options
	machine  device.Machine
	identity string
	own      bool        // the world has launches of its own
	asked    device.Team // nil until something is asked
	askedOf  int         // Members of it
	total    int         // calls to be measured
	begun    int
	doing    string          // the call under way
	wrongs   map[string]bool // algorithms of which a result was wrong
	done     []comm.Entry    // measured now
	pace     pace
	notes    []string
}

func (u *tuner) note(format string, args ...any) {
	if s := fmt.Sprintf(format, args...); !slices.Contains(u.notes, s) {
		u.notes = append(u.notes, s)
	}
}

// kind is what one entry of a table is measured for.
type kind struct {
	op      ir.Op
	red     ir.Red
	dt      ir.DType
	members int
}

// entry is the kind's, empty.
func (k kind) entry() comm.Entry {
	return comm.Entry{Op: k.op.String(), Reduction: comm.ReductionOf(k.red, k.op), Elem: k.dt.Size(), Members: k.members}
}

// kinds lists what is to be measured. What only moves is the same to a kernel
// whatever its type. Those of one type are together.
func (u *tuner) kinds() []kind {
	forms := []kind{{red: ir.Sum, dt: ir.BF16}}
	if u.Full {
		forms = append(forms, kind{red: ir.Max, dt: ir.BF16}, kind{red: ir.Sum, dt: ir.F32})
	}
	ops := u.Ops
	if ops == nil {
		ops = contest.TunedOps
	}
	var list []kind
	for _, members := range u.teams() {
		for _, form := range forms {
			for _, op := range ops {
				k := kind{op, form.red, form.dt, members}
				switch reduces := op == ir.OpAllReduce || op == ir.OpReduceScatter; {
				case !reduces && form != forms[0]:
					continue
				case !reduces:
					k.red = ir.NoRed
				}
				if !u.known(k) {
					list = append(list, k)
				}
			}
		}
	}
	return list
}

// known reports whether the kind was measured already.
func (u *tuner) known(k kind) bool {
	b := u.Base
	if u.Again || u.Sizes != nil || b.Table == nil || b.Shipped() {
		return false
	}
	e := b.Table.Entry(k.entry())
	return e != nil && !e.Shipped && (e.Full || !u.Full)
}

// inherited are the entries of the table that there is.
func (u *tuner) inherited() []comm.Entry {
	if u.Base.Table == nil {
		return nil
	}
	list := slices.Clone(u.Base.Table.Entries)
	for i := range list {
		list[i].Shipped = list[i].Shipped || u.Base.Shipped()
	}
	return list
}

// settle takes out what is shipped for other GPUs once every collective has been
// measured, whenever that was: what is near is a better guess then.
func (u *tuner) settle(t *comm.Table) {
	if u.shipped.Of(t.Identity) {
		return
	}
	for _, op := range contest.TunedOps {
		k := kind{op: op, red: ir.Sum, dt: ir.BF16, members: u.Ranks}
		if e := t.Entry(k.entry()); e == nil || e.Shipped {
			return
		}
	}
	t.Entries = slices.DeleteFunc(t.Entries, func(e comm.Entry) bool { return e.Shipped })
}

// teams lists the numbers of members that are tuned.
func (u *tuner) teams() []int {
	list := []int{u.Ranks}
	if u.Full {
		for k := u.Ranks / 2; k > 1; k /= 2 {
			list = append(list, k)
		}
	}
	return list
}

// calls lists what is measured of a kind, by size. Sizes that are the same once
// they divide over the members are one; what is too small is none.
func (u *tuner) calls(k kind) []contest.Call {
	var list []contest.Call
	for _, n := range u.sizes(k) {
		c := contest.NewCall(k.op, n, k.members, k.dt)
		c.Red = k.red
		if c.Bytes > 0 && (len(list) == 0 || c != list[len(list)-1]) {
			list = append(list, c)
		}
	}
	return list
}

// largest is a call as large as any that is measured.
func (u *tuner) largest() []contest.Call {
	most := int64(0)
	for _, op := range contest.TunedOps {
		most = max(most, slices.Max(u.sizes(kind{op: op, dt: ir.BF16})))
	}
	return []contest.Call{{Bytes: most}}
}

// sizes lists the messages of a kind, in bytes: where all are, sums of bf16 and
// what only moves by powers of two, other reductions by powers of four.
func (u *tuner) sizes(k kind) []int64 {
	const kb, mb = 1 << 10, 1 << 20
	embedded := u.machine.Caps().OnHost
	switch {
	case u.Sizes != nil:
		return u.Sizes
	case u.Full:
		var list []int64
		last := int64(256 * mb)
		if embedded {
			last = 4 * mb
		}
		step := int64(2)
		if k.dt != ir.BF16 || k.red > ir.Sum {
			step = 4
		}
		for n := int64(kb); n <= last; n *= step {
			list = append(list, n)
		}
		return list
	case u.Options.sizes != nil:
		return u.Options.sizes
	case embedded:
		list := []int64{4 * kb, 64 * kb, mb / 2}
		// Many ranks share few cores: a call that moves more than this takes seconds.
		for int64(u.Ranks*u.Ranks)*list[len(list)-1] > 256*mb {
			list = list[:len(list)-1]
		}
		return list
	case k.op == ir.OpAllReduce:
		return []int64{16 * kb, 128 * kb, 512 * kb, 2 * mb, 8 * mb, 64 * mb}
	}
	return []int64{32 * kb, mb, 32 * mb}
}
