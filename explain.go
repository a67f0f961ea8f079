package hocket

import "hocket.example/hocket/internal/compile"

// Explanation describes how a function was lowered for given dims. It lists every change of layout with its reason and
// its number of bytes, every pair of a communication and a GEMM with the strategies for the pair and their predicted
// times, and the predicted timeline. Bytes is the number of bytes that one rank receives; times are in microseconds.
type Explanation struct {
	Func  string           `json:"func"`
	Ranks int              `json:"ranks"`
	Dims  map[string]int64 `json:"dims,omitempty"`
	// Nodes is the number of nodes over which the ranks are distributed. Across names the source of the parameters of the
	// network tier between the nodes.
	Nodes  int    `json:"nodes,omitempty"`
	Across string `json:"across,omitempty"`
	// Machine names the machine description from which times are predicted, and Source is the origin of its parameters.
	Machine string `json:"machine"`
	Source  string `json:"source"`
	// Error describes how much earlier predictions for this machine differed from measurements. It is nil if there are no
	// measurements, or if Extrapolated names the properties that were not measured.
	Error        *PredictionError `json:"error,omitempty"`
	Extrapolated string           `json:"extrapolated,omitempty"`
	// Table identifies the dispatch table from which the times of collectives are read, if the table contains them. It is
	// "shipped", a file name, or empty if there is no table. TableHash identifies the contents of the table.
	Table     string `json:"table,omitempty"`
	TableHash string `json:"table_hash,omitempty"`

	Reshards []Reshard    `json:"reshards"`
	Pairs    []PairReport `json:"pairs"`
	// Alone lists the collectives that do not belong to a pair, each with the reason.
	Alone []LineNote `json:"alone,omitempty"`

	// Time is the predicted time of a run, and Sequential is the predicted time of a run without overlap. Both are 0 if no
	// time is predicted.
	Time       float64 `json:"us"`
	Sequential float64 `json:"sequential_us"`
	// Exposed is the part of Time in which a rank communicates but does not compute. SequentialExposed is the same part of
	// Sequential.
	Exposed           float64 `json:"exposed_us"`
	SequentialExposed float64 `json:"sequential_exposed_us"`
	// FLOPs is the number of multiplications and additions in the GEMMs of one rank. It is 0 for a program that orders its
	// streams itself.
	FLOPs float64 `json:"flops,omitempty"`
	// Timeline is the predicted run of one rank, which represents all ranks if they execute the same ops. It is empty if
	// the timeline would be too long to draw.
	Timeline []Span `json:"timeline"`
	// Cut reports that the end of the timeline was left out because the timeline was too long.
	Cut bool `json:"timeline_cut,omitempty"`

	x *compile.Explanation
}

// PredictionError describes how much predictions differed from measurements. Errors are fractions of the measured time.
type PredictionError struct {
	// Of describes the measured layers, and Layers is their number.
	Of     string `json:"of"`
	Layers int    `json:"layers"`
	// Median is the median of the absolute prediction errors, and Most is their 90th percentile. Bias is the mean of
	// the signed errors; it is negative if the predicted times are too short.
	Median float64 `json:"median"`
	Most   float64 `json:"most"`
	Bias   float64 `json:"bias"`
}

// Reshard describes one change of layout in an Explanation.
type Reshard struct {
	Line  int32  `json:"line"`
	Value string `json:"value"`
	From  string `json:"from"`
	To    string `json:"to"`
	// Why names the op that required the change of layout, and How lists the ops that perform it.
	Why   string  `json:"why"`
	How   string  `json:"how"`
	Bytes int64   `json:"bytes"`
	Time  float64 `json:"us"`
	// Tabled reports that Time was read from the dispatch table and was not computed from the machine description.
	Tabled bool `json:"tabled,omitempty"`
	// Across reports that a part of the communication crosses nodes, so that Time includes the network tier between nodes.
	Across bool `json:"across,omitempty"`
}

// PairReport describes one pair of a communication and a GEMM in an Explanation.
type PairReport struct {
	Line   int32  `json:"line"`
	Value  string `json:"value"`
	Pair   string `json:"pair"` // "all_gather + linear"
	Bytes  int64  `json:"bytes"`
	Chosen string `json:"chosen"`
	// Tabled reports that the time of the undivided collective was read from the dispatch table and was not computed from
	// the machine description.
	Tabled bool `json:"tabled,omitempty"`
	// Across reports that the collective crosses nodes, so that its time includes the network tier between nodes.
	Across bool `json:"across,omitempty"`
	// Why is the reason why the pair has a different strategy than the requested one. It is empty if the pair has the
	// requested strategy.
	Why        string     `json:"why,omitempty"`
	Strategies []Estimate `json:"strategies"`
}

// Estimate is the predicted time of a pair under one strategy.
type Estimate struct {
	Strategy string  `json:"strategy"`
	Time     float64 `json:"us,omitempty"`
	// Refused is the reason why the strategy cannot be used for the pair. It is empty if the strategy can be used.
	Refused string `json:"refused,omitempty"`
}

// LineNote is a remark about one line of the source.
type LineNote struct {
	Line int32  `json:"line"`
	Text string `json:"text"`
}

// Span is one op of a predicted timeline.
type Span struct {
	Name string `json:"name"`
	// Comm reports that the op moves data between ranks or waits for other ranks.
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

// Explain lowers p for opts.Binding and explains the result with predictions for opts.Machine. Unless the program is
// already explicit, the cost of Explain does not grow with the number of ranks.
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

// Machines lists the machine names that LowerOptions.Machine accepts in addition to the files of machine descriptions.
func Machines() []string { return compile.Machines() }

// Overlapped describes a pair of a communication and a GEMM that a strategy overlaps.
type Overlapped struct {
	Line     int32  // of the text
	Value    string // name of the collective's result; lowering derives the names of new values from it, followed by a dot
	Pair     string // "all_gather + linear"
	Strategy string // "chunked(4)"
}

// String describes the pair in one line.
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
