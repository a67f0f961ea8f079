package eval

import (
	"fmt"
	"math"
	"slices"

	"hocket.example/hocket/ir"
)

// rows holds an operand of a contraction as rows of k elements each. The contraction adds over the elements of a row.
type rows struct {
	*array
	k int64
	// ints reports for each row whether all of its elements are certified integers. errs reports for each row
	// whether any element has a nonzero bound. Most sums need no other information about errors.
	ints, errs []bool
}

// asRows divides the dense array a into rows of k elements.
func asRows(a *array, count, k int64) rows {
	r := rows{array: a, k: k, ints: make([]bool, count), errs: make([]bool, count)}
	for i := range count {
		r.ints[i] = true
		for j := i * k; j < (i+1)*k; j++ {
			r.ints[i] = r.ints[i] && a.exactInteger(j)
			r.errs[i] = r.errs[i] || a.e[j] != 0
		}
	}
	return r
}

// linear computes x[…, K]·w[N, K]ᵀ (+ bias[N]).
func linear(at attrs, ins []*array, dt ir.DType, sp split) (*array, error) {
	if len(ins) == 4 {
		return scaledLinear(at, ins, dt, sp)
	}
	x, w := ins[0], ins[1]
	last := len(x.shape) - 1
	if last < 0 || len(w.shape) != 2 || x.shape[last] != w.shape[1] {
		return nil, fmt.Errorf("linear cannot combine the shapes %v and %v", x.shape, w.shape)
	}
	m, n, k := elements(x.shape[:last]), w.shape[0], w.shape[1]
	out := newContraction(dt, append(slices.Clone(x.shape[:last]), n), sp)
	if err := out.products(at, asRows(x, m, k), asRows(w, n, k), 1, m, n); err != nil {
		return nil, err
	}
	if len(ins) == 3 {
		return out.plusBias(ins[2])
	}
	return out.array, nil
}

// matmul computes a[…, M, K]·b[…, K, N], or uses one b[K, N] for every a. The attributes ta and tb select an operand
// whose last two dimensions are stored transposed.
func matmul(at attrs, a, b *array, dt ir.DType, sp split) (*array, error) {
	r, s := len(a.shape), len(b.shape)
	if r < 2 || s < 2 || s != 2 && !slices.Equal(a.shape[:r-2], b.shape[:s-2]) {
		return nil, fmt.Errorf("matmul cannot combine the shapes %v and %v", a.shape, b.shape)
	}
	if at.ta {
		a = swapLast(a)
	}
	if !at.tb {
		b = swapLast(b)
	}
	m, n, k := a.shape[r-2], b.shape[s-2], a.shape[r-1]
	if b.shape[s-1] != k {
		return nil, fmt.Errorf("matmul contracts %d elements with %d", k, b.shape[s-1])
	}
	out := newContraction(dt, append(slices.Clone(a.shape[:r-2]), m, n), sp)
	batch := elements(a.shape[:r-2])
	if s == 2 { // all batches of a use the same b, so the rows of all batches are treated as rows of one matrix
		batch, m = 1, batch*m
	}
	return out.array, out.products(at, asRows(a, batch*m, k), asRows(b, batch*n, k), batch, m, n)
}

func swapLast(a *array) *array {
	return a.view(dense(a.shape).permuted(swappedLast(len(a.shape))))
}

// swappedLast returns the permutation of r dimensions that exchanges the last two.
func swappedLast(r int) []int {
	perm := make([]int, r)
	for i := range perm {
		perm[i] = i
	}
	perm[r-2], perm[r-1] = r-1, r-2
	return perm
}

// contraction holds the result of a contraction while its elements are computed.
type contraction struct {
	*array
	split
}

func newContraction(dt ir.DType, shape []int64, sp split) contraction {
	c := contraction{newArray(dt, shape), sp}
	if sp.partial && !dt.IsInt() {
		c.mag = make([]float64, c.len())
	}
	return c
}

// products computes every element of the result as the product of two rows.
func (c contraction) products(at attrs, a, b rows, batch, m, n int64) error {
	i := int64(0)
	for g := range batch {
		for p := g * m; p < (g+1)*m; p++ {
			if err := at.ended(); err != nil {
				return err
			}
			for q := g * n; q < (g+1)*n; q++ {
				if c.n != nil {
					c.n[i], c.e[i] = dotInt(c.dt, a, b, p, q)
				} else {
					c.store(i, dot(a, b, p, q))
				}
				i++
			}
		}
	}
	return nil
}

// store applies the rule of sums to s and stores the result as element i.
func (c contraction) store(i int64, s sumOf) {
	if c.mag != nil {
		c.f[i], c.e[i], c.mag[i] = s.partial(c.dt, c.ranks)
	} else {
		c.f[i], c.e[i] = s.whole(c.dt)
	}
}

// dot returns the product of row p of a and row q of b.
func dot(a, b rows, p, q int64) sumOf {
	x, w := a.f[p*a.k:(p+1)*a.k], b.f[q*b.k:(q+1)*b.k]
	s := sumOf{acc: a.dt.Accum(), n: a.k, ints: a.ints[p] && b.ints[q]}
	for i, v := range x {
		t := v * w[i]
		s.y += t
		s.abs += math.Abs(t)
	}
	if a.errs[p] || b.errs[q] {
		ex, ew := a.e[p*a.k:(p+1)*a.k], b.e[q*b.k:(q+1)*b.k]
		for i, v := range x {
			s.prop += productError(v, ex[i], w[i], ew[i])
		}
	}
	return s
}

func dotInt(dt ir.DType, a, b rows, p, q int64) (int64, float64) {
	y, prop := int64(0), 0.0
	for i := range a.k {
		j, l := p*a.k+i, q*b.k+i
		y += a.n[j] * b.n[l]
		prop += productError(float64(a.n[j]), a.e[j], float64(b.n[l]), b.e[l])
	}
	return integer(dt, y, prop)
}

// plusBias adds bias[N] along the last dimension. A machine may add the bias in the accumulator or after rounding. The
// bound includes two roundings, so it covers both ways to add the bias.
func (c contraction) plusBias(bias *array) (*array, error) {
	n := c.shape[len(c.shape)-1]
	if c.partial || len(bias.shape) != 1 || bias.shape[0] != n {
		return nil, fmt.Errorf("a bias of shape %v does not fit a result of shape %v", bias.shape, c.shape)
	}
	for i := range c.len() {
		j := i % n
		if c.n != nil {
			c.n[i], c.e[i] = integer(c.dt, c.n[i]+bias.n[j], c.e[i]+bias.e[j])
		} else {
			y, b := c.f[i], bias.f[j]
			c.f[i], c.e[i] = elementwise(c.dt, y+b, addLoses(y, b), c.e[i]+bias.e[j])
		}
	}
	return c.array, nil
}

// sum adds the elements along axes. If a is the total of a partial sum, the result is a total, too.
func sum(axes []int, a *array, dt ir.DType, sp split) (*array, error) {
	r, shape := reducedRows(a, axes)
	out := newContraction(dt, shape, sp)
	for i := range out.len() {
		from, to := i*r.k, (i+1)*r.k
		if out.n != nil {
			y, e := r.totalInt(from, to)
			out.n[i], out.e[i] = integer(dt, y, e)
			continue
		}
		out.store(i, r.total(from, to))
	}
	return out.array, nil
}

// totalInt returns the sum of elements from..to of one row of integers, and the sum of their bounds.
func (r rows) totalInt(from, to int64) (y int64, e float64) {
	for j := from; j < to; j++ {
		y, e = y+r.n[j], e+r.e[j]
	}
	return y, e
}

// total is the sum of elements from..to of one row.
func (r rows) total(from, to int64) sumOf {
	s := sumOf{acc: r.dt.Accum(), n: r.k, ints: true}
	for j := from; j < to; j++ {
		s.y += r.f[j]
		s.prop += r.e[j]
		s.ints = s.ints && r.exactInteger(j)
		if r.mag != nil {
			s.abs += r.mag[j]
		} else {
			s.abs += math.Abs(r.f[j])
		}
	}
	return s
}

// sumSlots adds the slots along axis, and adds the second operand to the sum if there is one.
func sumSlots(axis int, ins []*array, dt ir.DType) (*array, error) {
	r, shape := reducedRows(ins[0], []int{axis})
	out := newContraction(dt, shape, alone)
	if len(ins) == 2 && (ins[1].dt != dt || !slices.Equal(ins[1].shape, shape)) {
		return nil, fmt.Errorf("slots of shape %v do not fit a result of %v%v", shape, ins[1].dt, ins[1].shape)
	}
	for i := range out.len() {
		from, to := i*r.k, (i+1)*r.k
		if out.n != nil {
			y, e := r.totalInt(from, to)
			if len(ins) == 2 {
				y, e = y+ins[1].n[i], e+ins[1].e[i]
			}
			out.n[i], out.e[i] = integer(dt, y, e)
			continue
		}
		s := r.total(from, to)
		if len(ins) == 2 {
			s.n, s.y, s.abs, s.prop = s.n+1, s.y+ins[1].f[i], s.abs+math.Abs(ins[1].f[i]), s.prop+ins[1].e[i]
			s.ints = s.ints && ins[1].exactInteger(i)
		}
		out.store(i, s)
	}
	return out.array, nil
}

// mean divides the sum along axes by the number of terms. If the terms are split over n ranks, the result is the
// mean of the ranks' means: each of them has the weight 1/n.
func mean(axes []int, a *array, dt ir.DType, sp split) (*array, error) {
	r, shape := reducedRows(a, axes)
	out := newContraction(dt, shape, sp)
	for i := range out.len() {
		s := r.total(i*r.k, (i+1)*r.k)
		if out.mag != nil {
			out.f[i], out.e[i], out.mag[i] = s.partialMean(dt, sp.ranks)
		} else {
			out.f[i], out.e[i] = s.mean(dt)
		}
	}
	return out.array, nil
}

// extreme returns the largest or smallest element along axes. If there are no elements, it returns the number of the
// type that is neutral in the operation.
func extreme(op ir.Op, axes []int, a *array, dt ir.DType) (*array, error) {
	r, shape := reducedRows(a, axes)
	out := newArray(dt, shape)
	for i := range out.len() {
		if out.n != nil {
			out.n[i], out.e[i] = extremeInt(op, r, i)
			continue
		}
		y, e := math.Inf(-1), 0.0
		if op == ir.OpMin {
			y = math.Inf(1)
		}
		for j := i * r.k; j < (i+1)*r.k; j++ {
			e = max(e, r.e[j])
			if op == ir.OpMin {
				y = min(y, r.f[j])
			} else {
				y = max(y, r.f[j])
			}
		}
		out.f[i], out.e[i] = y, selected(y, e)
	}
	return out, nil
}

func extremeInt(op ir.Op, r rows, i int64) (y int64, e float64) {
	y = saturate(r.dt, math.MinInt64)
	if op == ir.OpMin {
		y = saturate(r.dt, math.MaxInt64)
	}
	for j := i * r.k; j < (i+1)*r.k; j++ {
		e = max(e, r.e[j])
		if op == ir.OpMin {
			y = min(y, r.n[j])
		} else {
			y = max(y, r.n[j])
		}
	}
	return y, e
}

// reducedRows moves axes to the end and divides a into rows: one row for each element of the result, whose shape is
// returned.
func reducedRows(a *array, axes []int) (rows, []int64) {
	var perm []int
	var shape []int64
	k := int64(1)
	for d, e := range a.shape {
		if slices.Contains(axes, d) {
			k *= e
		} else {
			perm = append(perm, d)
			shape = append(shape, e)
		}
	}
	moved := a.view(dense(a.shape).permuted(append(perm, axes...)))
	return asRows(moved, elements(shape), k), shape
}
