// Package lower turns sharded programs into explicit host programs, pass by pass. The entry point is Run. The input and
// the result of every pass are valid programs that can be printed, parsed and run. No pass changes its input.
package lower

import (
	"fmt"
	"slices"
)

// Pass is one row of the pass table.
type Pass struct {
	// Name is the pass's name as an argument of --print-after.
	Name string
	// Doc describes the pass in one line.
	Doc string
	// Requires names the passes whose results this pass depends on.
	Requires []string

	run func(*unit) error
}

// passes is the pass table. The passes run in the order of its rows.
var passes = []Pass{
	{
		Name: "shard",
		Doc:  "inserts a reshard wherever an operand or result needs another layout, and annotates every value with its type",
		run:  shard,
	},
	{
		Name:     "clean",
		Doc:      "removes reshards that change nothing",
		Requires: []string{"shard"},
		run:      clean,
	},
	{
		Name:     "decompose",
		Doc:      "replaces reshards by collectives, transfers and local cuts",
		Requires: []string{"shard"},
		run:      decompose,
	},
	{
		Name:     "overlap",
		Doc:      "overlaps collectives with the GEMMs next to them, pair by pair, by the selected strategy",
		Requires: []string{"decompose"},
		run:      overlap,
	},
}

// constraint records that the pass before must run earlier than the pass after, and the reason.
type constraint struct{ before, after, reason string }

// order lists the constraints on the order of the table's rows in addition to those in Requires.
var order = []constraint{
	{"shard", "decompose", "decompose expects the reshards that shard inserts"},
	{"clean", "decompose", "a reshard that changes nothing would become a copy, which may be the user's own"},
	{"decompose", "overlap", "pairs are found by their collectives"},
}

// tableErr is an error in the pass table, or nil. Run returns tableErr; a panic at initialization would crash every
// importing program.
var tableErr = checkTable(passes, order)

// checkTable returns an error if a pass has no name or the name of another pass, runs before a pass that it requires,
// or violates a constraint in order.
func checkTable(passes []Pass, order []constraint) error {
	at := map[string]int{}
	for i, p := range passes {
		if _, twice := at[p.Name]; twice || p.Name == "" || p.run == nil {
			return fmt.Errorf("pass table: row %d (%q) has no name, no function or the name of another", i, p.Name)
		}
		at[p.Name] = i
	}
	for _, p := range passes {
		for _, r := range p.Requires {
			if err := checkOrder(at, constraint{r, p.Name, p.Name + " requires it"}); err != nil {
				return err
			}
		}
	}
	for _, c := range order {
		if err := checkOrder(at, c); err != nil {
			return err
		}
	}
	return nil
}

func checkOrder(at map[string]int, c constraint) error {
	for _, name := range []string{c.before, c.after} {
		if _, ok := at[name]; !ok {
			return fmt.Errorf("pass table: there is no pass %s", name)
		}
	}
	if at[c.before] >= at[c.after] {
		return fmt.Errorf("pass table: %s must run before %s: %s", c.before, c.after, c.reason)
	}
	return nil
}

// Passes returns the passes in the order in which they run.
func Passes() []Pass { return slices.Clone(passes) }
