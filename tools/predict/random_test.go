package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"hocket.example/hocket/internal/bench"
	"hocket.example/hocket/internal/contest"
)

// TestDrawn: layers that are drawn divide over two ranks, are not too large, and come again from their seed.
func TestDrawn(t *testing.T) {
	all, again := draw(7, 60), draw(7, 60)
	for i, d := range all {
		if again[i].op != d.op || again[i].Shape != d.Shape {
			t.Errorf("%d: %v, then %v", i, d, again[i])
		}
		if d.M < 64 || d.M > 16384 || d.M%64 != 0 ||
			min(d.N, d.K) < 1024 || max(d.N, d.K) > 28672 || d.N%512+d.K%512 != 0 {
			t.Errorf("%s", d.Shape)
		}
	}
	if draw(8, 1)[0].Shape == all[0].Shape {
		t.Error("another seed draws the same")
	}
}

// TestVerdict: exactly those layers are reported that are slower than sequential by more than 2 % and the spread in
// both passes.
func TestVerdict(t *testing.T) {
	layer := func(sequential, auto, graphSequential, graphAuto, spread float64) bench.Layer {
		times := func(name string, eager, graph float64) bench.StrategyTimes {
			return bench.StrategyTimes{Strategy: name, Time: contest.Figure{Median: eager, Spread: spread},
				Graph: &contest.Figure{Median: graph, Spread: spread}}
		}
		return bench.Layer{Strategies: []bench.StrategyTimes{times("sequential", sequential, graphSequential),
			times("auto", auto, graphAuto)}}
	}
	twice := &drawn{op: "gemm-ar", Shape: bench.Shape{M: 64, N: 1024, K: 1024}, auto: "exchange"}
	twice.take(layer(100, 104, 100, 80, 1))
	twice.take(layer(100, 104, 100, 80, 1))
	once := &drawn{op: "gemm-rs", auto: "exchange"}
	once.take(layer(100, 104, 100, 104, 1))
	once.take(layer(100, 104, 100, 104, 3)) // within its spread
	same := &drawn{op: "ag-gemm", auto: "sequential"}
	var b bytes.Buffer
	judgeRandom(&b, []*drawn{twice, once, same})
	got := b.String()
	for _, want := range []string{"3 layers; auto is sequential for 1\n", "eager: 2 measured, auto 0.962 times as fast",
		"graph: 2 measured, auto 1.096 times as fast",
		"gemm-ar 64x1024x1024 by exchange: 0.962, found slower 2 times"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if strings.Count(got, "spread: 1\n") != 1 || strings.Count(got, "spread: 0\n") != 1 {
		t.Errorf("one is slower twice, eager:\n%s", got)
	}
	if strings.Contains(got, "undecided") {
		t.Errorf("all were measured:\n%s", got)
	}
	cut := &drawn{op: "gemm-ar", auto: "exchange"}
	cut.take(layer(100, 130, 100, 80, 1))
	b.Reset()
	judgeRandom(&b, []*drawn{cut, {op: "gemm-rs", auto: "exchange"}, same})
	eager, graph, _ := strings.Cut(b.String(), "graph:")
	if !strings.Contains(eager, "undecided: 2,") || !strings.Contains(graph, "undecided: 1,") {
		t.Errorf("a pass was cut short:\n%s", &b)
	}
}

// TestRandom: on the CPU machine auto is sequential, and nothing is timed; a layer that was has a row for each time.
func TestRandom(t *testing.T) {
	j := job{device: "cpu", ranks: 2, rounds: 1, most: time.Hour, shapes: "gemm-ar 1024x512x256",
		row: "2xH100 1 abc d", log: "e"}
	var b bytes.Buffer
	if err := j.random(t.Context(), &b); err != nil || strings.Count(b.String(), "\n") != 1 {
		t.Fatalf("%v\n%s", err, &b)
	}
	f := contest.Figure{Median: 10, Spread: 1}
	l := bench.Layer{Shape: bench.Shape{M: 64, N: 1024, K: 2048}, GEMM: f, Strategies: []bench.StrategyTimes{
		{Strategy: "sequential", Time: f, Graph: &f}, {Strategy: "auto", Time: f, Graph: &f}}}
	j.layerRows(&b, &drawn{op: "gemm-rs", Shape: l.Shape}, &l)
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	if len(lines) != 5 {
		t.Fatalf("%d lines\n%s", len(lines), &b)
	}
	want := "2xH100 1 abc d hocket gemm-rs 64 1024 2048 2 auto graph 10.0 1.0 - - 10.0 1.0 - e"
	if !slices.Contains(lines, strings.ReplaceAll(want, " ", "\t")) {
		t.Errorf("no %q in\n%s", want, &b)
	}
	j.shapes = "gemm-ag 3x5x7"
	if err := j.random(t.Context(), &b); err == nil {
		t.Error("a shape that does not divide is measured")
	}
}
