package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/contest"
	"hocket.example/hocket/internal/golden"
	"hocket.example/hocket/internal/machine"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/sim"
	"hocket.example/hocket/internal/trace"
)

// stepText is a program with weights of three kinds, state, integers and a result.
const stepText = `dim T = 4
mesh tp[2]
func step(%ids: i32[T], %table: f32[8, 16], %w: f32[12/tp, 16], %odd: f32[16], %kept: inout f32[T, 16]) -> f32[T, 12/tp] {
  %x = embedding %ids, %table
  %a = rms_norm %x, %odd
  copy %a into %kept
  %b = add %a, %x
  %y = linear %b, %w
  return %y
}
`

func parseStep(t *testing.T) *hocket.Program {
	t.Helper()
	p, err := hocket.Parse("step.hkt", stepText)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestStepReport compares a program's report with a golden file, without the numbers.
func TestStepReport(t *testing.T) {
	rep, err := RunStep(context.Background(), parseStep(t), StepOptions{Options: Options{Rounds: 1}, Runs: 2, Memory: 3,
		Binding: hocket.Binding{Dims: map[string]int64{"T": 6}}})
	if err != nil {
		t.Fatal(err)
	}
	if rep.Step.Rates.Memory != 3 {
		t.Errorf("rates %+v", rep.Step.Rates)
	}
	if s := rep.Step; !slices.Equal(s.Weights, []string{"table", "w", "odd"}) ||
		!slices.Equal(s.State, []string{"ids", "kept"}) {
		t.Errorf("weights %v, device tensors %v", s.Weights, s.State)
	}
	for _, w := range rep.Step.Ways {
		lost := math.Inf(1)
		for _, o := range w.Ops {
			if o.Lost > lost {
				t.Errorf("%s: %s loses %v, but is listed after a statement that loses %v", w.Strategy, o.Op, o.Lost, lost)
			}
			lost = o.Lost
		}
	}
	slices.SortFunc(rep.Step.Ways[0].Ops, func(a, b OpTime) int { return int(a.Line - b.Line) })
	rep.Step.Ways = rep.Step.Ways[:1]
	rep.Step.Ways[0].Verdict = ""
	rep.Step.Ways[0].OverBound = 1 // times of two runs on a busy machine may be inconclusive
	var text bytes.Buffer
	if err := rep.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"step T=6\n", "only their order of magnitude is meaningful", "weights: table w odd\n"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, text.String())
		}
	}
	data, err := json.Marshal(rep)
	if err != nil {
		t.Fatal(err)
	}
	golden.File(t, filepath.Join("testdata", "step.json.txt"), shapeOf(t, data))
}

// TestStepTimes checks that BackToBack is the time that further runs add to a batch, that the rest
// of a single run is the host's time, and that ways are compared with the first way that is issued
// alike.
func TestStepTimes(t *testing.T) {
	clock := time.Unix(0, 0)
	s := &stepJob{StepOptions: StepOptions{Runs: 5}, job: &job{Options: Options{Rounds: 3}},
		now: func() time.Time { return clock }}
	s.step.BoundUS = 4
	add := func(strategy, issued string, host, run time.Duration) {
		w := &stepWay{StepTimes: StepTimes{Strategy: strategy, Issued: issued}}
		w.run = func(_ context.Context, n int) ([]string, error) {
			clock = clock.Add(host + time.Duration(n)*run)
			return []string{"1x2x3 bf16"}, nil
		}
		s.ways = append(s.ways, w)
	}
	add("sequential", "graph", 30*time.Microsecond, 10*time.Microsecond)
	add("sequential", "eager", 40*time.Microsecond, 20*time.Microsecond)
	add("auto", "graph", 30*time.Microsecond, 8*time.Microsecond)
	s.ways = append(s.ways, &stepWay{StepTimes: StepTimes{Strategy: "ahead", Issued: "graph", Refused: "no"}})
	add("noisy", "eager", 100*time.Microsecond, -10*time.Microsecond) // a batch takes no longer than a run
	if err := s.measure(context.Background()); err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct{ back, single, host, over float64 }{{10, 40, 30, 2.5}, {20, 60, 40, 5},
		{8, 38, 30, 2}} {
		w := s.ways[i]
		if w.BackToBack.Median != want.back || w.Single.Median != want.single || w.Host.Median != want.host ||
			w.OverBound != want.over {
			t.Errorf("%s, %s: %+v; want %+v", w.Strategy, w.Issued, w.StepTimes, want)
		}
		if len(w.Guesses) != 1 {
			t.Errorf("guesses %v", w.Guesses)
		}
	}
	if a := s.ways[2].Against; a == nil || a.Median != -2 || s.ways[2].Verdict != "faster" || s.ways[1].Against != nil {
		t.Errorf("auto against sequential by graph: %+v; eager: %+v", s.ways[2].StepTimes, s.ways[1].StepTimes)
	}
	if noisy := s.ways[4]; noisy.conclusive() || noisy.OverBound != 0 || noisy.Verdict != "" {
		t.Errorf("times that are inconclusive: %+v", noisy.StepTimes)
	}
	rep := &Report{Step: &Step{Ways: []StepTimes{s.ways[1].StepTimes, s.ways[4].StepTimes}}}
	var text strings.Builder
	if err := rep.WriteText(&text); err != nil || !strings.Contains(text.String(), "-: a batch took no longer than a run") ||
		strings.Contains(text.String(), "-10.0 ±0.0  ") {
		t.Errorf("%v, printed as\n%s", err, &text)
	}
	broken := errors.New("broken")
	s.ways[1].run = func(context.Context, int) ([]string, error) { return nil, broken }
	if err := s.measure(context.Background()); !errors.Is(err, broken) ||
		!strings.Contains(err.Error(), "sequential, eager") {
		t.Errorf("a run failed with %v", err)
	}
}

// TestOpTimes checks that times of a statement are summed over its executions on a rank, that the
// rank with the largest sum is reported, and that commands in one launch have one bound.
func TestOpTimes(t *testing.T) {
	p, err := build(nil, stepLoop, "", 2)
	if err != nil {
		t.Fatal(err)
	}
	m, err := machine.Load("cpu")
	if err != nil {
		t.Fatal(err)
	}
	of := func(rank int32, op string) (list []int) {
		for i := range p.Cmds {
			if p.Cmds[i].Rank == rank && p.Cmds[i].Kind == plan.Compute && p.Cmds[i].Op.String() == op {
				list = append(list, i)
			}
		}
		return list
	}
	linear, silu, mul := of(1, "linear"), of(1, "silu"), of(1, "mul")
	if len(linear) != 3 || len(silu) != 3 {
		t.Fatalf("%d linears and %d silus on rank 1\n%s", len(linear), len(silu), p)
	}
	members := func(cmd int) []int {
		for i := range silu {
			if cmd == silu[i] || cmd == mul[i] {
				return []int{silu[i], mul[i]}
			}
		}
		return nil
	}
	list := newOpTimes(p, members, sim.NewBounds(p, m))
	event := func(rank, cmd int, name string, us int64, class trace.Class) trace.Event {
		return trace.Event{Rank: rank, ID: int64(cmd), Name: name, Class: class, Start: 5000, End: 5000 + us*1000}
	}
	for _, each := range []int64{7, 9, 100} {
		tr := &trace.Trace{Ranks: 2, Events: []trace.Event{event(0, of(0, "linear")[0], "linear", 5, trace.Compute),
			event(1, 0, "input", 99, trace.IO)}}
		for i := range linear {
			tr.Events = append(tr.Events, event(1, linear[i], "linear", each, trace.Compute),
				event(1, mul[i], "silu+mul", 1, trace.Compute))
		}
		list.add(tr)
	}
	ops := list.ops()
	if len(ops) != 2 {
		t.Fatalf("%d statements: %+v", len(ops), ops)
	}
	// In f32: 4·16 elements of x, 8·16 of w, 4·8 of the result.
	per := m.MemoryBound(4 * (4*16 + 8*16 + 4*8))
	if flops := m.ComputeBound(p.Cmds[linear[0]].Outs[0].DType, 2*4*8*16); flops > per {
		t.Fatalf("bounded by compute: %v > %v", flops, per)
	}
	l := ops[0]
	if l.Op != "linear" || l.Times != 3 || l.US.Median != 27 || math.Abs(l.BoundUS-3*per) > 1e-9 ||
		l.BoundBy != "memory" ||
		math.Abs(l.Lost-(27-3*per)) > 1e-9 || l.Shapes != "f32[4,16], f32[8,16] -> f32[4,8]" {
		t.Errorf("linear: %+v; want 3 times %v of bound", l, per)
	}
	// One launch reads both operands and writes the product; the result of silu stays within the
	// launch.
	if g := ops[1]; g.Op != "silu+mul" || g.US.Median != 3 || math.Abs(g.BoundUS-3*m.MemoryBound(4*3*4*8)) > 1e-9 {
		t.Errorf("silu+mul: %+v", g)
	}
}

const stepLoop = `dim T = 4
mesh tp[2]
func loop(%x: f32[T, 16], %w: f32[16/tp, 16], %u: f32[T, 16/tp]) -> f32[T, 16/tp] {
  %y = alloc f32[T, 8]
  %ul = local %u
  %wl = local %w
  for %i in 0..3 {
    %g = linear %x, %wl
    %s = silu %g
    mul %s, %ul into %y
  }
  %z: f32[T, 16/tp] = claim %y
  return %z
}
`

func TestWrongStepOptions(t *testing.T) {
	p := parseStep(t)
	for _, o := range []StepOptions{
		{Options: Options{Rounds: -1}}, {Runs: 1}, {Describe: "nowhere"}, {Runs: -3}, {Memory: -1},
	} {
		if _, err := RunStep(context.Background(), p, o); !errors.Is(err, contest.ErrUsage) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}
