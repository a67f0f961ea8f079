// 8-bit numbers and their scales. A tensor is treated as a matrix of rows, in which blocks of rows × columns share a
// scale.

struct ScaleGrain {
  i64 rows, columns;             // size of a block that shares a scale
  i64 s[2];                      // strides from one scale to the next
  __device__ __forceinline__ i64 at(i64 row, i64 col) const { return row / rows * s[0] + col / columns * s[1]; }
};

DEV f32 largestOf(f8e4m3*) { return 448; }
DEV f32 largestOf(f8e5m2*) { return 57344; }

struct ScalesArgs {
  u64 out, in;
  f64 most;                      // the value to which the largest magnitude is scaled
  i64 rows, columns, row, column; // size of the operand, and its strides
  i64 blocks, wide;              // total number of blocks, and number of blocks in a row of blocks
  ScaleGrain grain;
};

// G threads, a warp or a block of 256, compute the largest magnitude of a block; a NaN counts as the largest.
template <class T, int G> DEV void scales(const ScalesArgs& a) {
  typedef typename Num<T>::Acc A;
  __shared__ A all[256];
  const int t = threadIdx.x % G;
  const i64 block = (i64)blockIdx.x * (256 / G) + threadIdx.x / G;
  const ScaleGrain& g = a.grain;
  const i64 i0 = block / a.wide * g.rows, j0 = block % a.wide * g.columns;
  const i64 rows = a.rows - i0 < g.rows ? a.rows - i0 : g.rows, cols = a.columns - j0 < g.columns ? a.columns - j0 : g.columns;
  A top = 0;
  const T* in = (const T*)a.in + i0 * a.row + j0 * a.column;
  for (i64 i = 0; i < rows && block < a.blocks; i++, in += a.row)
    for (i64 j = t; j < cols; j += G) {
      const A x = Num<T>::get(in[j * a.column]);
      top = most(top, x < 0 ? -x : x);
    }
  all[threadIdx.x] = top;
#pragma unroll
  for (int half = G / 2; half > 0; half /= 2) {
    __syncthreads();
    if (t < half) all[threadIdx.x] = most(all[threadIdx.x], all[threadIdx.x + half]);
  }
  if (t == 0 && block < a.blocks)
    ((f32*)a.out)[block / a.wide * g.s[0] + block % a.wide * g.s[1]] = most((f32)(all[threadIdx.x] / (A)a.most), 1e-12f);
}

struct QuantizeArgs {
  u64 out, in, scales;
  i64 total, wide;               // total number of packs of V elements, and number of packs in a row
  i64 so[2], si[2];              // strides along rows and columns
  ScaleGrain grain;
};

template <class O, class T, int V> DEV void quantize(const QuantizeArgs& a) {
  typedef typename Num<T>::Acc A;
  const i64 step = (i64)gridDim.x * blockDim.x;
  const A top = largestOf((O*)0);
  for (i64 p = (i64)blockIdx.x * blockDim.x + threadIdx.x; p < a.total; p += step) {
    const i64 row = p / a.wide, col = p % a.wide * V;
    const A scale = ((const f32*)a.scales)[a.grain.at(row, col)];
    const Pack<T, V> x = *(const Pack<T, V>*)((const T*)a.in + row * a.si[0] + col * a.si[1]);
    Pack<O, V> y;
#pragma unroll
    for (int v = 0; v < V; v++) {
      const A q = Num<T>::get(x.v[v]) / scale;
      y.v[v] = Num<O>::cast(q > top ? top : q < -top ? -top : q);
    }
    *(Pack<O, V>*)((O*)a.out + row * a.so[0] + col * a.so[1]) = y;
  }
}

struct ScaledArgs {
  u64 out, x, w, sx, sw;
  i64 m, n, k, tileCols, piece;  // piece: elements of K whose sum is multiplied by their scales at once
  i64 so[2], six[2], siw[2];
  ScaleGrain gx, gw;
};

// 256 threads compute a tile of 64x64, 4x4 results each, adding in the order of k.
template <class O, class X, class W> DEV void scaled(const ScaledArgs& a) {
  const int D = 8;
  __shared__ f32 xs[D][64 + 1], ws[D][64 + 1];
  const i64 n0 = blockIdx.x % a.tileCols * 64, m0 = blockIdx.x / a.tileCols * 64;
  const X* x = (const X*)a.x;
  const W* w = (const W*)a.w;
  const int c = threadIdx.x % 16, r = threadIdx.x / 16;
  f32 sum[4][4], part[4][4];
#pragma unroll
  for (int i = 0; i < 16; i++) sum[i / 4][i % 4] = part[i / 4][i % 4] = 0;
  for (i64 k0 = 0; k0 < a.k; k0 += D) {
    __syncthreads();
    for (int i = threadIdx.x; i < 64 * D; i += 256) {
      const int p = i / D, k = i % D;
      xs[k][p] = m0 + p < a.m && k0 + k < a.k ? Num<X>::get(x[(m0 + p) * a.six[0] + (k0 + k) * a.six[1]]) : 0;
      ws[k][p] = n0 + p < a.n && k0 + k < a.k ? Num<W>::get(w[(n0 + p) * a.siw[0] + (k0 + k) * a.siw[1]]) : 0;
    }
    __syncthreads();
    const int ks = a.k - k0 < D ? (int)(a.k - k0) : D;
    for (int k = 0; k < ks; k++)
#pragma unroll
      for (int i = 0; i < 16; i++) part[i / 4][i % 4] = fusedAdd(part[i / 4][i % 4], xs[k][r + 16 * (i / 4)], ws[k][c + 16 * (i % 4)]);
    if ((k0 + D) % a.piece != 0 && k0 + D < a.k) continue;
#pragma unroll
    for (int i = 0; i < 16; i++) {
      const i64 p = m0 + r + 16 * (i / 4), q = n0 + c + 16 * (i % 4);
      if (p >= a.m || q >= a.n) continue;
      const f32 by = mul(((const f32*)a.sx)[a.gx.at(p, k0)], ((const f32*)a.sw)[a.gw.at(q, k0)]);
      sum[i / 4][i % 4] = fusedAdd(sum[i / 4][i % 4], part[i / 4][i % 4], by);
      part[i / 4][i % 4] = 0;
    }
  }
#pragma unroll
  for (int i = 0; i < 16; i++) {
    const i64 p = m0 + r + 16 * (i / 4), q = n0 + c + 16 * (i % 4);
    if (p < a.m && q < a.n) ((O*)a.out)[p * a.so[0] + q * a.so[1]] = Num<O>::put(sum[i / 4][i % 4]);
  }
}
