package hocket_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

const checkpointSource = `dim L = 2
mesh tp[2]

func model(
  %x: f32[T, H],
  %up: f32[L, 2 * F/tp, H],
  %down: f32[L, H, F/tp],
  %half: f32[H/tp, V],
  %head: bf16[V, H],
) -> (f32[T, 2 * F/tp], f32[L, H, F/tp], f32[H/tp, V], bf16[V, H]) {
  %u = select %up, axis=0, index=1
  %y = linear %x, %u
  %d = copy %down
  %h = copy %half
  %e = copy %head
  return %y, %d, %h, %e
}
`

// named is a named tensor whose element i is the small integer first+i.
func named(t *testing.T, name string, dt ir.DType, first int, shape ...int64) tensor.Named {
	t.Helper()
	x, err := tensor.New(dt, shape)
	if err != nil {
		t.Fatal(err)
	}
	for i := range x.Len() {
		x.SetFloat64(i, float64(first+int(i)))
	}
	return tensor.Named{Name: name, Tensor: x}
}

// writeCheckpoint writes a checkpoint of two files and an index, with the tensors gate, up and down of two layers, and
// tensors outside of layers. H=2, F=4, V=3.
func writeCheckpoint(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	shards := [][]tensor.Named{
		{
			named(t, "m.layers.0.gate.weight", ir.F32, 0, 4, 2), named(t, "m.layers.0.up.weight", ir.F32, 10, 4, 2),
			named(t, "m.layers.0.down.weight", ir.F32, 20, 4, 2), named(t, "m.layers.1.gate.weight", ir.F32, 30, 4, 2),
		},
		{
			named(t, "m.layers.1.up.weight", ir.F32, 40, 4, 2), named(t, "m.layers.1.down.weight", ir.F32, 50, 4, 2),
			named(t, "embed", ir.F32, 60, 3, 2), named(t, "wide", ir.F32, 70, 2, 5), named(t, "l.9999.w", ir.F32, 90, 3),
		},
	}
	var entries []string
	for i, shard := range shards {
		file := fmt.Sprintf("model-0000%d-of-00002.safetensors", i+1)
		if err := tensor.WriteSafetensorsFile(filepath.Join(dir, file), shard, nil); err != nil {
			t.Fatal(err)
		}
		for _, n := range shard {
			entries = append(entries, fmt.Sprintf("%q: %q", n.Name, file))
		}
	}
	index := `{"metadata": {"total_size": 1}, "weight_map": {` + strings.Join(entries, ",\n") + `}}`
	if err := os.WriteFile(filepath.Join(dir, "model.safetensors.index.json"), []byte(index), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func checkpointRules() hocket.Rules {
	return hocket.Rules{
		Inputs: []string{"x"},
		Weights: []hocket.WeightRule{
			{Param: "up", From: []string{"m.layers.*.gate.weight", "m.layers.*.up.weight"}},
			{Param: "down", From: []string{"m.layers.*.down.weight"}, Transpose: true},
			{Param: "half", From: []string{"wide"}, Axis: 1, Lo: 1, Hi: 4},
			{Param: "head", From: []string{"embed"}, Cast: true},
		},
	}
}

func loadCheckpointModel(t *testing.T, source string) *hocket.Model {
	t.Helper()
	p, err := hocket.Parse("model.hkt", source)
	if err != nil {
		t.Fatal(err)
	}
	m, err := hocket.Open(context.Background(), hocket.MachineOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	model, err := m.Load(p, hocket.Binding{}, hocket.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return model
}

// TestBindFrom checks that layers are stacked, tensors concatenated, rows selected, matrices transposed and elements
// converted, by the known numbers in the files, and that unused tensors are returned.
func TestBindFrom(t *testing.T) {
	c, err := hocket.OpenCheckpoint(writeCheckpoint(t))
	if err != nil {
		t.Fatal(err)
	}
	model := loadCheckpointModel(t, checkpointSource)
	unused, err := model.BindFrom(c, checkpointRules())
	if err != nil || !slices.Equal(unused, []string{"l.9999.w"}) {
		t.Fatalf("unused %q, %v", unused, err)
	}
	if err := c.Close(); err != nil { // the model keeps the tensors that it has mapped
		t.Fatal(err)
	}
	ctx := context.Background()
	if err := model.Prepare(ctx, map[string]int64{"T": 2}); err != nil {
		t.Fatal(err)
	}
	eye, _ := hocket.FromFloats(ir.F32, []float64{1, 0, 0, 1}, 2, 2)
	rep, err := model.Run(ctx, hocket.Args{In: map[string]*hocket.Tensor{"x": eye}})
	if err != nil {
		t.Fatal(err)
	}
	want := map[int][]float64{
		// Layer 1 has the elements 30…37 of gate and then 40…47 of up, in rows of two. x is the identity matrix, so y
		// is the transpose of the weight.
		0: {30, 32, 34, 36, 40, 42, 44, 46, 31, 33, 35, 37, 41, 43, 45, 47},
		1: {20, 22, 24, 26, 21, 23, 25, 27, 50, 52, 54, 56, 51, 53, 55, 57},
		2: {71, 72, 73, 76, 77, 78},
		3: {60, 61, 62, 63, 64, 65},
	}
	for i, name := range []string{"y", "d", "h", "e"} {
		if got := rep.Out[name].Floats(); !slices.Equal(got, want[i]) {
			t.Errorf("%%%s is %v, want %v", name, got, want[i])
		}
	}
	if err := model.Close(); err != nil {
		t.Error(err)
	}
}

// TestBindFromRefuses checks that BindFrom binds nothing if a tensor does not fit, and that the error says what to do.
func TestBindFromRefuses(t *testing.T) {
	c, err := hocket.OpenCheckpoint(writeCheckpoint(t))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, test := range []struct {
		name   string
		change func(*hocket.Rules)
		want   []string
	}{
		{"transposed", func(r *hocket.Rules) { r.Weights[1].Transpose = false },
			[]string{"%down is f32[2, 4, 2], but its transpose, f32[2, 2, 4], would fit", "its rule must transpose it"}},
		{"missing", func(r *hocket.Rules) {
			r.Weights[0].From[1] = "m.layers.*.upp.weight"
			r.Weights[3].From[0] = "model.embed"
		}, []string{`"m.layers.0.upp.weight"; it has`, `"m.layers.1.upp.weight"`, `no tensor "model.embed"`}},
		{"many layers", func(r *hocket.Rules) { r.Weights[0].From[0] = "l.*.w" },
			[]string{`"l.0.w"; it has "l.9999.w"`, "and 19991 more"}},
		{"cast", func(r *hocket.Rules) { r.Weights[3].Cast = false },
			[]string{`%head: "embed" is f32, but the parameter is bf16`}},
		{"cut", func(r *hocket.Rules) { r.Weights[2].Hi = 6 }, []string{`has no range 1..6 along dimension 1`}},
		{"twice", func(r *hocket.Rules) { r.Inputs = append(r.Inputs, "up") }, []string{"%up has two rules, or a rule although it is listed as an input"}},
		{"unknown", func(r *hocket.Rules) { r.Weights[0].Param = "upp" }, []string{"%upp, but model has no such parameter"}},
		{"rank", func(r *hocket.Rules) { r.Weights[1].From[0] = "m.layers.0.down.weight" },
			[]string{"%down is f32[2, 4], want f32[L, H, F/tp]"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			model := loadCheckpointModel(t, checkpointSource)
			rules := checkpointRules()
			test.change(&rules)
			_, err := model.BindFrom(c, rules)
			if !errors.Is(err, hocket.ErrInput) {
				t.Fatalf("got %v", err)
			}
			for _, w := range test.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%v\nlacks %q", err, w)
				}
			}
		})
	}
	model := loadCheckpointModel(t, "func f(%other: f32[3, 2]) -> f32[3, 2] {\n  %y = copy %other\n  return %y\n}\n")
	_, err = model.BindFrom(c, hocket.Rules{Inputs: []string{"other"}})
	if !errors.Is(err, hocket.ErrInput) || !strings.Contains(err.Error(), "has the name of a parameter") ||
		!strings.Contains(err.Error(), "embed, ") || !strings.Contains(err.Error(), "the parameters are other") {
		t.Errorf("no tensor has the name of a parameter: %v", err)
	}
	model = loadCheckpointModel(t, checkpointSource)
	rules := checkpointRules()
	rules.Weights = rules.Weights[:2]
	if _, err := model.BindFrom(c, rules); err != nil {
		t.Fatal(err)
	}
	err = model.Prepare(context.Background(), map[string]int64{"T": 1, "V": 3})
	if !errors.Is(err, hocket.ErrInput) || !strings.Contains(err.Error(), "no tensor is bound to %half, %head") {
		t.Errorf("Prepare without two weights: %v", err)
	}
}

// TestCheckpointClosedUnderExplore checks that a call of Explore can use the model's weights until it ends, although
// model and checkpoint are closed meanwhile, and that both then refuse calls.
func TestCheckpointClosedUnderExplore(t *testing.T) {
	c, err := hocket.OpenCheckpoint(writeCheckpoint(t))
	if err != nil {
		t.Fatal(err)
	}
	model := loadCheckpointModel(t, "func f(%embed: f32[3, 2]) -> f32[3, 2] {\n  %y = copy %embed\n  return %y\n}\n")
	if _, err := model.BindFrom(c, hocket.Rules{}); err != nil {
		t.Fatal(err)
	}
	visits := 0
	visit := func(_ int64, reports []*hocket.Report) error {
		visits++
		if got := reports[0].Out["y"].Floats(); !slices.Equal(got, []float64{60, 61, 62, 63, 64, 65}) {
			t.Errorf("schedule %d: %v", visits, got)
		}
		return errors.Join(c.Close(), model.Close())
	}
	err = model.Explore(t.Context(), []hocket.Args{{}}, hocket.ExploreOptions{Schedules: 3}, visit)
	if err != nil || visits != 3 {
		t.Errorf("%d schedules, %v", visits, err)
	}
	if _, err := c.Tensor("embed"); err == nil {
		t.Error("a tensor was read of a closed checkpoint")
	}
	open, err := hocket.OpenCheckpoint(writeCheckpoint(t))
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if _, err := model.BindFrom(open, hocket.Rules{}); !errors.Is(err, hocket.ErrClosed) {
		t.Errorf("a closed model takes weights: %v", err)
	}
}

// TestBindFromAgain checks that a checkpoint is unmapped when its weights are replaced, but not before a run that reads
// them has ended.
func TestBindFromAgain(t *testing.T) {
	path := writeCheckpoint(t)
	model := loadCheckpointModel(t, "func f(%embed: f32[3, 2]) -> f32[3, 2] {\n  %y = copy %embed\n  return %y\n}\n")
	mapped := func() int {
		maps, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Skip("the system does not list what is mapped")
		}
		return strings.Count(string(maps), path)
	}
	bind := func() {
		c, err := hocket.OpenCheckpoint(path)
		if err == nil {
			_, err = model.BindFrom(c, hocket.Rules{})
			err = errors.Join(err, c.Close())
		}
		if err != nil {
			t.Error(err)
		}
	}
	bind()
	one := mapped()
	ends := make(chan error)
	go func() {
		for range 50 {
			r, err := model.Run(context.Background(), hocket.Args{})
			if err == nil && !slices.Equal(r.Out["y"].Floats(), []float64{60, 61, 62, 63, 64, 65}) {
				err = fmt.Errorf("%v", r.Out["y"])
			}
			if err != nil {
				ends <- err
				return
			}
		}
		ends <- nil
	}()
	for range 50 {
		bind()
	}
	if err := <-ends; err != nil {
		t.Error(err)
	}
	if n := mapped(); n != one || one == 0 {
		t.Errorf("%d mappings after one BindFrom, %d after 51", one, n)
	}
	if err := model.Bind("embed", nil); err != nil || mapped() != 0 {
		t.Errorf("%d mappings without bound weights, %v", mapped(), err)
	}
}

// TestOpenCheckpointRefuses checks the errors for indexes with false entries, files of the wrong kind, and directories
// without a checkpoint.
func TestOpenCheckpointRefuses(t *testing.T) {
	dir := writeCheckpoint(t)
	index := filepath.Join(dir, "model.safetensors.index.json")
	whole, err := os.ReadFile(filepath.Join(dir, "model-00001-of-00002.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]string{
		"cut":   string(whole[:len(whole)-1]),
		"huge":  "\xff\xff\xff\xff\xff\xff\xff\x7f{}",
		"long":  "\x03\x00\x00\x00\x00\x00\x00\x00{}",
		"short": "{}",
	} {
		if err := os.WriteFile(filepath.Join(dir, name+".safetensors"), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for text, want := range map[string]string{
		`{"weight_map": {"a": "../x.safetensors"}}`:                 "which is not a file in the same directory",
		`{"weight_map": {"a": "/etc/passwd"}}`:                      "which is not a file in the same directory",
		`{"weight_map": {"a": "sub/x.safetensors"}}`:                "which is not a file in the same directory",
		`{"weight_map": {"a": ""}}`:                                 "which is not a file in the same directory",
		`{"weight_map": {"a": ".."}}`:                               "which is not a file in the same directory",
		`{"weight_map": {"a": "."}}`:                                "not a regular file",
		`{"weight_map": {"a": "none.safetensors"}}`:                 "no such file",
		`{"weight_map": {"a": "cut.safetensors"}}`:                  "but the file has",
		`{"weight_map": {"a": "huge.safetensors"}}`:                 "it claims a header of 9223372036854775807 bytes",
		`{"weight_map": {"a": "long.safetensors"}}`:                 "but only 2 follow",
		`{"weight_map": {"a": "short.safetensors"}}`:                "want at least 8",
		`{"weight_map": {"a": "model-00001-of-00002.safetensors"}}`: "but this file does not contain it",
		`{"weight_map": {}}`:                                        "no weight_map",
		`{"weight_map": `:                                           "line 1, column 16: the text ends",
		`{"weight_map": {"a": "model.safetensors.index.json"}}`:     "not a safetensors file",
	} {
		if err := os.WriteFile(index, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{dir, index} {
			if _, err := hocket.OpenCheckpoint(path); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", text, err, want)
			}
		}
	}
	if _, err := hocket.OpenCheckpoint(t.TempDir()); err == nil || !strings.Contains(err.Error(), "is not a checkpoint") {
		t.Errorf("an empty directory: %v", err)
	}
}
