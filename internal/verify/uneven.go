package verify

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// countsFit checks the counts of an uneven collective. For other collectives, it checks that they have no counts. The
// result describes the first error; it is "" if there is none. The operands of the members have in[axis] rows, and
// their results have out[axis] rows. If the counts are in device memory, only their location is known; the accesses
// that depend on them are then checked as if all rows were transferred.
func countsFit(c *plan.Coll, in, out []int64) string {
	if !c.Op.Uneven() {
		for m := range c.Parts {
			if p := &c.Parts[m]; len(p.Rows) > 0 || len(p.Counts) > 0 {
				return fmt.Sprintf("member %d has counts, which %s does not take", m, c.Op)
			}
		}
		return ""
	}
	if !within(c.Axis, min(len(in), len(out))) {
		return fmt.Sprintf("there is no dimension %d", c.Axis)
	}
	held, room := in[c.Axis], out[c.Axis]
	gets := make([]int64, len(c.Parts))
	for m := range c.Parts {
		p := &c.Parts[m]
		if why := countsPlaced(c, p); why != "" {
			return fmt.Sprintf("member %d %s", m, why)
		}
		if len(p.Counts) > 0 {
			continue
		}
		gives := int64(0)
		for k, n := range p.Rows {
			if n < 0 || n > held && n > room {
				return fmt.Sprintf("the counts of member %d are %v, which do not fit operands of %d rows and "+
					"results of %d", m, p.Rows, held, room)
			}
			gives += n
			switch c.Op {
			case ir.OpAllToAllV:
				gets[k] += n
			case ir.OpAllGatherV:
				gets[m] += n
			}
		}
		switch c.Op {
		case ir.OpAllGatherV:
			gives = p.Rows[m]
		case ir.OpReduceScatterV:
			gets[m] = p.Rows[m]
		}
		if gives > held {
			return fmt.Sprintf("member %d sends %d rows, but its operand has only %d", m, gives, held)
		}
	}
	for m, n := range gets {
		if n > room {
			return fmt.Sprintf("member %d receives %d rows, but its result has only %d", m, n, room)
		}
	}
	return ""
}

// countsPlaced checks that the collective has a count for each member, that all members have their counts in the
// program's text, or all in device memory, and that the counts are equal on all members if the operation requires this.
func countsPlaced(c *plan.Coll, p *plan.CollPart) string {
	n, first := len(c.Parts), &c.Parts[0]
	switch {
	case len(p.Counts) != len(first.Counts) || len(p.Counts) > 1:
		return "must have its counts in one place, which is the same for all members: the text or device memory"
	case len(p.Counts) == 1:
		if r := &p.Counts[0]; len(p.Rows) > 0 || !r.Present() || r.DType != ir.I32 || !slices.Equal(r.Shape, []int64{int64(n)}) {
			return fmt.Sprintf("has counts that are not i32[%d]", n)
		}
	case len(p.Rows) != n:
		return fmt.Sprintf("has %d counts for %d members", len(p.Rows), n)
	case c.Op != ir.OpAllToAllV && !slices.Equal(p.Rows, first.Rows):
		return fmt.Sprintf("has counts %v, but member 0 has %v", p.Rows, first.Rows)
	}
	return ""
}
