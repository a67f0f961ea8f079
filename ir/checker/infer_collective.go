package checker

import (
	"hocket.example/hocket/ir"
	"slices"
	"strings"
)

// A collective on a value changes only the layout of the value. A collective with an into clause or a buffer operand
// operates on the local tensors of the ranks.

// collectiveRules determines the types of the results of collectives.
type collectiveRules struct {
	*inference
	over []string // the team's axes
}

func ofCollective(in *inference) *collectiveRules { return &collectiveRules{in, in.s.Over()} }

func (in *collectiveRules) teamSize() *ir.Expr { return ir.SizeOf(in.over) }

// overMesh checks that the axes of the team belong to the mesh of the value.
func (in *collectiveRules) overMesh(t *ir.Type) bool {
	mesh, _ := in.typeMesh(t)
	for _, ax := range in.over {
		if ax == ir.WorldAxis || in.axes[ax] != mesh {
			in.errorf("layout", in.s.Attr("over").Pos, "%%%s is not laid out over %s", in.syms[0].Name, ax).
				help("its type is " + t.String())
			return false
		}
	}
	return true
}

// takePartial removes the team's axes from the partial reductions of t. The value must be partial over each of these
// axes, with the operation's reduction.
func (in *collectiveRules) takePartial(t *ir.Type) bool {
	red, _ := ir.ParseRed(in.s.Word("op", ""))
	for _, ax := range in.over {
		i := slices.Index(t.Partial, ir.Partial{Axis: ax, Red: red})
		if i < 0 {
			in.errorf("layout", in.s.Args[0].Pos, "the operand %%%s is not partial(%s, %s)", in.syms[0].Name, ax, red).
				help("its type is " + in.args[0].String() + "; to reduce local contents, write into a buffer")
			return false
		}
		t.Partial = slices.Delete(t.Partial, i, i+1)
	}
	return true
}

// takeAxes removes the team's axes from dimension d. The team's axes must be the minor-most axes of that dimension.
func (in *collectiveRules) takeAxes(t *ir.Type, d int) bool {
	axes := t.Dims[d].Axes
	if n := len(axes) - len(in.over); n >= 0 && slices.Equal(axes[n:], in.over) {
		t.Dims[d].Axes = slices.Clone(axes[:n])
		return true
	}
	in.errorf("layout", in.s.Args[0].Pos, "the last axes that split dimension %d of %%%s are not %s", d,
		in.syms[0].Name, strings.Join(in.over, ", ")).
		help("its type is " + in.args[0].String())
	return false
}

// addAxes splits dimension d over the team's axes. The new axes are minor to the axes that already split the dimension.
func (in *collectiveRules) addAxes(t *ir.Type, d int) {
	t.Dims[d].Axes = append(slices.Clone(t.Dims[d].Axes), in.over...)
	in.requireShards(t)
}

// timesTeam multiplies the extent of dimension d of a local result by the size of the team, and perTeam divides it.
func (in *collectiveRules) timesTeam(t *ir.Type, d int) {
	t.Dims[d].Extent = in.fold(ir.Bin(ir.ExprMul, t.Dims[d].Extent, in.teamSize()))
}

func (in *collectiveRules) perTeam(t *ir.Type, d int) bool {
	e := t.Dims[d].Extent
	if !in.require(in.s, ir.CheckMultiple, e, in.teamSize(), in.s.Pos,
		"dimension "+itoa(d)+" is not divisible by the number of ranks in the team", shardHelp) {
		return false
	}
	t.Dims[d].Extent = in.fold(ir.Bin(ir.ExprFloorDiv, e, in.teamSize()))
	return true
}

func (in *collectiveRules) allReduce() *ir.Type {
	t := in.args[0].Clone()
	if in.local {
		return t
	}
	if !in.overMesh(t) || !in.takePartial(t) {
		return nil
	}
	return t
}

func (in *collectiveRules) allGather() *ir.Type {
	t := in.args[0].Clone()
	d, ok := in.axisAttr("axis", 0, len(t.Dims))
	switch {
	case !ok:
		return nil
	case in.local:
		in.timesTeam(t, d)
		return t
	case !in.overMesh(t) || !in.takeAxes(t, d):
		return nil
	}
	return t
}

func (in *collectiveRules) reduceScatter() *ir.Type {
	t := in.args[0].Clone()
	d, ok := in.axisAttr("axis", 0, len(t.Dims))
	switch {
	case !ok:
		return nil
	case in.local:
		if !in.perTeam(t, d) {
			return nil
		}
		return t
	case !in.overMesh(t) || !in.takePartial(t):
		return nil
	}
	in.addAxes(t, d)
	return t
}

func (in *collectiveRules) allToAll() *ir.Type {
	t := in.args[0].Clone()
	split, ok1 := in.axisAttr("split", 0, len(t.Dims))
	concat, ok2 := in.axisAttr("concat", 0, len(t.Dims))
	if !ok1 || !ok2 {
		return nil
	}
	if in.local {
		if !in.perTeam(t, split) {
			return nil
		}
		in.timesTeam(t, concat)
		return t
	}
	if split == concat {
		in.errorf("layout", in.s.Pos, "on a value, split and concat must differ: the sharding moves from concat to split").help("all_to_all %x, over=tp, split=1, concat=0")
		return nil
	}
	if !in.overMesh(t) || !in.takeAxes(t, concat) {
		return nil
	}
	in.addAxes(t, split)
	return t
}

// rooted infers the types of broadcast, reduce, gather, scatter and permute. These collectives are not defined for
// values, only for local operands.
func (in *collectiveRules) rooted() *ir.Type {
	if !in.local {
		in.errorf("type", in.s.Pos, "%s works on the local tensors of ranks, not on values", in.s.Op).
			help("write into a buffer: " + in.s.Op.String() + " %" + in.syms[0].Name +
				" into %b, …; to change the layout of a value, use reshard")
		return nil
	}
	if a := in.s.Attr("root"); a != nil && in.rankDependent(a.Exprs[0]) {
		in.errorf("type", a.Pos, "the root must be the same on every rank, but %s may differ between ranks",
			ir.Brief(a.Exprs[0])).help("use a number or a dim: the root is an index in the team")
		return nil
	}
	t := in.args[0].Clone()
	switch in.s.Op {
	case ir.OpGather:
		d, ok := in.axisAttr("axis", 0, len(t.Dims))
		if !ok {
			return nil
		}
		in.timesTeam(t, d)
	case ir.OpScatter:
		d, ok := in.axisAttr("axis", 0, len(t.Dims))
		if !ok || !in.perTeam(t, d) {
			return nil
		}
	}
	return t
}
