package eval

import (
	"fmt"

	"hocket.example/hocket/ir"
)

// groupedLinear computes x[T, K]·w[E, N, K]ᵀ by groups of rows. The operand w has the weights of the experts from
// number at.first on. The results are zeros for rows of other experts, and for rows that no count includes.
func groupedLinear(at attrs, ins []*array, dt ir.DType, sp split) (*array, error) {
	x, w, counts := ins[0], ins[1], ins[2]
	if len(x.shape) != 2 || len(w.shape) != 3 || x.shape[1] != w.shape[2] || at.first+w.shape[0] > counts.len() {
		return nil, fmt.Errorf("grouped_linear of shapes %v, %v and %v", x.shape, w.shape, counts.shape)
	}
	n, k := w.shape[1], w.shape[2]
	out := newContraction(dt, []int64{x.shape[0], n}, sp)
	a, b := asRows(x, x.shape[0], k), asRows(w, w.shape[0]*n, k)
	row := int64(0)
	for i, count := range counts.n {
		if count < 0 || count > x.shape[0]-row {
			return nil, &finding{"range",
				fmt.Sprintf("count %d (element %d of the counts) is negative, or the counts up to it exceed the "+
					"%d rows",
					count, i, x.shape[0]), "a count is the number of rows of an expert"}
		}
		expert := int64(i) - at.first
		for end := row + count; row < end; row++ {
			if err := at.ended(); err != nil {
				return nil, err
			}
			for q := range n {
				switch to := row*n + q; {
				case expert < 0 || expert >= w.shape[0]:
				case out.n != nil:
					out.n[to], out.e[to] = dotInt(dt, a, b, row, expert*n+q)
				default:
					out.store(to, dot(a, b, row, expert*n+q))
				}
			}
		}
	}
	for _, e := range counts.e {
		if e == 0 {
			continue
		}
		for i := range out.e { // if a count is uncertain, a row may belong to any expert
			out.e[i] = inf
		}
	}
	return out.array, nil
}
