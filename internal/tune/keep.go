package tune

import (
	"context"

	"hocket.example/hocket/internal/comm"
)

// keep adds an entry that was measured to the table, and writes that where it belongs.
func (u *tuner) keep(ctx context.Context, t *comm.Table, e comm.Entry) error {
	u.done = append(u.done, e)
	t.Put(e)
	if !u.shared() {
		u.settle(t)
		if u.File == "" {
			return nil
		}
		if err := t.Write(u.File); err != nil {
			return &KeepError{err}
		}
		return nil
	}
	moved, err := t.Keep(ctx, u.File, func(there *comm.Table) { u.join(t, there) })
	if moved != "" {
		u.note("%s", moved)
	}
	return err
}

// shared reports whether the table is written to the file that worlds look for, which
// others may tune at the same time.
func (u *tuner) shared() bool {
	path, err := comm.Path(u.identity, u.Ranks)
	return err == nil && path == u.File
}

// join makes the table one of what is there, if anything is, with what was measured now in
// its place: the entries that this tuning began with may have been measured by others since.
func (u *tuner) join(t, there *comm.Table) {
	if there != nil {
		t.Entries = there.Entries
		described := t.Algorithms
		t.Algorithms = nil
		t.Describe(there.Algorithms)
		t.Describe(described)
		for _, e := range u.done {
			t.Put(e)
		}
	}
	u.settle(t)
}
