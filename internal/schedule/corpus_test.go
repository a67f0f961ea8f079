package schedule_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"hocket.example/hocket/internal/longtest"
	"hocket.example/hocket/internal/schedule"
	"hocket.example/hocket/internal/schedule/msccl"
	"hocket.example/hocket/internal/schedule/mscclpp"
	"hocket.example/hocket/internal/testcorpus"
)

// judged holds the verdict of the corpus's independent checker on a file.
type judged struct {
	Verdict     string            `json:"verdict"`
	VerdictEdge string            `json:"verdict_edge"`
	Mutants     map[string]string `json:"mutants"`
	MutantsEdge map[string]string `json:"mutants_edge"`
	LeftOver    []string          `json:"left_over"`
	Kinds       map[string]string `json:"kinds"`
	Slots1      string            `json:"verdict_slots1"`
	NoSignal    map[string]string `json:"port_put_mutants"` // verdicts if a put lacks its signal
}

// corpus returns the directory of schedules and the verdicts of the independent checker. It skips the test if the
// directory does not exist.
func corpus(t *testing.T) (string, map[string]judged) {
	t.Helper()
	dir := testcorpus.Need(t, "schedules")
	text, err := os.ReadFile(filepath.Join(dir, "verdicts.json"))
	if err != nil {
		t.Skip(err)
	}
	var v map[string]judged
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	return dir, v
}

func readPlan(t *testing.T, path string) *mscclpp.File {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := mscclpp.Parse(text)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return f
}

// placeOf parses a place in the notation of the independent checker: rank/tb/op or rank/tb/op.inner.
func placeOf(t *testing.T, key string) schedule.Place {
	t.Helper()
	var p schedule.Place
	if strings.Contains(key, ".") {
		if _, err := fmt.Sscanf(key, "%d/%d/%d.%d", &p.Rank, &p.Block, &p.Index, &p.Inner); err != nil {
			t.Fatal(key, err)
		}
		p.Inner++
		return p
	}
	if _, err := fmt.Sscanf(key, "%d/%d/%d", &p.Rank, &p.Block, &p.Index); err != nil {
		t.Fatal(key, err)
	}
	return p
}

func sortedKeys[V any](m map[string]V) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	sort.Strings(out)
	return out
}

// edgeOf returns the verdict that takes account of conflicts at the beginning and end of a launch.
func edgeOf(r *schedule.Report) string {
	if r.Verdict == schedule.OK {
		for _, w := range r.Warnings {
			if w.Kind == schedule.Race {
				return "edge-race"
			}
		}
	}
	return string(r.Verdict)
}

func TestPlansOfTheCorpus(t *testing.T) {
	dir, verdicts := corpus(t)
	n := 0
	for _, name := range sortedKeys(verdicts) {
		if !strings.HasSuffix(name, ".json") {
			continue
		}
		if only := os.Getenv("ONLY"); only != "" && !strings.HasPrefix(name, only) {
			continue
		}
		want := verdicts[name]
		f := readPlan(t, filepath.Join(dir, "plans", name))
		p, err := f.Plan()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		r := schedule.Check(p, schedule.Options{})
		n++
		if string(r.Verdict) != want.Verdict || edgeOf(r) != want.VerdictEdge {
			t.Errorf("%s: %s (%s), the judge says %s (%s)\n%v\n%v", name, r.Verdict, edgeOf(r), want.Verdict,
				want.VerdictEdge, r.Findings, r.Warnings)
		}
		if testing.Short() {
			continue
		}
		for key, verdict := range want.NoSignal {
			at, m := placeOf(t, strings.TrimSuffix(key, ":nosignal")), f.Clone()
			o := &m.GPUs[at.Rank].Threadblocks[at.Block].Ops[at.Index]
			if o.Name != "pws" {
				t.Fatal(name, key, o.Name)
			}
			o.Name = "put"
			p, err := m.Plan()
			if err != nil {
				t.Fatal(err)
			}
			if r := schedule.Check(p, schedule.Options{}); string(r.Verdict) != verdict {
				t.Errorf("%s: %s is %s, the judge says %s", name, key, r.Verdict, verdict)
			}
			n++
		}
		bad := 0
		for i, key := range sortedKeys(want.Mutants) {
			if i%longtest.Of(8, 1) != 0 { // make long takes them all
				continue
			}
			m := f.Without(placeOf(t, key))
			if m == nil {
				t.Errorf("%s: there is no %s", name, key)
				continue
			}
			p, err := m.Plan()
			if err != nil {
				t.Errorf("%s without %s: %v", name, key, err)
				continue
			}
			r := schedule.Check(p, schedule.Options{})
			n++
			edge, ok := want.MutantsEdge[key]
			if !ok {
				edge = want.Mutants[key]
			}
			if string(r.Verdict) != want.Mutants[key] || edgeOf(r) != edge {
				if bad++; bad <= 3 {
					t.Errorf("%s without %s (%s): %s (%s), the judge says %s (%s)\n%v", name, key, want.Kinds[key],
						r.Verdict, edgeOf(r), want.Mutants[key], edge, r.Findings)
				}
			}
		}
		if bad > 3 {
			t.Errorf("%s: %d differ", name, bad)
		}
	}
	t.Logf("%d verdicts", n)
}

func TestAlgorithmsOfTheCorpus(t *testing.T) {
	dir, verdicts := corpus(t)
	n := 0
	for _, name := range sortedKeys(verdicts) {
		if !strings.HasSuffix(name, ".xml") {
			continue
		}
		if only := os.Getenv("ONLY"); only != "" && !strings.HasPrefix(name, only) {
			continue
		}
		want := verdicts[name]
		text, err := os.ReadFile(filepath.Join(dir, "xml", name))
		if err != nil {
			t.Fatal(err)
		}
		f, err := msccl.Parse(text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		p, err := f.Plan()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		r := schedule.Check(p, schedule.Options{})
		n++
		if string(r.Verdict) != want.Verdict || edgeOf(r) != want.VerdictEdge {
			t.Errorf("%s: %s (%s), the judge says %s (%s)\n%v\n%v", name, r.Verdict, edgeOf(r), want.Verdict,
				want.VerdictEdge, r.Findings, r.Warnings)
		}
		one := f.Clone()
		one.Slots = 1
		if p, err = one.Plan(); err != nil {
			t.Fatal(err)
		}
		if r := schedule.Check(p, schedule.Options{}); string(r.Verdict) != want.Slots1 {
			t.Errorf("%s with one slot: %s, the judge says %s", name, r.Verdict, want.Slots1)
		}
		n++
		if testing.Short() {
			continue
		}
		bad := 0
		for i, key := range sortedKeys(want.Mutants) {
			if i%longtest.Of(8, 1) != 0 { // make long takes them all
				continue
			}
			m := f.Clone()
			s := m.Step(placeOf(t, key))
			if s == nil || s.DepID < 0 {
				t.Errorf("%s: there is no dependence at %s", name, key)
				continue
			}
			s.DepID, s.Dep = -1, -1
			p, err := m.Plan()
			if err != nil {
				t.Errorf("%s without %s: %v", name, key, err)
				continue
			}
			r := schedule.Check(p, schedule.Options{})
			n++
			if string(r.Verdict) != want.Mutants[key] {
				if bad++; bad <= 3 {
					t.Errorf("%s without %s (%s): %s (%s), the judge says %s\n%v", name, key, want.Kinds[key],
						r.Verdict, edgeOf(r), want.Mutants[key], r.Findings)
				}
			}
		}
		if bad > 3 {
			t.Errorf("%s: %d differ", name, bad)
		}
	}
	t.Logf("%d verdicts", n)
}
