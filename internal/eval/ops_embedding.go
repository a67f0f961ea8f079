package eval

import (
	"fmt"
	"math"
	"slices"

	"hocket.example/hocket/ir"
)

// embedding returns the rows of table[V, D] that ids select. If ranks hold different rows of the table, the result
// is a partial sum: one rank contributes the selected row, and the others contribute zeros.
func embedding(at attrs, ids, table *array, sp split) (*array, error) {
	if ids.n == nil || len(table.shape) != 2 {
		return nil, fmt.Errorf("embedding of %v%v by %v%v", table.dt, table.shape, ids.dt, ids.shape)
	}
	held, d := table.shape[0], table.shape[1]
	rows := held
	if at.rows > 0 {
		rows = at.rows
	}
	out := newArray(table.dt, append(slices.Clone(ids.shape), d))
	if sp.partial && out.n == nil {
		out.mag = make([]float64, out.len())
	}
	for i, id := range ids.n {
		to := int64(i) * d
		if id < 0 || id >= rows {
			return nil, &finding{"range", fmt.Sprintf("id %d is outside 0 to %d, the rows of the table", id, rows-1),
				"ids count from 0"}
		}
		if row := id - at.first; row >= 0 && row < held {
			out.copyRun(to, table, row*d, d)
		}
		for j := to; j < to+d; j++ {
			out.looked(j, ids.e[i])
		}
	}
	return out, nil
}

// looked sets the bound of element j of the result. The id that selected the element has the error bound eid.
func (a *array) looked(j int64, eid float64) {
	if eid != 0 {
		a.e[j] = inf
	}
	if a.mag == nil {
		return
	}
	a.mag[j] = math.Abs(a.f[j]) + a.e[j]
	if !a.exactInteger(j) {
		// In a partial sum, a bound of 0 would also mean that all contributions are integers.
		a.e[j] += math.SmallestNonzeroFloat64
	}
}

// tablePart returns the attributes with which rank computes its contribution to an embedding: they describe the rank's
// block of the table, which has type t and the given global shape.
func (m *machine) tablePart(at attrs, t *ir.Type, shape []int64, rank int) (attrs, error) {
	local, err := m.localShape(t, shape)
	if err != nil {
		return at, err
	}
	at.first, at.rows = m.b.Offset(t, local, rank)[0], shape[0]
	return at, nil
}
