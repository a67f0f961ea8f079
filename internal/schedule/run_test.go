package schedule_test

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"hocket.example/hocket/internal/schedule"
	"hocket.example/hocket/internal/schedule/msccl"
)

// readAny reads a schedule in either format.
func readAny(t *testing.T, dir, name string) schedule.File {
	t.Helper()
	if strings.HasSuffix(name, ".json") {
		return readPlan(t, filepath.Join(dir, "plans", name))
	}
	text, err := os.ReadFile(filepath.Join(dir, "xml", name))
	if err != nil {
		t.Fatal(err)
	}
	f, err := msccl.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// contents returns the contents of all ranks' inputs and outputs, for comparison.
func contents(p *schedule.Plan, m *schedule.Memory) []uint64 {
	var out []uint64
	for r := range p.Ranks {
		for _, k := range []schedule.BufferKind{schedule.Input, schedule.Output} {
			for _, v := range m.Of(p, r, k) {
				out = append(out, math.Float64bits(v))
			}
		}
	}
	return out
}

// interleavings returns the number of interleavings that are run for each plan, and the maximum number of steps of all
// of them together.
func interleavings() (n, steps int) {
	if v, err := strconv.Atoi(os.Getenv("INTERLEAVINGS")); err == nil {
		return v, math.MaxInt
	}
	return 20, 200_000
}

// TestInterleavingsRefuteNoOK checks every schedule that Check accepts: it executes the schedule on data, in random
// interleavings of all threads. Each execution must end with the result of a direct computation. If the collective
// defines no result, all executions must end with the same memory.
func TestInterleavingsRefuteNoOK(t *testing.T) {
	dir, verdicts := corpus(t)
	most, budget := interleavings()
	all := 0
	for _, name := range sortedKeys(verdicts) {
		if only := os.Getenv("ONLY"); only != "" && !strings.HasPrefix(name, only) {
			continue
		}
		p, err := readAny(t, dir, name).Plan()
		if err != nil {
			t.Fatal(name, err)
		}
		if schedule.Check(p, schedule.Options{}).Verdict != schedule.OK {
			continue
		}
		var first []uint64
		in := schedule.Inputs(p, 2, 1)
		for seed, steps := 0, 0; seed < most && steps < budget; seed++ {
			got, err := schedule.Run(context.Background(), p, in, 2, uint64(seed))
			if err != nil {
				t.Fatalf("%s, interleaving %d: %v", name, seed, err)
			}
			steps += got.Steps
			all++
			if d := schedule.Differ(p, got.Memory, in); d != nil {
				t.Fatalf("%s, interleaving %d: %s", name, seed, d)
			}
			if p.Collective != schedule.Undefined {
				continue
			}
			c := contents(p, got.Memory)
			if first == nil {
				first = c
			}
			for i := range c {
				if c[i] != first[i] && !(math.IsNaN(math.Float64frombits(c[i])) &&
					math.IsNaN(math.Float64frombits(first[i]))) {
					t.Fatalf("%s: interleavings 0 and %d leave different memory", name, seed)
				}
			}
		}
	}
	t.Logf("%d interleavings", all)
}
