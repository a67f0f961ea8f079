package hocket

import (
	"io"

	"hocket.example/hocket/internal/compile"
)

// Explanation says what lowering made of a function for given dims: every
// change of layout with its reason and bytes, every pair of communication and
// GEMM with its strategies and their predicted times, the predicted timeline.
// Bytes are what one rank receives, times are in microseconds.
type Explanation struct {
	Func  string           `json:"func"`
	Ranks int              `json:"ranks"`
	Dims  map[string]int64 `json:"dims,omitempty"`
	// Nodes is on how many nodes the ranks are; Across where the figures of the tier between them are from.
	Nodes  int    `json:"nodes,omitempty"`
	Across string `json:"across,omitempty"`
	// Machine is the description that predictions are made with, Source where
	// its numbers come from.
	Machine string `json:"machine"`
	Source  string `json:"source"`
	// Error is how far predictions for that machine were from what was measured; nil where
	// nothing was, or where Extrapolated says what was not.
	Error        *PredictionError `json:"error,omitempty"`
	Extrapolated string           `json:"extrapolated,omitempty"`
	// Table is the dispatch table that times of collectives are from where it has
	// them: "shipped" or a file; empty for none. TableHash tells it from others.
	Table     string `json:"table,omitempty"`
	TableHash string `json:"table_hash,omitempty"`

	Reshards []Reshard    `json:"reshards"`
	Pairs    []PairReport `json:"pairs"`
	// Alone lists the collectives that are no part of a pair, and why.
	Alone []LineNote `json:"alone,omitempty"`

	// Time is the predicted time of a run, Sequential that without overlap; 0 where
	// nothing is predicted.
	Time       float64 `json:"us"`
	Sequential float64 `json:"sequential_us"`
	// Exposed is the part of Time in which a rank communicates and computes nothing,
	// SequentialExposed that of Sequential.
	Exposed           float64 `json:"exposed_us"`
	SequentialExposed float64 `json:"sequential_exposed_us"`
	// FLOPs is what a rank's GEMMs multiply and add; 0 for a program that orders streams itself.
	FLOPs float64 `json:"flops,omitempty"`
	// Timeline is the predicted run of one rank, which stands for all where
	// all do the same; empty where it would be longer than can be drawn.
	Timeline []Span `json:"timeline"`
	// Cut says that the timeline was too long and ends early.
	Cut bool `json:"timeline_cut,omitempty"`

	x *compile.Explanation
}

// PredictionError says how far predictions were from what was measured, as parts of that.
type PredictionError struct {
	// Of says which layers were measured, Layers how many.
	Of     string `json:"of"`
	Layers int    `json:"layers"`
	// Half of the predictions were within Median, nine of ten within Most. Bias is the mean,
	// negative where predictions are too fast.
	Median float64 `json:"median"`
	Most   float64 `json:"most"`
	Bias   float64 `json:"bias"`
}

// Reshard is one change of layout of an Explanation.
type Reshard struct {
	Line  int32  `json:"line"`
	Value string `json:"value"`
	From  string `json:"from"`
	To    string `json:"to"`
	// Why is what needed it, How what does it.
	Why   string  `json:"why"`
	How   string  `json:"how"`
	Bytes int64   `json:"bytes"`
	Time  float64 `json:"us"`
	// Tabled: Time is from the dispatch table, else from the machine's description.
	Tabled bool `json:"tabled,omitempty"`
	// Across: some of it crosses nodes, and is from the machine's tier between them.
	Across bool `json:"across,omitempty"`
}

// PairReport is one pair of communication and GEMM of an Explanation.
type PairReport struct {
	Line   int32  `json:"line"`
	Value  string `json:"value"`
	Pair   string `json:"pair"` // "all_gather + linear"
	Bytes  int64  `json:"bytes"`
	Chosen string `json:"chosen"`
	// Tabled: what the collective takes, whole, is from the dispatch table, else from
	// the machine's description.
	Tabled bool `json:"tabled,omitempty"`
	// Across: it crosses nodes, and is from the machine's tier between them.
	Across bool `json:"across,omitempty"`
	// Why says why not what was asked for; mostly empty.
	Why        string     `json:"why,omitempty"`
	Strategies []Estimate `json:"strategies"`
}

// Estimate is what a strategy is predicted to take for a pair.
type Estimate struct {
	Strategy string  `json:"strategy"`
	Time     float64 `json:"us,omitempty"`
	// Refused says why the strategy cannot be used; empty where it can.
	Refused string `json:"refused,omitempty"`
}

// LineNote is a remark on a line of the source.
type LineNote struct {
	Line int32  `json:"line"`
	Text string `json:"text"`
}

// Span is one op of a predicted timeline.
type Span struct {
	Name string `json:"name"`
	// Comm: it moves data between ranks, or waits for them.
	Comm   bool    `json:"comm"`
	Rank   int     `json:"rank"`
	Stream string  `json:"stream"`
	Start  float64 `json:"start_us"`
	End    float64 `json:"end_us"`
}

func explanationOf(x *compile.Explanation) *Explanation {
	e := &Explanation{Func: x.Func, Ranks: x.Ranks, Dims: x.Dims, Nodes: x.Nodes, Across: x.Across, Machine: x.Machine,
		Source: x.Source, Extrapolated: x.Extrapolated,
		Table: x.Table, TableHash: x.TableHash, Time: x.Time, Sequential: x.Sequential, Exposed: x.Exposed,
		SequentialExposed: x.SequentialExposed, FLOPs: x.FLOPs, Cut: x.Cut, Reshards: []Reshard{},
		Pairs:    []PairReport{},
		Timeline: []Span{}, x: x}
	if x.Error != nil {
		e.Error = (*PredictionError)(x.Error)
	}
	for _, r := range x.Reshards {
		e.Reshards = append(e.Reshards, Reshard(r))
	}
	for _, p := range x.Pairs {
		q := PairReport{Line: p.Line, Value: p.Value, Pair: p.Pair, Bytes: p.Bytes, Chosen: p.Chosen, Tabled: p.Tabled,
			Across: p.Across, Why: p.Why}
		for _, s := range p.Strategies {
			q.Strategies = append(q.Strategies, Estimate{s.Strategy, s.Time, s.Refused})
		}
		e.Pairs = append(e.Pairs, q)
	}
	for _, n := range x.Alone {
		e.Alone = append(e.Alone, LineNote(n))
	}
	for _, s := range x.Timeline {
		e.Timeline = append(e.Timeline, Span(s))
	}
	return e
}

// Measured says which dispatch table times of collectives are from; empty for none.
func (e *Explanation) Measured() string { return e.x.Measured() }

// Band says how far off predictions may be; empty where nothing was measured.
func (e *Explanation) Band() string { return e.x.Band() }

// By says where a collective's time is from, with a space before it; nothing where
// there is no table, and all is described, inside one node.
func (e *Explanation) By(tabled, across bool) string { return e.x.By(tabled, across) }

// WriteTimeline draws the predicted timeline, width columns wide.
func (e *Explanation) WriteTimeline(w io.Writer, width int) error { return e.x.WriteTimeline(w, width) }

// Explain lowers p for opts.Binding and explains the result, with predictions
// for opts.Machine. It plans nothing that grows with the number of ranks,
// unless the program is explicit already.
func (p *Program) Explain(opts LowerOptions) (*Explanation, error) {
	u, err := p.build(compile.Options{Strategy: opts.Strategy, Machine: opts.Machine, Nodes: opts.Nodes})
	if err != nil {
		return nil, err
	}
	x, err := u.Explain(opts.Binding.ir())
	if err != nil {
		return nil, err
	}
	return explanationOf(x), nil
}

// Machines lists the machines that LowerOptions.Machine names without a file.
func Machines() []string { return compile.Machines() }

// Overlapped is a pair of communication and GEMM that a strategy overlaps.
type Overlapped struct {
	Line     int32  // of the text
	Value    string // the collective's result; what lowering makes of the pair is named after it, with a dot
	Pair     string // "all_gather + linear"
	Strategy string // "chunked(4)"
}

// String returns a line for people.
func (o Overlapped) String() string { return compile.Overlapped(o).String() }

// Overlapped lists the pairs that the model's strategy overlaps for the given dims.
func (m *Model) Overlapped(dims map[string]int64) ([]Overlapped, error) {
	list, err := m.fn.unit.Overlapped(m.fn.merge(dims).ir())
	var out []Overlapped
	for _, o := range list {
		out = append(out, Overlapped(o))
	}
	return out, err
}
