package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"hocket.example/hocket/internal/exec"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/internal/trace"
)

// Layer is one shape of a layer under each strategy. Times are microseconds a
// layer, the slowest rank's.
type Layer struct {
	Shape
	// GEMM is the product alone, on all ranks at once.
	GEMM Figure `json:"gemm_us"`
	// Wire is the time that what each rank receives takes at the rate of a copy;
	// Bound the longer of both.
	Wire       float64         `json:"wire_us"`
	Bound      float64         `json:"bound_us"`
	Strategies []StrategyTimes `json:"strategies"`
}

// StrategyTimes is a layer under one strategy.
type StrategyTimes struct {
	Strategy string `json:"strategy"`
	// Refused says why it cannot be used; empty where it can.
	Refused string `json:"refused,omitempty"`
	Time    Figure `json:"us"`
	// OverBound is the time over the bound of the same run.
	OverBound Figure `json:"over_bound"`
	// Against is the paired difference to sequential, Verdict what it supports.
	Against *Figure `json:"minus_sequential_us,omitempty"`
	Verdict string  `json:"verdict,omitempty"`
	// Checked is how many elements of results were recomputed.
	Checked int `json:"checked"`
}

// layerRepeats is how many layers are chained in a run.
const layerRepeats = 8

func layersOf(k *layerKind) func(*job, context.Context) error {
	return func(j *job, ctx context.Context) error { return j.layers(ctx, k) }
}

func (j *job) layers(ctx context.Context, k *layerKind) error {
	shapes := j.Shapes
	if shapes == nil {
		shapes = j.usualShapes(k)
	}
	wire, err := j.wireRate(ctx, j.wireBytes())
	if err != nil {
		return err
	}
	j.report.Wire = &wire
	j.method("bf16; x and w are products of random matrices of rank %d, made on the devices; results sampled and recomputed in f64", inner)
	j.method("one run: the GEMM alone %d times on all ranks, a barrier, the layer %d times, without host synchronisation; time from the first to the last mark of those commands, so without uploads; the slowest rank", layerRepeats, layerRepeats)
	j.method("issued eagerly; strategies in turns in one process; median of %d rounds after one to warm up; bound = max(GEMM alone of the same run, bytes received / rate of one copy)", j.Rounds)
	for _, s := range shapes {
		l, err := j.layer(ctx, k, s, wire.Median)
		if err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
		j.report.Layers = append(j.report.Layers, *l)
	}
	return nil
}

// wireBytes is what the rate of a copy is measured with.
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
	if k == agGEMM {
		shapes = append(shapes, Shape{8192, 10240, 8192})
	}
	return shapes
}

// strategies lists what is measured, sequential first.
func (j *job) strategies() []string {
	list := j.Strategies
	if list == nil {
		list = []string{"chunked(4)", "exchange"}
	}
	list = slices.DeleteFunc(slices.Clone(list), func(s string) bool { return s == "sequential" || s == "" })
	return append([]string{"sequential"}, list...)
}

// candidate is a layer's program under one strategy, loaded.
type candidate struct {
	layerText
	strategy string
	refused  string
	plan     *plan.Plan
	prog     *exec.Program

	gemm, time, over []float64
	checked          int
}

// layer measures one shape.
func (j *job) layer(ctx context.Context, k *layerKind, s Shape, rate float64) (l *Layer, err error) {
	var cands []*candidate
	defer func() {
		for _, c := range cands {
			if c.prog != nil {
				err = errors.Join(err, c.prog.Close())
			}
		}
	}()
	for _, name := range j.strategies() {
		c := &candidate{strategy: name, layerText: k.textOf(s, j.Ranks, layerRepeats)}
		cands = append(cands, c)
		if c.plan, err = build(c.text, name, j.Ranks); err != nil {
			if name == "sequential" {
				return nil, err
			}
			c.refused, err = err.Error(), nil
			continue
		}
		if c.prog, err = exec.Load(ctx, j.machine, c.plan, exec.Options{Trace: true}); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	inputs, err := randomInputs(cands[0].plan)
	if err != nil {
		return nil, err
	}
	inputs["aw"] = inputs["a"] // the whole x is the shards' x
	l = &Layer{Shape: s, Wire: k.wire(s, j.Ranks, rate)}
	for round := range j.Rounds + 1 {
		for _, c := range cands {
			if c.prog == nil {
				continue
			}
			if err := c.round(ctx, k, l, inputs, round == 0); err != nil {
				return nil, fmt.Errorf("%s: %w", c.strategy, err)
			}
		}
	}
	l.summarize(cands)
	return l, nil
}

// wire returns the microseconds that what a rank receives takes at rate GB/s.
func (k *layerKind) wire(s Shape, ranks int, rate float64) float64 {
	const size = 2 // bf16
	if rate <= 0 {
		return 0
	}
	return k.trips * float64(k.moves(s)*size) * float64(ranks-1) / float64(ranks) / rate / 1e3
}

// round runs the candidate once; the first run is checked and not counted.
func (c *candidate) round(ctx context.Context, k *layerKind, l *Layer, inputs map[string]*tensor.Tensor, first bool) error {
	res, err := c.prog.Run(ctx, inputs)
	if err != nil {
		return err
	}
	if first {
		c.checked, err = k.check(l.Shape, inputs, res.Outputs)
		return err
	}
	gemm, err := c.window(res.Trace, c.alone)
	if err != nil {
		return err
	}
	layer, err := c.window(res.Trace, c.layers)
	if err != nil {
		return err
	}
	c.gemm, c.time = append(c.gemm, gemm), append(c.time, layer)
	c.over = append(c.over, layer/max(gemm, l.Wire))
	return nil
}

// window returns microseconds a repetition from the first beginning to the last
// end of the commands that come from some lines, of the rank with the most.
func (c *candidate) window(t *trace.Trace, lines [2]int32) (float64, error) {
	if t == nil {
		return 0, errors.New("the machine tells no times")
	}
	type span struct {
		lo, hi int64
		any    bool
	}
	spans := make([]span, c.plan.Ranks)
	for i := range t.Events {
		e := &t.Events[i]
		line := c.plan.Sites[c.plan.Cmds[e.ID].Site].Pos.Line
		if line < lines[0] || line > lines[1] {
			continue
		}
		s := &spans[e.Rank]
		if !s.any {
			*s = span{e.Start, e.End, true}
		}
		s.lo, s.hi = min(s.lo, e.Start), max(s.hi, e.End)
	}
	longest := int64(0)
	for _, s := range spans {
		longest = max(longest, s.hi-s.lo)
	}
	if longest == 0 {
		return 0, errors.New("no time passed that the machine can tell: take larger shapes")
	}
	return float64(longest) / 1e3 / layerRepeats, nil
}

// summarize turns the candidates' samples into figures.
func (l *Layer) summarize(cands []*candidate) {
	var gemm []float64
	for _, c := range cands {
		gemm = append(gemm, c.gemm...)
	}
	l.GEMM = figure(gemm)
	l.Bound = max(l.GEMM.Median, l.Wire)
	for i, c := range cands {
		st := StrategyTimes{Strategy: c.strategy, Refused: c.refused, Time: figure(c.time), OverBound: figure(c.over), Checked: c.checked}
		if i > 0 && c.refused == "" {
			diff := figure(differences(c.time, cands[0].time))
			st.Against, st.Verdict = &diff, verdict(diff)
		}
		l.Strategies = append(l.Strategies, st)
	}
}
