package eval

import (
	"fmt"
	"slices"

	"hocket.example/hocket/ir"
)

// This file holds the uneven collectives. Along one axis, each rank has a count of rows for each member of the
// team. The counts of all_gatherv and reduce_scatterv must be equal on all ranks. The counts of all_to_allv are the
// numbers of rows that the rank sends to each member. The result has as many rows as its destination, which is the
// capacity; the rows after the received ones are zeros.

// counts returns a function that reads the counts of s. If the counts are in the program's text, they are evaluated
// immediately, and the list memory is empty. If the counts are in device memory, they are read when the operation runs.
func (r *rank) counts(s *ir.Stmt) (read func() (*array, error), memory []view, err error) {
	if len(s.Args) == 2 {
		v, err := r.tensor(&s.Args[1])
		return v.read, []view{v}, err
	}
	listed := newArray(ir.I64, []int64{int64(len(s.Attr("counts").Exprs))})
	for i, e := range s.Attr("counts").Exprs {
		if listed.n[i], err = r.eval(e); err != nil {
			return nil, nil, err
		}
	}
	return func() (*array, error) { return listed, nil }, nil, nil
}

// uneven returns the tensor that member me of an uneven collective receives, with the given capacity of rows along the
// axis.
func (c *meeting) uneven(me int, capacity int64) (*array, error) {
	k := c.members[me].kind
	if err := c.countsFit(k, me, capacity); err != nil {
		return nil, err
	}
	parts, err := c.unevenParts(k, me)
	if err != nil {
		return nil, err
	}
	shape := slices.Clone(c.members[me].in.shape)
	shape[k.axis] = capacity
	out := newArray(parts[0].dt, shape)
	if parts[0].mag != nil {
		out.mag = make([]float64, out.len())
	}
	at := int64(0)
	for _, p := range parts {
		n := p.shape[k.axis]
		out.put(dense(shape).rows(k.axis, at, at+n), p)
		at += n
	}
	if !c.countsCertain() {
		for i := range out.e {
			out.e[i] = inf
		}
	}
	return out, nil
}

// unevenParts returns the rows that member me receives, in the order of the ranks that send them.
func (c *meeting) unevenParts(k kindOf, me int) ([]*array, error) {
	var parts []*array
	for i, p := range c.members {
		rows := p.counts.n
		lo, n := before(rows, me), rows[me]
		if k.op == ir.OpAllGatherV {
			lo, n = 0, rows[i]
		}
		parts = append(parts, p.in.view(dense(p.in.shape).rows(k.axis, lo, lo+n)))
	}
	if k.op != ir.OpReduceScatterV {
		return parts, nil
	}
	sum, err := reduceArrays(k.red, parts, k.anyOrder)
	return []*array{sum}, err
}

// before returns the sum of the counts of the members before me.
func before(counts []int64, me int) int64 {
	sum := int64(0)
	for _, n := range counts[:me] {
		sum += n
	}
	return sum
}

// countsCertain reports whether all members' counts are certified exact.
func (c *meeting) countsCertain() bool {
	for _, p := range c.members {
		if slices.ContainsFunc(p.counts.e, func(e float64) bool { return e != 0 }) {
			return false
		}
	}
	return true
}

// countsFit checks that no count is negative, that operands have the rows that are read from them, that destinations
// have room for the rows that are written, and that ranks agree where they must. The errors of countsFit have the same
// text as the errors of a run.
func (c *meeting) countsFit(k kindOf, me int, capacity int64) error {
	gets := int64(0)
	for i, p := range c.members {
		rows, held := p.counts.n, p.in.shape[k.axis]
		if k.op != ir.OpAllToAllV && !slices.Equal(rows, c.members[me].counts.n) {
			return c.misfit(i, "the counts of member %d of the team are %v, those of member %d %v: all members "+
				"must have equal counts",
				i, rows, me, c.members[me].counts.n)
		}
		for j, n := range rows {
			if n < 0 || n > max(held, capacity) {
				return c.misfit(i, "counts[%d] of member %d of the team is %d, with operands of %d rows and a result of %d", j, i, n, held, capacity)
			}
		}
		gives := before(rows, len(rows))
		if k.op == ir.OpAllGatherV {
			gives = rows[i]
		}
		if gives > held {
			return c.misfit(i, "the counts %v of member %d of the team take %d rows from an operand of %d", rows, i, gives, held)
		}
		switch k.op {
		case ir.OpAllGatherV:
			gets += rows[i]
		case ir.OpAllToAllV:
			gets += rows[me]
		default:
			gets = rows[me]
		}
	}
	if gets > capacity {
		return c.misfit(me, "member %d of the team gets %d rows, and its result has room for %d", me, gets,
			capacity)
	}
	return nil
}

func (c *meeting) misfit(member int, format string, args ...any) error {
	return &finding{kind: "range", message: fmt.Sprintf("rank %d of %v: ", c.team[member], c.members[member].kind.op) + fmt.Sprintf(format, args...),
		help: "counts are rows along axis=, one for each rank of the team"}
}
