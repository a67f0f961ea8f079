package cpu

import (
	"math"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// makeAttentionGrad computes the kernel attention_lse, attention_dq or attention_dkv. For the first two, each helper
// goroutine computes a range of queries. For attention_dkv, each helper goroutine computes a range of keys, from all
// queries that see at least one of these keys.
func makeAttentionGrad(k *kernel, op device.AttentionGrad) (loops, error) {
	if err := device.CheckAttentionGrad(op, k.out.dt, k.out.shape, k.types(), k.shapes()); err != nil {
		return nil, err
	}
	return byAccum(k.ins[0].dt, attentionGradLoops[float32](op), attentionGradLoops[float64](op), nil), nil
}

// graded holds the extents and operands of a kernel for the gradients of an attention. In its operands, the
// dimension of heads precedes that of tokens.
type graded[A float32 | float64] struct {
	tq, tk, dh, share int64 // share is the number of query heads that use one key head
	scale             A
	causal            bool
	q, k, v, dy       ref // [lead…, heads, T, Dh]
	lse, delta        ref // [lead…, heads, Tq]
}

// keysAtOnce is the number of keys that a helper goroutine computes at a time, or that it reads at a time for a
// query.
const keysAtOnce = 64

func attentionGradLoops[A float32 | float64](op device.AttentionGrad) loops {
	return func(k *kernel) {
		q, key := k.ins[0].shape, k.ins[1].shape
		n := len(q)
		g := graded[A]{tq: q[n-3], tk: key[n-3], dh: q[n-1], share: q[n-2] / key[n-2], scale: A(op.Scale),
			causal: op.Causal, q: headsFirst(k.ins[0], n-3), k: headsFirst(k.ins[1], n-3)}
		if len(k.ins) > 2 {
			g.v, g.dy = headsFirst(k.ins[2], n-3), headsFirst(k.ins[3], n-3)
			g.lse, g.delta = headsFirst(k.ins[4], n-3), headsFirst(k.ins[5], n-3)
		}
		if k.out.n == 0 {
			return
		}
		seq := n - 3
		if op.Op == ir.OpAttentionDKV {
			seq++
		}
		out := headsFirst(k.out, seq)
		size, do, of := g.tq, g.rowsLSE, k.ins[0]
		switch op.Op {
		case ir.OpAttentionDQ:
			do = g.rowsDQ
		case ir.OpAttentionDKV:
			size, do, of = g.tk, g.keysDKV, k.ins[1]
		}
		heads := of.n / (size * g.dh)
		parts := (size + keysAtOnce - 1) / keysAtOnce
		k.w.m.workers.each(heads*parts, &k.w.ended, func(i int64) {
			lo := i % parts * keysAtOnce
			do(out, i/parts, lo, min(lo+keysAtOnce, size))
		})
	}
}

// headsFirst exchanges the dimension seq with the following one, which is that of heads.
func headsFirst(r ref, seq int) ref {
	perm := make([]int, len(r.shape))
	for i := range perm {
		perm[i] = i
	}
	perm[seq], perm[seq+1] = seq+1, seq
	return r.permute(perm)
}

// sees returns the number of keys that query i may use.
func (g *graded[A]) sees(i int64) int64 {
	if g.causal {
		return i + 1 + g.tk - g.tq
	}
	return g.tk
}

// rowsLSE computes the results of attention_lse for the queries lo to hi of a query head.
func (g *graded[A]) rowsLSE(out ref, head, lo, hi int64) {
	size := g.tk * g.dh
	keys, queries := newReader[A](g.k, size), newReader[A](g.q, g.dh)
	defer keys.close()
	defer queries.close()
	wr, room := newWriter[A](out, hi-lo), borrow(g.tk*sizeOf[A]())
	defer wr.close()
	defer restore(room)
	k, d := keys.load(head/g.share*size, size), int(g.dh)
	row := wr.room(head*g.tq+lo, hi-lo)
	for i := lo; i < hi; i++ {
		q := queries.load((head*g.tq+i)*g.dh, g.dh)
		scores, top, sum := as[A](*room)[:g.sees(i)], A(math.Inf(-1)), A(0)
		for j := range scores {
			scores[j] = product4(q, k[j*d:][:d]) * g.scale
			top = max(top, scores[j])
		}
		for _, s := range scores {
			sum += A(math.Exp(float64(s - top)))
		}
		row[i-lo] = top + A(math.Log(float64(sum)))
	}
	wr.flush(head*g.tq+lo, row)
}

// weigh returns, for one query and one key, the weight p = exp(score - lse), and ds, which is p multiplied by the
// gradient of the score.
func (g *graded[A]) weigh(q, k, dy, v []A, lse, delta A) (p, ds A) {
	p = A(math.Exp(float64(product4(q, k)*g.scale - lse)))
	return p, p * (product4(dy, v) - delta)
}

// rowsDQ computes the gradients of the queries lo to hi of a query head.
func (g *graded[A]) rowsDQ(out ref, head, lo, hi int64) {
	size, d, first := g.tk*g.dh, int(g.dh), head*g.tq+lo
	rd := g.readers(size, g.dh, hi-lo)
	defer rd.close()
	wr := newWriter[A](out, g.dh)
	defer wr.close()
	k, v := rd.k.load(head/g.share*size, size), rd.v.load(head/g.share*size, size)
	lse, delta := rd.lse.load(first, hi-lo), rd.delta.load(first, hi-lo)
	for i := range hi - lo {
		at := (first + i) * g.dh
		q, dy, row := rd.q.load(at, g.dh), rd.dy.load(at, g.dh), wr.room(at, g.dh)
		clear(row)
		for j := range int(g.sees(lo + i)) {
			key := k[j*d:][:d]
			_, ds := g.weigh(q, key, dy, v[j*d:][:d], lse[i], delta[i])
			addTimes(row, ds, key)
		}
		for x := range row {
			row[x] *= g.scale
		}
		wr.flush(at, row)
	}
}

// keysDKV computes the gradients of the keys lo to hi, and of their values, of a key head.
func (g *graded[A]) keysDKV(out ref, head, lo, hi int64) {
	n, d := (hi-lo)*g.dh, int(g.dh)
	rd := g.readers(n, g.tq*g.dh, g.tq)
	defer rd.close()
	wr, room := newWriter[A](out, n), borrow(2*n*sizeOf[A]())
	defer wr.close()
	defer restore(room)
	dk, dv := as[A](*room)[:n], as[A](*room)[n:2*n]
	clear(dk)
	clear(dv)
	at := (head*g.tk + lo) * g.dh
	k, v := rd.k.load(at, n), rd.v.load(at, n)
	for h := head * g.share; h < (head+1)*g.share; h++ {
		q, dy := rd.q.load(h*g.tq*g.dh, g.tq*g.dh), rd.dy.load(h*g.tq*g.dh, g.tq*g.dh)
		lse, delta := rd.lse.load(h*g.tq, g.tq), rd.delta.load(h*g.tq, g.tq)
		for i := range int(g.tq) {
			for j := range int(min(hi, g.sees(int64(i))) - lo) {
				p, ds := g.weigh(q[i*d:][:d], k[j*d:][:d], dy[i*d:][:d], v[j*d:][:d], lse[i], delta[i])
				addTimes(dk[j*d:][:d], ds, q[i*d:][:d])
				addTimes(dv[j*d:][:d], p, dy[i*d:][:d])
			}
		}
	}
	for x := range dk {
		dk[x] *= g.scale
	}
	for i, x := range [][]A{dk, dv} {
		to := int64(i)*out.n/2 + at
		row := wr.room(to, n)
		copy(row, x)
		wr.flush(to, row)
	}
}

// addTimes adds c·x to sums.
func addTimes[A accum](sums []A, c A, x []A) {
	for i, v := range x[:len(sums)] {
		sums[i] += c * v
	}
}

// gradReaders holds readers of the operands.
type gradReaders[A accum] struct{ q, k, v, dy, lse, delta *reader[A] }

// readers returns readers of operands for the given numbers of elements of keys and of queries. The argument rows
// is the number of queries, each of which has one value of lse and delta.
func (g *graded[A]) readers(keys, queries, rows int64) gradReaders[A] {
	return gradReaders[A]{q: newReader[A](g.q, queries), k: newReader[A](g.k, keys), v: newReader[A](g.v, keys),
		dy: newReader[A](g.dy, queries), lse: newReader[A](g.lse, rows), delta: newReader[A](g.delta, rows)}
}

func (r gradReaders[A]) close() {
	for _, rd := range []*reader[A]{r.q, r.k, r.v, r.dy, r.lse, r.delta} {
		rd.close()
	}
}
