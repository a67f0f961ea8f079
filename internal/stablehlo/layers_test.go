package stablehlo

import (
	"math"
	"strings"
	"testing"

	"hocket.example/hocket/internal/modelprogram"
)

// TestLayers checks that a scan over stacked weights becomes a loop of the program. It scans forwards, backwards and
// over every second row, and two loops use the same stack.
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

// TestCarriesThatBeginAlike checks a scan that carries two values with the same initial value, which is an argument or
// a computed value.
func TestCarriesThatBeginAlike(t *testing.T) {
	const text = `module @jit_f {
  func.func public @main(%arg0: tensor<4x8xf32>, %arg1: tensor<4x8x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>) {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %p = stablehlo.exponential %arg0 : tensor<4x8xf32>
    %0:3 = stablehlo.while(%i = %c, %a = FIRST, %b = FIRST) : tensor<i32>, tensor<4x8xf32>, tensor<4x8xf32>
    cond {
      %n = stablehlo.constant dense<4> : tensor<i32>
      %1 = stablehlo.compare LT, %i, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %2 = stablehlo.dynamic_slice %arg1, %i, %c, %c, sizes = [1, 8, 8]
        : (tensor<4x8x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x8xf32>
      %3 = stablehlo.reshape %2 : (tensor<1x8x8xf32>) -> tensor<8x8xf32>
      %4 = stablehlo.dot_general %b, %3, contracting_dims = [1] x [0]
        : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
      %5 = stablehlo.tanh %4 : tensor<4x8xf32>
      %6 = stablehlo.subtract %a, %4 : tensor<4x8xf32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %7 = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %7, %5, %6 : tensor<i32>, tensor<4x8xf32>, tensor<4x8xf32>
    }
    return %0#1, %0#2 : tensor<4x8xf32>, tensor<4x8xf32>
  }
}
`
	for _, first := range []string{"%arg0", "%p"} {
		g, err := Read("scan.mlir", strings.ReplaceAll(text, "FIRST", first), Options{})
		if err != nil {
			t.Fatal(err)
		}
		x, w := numbers(32, 1), numbers(256, 2)
		a, b := x, x
		if first == "%p" {
			a = each(32, func(i int) float64 { return math.Exp(x[i]) })
			b = a
		}
		for l := range 4 {
			y := each(32, func(i int) float64 {
				sum := 0.0
				for k := range 8 {
					sum += b[i/8*8+k] * w[l*64+k*8+i%8]
				}
				return sum
			})
			last := a
			a = each(32, func(i int) float64 { return math.Tanh(y[i]) })
			b = each(32, func(i int) float64 { return last[i] - y[i] })
		}
		out := ran(t, g, x, w)
		near(t, first+" a", out[0], a)
		near(t, first+" b", out[1], b)
	}
}
