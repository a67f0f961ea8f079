package checker

import (
	"hocket.example/hocket/ir"
	"maps"
	"strings"
	"testing"
)

const defineProgram = `dim T = 12
dim P = 4
dim C
mesh tp[P]
func f(%x: f32[T, K]) -> f32[T, K] {
  return %x
}
`

func bindDefines(t *testing.T, src string, b ir.Binding) (map[string]int64, ir.Diagnostics) {
	t.Helper()
	p, ds := ir.Parse("p.hkt", src)
	if ds.HasErrors() {
		t.Fatal(ds)
	}
	in, ds := Check(p)
	if ds.HasErrors() {
		t.Fatal(ds)
	}
	bound, ds := ir.Bind(in, b)
	if bound == nil {
		return nil, ds
	}
	return bound.Dims, ds
}

func TestDefines(t *testing.T) {
	for _, c := range []struct {
		name string
		b    ir.Binding
		want map[string]int64
	}{
		{"a dim of dims", ir.Binding{Defines: map[string]string{"K": "T*2 + 1"}},
			map[string]int64{"T": 12, "P": 4, "K": 25}},
		{"over a default", ir.Binding{Defines: map[string]string{"T": "7", "K": "1"}},
			map[string]int64{"T": 7, "P": 4, "K": 1}},
		{"chained against the alphabet", ir.Binding{Defines: map[string]string{"C": "K+1", "K": "T"}},
			map[string]int64{"T": 12, "P": 4, "K": 12, "C": 13}},
		{"the mesh's size", ir.Binding{Defines: map[string]string{"K": "3*size(tp)"}, Ranks: 8},
			map[string]int64{"T": 12, "P": 8, "K": 24}},
		{"circular", ir.Binding{Defines: map[string]string{"K": "3*P"}, Ranks: 8},
			map[string]int64{"T": 12, "P": 8, "K": 24}},
		{"a mesh made of it", ir.Binding{Defines: map[string]string{"K": "1", "P": "T - C", "C": "ceildiv(T, 2)"}},
			map[string]int64{"T": 12, "P": 6, "C": 6, "K": 1}},
	} {
		given := maps.Clone(c.b.Dims)
		got, ds := bindDefines(t, defineProgram, c.b)
		if len(ds) > 0 || !maps.Equal(got, c.want) {
			t.Errorf("%s: %v, %v, want %v", c.name, got, ds, c.want)
		}
		if !maps.Equal(given, c.b.Dims) {
			t.Errorf("%s: Bind changed its argument", c.name)
		}
	}
}

func TestWrongDefines(t *testing.T) {
	for _, c := range []struct{ name, expr, want string }{
		{"Q", "1", "the program has no dim Q"},
		{"K", "", "the expression is empty"},
		{"K", "T +", "expected an expression"},
		{"K", "T T", "expected an operator"},
		{"K", "1)", "expected an operator"},
		{"K", "Q", "the program has no dim Q"},
		{"K", "C", "C is not known here"},
		{"K", "K", "K is not known here"},
		{"K", "%i", "a definition may contain only integers"},
		{"K", "rank(tp)", "a definition may contain only integers"},
		{"K", "size(dp)", "size(dp) is not known"},
		{"K", "0 - T", "the value is -12"},
		{"K", "floordiv(T, 0)", "division by zero"},
		{"K", "9223372036854775807*T", "the result exceeds 64 bits"},
		{"K", strings.Repeat("(", 100000), "nested deeper"},
		{"K", "\xff", "not UTF-8"},
		{"P", "size(tp)", "size(tp) is not known"},
	} {
		_, ds := bindDefines(t, defineProgram, ir.Binding{Defines: map[string]string{c.name: c.expr}})
		if len(ds) != 1 || !strings.Contains(ds[0].Message, c.want) || ds[0].Kind != "bind" {
			t.Errorf("%s=%.20q: %v, want %q", c.name, c.expr, ds, c.want)
		}
	}
	both := ir.Binding{Dims: map[string]int64{"K": 1}, Defines: map[string]string{"K": "1"}}
	if _, ds := bindDefines(t, defineProgram, both); !strings.Contains(ds.Error(), "a value and a definition") {
		t.Errorf("value and definition: %v", ds)
	}
}

func TestDefineOfWhatRanksSet(t *testing.T) {
	src := strings.Replace(defineProgram, "mesh tp[P]", "mesh tp[P] dp[C]", 1)
	b := ir.Binding{Ranks: 8, Dims: map[string]int64{"K": 1}, Defines: map[string]string{"C": "floordiv(P, 2)"}}
	if dims, ds := bindDefines(t, src, b); ds == nil || !strings.Contains(ds.Error(), "circular") {
		// P=4 gives C=2 and so 4*2 ranks: consistent, and accepted.
		if dims["P"] != 4 || dims["C"] != 2 {
			t.Errorf("%v, %v", dims, ds)
		}
	}
	b.Ranks = 16
	if dims, ds := bindDefines(t, src, b); ds == nil || !strings.Contains(ds.Error(), "circular") {
		t.Errorf("%v, %v", dims, ds)
	}
}
