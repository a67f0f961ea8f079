package stablehlo

import (
	"math"
	"strings"
	"testing"

	"hocket.example/hocket/internal/modelprogram"
)

// TestLayers: a scan over stacked weights is a loop of the program, forwards, backwards and by every second row, though two
// loops use one stack.
func TestLayers(t *testing.T) {
	g := program(t, "layers.mlir")
	x, w, b := numbers(32, 1), numbers(256, 2), numbers(64, 3)
	times := func(x []float64, l int) []float64 {
		return each(32, func(i int) float64 {
			sum := 0.0
			for k := range 8 {
				sum += x[i/8*8+k] * w[l*64+k*8+i%8]
			}
			return sum
		})
	}
	h := x
	for l := range 4 {
		y := times(h, l)
		h = each(32, func(i int) float64 { return math.Tanh(y[i] + b[16*l+i%8]) })
	}
	back := h
	for l := range 4 {
		back = times(back, 3-l)
	}
	out := ran(t, g, x, w, b)
	near(t, "forwards", out[0], h)
	near(t, "backwards", out[1], back)

	m, err := modelprogram.Make("layers.mlir", g, modelprogram.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"for %l in 0..4 carry %h = %arg0 {", "matmul %h, %arg1[%l]", "%arg2[2 * %l]",
		"for %l2 in 0..4 carry %h2 = %out0 {", "matmul %h2, %arg1[3 - %l2]"} {
		if !strings.Contains(m.Text, want) {
			t.Errorf("no %q in\n%s", want, m.Text)
		}
	}
}
