package contents

import (
	"slices"

	"hocket.example/hocket/ir"
)

// elementsOf follows a value back through the ops that do not change its elements, casts between integer types, and
// loops that carry it, and returns the first value in that chain.
func elementsOf(info *ir.Info, sym *ir.Sym) *ir.Sym {
	for sym = sym.Root(); sym.Def != nil; sym = sym.Root() {
		s, operand := sym.Def, 0
		syms := info.Operands[s]
		switch {
		case s.Op == ir.OpFor && !slices.Contains(info.Results[s], sym): // the value begins as the operand
			operand = slices.IndexFunc(s.Carry, func(n ir.Name) bool { return n.Text == sym.Name })
		case s.Op.Info().Class == ir.ClassView, s.Op == ir.OpCopy, s.Op == ir.OpReshard:
		case s.Op == ir.OpCast && len(syms) > 0 && syms[0] != nil && syms[0].Type.DType.IsInt():
		default:
			return sym
		}
		if operand < 0 || operand >= len(syms) || syms[operand] == nil {
			return sym
		}
		sym = syms[operand]
	}
	return sym
}

// Use is one way in which a function uses the elements of an integer parameter: the operation Op reads them as ids,
// indices, positions, lengths or counts.
type Use struct {
	Op    ir.Op
	Below *ir.Expr // exclusive upper bound of the elements; nil if Op has none
}

// Uses returns the uses of the parameters of f, by name, in f and in the functions that f calls.
func Uses(info *ir.Info, f *ir.Func) map[string][]Use {
	return usesOf(info, f, map[*ir.Func]map[string][]Use{})
}

// usesOf is Uses. known holds the functions that have already been visited, among them the callers of f.
func usesOf(info *ir.Info, f *ir.Func, known map[*ir.Func]map[string][]Use) map[string][]Use {
	if found, ok := known[f]; ok {
		return found
	}
	found := map[string][]Use{}
	known[f] = found
	add := func(sym *ir.Sym, uses ...Use) {
		if root := elementsOf(info, sym); root.Param != nil {
			found[root.Name] = append(found[root.Name], uses...)
		}
	}
	f.Body.Walk(func(s *ir.Stmt) {
		syms := info.Operands[s]
		fromEnd := func(i, n int) *ir.Expr { // the extent of the n-th last dimension of operand i
			dims := syms[i].Type.Dims
			return dims[len(dims)-n].Extent
		}
		note := func(i int, below *ir.Expr) { add(syms[i], Use{s.Op, below}) }
		switch s.Op {
		case ir.OpEmbedding:
			rows := syms[1].Type.Dims[0].Extent
			if of := s.Attr("of"); of != nil {
				rows = of.Exprs[0]
			}
			note(0, rows)
		case ir.OpGroupedLinear: // with this limit, the sum of the counts cannot exceed the number of rows
			rows, experts := syms[0].Type.Dims[0].Extent, syms[1].Type.Dims[0].Extent
			note(2, ir.Add(ir.FloorDiv(rows, experts), ir.Int(1)))
		case ir.OpIndexAdd:
			note(1, s.Attr("n").Exprs[0])
		case ir.OpAttention, ir.OpAttentionLSE: // a length is a number of keys, so it may equal the extent
			at := 3
			if s.Op == ir.OpAttentionLSE {
				at = 2
			}
			if len(syms) > at && syms[at].Type.DType.IsInt() {
				note(at, ir.Add(fromEnd(1, 3), ir.Int(1)))
			}
		case ir.OpIndexCopy:
			var axis int64
			if a := s.Attr("axis"); a != nil {
				axis, _ = a.Exprs[0].Eval((&ir.Bound{}).Env(0, nil)) // the checker has ensured that it is constant
			}
			note(1, info.Into[s].Type.Dims[axis].Extent)
		case ir.OpTakeAlong:
			note(1, fromEnd(0, 1))
		case ir.OpRope:
			note(1, nil)
		case ir.OpCall:
			g := info.Prog.Func(s.Callee.Text)
			if g == nil {
				return
			}
			inner := usesOf(info, g, known)
			for i, p := range g.Params {
				if i < len(syms) {
					add(syms[i], inner[p.Name]...)
				}
			}
		}
	})
	return found
}

// Positions returns the parameters of f whose elements index_copy uses as positions.
func Positions(info *ir.Info, f *ir.Func) map[string]bool {
	found := map[string]bool{}
	for name, uses := range Uses(info, f) {
		if slices.ContainsFunc(uses, func(u Use) bool { return u.Op == ir.OpIndexCopy }) {
			found[name] = true
		}
	}
	return found
}

// Values describes the integers that a program accepts as elements of a parameter.
type Values struct {
	Below     int64 // exclusive upper bound of the elements; 0 if the program does not limit them
	Ascending bool  // whether index_copy uses the elements as positions, which must differ from each other
}

// Accepted returns, by name, the values that the program accepts for each parameter of f that it uses as ids, indices,
// positions, lengths or counts.
func Accepted(bound *ir.Bound, f *ir.Func) map[string]Values {
	found, env := map[string]Values{}, bound.Env(0, nil)
	for name, uses := range Uses(bound.Info, f) {
		var v Values
		for _, u := range uses {
			if u.Below == nil {
				continue
			}
			n, err := u.Below.Eval(env)
			if err != nil || n <= 0 { // the bound may depend on a loop variable
				continue
			}
			if v.Below == 0 || n < v.Below {
				v.Below = n
			}
			v.Ascending = v.Ascending || u.Op == ir.OpIndexCopy
		}
		if v.Below > 0 {
			found[name] = v
		}
	}
	return found
}
