package modelprogram

import (
	"strconv"
	"testing"

	"hocket.example/hocket/internal/graph"
)

// TestNumber checks that a printed number is the same element of its type when it is read again. Integers and f64
// numbers that happen to be f32 numbers, too, need all their digits.
func TestNumber(t *testing.T) {
	for _, c := range []struct {
		x    float64
		dt   graph.DType
		want string
	}{
		{1 << 30, graph.I32, "1073741824"}, {-1 << 31, graph.I32, "-2147483648"}, {1 << 27, graph.I64, "134217728"},
		{1 << 62, graph.I64, "4611686018427387904"}, {float64(float32(0.1)), graph.F64, "0.10000000149011612"},
		{float64(float32(0.1)), graph.F32, "0.1"}, {0.1, graph.F32, "0.1"}, {1 << 30, graph.BF16, "1.0737418e+09"},
	} {
		got := number(c.x, c.dt)
		if got != c.want {
			t.Errorf("%v as %s: %s, want %s", c.x, c.dt, got, c.want)
		}
		if again, err := strconv.ParseFloat(got, 64); err != nil ||
			again != c.x && (c.dt == graph.F64 || !c.dt.IsFloat() || float32(again) != float32(c.x)) {
			t.Errorf("%v as %s is read as %v, %v", c.x, c.dt, again, err)
		}
	}
}
