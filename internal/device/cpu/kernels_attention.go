package cpu

import (
	"fmt"
	"math"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// makeAttention computes softmax(scale · q·kᵀ)·v for each head. A helper goroutine computes a few queries at a
// time, of all query heads that share one key head.
func makeAttention(k *kernel, op device.Attention) (loops, error) {
	if op.LSE {
		return nil, fmt.Errorf("%w: attention and attention_lse in one kernel", device.ErrUnsupported)
	}
	if err := k.count(3, 5); err != nil {
		return nil, err
	}
	lengths, mask, err := device.AttentionExtras(k.types())
	if err != nil {
		return nil, err
	}
	for _, in := range k.ins[:min(3, len(k.ins))] {
		if in.dt != k.out.dt || in.dt.IsInt() {
			return nil, fmt.Errorf("its operands have type %s, but its result has type %s", in.dt, k.out.dt)
		}
	}
	q, key, v := k.ins[0].shape, k.ins[1].shape, k.ins[2].shape
	n := len(q)
	if n < 3 || len(key) != n || !slices.Equal(key, v) || !slices.Equal(q, k.out.shape) ||
		!slices.Equal(q[:n-3], key[:n-3]) || q[n-1] != key[n-1] {
		return nil, fmt.Errorf("the shapes q%v, k%v, v%v and result %v do not fit each other", q, key, v, k.out.shape)
	}
	if key[n-2] == 0 || q[n-2]%key[n-2] != 0 {
		return nil, fmt.Errorf("%d heads of q are not a multiple of %d heads of k", q[n-2], key[n-2])
	}
	if mask > 0 {
		m, own := k.ins[mask].shape, append(slices.Clone(q[:n-2]), key[n-3])
		if !slices.Equal(m, own) && !slices.Equal(m, own[n-3:]) {
			return nil, fmt.Errorf("a mask of shape %v does not fit queries of shape %v and keys of shape %v", m, q, key)
		}
	}
	switch {
	case lengths > 0:
		t := k.ins[3]
		each := slices.Equal(t.shape, q[:n-2])
		if !t.dt.IsInt() || !slices.Equal(t.shape, q[:n-3]) && !each || each && op.Causal {
			return nil, fmt.Errorf("lengths %s%v do not fit queries of shape %v", t.dt, t.shape, q)
		}
		k.verify = checkLengths
	case op.Causal && q[n-3] > key[n-3]:
		return nil, fmt.Errorf("causal attention with %d queries and only %d keys: the first queries would see no key",
			q[n-3], key[n-3])
	}
	return byAccum(k.out.dt, attentionLoops[float32](op), attentionLoops[float64](op), nil), nil
}

// types returns the element types of the operands.
func (k *operands) types() []ir.DType {
	list := make([]ir.DType, len(k.ins))
	for i, in := range k.ins {
		list[i] = in.dt
	}
	return list
}

// checkLengths reports lengths that exceed the number of keys.
func checkLengths(k *kernel) error {
	keys := k.ins[1].shape[len(k.ins[1].shape)-3]
	for i, n := range numbers(k.ins[3]) {
		if n < 0 || n > keys {
			return content(ir.OpAttention, int64(i), n,
				"length %d (element %d of the lengths) is outside 0 to %d, the keys that are kept", n, i, keys)
		}
	}
	return nil
}

// attended holds the extents and operands of an attention. In its operands, the dimension of heads precedes that of
// tokens.
type attended[A float32 | float64] struct {
	tq, tk, dh int64
	scale      A
	cap        float64 // limit of the attention scores; 0 for no limit
	causal     bool
	window     int64   // size of the sliding window: number of latest keys that a query sees; 0 for all keys
	lengths    []int64 // number of valid keys for each sequence or query; nil if all keys are valid
	perQuery   bool
	masks      int64 // number of sequences with separate masks; 0 for no mask
	mask       ref
	heads      int64 // number of query heads
	q, k, v    ref   // [lead…, heads, T, Dh]
	out        ref
}

func attentionLoops[A float32 | float64](op device.Attention) loops {
	return func(k *kernel) {
		n := len(k.out.shape)
		perm := make([]int, n)
		for i := range perm {
			perm[i] = i
		}
		perm[n-3], perm[n-2] = n-2, n-3
		a := attended[A]{tq: k.out.shape[n-3], tk: k.ins[1].shape[n-3], dh: k.out.shape[n-1], scale: A(op.Scale),
			causal: op.Causal, window: op.Window, cap: op.Softcap,
			q: k.ins[0].permute(perm), k: k.ins[1].permute(perm), v: k.ins[2].permute(perm), out: k.out.permute(perm)}
		if k.out.n == 0 {
			return
		}
		a.heads = k.out.shape[n-2]
		lengths, mask, _ := device.AttentionExtras(k.types())
		if mask > 0 && a.tk > 0 {
			a.mask, a.masks = k.ins[mask], k.ins[mask].n/(a.tq*a.tk)
		}
		if lengths > 0 {
			a.lengths, a.perQuery = numbers(k.ins[3]), len(k.ins[3].shape) == n-2
		}
		rows := k.out.shape[n-2] / k.ins[1].shape[n-2] * a.tq // number of queries that share one key head
		parts := (rows + queriesAtOnce - 1) / queriesAtOnce
		k.w.m.workers.each(k.out.n/(rows*a.dh)*parts, &k.w.ended, func(i int64) {
			head, lo := i/parts, i%parts*queriesAtOnce
			a.queries(head, head*rows+lo, head*rows+min(lo+queriesAtOnce, rows))
		})
	}
}

// queriesAtOnce is the number of queries that a helper goroutine computes before it checks whether the world has
// ended. It is so large that the time of reading the keys and values once per group of queries is negligible.
const queriesAtOnce = 64

// queries computes rows [lo, hi) of the results of the query heads that share key head i. It reads only keys and values
// that some of these rows see, because the key-value cache of a server is mostly empty.
func (a attended[A]) queries(i, lo, hi int64) {
	from, to := a.tk, int64(0)
	for r := lo; r < hi; r++ {
		if first, sees := a.keysOf(r); first < sees {
			from, to = min(from, first), max(to, sees)
		}
	}
	from = min(from, to)
	size := (to - from) * a.dh
	keys, values := newReader[A](a.k, size), newReader[A](a.v, size)
	queries, wr := newReader[A](a.q, a.dh), newWriter[A](a.out, a.dh)
	var masks *reader[A]
	if a.masks > 0 {
		masks = newReader[A](a.mask, to-from)
		defer masks.close()
	}
	room := borrow((to - from + a.dh) * sizeOf[A]())
	defer restore(room)
	defer keys.close()
	defer values.close()
	defer queries.close()
	defer wr.close()
	start := (i*a.tk + from) * a.dh
	k, v := keys.load(start, size), values.load(start, size)
	scratch := as[A](*room)
	for r := lo; r < hi; r++ {
		row := wr.room(r*a.dh, a.dh)
		if first, sees := a.keysOf(r); first < sees {
			var mask []A
			if masks != nil {
				at := r / (a.heads * a.tq) % a.masks * a.tq
				mask = masks.load((at+r%a.tq)*a.tk+first, sees-first)
			}
			a.query(row, queries.load(r*a.dh, a.dh), k[(first-from)*a.dh:], v[(first-from)*a.dh:], mask,
				scratch[first-from:sees-from], scratch[to-from:])
		} else {
			clear(row)
		}
		wr.flush(r*a.dh, row)
	}
}

// keysOf returns the range of the keys that row r of q may use.
func (a attended[A]) keysOf(r int64) (first, end int64) {
	end = a.sees(r)
	if a.window > 0 {
		first = max(0, end-a.window)
	}
	return first, end
}

// sees returns the number of keys that row r of q may use if there is no window.
func (a attended[A]) sees(r int64) int64 {
	keys, batch, i := a.tk, r/(a.heads*a.tq), r%a.tq
	switch {
	case a.perQuery:
		keys = a.lengths[batch*a.tq+i]
	case a.lengths != nil:
		keys = a.lengths[batch]
	}
	if a.causal {
		return max(0, min(keys, i+1+keys-a.tq))
	}
	return keys
}

// query computes one row of results from the keys that it sees.
func (a attended[A]) query(out, q, k, v, mask, scores, sums []A) {
	d := int(a.dh)
	for j := range scores {
		scores[j] = product4(q, k[j*d:][:d]) * a.scale
	}
	if a.cap != 0 {
		for j, s := range scores {
			scores[j] = A(a.cap * math.Tanh(float64(s)/a.cap))
		}
	}
	for j, m := range mask {
		scores[j] += m
	}
	softmaxSums(scores, v, sums, d)
	copy(out, sums)
}

// softmaxSums returns in sums the rows of v, weighted by the softmax of scores. The division by the sum of the weights
// is done at the end.
func softmaxSums[A float32 | float64](scores, v, sums []A, d int) {
	top, total := A(math.Inf(-1)), A(0)
	for _, s := range scores {
		top = max(top, s)
	}
	clear(sums)
	for j, s := range scores {
		p := A(math.Exp(float64(s - top)))
		total += p
		for i, x := range v[j*d:][:d] {
			sums[i] += p * x
		}
	}
	for i := range sums {
		sums[i] /= total
	}
}

// product4 returns the dot product of two vectors. It computes four partial sums, so the order of additions depends
// only on the length of the vectors.
func product4[A accum](a, b []A) A {
	var s [4]A
	b = b[:len(a)]
	i := 0
	for ; i+4 <= len(a); i += 4 {
		s[0] += a[i] * b[i]
		s[1] += a[i+1] * b[i+1]
		s[2] += a[i+2] * b[i+2]
		s[3] += a[i+3] * b[i+3]
	}
	for ; i < len(a); i++ {
		s[0] += a[i] * b[i]
	}
	return s[0] + s[1] + s[2] + s[3]
}
