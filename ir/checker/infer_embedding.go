package checker

import (
	"hocket.example/hocket/ir"
	"slices"
)

// embedding infers the type of embedding ids[…], table[V, D]. The table keeps its layout (rule S20 of the language). If
// V is split, each rank returns its own rows, and zeros for all other rows: the result is a partial sum.
func (in *indexRules) embedding() *ir.Type {
	ids, table := in.args[0], in.args[1]
	switch {
	case !ids.DType.IsInt():
		in.errorf("type", in.s.Args[0].Pos, "ids must be i32 or i64, but %%%s is %s", in.syms[0].Name,
			ids.DType).help("convert it with cast")
		return nil
	case len(table.Dims) != 2:
		in.errorf("type", in.s.Args[1].Pos, "the table of embedding must be a matrix [V, D], but %%%s has %s",
			in.syms[1].Name, plural(len(table.Dims), "dimension")).help("embedding: " + ir.OpEmbedding.Info().Doc)
		return nil
	case !in.tablePart(table):
		return nil
	}
	need := ids
	if !in.local {
		need = ids.Reduced().Clone()
		used := table.Reduced().Axes()
		for i := range need.Dims {
			need.Dims[i].Axes = without(need.Dims[i].Axes, used)
			if ids.Mesh != table.Mesh {
				need.Dims[i].Axes = nil
			}
		}
		need.Mesh = table.Mesh
		in.need(0, need)
		in.need(1, table.Reduced())
	}
	out := need.Clone()
	out.DType = table.DType
	out.Dims = append(out.Dims, ir.Dimension{Extent: table.Dims[1].Extent, Axes: slices.Clone(table.Dims[1].Axes)})
	if !in.local {
		out.Partial = partialOver(table.Dims[0].Axes, ir.Sum)
	}
	return out
}

// tablePart checks the attributes first= and of=. first= and of= give the first row of a rank's table in a larger
// table, and the number of rows of the larger table.
func (in *indexRules) tablePart(table *ir.Type) bool {
	first, of := in.s.Attr("first"), in.s.Attr("of")
	switch {
	case first == nil && of == nil:
		return true
	case first == nil || of == nil:
		in.errorf("type", in.s.Pos, "first= and of= go together").help("first=rank(tp) * extent(%table, 0), of=V")
		return false
	case !in.local:
		in.errorf("type", first.Pos, "first= and of= are for local tensors; for values, the layout of the table "+
			"determines the rows of each rank").help("remove first= and of=")
		return false
	}
	lo, rows := first.Exprs[0], of.Exprs[0]
	return in.require(in.s, ir.CheckAtMost, ir.Int(0), lo, lo.Pos, "first= is negative",
		"rows are counted from 0") &&
		in.require(in.s, ir.CheckAtMost, ir.Bin(ir.ExprAdd, lo, table.Dims[0].Extent), rows, rows.Pos,
			"the rows of the operand, from first= on, exceed of=", "of= is the number of rows of the whole table")
}
