package planner

import (
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// settle sets those attributes of an operation whose defaults depend on the operands. It returns the operands,
// restricted to the parts that the operation reads.
func (u *computing) settle(s *ir.Stmt, attr *ir.Attrs, ins []plan.Ref, out plan.Ref) ([]plan.Ref, error) {
	switch s.Op {
	case ir.OpExpand:
		ins[0] = stretched(ins[0], out.Shape)
	case ir.OpConcat:
		attr.Axes = append(attr.Axes, 0)[:1]
	case ir.OpSoftmax:
		attr.Axes = append(attr.Axes, len(out.Shape)-1)[:1]
	case ir.OpAttention, ir.OpAttentionLSE, ir.OpAttentionDQ, ir.OpAttentionDKV:
		if s.Attr("scale") == nil {
			attr.Numbers[0] = ir.Real(ir.AttentionScale(ins[0].Shape[len(ins[0].Shape)-1]))
		}
	case ir.OpIndexCopy:
		attr.Axes = append(attr.Axes, 0)[:1]
		return append(ins, out), nil // index_copy does not write all of out, so it also reads out
	case ir.OpIota:
		attr.Axes = append(attr.Axes, len(out.Shape)-1)[:1]
		u.counted(s, attr, out)
	case ir.OpArgmax:
		attr.Axes = append(attr.Axes, len(ins[0].Shape)-1)[:1]
	case ir.OpEmbedding, ir.OpGroupedLinear:
		return ins, u.tablePart(s, attr, ins[1], u.w.b.Info.Operands[s][1])
	case ir.OpIndexAdd:
		if s.Into != nil {
			attr.First, attr.Rows = 0, out.Shape[0]
			return ins, nil
		}
		return ins, u.tablePart(s, attr, out, u.w.b.Info.Results[s][0])
	case ir.OpReduceSlots:
		return u.slots(s, attr, ins[0], out)
	}
	return ins, nil
}

// tablePart sets First and Rows in attr. First and Rows say which rows, or which experts, of the whole tensor of sym
// this rank has.
func (u *computing) tablePart(s *ir.Stmt, attr *ir.Attrs, table plan.Ref, sym *ir.Sym) error {
	attr.First, attr.Rows = 0, table.Shape[0]
	if first := s.Attr("first"); first != nil {
		var err error
		if attr.First, err = u.eval(s, first.Exprs[0]); err == nil {
			attr.Rows, err = u.eval(s, s.Attr("of").Exprs[0])
		}
		return err
	}
	if s.Into != nil || u.w.b.Info.Results[s][0].Kind != ir.SymValue {
		return nil
	}
	shape, err := u.w.b.GlobalShape(sym.Type, u.env)
	if err != nil {
		return u.errf("bind", s.Pos, "", "%%%s: %v", sym.Name, err)
	}
	attr.First, attr.Rows = u.w.b.Offset(sym.Type, table.Shape, u.rank)[0], shape[0]
	return nil
}

// slots returns the operands of reduce_slots: the slots in the range lo..hi and, if the sum starts from a tensor, this
// tensor.
func (u *computing) slots(s *ir.Stmt, attr *ir.Attrs, x, out plan.Ref) ([]plan.Ref, error) {
	axis, err := u.axis(s, "axis", x)
	if err != nil {
		return nil, err
	}
	attr.Axes = []int{axis}
	if x, err = u.slice(s, x, axis); err != nil {
		return nil, err
	}
	if s.Word("resume", "") == "true" {
		return []plan.Ref{x, out}, nil
	}
	return []plan.Ref{x}, nil
}

// counted sets First in the attributes of an iota: the number of elements along the axis that precede this rank's
// block.
func (u *computing) counted(s *ir.Stmt, attr *ir.Attrs, out plan.Ref) {
	if s.Into == nil && u.w.b.Info.Results[s][0].Kind == ir.SymValue {
		attr.First = u.w.b.Offset(u.w.b.Info.Results[s][0].Type, out.Shape, u.rank)[attr.Axes[0]]
	}
}
