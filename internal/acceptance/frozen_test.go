package acceptance_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"hocket.example/hocket"
)

// freeze updates the table of frozen results. The flag is separate from -update, since a change of results must be
// deliberate.
var freeze = flag.String("freeze", "", "add results to the frozen ones: new, or all, which overwrites what they were")

const frozenFile = "testdata/outputs.txt"

const frozenHead = `# What every example and acceptance case gives: the hash of the results of each run
# (docs/language.md, "The hash of results"), on the CPU machine, concurrent and
# scheduled, on amd64. Examples run with their default dims and the inputs
# "ints:SEED", SEED being the number of the run, acceptance cases with the inputs of
# their tests, where #2 is the second case that a test runs.
#
# No case is left out: reductions with order=any are in none. One that has them
# belongs here only if its inputs make all sums exact.
#
# A test holds runs to this file, and -update does not rewrite it:
#   go test ./internal/acceptance -run 'Frozen|Acceptance|Slots' -freeze new    adds cases that are new
#   go test ./internal/acceptance -run 'Frozen|Acceptance|Slots' -freeze all    overwrites those that changed, which needs a reason
`

// frozen holds the table of frozen results in frozenFile, and which of its rows the tests have used.
var frozen = struct {
	sync.Mutex
	rows  map[string]string
	seen  map[string]bool
	cases map[testing.TB]int
	dirty bool
}{seen: map[string]bool{}, cases: map[testing.TB]int{}}

// TestMain joins a world if there is one. After all tests it writes the rows that -freeze requests,
// and checks that no row of the table is unused.
func TestMain(m *testing.M) {
	if os.Getenv(workerEnv) != "" {
		os.Exit(worker())
	}
	flag.Parse()
	if !slices.Contains([]string{"", "new", "all"}, *freeze) {
		fmt.Fprintf(os.Stderr, "-freeze is new or all, not %q\n", *freeze)
		os.Exit(2)
	}
	text, err := os.ReadFile(frozenFile)
	if err == nil {
		frozen.rows, err = readFrozen(text)
	}
	if err != nil && *freeze == "" {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if w, err := joined(); w != nil && err == nil {
		_ = w.Leave() // ignore the error, because the tests have reported why the world ended
	}
	if code == 0 {
		if err := finishFrozen(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	if w, err := joined(); err == nil && w != nil {
		if err := w.Leave(); err != nil && code == 0 { // otherwise other processes report a crash
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func readFrozen(text []byte) (map[string]string, error) {
	rows := map[string]string{}
	for line := range bytes.Lines(text) {
		line := strings.TrimSpace(string(line))
		if line == "" || line[0] == '#' {
			continue
		}
		hash, name, ok := strings.Cut(line, "  ")
		if !ok || len(hash) != 64 || rows[name] != "" {
			return nil, fmt.Errorf("%s: a bad line: %q", frozenFile, line)
		}
		rows[name] = hash
	}
	return rows, nil
}

// finishFrozen writes the table if it has changed. If all tests were run, finishFrozen checks that all rows were used.
func finishFrozen() error {
	if *freeze != "" && frozen.dirty {
		var b strings.Builder
		b.WriteString(frozenHead)
		for _, name := range slices.Sorted(maps.Keys(frozen.rows)) {
			fmt.Fprintf(&b, "%s  %s\n", frozen.rows[name], name)
		}
		return os.WriteFile(frozenFile, []byte(b.String()), 0o644)
	}
	for _, name := range []string{"run", "skip", "list", "bench", "fuzz"} {
		if flag.Lookup("test."+name).Value.String() != "" {
			return nil
		}
	}
	if runtime.GOARCH != "amd64" || *onCUDA {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(frozen.rows)) {
		if !frozen.seen[name] {
			return fmt.Errorf("%s: no test produces the frozen result %s any longer", frozenFile, name)
		}
	}
	return nil
}

// frozenName returns the row's name for the next case of a test: the test's name and a number.
func frozenName(t testing.TB) string {
	frozen.Lock()
	defer frozen.Unlock()
	frozen.cases[t]++
	if n := frozen.cases[t]; n > 1 {
		return fmt.Sprintf("%s #%d", t.Name(), n)
	}
	return t.Name()
}

// wantFrozen compares the results of a case's runs with the table of frozen results.
func wantFrozen(t testing.TB, name, where string, reports []*hocket.Report) {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		return // other machines round exp and similar functions differently
	}
	frozen.Lock()
	defer frozen.Unlock()
	for i, r := range reports {
		name := fmt.Sprintf("%s, run %d", name, i)
		got, want := r.OutputsSHA256(), frozen.rows[name]
		switch first := !frozen.seen[name]; {
		case got == want:
		case first && (*freeze == "all" || *freeze == "new" && want == ""):
			if frozen.rows == nil {
				frozen.rows = map[string]string{}
			}
			frozen.rows[name], frozen.dirty = got, true
		case want == "":
			t.Errorf("%s: %s has no row for %s; its header says how to add one", where, frozenFile, name)
		default:
			t.Errorf("%s: the results of %s have hash %s, want the frozen %s of %s", where, name, got, want, frozenFile)
		}
		frozen.seen[name] = true
	}
}

// TestFrozenExamples checks that every example has its frozen results.
func TestFrozenExamples(t *testing.T) {
	const runs, schedules = 2, 3
	files, err := filepath.Glob(filepath.Join(root, "examples", "*.hkt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	m, err := hocket.Open(t.Context(), hocket.MachineOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for _, file := range files {
		if err := frozenExample(t, m, file, runs, schedules); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

func frozenExample(t *testing.T, m *hocket.Machine, file string, runs, schedules int) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	name := "examples/" + filepath.Base(file)
	p, err := hocket.Parse(name, string(text))
	if err != nil {
		return err
	}
	drawn := func(model *hocket.Model) (batch []hocket.Args) {
		for i := range runs {
			in, err := model.RandomInputs(fmt.Sprintf("ints:%d", i))
			if err != nil {
				t.Fatal(err)
			}
			batch = append(batch, hocket.Args{In: in})
		}
		return batch
	}
	if w := ofWorld(t); w != nil {
		reports := runInProcess(t, w, p, hocket.Binding{}, drawn)
		wantFrozen(t, name, "processes", reports)
		if reports != nil {
			t.Log("ran", name)
		}
		return nil
	}
	model, err := m.Load(p, hocket.Binding{}, hocket.LoadOptions{})
	if err != nil {
		return err
	}
	batch := drawn(model)
	ctx := context.Background()
	reports, err := model.RunBatch(ctx, batch)
	if err != nil {
		return err
	}
	wantFrozen(t, name, "concurrent", reports)
	err = model.Explore(ctx, batch, hocket.ExploreOptions{Schedules: schedules},
		func(seed int64, reports []*hocket.Report) error {
			wantFrozen(t, name, fmt.Sprintf("schedule %d", seed), reports)
			return nil
		})
	return errors.Join(err, model.Close())
}
