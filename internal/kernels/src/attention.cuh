// softmax(scale · q·kᵀ)·v with a block for each query of each head. The block first computes the largest score. Then it
// computes weights, and adds values multiplied by them, 256 keys at a time.

template <int B> struct AttentionArgs {
  u64 out, q, k, v;
  f64 scale;
  i64 tq, tk, heads, share, dh;  // share: number of query heads that use one key head
  i64 causal;
  i64 so[3], sq[3], sk[3], sv[3];           // strides along tokens, heads, Dh
  i64 e[B], bo[B], bq[B], bk[B], bv[B];     // extents and strides of the batch dimensions
  u64 lengths, fault, tag;                  // lengths: address of the numbers of keys; 0: all keys are used
  // wide: lengths are i64, otherwise i32; sl: stride in bytes from query to query; bl: strides in bytes of the batch
  // dimensions
  i64 wide, sl, bl[B];
  // window: number of the last keys that a query sees, 0: all; cap: cap of scores, 0: none
  i64 window; f64 cap;
  // mask: address of values that are added to scores, 0: none; strides along queries and keys, and of the batch
  // dimensions
  u64 mask; i64 sm[2], bm[B];
};

// Sequences holds the operands of one batch entry.
template <class T> struct Sequences {
  const T *q, *k, *v, *mask;
  T* out;
  u64 lengths;
  template <int B> __device__ __forceinline__ Sequences(const AttentionArgs<B>& a, i64 t) : q((const T*)a.q), k((const T*)a.k), v((const T*)a.v), mask((const T*)a.mask), out((T*)a.out), lengths(a.lengths) {
#pragma unroll
    for (int d = B - 1; d >= 0; d--) {
      const i64 x = d ? t % a.e[d] : t;
      t /= a.e[d];
      out += x * a.bo[d];
      q += x * a.bq[d];
      k += x * a.bk[d];
      v += x * a.bv[d];
      lengths += x * a.bl[d];
      if (a.mask) mask += x * a.bm[d];
    }
  }
};

// lengthOf returns the number of valid keys for query i, which an operand holds.
template <int B, class T> DEV i64 lengthOf(const AttentionArgs<B>& a, const Sequences<T>& of, i64 i) {
  const u64 at = of.lengths + i * a.sl;
  return a.wide ? *(const i64*)at : *(const i32*)at;
}

// checkLength reports an invalid length for query i.
template <int B, class T> DEV void checkLength(const AttentionArgs<B>& a, const Sequences<T>& of, i64 i) {
  if (!a.lengths) return;
  const i64 n = lengthOf(a, of, i);
  if (n < 0 || n > a.tk) fault(a.fault, faultLength, a.tag, (u64)n, (u64)a.tk, (of.lengths + i * a.sl - a.lengths) / (a.wide ? 8 : 4));
}

// keysOf returns the number of keys that query i sees.
template <int B, class T> DEV i64 keysOf(const AttentionArgs<B>& a, const Sequences<T>& of, i64 i) {
  i64 keys = a.tk;
  if (a.lengths) {
    const i64 n = lengthOf(a, of, i);
    keys = n < 0 ? 0 : n < keys ? n : keys;
  }
  if (a.causal && i + 1 < a.tq) keys += i + 1 - a.tq;
  return keys < 0 ? 0 : keys;
}

// keysOfMany computes, for the queries first..last, the largest number of keys that one of them sees, and the smallest
// number among those that see any key.
template <int B, class T> DEV void keysOfMany(const AttentionArgs<B>& a, const Sequences<T>& of, i64 first, i64 last, int& most, int& fewest) {
  most = (int)keysOf(a, of, last), fewest = (int)keysOf(a, of, first);
  if (!a.sl) return;  // each query sees at least as many keys as earlier queries
  for (i64 i = first; i <= last; i++) {
    const int n = (int)keysOf(a, of, i);
    most = n > most ? n : most;
    fewest = n > 0 && (n < fewest || fewest == 0) ? n : fewest;
  }
}

// hides reports whether queries of one batch entry may see different numbers of keys.
template <int B> DEV bool hides(const AttentionArgs<B>& a) { return a.causal || a.sl; }

// QueryRow is a query of one head. It is numbered among the queries of all heads that use one key head, in the order in
// which kernels for several queries process them.
template <int B> struct QueryRow {
  i64 query, head;
  __device__ __forceinline__ QueryRow(const AttentionArgs<B>& a, i64 kv, i64 row) : query(row / a.share), head(kv * a.share + row % a.share) {}
  // This constructor is for a 32-bit row number, because 64-bit quotients take long.
  __device__ __forceinline__ QueryRow(const AttentionArgs<B>& a, i64 kv, u32 row) : query(row / (u32)a.share), head(kv * a.share + row % (u32)a.share) {}
};

template <class T, class A> DEV A score(const A* q, const T* k, i64 stride, i64 dh, A scale) {
  A s = 0;
  for (i64 d = 0; d < dh; d++) s += q[d] * Num<T>::get(k[d * stride]);
  return s * scale;
}

// Bent<true> applies the cap and the mask, if any, to a query's scores.
template <bool SOME> struct Bent {
  template <class T, int B> __device__ __forceinline__ Bent(const T*, const AttentionArgs<B>&, const Sequences<T>&, i64) {}
  template <class T, class A> __device__ __forceinline__ A of(const T*, A s, i64) const { return s; }
};
template <> struct Bent<true> {
  f64 cap;
  u64 mask;
  i64 step;
  template <class T, int B> __device__ __forceinline__ Bent(const T*, const AttentionArgs<B>& a, const Sequences<T>& of, i64 i) : cap(a.cap), mask(0), step(a.sm[1]) {
    if (of.mask) mask = (u64)(of.mask + i * a.sm[0]);
  }
  template <class T, class A> __device__ __forceinline__ A of(const T*, A s, i64 j) const {
    if (cap != 0) s = (A)cap * tanhOf(s / (A)cap);
    return mask ? s + Num<T>::get(((const T*)mask)[j * step]) : s;
  }
};

// attend computes query i of head h with those of the keys from..to-1 that the query sees. It calls done with each
// element's sum, the largest score, and the sum of weights. Dh is at most 256·PER: each thread computes PER elements
// of a head.
template <class T, int PER, bool BENT = false, int B, class Done> DEV void attend(const AttentionArgs<B>& a, const Sequences<T>& of, i64 i, i64 h, i64 from, i64 to, Done done) {
  typedef typename Num<T>::Acc A;
  __shared__ A query[256 * PER], weight[256];
  const T* q = of.q + i * a.sq[0] + h * a.sq[1];
  const T *k = of.k + h / a.share * a.sk[1], *v = of.v + h / a.share * a.sv[1];
  for (i64 d = threadIdx.x; d < a.dh; d += 256) query[d] = Num<T>::get(q[d * a.sq[2]]);
  if (threadIdx.x == 0) checkLength(a, of, i);
  __syncthreads();
  const i64 all = keysOf(a, of, i), sees = least(all, to);
  if (a.window && from < all - a.window) from = all - a.window;
  const A scale = (A)a.scale;
  const Bent<BENT> bent(q, a, of, i);
  A top = Const<A>::of(0xfff0000000000000ULL);
  for (i64 j = from + threadIdx.x; j < sees; j += 256) top = most(top, bent.of(q, score<T>(query, k + j * a.sk[0], a.sk[2], a.dh, scale), j));
  top = fold256<FoldMax>(top);
  A sum = 0, o[PER];
#pragma unroll
  for (int p = 0; p < PER; p++) o[p] = 0;
  for (i64 j0 = from; j0 < sees; j0 += 256) {
    const i64 j = j0 + threadIdx.x;
    __syncthreads();
    if (j < sees) sum += weight[threadIdx.x] = expOf(bent.of(q, score<T>(query, k + j * a.sk[0], a.sk[2], a.dh, scale), j) - top);
    __syncthreads();
    const int keys = sees - j0 < 256 ? (int)(sees - j0) : 256;
#pragma unroll
    for (int p = 0; p < PER; p++) {
      const i64 d = threadIdx.x + 256 * p;
      if (d < a.dh)
        for (int x = 0; x < keys; x++) o[p] += weight[x] * Num<T>::get(v[(j0 + x) * a.sv[0] + d * a.sv[2]]);
    }
  }
  sum = fold256<FoldSum>(sum);
#pragma unroll
  for (int p = 0; p < PER; p++) {
    const i64 d = threadIdx.x + 256 * p;
    if (d < a.dh) done(d, o[p], top, sum, sees > from);
  }
}

template <class T, int PER, bool BENT = false, int B> DEV void attend(const AttentionArgs<B>& a, const Sequences<T>& of, i64 i, i64 h) {
  typedef typename Num<T>::Acc A;
  T* out = of.out + i * a.so[0] + h * a.so[1];
  attend<T, PER, BENT>(a, of, i, h, 0, a.tk, [&](i64 d, A o, A, A sum, bool some) { out[d * a.so[2]] = Num<T>::put(some ? o / sum : 0); });
}

template <class T, int B, int PER, bool BENT> DEV void attention(const AttentionArgs<B>& a) {
  i64 t = blockIdx.x;
  const i64 i = t % a.tq;
  t /= a.tq;
  attend<T, PER, BENT>(a, Sequences<T>(a, t / a.heads), i, t % a.heads);
}
