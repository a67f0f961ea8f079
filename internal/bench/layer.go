package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"hocket.example/hocket/internal/contest"
	"hocket.example/hocket/internal/exec"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/internal/trace"
)

// Layer has the measured times of a layer with one shape, under each strategy. Times are microseconds per layer on the
// slowest rank.
type Layer struct {
	Shape
	// GEMM is the time of the layer's GEMM alone, running on all ranks at once, measured before and after the
	// layers.
	GEMM contest.Figure `json:"gemm_us"`
	// Wire is the time in which the bytes that each rank receives can be transferred at the rate of a copy. Bound is
	// the larger of the two times GEMM and Wire.
	Wire  float64 `json:"wire_us"`
	Bound float64 `json:"bound_us"`
	// Checked is the number of elements of each run's result that were compared with their expected values.
	Checked    int             `json:"checked"`
	Strategies []StrategyTimes `json:"strategies"`
}

// StrategyTimes has the measured times of a layer under one strategy.
type StrategyTimes struct {
	Strategy string `json:"strategy"`
	// Refused is the reason why the strategy cannot be used; empty if it can.
	Refused string         `json:"refused,omitempty"`
	Time    contest.Figure `json:"us"`
	// OverBound is the time divided by the bound measured in the same run.
	OverBound contest.Figure `json:"over_bound"`
	// Graph and GraphOverBound are the time and its quotient with the bound for the plan replayed as a graph. Graph and
	// GraphOverBound are nil if the machine does not support graphs.
	Graph          *contest.Figure `json:"graph_us,omitempty"`
	GraphOverBound *contest.Figure `json:"graph_over_bound,omitempty"`
	// GraphForm is the chosen form of the graph, if the plan has several forms.
	GraphForm string `json:"graph_form,omitempty"`
	// GraphRefused is the reason why no graph was measured on a machine that supports graphs.
	GraphRefused string `json:"graph_refused,omitempty"`
	// Guesses names the GEMMs whose algorithms were chosen without timing them, because there was too little memory
	// (see exec.Result). The times of the layer include these GEMMs.
	Guesses []string `json:"guesses,omitempty"`
	// Against is the paired difference between the times of this strategy and of the strategy sequential. Verdict
	// states whether this difference shows that one of them is faster.
	Against *contest.Figure `json:"minus_sequential_us,omitempty"`
	Verdict string          `json:"verdict,omitempty"`
}

// layerRepeats is the number of layers in a chain of layers, and of GEMMs in a chain of GEMMs.
const layerRepeats = 6

// resting is the time for which GPUs are idle before each run, so that every run begins at full clocks. Without idle
// time, a run is slowed down by the power limit that earlier runs have caused, and times vary ten times as much.
const resting = 100 * time.Millisecond

func layersOf(k *layerKind) func(*job, context.Context) error {
	return func(j *job, ctx context.Context) error { return j.layers(ctx, k) }
}

func (j *job) layers(ctx context.Context, k *layerKind) error {
	k = k.in(j.Scales)
	shapes := j.Shapes
	if shapes == nil {
		shapes = j.usualShapes(k)
	}
	for _, s := range shapes {
		if err := s.fits(j.Ranks); err != nil {
			return err
		}
	}
	wire, err := j.wireRate(ctx, j.wireBytes())
	if err != nil {
		return err
	}
	j.report.Wire = &wire
	j.method("bf16; x and w are products of random matrices of rank %d, made on the devices; results sampled and recomputed in f64", inner)
	if k.scales != "" {
		j.method("x and w are then quantized to f8e4m3 with scales of each %s, before the timed part; a gather moves values "+
			"and scales, results are bf16", k.scales)
	}
	if k.fast {
		j.method("products are added with fast_accum=true: about 14 bits of each sum are kept")
	}
	j.method("one run, without host synchronization: the GEMM alone %d times on all ranks, a barrier, the layer "+
		"once untimed and %d times timed, a barrier, the GEMM alone again. The time of the GEMM alone is the mean "+
		"of before and after the layers; that of the layers begins at the end of the untimed layer, when "+
		"links are awake. Slowest rank", layerRepeats, layerRepeats)
	j.method("strategies are measured alternately in one process; median of %d rounds after two warm-up rounds; "+
		"bound = max(GEMM alone of the same run, bytes received / rate of one copy)", j.Rounds)
	if !j.embedded() {
		j.method("GPUs are idle for %v before each run: a run is a burst of some 10 ms at full clocks, and not "+
			"continuous load under the power limit", resting)
	}
	if j.graphs() {
		j.method("graph: the same run replayed as a graph, timed by the same marks, which are nodes of the graph")
	}
	peers := &turns{dir: j.Turns, dtype: layerDType(j.Scales)}
	if peers.dir != "" {
		j.method("peers are measured in the same rounds, while this program is idle, in runs with the same parts")
	}
	j.Shapes = shapes
	for _, s := range shapes {
		l, err := j.layer(ctx, k, s, wire.Median, peers)
		if err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
		j.report.Layers = append(j.report.Layers, *l)
		j.report.Peers = append(j.report.Peers, peers.take(k.name, s, j.Ranks)...)
	}
	return nil
}

// wireBytes is the number of bytes that are copied to measure the rate of a copy.
func (j *job) wireBytes() int64 {
	if j.embedded() {
		return 1 << 20
	}
	return 1 << 28
}

func (j *job) usualShapes(k *layerKind) []Shape {
	if j.embedded() {
		return []Shape{{256, 512, 128}}
	}
	shapes := []Shape{{8192, 28672, 8192}, {8192, 8192, 28672}, {2048, 28672, 8192}, {2048, 8192, 28672}}
	if k.name == agGEMM.name {
		shapes = append(shapes, Shape{8192, 10240, 8192})
	}
	return shapes
}

// strategies lists the strategies to measure, sequential first.
func (j *job) strategies() []string {
	list := j.Strategies
	if list == nil {
		list = []string{"chunked(4)", "exchange"}
	}
	list = slices.DeleteFunc(slices.Clone(list), func(s string) bool { return s == "sequential" || s == "" })
	return append([]string{"sequential"}, list...)
}

// candidate is the program of a layer, loaded with one strategy.
type candidate struct {
	layerText
	strategy string
	refused  string
	plan     *plan.Plan
	rest     time.Duration // idle time before each run
	prog     *exec.Program
	replayed *exec.Program // the program that runs as a graph; nil if graphs are not measured
	noReplay string        // the reason why replayed is nil although graphs are measured
	guesses  []string      // GEMMs whose algorithms were not timed in any of the runs (see StrategyTimes.Guesses)

	gemm, eager, over     []float64
	graphTime, graphBound []float64
}

// layer measures one shape of a layer, under each strategy.
func (j *job) layer(ctx context.Context, k *layerKind, s Shape, rate float64, peers *turns) (l *Layer, err error) {
	var cands []*candidate
	defer func() {
		for _, c := range cands {
			err = errors.Join(err, c.close())
		}
	}()
	l = &Layer{Shape: s, Wire: k.wire(s, j.Ranks, rate)}
	for _, name := range j.strategies() {
		c := &candidate{strategy: name, layerText: k.textOf(s, j.Ranks, layerRepeats)}
		cands = append(cands, c)
		if err := j.load(ctx, c); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	inputs, err := randomInputs(cands[0].plan)
	if err != nil {
		return nil, err
	}
	inputs["aw"] = inputs["a"] // the sharded and the whole x have the same elements
	want := k.expected(s, inputs)
	l.Checked = len(want)
	const warm = 2 // a graph is recorded before the second run
	for round := range j.Rounds + warm {
		j.done(len(j.report.Layers)*(j.Rounds+warm)+round, len(j.Shapes)*(j.Rounds+warm))
		for _, c := range cands {
			if c.refused != "" {
				continue
			}
			if err := c.round(ctx, l.Wire, inputs, want, round >= warm); err != nil {
				return nil, fmt.Errorf("%s: %w", c.strategy, err)
			}
		}
		if err := peers.ask(ctx, k.name, s, round >= warm); err != nil {
			return nil, err
		}
	}
	l.summarize(cands)
	return l, nil
}

// load loads the candidate's programs, or records the reason why they cannot run.
func (j *job) load(ctx context.Context, c *candidate) error {
	var err error
	if !j.embedded() {
		c.rest = resting
	}
	if c.plan, err = build(j.machine, c.text, c.strategy, j.Ranks); err != nil {
		if c.strategy == "sequential" {
			return err
		}
		c.refused = err.Error()
		return nil
	}
	opts := exec.Options{Trace: true, Ends: c.part}
	if c.prog, err = exec.Load(ctx, j.machine, c.plan, opts); err != nil {
		return err
	}
	if j.graphs() {
		opts.Graph = true
		c.replayed, err = exec.Load(ctx, j.machine, c.plan, opts)
		return c.giveUp(ctx, err)
	}
	return nil
}

// If err reports that graphs cannot be used, giveUp makes the measurement continue without graphs. Otherwise it returns
// err, for example for wrong results.
func (c *candidate) giveUp(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil || errors.Is(err, ErrDiffers) {
		return err
	}
	c.noReplay = err.Error()
	if p := c.replayed; p != nil {
		c.replayed = nil
		_ = p.Close() // an error of Close is ignored, because err is its cause
	}
	return nil
}

func (c *candidate) close() error {
	var errs []error
	for _, p := range []*exec.Program{c.prog, c.replayed} {
		if p != nil {
			errs = append(errs, p.Close())
		}
	}
	return errors.Join(errs...)
}

// fits returns an error for layer shapes that cannot be divided evenly among the ranks.
func (s Shape) fits(ranks int) error {
	if n := int64(ranks); s.M%n != 0 || s.N%n != 0 || s.K%n != 0 {
		return contest.Usagef("the shape %s cannot be divided evenly among %d ranks", s, ranks)
	}
	return nil
}

// wire returns the time, in microseconds, in which the bytes that a rank receives are transferred
// at rate GB/s.
func (k *layerKind) wire(s Shape, ranks int, rate float64) float64 {
	if rate <= 0 {
		return 0
	}
	return k.trips * float64(k.moves(s)*k.size()) * float64(ranks-1) / float64(ranks) / rate / 1e3
}

// round runs the candidate's programs once and checks their results. round records the times only if counts is set;
// otherwise the round is a warm-up.
func (c *candidate) round(ctx context.Context, wire float64, inputs map[string]*tensor.Tensor, want []element, counts bool) error {
	if c.replayed != nil {
		gemm, layer, err := c.time(ctx, c.replayed, inputs, want, counts)
		if err := c.giveUp(ctx, err); err != nil {
			return fmt.Errorf("by graph: %w", err)
		}
		if counts && err == nil {
			c.graphTime, c.graphBound = append(c.graphTime, layer), append(c.graphBound, layer/max(gemm, wire))
		}
	}
	gemm, layer, err := c.time(ctx, c.prog, inputs, want, counts)
	if err != nil || !counts {
		return err
	}
	c.gemm, c.eager, c.over = append(c.gemm, gemm), append(c.eager, layer), append(c.over, layer/max(gemm, wire))
	return nil
}

// time runs p once, and returns the microseconds of the GEMM alone and of a layer. time returns zeros if counts is not
// set.
func (c *candidate) time(ctx context.Context, p *exec.Program, inputs map[string]*tensor.Tensor, want []element, counts bool) (gemm, layer float64, err error) {
	time.Sleep(c.rest)
	res, err := p.Run(ctx, inputs)
	if err == nil {
		c.guesses = append(c.guesses, res.Guesses...)
		err = compare(want, res.Outputs)
	}
	if err != nil || !counts {
		return 0, 0, err
	}
	before, err1 := c.window(res.Trace, c.before)
	behind, err2 := c.window(res.Trace, c.behind)
	layer, err = c.chain(res.Trace)
	return (before + behind) / 2, layer, errors.Join(err, err1, err2)
}

// part returns the index of the timed part to which a command belongs; see exec.Options.Ends. Wait commands belong to
// no part, because a stream without earlier work begins to wait when the run begins, long before the event for which it
// waits is recorded.
func (c *candidate) part(cmd int) int {
	switch x := &c.plan.Cmds[cmd]; x.Kind {
	case plan.Record, plan.WaitEvent, plan.Signal, plan.WaitCounter:
		return -1
	default:
		line := c.plan.Sites[x.Site].Pos.Line
		return slices.IndexFunc(c.timed, func(l [2]int32) bool { return l[0] <= line && line <= l[1] })
	}
}

// window returns the microseconds per repetition for the commands on the given lines of the program. window measures
// from the start of the first to the end of the last command, on the rank where this takes longest.
func (c *candidate) window(t *trace.Trace, lines [2]int32) (float64, error) {
	return c.longest(t, lines, func(rank int, s span) int64 { return s.hi - s.lo })
}

// chain is like window for the lines of the timed layers, but measures from the end of the untimed layer before these.
func (c *candidate) chain(t *trace.Trace) (float64, error) {
	first := c.spans(t, c.first)
	return c.longest(t, c.layers, func(rank int, s span) int64 {
		if !first[rank].any {
			return 0
		}
		return s.hi - first[rank].hi
	})
}

// span is a time interval in nanoseconds.
type span struct {
	lo, hi int64
	any    bool
}

// spans returns, for each rank, the interval from the start of the first to the end of the last command on the
// given lines.
func (c *candidate) spans(t *trace.Trace, lines [2]int32) []span {
	out := make([]span, c.plan.Ranks)
	if t == nil {
		return out
	}
	for i := range t.Events {
		e := &t.Events[i]
		line := c.plan.Sites[c.plan.Cmds[e.ID].Site].Pos.Line
		if line < lines[0] || line > lines[1] || e.Class == trace.Sync {
			continue
		}
		s := &out[e.Rank]
		if !s.any {
			*s = span{e.Start, e.End, true}
		}
		s.lo, s.hi = min(s.lo, e.Start), max(s.hi, e.End)
	}
	return out
}

// longest returns the largest result of the function length for any rank, converted to microseconds per repetition.
func (c *candidate) longest(t *trace.Trace, lines [2]int32, length func(rank int, s span) int64) (float64, error) {
	most := int64(0)
	for r, s := range c.spans(t, lines) {
		if s.any {
			most = max(most, length(r, s))
		}
	}
	if most == 0 {
		return 0, errors.New("the measured time is zero: measure larger shapes, or use a machine that reports times")
	}
	return float64(most) / 1e3 / layerRepeats, nil
}

// summarize computes medians and spreads from the candidates' samples.
func (l *Layer) summarize(cands []*candidate) {
	var gemm []float64
	for _, c := range cands {
		gemm = append(gemm, c.gemm...)
	}
	l.GEMM = contest.FigureOf(gemm)
	l.Bound = max(l.GEMM.Median, l.Wire)
	for i, c := range cands {
		slices.Sort(c.guesses)
		st := StrategyTimes{Guesses: slices.Compact(c.guesses), Strategy: c.strategy, Refused: c.refused, Time: contest.FigureOf(c.eager), OverBound: contest.FigureOf(c.over), GraphRefused: c.noReplay}
		if c.replayed != nil {
			took, over := contest.FigureOf(c.graphTime), contest.FigureOf(c.graphBound)
			st.Graph, st.GraphOverBound, st.GraphForm = &took, &over, c.replayed.Stats().Graph
		}
		if i > 0 && len(c.eager) > 0 {
			diff := contest.FigureOf(contest.Differences(c.eager, cands[0].eager))
			st.Against, st.Verdict = &diff, contest.Verdict(diff)
		}
		l.Strategies = append(l.Strategies, st)
	}
}
