package comm

import (
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/machine"
	"hocket.example/hocket/ir"
)

// mostEntries is how many entries a table may have, and brackets an entry: both are gone through for each
// collective of a program.
const mostEntries = 4096

// Check returns what is wrong with a table.
func (t *Table) Check() error {
	if t.Version != TableVersion {
		return fmt.Errorf("it has version %d; this hocket reads version %d", t.Version, TableVersion)
	}
	if len(t.Entries) > mostEntries {
		return fmt.Errorf("it has %d entries; it may have %d", len(t.Entries), mostEntries)
	}
	for i := range t.Entries {
		if err := t.Entries[i].check(); err != nil {
			return fmt.Errorf("entry %d, %s: %w", i, t.Entries[i].Op, err)
		}
	}
	return nil
}

func (e *Entry) check() error {
	switch {
	case e.Members < 2 || e.Elem < 1:
		return fmt.Errorf("%d members, elements of %d bytes", e.Members, e.Elem)
	case len(e.Brackets) > mostEntries || len(e.Checked) > mostEntries:
		return fmt.Errorf("it has %d brackets, and %d sizes that were checked; it may have %d", len(e.Brackets),
			len(e.Checked), mostEntries)
	case len(e.Brackets) == 0:
		return fmt.Errorf("it has no brackets")
	}
	if err := e.checkNames(); err != nil {
		return err
	}
	if e.Fixed != nil && !isTuning(*e.Fixed) {
		return fmt.Errorf("fixed: %+v is no tuning", *e.Fixed)
	}
	last := int64(0)
	for i, b := range e.Brackets {
		end := i == len(e.Brackets)-1
		if end != (b.UpTo == 0) || !end && b.UpTo <= last {
			return fmt.Errorf("bracket %d ends at %d: ends must ascend, and the last has none", i, b.UpTo)
		}
		last = b.UpTo
		if err := b.check(); err != nil {
			return fmt.Errorf("bracket %d: %w", i, err)
		}
	}
	return nil
}

// checkNames refuses a collective, or a reduction, that no lookup asks for: it is misspelt.
func (e *Entry) checkNames() error {
	op, ok := ir.ParseOp(e.Op)
	if !ok || op.Info().Class != ir.ClassCollective {
		return fmt.Errorf("there is no collective %q; there are all_reduce, all_gather and others (docs/language.md)",
			e.Op)
	}
	allowed := reductionsOf(op)
	switch {
	case e.Reduction == "" || slices.Contains(allowed, e.Reduction): // the shipped entry of reduce names none
		return nil
	case allowed == nil:
		return fmt.Errorf("it has the reduction %q, and reduces nothing: leave that out", e.Reduction)
	}
	return fmt.Errorf("there is no reduction %q; there are %s", e.Reduction, strings.Join(allowed, ", "))
}

// reductionsOf lists the names that ReductionOf has for an op; none where it reduces nothing.
func reductionsOf(op ir.Op) (list []string) {
	for _, red := range []ir.Red{ir.Sum, ir.Max} {
		if name := ReductionOf(red, op); name != "" {
			list = append(list, name)
		}
	}
	return list
}

// check refuses what predictions could not be made from, too; see the bounds of machine.
func (b *Bracket) check() error {
	switch {
	case b.UpTo > machine.MostBytes:
		return fmt.Errorf("it ends at %d bytes; sizes are at most 2^50", b.UpTo)
	case b.At < 0 || b.At > machine.MostBytes:
		return fmt.Errorf("it was measured at %d bytes; sizes are positive, and at most 2^50", b.At)
	}
	for _, x := range b.Best {
		switch {
		case !isTuning(x.Tuning):
			return fmt.Errorf("%+v is no tuning", x.Tuning)
		case !(x.Micros >= 0 && x.Micros <= machine.MostMicros):
			return fmt.Errorf("%s took %v µs; times are not negative, and at most %v", x.Algo, x.Micros,
				machine.MostMicros)
		}
	}
	return nil
}

// isTuning reports whether a launch may be so; what a machine has no room for it declines
// itself.
func isTuning(t device.Tuning) bool {
	return t.Algo != "" && min(t.Blocks, t.Threads, t.Unroll) >= 0
}
