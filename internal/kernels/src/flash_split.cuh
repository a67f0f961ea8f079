// Attention of few queries to many keys, by tensor cores: keys are split over blocks, and a
// block's over its warps, 16 at a time, and what they have is put together by the largest
// score of each (Flash-Decoding; Dao, Haziza, Massa and Sizov, 2023). All of it waits for
// memory, so a warp brings its keys and values to shared memory steps ahead, for itself alone: whole
// rows, 128 bytes by each eight lanes, since copies of less take as long. Products leave open in which
// order they take elements of Dh: that in which a lane reads 16 bytes.

// SplitArgs says where what splits have of 16 rows of a head of keys, a unit, is kept.
struct SplitArgs {
  u64 part;            // where not 0: sums[unit][split][16][DH] of f32
  u64 best;            // tops and weights[unit][split][16] of 2·f32
  i64 splits, length;  // keys of a split, a multiple of 128
  i64 rows, tiles, kvs;  // of a head of keys, tiles of 16 of them; heads of keys
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

// SplitTile is 16 keys and their values. Pieces of 16 bytes are exchanged within a row, so that the
// eight lanes that read at once find them in different banks.
template <int DH> struct SplitTile {
  static constexpr int pieces = DH / 8, rows = 32 / pieces;  // of a row; that a warp brings at once
  Pack<u32, 4> k[16 * pieces], v[16 * pieces];

  DEV int keyAt(int row, int piece) { return row * pieces + (piece ^ row % 2 * 4); }
  DEV int valueAt(int row, int piece) { return row * pieces + (piece ^ row / 2 % 4 * 2); }
};

// SplitRoom is the block's dynamic shared memory: what each warp has brought for each of STEPS steps,
// and in the end what warps tell each other.
template <int DH, int STEPS> union SplitRoom {
  SplitTile<DH> tiles[8][STEPS];
  f32 weights[8][STEPS][sizeof(SplitTile<DH>) / 4];  // of a step whose values were looked at
  struct { f32 sums[4][DH / 2 * 32], stats[4][4 * 32]; } told;
};

// SplitBlock is what the block has: 16 rows of a head of keys, and keys from..keys-1.
template <class T, int B> struct SplitBlock {
  u32 rows, split, unit, first, kv;
  Sequences<T> of;
  const T *k, *v;
  i64 from, keys, clear;  // clear: keys that all rows see

  // Grids and rows are few, and quotients of 64 bits take long.
  __device__ __forceinline__ SplitBlock(const AttentionArgs<B>& a, const SplitArgs& s)
      : rows(s.rows), split(blockIdx.x % (u32)s.splits), unit(blockIdx.x / (u32)s.splits), first(unit % (u32)s.tiles * 16), kv(unit / (u32)s.tiles % (u32)s.kvs),
        of(a, unit / (u32)s.tiles / (u32)s.kvs) {
    k = of.k + kv * a.sk[1], v = of.v + kv * a.sv[1];
    const QueryRow<B> last(a, kv, first + 15 < rows ? first + 15 : rows - 1), least(a, kv, first);
    from = split * s.length, keys = keysOf(a, last.query), clear = keysOf(a, least.query);
    if (keys > from + s.length) keys = from + s.length;
  }
};

// Splitting is what a thread has: of two rows, lane/4 and the eighth behind it.
template <class T, int B, int DH, int STEPS> struct Splitting {
  static constexpr int stride = 128;  // keys of a step, 16 for each warp
  const FlashSplitArgs<B>& args;
  const SplitBlock<T, B> b;
  SplitRoom<DH, STEPS>& room;
  int lane, warp, g, c;
  f32 scale;  // of scores as exponents of 2; what is negative goes into the queries
  Pack<u32, 4> q[2][DH / 32];
  i64 seen[2];
  Mean<DH> m;

  __device__ __forceinline__ Splitting(const FlashSplitArgs<B>& args, SplitRoom<DH, STEPS>& room)
      : args(args), b(args.a, args.s), room(room), lane(threadIdx.x % 32), warp(threadIdx.x / 32), g(lane / 4), c(lane % 4), scale((f32)(args.a.scale * 1.4426950408889634)) {
    scale = scale < 0 ? -scale : scale;
  }

  // bring begins to bring keys j..j+15 and their values to the place of a step.
  __device__ __forceinline__ void bring(i64 j, int step) {
    SplitTile<DH>& to = room.tiles[warp][step];
    const int row = lane / to.pieces, piece = lane % to.pieces;
    const T *k = b.k + (j + row) * args.a.sk[0] + 8 * piece, *v = b.v + (j + row) * args.a.sv[0] + 8 * piece;
    const int n = j + 16 <= b.keys ? 16 : (int)(b.keys - j);
#pragma unroll
    for (int r = 0; r < 16; r += to.rows, k += to.rows * args.a.sk[0]) copy16(spotOf(&to.k[to.keyAt(r + row, piece)]), r + row < n ? k : b.k, r + row < n);
#pragma unroll
    for (int r = 0; r < 16; r += to.rows, v += to.rows * args.a.sv[0]) copy16(spotOf(&to.v[to.valueAt(r + row, piece)]), r + row < n ? v : b.v, r + row < n);
    endCopies();
  }

  __device__ __forceinline__ const Pack<u32, 4>& key(int step, int n, int d) const {
    const SplitTile<DH>& t = room.tiles[warp][step];
    return t.k[t.keyAt(8 * n + g, 4 * d + c)];
  }
  __device__ __forceinline__ const Pack<u32, 4>& value(int step, int x, int d) const {
    const SplitTile<DH>& t = room.tiles[warp][step];
    return t.v[t.valueAt(x / 2 * 8 + 2 * c + x % 2, 8 * d + g)];
  }

  __device__ __forceinline__ void begin() {
    const AttentionArgs<B>& a = args.a;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const u32 r = b.first + g + 8 * h;
      const QueryRow<B> is(a, b.kv, r);
      seen[h] = r < b.rows ? keysOf(a, is.query) : 0;
#pragma unroll
      for (int d = 0; d < DH / 32; d++) {
        q[h][d] = Pack<u32, 4>{};
        if (r < b.rows) q[h][d] = *(const Pack<u32, 4>*)(b.of.q + is.query * a.sq[0] + is.head * a.sq[1] + 32 * d + 8 * c);
#pragma unroll
        for (int w = 0; w < 4; w++) q[h][d].v[w] ^= signsOf(a);
      }
      m.top[h] = -bitsAs<f32>(0x7f800000u), m.sum[h] = 0;
    }
#pragma unroll
    for (int d = 0; d < DH / 8; d++)
#pragma unroll
      for (int e = 0; e < 4; e++) m.o[d][e] = 0;
  }

  // scores multiplies the queries and 16 keys.
  __device__ __forceinline__ void scores(f32 (&s)[2][4], int step) {
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) s[n][e] = 0;
#pragma unroll
    for (int d = 0; d < DH / 32; d++) {
      const Pack<u32, 4> k[2] = {key(step, 0, d), key(step, 1, d)};
#pragma unroll
      for (int half = 0; half < 4; half += 2) {
        const u32 x[4] = {q[0][d].v[half], q[1][d].v[half], q[0][d].v[half + 1], q[1][d].v[half + 1]};
#pragma unroll
        for (int n = 0; n < 2; n++) product<T>(s[n], x, k[n].v[half], k[n].v[half + 1]);
      }
    }
  }

  // weigh makes weights of scores for keys j..j+15, and scales down what was added up before.
  __device__ __forceinline__ void weigh(f32 (&s)[2][4], i64 j) {
    const f32 inf = bitsAs<f32>(0x7f800000u);
    bool hidden[2][4];  // from the row, or not there
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const i64 key = j + 8 * n + 2 * c + e % 2;
        hidden[n][e] = key >= b.keys || key >= seen[e / 2];
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
  }

  // values adds up 16 values by their weights.
  __device__ __forceinline__ void values(const f32 (&s)[2][4], int step) {
    u32 w[4];
    operand<T>(w, s[0], s[1]);
#pragma unroll
    for (int p = 0; p < DH / 64; p++) {
      const Pack<u32, 4> v[4] = {value(step, 0, p), value(step, 1, p), value(step, 2, p), value(step, 3, p)};
#pragma unroll
      for (int d = 0; d < 8; d++) product<T>(m.o[8 * p + d], w, ofBoth(v[0].v[d / 2], v[1].v[d / 2], d % 2), ofBoth(v[2].v[d / 2], v[3].v[d / 2], d % 2));
    }
  }

  // finite reports whether the lane's part of a step's values has nothing else.
  __device__ __forceinline__ bool finite(int step) const {
    u32 bad = 0;
#pragma unroll
    for (int x = 0; x < 4; x++)
#pragma unroll
      for (int d = 0; d < DH / 64; d++) bad |= oddBits<T>(value(step, x, d));
    return bad == 0;
  }

  // oneByOne adds up the values of keys j..j+15 that each row sees, and nothing of others. All threads
  // of the block come here, and weights lie where the step's pieces were.
  __device__ __forceinline__ void oneByOne(const f32 (&s)[2][4], i64 j, int step) {
    f32* w = room.weights[warp][step];
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) w[(g + e / 2 * 8) * 16 + 8 * n + 2 * c + e % 2] = s[n][e];
    __syncthreads();
    for (int x = 0; x < 16 && j + x < b.keys; x++)
#pragma unroll
      for (int d = 0; d < DH / 8; d++)
#pragma unroll
        for (int e = 0; e < 4; e++)
          if (j + x < seen[e / 2]) m.o[d][e] += w[(g + e / 2 * 8) * 16 + x] * Num<T>::get(b.v[(j + x) * args.a.sv[0] + d / 8 * 64 + (2 * c + e % 2) * 8 + d % 8]);
    __syncthreads();
  }

  // join leaves with the first warp what all have.
  __device__ __forceinline__ void join() {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      m.sum[h] += ofLane(m.sum[h], 1);
      m.sum[h] += ofLane(m.sum[h], 2);
    }
#pragma unroll
    for (int half = 4; half > 0; half /= 2) {
      __syncthreads();
      if (warp >= half && warp < 2 * half) {
        f32 *to = room.told.sums[warp - half], *st = room.told.stats[warp - half];
#pragma unroll
        for (int d = 0; d < DH / 8; d++)
#pragma unroll
          for (int e = 0; e < 4; e++) to[(4 * d + e) * 32 + lane] = m.o[d][e];
#pragma unroll
        for (int h = 0; h < 2; h++) st[4 * lane + h] = m.top[h], st[4 * lane + 2 + h] = m.sum[h];
      }
      __syncthreads();
      if (warp < half) m.join(room.told.sums[warp], room.told.stats[warp], scale, lane);
    }
  }

  // keep stores half h for flashJoin.
  __device__ __forceinline__ void keep(int h) const {
    const i64 at = ((i64)b.unit * args.s.splits + b.split) * 16 + g + 8 * h;
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
  }

  // store stores half h as the result.
  __device__ __forceinline__ void store(int h) const {
    const AttentionArgs<B>& a = args.a;
    const QueryRow<B> is(a, b.kv, b.first + g + 8 * h);
    T* to = b.of.out + is.query * a.so[0] + is.head * a.so[1];
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
};

template <class T, int B, int DH, int STEPS> DEV void flashSplit(const FlashSplitArgs<B>& args) {
  __shared__ int odd;
  Splitting<T, B, DH, STEPS> x(args, roomOf<SplitRoom<DH, STEPS>>());
  if (threadIdx.x == 0) odd = 0;
  i64 j = x.b.from + 16 * x.warp;
#pragma unroll
  for (int s = 0; s < STEPS - 1; s++) x.bring(j + s * x.stride, s);
  x.begin();
  int at = 0, free = STEPS - 1;  // where this step's pieces are, and those of the one before were
  for (i64 block = x.b.from; block < x.b.keys; block += x.stride, j += x.stride) {
    x.bring(j + (STEPS - 1) * x.stride, free);
    awaitCopies<STEPS - 1>();
    meetWarp();
    f32 s[2][4];
    x.scores(s, at);
    x.weigh(s, j);
    bool finite = true;
    if (args.a.causal && args.a.tq > 1 && block + x.stride > x.b.clear) {
      // A weight of zero hides a value only if that is finite.
      __syncthreads();
      if (!x.finite(at)) odd = 1;
      __syncthreads();
      finite = !odd;
    }
    if (finite) x.values(s, at);
    else x.oneByOne(s, j, at);
    meetWarp();
    free = at;
    at = at + 1 < STEPS ? at + 1 : 0;
  }
  awaitCopies();
  x.join();
  if (x.warp > 0) return;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    if (x.b.first + x.g + 8 * h >= x.b.rows) continue;
    if (args.s.splits > 1) x.keep(h);
    else x.store(h);
  }
}

// flashJoin puts together what splits have; a thread has an element of a row.
template <class T, int B, int DH> DEV void flashJoin(const FlashSplitArgs<B>& args) {
  const AttentionArgs<B>& a = args.a;
  const u32 at = (blockIdx.x * 256 + threadIdx.x) / DH, d = threadIdx.x % DH, splits = args.s.splits;
  const u32 unit = at / 16, tiles = args.s.tiles, r = unit % tiles * 16 + at % 16;
  if (r >= args.s.rows) return;
  const f32 inf = bitsAs<f32>(0x7f800000u);
  f32 scale = (f32)(a.scale * 1.4426950408889634);
  scale = scale < 0 ? -scale : scale;
  const i64 row = (i64)unit * splits * 16 + at % 16;
  const Pack<f32, 2>* best = (const Pack<f32, 2>*)args.s.best + row;
  const f32* part = (const f32*)args.s.part + row * DH + d;
  f32 top = -inf, sum = 0, o = 0;
#pragma unroll 8
  for (u32 s = 0; s < splits; s++) top = fmaxf(top, best[16 * s].v[0]);
  const f32 shift = top == -inf ? 0 : top * scale;
#pragma unroll 8  // so that it does not wait for one after the other
  for (u32 s = 0; s < splits; s++) {
    const Pack<f32, 2> b = best[16 * s];
    const f32 down = b.v[0] == -inf ? 0 : exp2Of(b.v[0] * scale - shift);
    sum += b.v[1] * down;
    o += part[16 * DH * s] * down;
  }
  const u32 kv = unit / tiles % (u32)args.s.kvs;
  const Sequences<T> of(a, unit / tiles / (u32)args.s.kvs);
  const QueryRow<B> is(a, kv, r);
  of.out[is.query * a.so[0] + is.head * a.so[1] + d] = Num<T>::put(o / sum);
}
