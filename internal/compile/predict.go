package compile

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"hocket.example/hocket/internal/exec/fuse"
	"hocket.example/hocket/internal/lower"
	"hocket.example/hocket/internal/machine"
	"hocket.example/hocket/internal/sim"
	"hocket.example/hocket/ir"
)

// Estimate is the predicted time of a pair under one strategy.
type Estimate struct {
	Strategy string  `json:"strategy"`
	Time     float64 `json:"us,omitempty"`
	// Refused gives the reason why the strategy cannot be used; it is empty if the strategy can be used.
	Refused string `json:"refused,omitempty"`

	strategy lower.Strategy
	spans    []sim.Span
}

// candidates lists the strategies that auto compares, the simplest first.
var candidates = []lower.Strategy{
	{Kind: lower.Sequential},
	{Kind: lower.Chunked, Chunks: 2}, {Kind: lower.Chunked, Chunks: 4}, {Kind: lower.Chunked, Chunks: 8},
	{Kind: lower.Exchange}, {Kind: lower.Exchange, Chunks: 2}, {Kind: lower.Exchange, Chunks: 4},
	{Kind: lower.Exchange, Own: 2}, {Kind: lower.Exchange, Own: 4}, {Kind: lower.Exchange, Ahead: true},
}

// predictor predicts the times of a program's pairs, with given dims, on a machine.
type predictor struct {
	bound   *ir.Bound
	machine *machine.Description
}

// estimates returns the predictions for a pair under every candidate.
func (p *predictor) estimates(pair *lower.Pair) ([]Estimate, error) {
	numbers, err := p.numbers(pair)
	if err != nil {
		return nil, err
	}
	var out []Estimate
	for _, st := range candidates {
		if st.Ahead && !pair.Ahead {
			continue // without a preceding pair, ahead is the same as exchange
		}
		if st.Own > 0 && pair.Comm != ir.OpAllReduce {
			continue // a gather has no parts whose put could overlap with the computation of the own block
		}
		e, err := p.estimate(pair, numbers, st)
		if err != nil {
			return nil, err
		}
		out = append(out, e)
	}
	return out, nil
}

func (p *predictor) estimate(pair *lower.Pair, numbers sim.Pair, st lower.Strategy) (Estimate, error) {
	e := Estimate{Strategy: st.String(), strategy: st, Refused: pair.Refused[st.Kind]}
	if e.Refused == "" {
		e.Refused = p.unfit(numbers, st)
	}
	if e.Refused != "" {
		return e, nil
	}
	var got sim.Prediction
	var err error
	switch st.Kind {
	case lower.Chunked:
		got, err = sim.Chunked(numbers, st.Chunks, p.machine)
	case lower.Exchange:
		if st.Ahead {
			got, err = sim.Ahead(numbers, pair.Whole, p.machine)
			break
		}
		parts := max(st.Chunks, 1)
		if pair.Before {
			parts = st.Parts()
		}
		got, err = sim.Exchange(numbers, parts, st.Own, p.machine)
	default:
		got, err = sim.Sequential(numbers, p.machine)
	}
	e.Time, e.spans = got.Time, got.Spans
	return e, err
}

// unfit returns the reason why the given ranks cannot use a strategy, although the program's text allows it. unfit
// returns "" if the ranks can use the strategy.
func (p *predictor) unfit(numbers sim.Pair, st lower.Strategy) string {
	if st.Kind == lower.Exchange && numbers.Team != nil {
		return "its ranks are on several nodes, which share no memory"
	}
	return ""
}

// fitting returns st, with Ragged set if the dims require blocks of different sizes. An exchange cuts the rows of an
// all-reduce into one block for each rank; if the number of rows is not a multiple of the number of ranks, the blocks
// differ in size.
func fitting(bound *ir.Bound, pair *lower.Pair, st lower.Strategy) lower.Strategy {
	if st.Kind != lower.Exchange || pair.Comm != ir.OpAllReduce {
		return st
	}
	ranks := int64(1)
	for _, a := range pair.Axes {
		n, ok := bound.AxisSize(a)
		if !ok {
			return st
		}
		ranks *= n
	}
	shape, err := bound.LocalShape(pair.To, bound.Env(0, nil))
	st.Ragged = st.Ragged || err == nil && shape[pair.Rows]%ranks != 0
	return st
}

// The following factors allow for errors of predictions. An estimate replaces the best estimate so far only if its time
// is shorter and, in addition, is below a limit. For an exchange of whole blocks, the limit is the time of sequential
// multiplied by the constant whole; for an exchange with parts, by the constant parts; and for chunked, by the constant
// chunked. The time of an exchange with more than two parts must also be below the best time so far multiplied by
// parts. Ahead needs more memory, so its time must be below the best time so far multiplied by room.
//
// The basis is the 44 layers on two H100 of docs/measured/predictions.tsv, predicted anew (tools/predict -again
// h100x2). Predictions of exchange are 3 % too slow on average, and nine of ten are within 7 %. Predictions of exchange
// with parts are 2 % too slow on average, and nine of ten are within 7 %; some with short parts are 15 % too fast.
// Predictions of two chunks are 8 % too fast.
const whole, parts, chunked, room = 0.99, 0.975, 0.96, 0.97

// best returns the fastest estimate, or sequential if no other estimate is faster by the factors above.
func best(es []Estimate) Estimate {
	sequential, top := es[0], es[0]
	for _, e := range es[1:] {
		most := min(top.Time, whole*sequential.Time)
		switch {
		case e.strategy.Ahead:
			most = room * top.Time
		case e.strategy.Kind == lower.Chunked:
			most = min(most, chunked*sequential.Time)
		case e.strategy.Chunks > 2:
			most = min(parts*top.Time, parts*sequential.Time)
		case e.strategy.Chunks > 0 || e.strategy.Own > 0:
			most = min(most, parts*sequential.Time)
		}
		if e.Refused == "" && e.Time < most {
			top = e
		}
	}
	return top
}

// numbers evaluates the extents of a pair with the bound dims.
func (p *predictor) numbers(pair *lower.Pair) (sim.Pair, error) {
	out := sim.Pair{Comm: pair.Comm, Ranks: 1, DType: pair.From.DType, AnyOrder: pair.AnyOrder, Algorithm: pair.Algorithm,
		Before: pair.Before, Kept: pair.Kept}
	for _, a := range pair.Axes {
		n, ok := p.bound.AxisSize(a)
		if !ok {
			return out, fmt.Errorf("mesh axis %s has no size", a)
		}
		out.Ranks *= n
	}
	out.Team = p.crossing(pair.Axes)
	whole := pair.From
	if pair.Comm == ir.OpAllGather {
		whole = pair.To
	}
	var err error
	if out.Whole, err = p.bytes(whole); err != nil {
		return out, err
	}
	if out.Ops, err = p.ops(pair.Ops); err != nil {
		return out, err
	}
	out.Post, err = p.ops(pair.Post)
	return out, err
}

// crossing returns the first team over axes whose ranks are on several nodes, or nil if there is none.
func (p *predictor) crossing(axes []string) []int {
	for r := range p.machine.Nodes {
		team := p.bound.Team(axes, r)
		for _, peer := range team {
			if p.machine.Nodes[peer] != p.machine.Nodes[r] {
				return team
			}
		}
	}
	return nil
}

// ops describes the part of a pair's operations that one rank computes. GPUs execute a chain of elementwise operations
// as one kernel, so a chain is described as one operation.
func (p *predictor) ops(ops []lower.PairOp) ([]sim.Op, error) {
	var out []sim.Op
	for len(ops) > 0 {
		kernels := p.kernels(ops)
		if len(kernels) == 0 {
			kernels = []fuse.Segment{{Steps: 1}}
		}
		for _, k := range kernels {
			last := &ops[k.Steps-1]
			o, err := p.op(last.Stmt, last.In, last.Out)
			if err != nil {
				return nil, err
			}
			if k.Steps > 1 {
				o.Bytes = k.Bytes
			}
			out, ops = append(out, o), ops[k.Steps:]
		}
	}
	return out, nil
}

// kernels returns the kernels by which a GPU executes the elementwise operations of one shape with which ops begins. It
// returns none if there is no such operation, if the machine has no GPU, and if a shape is not known.
func (p *predictor) kernels(ops []lower.PairOp) []fuse.Segment {
	if p.machine.GPU == "" {
		return nil
	}
	uses := map[string]int{}
	for i := range ops {
		for _, a := range ops[i].Stmt.Args {
			uses[a.Name]++
		}
	}
	var steps []fuse.Step
	var sizes []int64
	var first []int64           // the shape of the first result
	defined := map[string]int{} // as in Step.Args
	for i := range ops {
		s := ops[i].Stmt
		shape, err := p.shape(ops[i].Out)
		if !s.Op.Info().Elementwise || len(ops[i].In) == 0 || len(s.Results) != 1 || err != nil ||
			i > 0 && !slices.Equal(shape, first) {
			break
		}
		first = shape
		name := s.Results[0].Text
		step := fuse.Step{Bytes: size(shape, ops[i].Out.DType), Uses: uses[name]}
		if ops[i].Kept {
			step.Uses = math.MaxInt
		}
		for j, t := range ops[i].In {
			arg := s.Args[j].Name
			if _, ok := defined[arg]; !ok {
				n, err := p.bytes(t)
				if err != nil {
					return nil
				}
				defined[arg] = len(sizes)
				sizes = append(sizes, n)
			}
			step.Args = append(step.Args, defined[arg])
		}
		steps = append(steps, step)
		defined[name] = ^i
	}
	return fuse.Cut(steps, sizes, nil)
}

// op describes the part of a statement on values that one rank computes.
func (p *predictor) op(s *ir.Stmt, in []*ir.Type, out *ir.Type) (sim.Op, error) {
	var tensors []sim.Tensor
	for _, t := range append(in[:len(in):len(in)], out) {
		shape, err := p.shape(t)
		if err != nil {
			return sim.Op{}, fmt.Errorf("%s: %w", t, err)
		}
		tensors = append(tensors, sim.Tensor{Shape: shape, DType: t.DType, Bytes: size(shape, t.DType)})
	}
	n := len(in)
	if s.Op == ir.OpReduceSlots {
		p.slots(s, tensors)
	}
	o := sim.NewOp(s.Op, tensors[:n], tensors[n], s.Word("ta", "") == "true")
	o.FastAccum = s.Word("fast_accum", "") == "true"
	return o, nil
}

// slots reduces the shape of tensors[0], the operand of a reduce_slots, to the slots that the operation reads, if their
// number is known.
func (p *predictor) slots(s *ir.Stmt, tensors []sim.Tensor) {
	x, env := &tensors[0], p.bound.Env(0, nil)
	axis := int64(0)
	var err error
	if a := s.Attr("axis"); a != nil {
		axis, err = a.Exprs[0].Eval(env)
	}
	lo, err1 := s.Exprs[0].Eval(env)
	hi, err2 := s.Exprs[1].Eval(env)
	if err != nil || err1 != nil || err2 != nil || axis < 0 || axis >= int64(len(x.Shape)) {
		return
	}
	if n := x.Shape[axis]; 0 <= lo && lo <= hi && hi <= n {
		x.Bytes = x.Bytes / max(n, 1) * (hi - lo)
	}
}

func (p *predictor) shape(t *ir.Type) ([]int64, error) {
	return p.bound.LocalShape(t, p.bound.Env(0, nil))
}

// bytes returns the number of bytes that one rank holds of a value of type t.
func (p *predictor) bytes(t *ir.Type) (int64, error) {
	shape, err := p.shape(t)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", t, err)
	}
	return size(shape, t.DType), nil
}

func size(shape []int64, of ir.DType) int64 {
	n := of.Size()
	for _, e := range shape {
		n *= e
	}
	return n
}

// key returns a text that identifies a binding: the function, the number of ranks and the dims.
func key(b *ir.Bound) string {
	var k strings.Builder
	fmt.Fprintf(&k, "%s %d %v", b.Func.Name, b.Ranks, b.Dims) // fmt prints maps in sorted order
	return k.String()
}
