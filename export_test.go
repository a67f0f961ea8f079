package hocket_test

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// TestForeignWeights checks that Bind refuses a file if the model uses none of its tensors, and refuses files that lack
// weights of the model. The unused tensors of other files are returned.
func TestForeignWeights(t *testing.T) {
	write := func(file string, names ...string) string {
		var list []tensor.Named
		for _, name := range names {
			shape := []int64{8, 4}
			if strings.Contains(name, "down") {
				slices.Reverse(shape)
			}
			x, err := tensor.New(ir.F32, shape)
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, tensor.Named{Name: name, Tensor: x})
		}
		path := filepath.Join(t.TempDir(), file)
		if err := tensor.WriteSafetensorsFile(path, list, nil); err != nil {
			t.Fatal(err)
		}
		return path
	}
	partly := write("partly.safetensors", "layers.0.up.weight", "spare.weight")
	own := write("own.safetensors", "layers.0.up.weight", "layers.1.up.weight", "layers.2.up.weight", "spare.weight")
	rest := write("rest.safetensors", "layers.0.down.weight", "layers.1.down.weight", "layers.2.down.weight")
	foreign := write("foreign.safetensors", "h.0.up.weight")
	bind := func(weights ...string) ([]string, error) {
		e, err := hocket.OpenExport("testdata/layers.pt2", hocket.ExportOptions{Weights: weights})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		m, err := hocket.Open(t.Context(), hocket.MachineOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		model, err := m.Load(e.Program(), hocket.Binding{}, hocket.LoadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return e.Bind(t.Context(), model)
	}
	if unused, err := bind(own, rest); err != nil || len(unused) != 1 || unused[0] != "spare.weight" {
		t.Errorf("unused: %v, %v", unused, err)
	}
	for _, files := range [][]string{{partly}, {own}} { // layers of two checkpoints, or parameters of two
		_, err := bind(files...)
		for _, want := range []string{"lack layers.", "down.weight", "spare.weight", "Model.Bind"} {
			if !errors.Is(err, hocket.ErrInput) || !strings.Contains(err.Error(), want) {
				t.Errorf("%v\nlacks %q", err, want)
			}
		}
	}
	for _, files := range [][]string{{foreign}, {own, rest, foreign}} {
		_, err := bind(files...)
		if !errors.Is(err, hocket.ErrInput) {
			t.Fatalf("%d files: %v", len(files), err)
		}
		for _, want := range []string{foreign, "h.0.up.weight", "layers.0.down.weight"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%v\nlacks %q", err, want)
			}
		}
	}
}

// TestForeignPlan checks that OpenExport refuses a Plan of which no entry matches a weight.
func TestForeignPlan(t *testing.T) {
	open := func(plan map[string]string) error {
		e, err := hocket.OpenExport("testdata/layers.pt2", hocket.ExportOptions{Ranks: 2, Plan: plan})
		if err != nil {
			return err
		}
		return e.Close()
	}
	if err := open(map[string]string{"h.*.attn": "colwise"}); !errors.Is(err, hocket.ErrInput) ||
		!strings.Contains(err.Error(), "no weight matches h.*.attn; the model's weights are layers.0.up.weight") {
		t.Errorf("%v", err)
	}
	for _, plan := range []map[string]string{nil, {}, {"h.*.attn": "colwise", "up": "colwise"}} {
		if err := open(plan); err != nil {
			t.Errorf("%v: %v", plan, err)
		}
	}
}

// TestShard checks that each entry of Shard must match, whether Plan matches or not, and that Shard overrides Plan.
func TestShard(t *testing.T) {
	plan := map[string]string{"up": "colwise", "h.*.attn": "colwise"}
	for _, c := range []struct {
		shard map[string]string
		want  string
	}{
		{map[string]string{"upp": "colwise"}, "shard: no weight matches upp; the model's weights are layers.0.up.weight"},
		{map[string]string{"up": "colwise", "h.*.attn": "rowwise"}, "shard: no weight matches h.*.attn; "},
		{map[string]string{"up": "rowwise"}, ""},
	} {
		e, err := hocket.OpenExport("testdata/layers.pt2", hocket.ExportOptions{Ranks: 2, Plan: plan, Shard: c.shard})
		if c.want != "" {
			if !errors.Is(err, hocket.ErrInput) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v: %v, want %s", c.shard, err, c.want)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%v: %v", c.shard, err)
		}
		other, err := hocket.OpenExport("testdata/layers.pt2", hocket.ExportOptions{Ranks: 2, Plan: plan})
		if err != nil {
			t.Fatal(err)
		}
		if e.Program().String() == other.Program().String() {
			t.Errorf("%v does not override %v:\n%s", c.shard, plan, e.Program())
		}
		if err := errors.Join(e.Close(), other.Close()); err != nil {
			t.Error(err)
		}
	}
}
