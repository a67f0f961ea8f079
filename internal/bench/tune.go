package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// TuneOptions choose what is tuned; the zero value is the embedded machine,
// quickly.
type TuneOptions struct {
	Machine string
	Ranks   int // 0 for as many as the machine has, at most 8
	// Full tries more sizes, and how each algorithm is launched, and smaller
	// teams of the same world. Otherwise it ends within seconds.
	Full bool
	// Sizes of messages in bytes; nil for a list that suits the machine.
	Sizes []int64
	// Made goes into the table: by what it was made.
	Made string
	// Progress gets a line now and then; nil for none.
	Progress func(string)
}

// Tuned is a table with what it rests on.
type Tuned struct {
	Table *comm.Table `json:"table"`
	Hash  string      `json:"hash"`
	// File is where the table lies; empty where it was not written.
	File string `json:"file,omitempty"`
	// Fresh says that it was measured now.
	Fresh bool    `json:"fresh"`
	Took  float64 `json:"took_s,omitempty"`
	// Notes are what went wrong and was passed over.
	Notes []string `json:"notes,omitempty"`
}

// Tune measures the collectives of a machine by all its algorithms and returns
// the table of the fastest.
func Tune(ctx context.Context, o TuneOptions) (*Tuned, error) {
	begun := time.Now()
	m, err := open(o.Machine)
	if err != nil {
		return nil, err
	}
	if o.Ranks, err = tuneRanks(m, o.Ranks); err != nil {
		return nil, err
	}
	u := &tuner{TuneOptions: o, machine: m}
	calls := u.calls(o.Ranks)
	a, err := openArena(ctx, m, o.Ranks, calls, ir.BF16, false)
	if err != nil {
		return nil, err
	}
	_, u.own = a.world.(device.Teams)
	out := &Tuned{Fresh: true, Table: &comm.Table{Version: comm.TableVersion, Identity: comm.Identity(m.Name(), a.world), Ranks: o.Ranks, Made: o.Made}}
	for _, members := range u.teams() {
		if err := u.tuneTeam(ctx, a.team(members), out.Table); err != nil {
			return nil, a.close(err)
		}
	}
	if err := a.close(nil); err != nil {
		return nil, err
	}
	out.Hash, out.Notes, out.Took = out.Table.Hash(), u.notes, time.Since(begun).Seconds()
	return out, out.Table.Check()
}

// TableOf returns the table that a machine's worlds of so many ranks use, and
// where it comes from.
func TableOf(ctx context.Context, machine string, ranks int) (comm.Found, int, error) {
	m, err := open(machine)
	if err != nil {
		return comm.Found{}, 0, err
	}
	if ranks, err = tuneRanks(m, ranks); err != nil {
		return comm.Found{}, 0, err
	}
	w, err := m.Open(ctx, ranks)
	if err != nil {
		return comm.Found{}, 0, err
	}
	return comm.Find(m.Name(), w), ranks, w.Close()
}

func tuneRanks(m device.Machine, ranks int) (int, error) {
	most := m.Caps().MaxRanks
	if ranks == 0 {
		ranks = min(most, 8)
		if m.Name() == "cpu" {
			ranks = 4
		}
	}
	switch {
	case ranks < 2:
		return 0, usagef("collectives need 2 ranks or more, not %d", ranks)
	case ranks > most:
		return 0, fmt.Errorf("%d ranks, and this machine has at most %d: %w", ranks, most, device.ErrUnsupported)
	}
	return ranks, nil
}

// tuner is a tuning under way.
type tuner struct {
	TuneOptions
	machine device.Machine
	own     bool        // the world has launches of its own
	asked   device.Team // nil until something is asked
	notes   []string
}

func (u *tuner) note(format string, args ...any) {
	if s := fmt.Sprintf(format, args...); !slices.Contains(u.notes, s) {
		u.notes = append(u.notes, s)
	}
}

// tunedOps are the collectives that are measured; others take the entries of
// their kin.
var tunedOps = []ir.Op{ir.OpAllReduce, ir.OpReduceScatter, ir.OpAllGather, ir.OpAllToAll, ir.OpBroadcast}

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

// team returns the arena as the first ranks of it see it.
func (a *arena) team(members int) *arena {
	b := *a
	b.members = a.members[:members]
	return &b
}

// calls lists what is measured for teams of so many.
func (u *tuner) calls(members int) []call {
	var list []call
	for _, op := range tunedOps {
		for _, n := range u.sizes(op) {
			list = append(list, newCall(op, n, members, ir.BF16))
		}
	}
	return list
}

func (u *tuner) sizes(op ir.Op) []int64 {
	const kb, mb = 1 << 10, 1 << 20
	embedded := u.machine.Name() == "cpu"
	switch {
	case u.Sizes != nil:
		return u.Sizes
	case u.Full:
		var list []int64
		last := int64(256 * mb)
		if embedded {
			last = 4 * mb
		}
		for n := int64(kb); n <= last; n *= 2 {
			list = append(list, n)
		}
		return list
	case embedded:
		return []int64{4 * kb, 64 * kb, mb / 2}
	case op == ir.OpAllReduce:
		return []int64{16 * kb, 128 * kb, 512 * kb, 2 * mb, 8 * mb, 64 * mb}
	}
	return []int64{32 * kb, mb, 32 * mb}
}

// rounds that count.
const tuneRounds = 5

func (u *tuner) tuneTeam(ctx context.Context, a *arena, t *comm.Table) (err error) {
	defer func() {
		if u.asked != nil {
			err = errors.Join(err, u.asked.Close())
			u.asked = nil
		}
	}()
	byOp := map[ir.Op][]measured{}
	for _, c := range u.calls(len(a.members)) {
		if u.Progress != nil {
			u.Progress(fmt.Sprintf("%s of %s on %d ranks", c.op, bytesText(c.bytes), len(a.members)))
		}
		m, err := u.tuneCall(ctx, a, c)
		if err != nil {
			return err
		}
		if len(m.best) > 0 {
			byOp[c.op] = append(byOp[c.op], m)
		}
	}
	for _, op := range tunedOps {
		if list := byOp[op]; len(list) > 0 {
			t.Entries = append(t.Entries, entryOf(op, len(a.members), list))
		}
	}
	return nil
}

// measured is a call with what was fastest.
type measured struct {
	call call
	best []timed
}

// timed is a tuning's time; ordered says that it is allowed where sums have to
// be in order.
type timed struct {
	comm.Timed
	ordered bool
}

// finalists is how many tunings are measured more than once.
func (u *tuner) finalists() int {
	if u.Full {
		return 10
	}
	return 4
}

// tuneCall measures a call by all algorithms roughly, where it is to be full also
// by grids of those that come near the fastest, and the best of all in turns.
func (u *tuner) tuneCall(ctx context.Context, a *arena, c call) (measured, error) {
	m := measured{call: c}
	first, err := u.glance(ctx, a, c, u.names(a, c))
	if err == nil && len(first) == 0 {
		first, err = u.glance(ctx, a, c, namesOnly(comm.Schedules()))
	}
	if err != nil {
		return m, err
	}
	near := within(first, 1.4)
	if u.Full && u.own {
		tried, err := u.glance(ctx, a, c, launches(near))
		if err != nil {
			return m, err
		}
		near = within(append(near, tried...), 1.15)
	}
	near = near[:min(len(near), u.finalists())]
	var again []device.Tuning
	for _, x := range near {
		again = append(again, x.Tuning)
	}
	if m.best, err = u.try(ctx, a, c, again); err != nil {
		return m, err
	}
	m.best = ranked(append(m.best, first...))
	return m, nil
}

// names lists what to try first: all algorithms as the machine launches them by
// itself, and what is shipped for GPUs. Where a machine has its own, schedules are
// worth the time only where there is much of it.
func (u *tuner) names(a *arena, c call) []device.Tuning {
	all := a.dispatch.Algorithms()
	if u.own && !u.Full {
		all = slices.DeleteFunc(all, func(n string) bool { return slices.Contains(comm.Schedules(), n) })
	}
	list := namesOnly(all)
	if u.own {
		in := a.instance(c, 0, device.Tuning{}, true)
		for _, t := range comm.Shipped().Best(&in) {
			if !slices.Contains(list, t) {
				list = append(list, t)
			}
		}
	}
	return list
}

func namesOnly(names []string) []device.Tuning {
	var list []device.Tuning
	for _, n := range names {
		list = append(list, device.Tuning{Algo: n})
	}
	return list
}

// within returns those that take at most so many times as long as the fastest,
// the fastest first.
func within(list []timed, times float64) []timed {
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b timed) int { return cmp.Compare(a.Micros, b.Micros) })
	for i := range list {
		if list[i].Micros > times*list[0].Micros {
			return list[:i]
		}
	}
	return list
}

// launches lists grids to try for each algorithm of the machine's own.
func launches(near []timed) []device.Tuning {
	var list []device.Tuning
	for _, x := range near {
		if slices.ContainsFunc(list, func(t device.Tuning) bool { return t.Algo == x.Algo }) || slices.Contains(comm.Schedules(), x.Algo) || strings.HasPrefix(x.Algo, "nccl") {
			continue
		}
		for _, blocks := range []int{4, 8, 16, 32, 64, 96, 132} {
			for _, threads := range []int{256, 512, 1024} {
				for _, unroll := range []int{1, 2, 4, 8} {
					list = append(list, device.Tuning{Algo: x.Algo, Blocks: blocks, Threads: threads, Unroll: unroll})
				}
			}
		}
	}
	return list
}

// glance measures tunings roughly, one after the other, so that they need not all
// have their memory at a time.
func (u *tuner) glance(ctx context.Context, a *arena, c call, list []device.Tuning) ([]timed, error) {
	var out []timed
	for _, t := range list {
		e, ordered, err := u.admit(ctx, a, c, t)
		if err != nil {
			return nil, err
		}
		if e == nil {
			continue
		}
		us, err := a.roughly(ctx, e)
		if err = errors.Join(err, e.leave()); err != nil {
			return nil, fmt.Errorf("%s of %s by %s: %w", c.op, bytesText(c.bytes), t.Algo, err)
		}
		out = append(out, timed{comm.Timed{Tuning: e.way.Tuning, Micros: max(us, 0.01)}, ordered})
	}
	return out, nil
}

// roughly returns microseconds a call of one short chain, launch and all.
func (a *arena) roughly(ctx context.Context, e *entrant) (float64, error) {
	e.chains = chains{long: 20, eager: 10}
	if e.call.bytes >= 16<<20 {
		e.chains.long = 5
	}
	if err := a.capture(ctx, e); err != nil {
		return 0, err
	}
	if e.long == nil {
		return a.timeEager(ctx, e)
	}
	n := e.chains.long
	if err := a.replay(ctx, e, e.long, n); err != nil {
		return 0, err
	}
	ids, err := a.window(func() error { return a.replay(ctx, e, e.long, n) })
	if err != nil {
		return 0, err
	}
	us, err := a.marks.take(ctx, a.world, ids...)
	if err != nil {
		return 0, err
	}
	return slices.Max(us) / float64(n), nil
}

// try measures tunings in turns.
func (u *tuner) try(ctx context.Context, a *arena, c call, list []device.Tuning) (out []timed, err error) {
	var entrants []*entrant
	var inOrder []bool
	defer func() {
		for _, e := range entrants {
			err = errors.Join(err, e.leave())
		}
	}()
	for _, t := range list {
		e, ordered, err := u.admit(ctx, a, c, t)
		if e == nil && err == nil {
			continue
		}
		wrong := false
		if err == nil {
			wrong, err = u.recordedWrong(ctx, a, e)
		}
		if wrong {
			err = e.leave()
		} else if e != nil {
			entrants, inOrder = append(entrants, e), append(inOrder, ordered)
		}
		if err != nil {
			return nil, fmt.Errorf("%s of %s by %s: %w", c.op, bytesText(c.bytes), t.Algo, err)
		}
	}
	if err := a.race(ctx, entrants, tuneRounds, false); err != nil {
		return nil, err
	}
	for i, e := range entrants {
		out = append(out, timed{comm.Timed{Tuning: e.way.Tuning, Micros: max(e.way.Best(), 0.01)}, inOrder[i]})
	}
	return out, nil
}

// recordedWrong records the entrant's graphs, and reports whether their results
// are wrong, which is noted.
func (u *tuner) recordedWrong(ctx context.Context, a *arena, e *entrant) (bool, error) {
	if err := a.capture(ctx, e); err != nil || e.short == nil {
		return false, err
	}
	wrong, _, err := a.check(ctx, e, func() error { return a.replay(ctx, e, e.short, e.chains.short) })
	if wrong > 0 {
		u.wrong(e.call, e.way.Tuning, wrong)
	}
	return wrong > 0, err
}

func (u *tuner) wrong(c call, t device.Tuning, elements int64) {
	u.note("%s of %s by %s: %d elements are wrong: it is not used", c.op, bytesText(c.bytes), tuningText(t), elements)
}

// admit opens a channel for a tuning, and says whether it is allowed where sums
// have to be in order. It returns none for one that declines, and for one that
// fails or whose result is wrong, which is noted.
func (u *tuner) admit(ctx context.Context, a *arena, c call, t device.Tuning) (*entrant, bool, error) {
	if !u.possible(a, c, t) {
		return nil, false, nil
	}
	e, err := a.enter(c, a.dispatch, t, false)
	ordered := err == nil
	if errors.Is(err, device.ErrUnsupported) {
		e, err = a.enter(c, a.dispatch, t, true)
	}
	switch {
	case errors.Is(err, device.ErrUnsupported):
		return nil, false, nil
	case err != nil && a.ended(ctx):
		return nil, false, err
	case err != nil:
		u.note("%s of %s by %s: %v", c.op, bytesText(c.bytes), tuningText(t), err)
		return nil, false, nil
	}
	wrong, _, err := a.check(ctx, e, func() error { return a.run(e, 1) })
	if err != nil {
		return nil, false, errors.Join(err, e.leave())
	}
	if wrong > 0 {
		u.wrong(c, t, wrong)
		return nil, false, e.leave()
	}
	return e, ordered, nil
}

// possible asks one team of the arena, kept for such questions, whether a launch
// of the machine's own takes the call in any order: cheaper than a channel.
func (u *tuner) possible(a *arena, c call, t device.Tuning) bool {
	teams, ok := a.world.(device.Teams)
	if !ok || !slices.Contains(teams.TeamAlgorithms(), t.Algo) {
		return true
	}
	if u.asked == nil {
		if u.asked, _ = teams.OpenTeam(a.members); u.asked == nil {
			return true // the channel says why there is none
		}
	}
	in := a.instance(c, 0, t, true)
	return u.asked.Supports(t, &in.Collective) == nil
}

// ended reports whether the world can do no more.
func (a *arena) ended(ctx context.Context) bool { return a.world.Sync(ctx) != nil }

// alike is how much slower than the fastest a tuning may be and win by taking
// fewer multiprocessors.
const alike = 1.02

// ranked orders what was measured: first, of those alike, the one with the
// fewest blocks; then what comes first of each other algorithm.
func ranked(list []timed) []timed {
	if len(list) == 0 {
		return nil
	}
	list = within(list, math.Inf(1))
	first := 0
	for i, x := range list {
		if x.Micros <= alike*list[0].Micros && blocks(x.Tuning) < blocks(list[first].Tuning) {
			first = i
		}
	}
	out := []timed{list[first]}
	for _, x := range list {
		if !slices.ContainsFunc(out, func(o timed) bool { return o.Algo == x.Algo }) {
			out = append(out, x)
		}
	}
	return out
}

// blocks is how many blocks a tuning is known to take.
func blocks(t device.Tuning) int {
	switch {
	case t.Blocks > 0:
		return t.Blocks
	case t.Algo == "move-copy": // by copy engines
		return 0
	}
	return math.MaxInt
}

// kept is how many algorithms a bracket lists, one that sums in order among
// them.
const kept = 4

// entryOf makes the entry of an op from what was measured at ascending sizes. A
// bracket reaches halfway, in ratio, to the next size.
func entryOf(op ir.Op, members int, list []measured) comm.Entry {
	e := comm.Entry{Op: op.String(), Elem: 2, Members: members, Fixed: fixedOf(list)}
	if op == ir.OpAllReduce || op == ir.OpReduceScatter {
		e.Reduction = "sum"
	}
	for i, m := range list {
		var b comm.Bracket
		inOrder := false
		for _, x := range m.best {
			if len(b.Best) < kept-1 || len(b.Best) < kept && (inOrder || x.ordered) {
				b.Best = append(b.Best, comm.Timed{Tuning: x.Tuning, Micros: math.Round(x.Micros*100) / 100})
				inOrder = inOrder || x.ordered
			}
		}
		if i < len(list)-1 {
			b.UpTo = int64(math.Sqrt(float64(m.call.bytes) * float64(list[i+1].call.bytes)))
		}
		e.Brackets = append(e.Brackets, b)
	}
	return e
}

// fixedOf returns the algorithm that takes all sizes in order and is, in the
// geometric mean, the least slower than the best.
func fixedOf(list []measured) *device.Tuning {
	var found *device.Tuning
	least := math.Inf(1)
	for _, x := range list[0].best {
		sum, all := 0.0, true
		for _, m := range list {
			i := slices.IndexFunc(m.best, func(o timed) bool { return o.Algo == x.Algo && o.ordered })
			if all = all && i >= 0; all {
				sum += math.Log(m.best[i].Micros / m.best[0].Micros)
			}
		}
		if all && sum < least {
			found, least = &device.Tuning{Algo: x.Algo}, sum
		}
	}
	return found
}
