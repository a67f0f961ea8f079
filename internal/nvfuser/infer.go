package nvfuser

import (
	"slices"
	"strconv"

	"hocket.example/hocket/ir"
)

// Dumps that were printed before nvFuser's pull request 5327 use indices without defining them. The indices of a
// pipeline over the ranks of a mesh have few possible forms, namely those that nvFuser's pass StreamParallelType
// generates. Other parts of the dump determine which form an index has:
//
// - a conditional compares the destination rank of a send with the executing rank, and sends only on its ELSE
// branch;
// - in each iteration, the rank from which a rank receives is the rank that sends to it in the same iteration;
// - in each iteration, a loop reads the slot of a buffer that it has written in the same iteration.
//
// If exactly one choice of forms for all missing indices satisfies these rules, this choice defines the indices.

const (
	// maxInferred is the largest number of indices that are inferred together.
	maxInferred = 6
	// maxSlots is the largest number of buffer parts that are compared in one loop.
	maxSlots = 100
	// maxIterations is the largest number of iterations, summed over all ranks, in which an index is evaluated.
	maxIterations = 4096
)

// inference collects the facts in the dump about its missing indices.
type inference struct {
	t       *scalars
	missing []*missingIndex
	byName  map[string]*missingIndex
	extents map[string]bool // names of the extents of inputs
	loops   []*stmt         // the loops around the current statement
	// rules lists pairs of indices. In all iterations and on all ranks, the two indices of a pair are equal, or one
	// is the inverse of the other.
	rules  []rule
	values map[string]int64 // values of the rank and of loop variables in the current iteration
}

// missingIndex is an index that the dump uses but does not define.
type missingIndex struct {
	name   string
	pos    ir.Pos
	loop   *stmt // the loop around the first use of the index
	forms  []*scalar
	chosen *scalar
}

// rule relates two indices a and b that a loop uses. The two indices are equal or, if inverse is set, inverse to each
// other: if b is r on rank q, then a is q on rank r.
type rule struct {
	a, b    *scalar
	inverse bool
	loop    *stmt
}

// inferIndices defines the indices that the dump uses but does not define. If this is not possible, it stores a
// proposal for the --define flags that the error message shows.
func (t *scalars) inferIndices() {
	in := &inference{t: t, byName: map[string]*missingIndex{}, extents: map[string]bool{}, values: map[string]int64{}}
	for _, x := range t.d.inputs {
		for _, a := range x.axes {
			a.extent.names(func(s *scalar) { in.extents[s.name] = isSymbol(s.name) })
		}
	}
	t.world = t.d.devices()
	if in.collect(t.d.body); len(in.missing) == 0 || len(in.missing) > maxErrors {
		return
	}
	var found []*scalar
	different := 0
	if len(in.missing) <= maxInferred {
		in.walk(t.d.body, nil)
		found, different = in.solve()
	}
	for i, m := range in.missing {
		s := m.forms[0]
		if found != nil {
			s = found[i]
		}
		t.proposals += " --define '" + m.name + "=" + trimParens(s.text()) + "'"
		if different == 1 {
			t.defs[m.name] = s
		}
	}
	if different == 1 {
		d := t.errorf(in.missing[0].pos, "the dump uses indices that it does not define; of the forms that "+
			"nvFuser generates, "+
			"only these fit and are used:%s", t.proposals)
		d.Severity, d.Help = ir.Warning, "if the original program used other indices, set them with --define"
	}
}

// collect finds the missing indices in a list of statements.
func (in *inference) collect(list []*stmt) {
	for _, s := range list {
		in.note(s)
		if s.kind == stFor {
			in.loops = append(in.loops, s)
		}
		in.collect(s.body)
		in.collect(s.alt)
		if s.kind == stFor {
			in.loops = in.loops[:len(in.loops)-1]
		}
	}
}

// walk collects the rules that follow from a list of statements. If the list is the ELSE branch of a conditional
// that compares an index with the executing rank, self is this index.
func (in *inference) walk(list []*stmt, self *scalar) {
	var send, recv *scalar
	for _, s := range list {
		switch s.kind {
		case stFor:
			in.loops = append(in.loops, s)
			in.walk(s.body, nil)
			in.slots(s)
			in.loops = in.loops[:len(in.loops)-1]
		case stIf:
			in.walk(s.body, nil)
			in.walk(s.alt, comparedWithRank(s.index))
		case stP2P:
			if s.op == "send" {
				send = s.index
				in.relate(self, send, false)
			} else {
				recv = s.index
			}
			if send != nil && recv != nil {
				in.relate(send, recv, true)
				send, recv = nil, nil
			}
		}
	}
}

// comparedWithRank returns the index that a condition compares with the executing rank, or nil if it compares none.
func comparedWithRank(c *scalar) *scalar {
	if c.op != "==" {
		return nil
	}
	for i, a := range c.args {
		if a.op == "" && (a.name == "rank" || a.name == deviceIndex) {
			return c.args[1-i]
		}
	}
	return nil
}

func (in *inference) relate(a, b *scalar, inverse bool) {
	if a != nil && b != nil && len(in.loops) > 0 {
		in.rules = append(in.rules, rule{a, b, inverse, in.loops[len(in.loops)-1]})
	}
}

// slots adds rules for the buffers that the body of a loop both writes and reads: the written and the read slot are
// equal.
func (in *inference) slots(loop *stmt) {
	type slot struct {
		buffer string
		index  *scalar
	}
	at, written, read := map[string]slot{}, map[string]bool{}, map[string]bool{}
	var see func(list []*stmt)
	see = func(list []*stmt) {
		for _, s := range list {
			switch {
			case s.kind == stAlias:
				at[s.out.id] = slot{s.in[0].t.id, s.index}
			case s.kind == stCompute, s.kind == stComm, s.kind == stPost:
				for _, x := range s.tensors() {
					if out := x == s.out || slices.Contains(s.outs, x); out {
						written[x.id] = true
					} else {
						read[x.id] = true
					}
				}
			case s.kind == stP2P && s.op == "recv":
				written[s.out.id] = true
			}
			see(s.body)
			see(s.alt)
		}
	}
	see(loop.body)
	if len(at) > maxSlots {
		return
	}
	for w, a := range at {
		for r, b := range at {
			if w != r && a.buffer == b.buffer && written[w] && read[r] {
				in.relate(a.index, b.index, false)
			}
		}
	}
}

// note records the indices that a statement of the dump uses and that the dump does not define, with the expressions
// for which each may stand.
func (in *inference) note(s *stmt) {
	alone := *s
	alone.body, alone.alt = nil, nil
	one := &dump{body: []*stmt{&alone}}
	one.everyScalar(func(x *scalar) {
		switch name := x.name; {
		case name == "", name == "rank", name == deviceIndex, name == numberOfStreams:
		case in.extents[name], in.t.defs[name] != nil, in.byName[name] != nil,
			slices.ContainsFunc(in.loops, func(l *stmt) bool { return l.id == name }):
		default:
			m := &missingIndex{name: name, pos: x.pos}
			if n := len(in.loops); n > 0 {
				m.loop = in.loops[n-1]
			}
			m.forms = in.formsOf(s, m)
			in.byName[name] = m
			in.missing = append(in.missing, m)
		}
	})
}

// formsOf lists the possible forms of an index whose first use is in the statement.
func (in *inference) formsOf(s *stmt, m *missingIndex) []*scalar {
	if s.kind == stSlice { // the extent of a sliced axis is printed as ( -lo + hi )
		for i, x := range s.ranges[:min(len(s.ranges), len(s.out.axes))] {
			switch e := s.out.axes[i].extent; {
			case e.op != "+" || e.args[0].op != "neg":
			case x.lo.name == m.name:
				return []*scalar{e.args[0].args[0]}
			case x.hi.name == m.name:
				return []*scalar{e.args[1]}
			}
		}
	}
	rank, size := &scalar{pos: s.pos, name: "rank"}, &scalar{pos: s.pos, val: in.t.world}
	if m.loop == nil {
		return []*scalar{rank, {pos: s.pos}}
	}
	i := &scalar{pos: s.pos, name: m.loop.id}
	if in.t.world == 1 {
		return []*scalar{i, {pos: s.pos}}
	}
	op := func(op string, a, b *scalar) *scalar { return &scalar{pos: s.pos, op: op, args: []*scalar{a, b}} }
	return []*scalar{op("%", op("+", rank, i), size), op("%", op("+", size, op("-", rank, i)), size), i}
}

// solve returns a choice of forms that satisfies all rules. It also returns the number of choices that satisfy all
// rules. Choices count as one if their indices have equal values in every iteration.
func (in *inference) solve() (found []*scalar, different int) {
	if len(in.rules) == 0 {
		return nil, 0
	}
	tables := map[string]bool{}
	var choose func(i int)
	choose = func(i int) {
		if i < len(in.missing) {
			for _, f := range in.missing[i].forms {
				in.missing[i].chosen = f
				choose(i + 1)
			}
			return
		}
		for _, r := range in.rules {
			if !in.iterations(r.loop, func(rank int64) bool { return in.holds(r, rank) }) {
				return
			}
		}
		var table []byte
		for _, m := range in.missing {
			if !in.iterations(m.loop, func(int64) bool {
				v, ok := in.eval(m.chosen, 0)
				table = append(strconv.AppendInt(table, v, 10), ' ')
				return ok
			}) {
				return
			}
		}
		if tables[string(table)] = true; found == nil {
			for _, m := range in.missing {
				found = append(found, m.chosen)
			}
		}
	}
	choose(0)
	return found, len(tables)
}

// iterations is an iterator: for each iteration of a loop and each rank, it calls the function see, until see returns
// false.
func (in *inference) iterations(loop *stmt, see func(rank int64) bool) bool {
	if loop == nil || !loop.hi.isInt() || !loop.index.isInt() ||
		loop.index.val < 0 || loop.hi.val > maxIterations/in.t.world {
		return false
	}
	clear(in.values)
	for i := loop.index.val; i < loop.hi.val; i++ {
		for rank := range in.t.world {
			in.values[loop.id], in.values["rank"] = i, rank
			if !see(rank) {
				return false
			}
		}
	}
	return true
}

// holds reports whether a rule is satisfied on one rank in the current iteration.
func (in *inference) holds(r rule, rank int64) bool {
	v, ok := in.eval(r.a, 0)
	if !ok || r.inverse && (v < 0 || v >= in.t.world) {
		return false
	}
	if r.inverse {
		in.values["rank"] = v
	}
	w, ok := in.eval(r.b, 0)
	if r.inverse {
		return ok && w == rank
	}
	return ok && v == w
}

// eval computes the value of an index in one iteration on one rank.
func (in *inference) eval(s *scalar, depth int) (int64, bool) {
	if depth > maxNest {
		return 0, false
	}
	switch {
	case s.isInt():
		return s.val, true
	case s.op == "":
		name := s.name
		if name == deviceIndex {
			name = "rank"
		}
		if v, ok := in.values[name]; ok {
			return v, true
		}
		d := in.t.defs[name]
		if m := in.byName[name]; m != nil {
			d = m.chosen
		}
		if d == nil {
			return 0, false
		}
		return in.eval(d, depth+1)
	case len(s.args) != 2:
		return 0, false
	}
	a, ok := in.eval(s.args[0], depth+1)
	b, ok2 := in.eval(s.args[1], depth+1)
	if !ok || !ok2 || max(a, -a, b, -b) > small {
		return 0, false
	}
	switch s.op {
	case "+":
		return a + b, true
	case "-":
		return a - b, true
	case "*":
		return a * b, true
	case "%":
		if b == 0 {
			return 0, false
		}
		return a % b, true
	case "/":
		if b == 0 {
			return 0, false
		}
		return a / b, true
	}
	return 0, false
}

// devices returns the number of devices: the highest device number in the dump plus one.
func (d *dump) devices() int64 {
	n := int64(1)
	see := func(m *mesh) {
		if m != nil {
			n = max(n, slices.Max(append(slices.Clone(m.devices), 0))+1)
		}
	}
	d.everyTensor(func(x *tensor) { see(x.mesh) })
	d.everyStmt(func(s *stmt) { see(s.team) })
	return n
}

// trimParens removes the parentheses around an expression.
func trimParens(s string) string {
	if s[0] == '(' {
		return s[1 : len(s)-1]
	}
	return s
}

// text prints a scalar in the notation of the dump.
func (s *scalar) text() string {
	switch {
	case s.op == "" && s.name != "":
		return s.name
	case s.op == "":
		return strconv.FormatInt(s.val, 10)
	case s.op == "neg":
		return "-" + s.args[0].text()
	case s.op == "!":
		return "!" + s.args[0].text()
	case s.op[0] >= 'a' && s.op[0] <= 'z':
		out := s.op + "("
		for i, a := range s.args {
			if i > 0 {
				out += ", "
			}
			out += a.text()
		}
		return out + ")"
	}
	return "(" + s.args[0].text() + s.op + s.args[1].text() + ")"
}
