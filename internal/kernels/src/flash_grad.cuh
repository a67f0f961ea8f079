// Gradients of attention on tensor cores, without storing the weights (FlashAttention-2; Dao, 2023; arXiv 2307.08691).
// A block of flashLSE and flashDQ has 128 rows, like a block of flash, and iterates over keys. A block of flashDKV has
// 128 keys and iterates over the rows that see one of them. No two blocks add to the same number, so results are
// deterministic. A warp has 16 of the block's rows or keys. The weights that it computes remain in its registers, where
// they are operands of the next product.

// GradTile holds N rows of DH elements in shared memory. Rows are padded by 16 bytes, so that 8 of them are in
// different banks.
template <int DH, int N> struct GradTile {
  static constexpr int chunks = DH / 8, row = chunks + 1;
  Pack<u32, 4> at[N * row];

  // load starts to load N rows. place returns the address of row r, and there whether the row exists.
  template <class Place, class There> __device__ __forceinline__ void load(Place place, There there) {
#pragma unroll
    for (int c = threadIdx.x; c < N * chunks; c += 256) {
      const int r = c / chunks;
      const bool is = there(r);
      copy16(spotOf(&at[r * row + c % chunks]), place(is ? r : 0) + c % chunks * 8, is);
    }
  }

  // rows8 and turned return the addresses from which lanes read operands of matrix products. rows8 is for two groups of
  // 8 rows from row n on, with 16 elements from element c on. turned is for 16 rows from n on, with two groups of 8
  // columns from d on.
  __device__ __forceinline__ const Pack<u32, 4>* rows8(int n, int c) const {
    const int lane = threadIdx.x % 32;
    return &at[(n + lane / 16 * 8 + lane % 8) * row + 2 * c + lane / 8 % 2];
  }
  __device__ __forceinline__ const Pack<u32, 4>* turned(int n, int d) const {
    const int lane = threadIdx.x % 32;
    return &at[(n + lane % 16) * row + d + lane / 16];
  }
};

// GradRow is a row among the queries of several query heads that use one key head. Rows are in the order of their
// queries.
struct GradRow {
  u32 query, head;
  template <int B> __device__ __forceinline__ GradRow(const GradArgs<B>& a, u32 kv, u32 row) : query(row / (u32)a.share), head(kv * (u32)a.share + row % (u32)a.share) {}
};

// GradRows is the part of a block of flashLSE and flashDQ: 128 rows of a key head. The blocks whose rows see the most
// keys begin first.
template <class T, int B> struct GradRows {
  u32 rows, first, kv;
  GradOperands<T> of;
  int keys;  // largest number of keys that one of the rows sees
  __device__ __forceinline__ GradRows(const GradArgs<B>& a) : GradRows(a, (u32)(a.tq * a.share), (u32)(a.heads / a.share)) {}
  __device__ __forceinline__ GradRows(const GradArgs<B>& a, u32 rows, u32 kvs) : GradRows(a, rows, kvs, gridDim.x / ((rows + 127) / 128)) {}
  __device__ __forceinline__ GradRows(const GradArgs<B>& a, u32 rows, u32 kvs, u32 groups)
      : rows(rows), first(((rows + 127) / 128 - 1 - blockIdx.x / groups) * 128), kv(blockIdx.x % groups % kvs), of(a, blockIdx.x % groups / kvs) {
    of.k += kv * a.sk[1], of.v += kv * a.sv[1];
    keys = (int)gradSees(a, (first + 127 < rows ? first + 127 : rows - 1) / (u32)a.share);
  }
  // row returns the thread's first row; its other row is 8 rows later.
  __device__ __forceinline__ u32 row() const { return first + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4; }
};

// gradFragments loads 16 rows as an operand of matrix products: the lane's rows are x and y, with zeros for a null
// pointer.
template <int DH, class T> DEV void gradFragments(u32 (&f)[DH / 16][4], const T* x, const T* y) {
#pragma unroll
  for (int c = 0; c < DH / 16; c++) {
    const int at = 16 * c + threadIdx.x % 4 * 2;
    f[c][0] = x ? *(const u32*)(x + at) : 0;
    f[c][1] = y ? *(const u32*)(y + at) : 0;
    f[c][2] = x ? *(const u32*)(x + at + 8) : 0;
    f[c][3] = y ? *(const u32*)(y + at + 8) : 0;
  }
}

// gradScores multiplies a warp's 16 rows with the rows of a tile.
template <class T, int DH, int N> DEV void gradScores(f32 (&s)[N / 8][4], const u32 (&f)[DH / 16][4], const GradTile<DH, N>& tile) {
#pragma unroll
  for (int n = 0; n < N / 8; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) s[n][e] = 0;
#pragma unroll
  for (int c = 0; c < DH / 16; c++)
#pragma unroll
    for (int n = 0; n < N / 8; n += 2) {
      u32 x[4];
      fourTiles<false>(x, tile.rows8(n * 8, c));
      product<T>(s[n], f[c], x[0], x[1]);
      product<T>(s[n + 1], f[c], x[2], x[3]);
    }
}

// gradSum adds the rows of a tile, multiplied by weights.
template <class T, int DH, int N> DEV void gradSum(f32 (&o)[DH / 8][4], const f32 (&s)[N / 8][4], const GradTile<DH, N>& tile) {
#pragma unroll
  for (int n = 0; n < N / 8; n += 2) {
    u32 w[4], x[4];
    w[0] = pair<T>(s[n][0], s[n][1]), w[1] = pair<T>(s[n][2], s[n][3]);
    w[2] = pair<T>(s[n + 1][0], s[n + 1][1]), w[3] = pair<T>(s[n + 1][2], s[n + 1][3]);
#pragma unroll
    for (int d = 0; d < DH / 8; d += 2) {
      fourTiles<true>(x, tile.turned(n * 8, d));
      product<T>(o[d], w, x[0], x[1]);
      product<T>(o[d + 1], w, x[2], x[3]);
    }
  }
}

template <class T, int B, int DH> DEV void flashLSE(const GradArgs<B>& a) {
  constexpr int N = 64;
  const f32 inf = bitsAs<f32>(0x7f800000u), scale = (f32)(a.scale * 1.4426950408889634);
  __shared__ GradTile<DH, N> ks[2];
  const GradRows<T, B> b(a);
  auto load = [&](int j) {
    ks[j / N % 2].load([&](int r) { return b.of.k + (j + r) * a.sk[0]; }, [&](int r) { return j + r < b.keys; });
    endCopies();
  };
  load(0);
  u32 q[DH / 16][4];
  const T* rows[2];
  int seen[2];
  f32 top[2], sum[2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const u32 r = b.row() + 8 * h;
    const GradRow is(a, b.kv, r);
    rows[h] = r < b.rows ? b.of.q + is.query * a.sq[0] + is.head * a.sq[1] : nullptr;
    seen[h] = r < b.rows ? (int)gradSees(a, is.query) : 1;
    top[h] = -inf, sum[h] = 0;
  }
  gradFragments<DH>(q, rows[0], rows[1]);
  for (int j = 0; j < b.keys; j += N) {
    awaitCopies();
    __syncthreads();
    if (j + N < b.keys) load(j + N);
    f32 s[N / 8][4], most[2] = {top[0], top[1]};
    gradScores<T, DH, N>(s, q, ks[j / N % 2]);
    const int col = j + threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < N / 8; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        s[n][e] = col + n * 8 + e % 2 < seen[e / 2] ? s[n][e] * scale : -inf;
        most[e / 2] = fmaxf(most[e / 2], s[n][e]);
      }
#pragma unroll
    for (int h = 0; h < 2; h++) {  // every query sees the first key, so the result is finite
      most[h] = fmaxf(most[h], ofLane(most[h], 1));
      most[h] = fmaxf(most[h], ofLane(most[h], 2));
      sum[h] *= exp2Of(top[h] - most[h]);
      top[h] = most[h];
    }
#pragma unroll
    for (int n = 0; n < N / 8; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) sum[e / 2] += exp2Of(s[n][e] - top[e / 2]);
  }
#pragma unroll
  for (int h = 0; h < 2; h++) {
    sum[h] += ofLane(sum[h], 1);
    sum[h] += ofLane(sum[h], 2);
    const u32 r = b.row() + 8 * h;
    const GradRow is(a, b.kv, r);
    if (r < b.rows && threadIdx.x % 4 == 0) ((f32*)a.out)[b.of.out + is.query * a.so[0] + is.head * a.so[1]] = top[h] * 0.69314718055994531f + logOf(sum[h]);
  }
}

template <class T, int B, int DH> DEV void flashDQ(const GradArgs<B>& a) {
  constexpr int N = 32;
  const f32 scale = (f32)(a.scale * 1.4426950408889634);
  __shared__ GradTile<DH, N> ks[2], vs[2];
  const GradRows<T, B> b(a);
  auto load = [&](int j) {
    auto there = [&](int r) { return j + r < b.keys; };
    ks[j / N % 2].load([&](int r) { return b.of.k + (j + r) * a.sk[0]; }, there);
    vs[j / N % 2].load([&](int r) { return b.of.v + (j + r) * a.sv[0]; }, there);
    endCopies();
  };
  load(0);
  u32 q[DH / 16][4], dy[DH / 16][4];
  const T *qs[2], *ys[2];
  int seen[2];
  f32 lse[2], delta[2], o[DH / 8][4];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const u32 r = b.row() + 8 * h;
    const GradRow is(a, b.kv, r);
    const bool there = r < b.rows;
    qs[h] = there ? b.of.q + is.query * a.sq[0] + is.head * a.sq[1] : nullptr;
    ys[h] = there ? b.of.dy + is.query * a.sy[0] + is.head * a.sy[1] : nullptr;
    seen[h] = there ? (int)gradSees(a, is.query) : 0;
    lse[h] = there ? b.of.lse[is.query * a.sl[0] + is.head * a.sl[1]] * 1.4426950408889634f : 0;
    delta[h] = there ? b.of.delta[is.query * a.sd[0] + is.head * a.sd[1]] : 0;
  }
  gradFragments<DH>(q, qs[0], qs[1]);
  gradFragments<DH>(dy, ys[0], ys[1]);
#pragma unroll
  for (int d = 0; d < DH / 8; d++)
#pragma unroll
    for (int e = 0; e < 4; e++) o[d][e] = 0;
  for (int j = 0; j < b.keys; j += N) {
    awaitCopies();
    __syncthreads();
    if (j + N < b.keys) load(j + N);
    f32 s[N / 8][4], dp[N / 8][4];
    gradScores<T, DH, N>(s, q, ks[j / N % 2]);
    gradScores<T, DH, N>(dp, dy, vs[j / N % 2]);
    const int col = j + threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < N / 8; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) s[n][e] = col + n * 8 + e % 2 < seen[e / 2] ? exp2Of(s[n][e] * scale - lse[e / 2]) * (dp[n][e] - delta[e / 2]) : 0;
    gradSum<T, DH, N>(o, s, ks[j / N % 2]);
  }
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const u32 r = b.row() + 8 * h;
    if (r >= b.rows) continue;
    const GradRow is(a, b.kv, r);
    T* to = (T*)a.out + b.of.out + is.query * a.so[0] + is.head * a.so[1] + threadIdx.x % 4 * 2;
#pragma unroll
    for (int d = 0; d < DH / 8; d++) *(u32*)(to + 8 * d) = pair<T>(o[d][2 * h] * (f32)a.scale, o[d][2 * h + 1] * (f32)a.scale);
  }
}

// GradRoom is the dynamic shared memory of flashDKV. Rows are loaded N at a time.
template <int DH, int N> struct GradRoom {
  GradTile<DH, 128> v;
  GradTile<DH, N> q[2], dy[2];
  f32 lse[2][N], delta[2][N];
  int seen[2][N];  // number of keys that a row sees
};

// GradParts describes how the query heads of a key head are split into parts, because there would be too few blocks
// otherwise. Partial sums are stored in sums until flashGradJoin adds them.
struct GradParts { u64 sums; i64 parts; };
template <int B> struct FlashGradArgs { GradArgs<B> a; GradParts parts; };

template <class T, int B, int DH> DEV void flashDKV(const FlashGradArgs<B>& args) {
  constexpr int N = 32;
  const GradArgs<B>& a = args.a;  // share: number of query heads of a part
  const f32 scale = (f32)(a.scale * 1.4426950408889634);
  GradRoom<DH, N>& room = roomOf<GradRoom<DH, N>>();
  const u32 parts = (u32)args.parts.parts, some = (u32)(a.heads / a.share), tiles = (u32)(a.tk + 127) / 128, groups = gridDim.x / tiles;
  // blocks of the keys that most rows see begin first
  const u32 group = blockIdx.x % groups, part = group % some, kv = part / parts;
  const int first = (int)(blockIdx.x / groups * 128), keys = (int)a.tk, warp = (int)sameForWarp(threadIdx.x / 32), lane = threadIdx.x % 32;
  GradOperands<T> of(a, group / some);
  of.k += kv * a.sk[1], of.v += kv * a.sv[1];
  const i64 unseen = first - (a.tk - a.tq);  // number of queries before the first one that sees a key of the block
  const u32 rows = (u32)(a.tq * a.share), from = a.causal && unseen > 0 ? (u32)(unseen * a.share) / N * N : 0;
  // load starts to load the rows of tile r0. For each row, one lane of the first warp loads lse, delta and the number
  // of keys.
  f32 nextLSE = 0, nextDelta = 0;
  int nextSeen = 0;
  auto load = [&](u32 r0) {
    auto there = [&](int r) { return r0 + r < rows; };
    const int half = r0 / N % 2;
    room.q[half].load([&](int r) { const GradRow is(a, part, r0 + r); return of.q + is.query * a.sq[0] + is.head * a.sq[1]; }, there);
    room.dy[half].load([&](int r) { const GradRow is(a, part, r0 + r); return of.dy + is.query * a.sy[0] + is.head * a.sy[1]; }, there);
    endCopies();
    if (threadIdx.x < N) {
      nextSeen = 0;
      if (there(threadIdx.x)) {
        const GradRow is(a, part, r0 + threadIdx.x);
        nextLSE = of.lse[is.query * a.sl[0] + is.head * a.sl[1]] * 1.4426950408889634f, nextDelta = of.delta[is.query * a.sd[0] + is.head * a.sd[1]];
        nextSeen = (int)gradSees(a, is.query);
      }
    }
  };
  auto note = [&](u32 r0) {
    if (threadIdx.x < N) room.lse[r0 / N % 2][threadIdx.x] = nextLSE, room.delta[r0 / N % 2][threadIdx.x] = nextDelta, room.seen[r0 / N % 2][threadIdx.x] = nextSeen;
  };
  room.v.load([&](int r) { return of.v + (first + r) * a.sv[0]; }, [&](int r) { return first + r < keys; });
  load(from);
  note(from);
  const int key = first + warp * 16 + lane / 4;  // the lane's first key; its other key is 8 keys later
  u32 k[DH / 16][4];
  gradFragments<DH>(k, key < keys ? of.k + key * a.sk[0] : nullptr, key + 8 < keys ? of.k + (key + 8) * a.sk[0] : nullptr);
  f32 dk[DH / 8][4], dv[DH / 8][4];
#pragma unroll
  for (int d = 0; d < DH / 8; d++)
#pragma unroll
    for (int e = 0; e < 4; e++) dk[d][e] = 0, dv[d][e] = 0;
  for (u32 r0 = from; r0 < rows; r0 += N) {
    awaitCopies();
    __syncthreads();
    if (r0 + N < rows) load(r0 + N);
    const int half = r0 / N % 2;
    const GradTile<DH, N>&qs = room.q[half], &ys = room.dy[half];
    int most = room.seen[half][N - 1];  // the last existing row sees most keys
    if (rows - r0 < N) most = keys;
    if (someOfWarp(first + warp * 16 < most)) {
      f32 s[N / 8][4], dp[N / 8][4];
      gradScores<T, DH, N>(s, k, qs);
      const int col = lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < N / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const int r = col + n * 8 + e % 2;
          s[n][e] = key + e / 2 * 8 < room.seen[half][r] ? exp2Of(s[n][e] * scale - room.lse[half][r]) : 0;
        }
      gradSum<T, DH, N>(dv, s, ys);
#pragma unroll
      for (int n = 0; n < N / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) dp[n][e] = 0;
#pragma unroll
      for (int c = 0; c < DH / 16; c++) {
        u32 v[4];
        fourTiles<false>(v, room.v.turned(warp * 16, 2 * c));
#pragma unroll
        for (int n = 0; n < N / 8; n += 2) {
          u32 x[4];
          fourTiles<false>(x, ys.rows8(n * 8, c));
          product<T>(dp[n], v, x[0], x[1]);
          product<T>(dp[n + 1], v, x[2], x[3]);
        }
      }
#pragma unroll
      for (int n = 0; n < N / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) s[n][e] *= dp[n][e] - room.delta[half][col + n * 8 + e % 2];
      gradSum<T, DH, N>(dk, s, qs);
    }
    note(r0 + N);
  }
  const i64 whole = (i64)(groups / parts) * keys * DH;  // elements of dk
  f32* sums = (f32*)args.parts.sums + (part % parts * 2 * whole + (i64)(group / parts) * keys * DH);
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int j = key + 8 * h;
    if (j >= keys) continue;
    const int at = lane % 4 * 2;
    T* to = (T*)a.out + of.out + j * a.so[0] + kv * a.so[1] + at;
#pragma unroll
    for (int d = 0; d < DH / 8; d++) {
      const f32 x[2] = {dk[d][2 * h] * (f32)a.scale, dk[d][2 * h + 1] * (f32)a.scale};
      if (parts == 1) {
        *(u32*)(to + 8 * d) = pair<T>(x[0], x[1]);
        *(u32*)(to + a.both + 8 * d) = pair<T>(dv[d][2 * h], dv[d][2 * h + 1]);
      } else {
        *(Pack<f32, 2>*)(sums + (i64)j * DH + at + 8 * d) = {x[0], x[1]};
        *(Pack<f32, 2>*)(sums + whole + (i64)j * DH + at + 8 * d) = {dv[d][2 * h], dv[d][2 * h + 1]};
      }
    }
  }
}

// flashGradJoin adds the parts of flashDKV; each thread has four elements of dk or dv.
template <class T, int B, int DH> DEV void flashGradJoin(const FlashGradArgs<B>& args) {
  const GradArgs<B>& a = args.a;
  const i64 parts = args.parts.parts, kvs = a.heads / a.share / parts;
  i64 t = (i64)blockIdx.x * 256 + threadIdx.x, batches = 1;
#pragma unroll
  for (int d = 0; d < B; d++) batches *= a.e[d];
  const i64 whole = batches * kvs * a.tk * DH;
  if (t * 4 >= 2 * whole) return;
  f32 x[4] = {0, 0, 0, 0};
  for (i64 p = 0; p < parts; p++) {
    const Pack<f32, 4> y = *(const Pack<f32, 4>*)((const f32*)args.parts.sums + p * 2 * whole + t * 4);
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] += y.v[i];
  }
  const i64 dim = t % (DH / 4) * 4;
  t /= DH / 4;
  const i64 j = t % a.tk, kv = t / a.tk % kvs;
  t /= a.tk * kvs;
  const GradOperands<T> of(a, t % batches);
  T* to = (T*)a.out + of.out + t / batches * a.both + j * a.so[0] + kv * a.so[1] + dim;
  *(Pack<u32, 2>*)to = {pair<T>(x[0], x[1]), pair<T>(x[2], x[3])};
}
