package schedule_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"hocket.example/hocket/internal/schedule"
	"hocket.example/hocket/internal/schedule/msccl"
	"hocket.example/hocket/internal/schedule/mscclpp"
)

// TestStates: plans that lack one of their synchronizations have races. The state of each counterexample can be reached
// by executing only the operations that it lists, and its accesses are those of the finding.
func TestStates(t *testing.T) {
	files := []string{"../../examples/schedules/exchange.json"}
	for _, pattern := range []string{"testdata/*.json", "testdata/*.xml"} {
		list, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, list...)
	}
	if dir := os.Getenv("STATES"); dir != "" { // more schedules
		list, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, list...)
	}
	n := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var f schedule.File
		if f, err = mscclpp.Parse(text); filepath.Ext(file) == ".xml" {
			f, err = msccl.Parse(text)
		}
		if err != nil {
			t.Fatal(file, err)
		}
		for _, at := range f.Syncs() {
			p, err := f.Without(at).Plan()
			if err != nil {
				continue
			}
			r := schedule.Check(p, schedule.Options{})
			for _, found := range slices.Concat(r.Findings, r.Warnings) {
				if len(found.State) == 0 {
					continue
				}
				n++
				if err := schedule.Reach(p, found.State); err != nil {
					t.Errorf("%s without %v: %v: %v", file, at, found, err)
				}
				for i, place := range found.Places {
					if found.State[i].Place != place || found.State[i].Access == "" {
						t.Errorf("%s: the state begins with %v, want %v", file, found.State[i], place)
					}
				}
			}
		}
	}
	if n < 20 {
		t.Errorf("%d counterexamples", n)
	}
	t.Log(n, "counterexamples")
}
