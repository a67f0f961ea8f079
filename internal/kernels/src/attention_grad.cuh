// Gradients of attention. Weights are recomputed from lse, the logarithm of the sum of a query's exponentials: p =
// exp(scale · q·k - lse), ds = p·(dy·v - delta), dq = scale · ds·k, dk = scale · dsᵀ·q, dv = pᵀ·dy.

template <int B> struct GradArgs {
  u64 out, q, k, v, dy, lse, delta;
  f64 scale;
  i64 tq, tk, heads, share, dh;  // share: number of query heads that use one key head
  i64 causal;
  i64 both;                                                 // offset from an element of dk to that of dv
  i64 so[3], sq[3], sk[3], sv[3], sy[3], sl[2], sd[2];      // strides along tokens, heads, Dh
  i64 e[B], bo[B], bq[B], bk[B], bv[B], by[B], bl[B], bd[B];  // extents and strides of the batch dimensions
};

// GradOperands holds the operands of one batch entry.
template <class T> struct GradOperands {
  typedef typename Num<T>::Acc A;
  const T *q, *k, *v, *dy;
  const A *lse, *delta;
  i64 out;  // offset of the batch entry's result, in elements
  template <int B> __device__ __forceinline__ GradOperands(const GradArgs<B>& a, i64 t) : q((const T*)a.q), k((const T*)a.k), v((const T*)a.v), dy((const T*)a.dy), lse((const A*)a.lse), delta((const A*)a.delta), out(0) {
#pragma unroll
    for (int d = B - 1; d >= 0; d--) {
      const i64 x = d ? t % a.e[d] : t;
      t /= a.e[d];
      out += x * a.bo[d];
      q += x * a.bq[d];
      k += x * a.bk[d];
      v += x * a.bv[d];
      dy += x * a.by[d];
      lse += x * a.bl[d];
      delta += x * a.bd[d];
    }
  }
};

// gradSees returns the number of keys that query i sees.
template <int B> DEV i64 gradSees(const GradArgs<B>& a, i64 i) { return a.causal ? i + 1 + a.tk - a.tq : a.tk; }

// attentionLSE has a block for each query of each head.
template <class T, int B, int PER> DEV void attentionLSE(const GradArgs<B>& a) {
  typedef typename Num<T>::Acc A;
  __shared__ A query[256 * PER];
  i64 t = blockIdx.x;
  const i64 i = t % a.tq, h = t / a.tq % a.heads;
  const GradOperands<T> of(a, t / a.tq / a.heads);
  const T *q = of.q + i * a.sq[0] + h * a.sq[1], *k = of.k + h / a.share * a.sk[1];
  for (i64 d = threadIdx.x; d < a.dh; d += 256) query[d] = Num<T>::get(q[d * a.sq[2]]);
  __syncthreads();
  const i64 sees = gradSees(a, i);
  const A scale = (A)a.scale;
  A top = Const<A>::of(0xfff0000000000000ULL), sum = 0;
  for (i64 j = threadIdx.x; j < sees; j += 256) top = most(top, score<T>(query, k + j * a.sk[0], a.sk[2], a.dh, scale));
  top = fold256<FoldMax>(top);
  for (i64 j = threadIdx.x; j < sees; j += 256) sum += expOf(score<T>(query, k + j * a.sk[0], a.sk[2], a.dh, scale) - top);
  sum = fold256<FoldSum>(sum);
  if (threadIdx.x == 0) ((A*)a.out)[of.out + i * a.so[0] + h * a.so[1]] = top + logOf(sum);
}

// attentionDQ has a block for each query of each head.
template <class T, int B, int PER> DEV void attentionDQ(const GradArgs<B>& a) {
  typedef typename Num<T>::Acc A;
  __shared__ A query[256 * PER], grad[256 * PER], ds[256];
  i64 t = blockIdx.x;
  const i64 i = t % a.tq, h = t / a.tq % a.heads;
  const GradOperands<T> of(a, t / a.tq / a.heads);
  const T *q = of.q + i * a.sq[0] + h * a.sq[1], *dy = of.dy + i * a.sy[0] + h * a.sy[1];
  const T *k = of.k + h / a.share * a.sk[1], *v = of.v + h / a.share * a.sv[1];
  for (i64 d = threadIdx.x; d < a.dh; d += 256) query[d] = Num<T>::get(q[d * a.sq[2]]), grad[d] = Num<T>::get(dy[d * a.sy[2]]);
  const i64 sees = gradSees(a, i);
  const A scale = (A)a.scale, lse = of.lse[i * a.sl[0] + h * a.sl[1]], delta = of.delta[i * a.sd[0] + h * a.sd[1]];
  A o[PER];
#pragma unroll
  for (int p = 0; p < PER; p++) o[p] = 0;
  for (i64 j0 = 0; j0 < sees; j0 += 256) {
    const i64 j = j0 + threadIdx.x;
    __syncthreads();
    if (j < sees) ds[threadIdx.x] = expOf(score<T>(query, k + j * a.sk[0], a.sk[2], a.dh, scale) - lse) * (score<T>(grad, v + j * a.sv[0], a.sv[2], a.dh, (A)1) - delta);
    __syncthreads();
    const int keys = sees - j0 < 256 ? (int)(sees - j0) : 256;
#pragma unroll
    for (int p = 0; p < PER; p++) {
      const i64 d = threadIdx.x + 256 * p;
      if (d < a.dh)
        for (int x = 0; x < keys; x++) o[p] += ds[x] * Num<T>::get(k[(j0 + x) * a.sk[0] + d * a.sk[2]]);
    }
  }
  T* out = (T*)a.out + of.out + i * a.so[0] + h * a.so[1];
#pragma unroll
  for (int p = 0; p < PER; p++) {
    const i64 d = threadIdx.x + 256 * p;
    if (d < a.dh) out[d * a.so[2]] = Num<T>::put(o[p] * scale);
  }
}

// attentionDKV has a block for each key of each key head.
template <class T, int B, int PER> DEV void attentionDKV(const GradArgs<B>& a) {
  typedef typename Num<T>::Acc A;
  __shared__ A key[256 * PER], value[256 * PER], p[256], ds[256];
  i64 t = blockIdx.x;
  const i64 j = t % a.tk, kvs = a.heads / a.share, h = t / a.tk % kvs;
  const GradOperands<T> of(a, t / a.tk / kvs);
  const T *k = of.k + j * a.sk[0] + h * a.sk[1], *v = of.v + j * a.sv[0] + h * a.sv[1];
  for (i64 d = threadIdx.x; d < a.dh; d += 256) key[d] = Num<T>::get(k[d * a.sk[2]]), value[d] = Num<T>::get(v[d * a.sv[2]]);
  const i64 least = a.causal && j > a.tk - a.tq ? j - (a.tk - a.tq) : 0, rows = (a.tq - least) * a.share;
  const A scale = (A)a.scale;
  A dk[PER], dv[PER];
#pragma unroll
  for (int x = 0; x < PER; x++) dk[x] = 0, dv[x] = 0;
  for (i64 r0 = 0; r0 < rows; r0 += 256) {
    const i64 r = r0 + threadIdx.x;
    __syncthreads();
    if (r < rows) {
      const i64 i = least + r / a.share, g = h * a.share + r % a.share;
      const A w = expOf(score<T>(key, of.q + i * a.sq[0] + g * a.sq[1], a.sq[2], a.dh, scale) - of.lse[i * a.sl[0] + g * a.sl[1]]);
      p[threadIdx.x] = w;
      ds[threadIdx.x] = w * (score<T>(value, of.dy + i * a.sy[0] + g * a.sy[1], a.sy[2], a.dh, (A)1) - of.delta[i * a.sd[0] + g * a.sd[1]]);
    }
    __syncthreads();
    const int some = rows - r0 < 256 ? (int)(rows - r0) : 256;
    for (int x = 0; x < some; x++) {
      const i64 i = least + (r0 + x) / a.share, g = h * a.share + (r0 + x) % a.share;
      const T *q = of.q + i * a.sq[0] + g * a.sq[1], *dy = of.dy + i * a.sy[0] + g * a.sy[1];
#pragma unroll
      for (int y = 0; y < PER; y++) {
        const i64 d = threadIdx.x + 256 * y;
        if (d < a.dh) dk[y] += ds[x] * Num<T>::get(q[d * a.sq[2]]), dv[y] += p[x] * Num<T>::get(dy[d * a.sy[2]]);
      }
    }
  }
  T* out = (T*)a.out + of.out + j * a.so[0] + h * a.so[1];
#pragma unroll
  for (int y = 0; y < PER; y++) {
    const i64 d = threadIdx.x + 256 * y;
    if (d < a.dh) out[d * a.so[2]] = Num<T>::put(dk[y] * scale), out[a.both + d * a.so[2]] = Num<T>::put(dv[y]);
  }
}
