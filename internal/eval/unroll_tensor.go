package eval

import (
	"fmt"
	"math"
	"slices"

	"hocket.example/hocket/ir"
)

// tensorStmt executes a tensor operation or view.
func (r *rank) tensorStmt(s *ir.Stmt) error {
	switch {
	case s.Op == ir.OpClaim:
		sym := r.m.b.Info.Results[s][0]
		v, err := r.claimed(s, 0, sym.Type)
		r.names[sym.Name] = &binding{name: sym.Name, value: v}
		return err
	case r.makesValue(s):
		return r.valueStmt(s)
	case s.Op.Info().Class == ir.ClassView && s.Into == nil:
		return r.viewStmt(s)
	}
	return r.localStmt(s)
}

// localStmt issues an operation on this rank's memory.
func (r *rank) localStmt(s *ir.Stmt) error {
	var ins []view
	for i := range s.Args {
		v, err := r.tensor(&s.Args[i])
		if err != nil {
			return err
		}
		ins = append(ins, v)
	}
	out, err := r.destination(s)
	if err != nil {
		return err
	}
	if s.Op == ir.OpReduceSlots {
		if ins, err = r.slots(s, ins[0], out); err != nil {
			return err
		}
	}
	if s.Op == ir.OpIndexCopy {
		ins = append(ins, out)
	}
	var run func([]*array) (*array, error)
	if s.Op.Info().Class == ir.ClassView {
		run, err = r.viewCopy(s, ins[0].shape)
	} else {
		run, err = r.computation(s, out.st.dt, out.shape)
	}
	if err != nil {
		return err
	}
	r.issue(s, func() error {
		arrays := make([]*array, len(ins))
		for i, v := range ins {
			if arrays[i], err = v.read(); err != nil {
				return err
			}
		}
		if err := out.st.open(); err != nil { // make the destination before memory is allocated for the result
			return err
		}
		a, err := run(arrays)
		if err != nil {
			return err
		}
		return out.write(a)
	}, append(slices.Clone(ins), out)...)
	return nil
}

// slots returns the operands of a reduce_slots: the slots and, if the sum includes the contents of the destination,
// the destination.
func (r *rank) slots(s *ir.Stmt, x, out view) ([]view, error) {
	spec, err := r.viewSpec(s, x.shape)
	if err != nil {
		return nil, err
	}
	reg, err := spec.apply(x.region)
	ins := []view{{x.st, reg}}
	if s.Word("resume", "false") == "true" {
		ins = append(ins, out)
	}
	return ins, err
}

func (r *rank) computation(s *ir.Stmt, dt ir.DType, shape []int64) (func([]*array) (*array, error), error) {
	at, err := r.attrs(s)
	return func(ins []*array) (*array, error) { return compute(s.Op, at, ins, dt, shape, alone) }, err
}

// viewCopy prepares a view with an into clause, which copies the elements that the view selects.
func (r *rank) viewCopy(s *ir.Stmt, shape []int64) (func([]*array) (*array, error), error) {
	spec, err := r.viewSpec(s, shape)
	return func(ins []*array) (*array, error) {
		reg, err := spec.apply(dense(ins[0].shape))
		if err != nil {
			return nil, err
		}
		return ins[0].view(reg), nil
	}, err
}

// destination returns the place that the into clause names, or new memory for a local result.
func (r *rank) destination(s *ir.Stmt) (view, error) {
	if s.Into != nil {
		return r.tensor(s.Into)
	}
	sym := r.m.b.Info.Results[s][0]
	shape, err := r.m.b.GlobalShape(sym.Type, r.env)
	if err != nil {
		return view{}, err
	}
	st := &storage{m: r.m, name: sym.Name, rank: r.id, dt: sym.Type.DType, shape: shape}
	r.names[sym.Name] = &binding{name: sym.Name, views: []view{st.all()}}
	return st.all(), nil
}

// viewStmt binds a name to a part of a buffer, or to a part of this rank's shard of a value.
func (r *rank) viewStmt(s *ir.Stmt) error {
	sym := r.m.b.Info.Results[s][0]
	v, err := r.tensor(&s.Args[0])
	if err != nil {
		return err
	}
	spec, err := r.viewSpec(s, v.shape)
	if err != nil {
		return err
	}
	reg, err := spec.apply(v.region)
	r.names[sym.Name] = &binding{name: sym.Name, views: []view{{v.st, reg}}}
	return err
}

// tensor returns the memory of an operand on this rank: a buffer, a view of a buffer, or the rank's shard of a value.
func (r *scope) tensor(p *ir.Place) (view, error) {
	b := r.names[p.Name]
	if b.absent {
		return view{}, absent(b.name, r.id)
	}
	if b.value != nil {
		if b.shard == nil {
			st, err := r.shardOf(b.name, b.value)
			if err != nil {
				return view{}, err
			}
			b.shard = st
		}
		return b.shard.all(), nil
	}
	i, err := r.element(p, len(b.views))
	if err != nil {
		return view{}, err
	}
	if st := b.views[i].st; st.freed {
		return view{}, &finding{"lifetime", fmt.Sprintf("buffer %%%s is used after it was freed", st.name),
			"move the free after the last use"}
	}
	return b.views[i], nil
}

func absent(name string, rank int) error {
	return &finding{"layout", fmt.Sprintf("rank %d uses %%%s but holds no part of it", rank, name),
		"put the operation into an if that only the ranks of the value execute, or reshard the value"}
}

// shardOf makes the storage for this rank's shard of a value.
func (r *scope) shardOf(name string, v *value) (*storage, error) {
	if !r.m.b.Holds(v.typ, r.id) {
		return nil, absent(name, r.id)
	}
	local, err := r.m.localShape(v.typ, v.shape)
	if err != nil {
		return nil, err
	}
	return &storage{m: r.m, name: name, rank: r.id, dt: v.typ.DType, shape: local,
		from: func() (*array, error) { return v.shard(r.id) }}, nil
}

// element evaluates the index of a place in an array of n elements.
func (r *scope) element(p *ir.Place, n int) (int, error) {
	if p.Index == nil {
		return 0, nil
	}
	i, err := r.eval(p.Index)
	if err == nil && (i < 0 || i >= int64(n)) {
		err = &finding{kind: "bind", message: fmt.Sprintf("rank %d: index %v=%d is outside %%%s, which has %d elements", r.id, p.Index, i, p.Name, n)}
	}
	return int(i), err
}

// attrs evaluates the attributes of a tensor operation.
func (r *scope) attrs(s *ir.Stmt) (attrs, error) {
	at := attrs{goOn: r.m.ctx.Err, ta: s.Word("ta", "false") == "true", tb: s.Word("tb", "false") == "true"}
	var err error
	switch a := s.Attr("axis"); {
	case a != nil:
		at.axes, err = r.ints(a)
	case s.Op == ir.OpSoftmax || s.Op == ir.OpArgmax:
		at.axes = []int{len(r.m.b.Info.Operands[s][0].Type.Dims) - 1}
	case s.Op == ir.OpScales:
		at.axes = unscaled(s, len(r.m.b.Info.Operands[s][0].Type.Dims))
	case s.Op == ir.OpIota:
		at.axes = nil // nil means the last dimension
	default:
		at.axes = []int{0}
	}
	at.fast = s.Word("fast_accum", "false") == "true"
	at.causal, at.scaled = s.Word("causal", "false") == "true", s.Attr("scale") != nil
	for _, spec := range s.Op.Info().Numbers() {
		n := scalar{f: spec.Default}
		if a := s.Attr(spec.Name); a != nil && err == nil {
			n, err = r.number(a)
		}
		at.numbers = append(at.numbers, n)
	}
	if s.Op == ir.OpRope {
		at.rope = s.Rope()
	}
	if s.Attr("of") != nil && err == nil {
		if at.first, err = r.integer(s, "first", 0); err == nil {
			at.rows, err = r.integer(s, "of", 0)
		}
	}
	return at, err
}

func (r *scope) ints(a *ir.Attr) ([]int, error) {
	out := make([]int, len(a.Exprs))
	for i, e := range a.Exprs {
		v, err := r.eval(e)
		if err != nil {
			return nil, err
		}
		out[i] = int(v)
	}
	return out, nil
}

// number evaluates a numeric attribute. An integer literal becomes an exact integer.
func (r *scope) number(a *ir.Attr) (scalar, error) {
	if !a.IsNum {
		v, err := r.eval(a.Exprs[0])
		return scalar{float64(v), v, true}, err
	}
	whole := a.Num == math.Trunc(a.Num) && math.Abs(a.Num) < 1<<63
	out := scalar{f: a.Num, isInt: whole}
	if whole {
		out.n = int64(a.Num)
	}
	return out, nil
}

// axis evaluates an attribute that names a dimension. It returns def if the attribute is absent.
func (r *scope) axis(s *ir.Stmt, name string, def int64) (int, error) {
	v, err := r.integer(s, name, def)
	return int(v), err
}

func (r *scope) integer(s *ir.Stmt, name string, def int64) (int64, error) {
	a := s.Attr(name)
	if a == nil {
		return def, nil
	}
	return r.eval(a.Exprs[0])
}
