package bench

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"hocket.example/hocket/internal/contest"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/device/cuda"
	"hocket.example/hocket/internal/exec"
	"hocket.example/hocket/internal/tensor"
)

var (
	onCUDA     = flag.Bool("cuda", false, "run on the CUDA machine")
	tracedRuns = flag.Int("traced.rounds", 7, "how often TestTracedLayers measures on the CUDA machine")
)

// tracedMost limits the cost of tracing in this test, as a fraction of the time of a layer in a graph. On two H100,
// tracing costs 0.4 to 4.3 % (docs/trace.md).
const tracedMost = 0.1

// tracing is a layer's program, loaded with one setting of trace options.
type tracing struct {
	name string
	opts exec.Options
	prog *exec.Program
	run  []float64 // host time of a whole run with all its layers, in microseconds
	took []float64 // device time of a layer, in microseconds; empty without a trace
}

// TestTracedLayers measures how much tracing slows down layers. Each program runs alternately without a trace, with
// marks only at the ends of each part, as bench times layers, and with marks around every command, as run --trace does.
// On GPUs, the cost in graphs must not exceed tracedMost, measured by the devices' clocks. The host time for reading
// every mark is only logged.
func TestTracedLayers(t *testing.T) {
	j := &job{Options: Options{Ranks: 2}, machine: cpu.New(cpu.Options{})}
	rounds := 2
	shapes := map[*layerKind][]Shape{agGEMM: {{24, 24, 24}}, gemmRS: {{24, 24, 24}}}
	if *onCUDA {
		var err error
		if j.machine, err = cuda.New(cuda.Options{}); err != nil {
			t.Fatal(err)
		}
		rounds = *tracedRuns
		// The test uses the smallest of the usual shapes, for which the relative cost of marks is largest, and a large
		// shape.
		shapes[agGEMM] = []Shape{{2048, 28672, 8192}, {8192, 28672, 8192}}
		shapes[gemmRS] = []Shape{{2048, 8192, 28672}}
	}
	for _, k := range []*layerKind{agGEMM, gemmRS} {
		for _, strategy := range []string{"sequential", "chunked(4)", "exchange"} {
			for _, graph := range []bool{true, false} {
				if graph && !j.graphs() {
					continue
				}
				issued := map[bool]string{true: "graph", false: "eager"}[graph]
				for _, s := range shapes[k] {
					t.Run(fmt.Sprintf("%s/%s/%s/%s", k.name, strategy, issued, s), func(t *testing.T) {
						tracedLayer(t, j, k, s, strategy, graph, rounds)
					})
				}
			}
		}
	}
}

func tracedLayer(t *testing.T, j *job, k *layerKind, s Shape, strategy string, graph bool, rounds int) {
	c := &candidate{strategy: strategy, layerText: k.textOf(s, j.Ranks, layerRepeats)}
	var err error
	if c.plan, err = build(j.machine, c.text, strategy, j.Ranks); err != nil {
		t.Fatal(err)
	}
	ways := []*tracing{
		{name: "off", opts: exec.Options{Graph: graph}},
		{name: "ends", opts: exec.Options{Graph: graph, Trace: true, Ends: c.part}},
		{name: "all", opts: exec.Options{Graph: graph, Trace: true}},
	}
	for _, w := range ways {
		if w.prog, err = exec.Load(t.Context(), j.machine, c.plan, w.opts); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := w.prog.Close(); err != nil {
				t.Error(err)
			}
		}()
	}
	in, err := randomInputs(c.plan)
	if err != nil {
		t.Fatal(err)
	}
	in["aw"] = in["a"]
	want := k.expected(s, in)
	marks := 0
	const warm = 2 // two warm-up rounds, because the graph is recorded before the second run
	for round := range rounds + warm {
		for i := range ways {
			w := ways[(i+round)%len(ways)]
			if *onCUDA {
				time.Sleep(resting / 2)
			}
			marks = max(marks, w.once(t, c, in, want, round >= warm))
		}
	}
	off, ends, all := ways[0], ways[1], ways[2]
	layer, run := contest.FigureOf(ends.took), contest.FigureOf(off.run)
	t.Logf("%s: layer %.1f µs with marks at the ends, %.1f with all %d marks; graphs %q, %q, %q", s, layer.Median,
		contest.FigureOf(all.took).Median, marks, off.prog.Stats().Graph, ends.prog.Stats().Graph,
		all.prog.Stats().Graph)
	t.Logf("run %.0f µs without a trace, %.0f with marks at the ends, %.0f with all", run.Median,
		contest.FigureOf(ends.run).Median, contest.FigureOf(all.run).Median)
	logCost := func(what string, diff contest.Figure, of float64) float64 {
		t.Logf("tracing costs %s: %+.1f µs ± %.1f, %+.2f %%", what, diff.Median, diff.Spread, 100*diff.Median/of)
		return diff.Median / of
	}
	logCost("a run, by the host's clock", contest.FigureOf(contest.Differences(all.run, off.run)), run.Median)
	diff := contest.FigureOf(contest.Differences(all.took, ends.took))
	share := logCost("a layer, by the devices' clocks", diff, layer.Median)
	if *onCUDA && graph && share > tracedMost && diff.Median > diff.Spread {
		t.Errorf("more than %.0f %%", 100*tracedMost)
	}
}

// once runs the program, and records its times if counts is set. once returns the number of start and end marks in the
// trace.
func (w *tracing) once(t *testing.T, c *candidate, in map[string]*tensor.Tensor, want []element, counts bool) int {
	t.Helper()
	began := time.Now()
	res, err := w.prog.Run(t.Context(), in)
	took := time.Since(began)
	if err == nil {
		err = compare(want, res.Outputs)
	}
	if err != nil {
		t.Fatalf("tracing %s: %v", w.name, err)
	}
	if (res.Trace != nil) != w.opts.Trace {
		t.Fatalf("tracing %s: trace %v", w.name, res.Trace)
	}
	if !w.opts.Trace {
		if counts {
			w.run = append(w.run, float64(took)/1e3)
		}
		return 0
	}
	layer, err := c.chain(res.Trace)
	if err != nil {
		t.Fatal(err)
	}
	if counts {
		w.run, w.took = append(w.run, float64(took)/1e3), append(w.took, layer)
	}
	return 2 * len(res.Trace.Events)
}
