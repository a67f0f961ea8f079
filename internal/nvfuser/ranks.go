package nvfuser

import (
	"slices"
	"strconv"
	"strings"

	"hocket.example/hocket/ir"
)

// rankSet is a sorted list of ranks. nil means all ranks.
type rankSet []int64

func (m *mesh) ranks() rankSet {
	if m == nil {
		return nil
	}
	return rankSet(slices.Sorted(slices.Values(m.devices)))
}

func (s rankSet) String() string { return joinInts(s) }

func joinInts(list []int64) string {
	var b strings.Builder
	for i, v := range list {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(strconv.FormatInt(v, 10))
	}
	return b.String()
}

func (t *output) everybody(s rankSet) bool { return s == nil || int64(len(s)) == t.world }

// membership returns an if statement whose condition is that the executing rank is in s. It chooses the shortest
// form of the condition.
func (t *output) membership(s rankSet, pos ir.Pos) *ir.Stmt {
	rank := &ir.Expr{Kind: ir.ExprRank, Pos: pos, Name: ir.WorldAxis}
	test := func(l *ir.Expr, cmp ir.Cmp, v int64) *ir.Stmt {
		return &ir.Stmt{Op: ir.OpIf, Pos: pos, Exprs: []*ir.Expr{l, num(pos, v)}, Cmp: cmp, Body: &ir.Block{}}
	}
	runs := s.runs()
	first, last := runs[0], runs[len(runs)-1]
	switch {
	case len(s) == 1:
		return test(rank, ir.EQ, s[0])
	case int64(len(s)) == t.world-1:
		return test(rank, ir.NE, s.absent())
	case len(runs) == 1 && first[0] == 0:
		return test(rank, ir.LE, first[1])
	case len(runs) == 1 && last[1] == t.world-1:
		return test(rank, ir.GE, first[0])
	}
	// The distance from a rank to a run of consecutive ranks is 0 if the rank is in the run. The rank is in s if
	// its distance to some run of s is 0, so the condition is that the minimum of the distances is 0.
	var least *ir.Expr
	for _, r := range runs {
		d := bin(ir.ExprMax, num(pos, 0), bin(ir.ExprMax, bin(ir.ExprSub, num(pos, r[0]), rank), bin(ir.ExprSub, rank, num(pos, r[1]))))
		if least == nil {
			least = d
		} else {
			least = bin(ir.ExprMin, least, d)
		}
	}
	return test(least, ir.EQ, 0)
}

// runs splits s into runs of consecutive ranks, and returns the first and the last rank of each run.
func (s rankSet) runs() [][2]int64 {
	var out [][2]int64
	for _, v := range s {
		if n := len(out); n > 0 && out[n-1][1] == v-1 {
			out[n-1][1] = v
		} else {
			out = append(out, [2]int64{v, v})
		}
	}
	return out
}

// absent returns the smallest rank that is not in s.
func (s rankSet) absent() int64 {
	for i, v := range s {
		if v != int64(i) {
			return int64(i)
		}
	}
	return int64(len(s))
}

// team is a mesh of the program for one list of devices in the dump, and the axis of the mesh.
type team struct {
	axis    string
	devices []int64
	main    bool
	pos     ir.Pos
}

// collectTeams declares a mesh for every list of devices in the dump.
func (t *output) collectTeams() {
	note := func(m *mesh) {
		if m == nil || t.teams[joinInts(m.devices)] != nil {
			return
		}
		tm := &team{devices: m.devices, pos: m.pos}
		t.teams[joinInts(m.devices)] = tm
		t.teamList = append(t.teamList, tm)
		for _, d := range m.devices {
			t.world = max(t.world, d+1)
		}
	}
	t.d.everyTensor(func(x *tensor) { note(x.mesh) })
	t.d.everyStmt(func(s *stmt) { note(s.team) })
	t.world = max(t.world, 1)
	for i, tm := range t.teamList {
		tm.axis = "d"
		if len(t.teamList) > 1 {
			tm.axis = "d" + strconv.Itoa(i)
		}
		tm.main = int64(len(tm.devices)) == t.world && slices.IsSorted(tm.devices)
		m := &ir.Mesh{Pos: tm.pos, Axes: []ir.MeshAxis{{Pos: tm.pos, Name: tm.axis, Size: num(tm.pos, int64(len(tm.devices)))}}}
		if !tm.main {
			m.Devices, m.HasDevices = tm.devices, true
		}
		t.prog.Meshes = append(t.prog.Meshes, m)
	}
}

func (t *output) teamOf(m *mesh) *team {
	if m == nil {
		return nil
	}
	return t.teams[joinInts(m.devices)]
}

// everyStmt calls the function see with every statement of the dump, including the statements in HostUnits.
func (d *dump) everyStmt(see func(*stmt)) {
	var walk func([]*stmt)
	walk = func(list []*stmt) {
		for _, s := range list {
			see(s)
			walk(s.body)
			walk(s.alt)
		}
	}
	walk(d.body)
	for _, u := range d.units {
		walk(u.body)
	}
}

// everyTensor calls the function see with every occurrence of a tensor in the container, which does not include the
// HostUnits.
func (d *dump) everyTensor(see func(*tensor)) {
	for _, x := range slices.Concat(d.inputs, d.outputs) {
		see(x)
	}
	var walk func([]*stmt)
	walk = func(list []*stmt) {
		for _, s := range list {
			for _, x := range s.tensors() {
				see(x)
			}
			walk(s.body)
			walk(s.alt)
		}
	}
	walk(d.body)
}

// tensors lists the tensors that occur in a statement.
func (s *stmt) tensors() []*tensor {
	var list []*tensor
	for _, o := range s.in {
		if o.t != nil {
			list = append(list, o.t)
		}
	}
	list = append(list, s.ins...)
	if s.out != nil {
		list = append(list, s.out)
	}
	return append(list, s.outs...)
}
