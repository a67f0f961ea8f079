package stablehlo

import (
	"fmt"
	"math"
	"math/cmplx"
	"os"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/modelprogram"
)

// TestElementwise compares operations that are composed of several others with package math.
func TestElementwise(t *testing.T) {
	x := []float64{-2.5, -1e-6, 0.5, 1.5, 3.25, -0.75}
	for i := range x {
		x[i] = float64(float32(x[i]))
	}
	out := ran(t, program(t, "elementwise.mlir"), x)
	for k, f := range []func(x float64) float64{math.Expm1, func(x float64) float64 { return math.Log1p(math.Abs(x)) },
		math.Cbrt, math.RoundToEven, math.Round, math.Ceil,
		func(x float64) float64 { return math.Copysign(1, x) },
		func(x float64) float64 { return math.Mod(x, 2) }, math.Trunc,
		func(x float64) float64 { return min(max(x, -1), 1.25) },
		func(float64) float64 { return 1 }} {
		near(t, "result", out[k], each(6, func(i int) float64 { return f(x[i]) }))
	}
	for k := range 2 { // near 0, the relative error must be small
		if want := 1e-6 * float64(2*k-1); math.Abs(out[k][1]/want-1) > 1e-5 {
			t.Errorf("of 1e-6: %g, want %g", out[k][1], want)
		}
	}
}

// TestComplex compares operations on complex numbers with package cmplx.
func TestComplex(t *testing.T) {
	x, y := []float64{-2.5, 0, 0.5, 1.5, 3.25, 0}, []float64{0.75, -0.5, 1e-3, -1.25, 0, 0}
	for i := range y {
		y[i] = float64(float32(y[i]))
	}
	z := func(i int) complex128 { return complex(x[i], y[i]) }
	one := func(f func(complex128) complex128) func(int) complex128 {
		return func(i int) complex128 { return f(z(i)) }
	}
	sum := complex128(0)
	for i := range x {
		sum += z(i)
	}
	// The quotient of a division by 0 is NaN.
	quotient := func(i int) complex128 {
		if i == 0 {
			return cmplx.NaN()
		}
		return z(i) / z(5-i)
	}
	out := ran(t, program(t, "complex.mlir"), x, y)
	for k, f := range []func(int) complex128{
		func(i int) complex128 { return z(i) * z(5-i) }, quotient,
		func(i int) complex128 { return z(i) + (0.5 - 1.25i) }, func(i int) complex128 { return z(i) - z(5-i) },
		one(cmplx.Exp), one(func(z complex128) complex128 { return cmplx.Exp(z) - 1 }), one(cmplx.Sin), one(cmplx.Cos),
		one(cmplx.Tanh), one(cmplx.Sqrt), one(func(z complex128) complex128 { return 1 / cmplx.Sqrt(z) }),
		one(func(z complex128) complex128 { return 1 / (1 + cmplx.Exp(-z)) }),
		one(func(z complex128) complex128 {
			if z == 0 {
				return 0
			}
			return z / complex(cmplx.Abs(z), 0)
		}), one(func(z complex128) complex128 { return -z }),
		func(i int) complex128 { return z(i/3)*z(i%3) + z(3+i/3)*z(3+i%3) },
		func(int) complex128 { return sum }} {
		for i := range x {
			want := f(i)
			if cmplx.IsNaN(want) || cmplx.IsInf(want) {
				continue
			}
			near(t, fmt.Sprintf("result %d of %v", k, z(i)), []float64{out[2*k][i], out[2*k+1][i]},
				[]float64{real(want), imag(want)})
		}
	}
	near(t, "abs", out[32], each(6, func(i int) float64 { return cmplx.Abs(z(i)) }))
	near(t, "equal", out[33], make([]float64, 6))
	const result = "func.func @main() -> tensor<complex<f32>> {\n %0 = stablehlo.constant "
	for wrong, want := range map[string]string{
		"func.func @main(%arg0: tensor<2xcomplex<f32>>) {\n return\n}": "of type tensor<2xcomplex<f32>>",
		result + "dense<(1.0, 2.0)> : tensor<complex<f32>>\n return %0 : tensor<complex<f32>>\n}": "result 0 is of " +
			"type",
		result + "dense<(1.0, 2.0, 3.0)> : tensor<complex<f32>>\n}": "3 parts",
		result + "dense<1.0> : tensor<complex<f32>>\n}":             "want",
	} {
		if _, err := Read("wrong.mlir", wrong, Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", wrong, err, want)
		}
	}
}

// TestContract compares products with sums over indices.
func TestContract(t *testing.T) {
	x, y, w := numbers(120, 1), numbers(240, 2), numbers(30, 3)
	out := ran(t, program(t, "contract.mlir"), x, y, w)
	at := func(list []float64, shape []int, idx ...int) float64 {
		k := 0
		for d, i := range idx {
			k = k*shape[d] + i
		}
		return list[k]
	}
	xs, ys, ws := []int{2, 3, 4, 5}, []int{5, 2, 6, 4}, []int{6, 5}
	sum := func(n int, f func(k int) float64) float64 {
		s := 0.0
		for k := range n {
			s += f(k)
		}
		return s
	}
	near(t, "batched", out[0], each(2*4*3*6, func(i int) float64 {
		return sum(5, func(k int) float64 {
			return at(x, xs, i/72, i/6%3, i/18%4, k) * at(y, ys, k, i/72, i%6, i/18%4)
		})
	}))
	near(t, "rows", out[1], each(2*3*4*6, func(i int) float64 {
		return sum(5, func(k int) float64 { return x[i/6*5+k] * at(w, ws, i%6, k) })
	}))
	near(t, "a number", out[2], []float64{sum(30, func(k int) float64 { return w[k] * w[k] })})
	near(t, "columns", out[3], each(25, func(i int) float64 {
		return sum(6, func(k int) float64 { return at(w, ws, k, i/5) * at(w, ws, k, i%5) })
	}))
	near(t, "dot", out[4], each(18, func(i int) float64 {
		return sum(5, func(k int) float64 { return at(w, ws, i/3, k) * at(x, xs, 0, i%3, 2, k) })
	}))
}

// TestLayouts checks the layouts in a program over two axes. Parameters and results have the layouts that are stated,
// and casts have the layouts of their operands.
func TestLayouts(t *testing.T) {
	g := program(t, "layouts.mlir")
	m, err := modelprogram.Make("layouts.mlir", g, modelprogram.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"mesh dp[2] tp[2]\n", "%arg0: bf16[4/dp, 6, 8]", "%arg3: f32[16/(dp, tp), 8]",
		"-> (f32[4/dp, 6, 8], f32[4/dp, 6, 16/tp])", "%cast: bf16[8, 4/tp, 4] = cast %arg1",
		"%reshard: bf16[4/dp, 6, 4/tp, 4] = reshard", "%cast2: f32[4/dp, 6, 4/tp, 4] = cast %reshard"} {
		if !strings.Contains(m.Text, want) {
			t.Errorf("the program lacks %q\n%s", want, m.Text)
		}
	}
	ran(t, g, numbers(192, 1), numbers(128, 2), numbers(128, 3), numbers(128, 4))
}

// TestMeshSizes checks how the sizes of two axes follow from the number of ranks: the last axis stays as large as
// possible.
func TestMeshSizes(t *testing.T) {
	text, err := os.ReadFile("testdata/layouts.mlir")
	if err != nil {
		t.Fatal(err)
	}
	for ranks, want := range map[int][2]int64{0: {2, 2}, 1: {1, 1}, 2: {1, 2}, 4: {2, 2}, 8: {2, 4}} {
		g, err := Read("layouts.mlir", string(text), Options{Ranks: ranks})
		if err != nil {
			t.Fatal(err)
		}
		if got := [2]int64{g.Mesh[0].Size, g.Mesh[1].Size}; got != want {
			t.Errorf("%d ranks: %v, want %v", ranks, got, want)
		}
	}
}

// TestWholeNumbers checks that known integers are computed with the width of their type.
func TestWholeNumbers(t *testing.T) {
	g, err := Read("t", `func.func @main() -> (tensor<3xi32>, tensor<2xi32>, tensor<2xf32>, tensor<2xi32>) {
  %a = stablehlo.constant dense<[2147483647, -2147483648, 5]> : tensor<3xi32>
  %b = stablehlo.constant dense<[1, 1, 3]> : tensor<3xi32>
  %0 = stablehlo.add %a, %b : tensor<3xi32>
  %c = stablehlo.constant dense<[4294967295, 6]> : tensor<2xui32>
  %d = stablehlo.constant dense<[3, 1]> : tensor<2xui32>
  %1 = stablehlo.multiply %c, %d : tensor<2xui32>
  %2 = stablehlo.shift_right_logical %1, %d : tensor<2xui32>
  %3 = stablehlo.xor %2, %d : tensor<2xui32>
  %4 = stablehlo.convert %3 : (tensor<2xui32>) -> tensor<2xi32>
  %e = stablehlo.constant dense<[1065353216, 3221225472]> : tensor<2xui32>
  %5 = stablehlo.bitcast_convert %e : (tensor<2xui32>) -> tensor<2xf32>
  %6 = stablehlo.negate %5 : tensor<2xf32>
  %7 = stablehlo.bitcast_convert %6 : (tensor<2xf32>) -> tensor<2xi32>
  return %0, %4, %5, %7 : tensor<3xi32>, tensor<2xi32>, tensor<2xf32>, tensor<2xi32>
}`, Options{})
	if err != nil {
		t.Fatal(err)
	}
	out := ran(t, g)
	near(t, "sums", out[0], []float64{-2147483648, -2147483647, 8})
	near(t, "bits", out[1], []float64{(1<<32-3)>>3 ^ 3, 6>>1 ^ 1})
	near(t, "bits as numbers", out[2], []float64{1, -2})
	near(t, "numbers as bits", out[3], []float64{0xBF800000 - 1<<32, 0x40000000})
}

// TestAttention compares causal attention with its formula.
func TestAttention(t *testing.T) {
	q, k, v := numbers(24, 1), numbers(24, 2), numbers(24, 3)
	g := program(t, "attention.mlir")
	softmax := false
	for _, n := range g.Nodes {
		softmax = softmax || n.Op == "softmax"
	}
	if !softmax {
		t.Error("the softmax is not found")
	}
	out := ran(t, g, q, k, v)
	want := make([]float64, 24)
	for h := range 2 {
		for i := range 3 {
			total, e := 0.0, [3]float64{}
			for j := range i + 1 {
				s := 0.0
				for d := range 4 {
					s += q[i*8+h*4+d] * k[j*8+h*4+d]
				}
				e[j] = math.Exp(s / 2)
				total += e[j]
			}
			for j := range i + 1 {
				for d := range 4 {
					want[i*8+h*4+d] += e[j] / total * v[j*8+h*4+d]
				}
			}
		}
	}
	near(t, "attention", out[0], want)
}

// TestConvolution compares convolutions with sums over the positions of the window. One convolution has groups of
// features, a stride and a reversed window. Another has groups of batches, like the gradient of a convolution.
func TestConvolution(t *testing.T) {
	x, w, v := numbers(40, 1), numbers(36, 2), numbers(36, 3)
	out := ran(t, program(t, "convolution.mlir"), x, w, v)
	at := func(n, p, f int) float64 {
		if p < 0 || p >= 5 {
			return 0
		}
		return x[(n*5+p)*4+f]
	}
	near(t, "grouped", out[0], each(36, func(i int) (sum float64) {
		n, p, o := i/18, i/6%3, i%6
		for k := range 3 {
			for c := range 2 {
				sum += at(n, 2*p+k-1, o/3*2+c) * w[((2-k)*2+c)*6+o]
			}
		}
		return sum
	}))
	near(t, "by batches", out[1], each(36, func(i int) (sum float64) {
		p, r, o := i/12, i/6%2, i%6
		for k := range 3 {
			for c := range 2 {
				sum += at(c, p+2*k-1, o/3*2+r) * v[(c*3+k)*6+o]
			}
		}
		return sum
	}))
}

// TestSort checks the sorting of rows and columns, and operations on integers that depend on the input: updates at an
// index, where the last update of an element takes effect, quotients that round towards zero, and powers.
func TestSort(t *testing.T) {
	x := []float64{0.5, -2, 0.5, -7, 3, 1, -1, 2, 4, 4, 0, 4}
	k := []float64{3, -7, 2, 5, -4, 0, 4, -1, 2, 7, -3, 1}
	for i := range x { // a power of a negative number with a fraction as exponent is NaN
		x[i] = float64(float32(x[i]))
	}
	out := ran(t, program(t, "sort.mlir"), x, k, []float64{2, 0, 2})
	near(t, "sorted", out[0], []float64{-7, -2, 0.5, 0.5, -1, 1, 2, 3, 0, 4, 4, 4})
	near(t, "places", out[1], []float64{3, 1, 0, 2, 2, 1, 3, 0, 2, 0, 1, 3})
	near(t, "alike", out[2], []float64{5, -7, 3, 2, 4, 0, -1, -4, -3, 2, 7, 1})
	near(t, "columns from the largest", out[3], []float64{3, 7, 4, 5, 2, 0, 2, 1, -4, -7, -3, -1})
	near(t, "updated", out[4], slices.Concat(x[4:8], x[4:8], x[8:]))
	near(t, "quotients", out[5], each(12, func(i int) float64 { return math.Trunc(k[i] / 3) }))
	near(t, "remainders", out[6], each(12, func(i int) float64 { return math.Mod(k[i], 3) }))
	for i, got := range out[7] {
		if want := math.Pow(x[i], k[i]); math.Abs(got/want-1) > 1e-5 && got != want {
			t.Errorf("%g to the power %g is %g, want %g", x[i], k[i], got, want)
		}
	}
}

// TestEmbedding checks lookups of rows, additions to rows, and selections of elements. Negative ids count from the end
// of the table; ids outside the table give NaN.
func TestEmbedding(t *testing.T) {
	table, ids, dy := numbers(15, 1), []float64{3, 0, -1, 3}, numbers(12, 2)
	g := program(t, "embedding.mlir")
	out := ran(t, g, table, ids, dy)
	row := []int{3, 0, 4, 3}
	near(t, "rows", out[0], each(12, func(i int) float64 { return table[row[i/3]*3+i%3] }))
	sums := make([]float64, 15)
	for i, id := range []int{3, 0, -1, 3} {
		for d := range 3 {
			if id >= 0 { // an update outside the table has no effect
				sums[id*3+d] += dy[i*3+d]
			}
		}
	}
	near(t, "sums", out[1], sums)
	near(t, "elements", out[2], each(4, func(i int) float64 {
		return dy[i*3+min(max([]int{3, 0, -1, 3}[i], 0), 2)]
	}))
	out = ran(t, g, table, []float64{5, 0, -6, 1}, dy)
	for i, id := range []int{5, 0, -6, 1} {
		if nan := math.IsNaN(out[0][i*3]); nan != (id > 4 || id < -5) {
			t.Errorf("row %d is %g", id, out[0][i*3])
		}
	}
}

// TestScan checks a loop over layers that stacks the results of the layers.
func TestScan(t *testing.T) {
	w, h := numbers(48, 1), numbers(8, 2)
	g := program(t, "scan.mlir")
	if got := g.Inputs[0].Layout; len(got) != 3 || len(got[2]) != 1 || got[2][0] != "tp" {
		t.Errorf("arg0 has layout %v", got)
	}
	out := ran(t, g, w, h)
	var stack []float64
	for l := range 3 {
		next := make([]float64, 8)
		for i := range next {
			for k := range 4 {
				next[i] += h[i/4*4+k] * w[l*16+k*4+i%4]
			}
		}
		stack = append(stack, next...)
		h = each(8, func(i int) float64 { return math.Tanh(next[i]) })
	}
	near(t, "the last", out[0], h)
	near(t, "the stack", out[1], stack)
}

// TestGeneric checks the generic form with parameters that are bools, with strides, and with a reduction whose body is
// that of argmax.
func TestGeneric(t *testing.T) {
	x := []float64{5, 1, 7, 0, 9, 7, 5, 2, 1, 4, 9, 3}
	out := ran(t, program(t, "generic.mlir"), x, []float64{1, 0, 0, 1})
	var want []float64
	for _, r := range []int{1, 3} {
		for d := range 3 {
			v := x[r*3+d]
			if !(v > float64(d+1)) && r != 3 {
				v = float64(d + 1)
			}
			want = append(want, v)
		}
	}
	near(t, "chosen", out[0], want)
	near(t, "argmax", out[1], []float64{0, 1, 0})
}

// TestShapes checks slices, padding, reversals, updates and reductions over windows.
func TestShapes(t *testing.T) {
	x, u := []float64{1, 2, 3, 4, 5, -1, -2, -3, -4, -5}, []float64{10, 20, 30, 40}
	g := program(t, "shapes.mlir")
	for at, i := range map[float64]int{0: 0, 2: 2, 3: 3, 7: 3, -2: 0} { // held within the tensor
		out := ran(t, g, x, []float64{at}, u)
		near(t, "strides", out[0], []float64{1, 3, 5, -1, -3, -5})
		padded := make([]float64, 40)
		for k := range padded {
			padded[k] = 9
			if r, c := k/8-1, k%8+1; (r == 0 || r == 2) && c%2 == 0 {
				padded[k] = x[r/2*5+c/2]
			}
		}
		near(t, "padded", out[1], padded)
		back := []float64{5, 4, 3, 2, 1, -5, -4, -3, -2, -1}
		near(t, "reversed", out[2], back)
		near(t, "part", out[3], []float64{x[i], x[i+1], x[5+i], x[5+i+1]})
		updated := append([]float64{}, x...)
		copy(updated[i:], u[:2])
		copy(updated[5+i:], u[2:])
		near(t, "updated", out[4], updated)
		near(t, "sums", out[5], []float64{1, 3, 6, 10, 15, -1, -3, -6, -10, -15})
		near(t, "maxima", out[6], []float64{2, 4, 5, -1, -3, -5})
		near(t, "joined", out[7], append(append([]float64{}, x...), back...))
		branch := [][]float64{x, back, each(10, func(i int) float64 { return -x[i] })}[2]
		if at == 0 {
			branch = x
		}
		near(t, "branch", out[8], branch)
	}
}

// TestManual compares a manual computation on four devices with the computation of each device. Device (a, b) holds
// rows 2a to 2a+1 and columns 4b to 4b+3 of x[4, 8].
func TestManual(t *testing.T) {
	x, y := numbers(32, 1), numbers(8, 2)
	out := ran(t, program(t, "manual.mlir"), x, y)
	part := func(dev, i int) float64 { return x[(dev/2*2+i/4)*8+dev%2*4+i%4] } // element i of the device's part
	near(t, "product", out[0], each(32, func(i int) float64 { return x[i] * y[i%8] }))
	near(t, "all_reduce over a", out[1], each(16, func(i int) float64 { return x[i] + x[16+i] }))
	near(t, "all_gather over b", out[2], x)
	// Device (a, b) holds columns 2a to 2a+1 of the sum over a, which has shape [2, 4]. The results are concatenated by
	// rows along b and by columns along a.
	near(t, "reduce_scatter over a", out[3], each(16, func(i int) float64 {
		r, c := i/4, i%4
		b := r / 2
		return part(b, r%2*4+c) + part(2+b, r%2*4+c)
	}))
	near(t, "all_reduce over both", out[4], each(8, func(i int) float64 {
		return max(part(0, i), part(1, i), part(2, i), part(3, i))
	}))
	// Device (a, b) receives row b from each device with the same a, concatenated. The results are concatenated along b,
	// then along a.
	near(t, "all_to_all over b", out[5], each(32, func(i int) float64 {
		dev, e := i/8, i%8 // of the results: b major
		a, b := dev%2, dev/2
		return part(a*2+e/4, b*4+e%4)
	}))
	near(t, "permute and index", out[6], each(32, func(i int) float64 {
		r, c := i/8, i%8
		dev, e := r/2*2+c/4, r%2*4+c%4
		from := []int{3, 0, -1, 1}[dev]
		v := float64(dev % 2)
		if from >= 0 {
			v += part(from, e)
		}
		return v
	}))
}

// TestScatter checks a scatter that adds to the rows that ids select. Ids that select no row have no effect. The
// gradient of a table of 32,000 rows for 1,024 ids must not be computed as a product with a table of ids by rows.
func TestScatter(t *testing.T) {
	ids := []float64{3, 0, 3, -1, 5, 4, 3}
	u, x := numbers(21, 1), numbers(15, 2)
	want := slices.Clone(x)
	for i, id := range ids {
		for j := range 3 {
			if id >= 0 && id < 5 {
				want[int(id)*3+j] += u[i*3+j]
			}
		}
	}
	near(t, "scatter", ran(t, program(t, "scatter.mlir"), ids, u, x)[0], want)
	text, err := os.ReadFile("testdata/scatter.mlir")
	if err != nil {
		t.Fatal(err)
	}
	large := strings.NewReplacer("<7x3x", "<1024x2048x", "<5x3x", "<32000x2048x", "<7x", "<1024x").Replace(string(text))
	g, err := Read("large.mlir", large, Options{})
	if err != nil {
		t.Fatal(err)
	}
	m, err := modelprogram.Make("large", g, modelprogram.Options{})
	if err != nil || !strings.Contains(m.Text, "index_add") || strings.Contains(m.Text, "32000, 1024") {
		t.Fatalf("%v\n%v", err, m)
	}
}
