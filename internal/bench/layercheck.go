package bench

import (
	"errors"
	"fmt"
	"math"

	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// ErrDiffers is wrapped by the error for a layer with a wrong result.
var ErrDiffers = errors.New("the result differs from what was recomputed")

// perSample is the number of elements that are recomputed in each sampled row or column.
const perSample = 32

// element is the expected value of one element of the result y, with an error bound.
type element struct {
	sample      int   // index of the program's output that contains the element
	at          int64 // index of the element in that output
	row, col    int64
	want, bound float64
}

// expected computes the expected values of sampled elements of y in f64, from the factors of the operands.
func (k *layerKind) expected(s Shape, inputs map[string]*tensor.Tensor) []element {
	x, w := product(inputs["a"], inputs["b"]), product(inputs["c"], inputs["d"])
	var out []element
	for i, place := range k.places(s) {
		length := s.N
		if k.axis == 1 {
			length = s.M
		}
		for n := range int64(perSample) {
			e := element{sample: i, at: n * (length - 1) / (perSample - 1)}
			e.row, e.col = place, e.at
			if k.axis == 1 {
				e.row, e.col = e.at, place
			}
			e.want, e.bound = dot(x.row(e.row), w.row(e.col), k.step())
			out = append(out, e)
		}
	}
	return out
}

// step returns the relative rounding step of the type of the operands.
func (k *layerKind) step() float64 {
	if k.scales != "" {
		return 1.0 / 16
	}
	return 1.0 / 128
}

// dot returns Σ x·w, and an error bound for the corresponding element of y. The bound is several rounding steps of the
// size of a sum of random terms, for two reasons. First, each rank rounds its result to bf16, and the sum is rounded
// again. Second, the devices may have rounded an element of an operand up that is rounded down here, or vice versa.
func dot(x, w []float64, step float64) (sum, bound float64) {
	squares := 0.0
	for i := range x {
		term := x[i] * w[i]
		sum += term
		squares += term * term
	}
	return sum, 4 * step * (math.Abs(sum) + math.Sqrt(squares))
}

// compare compares the sampled elements in the results of a run with their expected values.
func compare(want []element, outputs map[string]*tensor.Tensor) error {
	for _, e := range want {
		out := outputs[sampleName(e.sample)]
		if out == nil || e.at >= out.Len() {
			return fmt.Errorf("%w: the run has no output for sample %d", ErrDiffers, e.sample)
		}
		if got := out.Float64(e.at); !(math.Abs(got-e.want) <= e.bound) {
			return fmt.Errorf("%w: y[%d, %d] is %g, expected %g ± %g", ErrDiffers, e.row, e.col, got, e.want, e.bound)
		}
	}
	return nil
}

// factors are two matrices whose product is an operand of the GEMM.
type factors struct{ left, right []float64 }

func product(left, right *tensor.Tensor) factors { return factors{floats(left), floats(right)} }

func floats(t *tensor.Tensor) []float64 {
	out := make([]float64, t.Len())
	tensor.ToFloat64(out, t.Data, t.DType)
	return out
}

// row returns row i of the operand left·rightᵀ, rounded as the devices round it.
func (f factors) row(i int64) []float64 {
	out := make([]float64, len(f.right)/inner)
	l := f.left[i*inner : (i+1)*inner]
	for j := range out {
		sum := 0.0
		for r, v := range f.right[j*inner : (j+1)*inner] {
			sum += l[r] * v
		}
		out[j] = tensor.Round(ir.BF16, sum)
	}
	return out
}
