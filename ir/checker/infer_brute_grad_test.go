package checker

import (
	"fmt"
	"hocket.example/hocket/ir"
	"slices"
)

// This file tests the operations for the gradients of attention. It replaces the exponential by another function, since
// layouts do not depend on it.

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
