package bench

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/contest"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/exec"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/internal/trace"
	"hocket.example/hocket/ir"
)

func TestParseShape(t *testing.T) {
	if s, err := ParseShape("8192x28672x1"); err != nil || s != (Shape{8192, 28672, 1}) ||
		s.String() != "8192x28672x1" {
		t.Errorf("got %v, %v", s, err)
	}
	for _, text := range []string{"", "1x2", "1x2x", "1x2x3x4", "1x2x3 ", "0x1x1", "-1x2x3", "1x2x99999999", "axbxc",
		"1 x2x3."} {
		if s, err := ParseShape(text); !errors.Is(err, contest.ErrUsage) {
			t.Errorf("%q: got %v, %v", text, s, err)
		}
	}
}

// TestTextRepeats checks that the lines recorded for the layers contain as many GEMMs as requested.
func TestTextRepeats(t *testing.T) {
	for _, k := range []*layerKind{agGEMM, gemmRS, gemmAR, gemmAG} {
		for _, strategy := range []string{"sequential", "exchange"} {
			lt := k.textOf(Shape{24, 12, 36}, 3, 4)
			p, err := build(nil, lt.text, strategy, 3)
			if err != nil {
				t.Fatalf("%s: %v\n%s", k.name, err, lt.text)
			}
			alone, behind, layers := products(p, lt.before), products(p, lt.behind), products(p, lt.layers)
			want := 4 * 3
			switch {
			case strategy == "exchange" && k == gemmAG:
				want *= 4 // pieces of a rank's rows
			case strategy == "exchange":
				want *= 3 // a block for each rank
			}
			if alone != 3*layerRepeats || behind != alone || layers != want {
				t.Errorf("%s, %s: %d and %d products alone, %d in layers; want %d and %d", k.name, strategy, alone,
					behind, layers, 3*layerRepeats, want)
			}
		}
	}
}

// products counts the matrix multiplications on the given lines.
func products(p *plan.Plan, lines [2]int32) int {
	n := 0
	for i := range p.Cmds {
		c := &p.Cmds[i]
		if line := p.Sites[c.Site].Pos.Line; c.Kind == plan.Compute && c.Op == ir.OpLinear && line >= lines[0] &&
			line <= lines[1] {
			n++
		}
	}
	return n
}

// TestWindow checks that window measures the slowest rank from the first to the last command on the given lines,
// including gaps, but without preceding waits. The timed layers must be measured from the end of the untimed layer
// before them.
func TestWindow(t *testing.T) {
	p := &plan.Plan{Ranks: 2, Sites: []plan.Site{{Pos: ir.Pos{Line: 3}}, {Pos: ir.Pos{Line: 5}},
		{Pos: ir.Pos{Line: 6}}},
		Cmds: []plan.Cmd{{Site: 0}, {Site: 1}, {Site: 2}, {Site: 1, Rank: 1}, {Site: 2, Rank: 1}}}
	c := &candidate{plan: p}
	tr := &trace.Trace{Ranks: 2, Events: []trace.Event{
		{ID: 0, Start: 0, End: 1e6},
		{ID: 2, Start: 15_000, End: 20_000}, {ID: 1, Start: 10_000, End: 12_000},
		{ID: 3, Rank: 1, Start: 10_000, End: 30_000}, {ID: 4, Rank: 1, Start: 30_000, End: 34_000},
		{ID: 1, Class: trace.Sync, Start: 0, End: 10_000}, // a wait command, which begins at the start of the run
	}}
	if got, err := c.window(tr, [2]int32{5, 6}); err != nil || got != 24.0/layerRepeats {
		t.Errorf("got %v, %v", got, err)
	}
	if got, err := c.window(tr, [2]int32{6, 6}); err != nil || got != 5.0/layerRepeats {
		t.Errorf("got %v, %v", got, err)
	}
	c.first, c.layers = [2]int32{5, 5}, [2]int32{6, 6}
	if got, err := c.chain(tr); err != nil || got != 8.0/layerRepeats { // rank 0 takes longest: from 12 to 20 µs
		t.Errorf("got %v, %v", got, err)
	}
	c.first = [2]int32{9, 9}
	if got, err := c.chain(tr); err == nil {
		t.Errorf("a chain without a layer before it has a length: %v", got)
	}
	if _, err := c.window(tr, [2]int32{9, 9}); err == nil {
		t.Error("a window without commands has a length")
	}
	if _, err := c.window(nil, [2]int32{5, 6}); err == nil {
		t.Error("a window of nothing has a length")
	}
}

// run runs a layer once on the CPU machine.
func run(t *testing.T, k *layerKind, s Shape, ranks int, strategy string) ([]element, map[string]*tensor.Tensor) {
	t.Helper()
	ctx := context.Background()
	p, err := build(nil, k.textOf(s, ranks, 2).text, strategy, ranks)
	if err != nil {
		t.Fatal(err)
	}
	prog, err := exec.Load(ctx, cpu.New(cpu.Options{}), p, exec.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer prog.Close()
	in, err := randomInputs(p)
	if err != nil {
		t.Fatal(err)
	}
	in["aw"] = in["a"]
	res, err := prog.Run(ctx, in)
	if err != nil {
		t.Fatal(err)
	}
	return k.expected(s, in), res.Outputs
}

// TestCompare checks that right results are accepted under every strategy, and that a wrong element is detected if the
// part of a rank is missing in its sum, or if it was swapped with another element.
func TestCompare(t *testing.T) {
	for _, k := range []*layerKind{agGEMM, gemmRS, gemmAR, gemmAG} {
		for _, strategy := range []string{"sequential", "chunked(3)", "exchange"} {
			want, out := run(t, k, Shape{36, 48, 60}, 3, strategy)
			if len(want) != 2*perSample {
				t.Fatalf("%d elements", len(want))
			}
			if err := compare(want, out); err != nil {
				t.Errorf("%s, %s: %v", k.name, strategy, err)
			}
			y := out["s1"]
			floats := floats(y)
			for i := range floats {
				floats[i] = -floats[i]
			}
			tensor.FromFloat64(y.Data, floats, y.DType)
			if err := compare(want, out); !errors.Is(err, ErrDiffers) || !strings.Contains(err.Error(), "y[") {
				t.Errorf("%s, %s: a wrong sign passes: %v", k.name, strategy, err)
			}
			floats[0] = math.NaN()
			tensor.FromFloat64(y.Data, floats, y.DType)
			if err := compare(want, out); !errors.Is(err, ErrDiffers) {
				t.Errorf("a NaN passes: %v", err)
			}
			delete(out, "s1")
			if err := compare(want, out); !errors.Is(err, ErrDiffers) {
				t.Errorf("a missing result passes: %v", err)
			}
		}
	}
}

// TestRound checks that runs are timed by the marks in their traces, and that their results are compared. In this test
// the program that would be replayed as a graph on GPUs runs without a graph.
func TestRound(t *testing.T) {
	s, k := Shape{24, 24, 24}, agGEMM
	j := &job{Options: Options{Ranks: 2}, machine: cpu.New(cpu.Options{})}
	c := &candidate{strategy: "exchange", layerText: k.textOf(s, 2, layerRepeats)}
	err := j.load(t.Context(), c)
	if err == nil {
		c.replayed, err = exec.Load(t.Context(), j.machine, c.plan, exec.Options{Trace: true})
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.close(); err != nil {
			t.Error(err)
		}
	}()
	in, err := randomInputs(c.plan)
	if err != nil {
		t.Fatal(err)
	}
	in["aw"] = in["a"]
	want := k.expected(s, in)
	for round := range 4 {
		if err := c.round(t.Context(), 0, in, want, round > 1); err != nil {
			t.Fatal(err)
		}
	}
	for name, list := range map[string][]float64{"GEMM alone": c.gemm, "eager": c.eager, "over": c.over,
		"graph": c.graphTime, "graph over": c.graphBound} {
		if len(list) != 2 || !(slices.Min(list) > 0) {
			t.Errorf("%s: %v", name, list)
		}
	}
	if c.noReplay != "" {
		t.Fatal(c.noReplay)
	}
	want[5].want += 3 * want[5].bound
	for _, p := range []*exec.Program{c.prog, c.replayed} {
		if _, _, err := c.time(t.Context(), p, in, want, true); !errors.Is(err, ErrDiffers) {
			t.Errorf("a wrong result passes: %v", err)
		}
	}
}

func TestWire(t *testing.T) {
	// Each of four ranks receives 3/4 of 8192·8192 bf16 elements at 396 GB/s: once for an all-gather, twice for an
	// all-reduce.
	s := Shape{M: 8192, N: 28672, K: 8192}
	if got := agGEMM.wire(s, 4, 396); math.Abs(got-254.2) > 0.1 {
		t.Errorf("ag: %v", got)
	}
	if got := gemmAR.wire(s, 4, 396); math.Abs(got-1779.5) > 0.2 {
		t.Errorf("ar: %v", got)
	}
	if got := gemmRS.wire(s, 4, 0); got != 0 {
		t.Errorf("without a rate: %v", got)
	}
}

// TestTeraFLOPs uses a layer of 32768×8192×16384, which needs 2·2^15·2^13·2^14 operations. Each of
// eight ranks computes an eighth.
func TestTeraFLOPs(t *testing.T) {
	l := &Layer{Shape: Shape{M: 32768, N: 8192, K: 16384}}
	if got := l.teraFLOPs(8, 1000); got != 1099.511627776 { // 2^43 operations per layer, an eighth of them in a millisecond
		t.Errorf("%v TFLOP/s", got)
	}
	if got := l.teraFLOPs(8, 0); got != 0 {
		t.Errorf("%v TFLOP/s in no time", got)
	}
}
