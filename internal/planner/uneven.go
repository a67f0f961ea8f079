package planner

import (
	"fmt"
	"slices"

	"hocket.example/hocket/ir"

	"hocket.example/hocket/internal/plan"
)

// counts evaluates the counts of an uneven collective. If the text contains the counts, they are stored as numbers in
// the argument part. If the counts are in memory, which is the second operand, part refers to that memory.
func (u *communication) counts(s *ir.Stmt, ins []plan.Ref, part *plan.CollPart) error {
	if len(ins) == 2 {
		part.Counts = ins[1:]
		return u.wantDense(s, &s.Args[1], ins[1])
	}
	a := s.Attr("counts")
	part.Rows = make([]int64, len(a.Exprs))
	for i, e := range a.Exprs {
		n, err := u.eval(s, e)
		switch {
		case err != nil:
			return err
		case n < 0 || n > maxRows:
			return u.errf("bind", e.Pos, "", "counts[%d] is %d", i, n)
		}
		part.Rows[i] = n
	}
	return nil
}

// maxRows is the maximum of one count. No tensor has more rows, and sums of counts up to maxRows do not overflow.
const maxRows = 1 << 40

// countsDiffer describes the first difference between the counts of two members. countsDiffer returns "" if the counts
// are equal or need not be equal.
func countsDiffer(a, b *issue) string {
	switch x, y := &a.part, &b.part; {
	case !a.coll.Op.Uneven():
	case len(x.Counts) != len(y.Counts):
		return "one member has its counts in the text, the other in memory"
	case a.coll.Op != ir.OpAllToAllV && !slices.Equal(x.Rows, y.Rows):
		return fmt.Sprintf("counts=%v and counts=%v", y.Rows, x.Rows)
	}
	return ""
}

// countsFit checks counts that the text contains: each operand must have as many rows as are sent from it, and each
// destination must have room for the rows that it receives. countsFit returns the first member for which this is not
// true, and the reason. The shapes in and out must include the dimension along which the counts are.
func countsFit(c *plan.Coll, in, out []int64) (int, string) {
	if c.Parts[0].Rows == nil {
		return 0, ""
	}
	for m, part := range c.Parts {
		takes := total(part.Rows)
		if c.Op == ir.OpAllGatherV {
			takes = part.Rows[m]
		}
		if takes > in[c.Axis] {
			return m, fmt.Sprintf("counts=%v add up to %d rows, but the operand has %d", part.Rows, takes, in[c.Axis])
		}
	}
	for m := range c.Parts {
		if gets := comes(c, m); gets > out[c.Axis] {
			return m, fmt.Sprintf("%d rows are received, but the result has room for only %d", gets, out[c.Axis])
		}
	}
	return 0, ""
}

// comes returns the total number of rows that member m receives.
func comes(c *plan.Coll, m int) int64 {
	rows := c.Parts[m].Rows
	switch c.Op {
	case ir.OpAllGatherV:
		return total(rows)
	case ir.OpReduceScatterV:
		return rows[m]
	}
	gets := int64(0)
	for _, p := range c.Parts {
		gets += p.Rows[m]
	}
	return gets
}

func total(counts []int64) int64 {
	sum := int64(0)
	for _, n := range counts {
		sum += n
	}
	return sum
}
