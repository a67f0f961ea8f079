package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"hocket.example/hocket/internal/contest"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/golden"
	_ "hocket.example/hocket/internal/longtest" // collects garbage less often
	"hocket.example/hocket/ir"
)

// tiny returns options with which a benchmark ends quickly.
func tiny(name string) Options {
	o := Options{Ranks: 2, Rounds: 2}
	switch {
	case isCollective(name):
		o.Sizes, o.Algorithms = []int64{4, 1028}, []string{"all"}
	case strings.Contains(name, "gemm"):
		o.Shapes = []Shape{{M: 24, N: 20, K: 12}}
	}
	return o
}

func isCollective(name string) bool {
	return slices.ContainsFunc(benches(), func(b bench) bool { return b.name == name && b.comm })
}

// TestMain makes the tests ignore tables that were tuned on this machine.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "hocket")
	if err != nil {
		panic(err)
	}
	os.Setenv("HOCKET_CACHE", dir)
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// TestEveryBench compares the structure of every report with a golden file: the fields and the lengths of lists, but
// not the measured numbers.
func TestEveryBench(t *testing.T) {
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			rep, err := Run(context.Background(), name, tiny(name))
			if err != nil {
				t.Fatal(err)
			}
			var text bytes.Buffer
			if err := rep.WriteText(&text); err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(text.String(), "bench "+name+": cpu, 2 ranks\n") {
				t.Errorf("the table begins\n%.80s", text.String())
			}
			data, err := json.Marshal(rep)
			if err != nil {
				t.Fatal(err)
			}
			golden.File(t, filepath.Join("testdata", name+".json.txt"), shapeOf(t, data))
		})
	}
}

// shapeOf writes a line for each value of a JSON object: its path and type. shapeOf writes the contents of strings,
// too, except those that depend on measurements.
func shapeOf(t *testing.T, data []byte) string {
	t.Helper()
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	var lines []string
	var walk func(path string, v any)
	walk = func(path string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for k, e := range v {
				walk(path+"."+k, e)
			}
		case []any:
			for i, e := range v {
				walk(fmt.Sprintf("%s[%d]", path, i), e)
			}
		case float64:
			lines = append(lines, path+": number")
		case string:
			if strings.HasSuffix(path, ".verdict") || strings.HasSuffix(path, ".refused") ||
				strings.Contains(path, ".method") {
				v = "words"
			}
			lines = append(lines, path+": "+v)
		default:
			lines = append(lines, fmt.Sprintf("%s: %v", path, v))
		}
	}
	walk("", v)
	slices.Sort(lines)
	return strings.Join(lines, "\n") + "\n"
}

func TestWrongOptions(t *testing.T) {
	for _, c := range []struct {
		bench string
		opts  Options
		want  string
	}{
		{"speed", Options{}, `there is no benchmark "speed"; there are ag-gemm, gemm-rs`},
		{"ag-gemm", Options{Sizes: []int64{4}}, "ag-gemm takes no sizes"},
		{"broadcast", Options{Shapes: []Shape{{1, 1, 1}}}, "broadcast takes no shapes"},
		{"broadcast", Options{Strategies: []string{"exchange"}}, "broadcast takes no strategies"},
		{"broadcast", Options{Sizes: []int64{1024, 6}}, "the size 6 is not possible: sizes are multiples of 4 bytes"},
		{"broadcast", Options{Sizes: []int64{1 << 40}}, "from 4 to 16G"},
		{"broadcast", Options{Ranks: 1}, "broadcast needs 2 ranks or more, not 1"},
		{"ag-gemm", Options{Rounds: -1}, "-1 rounds"},
		{"ag-gemm", Options{Algorithms: []string{"all"}}, "ag-gemm takes no algorithms"},
		{"ag-gemm", Options{Cold: true}, "no cold operands"},
		{"allreduce", Options{Algorithms: []string{"magic"}}, `unknown algorithm "magic"; the algorithms are staged, `},
		{"allgather", Options{Ranks: 4, Sizes: []int64{4}}, "4 bytes are fewer than one element for each of 4 ranks"},
		{"allreduce", Options{Rows: true, Sizes: []int64{1024}}, "the size 1 KiB is not a multiple of a row"},
		{"allreduce", Options{Rows: true, DType: ir.F32}, "sizes in rows are for elements of type bf16 or f16, " +
			"not f32"},
		{"gemm-rs", Options{Ranks: 2, Shapes: []Shape{{4, 4, 7}}}, "the shape 4x4x7 cannot be divided evenly " +
			"among 2 ranks"},
	} {
		_, err := Run(context.Background(), c.bench, c.opts)
		if !errors.Is(err, contest.ErrUsage) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %+v: got %v, want %q", c.bench, c.opts, err, c.want)
		}
	}
	if _, err := Run(context.Background(), "allreduce", Options{Machine: "abacus"}); !errors.Is(err, device.ErrUnsupported) {
		t.Errorf("an unknown machine: %v", err)
	}
	if _, err := Run(context.Background(), "allreduce", Options{Ranks: 1 << 20}); !errors.Is(err, device.ErrUnsupported) {
		t.Errorf("too many ranks: %v", err)
	}
}

func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, name := range []string{"ag-gemm", "allreduce"} {
		if _, err := Run(ctx, name, tiny(name)); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRefusedStrategy checks that a strategy that does not fit a shape is reported, and that the
// others are measured.
func TestRefusedStrategy(t *testing.T) {
	o := tiny("ag-gemm")
	o.Strategies = []string{"sequential", "chunked(2)", "chunked(0)"}
	rep, err := Run(context.Background(), "ag-gemm", o)
	if err != nil {
		t.Fatal(err)
	}
	got := rep.Layers[0].Strategies
	if len(got) != 3 || got[0].Refused != "" || got[0].Against != nil || got[1].Refused != "" ||
		got[1].Against == nil || got[2].Refused == "" {
		t.Errorf("got %+v", got)
	}
	if got[2].Verdict != "" || got[2].Time.Median != 0 {
		t.Errorf("a refused strategy has figures: %+v", got[2])
	}
}

// replayer is the CPU machine with simulated graphs: launching a graph issues the recorded work again.
type replayer struct{ device.Machine }

func (m replayer) Caps() device.Caps {
	c := m.Machine.Caps()
	c.Graphs = true
	return c
}

func (m replayer) Open(ctx context.Context, ranks int) (device.World, error) {
	w, err := m.Machine.Open(ctx, ranks)
	return replayWorld{w}, err
}

type replayWorld struct{ device.World }

func (replayWorld) Capture(issue func() error) (device.Graph, error) {
	return replayGraph{issue: issue}, nil
}

type replayGraph struct {
	device.DefaultGraph
	issue func() error
}

func (g replayGraph) Launch(context.Context) error { return g.issue() }
func (replayGraph) Close() error                   { return nil }

// guesser is a replayer that reports GEMMs whose algorithms were chosen without timing them.
type guesser struct{ replayer }

func (m guesser) Open(ctx context.Context, ranks int) (device.World, error) {
	w, err := m.replayer.Open(ctx, ranks)
	return guessWorld{w.(replayWorld)}, err
}

type guessWorld struct{ replayWorld }

func (guessWorld) Guesses() []string { return []string{"8x4x8 bf16", "4x4x8 bf16"} }

// TestLayerGuesses checks that the report of a layer lists the GEMMs whose algorithms were chosen without timing them.
func TestLayerGuesses(t *testing.T) {
	j := &job{Options: Options{Ranks: 2, Rounds: 1, Shapes: []Shape{{8, 8, 8}}},
		machine: guesser{replayer{cpu.New(cpu.Options{})}}, report: &Report{}}
	if err := j.layers(context.Background(), agGEMM); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"4x4x8 bf16", "8x4x8 bf16"}, j.report.Layers[0].Strategies[0].Guesses); diff != "" {
		t.Error(diff)
	}
	var text strings.Builder
	if err := j.report.WriteText(&text); err != nil ||
		strings.Count(text.String(), "sequential: GEMM 8x4x8 bf16 uses an algorithm that was not timed, ") != 1 {
		t.Errorf("%v\n%s", err, text.String())
	}
}

// TestLayerLoadsByGraph checks that the programs of layers contain no operation that a graph cannot contain.
func TestLayerLoadsByGraph(t *testing.T) {
	for _, k := range []*layerKind{agGEMM, gemmRS, gemmAR, gemmAG} {
		for _, strategy := range []string{"sequential", "chunked(2)", "exchange"} {
			j := &job{Options: Options{Ranks: 2}, machine: replayer{cpu.New(cpu.Options{})}}
			c := &candidate{strategy: strategy, layerText: k.textOf(Shape{8, 8, 8}, 2, layerRepeats)}
			if err := j.load(context.Background(), c); err != nil || c.noReplay != "" {
				t.Errorf("%s, %s: %v %s", k.name, strategy, err, c.noReplay)
			}
			if err := c.close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// noRoom is a machine that claims to support graphs but cannot record any.
type noRoom struct{ device.Machine }

func (m noRoom) Caps() device.Caps { return replayer(m).Caps() }

// TestWithoutGraph checks that, if only the recording of graphs fails, the failure is reported and the other times are
// measured.
func TestWithoutGraph(t *testing.T) {
	j := &job{Options: Options{Ranks: 2, Rounds: 1, Shapes: []Shape{{8, 8, 8}}},
		machine: noRoom{cpu.New(cpu.Options{})}, report: &Report{}}
	if err := j.layers(context.Background(), agGEMM); err != nil {
		t.Fatal(err)
	}
	if st := j.report.Layers[0].Strategies[0]; st.Graph != nil || st.GraphRefused == "" || st.Time.Median == 0 {
		t.Errorf("got %+v", st)
	}
	var text strings.Builder
	if err := j.report.WriteText(&text); err != nil || !strings.Contains(text.String(), "sequential by graph: ") {
		t.Errorf("%v\n%s", err, text.String())
	}
}
