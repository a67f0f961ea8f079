package grad_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hocket.example/hocket"
)

// recording is a file that tools/torch_gradients.py wrote.
type recording struct {
	Program         string
	Meshes          []map[string]int64
	Inputs, Outputs map[string]struct {
		Shape  []int64
		Values []float64
	}
}

// TestRecordedGradients compares results and gradients with those that torch computed in f64 on another machine. Each
// program is proved and run for each size of its mesh, unsharded and sharded, with another value of Keep each time, and
// again with delayed reductions.
func TestRecordedGradients(t *testing.T) {
	files, err := filepath.Glob("testdata/torch/*.json")
	if err != nil || len(files) < 20 {
		t.Fatalf("%d recordings, %v", len(files), err)
	}
	m, err := hocket.Open(t.Context(), hocket.MachineOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	runs, keep := 0, 0
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var r recording
			if err := json.Unmarshal(text, &r); err != nil {
				t.Fatal(err)
			}
			p, err := hocket.Parse(file, r.Program)
			if err != nil {
				t.Fatal(err)
			}
			for _, mesh := range r.Meshes {
				t.Run(fmt.Sprint(mesh), func(t *testing.T) {
					q, err := p.Gradient(hocket.GradientOptions{Keep: string(keeps[keep%len(keeps)])})
					if err != nil {
						t.Fatal(err)
					}
					for _, strategy := range []string{"sequential", "delayed"} {
						if r.compare(t, m, q, mesh, strategy) {
							runs++
						}
					}
				})
				keep++
			}
		})
	}
	t.Logf("%d recordings, %d runs", len(files), runs)
}

// compare proves q, a gradient of the recorded program, and compares what it computes with the recording. It returns
// false if there is no reduction to which the strategy applies.
func (r *recording) compare(t *testing.T, m *hocket.Machine, q *hocket.Program, mesh map[string]int64, strategy string) bool {
	v, err := hocket.Check(q, hocket.Binding{Dims: mesh}, hocket.CheckOptions{Strategy: strategy})
	if err == nil && strings.Contains(v.Diagnostics.Error(), "applies to no collective") {
		return false
	}
	if err != nil || v.Kind != hocket.Proved {
		t.Fatalf("%v, %v: %v\n%s", v.Kind, err, v.Diagnostics, q)
	}
	model, err := m.Load(q, hocket.Binding{Dims: mesh}, hocket.LoadOptions{Strategy: strategy})
	if err != nil {
		t.Fatalf("%v\n%s", err, q)
	}
	in, err := model.RandomInputs("rand:1") // for the types
	if err != nil {
		t.Fatal(err)
	}
	if len(in) != len(r.Inputs) {
		t.Fatalf("%d parameters, and %d recorded inputs", len(in), len(r.Inputs))
	}
	for name, x := range in {
		if in[name], err = hocket.FromFloats(x.DType, r.Inputs[name].Values, r.Inputs[name].Shape...); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	rep, err := model.Run(t.Context(), hocket.Args{In: in})
	if err != nil {
		t.Fatalf("%v\n%s", err, q)
	}
	if len(rep.Out) != len(r.Outputs) {
		t.Fatalf("%d results, and %d recorded ones", len(rep.Out), len(r.Outputs))
	}
	for name, want := range r.Outputs {
		got := rep.Out[name].Floats()
		if len(got) != len(want.Values) {
			t.Fatalf("%%%s has %d elements, and %d were recorded", name, len(got), len(want.Values))
		}
		largest := 0.0
		for _, w := range want.Values {
			largest = max(largest, math.Abs(w))
		}
		if largest == 0 {
			t.Errorf("%%%s is 0 in the recording, so that it shows nothing", name)
		}
		for i, w := range want.Values {
			if !(math.Abs(got[i]-w) <= 1e-12*largest) {
				t.Fatalf("%%%s[%d] is %g, and torch computed %g, where values are up to %g\n%s", name, i, got[i], w, largest, q)
			}
		}
	}
	return true
}
