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

// Options select what is tuned. The zero value is a quick tuning of the embedded machine.
type Options struct {
	Machine string
	Ranks   int // 0 for as many as the machine has, but at most 8
	// Full makes the tuning also try more sizes, launch parameters of each algorithm, element types of 4 bytes, maxima,
	// and teams of only some of the ranks. A tuning that is not full ends within seconds.
	Full bool
	// Ops are the collectives to tune; nil for all of TunedOps.
	Ops []ir.Op
	// Within limits the time of a quick tuning of the default sizes. The time is counted from Begun, or from the call
	// of Tune if Begun is zero. When the time is used up, the entries of the remaining collectives are left unchanged,
	// but the first collective is always measured. 0 means no limit.
	Begun  time.Time
	Within time.Duration
	// Sizes are message sizes in bytes; nil for a list that suits the machine.
	Sizes []int64
	// Base is the existing table. The entries of Base are kept for collectives that are not measured. A collective that
	// was already measured on this machine, as completely as requested, is measured again only if Again is set or Sizes
	// are given.
	Base  comm.Found
	Again bool
	// Made is stored in the table. Made names the program and version that created the table.
	Made string
	// Progress, if not nil, is called from time to time with a line of text that describes the progress.
	Progress func(string)
	// File is the file to which the table is written after each entry, so that an interrupted tuning keeps its
	// measurements. File is empty if the table is not to be written. If File is the file that worlds read by default
	// (see TableFile), only the entries in it that this tuning has measured are replaced. Any other file is
	// overwritten.
	File string

	opened  device.Machine   // set by Find
	shipped *comm.Table      // nil for the program's shipped table
	sizes   []int64          // message sizes of a quick tuning; nil for a list that suits the machine
	now     func() time.Time // nil for time.Now
}

// KeepError is returned if a table cannot be written to Options.File.
type KeepError struct{ Err error }

func (e *KeepError) Error() string { return "the table cannot be written: " + e.Err.Error() }

// Unwrap returns the reason.
func (e *KeepError) Unwrap() error { return e.Err }

// Tuned is a table of the fastest algorithms, with a description of its measurement.
type Tuned struct {
	Table *comm.Table `json:"table"`
	Hash  string      `json:"hash"`
	// File is the file that contains the table; empty if it was not written.
	File string `json:"file,omitempty"`
	// Fresh reports whether this tuning has measured any entry.
	Fresh bool    `json:"fresh"`
	Took  float64 `json:"took_s,omitempty"`
	// Phases are the parts of the time Took.
	Phases *Phases `json:"phases_s,omitempty"`
	// Notes are problems that did not end the tuning.
	Notes []string `json:"notes,omitempty"`
}

// Tune measures the collectives of a machine with all its algorithms and returns the table of the
// fastest.
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
	slices.Sort(o.Sizes) // size brackets must be in ascending order
	o.Sizes = slices.Compact(o.Sizes)
	if o.File != "" {
		if err := comm.Writable(o.File); err != nil { // checked before the measurements, which may take minutes
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
	if u.Base.PassedOver() && !u.shared() { // if the file is shared, the method keep adds this note
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

// tuneKinds measures the calls of each kind, as long as there is time.
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

// Find opens the machine for Tune. If Ranks is 0, it sets Ranks to the number of the machine's ranks. Find sets Base to
// the table that worlds with this number of ranks use. Meanwhile, the kernels that a quick tuning launches are
// compiled.
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

// TableOf returns the table that worlds of a machine with the given number of ranks use, and its
// source.
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

// TableFile returns the file from which worlds read the tuned table of a machine. f is the result of looking for a
// table of this machine.
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

// tuner is a tuning in progress.
type tuner struct {
	Options
	machine  device.Machine
	identity string
	own      bool        // whether the machine has its own launches for collectives
	asked    device.Team // the team that the method ask returns; nil until it is first needed
	askedOf  int         // number of members of asked
	total    int         // number of calls to measure in total
	begun    int
	doing    string          // description of the current call, for progress messages
	wrongs   map[string]bool // algorithms that had a wrong result
	done     []comm.Entry    // entries measured by this tuning
	pace     pace
	notes    []string
}

func (u *tuner) note(format string, args ...any) {
	if s := fmt.Sprintf(format, args...); !slices.Contains(u.notes, s) {
		u.notes = append(u.notes, s)
	}
}

// kind identifies the calls whose measurements form one entry of a table.
type kind struct {
	op      ir.Op
	red     ir.Red
	dt      ir.DType
	members int
}

// entry returns an entry for the kind, without measurements.
func (k kind) entry() comm.Entry {
	return comm.Entry{Op: k.op.String(), Reduction: comm.ReductionOf(k.red, k.op), Elem: k.dt.Size(), Members: k.members}
}

// kinds lists the kinds of calls to measure. The times of collectives that only move data do not depend on the
// element type. Kinds with the same element type are adjacent in the list.
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

// known reports whether the kind was measured before.
func (u *tuner) known(k kind) bool {
	b := u.Base
	if u.Again || u.Sizes != nil || b.Table == nil || b.Shipped() {
		return false
	}
	e := b.Table.Entry(k.entry())
	return e != nil && !e.Shipped && (e.Full || !u.Full)
}

// inherited returns the entries of the existing table.
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

// When all collectives have been measured by this tuning or an earlier one, settle removes the shipped entries that
// were measured on other GPUs. The entry of a similar collective that was measured on this machine is a better
// prediction.
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

// teams lists the numbers of members to tune.
func (u *tuner) teams() []int {
	list := []int{u.Ranks}
	if u.Full {
		for k := u.Ranks / 2; k > 1; k /= 2 {
			list = append(list, k)
		}
	}
	return list
}

// calls lists the calls of a kind to measure, by size. Sizes are rounded so that the number of members divides
// them. Sizes that become equal are measured once, and sizes that become zero are omitted.
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

// largest returns calls that are at least as large as any call that is measured.
func (u *tuner) largest() []contest.Call {
	most := int64(0)
	for _, op := range contest.TunedOps {
		most = max(most, slices.Max(u.sizes(kind{op: op, dt: ir.BF16})))
	}
	return []contest.Call{{Bytes: most}}
}

// sizes lists the message sizes of a kind in bytes. The sizes are powers of two for sums of bf16 and for collectives
// that only move data, and powers of four for other reductions.
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
		// If there are many ranks on few cores, a call that moves more than this number of bytes takes seconds.
		for int64(u.Ranks*u.Ranks)*list[len(list)-1] > 256*mb {
			list = list[:len(list)-1]
		}
		return list
	case k.op == ir.OpAllReduce:
		return []int64{16 * kb, 128 * kb, 512 * kb, 2 * mb, 8 * mb, 64 * mb}
	}
	return []int64{32 * kb, mb, 32 * mb}
}
