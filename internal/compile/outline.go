package compile

import (
	"cmp"
	"slices"

	"hocket.example/hocket/internal/exec/fuse"
	"hocket.example/hocket/internal/lower"
	"hocket.example/hocket/internal/machine"
	"hocket.example/hocket/internal/sim"
	"hocket.example/hocket/ir"
)

// maxSpans is the maximum number of spans in a timeline.
const maxSpans = 4096

// outline adds up the times of the statements that one rank executes. It works for any number of ranks, because only
// loops and calls are unrolled.
type outline struct {
	*explainer
	// overlapped reports that pairs are counted with the predictions for their chosen strategies, and not as
	// sequential.
	overlapped bool
	now        float64
	exposed    float64 // part of the time now in which communication runs and no computation does
	flops      float64 // floating-point operations of GEMMs
	spans      []sim.Span
	cut        bool
	// explicit reports that the program orders streams itself, so that the order of the text is not the order of time.
	explicit bool
	// chains holds, for elementwise statements on a GPU, the kernel that begins with the statement, or a kernel without
	// steps if it does not begin one.
	chains map[*ir.Stmt]fuse.Segment
	used   map[string]map[string]int // for each function by name, the result of uses
}

func newOutline(x *explainer, overlapped bool) *outline {
	return &outline{explainer: x, overlapped: overlapped, chains: map[*ir.Stmt]fuse.Segment{},
		used: map[string]map[string]int{}}
}

func (o *outline) fn(f *ir.Func) {
	if f != nil {
		o.block(f.Name, f.Body)
	}
}

func (o *outline) block(fn string, b *ir.Block) {
	if b == nil {
		return
	}
	for i, s := range b.Stmts {
		if _, known := o.chains[s]; !known && o.machine.GPU != "" {
			o.chain(fn, b.Stmts[i:])
		}
		o.stmt(fn, s)
	}
}

// chain sets o.chains for the elementwise statements with which stmts begins.
func (o *outline) chain(fn string, stmts []*ir.Stmt) {
	var ops []lower.PairOp
	for _, s := range stmts {
		if !s.Op.Info().Elementwise || len(s.Results) != 1 || o.overlapped && o.inside[site{fn, s.Results[0].Text}] {
			break
		}
		op := lower.PairOp{Stmt: s, Out: o.flat.Info.Results[s][0].Type}
		for _, a := range o.flat.Info.Operands[s] {
			op.In = append(op.In, a.Type)
		}
		ops = append(ops, op)
	}
	within := map[string]int{}
	for _, op := range ops {
		for _, a := range op.Stmt.Args {
			within[a.Name]++
		}
	}
	for i := range ops {
		name := ops[i].Stmt.Results[0].Text
		ops[i].Kept = within[name] < o.uses(fn)[name]
	}
	for _, k := range o.kernels(ops) {
		for i, s := range stmts[:k.Steps] {
			o.chains[s] = fuse.Segment{}
			if i == 0 {
				o.chains[s] = k
			}
		}
		stmts = stmts[k.Steps:]
	}
}

// uses returns how often the statements of a function have each name as an argument.
func (o *outline) uses(fn string) map[string]int {
	if o.used[fn] == nil {
		o.used[fn] = map[string]int{}
		o.flat.Program.Func(fn).Body.Walk(func(s *ir.Stmt) {
			for _, a := range s.Args {
				o.used[fn][a.Name]++
			}
		})
	}
	return o.used[fn]
}

func (o *outline) stmt(fn string, s *ir.Stmt) {
	switch s.Op {
	case ir.OpCall:
		o.fn(o.flat.Program.Func(s.Callee.Text))
	case ir.OpFor:
		if s.Streams > 0 {
			o.explicit = true
			return
		}
		o.loop(fn, s)
	case ir.OpIf:
		o.branch(fn, s)
	case ir.OpOn, ir.OpPut, ir.OpGet, ir.OpSignal, ir.OpWait, ir.OpRecord:
		o.explicit = true
	case ir.OpYield:
	case ir.OpGroup:
		o.block(fn, s.Body)
	default:
		o.op(fn, s)
	}
}

// loop repeats the body for each iteration. If the bounds depend on values that are not known here, the loop is not
// counted.
func (o *outline) loop(fn string, s *ir.Stmt) {
	env := o.bound.Env(0, nil)
	lo, err1 := s.Exprs[0].Eval(env)
	hi, err2 := s.Exprs[1].Eval(env)
	if err1 != nil || err2 != nil {
		o.explicit = true
		return
	}
	for i := lo; i < hi && !o.explicit; i++ {
		before, exposed, flops := o.now, o.exposed, o.flops
		o.block(fn, s.Body)
		if o.cut { // all iterations take the same time
			o.now += float64(hi-i-1) * (o.now - before)
			o.exposed += float64(hi-i-1) * (o.exposed - exposed)
			o.flops += float64(hi-i-1) * (o.flops - flops)
			return
		}
	}
}

// branch adds the statements of the branch that rank 0 executes.
func (o *outline) branch(fn string, s *ir.Stmt) {
	env := o.bound.Env(0, nil)
	a, err1 := s.Exprs[0].Eval(env)
	b, err2 := s.Exprs[1].Eval(env)
	switch {
	case err1 != nil || err2 != nil:
		o.explicit = true
	case s.Cmp.Holds(a, b):
		o.block(fn, s.Body)
	default:
		o.block(fn, s.Else)
	}
}

// op adds one operation. If the operation is the collective of a pair, the whole pair is added.
func (o *outline) op(fn string, s *ir.Stmt) {
	if len(s.Results) == 1 && o.overlapped {
		at := site{fn, s.Results[0].Text}
		if o.inside[at] {
			return
		}
		if e, ok := o.chosen[at]; ok {
			o.add(e.spans, e.Time)
			return
		}
	}
	us := o.cost(s)
	if k, ok := o.chains[s]; ok && k.Steps == 0 {
		return
	} else if k.Steps > 1 {
		us = o.machine.TouchTime(k.Bytes)
	}
	if us == 0 {
		return
	}
	if s.Op.Info().Class == ir.ClassTensor {
		if op, err := o.tensorOp(s); err == nil {
			o.flops += 2 * float64(op.M) * float64(op.N) * float64(op.K)
		}
	}
	o.add([]sim.Span{{Name: s.Op.String(), Comm: communicates(s), Stream: "main", End: us}}, us)
}

// communicates reports whether s moves data between ranks or waits for other ranks.
func communicates(s *ir.Stmt) bool {
	c := s.Op.Info().Class
	return c == ir.ClassCollective || c == ir.ClassTransfer || c == ir.ClassOrder
}

func (o *outline) add(spans []sim.Span, us float64) {
	for _, s := range spans {
		if len(o.spans) == maxSpans {
			o.cut = true
			break
		}
		s.Start, s.End = s.Start+o.now, s.End+o.now
		o.spans = append(o.spans, s)
	}
	o.now += us
	o.exposed += exposed(spans)
}

// exposed returns the time in which at least one span communicates and no span computes.
func exposed(spans []sim.Span) float64 {
	type edge struct {
		at            float64
		comm, compute int
	}
	var edges []edge
	for _, s := range spans {
		e := edge{at: s.Start, compute: 1}
		if s.Comm {
			e.comm, e.compute = 1, 0
		}
		edges = append(edges, e, edge{s.End, -e.comm, -e.compute})
	}
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Compare(a.at, b.at) })
	sum, comm, compute := 0.0, 0, 0
	for i, e := range edges {
		if comm > 0 && compute == 0 {
			sum += e.at - edges[i-1].at
		}
		comm, compute = comm+e.comm, compute+e.compute
	}
	return sum
}

// cost returns the time that a statement takes alone, or 0 if it is not an operation.
func (x *explainer) cost(s *ir.Stmt) float64 {
	info := x.flat.Info
	switch s.Op.Info().Class {
	case ir.ClassCollective:
		c, err := x.collective(s, info)
		if err != nil {
			return x.machine.Launch
		}
		return x.machine.CollectiveTime(c)
	case ir.ClassTransfer:
		n, err := x.bytes(info.Operands[s][0].Type)
		if err != nil {
			return x.machine.Launch
		}
		return x.machine.CopyTime(n)
	case ir.ClassTensor:
		return x.tensorCost(s)
	case ir.ClassLaunch:
		touched := int64(0)
		for _, a := range info.Operands[s] {
			n, err := x.bytes(a.Type)
			if err != nil {
				return x.machine.Launch
			}
			touched += n
		}
		return x.machine.TouchTime(touched)
	}
	if s.Op == ir.OpBarrier {
		return x.machine.Barrier
	}
	return 0
}

func (x *explainer) tensorCost(s *ir.Stmt) float64 {
	op, err := x.tensorOp(s)
	if err != nil {
		return x.machine.Launch
	}
	return op.Time(x.machine)
}

// tensorOp describes the operation that one rank computes for a statement.
func (x *explainer) tensorOp(s *ir.Stmt) (sim.Op, error) {
	info := x.flat.Info
	var in []*ir.Type
	for _, a := range info.Operands[s] {
		in = append(in, a.Type)
	}
	out := info.Into[s]
	if out == nil {
		out = info.Results[s][0]
	}
	return x.op(s, in, out.Type)
}

// collective describes one rank's part of a collective.
func (x *explainer) collective(s *ir.Stmt, info *ir.Info) (*machine.Collective, error) {
	n := int64(1)
	for _, a := range s.Over() {
		size, _ := x.bound.AxisSize(a)
		n *= max(size, 1)
	}
	t := info.Operands[s][0].Type
	in, err := x.bytes(t)
	if err != nil {
		return nil, err
	}
	c := &machine.Collective{Op: s.Op, DType: t.DType, Members: n, Message: in, Moved: moved(s.Op, in, n),
		AnyOrder: s.Word("order", "rank") == "any", Algorithm: s.Word("algorithm", "")}
	c.Red, _ = ir.ParseRed(s.Word("op", ""))
	if s.Op == ir.OpAllGather || s.Op == ir.OpGather {
		c.Message *= n
	}
	x.machine.Span(c, x.crossing(s.Over()))
	return c, nil
}

// moved returns the minimum number of bytes that a rank receives in a collective of n ranks.
func moved(op ir.Op, in, n int64) int64 {
	switch op {
	case ir.OpAllReduce:
		return 2 * in / n * (n - 1)
	case ir.OpAllGather, ir.OpAllGatherV:
		return in * (n - 1)
	case ir.OpReduceScatter, ir.OpAllToAll, ir.OpReduceScatterV, ir.OpAllToAllV: // capacities count as used evenly
		return in / n * (n - 1)
	}
	if n == 1 {
		return 0
	}
	return in
}
