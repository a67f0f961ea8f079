package verify

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// fits checks the parts of a collective that its members issue. The element types, the root and the peers must agree,
// and the shapes must have the relation that the operation requires. The result describes the first mismatch; it is ""
// if there is none.
func fits(c *plan.Coll) string {
	n := int32(len(c.Parts))
	if !isOp(c.Op) || c.Op != ir.OpBarrier && c.Op.Info().Class != ir.ClassCollective {
		return "it is not a collective"
	}
	rooted := c.Op == ir.OpBroadcast || c.Op == ir.OpReduce || c.Op == ir.OpGather || c.Op == ir.OpScatter
	if rooted && !within(c.Root, int(n)) {
		return fmt.Sprintf("root=%d is not one of the %d members", c.Root, n)
	}
	if why := peersFit(c); why != "" {
		return why
	}
	var in, out *plan.Ref
	for m := range c.Parts {
		p := &c.Parts[m]
		reads, writes := takesPart(c, int32(m))
		if reads != p.In.Present() || writes != p.Out.Present() {
			return fmt.Sprintf("member %d lacks an operand or result, or has one too many", m)
		}
		if why := alike(&in, &p.In); why != "" {
			return why
		}
		if why := alike(&out, &p.Out); why != "" {
			return why
		}
	}
	if in == nil || out == nil {
		return ""
	}
	if in.DType != out.DType {
		return fmt.Sprintf("operands are %s, results %s", in.DType, out.DType)
	}
	if why := countsFit(c, in.Shape, out.Shape); why != "" {
		return why
	}
	want, ok := resultShape(c, in.Shape, out.Shape)
	if !ok || !slices.Equal(want, out.Shape) {
		return fmt.Sprintf("operands of shape %v do not give results of shape %v", in.Shape, out.Shape)
	}
	return ""
}

// isOp reports whether op is an operation of the language.
func isOp(op ir.Op) bool { return op != ir.InvalidOp && op.String() != ir.InvalidOp.String() }

// takesPart reports whether member m of a collective reads an operand, and whether it writes a result.
func takesPart(c *plan.Coll, m int32) (reads, writes bool) {
	switch c.Op {
	case ir.OpBarrier:
		return false, false
	case ir.OpBroadcast, ir.OpScatter:
		return m == c.Root, true
	case ir.OpReduce, ir.OpGather:
		return true, m == c.Root
	case ir.OpPermute:
		return c.Parts[m].To >= 0, c.Parts[m].From >= 0
	}
	return true, true
}

// peersFit checks that the members of a permute name each other as source and destination.
func peersFit(c *plan.Coll) string {
	if c.Op != ir.OpPermute {
		return ""
	}
	n := len(c.Parts)
	for m := range c.Parts {
		p := &c.Parts[m]
		if p.To >= 0 && (!within(p.To, n) || c.Parts[p.To].From != int32(m)) || p.From >= 0 && (!within(p.From, n) || c.Parts[p.From].To != int32(m)) {
			return fmt.Sprintf("member %d sends to member %d and receives from member %d, but the to= and from= of those members do not match", m, p.To, p.From)
		}
	}
	return ""
}

// alike checks that all tensors that are present have the same type and shape.
func alike(first **plan.Ref, r *plan.Ref) string {
	switch {
	case !r.Present():
	case *first == nil:
		*first = r
	case (*first).DType != r.DType || !slices.Equal((*first).Shape, r.Shape):
		return fmt.Sprintf("the tensors differ in type: %s%v and %s%v", (*first).DType, (*first).Shape, r.DType,
			r.Shape)
	}
	return ""
}

// resultShape returns the shape of each member's result, where in is the shape of each member's operand. The argument
// out is the shape of the destination; for uneven collectives it determines how many rows can be received.
func resultShape(c *plan.Coll, in, out []int64) ([]int64, bool) {
	n := int64(len(c.Parts))
	want := slices.Clone(in)
	grow := func(axis int32) bool {
		if !within(axis, len(want)) {
			return false
		}
		want[axis] *= n
		return true
	}
	cut := func(axis int32) bool {
		if !within(axis, len(want)) || want[axis]%n != 0 {
			return false
		}
		want[axis] /= n
		return true
	}
	switch c.Op {
	case ir.OpAllGather, ir.OpGather:
		return want, grow(c.Axis)
	case ir.OpReduceScatter, ir.OpScatter:
		return want, cut(c.Axis)
	case ir.OpAllToAll:
		return want, cut(c.Split) && grow(c.Axis)
	case ir.OpAllGatherV, ir.OpReduceScatterV, ir.OpAllToAllV:
		want[c.Axis] = out[c.Axis]
	}
	return want, true
}
