package tune

import (
	"context"

	"hocket.example/hocket/internal/comm"
)

// keep adds a measured entry e to the table t, and writes the table to its file.
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

// shared reports whether the table is written to the file that worlds read by default. Other tunings may write this
// file at the same time.
func (u *tuner) shared() bool {
	path, err := comm.Path(u.identity, u.Ranks)
	return err == nil && path == u.File
}

// join updates the table t from the table in the file, there. Entries that this tuning has measured replace those in
// the file. All other entries are taken from the file, since another tuning may have measured them after this one
// began.
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
