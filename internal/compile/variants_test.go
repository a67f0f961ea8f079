package compile

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

// TestVariants checks that sequential is first, that other variants follow by predicted time, and that variants that do
// not fit the dims are omitted. After Choose, plans must be those of the chosen variant.
func TestVariants(t *testing.T) {
	const text = `dim T = 4096
dim H = 1024
dim F = 4096
mesh tp[2]
func mlp(%x: bf16[T/tp, H], %w1: bf16[F/tp, H], %w2: bf16[H, F/tp]) -> bf16[T/tp, H] {
  %h = linear %x, %w1
  %y = linear %h, %w2
  return %y
}
`
	info, ds := checker.Read("mlp.hkt", text)
	if err := ds.Err(); err != nil {
		t.Fatal(err)
	}
	u, err := Build(info, Options{Strategy: Auto, Machine: "h100x2"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		rows int64
		n    int
		want int // variants, at least
	}{{4096, 100, 5}, {4096, 3, 3}, {4096, 1, 1}, {6, 100, 2}} {
		b := ir.Binding{Dims: map[string]int64{"T": c.rows}}
		list, err := u.Variants(b, c.n)
		if err != nil {
			t.Fatal(err)
		}
		if list[0].Name != "sequential" || len(list) < c.want || len(list) > c.n {
			t.Errorf("%d rows, at most %d: %d variants, the first %s", c.rows, c.n, len(list), list[0].Name)
		}
		plans := []string{}
		for i, v := range list {
			if i > 1 && v.Predicted < list[i-1].Predicted || v.Predicted <= 0 {
				t.Errorf("%s is predicted to take %v, behind %s with %v", v.Name, v.Predicted, list[i-1].Name,
					list[i-1].Predicted)
			}
			if plans = append(plans, v.Plan.String()); slices.Contains(plans[:i], plans[i]) {
				t.Errorf("%s has the plan of another", v.Name)
			}
			if err := u.Choose(b, v.Name); err != nil {
				t.Fatal(err)
			}
			p, err := u.Plan(b)
			if err != nil {
				t.Fatal(err)
			}
			if p.String() != plans[i] {
				t.Errorf("%s is chosen, and the plan is another", v.Name)
			}
		}
	}
}

// TestMeasuredFile checks that a choice is read as it was written, and that a choice for another program or an unusable
// one is not read.
func TestMeasuredFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "auto", "x.json")
	if m, err := ReadMeasured(path, "a"); m != nil || err != nil {
		t.Errorf("no file: %v, %v", m, err)
	}
	want := Measured{Identity: "a", Func: "f", Strategy: "exchange(2)",
		Times: map[string]float64{"sequential": 2, "exchange(2)": 1}}
	if err := want.Write(path); err != nil {
		t.Fatal(err)
	}
	if m, err := ReadMeasured(path, "a"); err != nil || m == nil || m.Strategy != want.Strategy ||
		m.Times["sequential"] != 2 {
		t.Errorf("got %+v, %v", m, err)
	}
	if m, err := ReadMeasured(path, "b"); m != nil || err != nil {
		t.Errorf("another's: %+v, %v", m, err)
	}
	want.Strategy = "faster"
	if err := want.Write(path); err != nil {
		t.Fatal(err)
	}
	if m, err := ReadMeasured(path, "a"); m != nil || err != nil {
		t.Errorf("a strategy that there is not: %+v, %v", m, err)
	}
	if err := os.WriteFile(path, []byte(`{"machine": 1}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if m, err := ReadMeasured(path, "a"); m != nil || err == nil {
		t.Errorf("another form: %+v, %v", m, err)
	}
}
