package lower

import (
	"fmt"

	"hocket.example/hocket/ir"
)

// shard makes every change of layout a separate statement. Check records the operands that are needed in another layout
// (Needs) and the results whose layout differs from the annotation (Natural). shard inserts a reshard before the
// operation for each such operand, and after the operation for each such result.
func shard(u *unit) error {
	for _, f := range u.prog.Funcs {
		s := &sharder{unit: u, fn: f, names: namesOf(f)}
		s.block(f.Body)
	}
	return nil
}

type sharder struct {
	*unit
	fn    *ir.Func
	names *names
}

// scope holds the state for one block.
type scope struct {
	// made maps the operand and type of each reshard in the block to the name of its result, so that equal reshards are
	// emitted once. The entries are valid in this block only, because a reshard on another stream or in another branch
	// might not have run yet.
	made map[string]string
	// users maps each value to the statements of the block that use it.
	users useIndex
}

func (s *sharder) block(b *ir.Block) {
	if b == nil {
		return
	}
	sc := &scope{made: map[string]string{}, users: usesIn(b)}
	out := make([]*ir.Stmt, 0, len(b.Stmts))
	for _, st := range b.Stmts {
		s.block(st.Body)
		s.block(st.Else)
		rewritten := s.stmt(st, sc)
		leadOf(st, rewritten[0])
		out = append(out, rewritten...)
	}
	b.Stmts = out
}

// stmt returns the statements that replace st.
func (s *sharder) stmt(st *ir.Stmt, sc *scope) []*ir.Stmt {
	free := st.Type == nil
	s.annotate(st)
	natural := s.info.Natural[st]
	if st.Op == ir.OpLinear && len(st.Args) == 3 && natural != nil && len(natural.Partial) > 0 {
		if free {
			s.aim(st, sc)
		}
		return s.biasLast(st, natural, sc)
	}
	out := append(s.operands(st, sc), st)
	if natural == nil {
		return out
	}
	name, want := st.Results[0].Text, st.Type
	st.Results[0].Text, st.Type = s.names.fresh(name, "0"), natural.Clone()
	s.note(s.fn, st.Pos, st.Results[0].Text, natural, want, "the result of "+st.Op.String()).Result = name
	return append(out, reshard(st.Pos, name, want, st.Results[0].Text))
}

// annotate adds the type annotation to the definition of a value (S22).
func (s *sharder) annotate(st *ir.Stmt) {
	results := s.info.Results[st]
	if st.Type == nil && len(results) == 1 && results[0].Kind == ir.SymValue {
		st.Type = results[0].Type.Clone()
	}
}

// operands inserts reshards for the operands of st that are needed in another layout.
func (s *sharder) operands(st *ir.Stmt, sc *scope) []*ir.Stmt {
	var out []*ir.Stmt
	for i, want := range s.info.Needs[st] {
		if want != nil {
			out = append(out, s.operand(st, i, want, sc)...)
		}
	}
	return out
}

// operand changes the i-th operand of st to a value in the layout of want, and returns the reshard if one is needed.
func (s *sharder) operand(st *ir.Stmt, i int, want *ir.Type, sc *scope) []*ir.Stmt {
	have, arg := s.info.Operands[st][i].Type, &st.Args[i]
	key := arg.Name + ": " + want.String()
	name, old := sc.made[key]
	value := arg.Name
	if !old {
		name = s.names.fresh(value, "g")
		sc.made[key] = name
	}
	arg.Name = name
	if old {
		return nil
	}
	s.note(s.fn, st.Pos, value, have, want, needed(st, i)).Result = name
	return []*ir.Stmt{reshard(st.Pos, name, want.Clone(), value)}
}

// needed returns the text with which the log describes the use of the i-th operand of st.
func needed(st *ir.Stmt, i int) string {
	switch st.Op {
	case ir.OpReturn:
		return fmt.Sprintf("result %d of the signature", i)
	case ir.OpFor, ir.OpYield:
		return fmt.Sprintf("value %d that the loop carries", i)
	case ir.OpCall:
		return fmt.Sprintf("parameter %d of %s", i, st.Callee.Text)
	}
	return fmt.Sprintf("operand %d of %s", i, st.Op)
}

// biasLast rewrites a linear whose result is partial. biasLast moves the addition of the bias after the reduction, so
// that the bias is added only once (S10).
func (s *sharder) biasLast(st *ir.Stmt, natural *ir.Type, sc *scope) []*ir.Stmt {
	name, want := st.Results[0].Text, st.Type
	sum := &ir.Stmt{Op: ir.OpAdd, Pos: st.Pos, Results: []ir.Name{st.Results[0]}, Type: want}
	sum.Args = places(st.Pos, []string{s.names.fresh(name, "1"), st.Args[2].Name})

	bias := s.info.Operands[st][2].Type
	before := s.linearOperands(st, sc)
	st.Results[0].Text, st.Type = s.names.fresh(name, "0"), natural.Clone()
	s.note(s.fn, st.Pos, st.Results[0].Text, natural, want, "the result of linear; the bias is added after it").Result = sum.Args[0].Name
	out := append(before, st, reshard(st.Pos, sum.Args[0].Name, want.Clone(), st.Results[0].Text))
	if t := biasType(bias, want); !ir.SameLayout(bias, t) {
		out = append(out, s.biasOperand(st, sum, bias, t, sc)...)
	}
	return append(out, sum)
}

// aim changes the layout of st's partial result to the layout in which its users need it, if all users need the same
// layout. The result is then reduced directly to this layout and not made whole first.
func (s *sharder) aim(st *ir.Stmt, sc *scope) {
	name := st.Results[0].Text
	var want *ir.Type
	for _, u := range sc.users[name] {
		t := s.neededAs(u, name)
		if t == nil || len(t.Partial) > 0 || t.Mesh != st.Type.Mesh || want != nil && !ir.SameLayout(t, want) {
			return
		}
		want = t
	}
	if want == nil {
		return
	}
	st.Type, s.info.Results[st][0].Type = want.Clone(), want.Clone()
	for _, u := range sc.users[name] {
		for i := range u.Args {
			if u.Args[i].Name == name {
				s.info.Needs[u][i] = nil
			}
		}
	}
}

// neededAs returns the type to which u needs its operands named name resharded. neededAs returns nil if u needs them in
// different types, or needs one of them in the layout that it already has.
func (s *sharder) neededAs(u *ir.Stmt, name string) *ir.Type {
	var want *ir.Type
	needs := s.info.Needs[u]
	for i := range u.Args {
		if u.Args[i].Name != name {
			continue
		}
		if needs == nil || needs[i] == nil || want != nil && !ir.SameLayout(needs[i], want) {
			return nil
		}
		want = needs[i]
	}
	return want
}

// linearOperands reshards the first two operands of st and removes the bias.
func (s *sharder) linearOperands(st *ir.Stmt, sc *scope) []*ir.Stmt {
	var out []*ir.Stmt
	for i, want := range s.info.Needs[st] {
		if want != nil && i < 2 {
			out = append(out, s.operand(st, i, want, sc)...)
		}
	}
	st.Args = st.Args[:2]
	return out
}

// biasOperand changes the bias operand of sum to a value in the layout of want.
func (s *sharder) biasOperand(st, sum *ir.Stmt, have, want *ir.Type, sc *scope) []*ir.Stmt {
	s.info.Operands[sum] = []*ir.Sym{nil, {Kind: ir.SymValue, Type: have}}
	return s.operand(sum, 1, want, sc)
}

// biasType returns the type of the bias with the layout of y's last dimension.
func biasType(bias, y *ir.Type) *ir.Type {
	t := bias.Clone()
	t.Dims[len(t.Dims)-1].Axes = y.Clone().Dims[len(y.Dims)-1].Axes
	t.Partial, t.Mesh = nil, y.Mesh
	return t
}

func reshard(pos ir.Pos, name string, t *ir.Type, arg string) *ir.Stmt {
	return value(pos, name, t, ir.OpReshard, nil, arg)
}
