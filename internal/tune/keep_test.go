package tune

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/ir"
)

// opsKept lists the collectives in the CPU machine's table for 2 ranks.
func opsKept(t *testing.T) (names []string) {
	t.Helper()
	f := foundFor(t, "cpu")
	if f.Table == nil {
		t.Fatal(f.Ignored)
	}
	for _, e := range f.Table.Entries {
		names = append(names, e.Op)
	}
	slices.Sort(names)
	return names
}

// tuneOne tunes collectives of the CPU machine, beginning with a given table.
func tuneOne(t *testing.T, ctx context.Context, base comm.Found, said func(string), ops ...ir.Op) (*Tuned, error) {
	t.Helper()
	file, err := TableFile(base, 2)
	if err != nil {
		t.Fatal(err)
	}
	return Tune(ctx, Options{Ranks: 2, Base: base, File: file, Ops: ops, Sizes: []int64{1024}, Progress: said})
}

// TestTuneAtOnce checks that, if several tunings run at the same time and begin without a table, the final table has
// the entries of all of them.
func TestTuneAtOnce(t *testing.T) {
	t.Setenv("HOCKET_CACHE", t.TempDir())
	base := foundFor(t, "cpu")
	for _, op := range []ir.Op{ir.OpAllReduce, ir.OpAllGather, ir.OpBroadcast} {
		if u, err := tuneOne(t, context.Background(), base, nil, op); err != nil || len(u.Notes) > 0 ||
			u.Hash != foundFor(t, "cpu").Table.Hash() {
			t.Fatalf("%s: %+v, %v", op, u, err)
		}
	}
	if got := opsKept(t); !slices.Equal(got, []string{"all_gather", "all_reduce", "broadcast"}) {
		t.Errorf("kept are %q", got)
	}
}

// TestTuneInterrupted checks that an interrupted tuning keeps the entries that it has measured and those of earlier
// tunings.
func TestTuneInterrupted(t *testing.T) {
	t.Setenv("HOCKET_CACHE", t.TempDir())
	if _, err := tuneOne(t, context.Background(), foundFor(t, "cpu"), nil, ir.OpBroadcast); err != nil {
		t.Fatal(err)
	}
	ctx, interrupt := context.WithCancel(context.Background())
	_, err := tuneOne(t, ctx, foundFor(t, "cpu"), func(s string) {
		if strings.Contains(s, "all_gather") {
			interrupt()
		}
	}, ir.OpAllReduce, ir.OpAllGather)
	if err == nil {
		t.Error("it ended well")
	}
	if got := opsKept(t); !slices.Equal(got, []string{"all_reduce", "broadcast"}) {
		t.Errorf("kept are %q", got)
	}
}

// TestTuneAside checks that an unusable table is renamed, and kept next to the new table. A tuning that writes to
// another path must leave it in place. Both report it.
func TestTuneAside(t *testing.T) {
	t.Setenv("HOCKET_CACHE", t.TempDir())
	if _, err := tuneOne(t, context.Background(), foundFor(t, "cpu"), nil, ir.OpBroadcast, ir.OpAllGather); err != nil {
		t.Fatal(err)
	}
	file := foundFor(t, "cpu").From
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	newer := strings.Replace(string(data), `"version": 1`, `"version": 2`, 1)
	if err := os.WriteFile(file, []byte(newer), 0o644); err != nil {
		t.Fatal(err)
	}
	base := foundFor(t, "cpu")
	u, err := Tune(context.Background(),
		Options{Ranks: 2, Base: base, File: t.TempDir() + "/mine.json", Ops: []ir.Op{ir.OpBroadcast},
			Sizes: []int64{1024}})
	if err != nil || len(u.Notes) != 1 ||
		!strings.HasSuffix(u.Notes[0], "the table has version 2, but this hocket reads only version 1") {
		t.Errorf("elsewhere: %+v, %v", u, err)
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != newer {
		t.Errorf("the table file contains %s, %v", got, err)
	}
	u, err = tuneOne(t, context.Background(), base, nil, ir.OpAllReduce)
	if err != nil || len(u.Notes) != 1 ||
		!strings.Contains(u.Notes[0], "this hocket reads only version 1; that file is now "+file+".old.1") {
		t.Errorf("here: %+v, %v", u, err)
	}
	if got, err := os.ReadFile(file + ".old.1"); err != nil || string(got) != newer {
		t.Errorf("the renamed file contains %s, %v", got, err)
	}
	if got := opsKept(t); !slices.Equal(got, []string{"all_reduce"}) {
		t.Errorf("kept are %q", got)
	}
}
