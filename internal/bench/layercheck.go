package bench

import (
	"errors"
	"fmt"
	"math"

	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// ErrDiffers is wrapped by an error about a layer whose result is wrong.
var ErrDiffers = errors.New("the result differs from what was recomputed")

// samples is how many elements of each sampled row or column are recomputed.
const samples = 32

// check recomputes elements of a run's results in f64, and returns how many.
func (k *layerKind) check(s Shape, inputs, outputs map[string]*tensor.Tensor) (int, error) {
	row, col := samplePlaces(s)
	places := [2][2]int64{{row, -1}, {s.M - 1, -1}}
	length := s.N
	if k.axis == 1 {
		places, length = [2][2]int64{{-1, col}, {-1, s.N - 1}}, s.M
	}
	checked := 0
	for i, place := range places {
		out := outputs[fmt.Sprintf("s%d", i)]
		if out == nil || out.Len() != length {
			return checked, fmt.Errorf("sample %d: %w: it is not there", i, ErrDiffers)
		}
		for n := range int64(samples) {
			at := n * (length - 1) / (samples - 1)
			r, c := place[0], place[1]
			if r < 0 {
				r = at
			} else {
				c = at
			}
			if err := checkElement(s, inputs, r, c, out.Float64(at)); err != nil {
				return checked, err
			}
			checked++
		}
	}
	return checked, nil
}

// checkElement compares y[row, col] with Σ x[row, ·]·w[col, ·]. The bound knows
// that products are rounded to bf16 once per rank and once in the end, and
// that an x or w may have been rounded the other way: some bf16 steps of the
// size that a sum of random terms has.
func checkElement(s Shape, inputs map[string]*tensor.Tensor, row, col int64, got float64) error {
	want, squares := 0.0, 0.0
	for k := range s.K {
		term := operand(inputs["a"], inputs["b"], row, k) * operand(inputs["c"], inputs["d"], col, k)
		want += term
		squares += term * term
	}
	const step = 1.0 / 128
	if bound := 4 * step * (math.Abs(want) + math.Sqrt(squares)); !(math.Abs(got-want) <= bound) {
		return fmt.Errorf("%w: y[%d, %d] is %g and should be %g, give or take %g", ErrDiffers, row, col, got, want, bound)
	}
	return nil
}

// operand returns element [i, j] of left·rightᵀ as the devices round it.
func operand(left, right *tensor.Tensor, i, j int64) float64 {
	sum := 0.0
	for r := range int64(inner) {
		sum += left.Float64(i*inner+r) * right.Float64(j*inner+r)
	}
	return tensor.Round(ir.BF16, sum)
}
