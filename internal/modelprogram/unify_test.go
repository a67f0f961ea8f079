package modelprogram

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"hocket.example/hocket/ir"
)

// TestExpress checks that numbers that depend on dims become expressions over dims, and that others do not.
func TestExpress(t *testing.T) {
	dims := []Dim{{Name: "B", Values: []int64{2, 3, 7, 5}}, {Name: "T", Values: []int64{12, 5, 6, 31}}}
	for _, c := range []struct {
		values []int64
		want   string
	}{
		{[]int64{12, 5, 6, 31}, "T"}, {[]int64{2, 3, 7, 5}, "B"}, {[]int64{36, 15, 18, 93}, "T * 3"},
		{[]int64{13, 6, 7, 32}, "T + 1"}, {[]int64{23, 9, 11, 61}, "T * 2 - 1"}, {[]int64{24, 15, 42, 155}, "B * T"},
		{[]int64{192, 120, 336, 1240}, "B * T * 8"}, {[]int64{12, 5, 6, 32}, ""}, {[]int64{5, 12, 11, -14}, ""},
		{[]int64{144, 25, 36, 961}, ""},
	} {
		if got := express(c.values, dims); got != c.want {
			t.Errorf("%v is %q, want %q", c.values, got, c.want)
		}
	}
}

// TestUnify checks that programs that are equal except for numbers are combined into one program with dims, and that
// others are refused.
func TestUnify(t *testing.T) {
	model := func(text string) *Model { return &Model{Text: text} }
	texts := func(rows, op string) string {
		return "// Of m2.pt2.\ndim P = 2\nmesh tp[P]\n\nfunc f(%x1: f32[" + rows + ", 4]) -> f32[" + rows + ", 4] {\n" +
			"  %y = " + op + " %x1\n  return %y\n}\n"
	}
	dims := []Dim{{Name: "T", Values: []int64{12, 5, 31}, Least: 4, Most: 40}}
	m, err := Unify("m", []*Model{model(texts("12", "silu")), model(texts("5", "silu")), model(texts("31", "silu"))},
		dims)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"dim T = 12  // 4 to 40\ndim P = 2", "%x1: f32[T, 4]", "// Of m2.pt2."} {
		if !strings.Contains(m.Text, want) {
			t.Errorf("it lacks %q:\n%s", want, m.Text)
		}
	}
	for value, ok := range map[int64]bool{3: false, 4: true, 40: true, 41: false} {
		_, ds := ir.Bind(m.Info, ir.Binding{Dims: map[string]int64{"T": value}})
		if says := fmt.Sprintf("T is %d; the export allows 4 to 40", value); ok && ds.HasErrors() ||
			!ok && !strings.Contains(ds.Error(), says) {
			t.Errorf("T=%d: %v", value, ds)
		}
	}
	for name, c := range map[string]struct {
		rows, op string
		says     string
	}{
		"a number": {"30", "silu", "%x1: f32[12, 4]"}, "an operation": {"31", "gelu", "%y = silu %x1"},
		"more": {"31", "neg (silu %x1) //", "T=12 and T=31"},
	} {
		_, err := Unify("m", []*Model{model(texts("12", "silu")), model(texts("5", "silu")),
			model(texts(c.rows, c.op))}, dims)
		if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v; want one that says %q", name, err, c.says)
		}
	}
}
