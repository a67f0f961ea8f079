package eval

import (
	"fmt"

	"hocket.example/hocket/ir"
)

// rank unrolls the program for one rank: it executes the text in host order and issues tasks to streams.
type rank struct {
	queues
	// group collects the sends and recvs of the current group block.
	group *[]end
	// returned holds the values that the function's return statement returns.
	returned []*value
	yielded  []*binding // the values that the last executed iteration of a loop has yielded

	channels map[string][]*stream
	issued   map[channelKey]int64
	matched  map[matchKey]int64
}

// queues holds a rank's streams.
type queues struct {
	values
	streams []*stream
	main    *stream
	cur     *stream // the current stream (S4)
}

// values creates global values. It issues no tasks.
type values struct{ *scope }

// scope evaluates names, indices and attributes for one rank.
type scope struct {
	m     *machine
	id    int
	env   ir.Env
	frame *frame
	names map[string]*binding
}

// binding holds the object that a name denotes on one rank.
type binding struct {
	name    string
	index   int64
	value   *value
	shard   *storage // for a value: this rank's shard, created on first use
	views   []view   // for a buffer: one view, or one for each element of an array
	absent  bool     // the name is a view of a value of which this rank has no shard
	streams []*stream
	events  []*event
	counter *counters
}

func newRank(m *machine, id int) *rank {
	here := &scope{m: m, id: id, frame: m.root}
	here.env = m.b.Env(id, here)
	r := &rank{queues: queues{values: values{here}},
		channels: map[string][]*stream{}, issued: map[channelKey]int64{}, matched: map[matchKey]int64{}}
	r.main = r.newStream("main")
	r.cur = r.main
	return r
}

func (r *queues) newStream(name string) *stream {
	s := &stream{rank: r.id, name: name}
	r.streams = append(r.streams, s)
	return s
}

// Var returns the value of the loop variable or let called name.
func (r *scope) Var(name string) (int64, bool) {
	b := r.names[name]
	if b == nil {
		return 0, false
	}
	return b.index, true
}

// Extent returns a local extent of the tensor called name.
func (r *scope) Extent(name string, axis int) (int64, bool) {
	b := r.names[name]
	switch {
	case b == nil || axis < 0:
	case b.value != nil:
		local, err := r.m.localShape(b.value.typ, b.value.shape)
		if err == nil && axis < len(local) {
			return local[axis], true
		}
	case len(b.views) > 0 && axis < len(b.views[0].shape):
		return b.views[0].shape[axis], true
	}
	return 0, false
}

// eval evaluates an index expression.
func (r *scope) eval(e *ir.Expr) (int64, error) {
	v, err := e.Eval(r.env)
	if err != nil {
		return 0, &finding{kind: "bind", message: fmt.Sprintf("rank %d: %v", r.id, err)}
	}
	return v, nil
}

// issue appends a task to the current stream.
func (r *queues) issue(s *ir.Stmt, run func() error, uses ...view) {
	t := task{stmt: s, run: run}
	for _, v := range uses {
		t.uses = append(t.uses, v.st)
		v.st.uses++
	}
	r.cur.tasks = append(r.cur.tasks, t)
}

// runFunction unrolls the bound function on the global parameters.
func (r *rank) runFunction(params []*value) error {
	r.names = map[string]*binding{}
	f := r.m.b.Func
	for i, p := range f.Params {
		b := &binding{name: p.Name, value: params[i]}
		if p.Inout {
			if b = r.inout(p, params[i]); b == nil {
				b = &binding{name: p.Name, absent: true}
			}
		}
		r.names[p.Name] = b
	}
	if err := r.block(f.Body); err != nil {
		return err
	}
	r.m.results = r.returned
	return r.finishInout(f)
}

// inout makes the buffer of an inout parameter. The initial contents are the rank's shard of v. If the rank holds
// no shard, inout returns nil.
func (r *rank) inout(p *ir.Param, v *value) *binding {
	st, err := r.shardOf(p.Name, v)
	if err != nil {
		return nil
	}
	return &binding{name: p.Name, views: []view{st.all()}}
}

// finishInout claims the contents of inout parameters at the end of stream main (S14).
func (r *rank) finishInout(f *ir.Func) error {
	end := &ir.Stmt{Op: ir.OpReturn, Pos: f.Body.End}
	i := 0
	for _, p := range f.Params {
		if !p.Inout {
			continue
		}
		if i == len(r.m.inout) {
			c, err := r.m.newClaim(p.Name, p.Type, r.env)
			if err != nil {
				return r.m.located(end, err)
			}
			r.m.inout = append(r.m.inout, c.value)
			entry(&r.m.root.claims, part{nil, i}, func() *claim { return c })
		}
		if b := r.names[p.Name]; !b.absent {
			r.m.root.claims[part{nil, i}].issue(&r.queues, end, b.views[0])
		}
		i++
	}
	return nil
}

func (r *rank) block(b *ir.Block) error {
	for _, s := range b.Stmts {
		if err := r.stmt(s); err != nil {
			return r.m.located(s, err)
		}
	}
	return nil
}

func (r *rank) stmt(s *ir.Stmt) error {
	if err := r.m.step(s); err != nil {
		return err
	}
	if r.skips(s) {
		return nil
	}
	if d := r.m.b.CheckStmt(s, r.env); d != nil {
		return d
	}
	switch s.Op.Info().Class {
	case ir.ClassTensor, ir.ClassView:
		return r.tensorStmt(s)
	case ir.ClassCollective:
		if r.makesValue(s) {
			return r.valueStmt(s)
		}
		return r.collective(s)
	case ir.ClassTransfer:
		return r.transfer(s)
	case ir.ClassLaunch:
		return r.launch(s)
	case ir.ClassOrder:
		return r.order(s)
	case ir.ClassMemory:
		return r.memory(s)
	}
	return r.control(s)
}

// skips handles a view of a value of which this rank holds no part (S17). It then defines the name without a tensor and
// returns true, because the index of the view may be invalid on this rank. Any use of the view is an error.
func (r *rank) skips(s *ir.Stmt) bool {
	if s.Op.Info().Class != ir.ClassView || s.Into != nil || s.Op == ir.OpClaim || r.makesValue(s) {
		return false
	}
	b := r.names[s.Args[0].Name]
	if !b.absent && (b.value == nil || r.m.b.Holds(b.value.typ, r.id)) {
		return false
	}
	name := s.Results[0].Text
	r.names[name] = &binding{name: name, absent: true}
	return true
}

// makesValue reports whether s defines a global value.
func (r *scope) makesValue(s *ir.Stmt) bool {
	syms := r.m.b.Info.Results[s]
	return len(syms) == 1 && syms[0].Kind == ir.SymValue
}
