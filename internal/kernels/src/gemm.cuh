// out[m, n] = Σ a[m, k]·b[n, k] (+ bias[n]) for matrices with any strides and any element type, adding in the order of
// k. It is used if the vendor's library does not support the operands.

template <int B> struct GemmArgs {
  u64 out, a, b, bias;           // bias: 0 for none
  i64 m, n, k, tileCols, tileRows;
  i64 om, on, am, ak, bn, bk, biasn;
  i64 e[B], so[B], sa[B], sb[B]; // extents and strides of the batch dimensions
};

template <class A> DEV A fusedAdd(A c, A x, A y) { return c + x * y; }
DEV i64 fusedAdd(i64 c, i64 x, i64 y) { return add(c, mul(x, y)); }

// 256 threads compute a tile of 64×64, 4×4 results each.
template <class T, int B> DEV void gemm(const GemmArgs<B>& g) {
  typedef typename Num<T>::Acc A;
  const int D = 8;
  __shared__ A as[D][64 + 1], bs[D][64 + 1];
  i64 t = blockIdx.x;
  const i64 n0 = t % g.tileCols * 64;
  t /= g.tileCols;
  const i64 m0 = t % g.tileRows * 64;
  t /= g.tileRows;
  const T *a = (const T*)g.a, *b = (const T*)g.b;
  T* out = (T*)g.out;
#pragma unroll
  for (int d = B - 1; d >= 0; d--) {
    const i64 x = d ? t % g.e[d] : t;
    t /= g.e[d];
    a += x * g.sa[d];
    b += x * g.sb[d];
    out += x * g.so[d];
  }
  const int x = threadIdx.x % 16, y = threadIdx.x / 16;
  A c[4][4];
#pragma unroll
  for (int i = 0; i < 16; i++) c[i / 4][i % 4] = (A)0;
  for (i64 k0 = 0; k0 < g.k; k0 += D) {
    __syncthreads();
    for (int i = threadIdx.x; i < 64 * D; i += 256) {
      const int r = i / D, k = i % D;
      as[k][r] = m0 + r < g.m && k0 + k < g.k ? Num<T>::get(a[(m0 + r) * g.am + (k0 + k) * g.ak]) : (A)0;
      bs[k][r] = n0 + r < g.n && k0 + k < g.k ? Num<T>::get(b[(n0 + r) * g.bn + (k0 + k) * g.bk]) : (A)0;
    }
    __syncthreads();
    const int ks = g.k - k0 < D ? (int)(g.k - k0) : D;
    for (int k = 0; k < ks; k++)
#pragma unroll
      for (int i = 0; i < 16; i++) c[i / 4][i % 4] = fusedAdd(c[i / 4][i % 4], as[k][y + 16 * (i / 4)], bs[k][x + 16 * (i % 4)]);
  }
#pragma unroll
  for (int i = 0; i < 16; i++) {
    const i64 r = m0 + y + 16 * (i / 4), q = n0 + x + 16 * (i % 4);
    if (r >= g.m || q >= g.n) continue;
    A v = c[i / 4][i % 4];
    if (g.bias) v = add(v, Num<T>::get(((const T*)g.bias)[q * g.biasn]));
    out[r * g.om + q * g.on] = Num<T>::put(v);
  }
}
