package eval

import (
	"cmp"
	"fmt"
	"math"

	"hocket.example/hocket/ir"
)

// indexCopy returns the third operand, in which the rows at the positions in the second operand are replaced by the
// rows of the first.
func indexCopy(axis int, ins []*array) (*array, error) {
	rows, at, cache := ins[0], ins[1], ins[2]
	count, room, inner := rows.shape[axis], cache.shape[axis], elements(rows.shape[axis+1:])
	out := cache.view(dense(cache.shape))
	for a := range elements(rows.shape[:axis]) {
		taken := map[int64]bool{}
		for j := range count {
			i := a*count + j
			if len(at.shape) == 1 {
				i = j
			}
			p := at.n[i]
			switch {
			case p == -1 && at.e[i] == 0:
				continue
			case p < -1 || p >= room:
				return nil, &finding{"range",
					fmt.Sprintf("position %d (element %d of the positions) is outside 0 to %d", p, i, room-1),
					"positions count from 0, and -1 skips a row"}
			case taken[p]:
				return nil, &finding{"range",
					fmt.Sprintf("position %d (element %d of the positions) is given twice", p, i),
					"the positions of rows must differ"}
			case at.e[i] != 0:
				for x := range out.e { // the row may be written to any position
					out.e[x] = inf
				}
				return out, nil
			}
			taken[p] = true
			out.copyRun((a*room+p)*inner, rows, (a*count+j)*inner, inner)
		}
	}
	return out, nil
}

// rope rotates the pairs of elements of every head. A machine may compute the angle in the accumulator type, so the
// error of the angle is proportional to the position.
func rope(r ir.Rope, ins []*array, dt ir.DType) (*array, error) {
	x, at := ins[0], ins[1]
	n := len(x.shape)
	dh := x.shape[n-1]
	row, u, scale := x.shape[n-2]*dh, stepUnit(dt.Accum()), cmp.Or(r.Scale, 1)
	freqs := r.Frequencies(dh)
	off := make([]float64, len(freqs)) // error bound of each frequency
	if len(ins) == 3 {
		freqs, off = ins[2].f, ins[2].e
	}
	half, units := int64(len(freqs)), 3.0
	if scale != 1 { // the scale is rounded, and the product is rounded
		units += 3
	}
	out := newArray(dt, x.shape)
	for i := range elements(x.shape[:n-2]) {
		j := i % max(at.len(), 1)
		for from := i * row; from < (i+1)*row; from += dh {
			for k, f := range freqs {
				angle := float64(at.n[j]) * f
				sin, cos := math.Sincos(angle)
				p, q := from+int64(k), from+int64(k)+half
				a, b, ea, eb := x.f[p], x.f[q], x.e[p], x.e[q]
				size := math.Abs(a) + math.Abs(b) + ea + eb
				turned := math.Abs(float64(at.n[j])) * off[k]
				pre := scale*(ea+eb+size*(turned+4*u*math.Abs(angle)+steps(dt)+units*u)) + vanishing(dt)
				if at.e[j] != 0 {
					pre = inf
				}
				out.f[p], out.e[p] = finish(dt, scale*(a*cos-b*sin), pre)
				out.f[q], out.e[q] = finish(dt, scale*(b*cos+a*sin), pre)
			}
			out.copyRun(from+2*half, x, from+2*half, dh-2*half)
		}
	}
	return out, nil
}

// argmax returns the index of the first largest element along axis. The index is unknown if another element may be
// equally large on some machine.
func argmax(axis int, a *array) (*array, error) {
	r, shape := reducedRows(a, []int{axis})
	out := newArray(ir.I32, shape)
	for i := range out.len() {
		from, best := i*r.k, i*r.k
		for j := from; j < from+r.k; j++ {
			if r.n != nil && r.n[j] > r.n[best] || r.n == nil && r.f[j] > r.f[best] {
				best = j
			}
		}
		out.n[i] = best - from
		for j := from; j < from+r.k; j++ {
			apart := r.float(best) - r.float(j)
			doubt := j != best && (r.e[j] != 0 || r.e[best] != 0) && !(apart > r.e[j]+r.e[best])
			if doubt || r.float(j) != r.float(j) {
				out.e[i] = inf
			}
		}
	}
	return out, nil
}
