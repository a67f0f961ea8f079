package comm

import (
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/machine"
	"hocket.example/hocket/ir"
)

// mostEntries is the largest number of entries of a table, and of brackets of an entry. It is limited because each
// collective of a program searches both lists.
const mostEntries = 4096

// Check returns an error that describes the first fault of the table, or nil.
func (t *Table) Check() error {
	if t.Version != TableVersion {
		return fmt.Errorf("the table has version %d, but this hocket reads only version %d", t.Version, TableVersion)
	}
	if len(t.Entries) > mostEntries {
		return fmt.Errorf("the table has %d entries, but at most %d are allowed", len(t.Entries), mostEntries)
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
		return fmt.Errorf("it has %d members and elements of %d bytes; at least 2 members and 1 byte are required",
			e.Members, e.Elem)
	case len(e.Brackets) > mostEntries || len(e.Checked) > mostEntries:
		return fmt.Errorf("it has %d brackets and %d checked sizes, but at most %d of each are allowed", len(e.Brackets),
			len(e.Checked), mostEntries)
	case len(e.Brackets) == 0:
		return fmt.Errorf("it has no brackets")
	}
	if err := e.checkNames(); err != nil {
		return err
	}
	if e.Fixed != nil && !isTuning(*e.Fixed) {
		return fmt.Errorf("fixed: %+v is not a valid tuning: it needs a name, and no field may be negative", *e.Fixed)
	}
	last := int64(0)
	for i, b := range e.Brackets {
		end := i == len(e.Brackets)-1
		if end != (b.UpTo == 0) || !end && b.UpTo <= last {
			return fmt.Errorf("bracket %d ends at %d: the ends of brackets must ascend, and the last bracket must have none", i,
				b.UpTo)
		}
		last = b.UpTo
		if err := b.check(); err != nil {
			return fmt.Errorf("bracket %d: %w", i, err)
		}
	}
	return nil
}

// checkNames returns an error for a collective or a reduction that does not exist. No lookup would find an entry with
// such a name.
func (e *Entry) checkNames() error {
	op, ok := ir.ParseOp(e.Op)
	if !ok || op.Info().Class != ir.ClassCollective {
		return fmt.Errorf("unknown collective %q; the collectives are all_reduce, all_gather and others "+
			"(docs/language.md)",
			e.Op)
	}
	allowed := reductionsOf(op)
	switch {
	case e.Reduction == "" || slices.Contains(allowed, e.Reduction): // the shipped entry of reduce names none
		return nil
	case allowed == nil:
		return fmt.Errorf("it has the reduction %q, but this collective reduces nothing: remove the reduction", e.Reduction)
	}
	return fmt.Errorf("unknown reduction %q; the reductions are %s", e.Reduction, strings.Join(allowed, ", "))
}

// reductionsOf returns the values that ReductionOf has for an op; none if the op reduces nothing.
func reductionsOf(op ir.Op) (list []string) {
	for _, red := range []ir.Red{ir.Sum, ir.Max} {
		if name := ReductionOf(red, op); name != "" {
			list = append(list, name)
		}
	}
	return list
}

// check returns an error for a bracket whose sizes or times are out of range. The limits are the same as those for
// predictions; see package machine.
func (b *Bracket) check() error {
	switch {
	case b.UpTo > machine.MostBytes:
		return fmt.Errorf("it ends at %d bytes; message sizes must be at most 2^50 bytes", b.UpTo)
	case b.At < 0 || b.At > machine.MostBytes:
		return fmt.Errorf("it was measured at %d bytes; message sizes must be between 0 and 2^50 bytes", b.At)
	}
	for _, x := range b.Best {
		switch {
		case !isTuning(x.Tuning):
			return fmt.Errorf("%+v is not a valid tuning: it needs a name, and no field may be negative", x.Tuning)
		case !(x.Micros >= 0 && x.Micros <= machine.MostMicros):
			return fmt.Errorf("%s took %v µs; times must be between 0 and %v µs", x.Algo, x.Micros,
				machine.MostMicros)
		}
	}
	return nil
}

// isTuning reports whether t has a name and no negative field. Launch parameters that a machine does not support are
// declined by the machine.
func isTuning(t device.Tuning) bool {
	return t.Algo != "" && min(t.Blocks, t.Threads, t.Unroll) >= 0
}
