// Attention of few queries to many keys, by tensor cores: keys are split over blocks, and a
// block's over its warps, 16 at a time, and what they have is put together by the largest
// score of each (Flash-Decoding; Dao, Haziza, Massa and Sizov, 2023). All of it waits for
// memory, so keys and values go straight to registers, 16 bytes at a time. Products leave
// open in which order they take elements of Dh: that in which these come.

// SplitArgs says where what splits have of 16 rows of a head of keys, a unit, is kept.
struct SplitArgs {
  u64 part;            // where not 0: sums[unit][split][16][DH] of f32
  u64 best;            // tops and weights[unit][split][16] of 2·f32
  i64 splits, length;  // keys of a split, a multiple of 128
};

template <int B> struct FlashSplitArgs {
  AttentionArgs<B> a;
  SplitArgs s;
};

// ofBoth makes a pair of two numbers, the high or the low ones of two words.
DEV u32 ofBoth(u32 lo, u32 hi, bool high) { return high ? lo >> 16 | (hi & 0xffff0000u) : (lo & 0xffff) | hi << 16; }

// Mean is what a warp has for 16 rows: a lane has the rows lane/4 and the eighth behind it,
// and of each the elements 64·D + (2·(lane%4) + e%2)·8 + i, at o[8·D + i].
template <int DH> struct Mean {
  f32 o[DH / 8][4], top[2], sum[2];

  // join takes in what others have of the same rows, scaled each by its own largest score.
  __device__ __forceinline__ void join(const f32* other, const f32* stats, f32 scale, int lane) {
    const f32 inf = bitsAs<f32>(0x7f800000u);
    f32 mine[2], theirs[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const f32 t = stats[4 * lane + h], most = fmaxf(top[h], t), shift = most == -inf ? 0 : most * scale;
      mine[h] = top[h] == -inf ? 0 : exp2Of(top[h] * scale - shift);
      theirs[h] = t == -inf ? 0 : exp2Of(t * scale - shift);
      sum[h] = sum[h] * mine[h] + stats[4 * lane + 2 + h] * theirs[h];
      top[h] = most;
    }
#pragma unroll
    for (int d = 0; d < DH / 8; d++)
#pragma unroll
      for (int e = 0; e < 4; e++) o[d][e] = o[d][e] * mine[e / 2] + other[(4 * d + e) * 32 + lane] * theirs[e / 2];
  }
};

template <class T, int B, int DH> DEV void flashSplit(const FlashSplitArgs<B>& args) {
  const AttentionArgs<B>& a = args.a;
  const i64 rows = a.tq * a.share, tiles = (rows + 15) / 16, kvs = a.heads / a.share;
  i64 t = blockIdx.x;
  const i64 split = t % args.s.splits, unit = t / args.s.splits;
  const i64 first = unit % tiles * 16, kv = unit / tiles % kvs;
  const Sequences<T> of(a, unit / tiles / kvs);
  __shared__ f32 sums[4][DH / 2 * 32], stats[4][4 * 32], weights[8][16][17];
  __shared__ int odd;
  const f32 inf = bitsAs<f32>(0x7f800000u);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
  const T *k = of.k + kv * a.sk[1], *v = of.v + kv * a.sv[1];
  const i64 last = first + 15 < rows ? first + 15 : rows - 1, from = split * args.s.length;
  i64 keys = keysOf(a, last / a.share);
  const i64 clear = keysOf(a, first / a.share);
  if (keys > from + args.s.length) keys = from + args.s.length;
  if (threadIdx.x == 0) odd = 0;

  f32 scale = (f32)(a.scale * 1.4426950408889634);  // weights are powers of 2
  const u32 sign = scale < 0 ? 0x80008000u : 0;
  scale = scale < 0 ? -scale : scale;
  Pack<u32, 4> q[2][DH / 32];
  i64 seen[2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const i64 r = first + g + 8 * h;
    const QueryRow<B> is(a, kv, r);
    seen[h] = r < rows ? keysOf(a, is.query) : 0;
#pragma unroll
    for (int d = 0; d < DH / 32; d++) {
      q[h][d] = Pack<u32, 4>{};
      if (r < rows) q[h][d] = *(const Pack<u32, 4>*)(of.q + is.query * a.sq[0] + is.head * a.sq[1] + 32 * d + 8 * c);
#pragma unroll
      for (int w = 0; w < 4; w++) q[h][d].v[w] ^= sign;
    }
  }
  Mean<DH> m;
#pragma unroll
  for (int h = 0; h < 2; h++) m.top[h] = -inf, m.sum[h] = 0;
#pragma unroll
  for (int d = 0; d < DH / 8; d++)
#pragma unroll
    for (int e = 0; e < 4; e++) m.o[d][e] = 0;

  for (i64 block = from; block < keys; block += 128) {
    const i64 j = block + 16 * warp;
    Pack<u32, 4> kk[2][DH / 32], vv[4][DH / 64];
#pragma unroll
    for (int n = 0; n < 2; n++) {
      const i64 key = j + 8 * n + g;
#pragma unroll
      for (int d = 0; d < DH / 32; d++) {
        kk[n][d] = Pack<u32, 4>{};
        if (key < keys) kk[n][d] = *(const Pack<u32, 4>*)(k + key * a.sk[0] + 32 * d + 8 * c);
      }
    }
#pragma unroll
    for (int x = 0; x < 4; x++) {
      const i64 key = j + x / 2 * 8 + 2 * c + x % 2;
#pragma unroll
      for (int d = 0; d < DH / 64; d++) {
        vv[x][d] = Pack<u32, 4>{};
        if (key < keys) vv[x][d] = *(const Pack<u32, 4>*)(v + key * a.sv[0] + 64 * d + 8 * g);
      }
    }
    f32 s[2][4] = {};
#pragma unroll
    for (int d = 0; d < DH / 32; d++)
#pragma unroll
      for (int half = 0; half < 4; half += 2) {
        const u32 x[4] = {q[0][d].v[half], q[1][d].v[half], q[0][d].v[half + 1], q[1][d].v[half + 1]};
#pragma unroll
        for (int n = 0; n < 2; n++) product<T>(s[n], x, kk[n][d].v[half], kk[n][d].v[half + 1]);
      }
    // What not all rows see, or nobody.
    bool hidden[2][4];
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const i64 key = j + 8 * n + 2 * c + e % 2;
        hidden[n][e] = key >= keys || key >= seen[e / 2];
        if (hidden[n][e]) s[n][e] = -inf;
      }
#pragma unroll
    for (int h = 0; h < 2; h++) {
      f32 most = fmaxf(m.top[h], fmaxf(fmaxf(s[0][2 * h], s[0][2 * h + 1]), fmaxf(s[1][2 * h], s[1][2 * h + 1])));
      most = fmaxf(most, ofLane(most, 1));
      most = fmaxf(most, ofLane(most, 2));
      const f32 shift = most == -inf ? 0 : most * scale, down = m.top[h] == -inf ? 0 : exp2Of(m.top[h] * scale - shift);
      m.top[h] = most;
      m.sum[h] *= down;
#pragma unroll
      for (int d = 0; d < DH / 8; d++) m.o[d][2 * h] *= down, m.o[d][2 * h + 1] *= down;
#pragma unroll
      for (int n = 0; n < 2; n++)
#pragma unroll
        for (int e = 2 * h; e < 2 * h + 2; e++) {
          s[n][e] = hidden[n][e] ? 0 : exp2Of(s[n][e] * scale - shift);
          m.sum[h] += s[n][e];
        }
    }
    if (block + 128 > clear && a.causal && a.tq > 1) {
      // A weight of zero hides a value only if that is finite.
      u32 bad = 0;
#pragma unroll
      for (int x = 0; x < 4; x++)
#pragma unroll
        for (int d = 0; d < DH / 64; d++) bad |= oddBits<T>(vv[x][d]);
      __syncthreads();
      if (bad) odd = 1;
#pragma unroll
      for (int n = 0; n < 2; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) weights[warp][g + e / 2 * 8][8 * n + 2 * c + e % 2] = s[n][e];
      __syncthreads();
      if (odd) {
        for (int x = 0; x < 16 && j + x < keys; x++)
#pragma unroll
          for (int d = 0; d < DH / 8; d++)
#pragma unroll
            for (int e = 0; e < 4; e++)
              if (j + x < seen[e / 2]) m.o[d][e] += weights[warp][g + e / 2 * 8][x] * Num<T>::get(v[(j + x) * a.sv[0] + d / 8 * 64 + (2 * c + e % 2) * 8 + d % 8]);
        continue;
      }
    }
    const u32 w[4] = {pair<T>(s[0][0], s[0][1]), pair<T>(s[0][2], s[0][3]), pair<T>(s[1][0], s[1][1]), pair<T>(s[1][2], s[1][3])};
#pragma unroll
    for (int d = 0; d < DH / 8; d++) {
      const int x = d % 8 / 2;
      product<T>(m.o[d], w, ofBoth(vv[0][d / 8].v[x], vv[1][d / 8].v[x], d % 2), ofBoth(vv[2][d / 8].v[x], vv[3][d / 8].v[x], d % 2));
    }
  }
#pragma unroll
  for (int h = 0; h < 2; h++) {
    m.sum[h] += ofLane(m.sum[h], 1);
    m.sum[h] += ofLane(m.sum[h], 2);
  }
#pragma unroll
  for (int half = 4; half > 0; half /= 2) {
    __syncthreads();
    if (warp >= half && warp < 2 * half) {
      f32 *to = sums[warp - half], *st = stats[warp - half];
#pragma unroll
      for (int d = 0; d < DH / 8; d++)
#pragma unroll
        for (int e = 0; e < 4; e++) to[(4 * d + e) * 32 + lane] = m.o[d][e];
#pragma unroll
      for (int h = 0; h < 2; h++) st[4 * lane + h] = m.top[h], st[4 * lane + 2 + h] = m.sum[h];
    }
    __syncthreads();
    if (warp < half) m.join(sums[warp], stats[warp], scale, lane);
  }
  if (warp > 0) return;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const i64 r = first + g + 8 * h;
    if (r >= rows) continue;
    if (args.s.splits > 1) {
      const i64 at = (unit * args.s.splits + split) * 16 + g + 8 * h;
      f32* to = (f32*)args.s.part + at * DH;
#pragma unroll
      for (int d = 0; d < DH / 64; d++)
#pragma unroll
        for (int e = 0; e < 2; e++)
#pragma unroll
          for (int i = 0; i < 8; i += 4) {
            Pack<f32, 4> x;
#pragma unroll
            for (int n = 0; n < 4; n++) x.v[n] = m.o[8 * d + i + n][2 * h + e];
            *(Pack<f32, 4>*)(to + 64 * d + (2 * c + e) * 8 + i) = x;
          }
      if (c == 0) ((Pack<f32, 2>*)args.s.best)[at] = Pack<f32, 2>{{m.top[h], m.sum[h]}};
      continue;
    }
    const QueryRow<B> is(a, kv, r);
    T* to = of.out + is.query * a.so[0] + is.head * a.so[1];
#pragma unroll
    for (int d = 0; d < DH / 64; d++)
#pragma unroll
      for (int e = 0; e < 2; e++) {
        Pack<u32, 4> x;
#pragma unroll
        for (int n = 0; n < 4; n++) x.v[n] = pair<T>(m.o[8 * d + 2 * n][2 * h + e] / m.sum[h], m.o[8 * d + 2 * n + 1][2 * h + e] / m.sum[h]);
        *(Pack<u32, 4>*)(to + 64 * d + (2 * c + e) * 8) = x;
      }
  }
}

// flashJoin puts together what splits have; a thread has an element of a row.
template <class T, int B, int DH> DEV void flashJoin(const FlashSplitArgs<B>& args) {
  const AttentionArgs<B>& a = args.a;
  const i64 rows = a.tq * a.share, tiles = (rows + 15) / 16, kvs = a.heads / a.share;
  const i64 at = ((i64)blockIdx.x * 256 + threadIdx.x) / DH, d = threadIdx.x % DH;
  const i64 unit = at / 16, r = unit % tiles * 16 + at % 16;
  if (r >= rows) return;
  const f32 inf = bitsAs<f32>(0x7f800000u);
  f32 scale = (f32)(a.scale * 1.4426950408889634);
  scale = scale < 0 ? -scale : scale;
  const Pack<f32, 2>* best = (const Pack<f32, 2>*)args.s.best + unit * args.s.splits * 16 + at % 16;
  const f32* part = (const f32*)args.s.part + (unit * args.s.splits * 16 + at % 16) * DH + d;
  f32 top = -inf, sum = 0, o = 0;
  for (i64 s = 0; s < args.s.splits; s++) top = fmaxf(top, best[16 * s].v[0]);
  const f32 shift = top == -inf ? 0 : top * scale;
  for (i64 s = 0; s < args.s.splits; s++) {
    const Pack<f32, 2> b = best[16 * s];
    if (b.v[0] == -inf && b.v[1] == 0) continue;
    const f32 down = b.v[0] == -inf ? 0 : exp2Of(b.v[0] * scale - shift);
    sum += b.v[1] * down;
    o += part[16 * DH * s] * down;
  }
  const i64 kv = unit / tiles % kvs;
  const Sequences<T> of(a, unit / tiles / kvs);
  const QueryRow<B> is(a, kv, r);
  of.out[is.query * a.so[0] + is.head * a.so[1] + d] = Num<T>::put(o / sum);
}
