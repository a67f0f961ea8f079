package checker

import (
	"fmt"
	"hocket.example/hocket/ir"
	"slices"
)

// This file tests the operations for the gradients of attention. The tests replace the exponential by another function,
// since layouts do not depend on it.

// gradCase returns a generator of random operands for op.
func gradCase(op ir.Op) func(b *brute) {
	return func(b *brute) {
		n := b.IntN(2) // leading dimensions
		q := b.shape(n + 3)
		q[n+2] = 1 + b.IntN(3)
		kv := slices.Clone(q)
		kv[n] = q[n] + b.IntN(3)
		if b.IntN(2) == 0 {
			kv[n+1] = pickOf(b.Rand, 1, q[n+1])
		}
		if b.IntN(3) == 0 {
			q[n+1] *= 2
		}
		causal := b.IntN(2) == 0
		b.stmt = fmt.Sprintf("%s = %s %s, %s", b.annotate(gradShape(op, q, kv)), op, b.operand(q), b.operand(kv))
		if op != ir.OpAttentionLSE {
			b.stmt += fmt.Sprintf(", %s, %s, %s, %s", b.operand(kv), b.operand(q), b.operand(q[:n+2]),
				b.operand(q[:n+2]))
		}
		b.stmt += fmt.Sprintf(", causal=%v", causal)
		b.op = func(a []*nd, _ []int) *nd { return gradOf(op, a, causal) }
	}
}

// normGradCase returns a generator of random operands for op. Instead of dividing by a root, a row is multiplied by its
// sum, and the mean is a sum.
func normGradCase(op ir.Op) func(b *brute) {
	return func(b *brute) {
		shape := b.shape(1 + b.IntN(3))
		last := len(shape) - 1
		result, args := shape, b.operand(shape)+", "
		if op == ir.OpRMSNormDX {
			args += b.operand(shape[last:]) + ", "
		} else {
			result = shape[last:]
		}
		b.stmt = fmt.Sprintf("%s = %s %s", b.annotate(result), op, args+b.operand(shape))
		b.op = func(a []*nd, _ []int) *nd {
			x, dy := a[0], a[len(a)-1]
			last := len(x.shape) - 1
			whole := func(row []int, f func(at []int) int64) (sum int64) {
				for d := range x.shape[last] {
					sum += f(append(slices.Clone(row), d))
				}
				return sum
			}
			root := func(at []int) int64 { return whole(at[:last], x.at) }
			if op == ir.OpRMSNormDX {
				g := func(at []int) int64 { return dy.at(at) * a[1].at(at[last:]) }
				return gen(x.shape, func(at []int) int64 {
					mean := whole(at[:last], func(at []int) int64 { return g(at) * x.at(at) })
					return root(at) * (g(at) - x.at(at)*mean)
				})
			}
			return gen(x.shape[last:], func(column []int) (sum int64) {
				gen(x.shape[:last], func(row []int) int64 {
					at := append(slices.Clone(row), column...)
					sum += dy.at(at) * x.at(at) * root(at)
					return 0
				})
				return sum
			})
		}
	}
}

// gradShape returns the shape of the result of op.
func gradShape(op ir.Op, q, kv []int) []int {
	switch op {
	case ir.OpAttentionLSE:
		return q[:len(q)-1]
	case ir.OpAttentionDQ:
		return q
	}
	return append([]int{2}, kv...)
}

// gradOf computes op for the operands a, which are whole tensors or a rank's blocks.
func gradOf(op ir.Op, a []*nd, causal bool) *nd {
	q, k := a[0], a[1]
	result := gradShape(op, q.shape, k.shape)
	n := len(q.shape) - 3
	group := q.shape[n+1] / k.shape[n+1]
	out := gen(result, func([]int) int64 { return 0 })
	place := func(ix []int) (at int) {
		for d, i := range ix {
			at = at*result[d] + i
		}
		return at
	}
	gen(q.shape[:n+2], func(row []int) int64 {
		query := func(d int) []int { return append(slices.Clone(row), d) }
		for j := range k.shape[n] {
			if causal && j > row[n]+k.shape[n]-q.shape[n] {
				break
			}
			key := func(d int) []int { return append(slices.Clone(row[:n]), j, row[n+1]/group, d) }
			w := int64(0)
			for d := range q.shape[n+2] {
				w += q.at(query(d)) * k.at(key(d))
			}
			if op == ir.OpAttentionLSE {
				out.data[place(row)] += w * int64(j+1)
				continue
			}
			v, dy, lse, delta := a[2], a[3], a[4], a[5]
			w += 3 * lse.at(row)
			ds := -delta.at(row)
			for d := range q.shape[n+2] {
				ds += dy.at(query(d)) * v.at(key(d))
			}
			ds *= w
			for d := range q.shape[n+2] {
				if op == ir.OpAttentionDQ {
					out.data[place(query(d))] += ds * k.at(key(d))
				} else {
					out.data[place(append([]int{0}, key(d)...))] += ds * q.at(query(d))
					out.data[place(append([]int{1}, key(d)...))] += w * dy.at(query(d))
				}
			}
		}
		return 0
	})
	return out
}
