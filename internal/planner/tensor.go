package planner

import (
	"slices"

	"hocket.example/hocket/ir"

	"hocket.example/hocket/internal/plan"
)

// computing emits tensor operations and launches, and binds names to views.
type computing struct{ *emitter }

// tensorStmt executes a tensor op, a view or a collective.
func (u *unroller) tensorStmt(s *ir.Stmt) error {
	here, err := u.runsHere(s)
	if err != nil {
		return err
	}
	if !here {
		u.define(s, absent())
		return nil
	}
	if d := u.w.b.CheckStmt(s, u.env); d != nil {
		d.Message += u.where()
		return d
	}
	ins, err := u.operands(s)
	if err != nil {
		return err
	}
	switch s.Op.Info().Class {
	case ir.ClassView:
		return u.view(s, ins[0])
	case ir.ClassCollective:
		return u.collective(s, ins)
	}
	return u.compute(s, ins)
}

// runsHere reports whether this rank executes s. A statement with an into clause runs on every rank. Any other
// statement runs on the ranks of the mesh on which its result is placed (S17).
func (u *unroller) runsHere(s *ir.Stmt) (bool, error) {
	if s.Into != nil {
		return true, nil
	}
	sym := u.w.b.Info.Results[s][0]
	if sym.Kind == ir.SymValue {
		return u.w.b.Holds(sym.Type, u.rank), nil
	}
	// The tensor of a value is absent on those ranks on which the value is absent.
	for i := range s.Args {
		t, err := u.operand(&s.Args[i])
		if err != nil || !t.Present() && sym.Base != nil {
			return false, err
		}
	}
	return true, nil
}

func (u *emitter) operands(s *ir.Stmt) ([]plan.Ref, error) {
	ins := make([]plan.Ref, len(s.Args))
	for i := range s.Args {
		r, err := u.present(&s.Args[i])
		if err != nil {
			return nil, err
		}
		ins[i] = r
	}
	return ins, nil
}

func (u *emitter) define(s *ir.Stmt, t tensor) { u.frame.tensors[s.Results[0].Text] = []tensor{t} }

// result returns the destination of s: the tensor that the into clause names, or a new buffer.
func (u *emitter) result(s *ir.Stmt) (plan.Ref, error) {
	if s.Into != nil {
		return u.present(s.Into)
	}
	sym := u.w.b.Info.Results[s][0]
	shape, err := u.resultShape(s)
	if err != nil {
		return plan.Ref{}, err
	}
	r, err := u.newBuffer(s, 0, s.Results[0].Text, plan.RoleValue, sym.Type.DType, shape)
	if err == nil {
		u.define(s, tensor{Ref: r})
	}
	return r, err
}

// resultShape returns the local shape of the result's type.
func (u *emitter) resultShape(s *ir.Stmt) ([]int64, error) {
	sym := u.w.b.Info.Results[s][0]
	u.w.stats.Exprs += int64(len(sym.Type.Dims))
	shape, err := u.w.b.LocalShape(sym.Type, u.env)
	if err != nil {
		return nil, u.errf("bind", s.Pos, "", "%%%s: %v", sym.Name, err)
	}
	return shape, nil
}

// compute emits a tensor op. A copy becomes a command of kind Copy.
func (u *computing) compute(s *ir.Stmt, ins []plan.Ref) error {
	attr, err := u.attr(s)
	if err != nil {
		return err
	}
	out, err := u.result(s)
	if err != nil {
		return err
	}
	if ins, err = u.settle(s, &attr, ins, out); err != nil {
		return err
	}
	if s.Op == ir.OpCopy {
		return u.emitCopy(s, ins[0], out, -1)
	}
	if s.Op.Info().Elementwise {
		for i := range ins {
			ins[i] = repeated(ins[i], out.Shape)
		}
	}
	return u.emit(s, plan.Cmd{Kind: plan.Compute, Op: s.Op, Ins: ins, Outs: []plan.Ref{out}, Attr: attr})
}

// emitCopy emits a copy. peer is the remote rank of a put or get, and otherwise -1.
func (u *emitter) emitCopy(s *ir.Stmt, from, to plan.Ref, peer int32) error {
	if from.DType != to.DType || !slices.Equal(from.Shape, to.Shape) {
		return u.errf("bind", s.Pos, "", "%s cannot move %s%v to %s%v", s.Op, from.DType, from.Shape, to.DType, to.Shape)
	}
	c := plan.Cmd{Kind: plan.Copy, Ins: []plan.Ref{from}, Outs: []plan.Ref{to}, Peer: peer}
	if peer >= 0 {
		c.SM = s.Word("engine", "auto") == "sm"
		if a := s.Attr("ctas"); a != nil {
			var err error
			if c.CTAs, err = u.someOf(s, a, "thread blocks"); err != nil {
				return err
			}
		}
	}
	return u.emit(s, c)
}

// attr evaluates the attributes of a compute op.
func (u *computing) attr(s *ir.Stmt) (attr ir.Attrs, err error) {
	attr.Causal, attr.TA, attr.TB = s.Word("causal", "") == "true", s.Word("ta", "") == "true", s.Word("tb", "") == "true"
	attr.FastAccum = s.Word("fast_accum", "") == "true"
	if attr.Numbers, err = s.Numbers(func(e *ir.Expr) (int64, error) { return u.eval(s, e) }); err != nil {
		return attr, err
	}
	if a := s.Attr("axis"); a != nil {
		for _, e := range a.Exprs {
			v, err := u.eval(s, e)
			if err != nil {
				return attr, err
			}
			attr.Axes = append(attr.Axes, int(v))
		}
	}
	if a := s.Attr("sms"); a != nil {
		sms, err := u.someOf(s, a, "multiprocessors")
		if err != nil {
			return attr, err
		}
		attr.SMs = int(sms)
	}
	return attr, nil
}

// view executes a view op. The result is a name for existing memory; data is copied only if the statement has an into
// clause.
func (u *computing) view(s *ir.Stmt, x plan.Ref) error {
	if s.Op == ir.OpReshape {
		return u.reshape(s, x)
	}
	v, err := u.viewOf(s, x)
	if err != nil {
		return err
	}
	if s.Into != nil {
		out, err := u.present(s.Into)
		if err != nil {
			return err
		}
		return u.emitCopy(s, v, out, -1)
	}
	want, err := u.resultShape(s)
	if err != nil {
		return err
	}
	if !slices.Equal(want, v.Shape) {
		return u.errf("bind", s.Pos, "", "%s gives the shape %v on this rank, but its type requires %v", s.Op, v.Shape, want)
	}
	u.define(s, tensor{Ref: v})
	return nil
}

func (u *computing) viewOf(s *ir.Stmt, x plan.Ref) (plan.Ref, error) {
	switch s.Op {
	case ir.OpClaim, ir.OpLocal:
		return x, nil
	case ir.OpTranspose:
		return u.transpose(s, x)
	}
	axis, err := u.axis(s, "axis", x)
	if err != nil {
		return x, err
	}
	switch s.Op {
	case ir.OpChunk:
		return u.chunk(s, x, axis)
	case ir.OpSlice:
		return u.slice(s, x, axis)
	}
	return u.pick(s, x, axis)
}

// axis evaluates an attribute that names a dimension of x. If s does not have the attribute, axis returns 0.
func (u *emitter) axis(s *ir.Stmt, name string, x plan.Ref) (int, error) {
	v := int64(0)
	if a := s.Attr(name); a != nil {
		var err error
		if v, err = u.eval(s, a.Exprs[0]); err != nil {
			return 0, err
		}
	}
	if v < 0 || v >= int64(len(x.Shape)) {
		return 0, u.errf("bind", s.Pos, "", "%s=%d is not a dimension of a tensor with %d dimensions", name, v, len(x.Shape))
	}
	return int(v), nil
}

func (u *emitter) pair(s *ir.Stmt) (a, b int64, err error) {
	if a, err = u.eval(s, s.Exprs[0]); err != nil {
		return
	}
	b, err = u.eval(s, s.Exprs[1])
	return
}

func (u *computing) chunk(s *ir.Stmt, x plan.Ref, axis int) (plan.Ref, error) {
	i, count, err := u.pair(s)
	switch {
	case err != nil:
		return x, err
	case count < 1:
		return x, u.errf("bind", s.Pos, "", "the number of chunks must be positive: %s=%d", s.Exprs[1], count)
	case i < 0 || i >= count:
		return x, u.errf("bind", s.Pos, "", "chunk index %s=%d is not in 0..%d", s.Exprs[0], i, count)
	}
	return chunk(x, axis, i, count), nil
}

func (u *computing) slice(s *ir.Stmt, x plan.Ref, axis int) (plan.Ref, error) {
	lo, hi, err := u.pair(s)
	switch {
	case err != nil:
		return x, err
	case lo < 0 || lo > hi || hi > x.Shape[axis]:
		return x, u.errf("bind", s.Pos, "", "%s %d..%d is not within the %d rows of dimension %d", s.Op, lo, hi, x.Shape[axis], axis)
	}
	return slice(x, axis, lo, hi), nil
}

func (u *computing) pick(s *ir.Stmt, x plan.Ref, axis int) (plan.Ref, error) {
	i, err := u.eval(s, s.Attr("index").Exprs[0])
	switch {
	case err != nil:
		return x, err
	case i < 0 || i >= x.Shape[axis]:
		return x, u.errf("bind", s.Pos, "", "index %d is not in 0..%d, the extent of dimension %d", i, x.Shape[axis], axis)
	}
	return pick(x, axis, i), nil
}

func (u *computing) transpose(s *ir.Stmt, x plan.Ref) (plan.Ref, error) {
	n := len(x.Shape)
	perm := make([]int, n)
	for i := range perm {
		perm[i] = i
	}
	a := s.Attr("perm")
	if a == nil && n >= 2 {
		perm[n-1], perm[n-2] = n-2, n-1
		return permute(x, perm), nil
	}
	if a == nil || len(a.Exprs) != n {
		return x, u.errf("bind", s.Pos, "", "transpose needs a tensor with 2 or more dimensions, not %d", n)
	}
	for i, e := range a.Exprs {
		d, err := u.eval(s, e)
		if err != nil {
			return x, err
		}
		if d < 0 || d >= int64(n) || slices.Contains(perm[:i], int(d)) {
			return x, u.errf("bind", e.Pos, "", "perm does not list each of the %d dimensions once", n)
		}
		perm[i] = int(d)
	}
	return permute(x, perm), nil
}

// reshape returns a view of dense memory with another shape. A value that is not dense is copied first. For a
// buffer that is not dense, reshape returns an error, because the result must share the memory of the buffer.
func (u *computing) reshape(s *ir.Stmt, x plan.Ref) error {
	if s.Into != nil {
		return u.reshapeInto(s, x)
	}
	shape, err := u.resultShape(s)
	if err != nil {
		return err
	}
	if (plan.Ref{Shape: shape}).Elements() != x.Elements() {
		return u.errf("bind", s.Pos, "", "reshape must keep the number of elements, but the shapes %v and %v have different numbers", shape, x.Shape)
	}
	if !x.Dense() {
		if u.w.b.Info.Results[s][0].Kind != ir.SymValue {
			return u.errf("alias", s.Pos, "copy the tensor first: %c = copy "+s.Args[0].String(), "%s is not dense, so it cannot be reshaped in place", s.Args[0])
		}
		dense, err := u.newBuffer(s, 0, s.Results[0].Text, plan.RoleValue, x.DType, x.Shape)
		if err != nil {
			return err
		}
		if err := u.emitCopy(s, x, dense, -1); err != nil {
			return err
		}
		x = dense
	}
	u.define(s, tensor{Ref: reshape(x, shape)})
	return nil
}

// reshapeInto copies x into the destination of s. The side that is dense is viewed with the shape of the other side.
func (u *computing) reshapeInto(s *ir.Stmt, x plan.Ref) error {
	out, err := u.present(s.Into)
	switch {
	case err != nil:
		return err
	case out.Elements() != x.Elements():
		return u.errf("bind", s.Pos, "", "reshape must keep the number of elements, but the shapes %v and %v have different numbers", out.Shape, x.Shape)
	case x.Dense():
		return u.emitCopy(s, reshape(x, out.Shape), out, -1)
	case out.Dense():
		return u.emitCopy(s, x, reshape(out, x.Shape), -1)
	}
	return u.errf("alias", s.Pos, "copy the tensor first: %c = copy "+s.Args[0].String(), "neither %s nor %s is dense", s.Args[0], s.Into)
}
