package bench

import (
	"context"
	"fmt"
	"slices"
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
