package checker

import "hocket.example/hocket/ir"

// uneven infers the type of all_gatherv, reduce_scatterv and all_to_allv. The extent of the result is its capacity: the
// extent in the destination or annotation, or otherwise the largest number of rows that a rank can receive. The rows
// beyond the received rows are zeros.
func (in *collectiveRules) uneven() *ir.Type {
	s := in.s
	if !in.local {
		in.errorf("type", s.Pos, "%s works on the local tensors of ranks, not on values", s.Op).
			help("write into a buffer, whose extent is the capacity: " + s.Op.String() + " %" + in.syms[0].Name +
				", … into %b, …")
		return nil
	}
	t := in.args[0].Clone()
	d, ok := in.axisAttr("axis", 0, len(t.Dims))
	if !ok || !in.counts() {
		return nil
	}
	if s.Op != ir.OpReduceScatterV {
		in.timesTeam(t, d)
	}
	capacity := s.Type
	if s.Into != nil {
		capacity = in.in.Into[s].Type
	}
	if capacity != nil && len(capacity.Dims) == len(t.Dims) {
		t.Dims[d].Extent = capacity.Dims[d].Extent
	}
	return t
}

// countsHelp describes where the counts of op may be given.
func countsHelp(op ir.Op) string {
	return "counts=(…), a number for each rank of the team, or i32 in device memory: %y = " + op.String() +
		" %x, %n, over=tp"
}

// counts checks that the counts are given either as the attribute counts=, whose values are known when the program is
// planned, or as an operand, whose values are known only when the program runs.
func (in *collectiveRules) counts() bool {
	a := in.s.Attr("counts")
	switch {
	case a == nil && len(in.args) == 1:
		in.errorf("type", in.s.Pos, "%s has no counts", in.s.Op).help(countsHelp(in.s.Op))
		return false
	case a != nil && len(in.args) == 2:
		in.errorf("type", a.Pos, "the counts are given twice: in the text and in %%%s",
			in.syms[1].Name).help("remove one of them")
		return false
	case a != nil:
		return in.listedCounts(a)
	}
	n := in.args[1]
	if n.DType != ir.I32 || len(n.Dims) != 1 {
		in.errorf("type", in.s.Args[1].Pos, "counts must be i32[%s], but %%%s is %s", ir.Brief(in.teamSize()),
			in.syms[1].Name, ir.Brief(n)).help(countsHelp(in.s.Op))
		return false
	}
	return in.require(in.s, ir.CheckEqual, n.Dims[0].Extent, in.teamSize(), in.s.Args[1].Pos,
		"the number of counts differs from the number of ranks in the team", countsHelp(in.s.Op))
}

// listedCounts checks the attribute counts=. The counts of an all_to_allv may differ between ranks; other counts must
// be the same on all ranks.
func (in *collectiveRules) listedCounts(a *ir.Attr) bool {
	if !in.require(in.s, ir.CheckEqual, ir.Int(int64(len(a.Exprs))), in.teamSize(), a.Pos,
		"the number of counts differs from the number of ranks in the team", countsHelp(in.s.Op)) {
		return false
	}
	for _, e := range a.Exprs {
		if in.s.Op != ir.OpAllToAllV && in.rankDependent(e) {
			in.errorf("type", e.Pos, "the counts of %s must be the same on every rank, but %s may differ between "+
				"ranks", in.s.Op,
				ir.Brief(e)).help("on all ranks, the i-th count must be that of rank i")
			return false
		}
	}
	return true
}
