package hocket

import (
	"io"

	"hocket.example/hocket/internal/compile"
)

// Explanation describes what lowering made of a function for given dims: every change of layout with its reason and
// bytes, every pair of communication and GEMM with its strategies and their predicted times, and the predicted
// timeline. Bytes are those that one rank receives; times are in microseconds.
type Explanation struct {
	Func  string           `json:"func"`
	Ranks int              `json:"ranks"`
	Dims  map[string]int64 `json:"dims,omitempty"`
	// Nodes is the number of nodes that the ranks are spread over. Across names the source of the figures for the
	// tier between the nodes.
	Nodes  int    `json:"nodes,omitempty"`
	Across string `json:"across,omitempty"`
	// Machine is the description that predictions are made with, and Source the origin of its numbers.
	Machine string `json:"machine"`
	Source  string `json:"source"`
	// Error is the error of earlier predictions for that machine against measurements. It is nil if there are no
	// measurements, or if Extrapolated names what was not measured.
	Error        *PredictionError `json:"error,omitempty"`
	Extrapolated string           `json:"extrapolated,omitempty"`
	// Table is the dispatch table that gives the times of the collectives that it has: "shipped" or a file, or empty
	// for none. TableHash identifies its contents.
	Table     string `json:"table,omitempty"`
	TableHash string `json:"table_hash,omitempty"`

	Reshards []Reshard    `json:"reshards"`
	Pairs    []PairReport `json:"pairs"`
	// Alone lists the collectives that are no part of a pair, and why.
	Alone []LineNote `json:"alone,omitempty"`

	// Time is the predicted time of a run, and Sequential that without overlap; 0 if nothing is predicted.
	Time       float64 `json:"us"`
	Sequential float64 `json:"sequential_us"`
	// Exposed is the part of Time in which a rank communicates and computes nothing, and SequentialExposed that of
	// Sequential.
	Exposed           float64 `json:"exposed_us"`
	SequentialExposed float64 `json:"sequential_exposed_us"`
	// FLOPs counts the multiplications and additions of one rank's GEMMs; 0 for a program that orders streams itself.
	FLOPs float64 `json:"flops,omitempty"`
	// Timeline is the predicted run of one rank, which represents all ranks if they do the same. It is empty if it
	// would be too long to draw.
	Timeline []Span `json:"timeline"`
	// Cut says that the timeline was too long and ends early.
	Cut bool `json:"timeline_cut,omitempty"`

	x *compile.Explanation
}

// PredictionError is the error of predictions against measurements, as fractions of the measured time.
type PredictionError struct {
	// Of describes the layers that were measured, and Layers is their number.
	Of     string `json:"of"`
	Layers int    `json:"layers"`
	// Half of the predictions were within Median, and nine of ten within Most. Bias is the mean error; it is negative
	// if predictions are too fast.
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
	// Why is the op that needed the change, and How the ops that make it.
	Why   string  `json:"why"`
	How   string  `json:"how"`
	Bytes int64   `json:"bytes"`
	Time  float64 `json:"us"`
	// Tabled reports that Time is from the dispatch table, and not from the machine's description.
	Tabled bool `json:"tabled,omitempty"`
	// Across reports that a part of it crosses nodes, so that Time uses the machine's tier between them.
	Across bool `json:"across,omitempty"`
}

// PairReport is one pair of communication and GEMM of an Explanation.
type PairReport struct {
	Line   int32  `json:"line"`
	Value  string `json:"value"`
	Pair   string `json:"pair"` // "all_gather + linear"
	Bytes  int64  `json:"bytes"`
	Chosen string `json:"chosen"`
	// Tabled reports that the time of the whole collective is from the dispatch table, and not from the machine's
	// description.
	Tabled bool `json:"tabled,omitempty"`
	// Across reports that it crosses nodes, so that the time uses the machine's tier between them.
	Across bool `json:"across,omitempty"`
	// Why is the reason if another strategy was chosen than requested; otherwise empty.
	Why        string     `json:"why,omitempty"`
	Strategies []Estimate `json:"strategies"`
}

// Estimate is the predicted time of a pair under a strategy.
type Estimate struct {
	Strategy string  `json:"strategy"`
	Time     float64 `json:"us,omitempty"`
	// Refused is the reason why the strategy cannot be used; empty if it can.
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
	// Comm reports that the op moves data between ranks, or waits for other ranks.
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

// Measured names the dispatch table that times of collectives are from; empty for none.
func (e *Explanation) Measured() string { return e.x.Measured() }

// Band describes how far predictions may be off; empty if there are no measurements.
func (e *Explanation) Band() string { return e.x.Band() }

// By names the source of a collective's time, with a leading space. It is empty if there is no table and the whole
// collective is inside one node.
func (e *Explanation) By(tabled, across bool) string { return e.x.By(tabled, across) }

// WriteTimeline draws the predicted timeline, width columns wide.
func (e *Explanation) WriteTimeline(w io.Writer, width int) error { return e.x.WriteTimeline(w, width) }

// Explain lowers p for opts.Binding and explains the result, with predictions for opts.Machine. Unless the program is
// already explicit, it plans nothing that grows with the number of ranks.
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

// Machines lists the machines that LowerOptions.Machine accepts by name, without a file.
func Machines() []string { return compile.Machines() }

// Overlapped is a pair of communication and GEMM that a strategy overlaps.
type Overlapped struct {
	Line     int32  // of the text
	Value    string // the collective's result; what lowering makes of the pair is named after it, with a dot
	Pair     string // "all_gather + linear"
	Strategy string // "chunked(4)"
}

// String returns a one-line description.
func (o Overlapped) String() string { return compile.Overlapped(o).String() }

// Overlapped lists the pairs that the model's strategy overlaps in runs with the given dims.
func (m *Model) Overlapped(dims map[string]int64) ([]Overlapped, error) {
	b, err := m.bindingFor(m.params.current(), dims)
	if err != nil {
		return nil, err
	}
	list, err := m.fn.unit.Overlapped(b.ir())
	var out []Overlapped
	for _, o := range list {
		out = append(out, Overlapped(o))
	}
	return out, err
}
