package compile

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/internal/lower"
	"hocket.example/hocket/internal/machine"
	"hocket.example/hocket/internal/planner"
	"hocket.example/hocket/internal/sim"
	"hocket.example/hocket/ir"
)

// Explanation describes how a function was lowered for given dims, and the time that it is predicted to take. Numbers
// of bytes count the bytes that one rank receives. Times are in microseconds.
type Explanation struct {
	Func  string           `json:"func"`
	Ranks int              `json:"ranks"`
	Dims  map[string]int64 `json:"dims,omitempty"`
	// Nodes is the number of nodes with ranks. Across names the source of the bandwidth and latency of the tier between
	// the nodes.
	Nodes  int    `json:"nodes,omitempty"`
	Across string `json:"across,omitempty"`
	// Machine is the name of the machine description that the predictions use, and Source is the source of its numbers.
	Machine string `json:"machine"`
	Source  string `json:"source"`
	// Error holds the recorded differences between predictions and measurements on that machine. Error is nil if
	// nothing was measured there, or if Extrapolated gives a reason why the measurements do not apply.
	Error        *machine.Error `json:"error,omitempty"`
	Extrapolated string         `json:"extrapolated,omitempty"`
	// Table identifies the dispatch table from which the times of collectives come: "shipped", the path of a file, or
	// empty if there is no table. TableHash is a hash of the contents of the table.
	Table string `json:"table,omitempty"`
	// TableOf names the GPUs on which Table was measured, if they are not those of the machine.
	TableOf   string `json:"table_of,omitempty"`
	TableHash string `json:"table_hash,omitempty"`

	Reshards []Reshard    `json:"reshards"`
	Pairs    []PairReport `json:"pairs"`
	// Alone lists the collectives that are not part of a pair, each with the reason.
	Alone []LineNote `json:"alone,omitempty"`

	// Time is the predicted time of a run. Sequential is the predicted time of a run without overlap.
	Time       float64 `json:"us"`
	Sequential float64 `json:"sequential_us"`
	// Exposed is the part of Time in which a rank communicates and does not compute. SequentialExposed is the same part
	// of Sequential.
	Exposed           float64 `json:"exposed_us"`
	SequentialExposed float64 `json:"sequential_exposed_us"`
	// FLOPs is the number of floating-point operations in a rank's GEMMs. FLOPs is 0 for a program that orders its
	// streams itself.
	FLOPs float64 `json:"flops,omitempty"`
	// Timeline is the predicted run of one rank; it is the same for all ranks if all execute the same statements.
	// Timeline is empty if it would be too long to draw.
	Timeline []sim.Span `json:"timeline"`
	// Cut reports that the timeline was too long and ends early.
	Cut bool `json:"timeline_cut,omitempty"`
}

// Reshard describes one change of layout.
type Reshard struct {
	Line  int32  `json:"line"`
	Value string `json:"value"`
	From  string `json:"from"`
	To    string `json:"to"`
	// Why describes the use that needs the reshard. How names the operations that implement the reshard.
	Why   string  `json:"why"`
	How   string  `json:"how"`
	Bytes int64   `json:"bytes"`
	Time  float64 `json:"us"`
	// Tabled reports that Time comes from the dispatch table and not from the machine description.
	Tabled bool `json:"tabled,omitempty"`
	// Across reports that some of the operations cross nodes. The times of operations that cross nodes come from the
	// tier between nodes of the machine description.
	Across bool `json:"across,omitempty"`
}

// PairReport describes one pair of communication and GEMM.
type PairReport struct {
	Line   int32  `json:"line"`
	Value  string `json:"value"`
	Pair   string `json:"pair"`
	Bytes  int64  `json:"bytes"`
	Chosen string `json:"chosen"`
	// Tabled reports that the time of the whole collective comes from the dispatch table and not from the machine
	// description.
	Tabled bool `json:"tabled,omitempty"`
	// Across reports that the collective crosses nodes. The time of a collective that crosses nodes comes from the tier
	// between nodes of the machine description.
	Across bool `json:"across,omitempty"`
	// Why gives the reason if the strategy differs from the one that was requested. It is usually empty.
	Why        string     `json:"why,omitempty"`
	Strategies []Estimate `json:"strategies"`
}

// Explain lowers a program and explains the result for b.
func Explain(p *ir.Program, opts Options, b ir.Binding) (*Explanation, error) {
	u, err := Of(p, opts)
	if err != nil {
		return nil, err
	}
	return u.Explain(b)
}

// Measured names the dispatch table from which the times of collectives are taken, or returns "" if there is none.
func (e *Explanation) Measured() string {
	switch e.Table {
	case "":
		return ""
	case "shipped":
		return "the shipped table, hash " + e.TableHash
	}
	return "the table " + e.Table + ", hash " + e.TableHash
}

// Band returns a text that says how far predictions may differ from measurements. Band returns "" if nothing was
// measured.
func (e *Explanation) Band() string {
	switch b := e.Error; {
	case e.Extrapolated != "":
		return "extrapolated: " + e.Extrapolated
	case b != nil:
		way := "low"
		if b.Bias > 0 {
			way = "high"
		}
		return fmt.Sprintf("accuracy: half of %d predictions are within %.0f %% of the measured time, nine of ten within %.0f %%; they are "+
			"%.0f %% too %s on average (%s)", b.Layers, 100*b.Median, 100*b.Most, 100*max(b.Bias, -b.Bias), way, b.Of)
	}
	return ""
}

// By returns the source of a collective's time as text, with a leading space. It returns "" if there is no table and
// only one node, because all times then come from the machine description.
func (e *Explanation) By(tabled, across bool) string {
	switch {
	case across:
		return " across nodes"
	case e.Nodes > 1:
		return " inside a node" + e.source(tabled)
	}
	return e.source(tabled)
}

func (e *Explanation) source(tabled bool) string {
	switch {
	case e.Table == "":
		return ""
	case tabled && e.TableOf != "":
		return " as measured on " + e.TableOf
	case tabled:
		return " as measured"
	}
	return " as described"
}

// LineNote is a note about a line of the source.
type LineNote struct {
	Line int32  `json:"line"`
	Text string `json:"text"`
}

// maxSimulated is the maximum number of ranks of an explicit program whose time is predicted. The prediction needs a
// plan for all ranks.
const maxSimulated = 64

// Explain returns an explanation of the function that b binds.
func (u *Unit) Explain(b ir.Binding) (*Explanation, error) {
	bound, err := u.Bind(b)
	if err != nil {
		return nil, err
	}
	m, found, err := u.machine(bound.Ranks)
	if err != nil {
		return nil, err
	}
	res, err := u.LoweredFor(b)
	if err != nil {
		return nil, err
	}
	flat, err := lower.Run(u.Source.Prog, lower.Options{StopAfter: "decompose"})
	if err != nil {
		return nil, err
	}
	x := &explainer{predictor: &predictor{bound: bound, machine: m}, flat: flat,
		reached: reached(u.Source.Prog, bound.Func)}
	e := &Explanation{Func: bound.Func.Name, Ranks: bound.Ranks, Dims: bound.Dims, Machine: m.Name, Source: m.Source,
		Table: found.From, TableHash: found.Table.Hash(), Reshards: []Reshard{}, Pairs: []PairReport{},
		Timeline: []sim.Span{}}
	if gpu := cmp.Or(m.GPU, found.Identity); found.Shipped() && !found.Table.Of(gpu) {
		e.TableOf = found.Table.Identity
	}
	var other []string // reasons why the measurements are of another machine
	if on := model(found.Identity); u.opts.Device != nil && m.GPU != "" && on != "" && on != m.GPU {
		other = append(other, fmt.Sprintf("%s was measured on %s, not on %s", m.Name, m.GPU, on))
	}
	if m.Nodes != nil {
		e.Nodes = 1 + slices.Max(m.Nodes)
		other = append(other, fmt.Sprintf("no layer was measured on %d nodes", e.Nodes))
		if m.Across != nil {
			e.Across = m.Across.Source
		} else {
			e.Across = "unknown, so traffic between nodes is predicted as traffic inside a node"
		}
	} else if m.Ranks > 0 && bound.Ranks != m.Ranks {
		other = append(other, fmt.Sprintf("%s was measured with %d devices, not with %d", m.Name, m.Ranks, bound.Ranks))
	}
	if e.Error = m.Error; other != nil {
		e.Error, e.Extrapolated = nil, strings.Join(other, "; ")+"; the accuracy of predictions is unknown"
	}
	if err := x.pairs(e, res); err != nil {
		return nil, err
	}
	x.reshards(e)
	err = x.times(e, u, b)
	if e.Time > mostDrawn {
		e.Timeline = []sim.Span{}
	}
	return e, err
}

// explainer builds an explanation.
type explainer struct {
	*predictor
	flat    *lower.Result // the program after decompose, before pairs are overlapped
	reached map[string]bool
	// chosen maps a function and a value to the estimate for the strategy of that overlapped pair. inside holds the
	// statements that are part of a pair.
	chosen map[site]Estimate
	inside map[site]bool
}

// site identifies a value by its function and name.
type site struct{ fn, value string }

// reached returns the names of the functions that f calls directly or indirectly, including f.
func reached(p *ir.Program, f *ir.Func) map[string]bool {
	out := map[string]bool{}
	var visit func(f *ir.Func)
	visit = func(f *ir.Func) {
		if f == nil || out[f.Name] {
			return
		}
		out[f.Name] = true
		f.Body.Walk(func(s *ir.Stmt) {
			if s.Op == ir.OpCall {
				visit(p.Func(s.Callee.Text))
			}
		})
	}
	visit(f)
	return out
}

// pairs adds the pairs to the explanation and records which statements they replace.
func (x *explainer) pairs(e *Explanation, res *lower.Result) error {
	x.chosen, x.inside = map[site]Estimate{}, map[site]bool{}
	for i := range res.Choices {
		c := &res.Choices[i]
		if !x.reached[c.Pair.Func] {
			continue
		}
		numbers, err := x.numbers(&c.Pair)
		if err != nil {
			return err
		}
		r := PairReport{Line: c.Pair.Pos.Line, Value: c.Pair.Value, Pair: c.Pair.String(), Bytes: numbers.Moved(),
			Chosen: c.Strategy.String(), Why: c.Why,
			Tabled: x.machine.Measured(numbers.Collective(1, x.machine)),
			Across: x.machine.Crosses(numbers.Collective(1, x.machine))}
		if r.Strategies, err = x.estimates(&c.Pair); err != nil {
			return err
		}
		e.Pairs = append(e.Pairs, r)
		if c.Strategy.Kind == lower.Sequential {
			continue
		}
		est, err := x.estimate(&c.Pair, numbers, c.Strategy)
		if err != nil {
			return err
		}
		x.chosen[site{c.Pair.Func, c.Pair.Value}] = est
		for _, o := range slices.Concat(c.Pair.Ops, c.Pair.Post) {
			x.inside[site{c.Pair.Func, o.Stmt.Results[0].Text}] = true
		}
	}
	for _, n := range res.Alone {
		e.Alone = append(e.Alone, LineNote{n.Pos.Line, n.Message})
	}
	return nil
}

// reshards adds the changes of layout in the reached functions to the explanation.
func (x *explainer) reshards(e *Explanation) {
	why := map[site]string{}
	for _, l := range x.flat.Log {
		switch {
		case !x.reached[l.Func]:
		case l.Pass == "shard":
			why[site{l.Func, l.Result}] = l.Why
		default:
			r := Reshard{Line: l.Pos.Line, Value: l.Value, From: l.From, To: l.To, How: l.Why,
				Why: why[site{l.Func, l.Value}]}
			x.reshardCost(&r, l.Func)
			e.Reshards = append(e.Reshards, r)
		}
	}
}

// reshardCost sums the bytes and times of the statements that implement the reshard r. The values that these statements
// define have the reshard's name or name.1, name.2 and so on. Tabled is set if the times of all these statements come
// from the dispatch table.
func (x *explainer) reshardCost(r *Reshard, fn string) {
	any, all := false, true
	x.flat.Program.Func(fn).Body.Walk(func(s *ir.Stmt) {
		if len(s.Results) != 1 || s.Op.Info().Class != ir.ClassCollective {
			return
		}
		if t := s.Results[0].Text; t != r.Value && !strings.HasPrefix(t, r.Value+".") {
			return
		}
		if c, err := x.collective(s, x.flat.Info); err == nil {
			r.Bytes, r.Time = r.Bytes+c.Moved, r.Time+x.machine.CollectiveTime(c)
			any, all = true, all && x.machine.Measured(c)
			r.Across = r.Across || x.machine.Crosses(c)
		}
	})
	r.Tabled = any && all
}

// times predicts the time of a run. For a program on global values, it adds up the times of the statements. For an
// explicit program, it simulates the plan.
func (x *explainer) times(e *Explanation, u *Unit, b ir.Binding) error {
	plain := newOutline(x, false)
	if plain.fn(x.flat.Program.Func(e.Func)); plain.explicit {
		return x.simulate(e, u, b)
	}
	o := newOutline(x, true)
	o.fn(x.flat.Program.Func(e.Func))
	e.SequentialExposed, e.Exposed, e.FLOPs = plain.exposed, o.exposed, plain.flops
	e.Sequential, e.Time, e.Timeline, e.Cut = plain.now, o.now, append(e.Timeline, o.spans...), o.cut
	return nil
}

// simulate plans and simulates the lowered program, if it is small enough.
func (x *explainer) simulate(e *Explanation, u *Unit, b ir.Binding) error {
	if e.Ranks > maxSimulated {
		return nil
	}
	p, err := u.Plan(b)
	if err != nil {
		return err
	}
	t, err := sim.Plan(p, x.machine)
	if err != nil {
		return err
	}
	mine := ofRank0(t.Spans)
	e.Time, e.Sequential, e.Exposed = t.Time, t.Time, exposed(mine)
	e.SequentialExposed = e.Exposed
	e.Timeline = append(e.Timeline, mine[:min(len(mine), maxSpans)]...)
	if bound, err := u.Bind(b); err == nil && bound.Func.Refines.Text != "" {
		e.Sequential, e.SequentialExposed = x.reference(u, b)
	}
	return nil
}

func ofRank0(spans []sim.Span) []sim.Span {
	return slices.DeleteFunc(slices.Clone(spans), func(s sim.Span) bool { return s.Rank != 0 })
}

// reference returns the predicted time of the function that the bound function refines, and the part of this time in
// which communication is exposed.
func (x *explainer) reference(u *Unit, b ir.Binding) (us, bare float64) {
	bound, err := u.Reference(b)
	if err != nil {
		return 0, 0
	}
	ref := ir.Binding{Func: bound.Func.Name, Ranks: b.Ranks, Dims: b.Dims, Defines: b.Defines}
	low, ds := ir.Bind(x.flat.Info, ref)
	if ds.HasErrors() {
		return 0, 0
	}
	p, ds := planner.Plan(low, planner.Options{})
	if ds.HasErrors() {
		return 0, 0
	}
	t, err := sim.Plan(p, x.machine)
	if err != nil {
		return 0, 0
	}
	return t.Time, exposed(ofRank0(t.Spans))
}
