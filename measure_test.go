package hocket_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hocket.example/hocket"
)

// measuredLayer is a layer that has state, an integer parameter, and a pair to which every strategy applies.
const measuredLayer = `dim T = 16
mesh tp[2]
func layer(%x: f32[T/tp, 8], %w: f32[16/tp, 8], %ids: i32[T/tp], %table: f32[4, 8], %kept: inout f32[T/tp, 8]) -> f32[T, 16/tp] {
  %e = embedding %ids, %table
  %s = add %x, %e
  copy %s into %kept
  %y = linear %s, %w
  return %y
}
`

// TestMeasuredChoice checks that, with LoadOptions.Measure, "auto" uses the variant in the stored measurement, and
// measures if there is none.
func TestMeasuredChoice(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("HOCKET_CACHE", cache)
	p, err := hocket.Parse("layer.hkt", measuredLayer)
	if err != nil {
		t.Fatal(err)
	}
	m, err := hocket.Open(t.Context(), hocket.MachineOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	planOf := func(opts hocket.LoadOptions) string {
		t.Helper()
		model, err := m.Load(p, hocket.Binding{}, opts)
		if err != nil {
			t.Fatal(err)
		}
		defer model.Close()
		for range 2 { // the second finds it loaded
			if err := model.Prepare(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
		}
		in, err := model.RandomInputs("ints:1")
		if err != nil {
			t.Fatal(err)
		}
		clear(in["ids"].Data)
		r, err := model.Run(t.Context(), hocket.Args{In: in})
		if err != nil {
			t.Fatal(err)
		}
		ref, err := model.Reference(t.Context(), hocket.Args{In: in})
		if err != nil {
			t.Fatal(err)
		}
		if err := ref.Compare(r).Err(); err != nil {
			t.Errorf("%+v: %v", opts, err)
		}
		text, err := model.Plan(nil)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	kept := func() []string {
		files, err := filepath.Glob(filepath.Join(cache, "auto", "*.json"))
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	if planOf(hocket.LoadOptions{Strategy: "auto"}); len(kept()) != 0 {
		t.Errorf("nobody asked, and %v is kept", kept())
	}
	first := planOf(hocket.LoadOptions{Strategy: "auto", Measure: true})
	files := kept()
	if len(files) != 1 {
		t.Fatalf("kept are %v", files)
	}
	data, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	var strategy string
	for _, s := range []string{"sequential", "chunked(2)", "chunked(4)", "chunked(8)", "exchange", "exchange(2)",
		"ahead", "auto"} {
		if strings.Contains(string(data), `"strategy": "`+s+`"`) {
			strategy = s
		}
	}
	if want := planOf(hocket.LoadOptions{Strategy: strategy}); first != want {
		t.Errorf("%s is kept, and the plan is\n%s", strategy, first)
	}
	if !strings.Contains(string(data), `"sequential": `) || strings.Count(string(data), ": ") < 6 {
		t.Errorf("times kept: %s", data)
	}
	for _, other := range []string{"chunked(2)", "sequential", "exchange"} {
		text := strings.Replace(string(data), `"strategy": "`+strategy+`"`, `"strategy": "`+other+`"`, 1)
		if err := os.WriteFile(files[0], []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got, want := planOf(hocket.LoadOptions{Strategy: "auto", Measure: true}),
			planOf(hocket.LoadOptions{Strategy: other}); got != want {
			t.Errorf("%s was kept, and the plan is\n%s", other, got)
		}
	}
	if err := os.WriteFile(files[0], []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	planOf(hocket.LoadOptions{Strategy: "auto", Measure: true})
	if again, err := os.ReadFile(files[0]); err != nil || !strings.Contains(string(again), `"strategy"`) {
		t.Errorf("what cannot be read is measured anew: %s, %v", again, err)
	}
}
