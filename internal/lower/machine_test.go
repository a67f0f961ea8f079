package lower

import (
	"fmt"
	"slices"

	"hocket.example/hocket/ir"
)

// This file implements a small machine that executes lowered programs. All ranks execute in step, on one stream, with
// integers. The machine shares no code with the passes and does not use the layouts that Check infers: the contents of
// a rank's memory follow from the operations alone.

// array is a local tensor: a list of the locations of its elements in row-major order. Views share the locations.
type array struct {
	shape []int64
	at    []*int64
}

const unwritten = -1 << 40

func newArray(shape []int64) *array {
	n := int64(1)
	for _, d := range shape {
		n *= d
	}
	a := &array{shape: slices.Clone(shape)}
	for range n {
		v := int64(unwritten)
		a.at = append(a.at, &v)
	}
	return a
}

func (a *array) values() []int64 {
	out := make([]int64, len(a.at))
	for i, p := range a.at {
		out[i] = *p
	}
	return out
}

// clone returns new storage with a's values.
func (a *array) clone() *array {
	out := newArray(a.shape)
	out.set(a)
	return out
}

// set writes the values of b, which may be a's own.
func (a *array) set(b *array) {
	for i, v := range b.values() {
		*a.at[i] = v
	}
}

// runs returns the product of the extents before dimension d, and the product of the extents after it.
func (a *array) runs(d int) (outer, inner int64) {
	outer, inner = 1, 1
	for _, n := range a.shape[:d] {
		outer *= n
	}
	for _, n := range a.shape[d+1:] {
		inner *= n
	}
	return outer, inner
}

func (a *array) block(d int, index, count int64) *array {
	rows := a.shape[d] / count
	shape := slices.Clone(a.shape)
	shape[d] = rows
	outer, inner := a.runs(d)
	out := &array{shape: shape}
	for o := range outer {
		from := (o*a.shape[d] + index*rows) * inner
		out.at = append(out.at, a.at[from:from+rows*inner]...)
	}
	return out
}

// transpose returns a view whose dimension i is a's dimension perm[i].
func (a *array) transpose(perm []*ir.Expr) *array {
	out := &array{}
	for _, p := range perm {
		out.shape = append(out.shape, a.shape[p.Val])
	}
	index := make([]int64, len(perm))
	for range a.at {
		at := make([]int64, len(perm))
		for i, p := range perm {
			at[p.Val] = index[i]
		}
		flat := int64(0)
		for d, n := range a.shape {
			flat = flat*n + at[d]
		}
		out.at = append(out.at, a.at[flat])
		for i := len(index) - 1; i >= 0; i-- {
			if index[i]++; index[i] < out.shape[i] {
				break
			}
			index[i] = 0
		}
	}
	return out
}

func concat(parts []*array, d int) *array {
	out := &array{shape: slices.Clone(parts[0].shape)}
	out.shape[d] *= int64(len(parts))
	outer, inner := parts[0].runs(d)
	row := parts[0].shape[d] * inner
	for o := range outer {
		for _, p := range parts {
			out.at = append(out.at, p.at[o*row:(o+1)*row]...)
		}
	}
	return out.clone()
}

func reduceArrays(parts []*array, op string) *array {
	out := parts[0].clone()
	for _, p := range parts[1:] {
		for i, v := range p.values() {
			if op == "max" {
				*out.at[i] = max(*out.at[i], v)
			} else {
				*out.at[i] += v
			}
		}
	}
	return out
}

// reduceFirst reduces dimension 0 of a.
func reduceFirst(a *array, op string) *array {
	var rows []*array
	for i := range a.shape[0] {
		r := a.block(0, i, a.shape[0])
		rows = append(rows, &array{r.shape[1:], r.at})
	}
	return reduceArrays(rows, op)
}

type pair struct{ from, to int }

// machine holds the arrays of each rank by name.
type machine struct {
	bound *ir.Bound
	held  []map[string]*array
	// sends and recvs hold the posted transfers whose other side has not been posted yet.
	sends, recvs map[pair][]*array
	later        []func() // statements after a transfer, which run once the transfer is complete
	returned     string
	// received counts elements by rank. Collectives run as rings.
	received map[int64]float64
}

func newMachine(b *ir.Bound) *machine {
	m := &machine{bound: b, sends: map[pair][]*array{}, recvs: map[pair][]*array{}, received: map[int64]float64{}}
	for range b.Ranks {
		m.held = append(m.held, map[string]*array{})
	}
	return m
}

// run executes a block on the given ranks. It panics with a description of any error. The statements of a rank after a
// transfer are executed once the other ranks have executed their side of the transfer.
func (m *machine) run(b *ir.Block, ranks []int) {
	for _, s := range b.Stmts {
		if s.Op != ir.OpIf {
			m.catchUp()
		}
		switch s.Op {
		case ir.OpIf:
			for _, r := range ranks {
				if s.Cmp.Holds(m.eval(s.Exprs[0], r), m.eval(s.Exprs[1], r)) {
					m.alone(s.Body.Stmts, r)
				}
			}
		case ir.OpReturn:
			m.returned = s.Args[0].Name
		default:
			for _, r := range ranks {
				m.step(s, r)
			}
		}
	}
}

func (m *machine) alone(stmts []*ir.Stmt, r int) {
	for i, s := range stmts {
		switch s.Op {
		case ir.OpGroup:
			for _, t := range s.Body.Stmts {
				m.step(t, r)
			}
		case ir.OpIf:
			if s.Cmp.Holds(m.eval(s.Exprs[0], r), m.eval(s.Exprs[1], r)) {
				m.alone(s.Body.Stmts, r)
			}
		default:
			m.step(s, r)
		}
		if s.Op == ir.OpGroup || s.Op == ir.OpSend || s.Op == ir.OpRecv {
			m.later = append(m.later, func() { m.alone(stmts[i+1:], r) })
			return
		}
	}
}

func (m *machine) catchUp() {
	for len(m.later) > 0 {
		next := m.later
		m.later = nil
		for _, f := range next {
			f()
		}
	}
}

func (m *machine) eval(e *ir.Expr, rank int) int64 {
	v, err := e.Eval(m.bound.Env(rank, extents{m.held[rank]}))
	if err != nil {
		panic(err)
	}
	return v
}

// extents is an ir.Env that returns the extents of a rank's tensors.
type extents struct{ held map[string]*array }

func (extents) Var(string) (int64, bool) { return 0, false }
func (e extents) Extent(name string, axis int) (int64, bool) {
	a := e.held[name]
	if a == nil {
		return 0, false
	}
	return a.shape[axis], true
}

func (m *machine) attr(s *ir.Stmt, name string, rank int) int64 {
	return m.eval(s.Attr(name).Exprs[0], rank)
}

// step executes one statement on one rank. An operation on values runs on the ranks that have the operand. For
// transfers and writes, a missing operand is an error.
func (m *machine) step(s *ir.Stmt, r int) {
	if s.Op == ir.OpAlloc {
		shape := make([]int64, len(s.Type.Dims))
		for i, d := range s.Type.Dims {
			shape[i] = m.eval(d.Extent, r)
		}
		m.held[r][s.Results[0].Text] = newArray(shape)
		return
	}
	x := m.held[r][s.Args[0].Name]
	switch {
	case x != nil:
	case s.Op == ir.OpSend || s.Op == ir.OpRecv || s.Into != nil:
		panic(fmt.Sprintf("rank %d uses %%%s, which is not there, in %s", r, s.Args[0].Name, s.Op))
	default:
		return
	}
	if s.Op == ir.OpClaim && !m.bound.Holds(s.Type, r) {
		return
	}
	out := m.compute(s, r, x)
	switch {
	case out == nil:
	case s.Into != nil:
		dst := m.held[r][s.Into.Name]
		if !slices.Equal(dst.shape, out.shape) {
			panic(fmt.Sprintf("%s of %v into %v", s.Op, out.shape, dst.shape))
		}
		dst.set(out)
	default:
		m.held[r][s.Results[0].Text] = out
	}
}

func (m *machine) compute(s *ir.Stmt, r int, x *array) *array {
	switch s.Op {
	case ir.OpCopy:
		return x.clone()
	case ir.OpClaim, ir.OpLocal:
		return x
	case ir.OpSum, ir.OpMax:
		return reduceFirst(x, s.Op.String())
	case ir.OpReshape:
		var shape []int64
		for _, e := range s.Attr("shape").Exprs {
			shape = append(shape, m.eval(e, r))
		}
		return &array{shape, x.at}
	case ir.OpTranspose:
		return x.transpose(s.Attr("perm").Exprs)
	case ir.OpChunk:
		return x.block(int(m.attr(s, "axis", r)), m.eval(s.Exprs[0], r), m.eval(s.Exprs[1], r))
	case ir.OpSend:
		m.post(m.sends, pair{r, int(m.eval(s.Peer.Index, r))}, x.clone())
		return nil
	case ir.OpRecv:
		m.post(m.recvs, pair{int(m.eval(s.Peer.Index, r)), r}, x)
		return nil
	}
	return m.collective(s, r)
}

// post queues one side of a transfer, and completes the transfer if the other side is already queued.
func (m *machine) post(queue map[pair][]*array, p pair, a *array) {
	queue[p] = append(queue[p], a)
	if len(m.sends[p]) == 0 || len(m.recvs[p]) == 0 {
		return
	}
	from, to := m.sends[p][0], m.recvs[p][0]
	if !slices.Equal(from.shape, to.shape) {
		panic(fmt.Sprintf("%v sends %v, and %v is received", p, from.shape, to.shape))
	}
	to.set(from)
	m.received[int64(p.to)] += float64(len(to.at))
	m.sends[p], m.recvs[p] = m.sends[p][1:], m.recvs[p][1:]
}

// share returns the number of elements that member me of n receives in a collective in which each operand has size
// elements.
func (m *machine) share(s *ir.Stmt, r int, me, n int64, size float64) float64 {
	others := float64(n-1) / float64(n)
	switch s.Op {
	case ir.OpAllReduce:
		return 2 * size * others
	case ir.OpReduceScatter, ir.OpAllToAll:
		return size * others
	case ir.OpAllGather:
		return size * float64(n-1)
	case ir.OpPermute:
		if m.attr(s, "from", r) != me {
			return size
		}
		return 0
	}
	switch root := m.attr(s, "root", r); {
	case s.Op == ir.OpReduce && me != (root+1)%n, s.Op == ir.OpBroadcast && me != root:
		return size
	case s.Op == ir.OpScatter && me != root:
		return size / float64(n)
	case s.Op == ir.OpGather && me == root:
		return size * float64(n-1)
	}
	return 0
}

func (m *machine) collective(s *ir.Stmt, r int) *array {
	team := m.bound.Team(s.Over(), r)
	me := int64(slices.Index(team, r))
	n := int64(len(team))
	parts := make([]*array, n)
	for i, p := range team {
		if parts[i] = m.held[p][s.Args[0].Name]; parts[i] == nil {
			panic(fmt.Sprintf("rank %d is missing from %s", p, s.Op))
		}
	}
	m.received[int64(r)] += m.share(s, r, me, n, float64(len(parts[0].at)))
	switch s.Op {
	case ir.OpAllReduce:
		return reduceArrays(parts, s.Word("op", ""))
	case ir.OpAllGather:
		return concat(parts, int(m.attr(s, "axis", r)))
	case ir.OpReduceScatter:
		return reduceArrays(parts, s.Word("op", "")).block(int(m.attr(s, "axis", r)), me, n)
	case ir.OpAllToAll:
		split, cat := int(m.attr(s, "split", r)), int(m.attr(s, "concat", r))
		for i := range parts {
			parts[i] = parts[i].block(split, me, n)
		}
		return concat(parts, cat)
	case ir.OpPermute:
		if to := m.attr(s, "to", r); m.attr(s, "from", team[to]) != me {
			panic(fmt.Sprintf("rank %d sends to %d, which does not receive from it", r, team[to]))
		}
		return parts[m.attr(s, "from", r)]
	case ir.OpReduce:
		if me != m.attr(s, "root", r) {
			return nil
		}
		return reduceArrays(parts, s.Word("op", ""))
	case ir.OpGather:
		if me != m.attr(s, "root", r) {
			return nil
		}
		return concat(parts, int(m.attr(s, "axis", r)))
	case ir.OpScatter:
		return parts[m.attr(s, "root", r)].block(int(m.attr(s, "axis", r)), me, n)
	case ir.OpBroadcast:
		return parts[m.attr(s, "root", r)]
	}
	panic("the machine does not know " + s.Op.String())
}
