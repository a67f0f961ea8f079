package tune

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/contest"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// These are numbers of measured rounds, without the warm-up round. Large calls need few rounds, because their times
// vary by less than 1 % from round to round.
const (
	tuneRounds = 5
	fewRounds  = 2
)

// tuneKind measures the calls of a kind, and stores their entry in the table.
func (u *tuner) tuneKind(ctx context.Context, whole *contest.Arena, k kind, t *comm.Table) error {
	if err := whole.Dress(ctx, k.dt); err != nil {
		return err
	}
	if u.askedOf != k.members {
		if err := u.forget(); err != nil {
			return err
		}
		u.askedOf = k.members
	}
	a := whole.Team(k.members)
	upon := u.upon(k)
	list, err := u.measureAll(ctx, a, k, upon)
	// if an algorithm has wrong results here, the shipped entry may be unsuitable at other sizes, too
	if err == nil && upon != nil && (u.anyWrong(upon) || !mostlyKnown(list)) {
		upon = nil
		list, err = u.measureAll(ctx, a, k, nil)
	}
	if err != nil || len(list) == 0 {
		return err
	}
	var e comm.Entry
	if upon != nil {
		e = entryUpon(upon, list)
	} else {
		e = entryOf(k, list)
		e.Full = u.Full && u.Sizes == nil
	}
	return u.keep(ctx, t, e)
}

// measureAll measures the calls of a kind, and returns the measured calls in the order of their sizes. If there is a
// shipped entry (upon), the measurement checks that entry. The largest call is measured first. The measurement of the
// largest call includes NCCL, so that NCCL creates its communicators while hocket's kernels are compiled.
func (u *tuner) measureAll(ctx context.Context, a *contest.Arena, k kind, upon *comm.Entry) ([]measured, error) {
	var list []measured
	for _, c := range slices.Backward(u.calls(k)) {
		u.begun++
		u.doing = fmt.Sprintf("%d of %d: %s of %s, %s, on %d ranks", min(u.begun, u.total), u.total, c.Op, contest.BytesText(c.Bytes), k.dt, k.members)
		m, err := measured{}, error(nil)
		if upon != nil {
			m, err = u.confirm(ctx, a, k, c, upon)
		}
		if err == nil && !m.known {
			m, err = u.tuneCall(ctx, a, c)
		}
		if err != nil {
			return nil, err
		}
		u.pace.measured()
		if len(m.best) > 0 {
			list = append(list, m)
		}
	}
	slices.Reverse(list)
	return list, nil
}

// progress reports the algorithm that is being measured, since a call with many ranks can take
// seconds with each algorithm.
func (u *tuner) progress(by string) {
	if u.Progress != nil {
		u.Progress(u.doing + ", by " + by)
	}
}

// precompile starts the compilation of kernels that the kinds need. The compilation, which takes longer than measuring,
// then runs during measurements. precompile considers only kinds with the same number of members as the first kind.
func (u *tuner) precompile(whole *contest.Arena, kinds []kind) {
	u.askedOf = kinds[0].members
	for _, k := range kinds {
		if k.members != u.askedOf {
			continue
		}
		a := whole.Team(k.members)
		a.Type = k.dt
		upon := u.upon(k)
		for _, c := range slices.Backward(u.calls(k)) {
			var list []device.Tuning
			if upon != nil {
				list = u.toConfirm(a, k, c, upon)
			}
			if list == nil {
				list = u.names(a, c)
			}
			u.precompileCall(a, c, list)
		}
	}
}

// precompileOpening starts the compilation of kernels that a tuning needs, on machines with dry runs. The compilation
// then runs while the machine is opened.
func (u *tuner) precompileOpening() {
	w, err := u.machine.DryRun(u.Ranks)
	if err != nil {
		return // opening the machine later returns the same error
	}
	a := &contest.Arena{World: w, Type: ir.BF16, Dispatch: comm.NewDispatch(w, u.machine.Caps(), nil, comm.Policy{})}
	for r := range w.Ranks() {
		d := w.Device(r)
		s, err := d.NewStream(device.StreamOptions{Name: "collectives"})
		if err != nil {
			return
		}
		a.Members = append(a.Members, comm.Member{Rank: r, Stream: s})
		for _, list := range []*[]device.Memory{&a.In, &a.Out} {
			mem, err := d.Alloc(u.largest()[0].Bytes, device.Shared)
			if err != nil {
				return
			}
			*list = append(*list, mem)
		}
	}
	u.own = len(w.TeamAlgorithms()) > 0
	u.identity = comm.Identity(u.machine.Name(), w)
	if todo := u.kinds(); len(todo) > 0 {
		u.precompile(a, todo)
	}
}

func (u *tuner) precompileCall(a *contest.Arena, c contest.Call, list []device.Tuning) {
	t := u.ask(a)
	if t == nil {
		return
	}
	for _, tune := range list {
		in := a.Instance(c, 0, tune, true)
		t.PrepareAhead(tune, &in.Collective)
	}
}

// ask returns a team of the arena. The team is kept only to find out which calls it supports. ask returns nil if no
// team can be opened.
func (u *tuner) ask(a *contest.Arena) device.Team {
	if u.asked == nil && len(a.World.TeamAlgorithms()) > 0 {
		u.asked, _ = a.World.OpenTeam(a.Members) // an error is ignored, because opening the channel reports it
	}
	return u.asked
}

// forget closes the team that ask returns.
func (u *tuner) forget() error {
	t := u.asked
	if u.asked = nil; t == nil {
		return nil
	}
	return t.Close()
}

// measured is a call with the tunings that were measured for it, the fastest first.
type measured struct {
	call contest.Call
	best []timed
	// confirmed reports that the first tuning in the shipped table is the fastest at this size. known reports that none
	// of the tunings that were not measured can be the fastest.
	confirmed, known bool
}

// timed is a tuning with its time. ordered reports that the tuning adds in the order of the members, which some
// programs require.
type timed struct {
	comm.Timed
	ordered bool
}

// finalists returns the number of tunings that are measured more than once.
func (u *tuner) finalists() int {
	if u.Full {
		return 10
	}
	return 4
}

// tuneCall measures a call briefly with all algorithms. In a full tuning, it also measures several launch parameters of
// the algorithms that are nearly as fast as the fastest. tuneCall then measures the best tunings alternately, for more
// rounds.
func (u *tuner) tuneCall(ctx context.Context, a *contest.Arena, c contest.Call) (measured, error) {
	m := measured{call: c}
	first, err := u.glance(ctx, a, c, u.names(a, c))
	if err == nil && len(first) == 0 {
		first, err = u.glance(ctx, a, c, contest.NamesOnly(comm.Schedules()))
	}
	if err != nil {
		return m, err
	}
	near := within(first, 1.4)
	if u.Full && u.own {
		u.precompileCall(a, c, instances(near))
		launched := func(name string) bool {
			return !slices.Contains(comm.Schedules(), name) && !a.Dispatch.Info(name).Library
		}
		near, err = descend(near, launched, func(list []device.Tuning) ([]timed, error) { return u.glance(ctx, a, c, list) })
		if err != nil {
			return m, err
		}
		near = within(near, 1.15)
	}
	near = near[:min(len(near), u.finalists())]
	var again []device.Tuning
	for _, x := range near {
		again = append(again, x.Tuning)
	}
	rounds := tuneRounds
	if c.Bytes >= 16<<20 && !u.Full {
		rounds = fewRounds
	}
	if m.best, err = u.try(ctx, a, c, again, rounds); err != nil {
		return m, err
	}
	m.best = ranked(append(m.best, first...), u.blocks(a))
	return m, nil
}

// names lists the tunings to try first: all algorithms with the machine's default launch parameters, and the
// tunings of the shipped table. If the machine has its own launches for collectives, only a full tuning also tries
// schedules.
func (u *tuner) names(a *contest.Arena, c contest.Call) []device.Tuning {
	others := slices.DeleteFunc(a.Dispatch.Algorithms(), func(n string) bool {
		return a.Dispatch.Info(n).Library || u.own && !u.Full && slices.Contains(comm.Schedules(), n)
	})
	// Libraries are first, because their first call creates communicators. This takes as long as compiling the
	// first kernels, which happens at the same time.
	list := contest.NamesOnly(append(a.Dispatch.Libraries(), others...))
	if u.own {
		in := a.Instance(c, 0, device.Tuning{}, true)
		for _, t := range u.shipped.Best(&in) {
			if !slices.Contains(list, t) {
				list = append(list, t)
			}
		}
	}
	return list
}

// within returns the tunings whose time is at most the given multiple of the shortest time, the fastest first.
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

// axis is a launch parameter, with the list of values that the tuning tries.
type axis struct {
	values []int
	of     func(t *device.Tuning) *int
}

// launchAxes lists the launch parameters, which are searched one after another. The search of each parameter tries all
// its values, with the best values of the other parameters. The number of blocks is searched again at the end, when
// the other parameters are known.
var launchAxes = func() []axis {
	blocks := axis{[]int{4, 8, 16, 32, 64, 96, 132}, func(t *device.Tuning) *int { return &t.Blocks }}
	unroll := axis{[]int{1, 2, 4, 8}, func(t *device.Tuning) *int { return &t.Unroll }}
	threads := axis{[]int{256, 512, 1024}, func(t *device.Tuning) *int { return &t.Threads }}
	return []axis{blocks, unroll, threads, blocks}
}()

// instances lists tunings of the algorithms in near. Together these tunings use every kernel that any launch of the
// algorithms needs.
func instances(near []timed) []device.Tuning {
	var list []device.Tuning
	for _, x := range near {
		for _, unroll := range []int{1, 2, 4, 8} {
			for _, threads := range []int{512, 1024} { // kernels for larger blocks are compiled with fewer registers per thread
				t := device.Tuning{Algo: x.Algo, Unroll: unroll, Threads: threads}
				if !slices.Contains(list, t) {
					list = append(list, t)
				}
			}
		}
	}
	return list
}

// descend searches for the best launch parameters of the algorithms in near for which launched returns true. The search
// begins with the algorithm's best tuning so far. It returns all measurements.
func descend(near []timed, launched func(name string) bool, measure func([]device.Tuning) ([]timed, error)) ([]timed, error) {
	all := slices.Clone(near)
	for i, x := range near {
		first := slices.IndexFunc(near, func(o timed) bool { return o.Algo == x.Algo })
		if first < i || !launched(x.Algo) {
			continue
		}
		best := x
		for _, ax := range launchAxes {
			var list []device.Tuning
			for _, v := range ax.values {
				t := best.Tuning
				*ax.of(&t) = v
				if !slices.ContainsFunc(all, func(o timed) bool { return o.Tuning == t }) {
					list = append(list, t)
				}
			}
			got, err := measure(list)
			if err != nil {
				return nil, err
			}
			all = append(all, got...)
			best = within(append(got, best), math.Inf(1))[0]
		}
	}
	return all, nil
}

// glance measures tunings briefly, one after another, so that only one of them needs memory at a time.
func (u *tuner) glance(ctx context.Context, a *contest.Arena, c contest.Call, list []device.Tuning) ([]timed, error) {
	u.precompileCall(a, c, list)
	var out []timed
	for _, t := range list {
		e, ordered, err := u.admit(ctx, a, c, t)
		if err != nil {
			return nil, err
		}
		if e == nil {
			continue
		}
		us, err := roughly(ctx, a, e)
		if err = errors.Join(err, e.Leave()); err != nil {
			return nil, fmt.Errorf("%s of %s by %s: %w", c.Op, contest.BytesText(c.Bytes), t.Algo, err)
		}
		out = append(out, timed{comm.Timed{Tuning: e.Way.Tuning, Micros: max(us, 0.01)}, ordered})
	}
	return out, nil
}

// roughly measures one short chain of calls, and returns the microseconds per call, including the launch of the
// chain.
func roughly(ctx context.Context, a *contest.Arena, e *contest.Entrant) (float64, error) {
	e.Chains = contest.Chains{Long: 20, Eager: 10}
	if e.Call.Bytes >= 16<<20 {
		e.Chains.Long = 5
	}
	if err := a.Capture(ctx, e); err != nil {
		return 0, err
	}
	if e.Long == nil {
		return a.TimeEager(ctx, e)
	}
	n := e.Chains.Long
	if err := a.Replay(ctx, e, e.Long, n); err != nil {
		return 0, err
	}
	ids, err := a.Window(func() error { return a.Replay(ctx, e, e.Long, n) })
	if err != nil {
		return 0, err
	}
	us, err := a.Marks.Take(ctx, a.World, ids...)
	if err != nil {
		return 0, err
	}
	return slices.Max(us) / float64(n), nil
}

// try measures tunings alternately, for the given number of rounds.
func (u *tuner) try(ctx context.Context, a *contest.Arena, c contest.Call, list []device.Tuning, rounds int) (out []timed, err error) {
	var entrants []*contest.Entrant
	var inOrder []bool
	defer func() {
		for _, e := range entrants {
			err = errors.Join(err, e.Leave())
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
			err = e.Leave()
		} else if e != nil {
			entrants, inOrder = append(entrants, e), append(inOrder, ordered)
		}
		if err != nil {
			return nil, fmt.Errorf("%s of %s by %s: %w", c.Op, contest.BytesText(c.Bytes), t.Algo, err)
		}
	}
	u.progress("the fastest algorithms, alternately")
	if err := a.Race(ctx, entrants, rounds, false); err != nil {
		return nil, err
	}
	for i, e := range entrants {
		out = append(out, timed{comm.Timed{Tuning: e.Way.Tuning, Micros: max(e.Way.Best(), 0.01)}, inOrder[i]})
	}
	return out, nil
}

// recordedWrong records the graphs of an entrant, and reports whether their results are wrong. If the results are
// wrong, recordedWrong also adds a note.
func (u *tuner) recordedWrong(ctx context.Context, a *contest.Arena, e *contest.Entrant) (bool, error) {
	if err := a.Capture(ctx, e); err != nil || e.Short == nil {
		return false, err
	}
	wrong, _, err := a.Check(ctx, e, func() error { return a.Replay(ctx, e, e.Short, e.Chains.Short) })
	if wrong > 0 {
		u.wrong(e.Call, e.Way.Tuning, wrong)
	}
	return wrong > 0, err
}

func (u *tuner) wrong(c contest.Call, t device.Tuning, elements int64) {
	u.wrongs[t.Algo] = true
	u.note("%s of %s by %s: %d elements of the result are wrong, so the algorithm is not used", c.Op,
		contest.BytesText(c.Bytes), contest.TuningText(t), elements)
}

// admit opens a channel for a tuning, and reports whether the tuning adds in the order of the members. If the
// machine declines the tuning, admit returns no entrant. If the tuning fails or has a wrong result, admit also adds
// a note.
func (u *tuner) admit(ctx context.Context, a *contest.Arena, c contest.Call, t device.Tuning) (*contest.Entrant, bool, error) {
	if !u.possible(a, c, t) {
		return nil, false, nil
	}
	u.progress(contest.TuningText(t))
	began := u.pace.now()
	e, err := a.Enter(c, a.Dispatch, t, false)
	ordered := err == nil
	if errors.Is(err, device.ErrUnsupported) {
		e, err = a.Enter(c, a.Dispatch, t, true)
	}
	u.pace.preparedFrom(began)
	switch {
	case errors.Is(err, device.ErrUnsupported):
		return nil, false, nil
	case err != nil && a.Ended(ctx):
		return nil, false, err
	case err != nil:
		u.note("%s of %s by %s: %v", c.Op, contest.BytesText(c.Bytes), contest.TuningText(t), err)
		return nil, false, nil
	}
	wrong, _, err := a.Check(ctx, e, func() error { return a.Run(e, 1) })
	if err != nil {
		return nil, false, errors.Join(err, e.Leave())
	}
	if wrong > 0 {
		u.wrong(c, t, wrong)
		return nil, false, e.Leave()
	}
	return e, ordered, nil
}

// possible reports whether one of the machine's own launches supports the call, in any order of sums. possible asks the
// team that the method ask returns, which is cheaper than opening a channel.
func (u *tuner) possible(a *contest.Arena, c contest.Call, t device.Tuning) bool {
	info := a.Dispatch.Info(t.Algo)
	if !slices.Contains(device.AlgorithmNames(a.World.TeamAlgorithms()), t.Algo) {
		return true
	}
	asked := u.ask(a)
	if asked == nil {
		return true
	}
	in := a.Instance(c, 0, t, true)
	return info.Check(&in.Collective) == nil && asked.Supports(t, &in.Collective) == nil
}
