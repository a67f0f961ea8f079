package eval

import (
	"fmt"

	"hocket.example/hocket/ir"
)

// valueStmt defines a global value. The statement issues no task: values are immutable, so it does not matter when they
// are computed.
func (r *values) valueStmt(s *ir.Stmt) error {
	sym := r.m.b.Info.Results[s][0]
	v, err := r.shared(s, 0, func() (*value, error) { return r.newValue(s, sym) })
	r.names[sym.Name] = &binding{name: sym.Name, value: v}
	return err
}

// newValue makes the value of statement s. newValue converts the operands to the layouts that the operation needs, and
// applies the operation, whose result has the operation's natural layout. newValue then converts the result to the
// layout that the program declares.
func (r *values) newValue(s *ir.Stmt, sym *ir.Sym) (*value, error) {
	args, err := r.valueArgs(s)
	if err != nil {
		return nil, err
	}
	natural := r.m.b.Info.Natural[s]
	if natural == nil {
		natural = sym.Type
	}
	anyOrder := s.Word("order", "rank") == "any"
	var v *value
	switch {
	case s.Op == ir.OpReshard || s.Op.Info().Class == ir.ClassCollective:
		// A collective on a value changes only the layout of the value.
		if v, err = r.m.resharded(args[0], natural, anyOrder); err != nil {
			return nil, err
		}
	case s.Op.Info().Class == ir.ClassView:
		v, err = r.viewValue(s, args[0], natural)
	case s.Op == ir.OpLinear && len(args) == 3 && len(natural.Partial) > 0:
		return r.biasedValue(s, sym, args, natural)
	default:
		v, err = r.tensorValue(s, s.Op, args, natural)
	}
	if err != nil {
		return nil, err
	}
	return r.m.resharded(v, sym.Type, false)
}

func (r *values) valueArgs(s *ir.Stmt) ([]*value, error) {
	needs := r.m.b.Info.Needs[s]
	var args []*value
	for i := range s.Args {
		v := r.names[s.Args[i].Name].value
		if v == nil {
			return nil, fmt.Errorf("%%%s is not a value", s.Args[i].Name)
		}
		if needs != nil {
			var err error
			if v, err = r.m.resharded(v, needs[i], false); err != nil {
				return nil, err
			}
		}
		args = append(args, v)
	}
	return args, nil
}

// biasedValue makes the value of a linear whose contracted dimension is split. The bias is added once, after the
// reduction (S10).
func (r *values) biasedValue(s *ir.Stmt, sym *ir.Sym, args []*value, natural *ir.Type) (*value, error) {
	product, err := r.tensorValue(s, s.Op, args[:2], natural)
	if err != nil {
		return nil, err
	}
	whole, err := r.m.resharded(product, sym.Type, false)
	if err != nil {
		return nil, err
	}
	return r.tensorValue(s, ir.OpAdd, []*value{whole, args[2]}, sym.Type)
}

// tensorValue makes the value of a tensor operation, whose result has type t.
func (r *values) tensorValue(s *ir.Stmt, op ir.Op, args []*value, t *ir.Type) (*value, error) {
	m := r.m
	shape, err := m.b.GlobalShape(t, r.env)
	if err != nil {
		return nil, err
	}
	at, err := r.attrs(s)
	if err != nil {
		return nil, err
	}
	if len(args) > 0 {
		at.inputDims = len(args[0].shape)
	}
	sp := split{ranks: m.parts(partialAxes(t)), partial: len(t.Partial) > 0}
	v := &value{m: m, name: s.Results[0].Text, typ: t, shape: shape}
	v.from = func() (*array, error) {
		ins := make([]*array, len(args))
		for i, a := range args {
			var err error
			if ins[i], err = a.whole(); err != nil {
				return nil, err
			}
		}
		out, err := compute(op, at, ins, t.DType, shape, sp)
		return out, m.located(s, err)
	}
	if sp.partial {
		v.part = func(rank int) (*array, error) {
			at, ins := at, make([]*array, len(args))
			for i, a := range args {
				var err error
				if ins[i], err = m.contributing(op, at, i, a, rank); err != nil {
					return nil, err
				}
			}
			if op == ir.OpEmbedding || op == ir.OpGroupedLinear {
				var err error
				if at, err = m.tablePart(at, args[1].typ, args[1].shape, rank); err != nil {
					return nil, err
				}
			}
			out, err := compute(op, at, ins, t.DType, shape, alone)
			return out, m.located(s, err)
		}
	}
	return v, nil
}

// contributing returns operand i in the form in which rank uses it to compute its contribution to a partial result. The
// result is the contribution of the rank to the operand, restricted to the rank's own block along a contracted
// dimension.
func (m *machine) contributing(op ir.Op, at attrs, i int, v *value, rank int) (*array, error) {
	a, err := v.contribution(rank)
	if err != nil {
		return nil, err
	}
	for _, d := range contracted(op, at, i, len(v.shape)) {
		if a, err = m.restricted(a, v.typ, d, rank); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// contracted lists the dimensions over which op adds, for operand i with the given number of dimensions.
func contracted(op ir.Op, at attrs, i, dims int) []int {
	switch op {
	case ir.OpLinear:
		if i == 2 && dims < at.inputDims || i == 3 && dims < 2 { // scales of whole rows, or a bias
			return nil
		}
		return []int{dims - 1}
	case ir.OpMatmul:
		if i == 0 && at.ta || i == 1 && !at.tb { // a[…, K, M] or b[…, K, N]
			return []int{dims - 2}
		}
		return []int{dims - 1}
	case ir.OpSum, ir.OpMax, ir.OpMin, ir.OpMean, ir.OpScales:
		return at.axes
	case ir.OpEmbedding:
		if i == 1 {
			return []int{0}
		}
	case ir.OpGroupedLinear:
		if i == 1 { // experts, too
			return []int{0, dims - 1}
		} else if i == 0 {
			return []int{dims - 1}
		}
	case ir.OpAttentionDKV: // the heads of q that share one head of k
		switch i {
		case 0, 3:
			return []int{dims - 2}
		case 4, 5:
			return []int{dims - 1}
		}
	case ir.OpIndexAdd, ir.OpRMSNormDW:
		if i == 0 || op == ir.OpRMSNormDW {
			dims--
		}
		fallthrough
	case ir.OpBincount:
		all := make([]int, dims)
		for d := range all {
			all[d] = d
		}
		return all
	}
	return nil
}

// viewValue makes a value that is a part of another value. The contribution of a rank to the new value is the same
// part of its contribution to the other value.
func (r *values) viewValue(s *ir.Stmt, arg *value, t *ir.Type) (*value, error) {
	spec, err := r.viewSpec(s, arg.shape)
	if err != nil {
		return nil, err
	}
	reg, err := spec.apply(dense(arg.shape))
	if err != nil {
		return nil, err
	}
	v := &value{m: r.m, name: s.Results[0].Text, typ: t, shape: reg.shape}
	v.from = func() (*array, error) {
		a, err := arg.whole()
		if err != nil {
			return nil, err
		}
		return a.view(reg), nil
	}
	if arg.part != nil {
		v.part = func(rank int) (*array, error) {
			a, err := arg.contribution(rank)
			if err != nil {
				return nil, err
			}
			return a.view(reg), nil
		}
	}
	return v, nil
}
