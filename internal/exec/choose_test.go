package exec

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/tensor"
)

// waysMachine is a CPU machine with graphs that have several forms. A launch of a graph issues the recorded commands
// again, and takes as long as the test sets for the form.
type waysMachine struct {
	device.Machine
	records func() // called when a graph is recorded; may be nil
	slow    map[string]time.Duration
	runs    *[]string // the form of each launch
	prog    *Program  // the program whose run is being executed
	fails   error     // the error of launches whose form has a negative duration
}

type waysWorld struct {
	device.World
	m *waysMachine
}

type waysGraph struct {
	m     *waysMachine
	names []string
	use   int
	issue func() error
}

func (m *waysMachine) Caps() device.Caps {
	c := m.Machine.Caps()
	c.Graphs = true
	return c
}

func (m *waysMachine) Open(ctx context.Context, ranks int) (device.World, error) {
	w, err := m.Machine.Open(ctx, ranks)
	return &waysWorld{w, m}, err
}

func (w *waysWorld) Capture(issue func() error) (device.Graph, error) {
	if w.m.records != nil {
		w.m.records()
	}
	return &waysGraph{m: w.m, names: []string{"slow", "quick", "middling"}, issue: issue}, nil
}

func (g *waysGraph) Forms() []string  { return g.names }
func (g *waysGraph) Choose(i int)     { g.use = i }
func (g *waysGraph) Keep(i int) error { g.names, g.use = g.names[i:i+1], 0; return nil }
func (g *waysGraph) Close() error     { return nil }
func (g *waysGraph) Launch(context.Context) error {
	name := g.names[g.use]
	*g.m.runs = append(*g.m.runs, name)
	time.Sleep(g.m.slow[name])
	if g.m.slow[name] < 0 {
		return g.m.fails
	}
	g.m.prog.issuer.run-- // issuing the commands again would increment the number of the run a second time
	defer func() { g.m.prog.issuer.run++ }()
	return g.issue()
}

// ranOnce returns a program with Graph set after its first run, which is not a replay, and the program's inputs.
func (m *waysMachine) ranOnce(t *testing.T, grace time.Duration) (*Program, map[string]*tensor.Tensor) {
	t.Helper()
	pr := programs["chunked"]
	prog := loadOn(t, m, pr.plan(2, ""), Options{Graph: true, Grace: grace})
	m.prog = prog
	in := pr.inputs(t, 2, 1)
	if _, err := prog.Run(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	return prog, in
}

// TestChoosesTheFastest checks that the fastest of several forms of a graph is found before the second run, with that
// run's inputs, and then used, and that the error of a form that fails names the form.
func TestChoosesTheFastest(t *testing.T) { synctest.Test(t, testChoosesTheFastest) }

func testChoosesTheFastest(t *testing.T) {
	var runs []string
	m := &waysMachine{Machine: cpu.New(cpu.Options{}), runs: &runs, fails: errors.New("this way is closed"),
		slow: map[string]time.Duration{"slow": 9 * time.Millisecond, "quick": time.Millisecond, "middling": 5 * time.Millisecond}}
	pr := programs["chunked"]
	prog, err := Load(t.Context(), m, pr.plan(2, ""), Options{Graph: true})
	if err != nil {
		t.Fatal(err)
	}
	defer prog.Close()
	m.prog = prog
	in := pr.inputs(t, 2, 1)
	first, err := prog.Run(t.Context(), in)
	if err != nil || len(runs) > 0 || prog.Stats().Graph != "" {
		t.Fatalf("the first run must not be a replay: %v, %v", runs, err)
	}
	for range 2 {
		got, err := prog.Run(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range first.Outputs {
			if string(got.Outputs[name].Data) != string(want.Data) {
				t.Errorf("%s: the graph's result has different bits", name)
			}
		}
	}
	if n := len(runs); n != 3*trialRounds+2 || runs[n-1] != "quick" || runs[n-2] != "quick" || prog.Stats().Graph != "quick" {
		t.Errorf("launched %v, chose %q", runs, prog.Stats().Graph)
	}
	runs, m.slow["slow"] = nil, longRun+1
	long, err := Load(t.Context(), m, pr.plan(2, ""), Options{Graph: true})
	if err != nil {
		t.Fatal(err)
	}
	defer long.Close()
	for m.prog = long; err == nil && len(runs) < 3; {
		_, err = long.Run(t.Context(), in)
	}
	if err != nil || long.Stats().Graph != "slow" || slices.Contains(runs, "quick") {
		t.Errorf("a long run was tried in every form: %v, %v", runs, err)
	}
	m.slow["slow"], m.slow["middling"] = 0, -1
	broken, err := Load(t.Context(), m, pr.plan(2, ""), Options{Graph: true})
	if err != nil {
		t.Fatal(err)
	}
	m.prog = broken
	if _, err = broken.Run(t.Context(), in); err == nil {
		_, err = broken.Run(t.Context(), in)
	}
	if err == nil || err.Error() != `measuring the program's graph in the form "middling": this way is closed` {
		t.Errorf("got %v", err)
	}
}

// TestRecordsLate checks that a graph whose recording takes longer than its run's deadline and grace is available to
// the next run, and that the plan remains loaded.
func TestRecordsLate(t *testing.T) { synctest.Test(t, testRecordsLate) }

func testRecordsLate(t *testing.T) {
	var runs []string
	ctx, cancel := context.WithCancel(t.Context())
	m := &waysMachine{Machine: cpu.New(cpu.Options{}), runs: &runs}
	m.records = func() {
		cancel()
		time.Sleep(20 * time.Millisecond)
	}
	prog, in := m.ranOnce(t, time.Millisecond)
	if _, err := prog.Run(ctx, in); !errors.Is(err, context.Canceled) || !prog.Usable() {
		t.Fatalf("cancelled while it was recorded: %v, usable: %v", err, prog.Usable())
	}
	tried := len(runs)
	if _, err := prog.Run(t.Context(), in); err != nil || len(runs) != tried+1 {
		t.Errorf("the next run: %v, launched %v", err, runs[tried:])
	}
}
