// softmax(scale · q·kᵀ)·v, a block for each query of each head: the largest
// score first, then weights and values, 256 keys at a time.

template <int B> struct AttentionArgs {
  u64 out, q, k, v;
  f64 scale;
  i64 tq, tk, heads, share, dh;  // share: heads of q that use one of k and v
  i64 causal;
  i64 so[3], sq[3], sk[3], sv[3];           // along tokens, heads, Dh
  i64 e[B], bo[B], bq[B], bk[B], bv[B];     // batch by batch
};

template <class T, class A> DEV A score(const A* q, const T* k, i64 stride, i64 dh, A scale) {
  A s = 0;
  for (i64 d = 0; d < dh; d++) s += q[d] * Num<T>::get(k[d * stride]);
  return s * scale;
}

// PER is dimensions a thread: Dh is at most 256·PER.
template <class T, int B, int PER> DEV void attention(const AttentionArgs<B>& a) {
  typedef typename Num<T>::Acc A;
  __shared__ A query[256 * PER], weight[256];
  i64 t = blockIdx.x;
  const i64 i = t % a.tq;
  t /= a.tq;
  const i64 h = t % a.heads;
  t /= a.heads;
  const T *q = (const T*)a.q + i * a.sq[0] + h * a.sq[1];
  const T *k = (const T*)a.k + h / a.share * a.sk[1], *v = (const T*)a.v + h / a.share * a.sv[1];
  T* out = (T*)a.out + i * a.so[0] + h * a.so[1];
#pragma unroll
  for (int d = B - 1; d >= 0; d--) {
    const i64 x = d ? t % a.e[d] : t;
    t /= a.e[d];
    out += x * a.bo[d];
    q += x * a.bq[d];
    k += x * a.bk[d];
    v += x * a.bv[d];
  }
  for (i64 d = threadIdx.x; d < a.dh; d += 256) query[d] = Num<T>::get(q[d * a.sq[2]]);
  __syncthreads();
  i64 sees = a.tk;
  if (a.causal && i + 1 + a.tk - a.tq < sees) sees = i + 1 + a.tk - a.tq;
  if (sees < 0) sees = 0;
  const A scale = (A)a.scale;
  A top = Const<A>::of(0xfff0000000000000ULL);
  for (i64 j = threadIdx.x; j < sees; j += 256) top = most(top, score<T>(query, k + j * a.sk[0], a.sk[2], a.dh, scale));
  top = fold256<FoldMax>(top);
  A sum = 0, o[PER];
#pragma unroll
  for (int p = 0; p < PER; p++) o[p] = 0;
  for (i64 j0 = 0; j0 < sees; j0 += 256) {
    const i64 j = j0 + threadIdx.x;
    __syncthreads();
    if (j < sees) sum += weight[threadIdx.x] = expOf(score<T>(query, k + j * a.sk[0], a.sk[2], a.dh, scale) - top);
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
    if (d < a.dh) out[d * a.so[2]] = Num<T>::put(o[p] / sum);
  }
}
