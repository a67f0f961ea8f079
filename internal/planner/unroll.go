package planner

import (
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/ir"

	"hocket.example/hocket/internal/plan"
)

// unroller executes the program text for one rank, in the order in which a host would issue the commands. It executes
// control flow itself, and calls a component for each other kind of statement. All components emit commands through one
// emitter. Calls are inlined: each call has a separate frame, in which the parameters are bound to the tensors of the
// caller.
type unroller struct {
	*emitter
	ordering
	computing
	communication
	declarations
	depth int // number of nested calls
}

// emitter emits the commands of one rank and holds the current position of its execution.
type emitter struct {
	w    *world
	rank int
	env  ir.Env // environment of the rank; names are looked up in frame

	frame *frame
	// main is the stream on which the current function was called. cur is the stream of the innermost on statement.
	main, cur int32

	// steps holds the loop iterations and calls that lead to the current statement. loops and iter hold the variables
	// of the enclosing loops and their values. shared is a copy of iter that commands refer to. shared is nil until a
	// command needs it.
	steps  []step
	loops  []string
	iter   []int64
	shared []int64

	streams map[instanceOn]int32
	freed   map[int32]ir.Pos // buffers freed so far
}

func newUnroller(w *world, rank int) *unroller {
	e := &emitter{w: w, rank: rank, frame: newFrame(), streams: map[instanceOn]int32{}, freed: map[int32]ir.Pos{}}
	e.env = w.b.Env(rank, e)
	return &unroller{
		emitter: e, ordering: ordering{emitter: e, waited: map[[2]int32]int32{}}, computing: computing{e},
		communication: communication{emitter: e}, declarations: declarations{e},
	}
}

// step is one loop iteration or call on the path to a statement. path is the number of the path up to and including
// this step; it is 0 until it is needed.
type step struct {
	stmt *ir.Stmt
	iter int64
	path int32
}

// unroll executes the text of the bound function as the given rank.
func (w *world) unroll(rank int) error {
	u := newUnroller(w, rank)
	main, err := u.addStream("main", nil, w.b.Func.Pos)
	if err != nil {
		return err
	}
	u.main, u.cur = main, main
	w.p.Main = append(w.p.Main, main)
	if err := u.bindInputs(w.b.Func); err != nil {
		return err
	}
	results, err := u.body(w.b.Func)
	if err != nil {
		return err
	}
	return u.emitOutputs(w.b.Func, results)
}

// body executes a function's body and returns the tensors it returns.
func (u *unroller) body(f *ir.Func) ([]tensor, error) {
	if err := u.block(f.Body); err != nil {
		return nil, err
	}
	if len(u.frame.results) != len(f.Results) {
		return nil, u.errf("structure", f.Pos, "", "%s returns %d results, but declares %d", f.Name, len(u.frame.results), len(f.Results))
	}
	return u.frame.results, nil
}

func (u *unroller) block(b *ir.Block) error {
	if b == nil {
		return nil
	}
	for _, s := range b.Stmts {
		if err := u.stmt(s); err != nil {
			return err
		}
		if u.frame.returned {
			return nil
		}
	}
	return nil
}

func (u *unroller) stmt(s *ir.Stmt) error {
	if err := u.spend(&u.w.statements, 1, maxStatements, "statements to execute", s.Pos); err != nil {
		return err
	}
	u.w.stats.Statements++
	if err := u.w.goOn(); err != nil {
		return err
	}
	switch s.Op.Info().Class {
	case ir.ClassTensor, ir.ClassView, ir.ClassCollective:
		return u.tensorStmt(s)
	case ir.ClassTransfer:
		if s.Op == ir.OpGroup {
			return u.groupStmt(s)
		}
		return u.transfer(s)
	case ir.ClassLaunch:
		return u.launch(s)
	case ir.ClassOrder:
		return u.order(s)
	case ir.ClassMemory:
		return u.declare(s)
	}
	return u.control(s)
}

func (u *unroller) control(s *ir.Stmt) error {
	switch s.Op {
	case ir.OpOn:
		return u.on(s)
	case ir.OpFor:
		return u.loop(s)
	case ir.OpIf:
		return u.branch(s)
	case ir.OpCall:
		return u.call(s)
	case ir.OpYield:
		return u.yield(s)
	}
	return u.ret(s)
}

func (u *unroller) on(s *ir.Stmt) error {
	stream, err := u.stream(s, &s.Args[0])
	if err != nil {
		return err
	}
	outer := u.cur
	u.cur = stream
	defer func() { u.cur = outer }()
	return u.block(s.Body)
}

func (u *unroller) branch(s *ir.Stmt) error {
	l, err := u.eval(s, s.Exprs[0])
	if err != nil {
		return err
	}
	r, err := u.eval(s, s.Exprs[1])
	if err != nil {
		return err
	}
	if s.Cmp.Holds(l, r) {
		return u.block(s.Body)
	}
	return u.block(s.Else)
}

// loop executes a for statement. With stream(n), it forks n workers from the current stream, runs iteration i on
// worker i mod n, and joins all workers, as docs/language.md defines.
func (u *unroller) loop(s *ir.Stmt) error {
	lo, err := u.eval(s, s.Exprs[0])
	if err != nil {
		return err
	}
	hi, err := u.eval(s, s.Exprs[1])
	if err != nil {
		return err
	}
	if err := u.spendIterations(s, lo, hi); err != nil {
		return err
	}
	workers, err := u.workers(s)
	if err != nil {
		return err
	}
	for _, w := range workers {
		u.waitStream(s, w, u.cur)
	}
	carried, err := u.carried(s)
	if err != nil {
		return err
	}
	if carried, err = u.iterations(s, lo, hi, workers, carried); err != nil {
		return err
	}
	for k, name := range s.Results[1:] {
		u.frame.tensors[name.Text] = []tensor{carried[k]}
	}
	for _, w := range workers {
		u.waitStream(s, u.cur, w)
	}
	return nil
}

func (u *unroller) spendIterations(s *ir.Stmt, lo, hi int64) error {
	if hi <= lo {
		return nil
	}
	n := uint64(hi) - uint64(lo) // exact even if hi-lo overflows int64
	return u.spend(&u.w.iterations, int64(min(n, 1<<62)), maxIterations, "loop iterations", s.Pos)
}

// carried returns the operands of a loop or yield as dense tensors. Values with gaps are copied to dense memory.
func (u *unroller) carried(s *ir.Stmt) ([]tensor, error) {
	out := make([]tensor, len(s.Args))
	for k := range s.Args {
		t, err := u.operand(&s.Args[k])
		if err != nil {
			return nil, err
		}
		if t.Present() && !t.Dense() {
			dense, err := u.newBuffer(s, int64(k), s.Args[k].Name, plan.RoleValue, t.DType, t.Shape)
			if err == nil {
				err = u.emitCopy(s, t.Ref, dense, -1)
			}
			if err != nil {
				return nil, err
			}
			t.Ref = dense
		}
		out[k] = t
	}
	return out, nil
}

func (u *unroller) yield(s *ir.Stmt) (err error) {
	u.frame.yielded, err = u.carried(s)
	return err
}

// iterations executes the body for each iteration and returns the values that the last iteration yields.
func (u *unroller) iterations(s *ir.Stmt, lo, hi int64, workers []int32, carried []tensor) ([]tensor, error) {
	name := s.Results[0].Text
	outer := u.cur
	u.loops, u.iter, u.steps = append(u.loops, name), append(u.iter, lo), append(u.steps, step{stmt: s})
	depth, at := len(u.iter)-1, len(u.steps)-1
	for i := lo; i < hi; i++ {
		u.frame.setInt(name, i)
		u.iter[depth], u.shared = i, nil
		u.steps[at].iter, u.steps[at].path = i, 0
		if n := int64(len(workers)); n > 0 {
			u.cur = workers[((i%n)+n)%n]
		}
		for k, name := range s.Carry {
			u.frame.tensors[name.Text] = []tensor{carried[k]}
		}
		if err := u.block(s.Body); err != nil {
			return nil, err
		}
		if len(s.Carry) > 0 {
			carried = u.frame.yielded
		}
	}
	u.loops, u.iter, u.steps, u.shared = u.loops[:depth], u.iter[:depth], u.steps[:at], nil
	u.cur = outer
	return carried, nil
}

// call inlines a function. In the called function, main denotes the stream on which it is called.
func (u *unroller) call(s *ir.Stmt) error {
	f := u.w.b.Info.Prog.Func(s.Callee.Text)
	if f == nil {
		return u.errf("scope", s.Callee.Pos, "", "there is no function %s", s.Callee.Text)
	}
	if u.depth++; u.depth > maxCallDepth {
		return u.errf("limit", s.Pos, "", "calls are nested deeper than %d, the limit", maxCallDepth)
	}
	if err := u.spend(&u.w.calls, 1, maxCalls, "calls", s.Pos); err != nil {
		return err
	}
	callee := newFrame()
	for i, par := range f.Params {
		t, err := u.operand(&s.Args[i])
		if err != nil {
			return err
		}
		callee.tensors[par.Name] = []tensor{t}
	}
	caller, main := u.frame, u.main
	u.frame, u.main, u.steps = callee, u.cur, append(u.steps, step{stmt: s})
	results, err := u.body(f)
	if err != nil {
		return err
	}
	u.frame, u.main, u.steps = caller, main, u.steps[:len(u.steps)-1]
	u.depth--
	for i, r := range s.Results {
		u.frame.tensors[r.Text] = []tensor{results[i]}
	}
	return nil
}

// path returns a number for the current path of execution. All ranks that have executed the same iterations and
// calls get the same number.
func (u *emitter) path() int32 {
	from := len(u.steps)
	for from > 0 && u.steps[from-1].path == 0 {
		from--
	}
	id := int32(0)
	if from > 0 {
		id = u.steps[from-1].path
	}
	for i := from; i < len(u.steps); i++ {
		st := &u.steps[i]
		id = u.w.path(id, st.stmt, st.iter)
		st.path = id
	}
	return id
}

func (u *unroller) ret(s *ir.Stmt) error {
	u.frame.returned = true
	for i := range s.Args {
		t, err := u.operand(&s.Args[i])
		if err != nil {
			return err
		}
		t.at = s
		u.frame.results = append(u.frame.results, t)
	}
	return nil
}

// emit appends a command of this rank to the current stream.
func (u *emitter) emit(s *ir.Stmt, c plan.Cmd) error { return u.emitOn(u.cur, s, c) }

func (u *emitter) emitOn(stream int32, s *ir.Stmt, c plan.Cmd) error {
	pos := ir.Pos{}
	if s != nil {
		pos = s.Pos
		c.Site = u.w.site(s)
	}
	if err := u.spend(&u.w.commands, 1, u.w.mostCommands, "commands", pos); err != nil {
		return err
	}
	if u.w.commands == longPlan {
		u.w.bound()
	}
	if u.shared == nil && len(u.iter) > 0 {
		if err := u.spend(&u.w.pathBytes, 8*int64(len(u.iter)), maxPathBytes, "bytes of iteration numbers",
			pos); err != nil {
			return err
		}
		u.shared = slices.Clone(u.iter)
	}
	c.Rank, c.Stream, c.Iter = int32(u.rank), stream, u.shared
	if c.Kind != plan.Record {
		u.w.tails[stream].issued++
	}
	u.w.cmds[u.rank] = append(u.w.cmds[u.rank], c)
	return nil
}

// eval evaluates an index expression of s on this rank.
func (u *emitter) eval(s *ir.Stmt, e *ir.Expr) (int64, error) {
	u.w.stats.Exprs++
	v, err := e.Eval(u.env)
	if err != nil {
		pos := e.Pos
		if !pos.Valid() {
			pos = s.Pos
		}
		return 0, u.errf("bind", pos, "", "%s: %v", e, err)
	}
	return v, nil
}

// errf returns an error that names this rank and the current iteration.
func (u *emitter) errf(kind string, pos ir.Pos, help, format string, args ...any) error {
	d := u.w.b.Info.Prog.Diag(kind, pos, format, args...)
	d.Message += u.where()
	d.Help = help
	return d
}

// where returns the rank and the iteration as text: " (rank 1, %i=3)".
func (u *emitter) where() string {
	var b strings.Builder
	fmt.Fprintf(&b, " (rank %d", u.rank)
	for i, name := range u.loops {
		fmt.Fprintf(&b, ", %%%s=%d", name, u.iter[i])
	}
	b.WriteByte(')')
	return b.String()
}
