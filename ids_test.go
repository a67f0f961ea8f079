package hocket_test

import (
	"context"
	"testing"

	"hocket.example/hocket"
)

// TestIdsAreRows checks that RandomInputs draws ids that are rows of embedding's table, whatever ops the ids pass
// through before the embedding.
func TestIdsAreRows(t *testing.T) {
	const head = "dim T = 64\ndim H = 32\ndim V = 5\ndim D = 4\nmesh tp[1]\n\n"
	for name, text := range map[string]string{
		"direct": "func f(%ids: i32[T], %e: f32[V, D]) -> f32[T, D] {\n  %y = embedding %ids, %e\n  return %y\n}\n",
		"through a view and a call": "func look(%i: i32[H], %e: f32[V, D]) -> f32[H, D] {\n" +
			"  %y = embedding %i, %e\n  return %y\n}\n\n" +
			"func f(%ids: i32[T], %e: f32[V, D]) -> f32[H, D] {\n  %h = slice %ids, axis=0, 0..H\n" +
			"  %y = call look %h, %e\n  return %y\n}\n",
		"through a cast and a loop": "func f(%ids: i64[T], %e: f32[V, D]) -> f32[T, D] {\n" +
			"  %i: i32[T] = cast %ids\n  %z = embedding %i, %e\n" +
			"  %j, %y = for %l in 0..2 carry %k = %ids, %x = %z {\n    %s = embedding %k, %e\n    %n = add %x, %s\n" +
			"    yield %k, %n\n  }\n  return %y\n}\n",
		"the smaller of two tables": "func f(%ids: i32[T], %e: f32[V, D], %big: f32[V + 7, D]) -> f32[T, D] {\n" +
			"  %a = embedding %ids, %big\n  %b = embedding %ids, %e\n  %y = add %a, %b\n  return %y\n}\n",
	} {
		t.Run(name, func(t *testing.T) {
			p, err := hocket.Parse("ids.hkt", head+text)
			if err != nil {
				t.Fatal(err)
			}
			m, err := hocket.Open(context.Background(), hocket.MachineOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			model, err := m.Load(p, hocket.Binding{}, hocket.LoadOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, spec := range []string{"ints:0", "rand:3"} {
				in, err := model.RandomInputs(spec)
				if err != nil {
					t.Fatal(err)
				}
				seen := map[float64]bool{}
				for _, v := range in["ids"].Floats() {
					if v < 0 || v >= 5 {
						t.Errorf("%s: id %v of a table of 5 rows", spec, v)
					}
					seen[v] = true
				}
				if len(seen) < 4 {
					t.Errorf("%s: %d ids are only %d rows", spec, len(in["ids"].Floats()), len(seen))
				}
				if _, err := model.Run(context.Background(), hocket.Args{In: in}); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
