package device

import (
	"fmt"
	"slices"
)

// CheckLinear returns nil if out can be the shape of x[…, K] · w[N, K]ᵀ + bias[N], and otherwise the reason why it
// cannot. ins holds the shapes of x and w, and of the bias if there is one.
func CheckLinear(out []int64, ins [][]int64) error {
	if len(ins) < 2 || len(ins) > 3 {
		return fmt.Errorf("it has %d operands, but needs 2 or 3", len(ins))
	}
	x, w := ins[0], ins[1]
	if len(x) < 1 || len(w) != 2 || x[len(x)-1] != w[1] {
		return fmt.Errorf("x%v · w%vᵀ: w must be [N, K] and x […, K]", x, w)
	}
	if want := append(slices.Clone(x[:len(x)-1]), w[0]); !slices.Equal(want, out) {
		return fmt.Errorf("the result has shape %v, but %v is required", out, want)
	}
	if len(ins) == 3 && !slices.Equal(ins[2], w[:1]) {
		return fmt.Errorf("bias%v for w%v", ins[2], w)
	}
	return nil
}

// CheckMatmul returns nil if out can be the shape of a[…, M, K] · b[…, K, N], and otherwise the reason why it cannot.
// ins holds the shapes of a and b as they are stored. ta and tb report whether a and b are read with their last two
// axes exchanged.
func CheckMatmul(out []int64, ins [][]int64, ta, tb bool) error {
	if len(ins) != 2 {
		return fmt.Errorf("it has %d operands, but needs 2", len(ins))
	}
	a, b, r := ins[0], ins[1], len(out)
	if r < 2 || len(a) != r || len(b) != r {
		return fmt.Errorf("%v · %v cannot have shape %v: the ranks must be equal and at least 2", a, b, out)
	}
	m, n, k := out[r-2], out[r-1], a[r-1]
	if ta {
		k = a[r-2]
	}
	matrix := func(rows, cols int64, exchanged bool) []int64 {
		if exchanged {
			rows, cols = cols, rows
		}
		return append(slices.Clone(out[:r-2]), rows, cols)
	}
	if !slices.Equal(a, matrix(m, k, ta)) || !slices.Equal(b, matrix(k, n, tb)) {
		return fmt.Errorf("%v · %v cannot have shape %v (ta=%v, tb=%v)", a, b, out, ta, tb)
	}
	return nil
}
