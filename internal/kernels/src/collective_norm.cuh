// All-reduce of rows, a residual added, rms_norm: one launch where a layer of a
// model split over devices ends. A block of 256 threads has a row, as norm of
// rows.cuh has, and adds in the same order: the bits are those of three steps.

struct NormArgs {
  Team team;
  u64 in, residual, weight, sum, out;  // the member's own; sum gets what is normalised
  u64 data[teamMost], half;            // of each member: two halves of lines
  i64 rows, packs;                     // packs of a row
  f64 eps;
};

DEV f32 rootOf(f32 x) { return sqrtf(x); }
DEV f64 rootOf(f64 x) { return sqrt(x); }

// rowSum gives every thread the sum of all threads' values.
template <class A> DEV A rowSum(A v) {
  A* all = (A*)meetingRoom();
  __syncthreads();
  all[threadIdx.x] = v;
  for (int half = 128; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) all[threadIdx.x] = add(all[threadIdx.x], all[threadIdx.x + half]);
  }
  __syncthreads();
  return all[0];
}

// A pack goes as two lines, each with an epoch behind every 4 bytes.
DEV void pushPack(u64 at, Line v, u32 e) {
  push(at, Line{v.x, e, v.y, e});
  push(at + 16, Line{v.z, e, v.w, e});
}

template <class T, int W, int P> DEV void reduceNorm(const NormArgs& a) {
  constexpr int V = 16 / sizeof(T);
  typedef typename Num<T>::Acc A;
  const Team& t = a.team;
  const u32 r = (u32)t.rank, last = lastEpoch(t);
  const i64 packs = a.packs, total = a.rows * packs;
  const u32 e = begin(t, last);
  const u64 half = (e & 1) * a.half;
  Patience p = {0, 0};
  for (i64 row = blockIdx.x; row < a.rows; row += gridDim.x) {
    Line own[P], residual[P];
#pragma unroll
    for (int w = 0; w < P; w++) {
      const i64 j = threadIdx.x + 256 * w, i = row * packs + j;
      if (j < packs) own[w] = loadLine(a.in + i * 16), residual[w] = loadLine(a.residual + i * 16);
    }
#pragma unroll
    for (int k = 1; k < W; k++)
#pragma unroll
      for (int w = 0; w < P; w++) {
        const i64 j = threadIdx.x + 256 * w;
        if (j < packs) pushPack(a.data[(r + k) % W] + half + (r * total + row * packs + j) * 32, own[w], e);
      }
    Pack<T, V> held[P];
    A squares = 0;
#pragma unroll
    for (int w = 0; w < P; w++) {
      const i64 j = threadIdx.x + 256 * w, i = row * packs + j;
      if (j >= packs) break;
      Line x[W], lo[W], hi[W];
#pragma unroll
      for (int q = 0; q < W; q++) {
        const u64 at = a.data[r] + half + (q * total + i) * 32;
        if (q != r) lo[q] = look(at), hi[q] = look(at + 16);
      }
#pragma unroll
      for (int q = 0; q < W; q++) {
        const u64 at = a.data[r] + half + (q * total + i) * 32;
        x[q] = own[w];
        if (q == r) continue;
        awaitHalf(p, t, at, lo[q], q, e);
        awaitHalf(p, t, at + 16, hi[q], q, e);
        x[q] = Line{lo[q].x, lo[q].z, hi[q].x, hi[q].z};
      }
      const Pack<T, V> s = bitsAs<Pack<T, V>>(fold<RedSum, T, W>(x)), y = bitsAs<Pack<T, V>>(residual[w]);
#pragma unroll
      for (int v = 0; v < V; v++) {
        held[w].v[v] = Num<T>::put(add(Num<T>::get(s.v[v]), Num<T>::get(y.v[v])));
        const A z = Num<T>::get(held[w].v[v]);
        squares += z * z;
      }
      storeLine(a.sum + i * 16, bitsAs<Line>(held[w]));
    }
    const A root = (A)1 / rootOf(rowSum(squares) / (A)(packs * V) + (A)a.eps);
#pragma unroll
    for (int w = 0; w < P; w++) {
      const i64 j = threadIdx.x + 256 * w;
      if (j >= packs) break;
      const Pack<T, V> weight = bitsAs<Pack<T, V>>(loadLine(a.weight + j * 16));
      Pack<T, V> y;
#pragma unroll
      for (int v = 0; v < V; v++) y.v[v] = Num<T>::put(Num<T>::get(held[w].v[v]) * root * Num<T>::get(weight.v[v]));
      storeLine(a.out + (row * packs + j) * 16, bitsAs<Line>(y));
    }
  }
  end(t, e);
}
