package stablehlo

import (
	"math"
	"strings"
	"testing"

	"hocket.example/hocket/internal/modelprogram"
)

// TestGradientForms checks the forms in which JAX prints parts of gradients: the gradient of a weight is a transposed
// product, sums are of negated numbers or over dimensions of extent 1, and a factor is computed long before its use.
func TestGradientForms(t *testing.T) {
	const text = `module @jit_f {
  func.func public @main(%arg0: tensor<4x6xf32>, %arg1: tensor<4x5xf32>) -> (tensor<5x6xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4x5xf32>) {
    %z = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [0] x [0] : (tensor<4x6xf32>, tensor<4x5xf32>) -> tensor<6x5xf32>
    %1 = stablehlo.transpose %0, dims = [1, 0] : (tensor<6x5xf32>) -> tensor<5x6xf32>
    %2 = stablehlo.negate %arg0 : tensor<4x6xf32>
    %3 = stablehlo.reduce(%2 init: %z) applies stablehlo.add across dimensions = [1] : (tensor<4x6xf32>, tensor<f32>) -> tensor<4xf32>
    %4 = stablehlo.exponential %3 : tensor<4xf32>
    %5 = stablehlo.reshape %4 : (tensor<4xf32>) -> tensor<4x1xf32>
    %6 = stablehlo.reduce(%5 init: %z) applies stablehlo.add across dimensions = [1] : (tensor<4x1xf32>, tensor<f32>) -> tensor<4xf32>
    %7 = stablehlo.tanh %arg1 : tensor<4x5xf32>
    %8 = stablehlo.dot_general %arg0, %1, contracting_dims = [1] x [1] : (tensor<4x6xf32>, tensor<5x6xf32>) -> tensor<4x5xf32>
    %9 = stablehlo.multiply %8, %7 : tensor<4x5xf32>
    return %1, %3, %6, %9 : tensor<5x6xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4x5xf32>
  }
}
`
	g, err := Read("gradient.mlir", text, Options{})
	if err != nil {
		t.Fatal(err)
	}
	x, y := numbers(24, 1), numbers(20, 2)
	weight := each(30, func(i int) (sum float64) {
		for k := range 4 {
			sum += x[k*6+i%6] * y[k*5+i/6]
		}
		return sum
	})
	sums := each(4, func(i int) (sum float64) {
		for k := range 6 {
			sum -= x[i*6+k]
		}
		return sum
	})
	out := ran(t, g, x, y)
	near(t, "weight", out[0], weight)
	near(t, "sums", out[1], sums)
	near(t, "exponentials", out[2], each(4, func(i int) float64 { return math.Exp(sums[i]) }))
	near(t, "products", out[3], each(20, func(i int) (sum float64) {
		for k := range 6 {
			sum += x[i/5*6+k] * weight[i%5*6+k]
		}
		return sum * math.Tanh(y[i])
	}))
	m, err := modelprogram.Make("gradient.mlir", g, modelprogram.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"%out0 = matmul", "%sum = sum %arg0, axis=1\n  %out1 = neg %sum\n", "%tanh = tanh %arg1\n  %out3 = mul"} {
		if !strings.Contains(m.Text, want) {
			t.Errorf("no %q in\n%s", want, m.Text)
		}
	}
	if n := strings.Count(m.Text, " sum "); n != 1 {
		t.Errorf("%d sums, want 1 in\n%s", n, m.Text)
	}
}

// TestScoresStaySplit checks that attention scores that are split by heads remain split, although the mask is the same
// for all heads and a convert follows. With another layout, they would be gathered.
func TestScoresStaySplit(t *testing.T) {
	const text = `module @jit_f {
  sdy.mesh @mesh = <["tp"=2]>
  func.func public @main(%arg0: tensor<4x3x3xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"tp"}, {}, {}]>}, %arg1: tensor<3x3xf32>) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"tp"}]>}) {
    %low = stablehlo.constant dense<0xFF7F> : tensor<bf16>
    %z = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %z, dims = [] : (tensor<f32>) -> tensor<3x3xf32>
    %1 = stablehlo.compare GT, %arg1, %0, FLOAT : (tensor<3x3xf32>, tensor<3x3xf32>) -> tensor<3x3xi1>
    %2 = stablehlo.broadcast_in_dim %1, dims = [1, 2] : (tensor<3x3xi1>) -> tensor<4x3x3xi1>
    %3 = stablehlo.broadcast_in_dim %low, dims = [] : (tensor<bf16>) -> tensor<4x3x3xbf16>
    %4 = stablehlo.select %2, %arg0, %3 : tensor<4x3x3xi1>, tensor<4x3x3xbf16>
    %5 = stablehlo.convert %4 : (tensor<4x3x3xbf16>) -> tensor<4x3x3xf32>
    %6 = stablehlo.reduce(%5 init: %z) applies stablehlo.maximum across dimensions = [1, 2] : (tensor<4x3x3xf32>, tensor<f32>) -> tensor<4xf32>
    %7 = stablehlo.convert %6 : (tensor<4xf32>) -> tensor<4xbf16>
    %8 = stablehlo.convert %7 : (tensor<4xbf16>) -> tensor<4xf32>
    return %8 : tensor<4xf32>
  }
}
`
	g, err := Read("scores.mlir", text, Options{})
	if err != nil {
		t.Fatal(err)
	}
	m, err := modelprogram.Make("scores.mlir", g, modelprogram.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{": f32[4/tp, 3, 3] = cast", ": bf16[4/tp] = cast"} {
		if !strings.Contains(m.Text, want) {
			t.Errorf("no %q in\n%s", want, m.Text)
		}
	}
}
