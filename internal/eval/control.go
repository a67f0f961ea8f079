package eval

import (
	"fmt"

	"hocket.example/hocket/ir"
)

// control executes on, for, if, call and return.
func (r *rank) control(s *ir.Stmt) error {
	switch s.Op {
	case ir.OpOn:
		st, err := r.stream(&s.Args[0])
		if err != nil {
			return err
		}
		return r.on(st, func() error { return r.block(s.Body) })
	case ir.OpFor:
		return r.loop(s)
	case ir.OpIf:
		a, err := r.eval(s.Exprs[0])
		if err != nil {
			return err
		}
		b, err := r.eval(s.Exprs[1])
		switch {
		case err != nil:
			return err
		case s.Cmp.Holds(a, b):
			return r.block(s.Body)
		case s.Else != nil:
			return r.block(s.Else)
		}
		return nil
	case ir.OpCall:
		return r.call(s)
	case ir.OpYield:
		r.yielded = nil
		for i := range s.Args {
			r.yielded = append(r.yielded, r.names[s.Args[i].Name])
		}
		return nil
	case ir.OpReturn:
		return r.ret(s)
	}
	return fmt.Errorf("the evaluator has no rule for %v", s.Op)
}

// on executes body with st as the current stream.
func (r *queues) on(st *stream, body func() error) error {
	outer := r.cur
	r.cur = st
	err := body()
	r.cur = outer
	return err
}

// within executes body in a frame inside the current frame.
func (r *scope) within(f *frame, body func() error) error {
	outer := r.frame
	r.frame = f
	err := body()
	r.frame = outer
	return err
}

func (r *rank) loop(s *ir.Stmt) error {
	lo, err := r.eval(s.Exprs[0])
	if err != nil {
		return err
	}
	hi, err := r.eval(s.Exprs[1])
	if err != nil {
		return err
	}
	workers := r.fork(s)
	var carried []*binding
	for k := range s.Args {
		b, err := r.carried(s, -1-k, r.names[s.Args[k].Name], k)
		if err != nil {
			return err
		}
		carried = append(carried, b)
	}
	for i := lo; i < hi; i++ {
		if err := r.m.step(s); err != nil {
			return err
		}
		r.names[s.Results[0].Text] = &binding{index: i}
		st := r.cur
		if n := int64(len(workers)); n > 0 {
			st = workers[(i%n+n)%n]
		}
		err := r.within(r.frame.child(s, i), func() error {
			for k, name := range s.Carry {
				r.names[name.Text] = carried[k]
			}
			if err := r.on(st, func() error { return r.block(s.Body) }); err != nil {
				return err
			}
			for k := range s.Carry {
				b, err := r.carried(s, k, r.yielded[k], k)
				if err != nil {
					return err
				}
				carried[k] = b
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	for k, name := range s.Results[1:] {
		r.names[name.Text] = carried[k]
	}
	for _, w := range workers {
		r.issue(s, w.mark().reached)
	}
	return nil
}

// carried returns a value in the layout of the k-th value that loop s carries. The index i distinguishes this value
// from other values that s makes in the frame.
func (r *rank) carried(s *ir.Stmt, i int, b *binding, k int) (*binding, error) {
	if b.value == nil {
		return b, nil
	}
	want := r.m.b.Info.Results[s][1+k].Type
	v, err := r.shared(s, i, func() (*value, error) { return r.m.resharded(b.value, want, false) })
	return &binding{name: s.Carry[k].Text, value: v}, err
}

// fork makes the worker streams of "for … stream(n)". Each worker starts after the work that was issued before the
// loop.
func (r *queues) fork(s *ir.Stmt) []*stream {
	workers := make([]*stream, s.Streams)
	from := r.cur.mark()
	for i := range workers {
		workers[i] = r.newStream(fmt.Sprintf("worker %d of %%%s", i, s.Results[0].Text))
		workers[i].tasks = append(workers[i].tasks, task{stmt: s, run: from.reached})
	}
	return workers
}

// call inlines a function (S18).
func (r *rank) call(s *ir.Stmt) error {
	f := r.m.prog.Func(s.Callee.Text)
	names := map[string]*binding{}
	for i, p := range f.Params {
		b, err := r.argument(s, i, p)
		if err != nil {
			return err
		}
		names[p.Name] = b
	}
	outer := r.names
	r.names = names
	err := r.within(r.frame.child(s, 0), func() error { return r.block(f.Body) })
	r.names = outer
	if err != nil {
		return err
	}
	for i, sym := range r.m.b.Info.Results[s] {
		v, err := r.shared(s, i, func() (*value, error) { return r.m.resharded(r.returned[i], sym.Type, false) })
		if err != nil {
			return err
		}
		r.names[sym.Name] = &binding{name: sym.Name, value: v}
	}
	r.returned = nil // discards the list of the callee's results, since the caller may return nothing
	return nil
}

// argument binds the parameter p of a called function to the i-th operand of the call s. An inout parameter is bound to
// a buffer, and any other parameter to a value. If the operand for a value is a buffer, the buffer is claimed, which
// makes a value from it.
func (r *rank) argument(s *ir.Stmt, i int, p *ir.Param) (*binding, error) {
	b := r.names[s.Args[i].Name]
	switch {
	case p.Inout:
		v, err := r.tensor(&s.Args[i])
		return &binding{name: p.Name, views: []view{v}}, err
	case b.value != nil:
		v, err := r.shared(s, -1-i, func() (*value, error) { return r.m.resharded(b.value, p.Type, false) })
		return &binding{name: p.Name, value: v}, err
	}
	v, err := r.claimed(s, i, p.Type)
	return &binding{name: p.Name, value: v}, err
}

// ret records the function's results.
func (r *rank) ret(s *ir.Stmt) error {
	f := r.funcOf(s)
	r.returned = nil
	for i := range s.Args {
		v, err := r.result(s, i, f.Results[i])
		if err != nil {
			return err
		}
		r.returned = append(r.returned, v)
	}
	return nil
}

// result returns the i-th returned value in the signature's layout. A returned buffer is claimed (S2).
func (r *rank) result(s *ir.Stmt, i int, want *ir.Type) (*value, error) {
	b := r.names[s.Args[i].Name]
	if b.value == nil {
		return r.claimed(s, i, want)
	}
	return r.shared(s, i, func() (*value, error) { return r.m.resharded(b.value, want, false) })
}

// funcOf returns the function whose last statement is s.
func (r *rank) funcOf(s *ir.Stmt) *ir.Func {
	for _, f := range r.m.prog.Funcs {
		if n := len(f.Body.Stmts); n > 0 && f.Body.Stmts[n-1] == s {
			return f
		}
	}
	return nil
}

// shared returns the i-th value that statement s makes in the current frame. All ranks share the value; the first rank
// that executes s makes it.
func (r *scope) shared(s *ir.Stmt, i int, mk func() (*value, error)) (*value, error) {
	k := part{s, i}
	if v := r.frame.values[k]; v != nil {
		return v, nil
	}
	v, err := mk()
	if err != nil {
		return nil, err
	}
	return entry(&r.frame.values, k, func() *value { return v }), nil
}
