package contents

import "hocket.example/hocket/ir"

// elementsOf follows a value back through the ops that do not change its elements, and returns the first value in that
// chain.
func elementsOf(info *ir.Info, sym *ir.Sym) *ir.Sym {
	for sym = sym.Root(); sym.Def != nil; sym = sym.Root() {
		switch class := sym.Def.Op.Info().Class; {
		case class == ir.ClassView, sym.Def.Op == ir.OpCopy, sym.Def.Op == ir.OpReshard:
		default:
			return sym
		}
		syms := info.Operands[sym.Def]
		if len(syms) == 0 || syms[0] == nil {
			return sym
		}
		sym = syms[0]
	}
	return sym
}

// Values describes the integers that a program accepts as elements of a parameter.
type Values struct {
	Below     int64 // exclusive upper bound; 0 if the program does not limit the elements
	Ascending bool  // whether index_copy uses the elements as positions, which must differ from each other
}

// Accepted returns, by name, the values that the program accepts for each parameter of f that it uses as ids, indices,
// positions, lengths or counts.
func Accepted(bound *ir.Bound, f *ir.Func) map[string]Values {
	return valuesOf(bound, f, map[*ir.Func]map[string]Values{})
}

// valuesOf returns the parameters of f that the program uses as ids, indices, positions, lengths or counts, and for
// each the values that all these uses accept. known holds the functions that have already been visited, among them the
// callers of f.
func valuesOf(bound *ir.Bound, f *ir.Func, known map[*ir.Func]map[string]Values) map[string]Values {
	if found, ok := known[f]; ok {
		return found
	}
	found := map[string]Values{}
	known[f] = found
	add := func(sym *ir.Sym, v Values) {
		root := elementsOf(bound.Info, sym)
		if root.Param == nil || v.Below <= 0 {
			return
		}
		if old := found[root.Name]; old.Below > 0 {
			v.Below, v.Ascending = min(v.Below, old.Below), v.Ascending || old.Ascending
		}
		found[root.Name] = v
	}
	note := func(sym *ir.Sym, n int64) { add(sym, Values{Below: n}) }
	env := bound.Env(0, nil)
	f.Body.Walk(func(s *ir.Stmt) {
		syms := bound.Info.Operands[s]
		switch s.Op {
		case ir.OpEmbedding:
			extent := syms[1].Type.Dims[0].Extent
			if of := s.Attr("of"); of != nil {
				extent = of.Exprs[0]
			}
			if n, err := extent.Eval(env); err == nil { // the extent may depend on a loop variable
				note(syms[0], n)
			}
		case ir.OpGroupedLinear: // with this limit, the sum of the counts cannot exceed the number of rows
			rows, err := syms[0].Type.Dims[0].Extent.Eval(env)
			experts, err2 := syms[1].Type.Dims[0].Extent.Eval(env)
			if err == nil && err2 == nil && experts > 0 {
				note(syms[2], rows/experts+1)
			}
		case ir.OpIndexAdd:
			if n, err := s.Attr("n").Exprs[0].Eval(env); err == nil {
				note(syms[1], n)
			}
		case ir.OpAttention, ir.OpAttentionLSE: // a length is a number of keys, so it may equal the extent
			at := 3
			if s.Op == ir.OpAttentionLSE {
				at = 2
			}
			if len(syms) > at && syms[at].Type.DType.IsInt() {
				dims := syms[1].Type.Dims
				if n, err := dims[len(dims)-3].Extent.Eval(env); err == nil {
					note(syms[at], n+1)
				}
			}
		case ir.OpIndexCopy:
			axis := int64(0)
			if a := s.Attr("axis"); a != nil {
				axis, _ = a.Exprs[0].Eval(env)
			}
			dims := bound.Info.Into[s].Type.Dims
			if axis < 0 {
				axis += int64(len(dims))
			}
			if n, err := dims[axis].Extent.Eval(env); err == nil {
				add(syms[1], Values{Below: n, Ascending: true})
			}
		case ir.OpTakeAlong:
			dims := syms[0].Type.Dims
			if n, err := dims[len(dims)-1].Extent.Eval(env); err == nil {
				note(syms[1], n)
			}
		case ir.OpCall:
			g := bound.Info.Prog.Func(s.Callee.Text)
			if g == nil {
				return
			}
			inner := valuesOf(bound, g, known)
			for i, p := range g.Params {
				if i < len(syms) {
					add(syms[i], inner[p.Name])
				}
			}
		}
	})
	return found
}
