package tune

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"hocket.example/hocket/internal/bench"
	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/contest"
	"hocket.example/hocket/ir"
)

// TestTuneTeams checks that a machine's own launches are tuned and chosen, by graph, that algorithms with wrong results
// are omitted with a note, and that entries with NCCL as the fastest also list an algorithm that adds in the order of
// the members.
func TestTuneTeams(t *testing.T) {
	t.Setenv("HOCKET_CACHE", t.TempDir())
	file, err := TableFile(foundFor(t, "abacus-with-teams"), 2)
	if err != nil {
		t.Fatal(err)
	}
	u, err := Tune(context.Background(),
		Options{Machine: "abacus-with-teams", Ranks: 2, Sizes: []int64{4096, 16384}, File: file})
	if err != nil {
		t.Fatal(err)
	}
	if len(u.Table.Entries) != len(contest.TunedOps) || u.Table.Identity != "abacus sm_123" {
		t.Fatalf("%+v", u.Table)
	}
	for _, e := range u.Table.Entries {
		for _, b := range e.Brackets {
			var names []string
			for _, x := range b.Best {
				names = append(names, x.Algo)
			}
			if slices.Contains(names, "wrong") || !slices.Contains(names, "quick") ||
				!slices.Contains([]string{"quick", "nccl"}, names[0]) {
				t.Errorf("%s up to %d: %v", e.Op, b.UpTo, names)
			}
		}
		if e.Fixed == nil || e.Fixed.Algo == "nccl" {
			t.Errorf("%s: fixed is %+v", e.Op, e.Fixed)
		}
	}
	if !strings.Contains(strings.Join(u.Notes, "\n"), "by wrong: ") {
		t.Errorf("notes %q do not report the error", u.Notes)
	}
	rep, err := bench.Run(context.Background(), "allreduce",
		bench.Options{Machine: "abacus-with-teams", Ranks: 2, Rounds: 1, Sizes: []int64{4096},
			Algorithms: []string{"all"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range rep.Collectives[0].Ways {
		if w.Graph == nil || w.Eager == nil || (w.Wrong > 0) != (w.Algorithm == "wrong") {
			t.Errorf("%+v", w)
		}
		if w.By == "table" && w.Algorithm != "quick" {
			t.Errorf("the sum in order uses %s", w.Algorithm)
		}
	}
	var text bytes.Buffer
	if err := rep.WriteText(&text); err != nil ||
		!strings.Contains(text.String(), "chosen algorithm compared with the fastest other one") {
		t.Errorf("%v\n%s", err, text.String())
	}
}

// TestTuneGoesOn checks that only missing entries of a table are measured: no entry if the table has all, one entry if
// this entry is missing, and all entries again if the user requests this. Shipped entries must be used for collectives
// that were not measured.
func TestTuneGoesOn(t *testing.T) {
	t.Setenv("HOCKET_CACHE", t.TempDir())
	ctx := context.Background()
	tune := func(o Options) *Tuned {
		t.Helper()
		o.Machine, o.Ranks, o.Base = "abacus-with-teams", 2, foundFor(t, "abacus-with-teams")
		var err error
		if o.File, err = TableFile(o.Base, 2); err != nil {
			t.Fatal(err)
		}
		u, err := Tune(ctx, o)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	here := func(u *Tuned) (names []string) {
		for _, e := range u.Table.Entries {
			if !e.Shipped {
				names = append(names, fmt.Sprintf("%s %s %d", e.Op, e.Reduction, e.Elem))
			}
		}
		slices.Sort(names)
		return names
	}
	first := tune(Options{Ops: []ir.Op{ir.OpBroadcast}, Sizes: []int64{1024}})
	if got := here(first); !slices.Equal(got, []string{"broadcast  2"}) || len(first.Table.Entries) < 6 {
		t.Errorf("measured %q of %d entries", got, len(first.Table.Entries))
	}
	var text bytes.Buffer
	if err := first.WriteText(&text); err != nil ||
		!strings.Contains(text.String(), "; from the shipped table, not measured on this machine") {
		t.Errorf("%v\n%s", err, text.String())
	}
	two := []ir.Op{ir.OpBroadcast, ir.OpAllGather}
	second := tune(Options{Ops: two})
	if got := here(second); len(got) != 2 || second.Table.Hash() == first.Hash {
		t.Errorf("measured %q", got)
	}
	key := kind{op: ir.OpBroadcast, dt: ir.BF16, members: 2}.entry()
	if diff := cmp.Diff(first.Table.Entry(key), second.Table.Entry(key)); diff != "" {
		t.Errorf("measured again: %s", diff)
	}
	if u := tune(Options{Ops: two}); u.Fresh || u.Hash != second.Hash {
		t.Errorf("measured entries that exist already: %+v", here(u))
	}
	base := foundFor(t, "abacus-with-teams")
	for _, c := range []struct {
		o    Options
		want bool
	}{{Options{}, true}, {Options{Again: true}, false}, {Options{Sizes: []int64{4}}, false},
		{Options{Full: true}, false}} {
		c.o.Base = base
		if got := (&tuner{Options: c.o}).known(kind{op: ir.OpBroadcast, dt: ir.BF16, members: 2}); got != c.want {
			t.Errorf("%+v: known %v", c.o, got)
		}
	}
	// Shipped entries for other GPUs are removed when all collectives have been measured, and not earlier.
	if n := len(second.Table.Entries); n < 6 {
		t.Errorf("%d entries are left", n)
	}
	third := tune(Options{Ops: []ir.Op{ir.OpAllReduce, ir.OpReduceScatter, ir.OpAllToAll}})
	if got := here(third); len(got) != 5 || len(third.Table.Entries) != 5 {
		t.Errorf("measured %q of %d entries", got, len(third.Table.Entries))
	}
}

// TestTuneFull checks that a full tuning includes maxima and 4-byte types, and that entries measured at user-selected
// sizes are not considered full.
func TestTuneFull(t *testing.T) {
	t.Setenv("HOCKET_CACHE", t.TempDir())
	o := Options{Machine: "abacus-with-teams", Ranks: 2, Full: true, Ops: []ir.Op{ir.OpAllReduce, ir.OpAllGather},
		Sizes: []int64{4096}}
	u, err := Tune(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range u.Table.Entries {
		got = append(got, fmt.Sprintf("%s %s %d %t", e.Op, e.Reduction, e.Elem, e.Full))
		for _, b := range e.Brackets {
			if len(b.Best) == 0 || slices.ContainsFunc(b.Best, func(x comm.Timed) bool { return x.Algo == "wrong" }) {
				t.Errorf("%s %s: %+v", e.Op, e.Reduction, b.Best)
			}
		}
	}
	if want := []string{"all_reduce sum 2 false", "all_gather  2 false", "all_reduce minmax 2 false",
		"all_reduce sum 4 false"}; !slices.Equal(got, want) {
		t.Errorf("entries %q, want %q", got, want)
	}
	// On three ranks an operand of 2-byte elements that is split cannot have 4 bytes, and 8 bytes are rounded down to
	// 6.
	if u, err = Tune(context.Background(),
		Options{Machine: "abacus-with-teams", Ranks: 3, Ops: []ir.Op{ir.OpAllReduce, ir.OpAllToAll},
			Sizes: []int64{4, 8}}); err != nil {
		t.Fatal(err)
	}
	if n := []int{len(u.Table.Entries[0].Brackets), len(u.Table.Entries[1].Brackets)}; n[0] != 2 || n[1] != 1 {
		t.Errorf("%d brackets", n)
	}
	if _, err := Tune(context.Background(), Options{Ranks: 2, Sizes: []int64{3}}); !errors.Is(err, contest.ErrUsage) {
		t.Errorf("3 bytes: %v", err)
	}
	var unkept *KeepError
	if _, err := Tune(context.Background(), Options{Ranks: 2, File: t.TempDir()}); !errors.As(err, &unkept) ||
		!strings.Contains(err.Error(), "it is a directory") {
		t.Errorf("a folder in place of the file: %v", err)
	}
}
