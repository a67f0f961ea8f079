// Attention by tensor cores, in one pass over keys and values: FlashAttention-2 (Dao,
// 2023; arXiv 2307.08691). A block has 128 rows, which are queries of all the heads that
// share keys and values, a warp 16 of them; what it has of the result is scaled down
// whenever a larger score comes. Keys and values come 64 at a time, the values while
// scores are computed, the next keys while the values are added up.

// Tile is 64 rows of DH elements in shared memory; rows are 16 bytes longer than they
// need be, so that 8 of them lie in different banks.
template <int DH> struct Tile {
  static constexpr int chunks = DH / 8, row = chunks + 1;
  Pack<u32, 4> at[64 * row];

  // load begins to bring rows from..from+63, zeros for those from n on.
  template <class T> __device__ __forceinline__ void load(const T* x, i64 stride, i64 from, i64 n) {
#pragma unroll
    for (int c = threadIdx.x; c < 64 * chunks; c += 256) {
      const i64 r = from + c / chunks;
      copy16(&at[c / chunks * row + c % chunks], x + (r < n ? r * stride : 0) + c % chunks * 8, r < n);
    }
    endCopies();
  }

  // finite reports whether the thread finds nothing else among its part of the rows.
  template <class T> __device__ __forceinline__ bool finite() const {
    const u16 top = IsBF16<T>::yes ? 0x7f80 : 0x7c00;
    bool all = true;
    for (int c = threadIdx.x; c < 64 * chunks; c += 256) {
      const Pack<u32, 4> x = at[c / chunks * row + c % chunks];
#pragma unroll
      for (int i = 0; i < 4; i++) all = all && (x.v[i] & top) != top && (x.v[i] >> 16 & top) != top;
    }
    return all;
  }
};

template <class T, int B, int DH> DEV void flash(const AttentionArgs<B>& a) {
  const i64 rows = a.tq * a.share, tiles = (rows + 127) / 128, kvs = a.heads / a.share;
  i64 t = blockIdx.x;
  const i64 first = (tiles - 1 - t % tiles) * 128;  // who sees most begins
  t /= tiles;
  const i64 kv = t % kvs;
  const Sequences<T> of(a, t / kvs);
  __shared__ Tile<DH> ks, vs;
  __shared__ int odd;
  const float inf = bitsAs<f32>(0x7f800000u);
  const int lane = threadIdx.x % 32;
  const T *k = of.k + kv * a.sk[1], *v = of.v + kv * a.sv[1];
  const i64 last = first + 127 < rows ? first + 127 : rows - 1;
  const i64 keys = keysOf(a, last / a.share), clear = keysOf(a, first / a.share);
  if (threadIdx.x == 0) odd = 0;
  ks.load(k, a.sk[0], 0, keys);

  // A lane has of a warp's rows this one and the eighth behind it.
  const i64 row = first + threadIdx.x / 32 * 16 + lane / 4;
  f32 scale = (f32)(a.scale * 1.4426950408889634);  // weights are powers of 2
  const u32 sign = scale < 0 ? 0x80008000u : 0;
  scale = scale < 0 ? -scale : scale;
  u32 q[DH / 16][4];
  int sees[2];  // of the keys from the tile's first on
  i64 seen[2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const i64 r = row + 8 * h;
    const QueryRow<B> is(a, kv, r);
    const T* at = of.q + is.query * a.sq[0] + is.head * a.sq[1] + lane % 4 * 2;
    seen[h] = r < rows ? keysOf(a, is.query) : 0;
#pragma unroll
    for (int c = 0; c < DH / 16; c++) {
      q[c][h] = r < rows ? *(const u32*)(at + 16 * c) ^ sign : 0;
      q[c][h + 2] = r < rows ? *(const u32*)(at + 16 * c + 8) ^ sign : 0;
    }
  }
  __syncthreads();
  f32 o[DH / 8][4], top[2] = {-inf, -inf}, shift[2] = {0, 0}, sum[2] = {0, 0};
#pragma unroll
  for (int d = 0; d < DH / 8; d++)
#pragma unroll
    for (int e = 0; e < 4; e++) o[d][e] = 0;

  for (i64 j = 0; j < keys; j += 64) {
    awaitCopies();
    __syncthreads();
    vs.load(v, a.sv[0], j, keys);
    f32 s[8][4];
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) s[n][e] = 0;
#pragma unroll
    for (int c = 0; c < DH / 16; c++)
#pragma unroll
      for (int n = 0; n < 8; n += 2) {
        u32 b[4];
        fourTiles<false>(b, &ks.at[(n * 8 + lane / 16 * 8 + lane % 8) * ks.row + 2 * c + lane / 8 % 2]);
        product<T>(s[n], q[c], b[0], b[1]);
        product<T>(s[n + 1], q[c], b[2], b[3]);
      }
    awaitCopies();
    __syncthreads();
    if (j + 64 < keys) ks.load(k, a.sk[0], j + 64, keys);
    const bool masked = j + 64 > clear;
    if (masked && a.causal) {
      // A weight of zero hides a value only if that is finite.
      if (!vs.template finite<T>()) odd = 1;
      __syncthreads();
      if (odd) break;
    }
    if (masked) {
#pragma unroll
      for (int h = 0; h < 2; h++) sees[h] = seen[h] - j < 64 ? (int)(seen[h] - j) : 64;
#pragma unroll
      for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
          if (n * 8 + lane % 4 * 2 + e % 2 >= sees[e / 2]) s[n][e] = -inf;
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
      f32 most = top[h];
#pragma unroll
      for (int n = 0; n < 8; n++) most = fmaxf(most, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
      most = fmaxf(most, ofLane(most, 1));
      most = fmaxf(most, ofLane(most, 2));
      const f32 next = most == -inf ? 0 : most * scale, down = top[h] == -inf ? 0 : exp2Of(shift[h] - next);
      top[h] = most, shift[h] = next;
      sum[h] *= down;
#pragma unroll
      for (int d = 0; d < DH / 8; d++) o[d][2 * h] *= down, o[d][2 * h + 1] *= down;
    }
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const bool hidden = masked && n * 8 + lane % 4 * 2 + e % 2 >= sees[e / 2];
        s[n][e] = hidden ? 0 : exp2Of(s[n][e] * scale - shift[e / 2]);
        sum[e / 2] += s[n][e];
      }
#pragma unroll
    for (int n = 0; n < 4; n++) {
      const u32 w[4] = {pair<T>(s[2 * n][0], s[2 * n][1]), pair<T>(s[2 * n][2], s[2 * n][3]),
                        pair<T>(s[2 * n + 1][0], s[2 * n + 1][1]), pair<T>(s[2 * n + 1][2], s[2 * n + 1][3])};
#pragma unroll
      for (int d = 0; d < DH / 8; d += 2) {
        u32 b[4];
        fourTiles<true>(b, &vs.at[(n * 16 + lane % 16) * vs.row + d + lane / 16]);
        product<T>(o[d], w, b[0], b[1]);
        product<T>(o[d + 1], w, b[2], b[3]);
      }
    }
  }
  awaitCopies();
  if (!odd) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      sum[h] += ofLane(sum[h], 1);
      sum[h] += ofLane(sum[h], 2);
      const i64 r = row + 8 * h;
      if (r >= rows) continue;
      const QueryRow<B> is(a, kv, r);
      T* to = of.out + is.query * a.so[0] + is.head * a.so[1] + lane % 4 * 2;
#pragma unroll
      for (int d = 0; d < DH / 8; d++) *(u32*)(to + 8 * d) = pair<T>(o[d][2 * h] / sum[h], o[d][2 * h + 1] / sum[h]);
    }
    return;
  }
  // As the text says, row by row.
  for (i64 r = first; r < first + 128 && r < rows; r++) {
    const QueryRow<B> is(a, kv, r);
    attend<T, 1>(a, of, is.query, is.head);
    __syncthreads();
  }
}
