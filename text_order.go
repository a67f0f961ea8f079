package hocket

import (
	"errors"
	"fmt"

	"hocket.example/hocket/internal/compile"
	"hocket.example/hocket/internal/verify"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

// ordered returns a bound function whose result does not depend on the order in which its streams run. It returns b
// itself if b is proved to have this property, and otherwise b in text order. The error wraps ErrNoReference if text
// order does not determine the order in which ranks access each other's memory.
func ordered(b *ir.Bound, binding Binding) (*ir.Bound, error) {
	prog := b.Info.Prog
	if !unordered(prog, b.Func, map[*ir.Func]bool{}) {
		return b, nil
	}
	if r, err := proof(b.Info, binding); err == nil && r.Verdict == verify.Proved {
		return b, nil
	}
	info, ds := checker.Check(inTextOrder(prog))
	if ds.HasErrors() {
		return nil, noTextOrder(b, ds.Err())
	}
	r, err := proof(info, binding)
	switch {
	case err != nil:
		return nil, noTextOrder(b, err)
	case r.Verdict == verify.Unknown:
		return nil, noTextOrder(b, errors.New(r.Reason))
	case r.Verdict == verify.Refuted:
		return nil, noTextOrder(b, fmt.Errorf("if each rank executes its statements one after another, %s", firstFault(r)))
	}
	serial, ds := ir.Bind(info, binding.ir())
	return serial, ds.Err()
}

func noTextOrder(b *ir.Bound, err error) error {
	why := err.Error()
	if ds := (ir.Diagnostics)(nil); errors.As(err, &ds) && len(ds) > 0 {
		why = ds[0].Message
	}
	return fmt.Errorf("%w: %s is not proved, and its statements cannot be evaluated in text order: %s",
		ErrNoReference, b.Func.Name, why)
}

func firstFault(r *verify.Result) string {
	for _, f := range r.Findings {
		if !f.Warning {
			return f.Message
		}
	}
	return "refuted"
}

// proof checks the plan of a program, without lowering or changing the program first.
func proof(info *ir.Info, b Binding) (*verify.Result, error) {
	u, err := compile.Build(info, compile.Options{})
	if err != nil {
		return nil, err
	}
	p, err := u.Plan(b.ir())
	if err != nil {
		return nil, err
	}
	return verify.Plan(p, verify.Options{FaultsOnly: true}), nil
}

// unordered reports whether f, or a function that it calls, contains operations whose order a single stream for each
// rank does not determine: operations on other streams, or accesses to the memory of other ranks.
func unordered(prog *ir.Program, f *ir.Func, seen map[*ir.Func]bool) bool {
	if f == nil || seen[f] {
		return false
	}
	seen[f] = true
	found := false
	f.Body.Walk(func(s *ir.Stmt) {
		switch s.Op {
		case ir.OpOn:
			found = found || !s.Args[0].Main
		case ir.OpFor:
			found = found || s.Streams > 0
		case ir.OpPut, ir.OpGet, ir.OpSignal:
			found = true
		case ir.OpCall:
			found = found || unordered(prog, prog.Func(s.Callee.Text), seen)
		}
	})
	return found
}

// inTextOrder returns prog with all statements on the stream main. Streams and events then impose no order beyond that
// of the text. Waits for counters remain, since other ranks increment the counters.
func inTextOrder(prog *ir.Program) *ir.Program {
	prog = prog.Clone()
	for _, f := range prog.Funcs {
		f.Body.Walk(func(s *ir.Stmt) {
			switch {
			case s.Op == ir.OpOn, s.Op == ir.OpWait && len(s.Exprs) == 0:
				s.Args[0] = ir.Place{Pos: s.Args[0].Pos, Main: true}
			case s.Op == ir.OpFor:
				s.Streams = 0
			}
		})
	}
	return prog
}
