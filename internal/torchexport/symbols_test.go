package torchexport

import (
	"encoding/json"
	"errors"
	"testing"
)

// TestExpressions evaluates extents in the notation of sympy.
func TestExpressions(t *testing.T) {
	value := func(name string) (int64, bool) { return 12, name == "s0" }
	for text, want := range map[string]int64{
		"Symbol('s0', positive=True, integer=True)": 12, "Integer(7)": 7,
		"Mul(Integer(2), Symbol('s0', integer=True))":                      24,
		"Add(Integer(-1), Symbol('s0'))":                                   11,
		"Pow(Symbol('s0', integer=True), Integer(2))":                      144,
		"FloorDiv(Symbol('s0'), Integer(5))":                               2,
		"Mod(Symbol('s0'), Integer(5))":                                    2,
		"Max(Integer(1), Symbol('s0'))":                                    12,
		"Add(Mul(Integer(3), Symbol('s0')), Mul(Integer(-1), Integer(4)))": 32,
		"torch.utils._sympy.functions.FloorDiv(Symbol('s0'), Integer(4))":  3,
	} {
		if got, err := (&exprParser{text: text, value: value}).parse(); err != nil || got != want {
			t.Errorf("%s is %d, %v; want %d", text, got, err, want)
		}
	}
	deep := ""
	for range 100 {
		deep += "Add("
	}
	for text, kind := range map[string]error{
		"": ErrMalformed, "Integer(": ErrMalformed, "Integer(x)": ErrMalformed, "Add(Integer(1)": ErrMalformed,
		"Symbol('s0')x": ErrMalformed, deep: ErrMalformed, "Symbol('s1')": ErrUnsupported,
		"Round(Symbol('s0'), Integer(2))":                     ErrUnsupported,
		"Mul(Integer(1099511627776), Integer(1099511627776))": ErrMalformed,
		"Pow(Symbol('s0'), Integer(99))":                      ErrUnsupported, "Symbol(s0)": ErrMalformed,
		"FloorDiv(Integer(3), Integer(0))": ErrUnsupported,
	} {
		if got, err := (&exprParser{text: text, value: value}).parse(); !errors.Is(err, kind) {
			t.Errorf("%q is %d, %v; want %v", text, got, err, kind)
		}
	}
}

// TestRangeOfSymbols reads the ranges of extents. A lower limit of 2 does not exclude 0 and 1.
func TestRangeOfSymbols(t *testing.T) {
	for text, want := range map[string]Symbol{
		`{"s0": {"min_val": 2, "max_val": 128}}`:  {Name: "s0", Min: 2, Max: 128},
		`{"s0": {"min_val": 4, "max_val": 128}}`:  {Name: "s0", Min: 4, Max: 128, Least: 4},
		`{"s0": {"min_val": 0, "max_val": null}}`: {Name: "s0", Min: 2},
		`{}`: {Name: "s0", Min: 2},
	} {
		var a Archive
		if err := json.Unmarshal([]byte(`{"graph_module": {"graph": {"sym_int_values":
			{"n": {"as_expr": {"expr_str": "Symbol('s0')"}}}}}, "range_constraints": `+text+`}`), &a.program); err != nil {
			t.Fatal(err)
		}
		if got, err := a.Symbols(); err != nil || len(got) != 1 || got[0] != want {
			t.Errorf("%s: %+v, %v; want %+v", text, got, err, want)
		}
	}
}
