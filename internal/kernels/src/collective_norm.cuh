// All-reduce of rows, a residual added, rms_norm: one launch where a layer of a
// model split over devices ends. 256 threads add a row's squares up, as norm of
// rows.cuh has them do, in the same order: the bits are those of three steps.

struct NormArgs {
  Team team;
  u64 in, residual, weight, sum, out;  // the member's own; sum gets what is normalised
  u64 data[teamMost], half;            // of each member: two halves of lines
  i64 rows, packs;                     // packs of a row
  i64 split, each;                     // blocks of a row, and packs of a block: each · split >= packs
  u64 read;                            // words that say which blocks have read; 0 where nobody writes what others read
  f64 eps;
};

DEV f32 rootOf(f32 x) { return sqrtf(x); }
DEV f64 rootOf(f64 x) { return sqrt(x); }

// rowSum gives every thread the sum of all threads' values: of halves, halves of
// that, and so on. Each warp finds it for itself.
template <class A> DEV A rowSum(A v) {
  A* all = (A*)meetingRoom();
  __syncthreads();
  all[threadIdx.x] = v;
  __syncthreads();
  A x[8];
#pragma unroll
  for (int k = 0; k < 8; k++) x[k] = all[threadIdx.x % 32 + 32 * k];
#pragma unroll
  for (int half = 4; half > 0; half /= 2)
#pragma unroll
    for (int k = 0; k < half; k++) x[k] = add(x[k], x[k + half]);
#pragma unroll
  for (int half = 16; half > 0; half /= 2) x[0] = add(x[0], __shfl_down_sync(0xffffffff, x[0], half));
  return __shfl_sync(0xffffffff, x[0], 0);
}

// A pack goes as two lines, each with an epoch behind every 4 bytes: all first ones of
// a row lie side by side, and so do the second ones, apart bytes behind. A warp then
// stores whole lines of 128 bytes: gaps cost a link as much as data.
struct PackLines { Line lo, hi; };

DEV void pushPack(u64 at, i64 apart, Line v, u32 e) {
  push(at, Line{v.x, e, v.y, e});
  push(at + apart, Line{v.z, e, v.w, e});
}

DEV PackLines lookPack(u64 at, i64 apart) { return PackLines{look(at), look(at + apart)}; }

DEV Line opened(PackLines l) { return Line{l.lo.x, l.lo.z, l.hi.x, l.hi.z}; }

DEV Line awaitPack(Patience& p, const Team& t, u64 at, i64 apart, PackLines l, u32 from, u32 e) {
  awaitHalf(p, t, at, l.lo, from, e);
  awaitHalf(p, t, at + apart, l.hi, from, e);
  return opened(l);
}

// awaitPacks waits for a pack of each peer; at + q · next is that of member q. It looks
// anew at all that have not come, not at one after another.
template <int W> DEV void awaitPacks(Patience& p, const Team& t, u64 at, i64 next, i64 apart, PackLines* l, u32 e) {
  const u32 r = (u32)t.rank;
  for (;;) {
    u32 late = W;
#pragma unroll
    for (int q = W - 1; q >= 0; q--)
      if (q != r && !(isOf(l[q].lo, e) && isOf(l[q].hi, e))) late = q;
    if (late == W || waited(p, t, late, e)) return;
#pragma unroll
    for (int q = 0; q < W; q++) {
      if (q != r && !isOf(l[q].lo, e)) l[q].lo = look(at + q * next);
      if (q != r && !isOf(l[q].hi, e)) l[q].hi = look(at + q * next + apart);
    }
  }
}

template <class T, int V> DEV typename Num<T>::Acc addSquares(typename Num<T>::Acc sum, const Pack<T, V>& x) {
#pragma unroll
  for (int v = 0; v < V; v++) {
    const typename Num<T>::Acc z = Num<T>::get(x.v[v]);
    sum += z * z;
  }
  return sum;
}

// A thread has up to P packs of a row, 256 apart. Where rows are SPLIT over blocks,
// one adds up no more than 256 of them, and hands these to the row's other blocks, by
// the slots of the member itself, to which no peer pushes: each needs all squares. The
// blocks of a row are in one wave of the grid, and all are where blocks write what
// others read: then nobody writes before all have read.
template <class T, int W, int P, bool SPLIT> DEV void reduceNorm(const NormArgs& a) {
  constexpr int V = 16 / sizeof(T), Q = SPLIT ? 1 : P;
  typedef typename Num<T>::Acc A;
  const Team& t = a.team;
  const u32 r = (u32)t.rank, last = lastEpoch(t);
  const i64 packs = a.packs, total = a.rows * packs, apart = packs * 16;
  const u32 e = begin(t, last);
  const u64 half = (e & 1) * a.half;
  Patience p = {0, 0};
  for (i64 unit = blockIdx.x; unit < a.rows * a.split; unit += gridDim.x) {
    const i64 first = unit / a.split * packs, from = unit % a.split * a.each, to = packs - from < a.each ? packs : from + a.each;
    Line own[Q], residual[Q], weight[Q];
#pragma unroll
    for (int w = 0; w < Q; w++) {
      const i64 j = from + threadIdx.x + 256 * w, i = first + j;
      if (j < to) own[w] = loadLine(a.in + i * 16), residual[w] = loadLine(a.residual + i * 16), weight[w] = loadLine(a.weight + j * 16);
    }
    if (a.read) {
      __syncthreads();
      if (threadIdx.x == 0) release32(a.read + blockIdx.x * 4, e);
    }
#pragma unroll
    for (int k = 1; k < W; k++)
#pragma unroll
      for (int w = 0; w < Q; w++) {
        const i64 j = from + threadIdx.x + 256 * w;
        if (j < to) pushPack(a.data[(r + k) % W] + half + (r * total + first) * 32 + j * 16, apart, own[w], e);
      }
    if (a.read) {
      for (u32 b = threadIdx.x; b < gridDim.x; b += 256) waitFlag(p, t, a.read + b * 4, r, e);
      __syncthreads();
    }
    Pack<T, V> held[Q];
    A squares = 0;
#pragma unroll
    for (int w = 0; w < Q; w++) {
      const i64 j = from + threadIdx.x + 256 * w, i = first + j;
      if (j >= to) break;
      PackLines l[W];
      Line x[W];
      const u64 at = a.data[r] + half + first * 32 + j * 16;
#pragma unroll
      for (int q = 0; q < W; q++)
        if (q != r) l[q] = lookPack(at + q * total * 32, apart);
      awaitPacks<W>(p, t, at, total * 32, apart, l, e);
#pragma unroll
      for (int q = 0; q < W; q++) {
        x[q] = own[w];
        if (q != r) x[q] = opened(l[q]);
      }
      const Pack<T, V> s = bitsAs<Pack<T, V>>(fold<RedSum, T, W>(x)), y = bitsAs<Pack<T, V>>(residual[w]);
#pragma unroll
      for (int v = 0; v < V; v++) held[w].v[v] = Num<T>::put(add(Num<T>::get(s.v[v]), Num<T>::get(y.v[v])));
      if (SPLIT) pushPack(a.data[r] + half + (r * total + first) * 32 + j * 16, apart, bitsAs<Line>(held[w]), e);
      else squares = addSquares<T, V>(squares, held[w]);
      storeLine(a.sum + i * 16, bitsAs<Line>(held[w]));
    }
    if (SPLIT) {
      const u64 at = a.data[r] + half + (r * total + first) * 32;
      PackLines l[P];
#pragma unroll
      for (int w = 0; w < P; w++)
        if (threadIdx.x + 256 * w < packs) l[w] = lookPack(at + (threadIdx.x + 256 * w) * 16, apart);
#pragma unroll
      for (int w = 0; w < P; w++) {
        const i64 j = threadIdx.x + 256 * w;
        if (j < packs) squares = addSquares<T, V>(squares, bitsAs<Pack<T, V>>(awaitPack(p, t, at + j * 16, apart, l[w], r, e)));
      }
    }
    const A root = (A)1 / rootOf(rowSum(squares) / (A)(packs * V) + (A)a.eps);
#pragma unroll
    for (int w = 0; w < Q; w++) {
      const i64 j = from + threadIdx.x + 256 * w;
      if (j >= to) break;
      const Pack<T, V> scale = bitsAs<Pack<T, V>>(weight[w]);
      Pack<T, V> y;
#pragma unroll
      for (int v = 0; v < V; v++) y.v[v] = Num<T>::put(Num<T>::get(held[w].v[v]) * root * Num<T>::get(scale.v[v]));
      storeLine(a.out + (first + j) * 16, bitsAs<Line>(y));
    }
  }
  end(t, e);
}
