// Attention of few queries to many keys, on tensor cores. Keys are split over blocks, and a block's keys over groups of
// its warps, 16 at a time. The partial results are combined by the largest score of each (Flash-Decoding; Dao, Haziza,
// Massa and Sizov, 2023). Each warp of a group has 16 rows. The kernel is bound by memory, so a group loads its keys
// and values to shared memory several steps ahead. It loads only its own keys, as whole rows: each group of eight lanes
// loads 128 bytes.

// SplitTile holds 16 keys and their values. Pieces of 16 bytes are permuted within a row, so that the pieces of eight
// rows are in different banks.
template <int DH> struct SplitTile {
  static constexpr int pieces = DH / 8, rows = 32 / pieces;  // pieces of a row; rows that a warp loads at a time
  Pack<u32, 4> k[16 * pieces], v[16 * pieces];

  DEV int at(int row, int piece) { return row * pieces + (piece ^ row % 8); }
};

// SplitPart is the partial result of a block, for the other blocks of its cluster. Rows are padded, so that eight of them
// are in different banks.
template <int DH, int ROWS> struct SplitPart {
  f32 sums[ROWS][DH + 8];
  Pack<f32, 2> best[ROWS];  // shift and sum of the weights
};

// SplitRoom is the block's dynamic shared memory: the tiles of each group for each of STEPS steps and, at the end, the
// data that warps, and blocks of a cluster, exchange.
template <int DH, int WARPS, int STEPS> union SplitRoom {
  SplitTile<DH> tiles[8 / WARPS][STEPS];
  f32 weights[8 / WARPS][STEPS][sizeof(SplitTile<DH>) / 4];  // weights of a step whose values were checked
  struct { f32 sums[4][DH / 2 * 32], stats[4][4 * 32]; SplitPart<DH, 16 * WARPS> part; } told;
};

// SplitBlock is the part of a block: WARPS times 16 rows of a key head, and the keys from..keys-1.
template <class T, int B, int WARPS> struct SplitBlock {
  u32 rows, split, place, unit, first, kv;  // place: index of the unit within the launch
  Sequences<T> of;
  const T *k, *v;
  int from, keys, clear;  // clear: number of keys that every row sees that sees any

  // Grids and rows fit into 32 bits, and 64-bit quotients take long.
  __device__ __forceinline__ SplitBlock(const AttentionArgs<B>& a, const SplitArgs& s)
      : rows(s.rows), split(blockIdx.x % (u32)s.splits), place(blockIdx.x / (u32)s.splits), unit((u32)s.begin + place), first(unit % (u32)s.units * (16 * WARPS)), kv(unit / (u32)s.units % (u32)s.kvs),
        of(a, unit / (u32)s.units / (u32)s.kvs) {
    k = of.k + kv * a.sk[1], v = of.v + kv * a.sv[1];
    const QueryRow<B> last(a, kv, first + 16 * WARPS < rows ? first + 16 * WARPS - 1 : rows - 1), least(a, kv, first);
    from = (int)(split * s.length);
    keysOfMany(a, of, least.query, last.query, keys, clear);
    if (keys > from + (int)s.length) keys = from + (int)s.length;
    if (clear > keys) clear = keys;
  }

  // row returns the thread's first row.
  __device__ __forceinline__ u32 row() const { return first + threadIdx.x / 32 % WARPS * 16 + threadIdx.x % 32 / 4; }
};

// Splitting holds the data of a thread.
template <class T, int B, int DH, int WARPS, int STEPS> struct Splitting {
  static constexpr int groups = 8 / WARPS, stride = 16 * groups;  // groups of a block; keys of a step
  static_assert(sizeof(SplitRoom<DH, WARPS, STEPS>) == groups * STEPS * sizeof(SplitTile<DH>), "the launch has memory for the tiles");
  const FlashSplitArgs<B>& args;
  const SplitBlock<T, B, WARPS>& b;
  SplitRoom<DH, WARPS, STEPS>& room;
  int lane, warp, group;  // warp: index within the group

  __device__ __forceinline__ Splitting(const FlashSplitArgs<B>& args, const SplitBlock<T, B, WARPS>& b)
      : args(args), b(b), room(roomOf<SplitRoom<DH, WARPS, STEPS>>()), lane(threadIdx.x % 32), warp(sameForWarp(threadIdx.x / 32 % WARPS)), group(sameForWarp(threadIdx.x / 32 / WARPS)) {}

  // meet synchronises the lanes of a group: loaded data is visible to all of them, and all have finished a step.
  __device__ __forceinline__ void meet() const {
    if (WARPS == 1) meetWarp();
    else meetThreads(1 + group, 32 * WARPS);
  }

  // bring starts to load the warp's part of keys j..j+15 and of their values, for the given step.
  __device__ __forceinline__ void bring(int j, int step) const {
    SplitTile<DH>& to = room.tiles[group][step];
    constexpr int rows = SplitTile<DH>::rows * WARPS;  // rows loaded at a time
    const int row = warp * to.rows + lane / to.pieces, piece = lane % to.pieces;
    const T *k = b.k + (j + row) * args.a.sk[0] + 8 * piece, *v = b.v + (j + row) * args.a.sv[0] + 8 * piece;
#pragma unroll
    for (int r = 0; r < 16; r += rows, k += rows * args.a.sk[0]) copy16(spotOf(&to.k[to.at(r + row, piece)]), j + r + row < b.keys ? k : b.k, j + r + row < b.keys);
#pragma unroll
    for (int r = 0; r < 16; r += rows, v += rows * args.a.sv[0]) copy16(spotOf(&to.v[to.at(r + row, piece)]), j + r + row < b.keys ? v : b.v, j + r + row < b.keys);
    endCopies();
  }

  // keys reads all keys of a step before the first matrix product, so that no product waits for a single load.
  __device__ __forceinline__ void keys(u32 (&x)[DH / 16][4], int step) const {
    const SplitTile<DH>& t = room.tiles[group][step];
#pragma unroll
    for (int c = 0; c < DH / 16; c++) fourTiles<false>(x[c], &t.k[t.at(lane / 16 * 8 + lane % 8, 2 * c + lane / 8 % 2)]);
  }

  // values reads the values of a step.
  __device__ __forceinline__ void values(u32 (&x)[DH / 16][4], int step) const {
    const SplitTile<DH>& t = room.tiles[group][step];
#pragma unroll
    for (int c = 0; c < DH / 16; c++) fourTiles<true>(x[c], &t.v[t.at(lane % 16, 2 * c + lane / 16)]);
  }

  // scores multiplies the queries with 16 keys, in two separate sums, so that products depend less on each other.
  __device__ __forceinline__ void scores(f32 (&s)[2][4], const FlashQueries<T, B, DH>& of, const u32 (&x)[DH / 16][4]) const {
    f32 odd[2][4];
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) s[n][e] = odd[n][e] = 0;
#pragma unroll
    for (int c = 0; c < DH / 16; c += 2)
#pragma unroll
      for (int n = 0; n < 2; n++) {
        product<T>(s[n], of.q[c], x[c][2 * n], x[c][2 * n + 1]);
        product<T>(odd[n], of.q[c + 1], x[c + 1][2 * n], x[c + 1][2 * n + 1]);
      }
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) s[n][e] += odd[n][e];
  }

  // sums adds 16 values multiplied by their weights.
  __device__ __forceinline__ void sums(FlashRows<T, B, DH>& r, const f32 (&s)[2][4], const u32 (&x)[DH / 16][4]) const {
    u32 w[4];
    operand<T>(w, s[0], s[1]);
#pragma unroll
    for (int c = 0; c < DH / 16; c++) {
      product<T>(r.o[2 * c], w, x[c][0], x[c][1]);
      product<T>(r.o[2 * c + 1], w, x[c][2], x[c][3]);
    }
  }

  // finite reports whether all of the thread's part of a step's values are finite.
  __device__ __forceinline__ bool finite(int step) const {
    u32 bad = 0;
#pragma unroll
    for (int i = threadIdx.x % (32 * WARPS); i < 16 * SplitTile<DH>::pieces; i += 32 * WARPS) bad |= oddBits<T>(room.tiles[group][step].v[i]);
    return bad == 0;
  }

  // oneByOne adds, for each row, only the values of those of keys j..j+15 that the row sees. All threads of the block
  // call it. The weights are stored in the memory of the step's keys.
  __device__ __forceinline__ void oneByOne(FlashRows<T, B, DH>& r, const f32 (&s)[2][4], int j, int step) const {
    f32* w = room.weights[group][step] + warp * 256;
    const int g = lane / 4, c = lane % 4;
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
          if (j + x < r.seen[e / 2]) r.o[d][e] += w[(g + e / 2 * 8) * 16 + x] * Num<T>::get(b.v[(j + x) * args.a.sv[0] + 8 * d + 2 * c + e % 2]);
    __syncthreads();
  }

  // join combines the partial results of all groups in the first group.
  __device__ __forceinline__ void join(FlashRows<T, B, DH>& r) const {
#pragma unroll
    for (int half = groups / 2; half > 0; half /= 2) {
      __syncthreads();
      if (group >= half && group < 2 * half) tell(r, (group - half) * WARPS + warp);
      __syncthreads();
      if (group < half) add(r, group * WARPS + warp);
    }
  }

  // tell stores the thread's partial results for other threads, at the place of its warp.
  __device__ __forceinline__ void tell(const FlashRows<T, B, DH>& r, int place) const {
    f32 *to = room.told.sums[place], *st = room.told.stats[place];
#pragma unroll
    for (int d = 0; d < DH / 8; d++)
#pragma unroll
      for (int e = 0; e < 4; e++) to[(4 * d + e) * 32 + lane] = r.o[d][e];
#pragma unroll
    for (int h = 0; h < 2; h++) st[4 * lane + h] = r.shifted(h), st[4 * lane + 2 + h] = r.sum[h];
  }

  // add adds the partial results of the same rows that are stored at place, each scaled by its shift.
  __device__ __forceinline__ void add(FlashRows<T, B, DH>& r, int place) const {
    const f32 *from = room.told.sums[place], *st = room.told.stats[place];
    f32 mine[2], theirs[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const f32 own = r.shifted(h), other = st[4 * lane + h], most = fmaxf(own, other);
      mine[h] = downBy(own, most), theirs[h] = downBy(other, most);
      r.sum[h] = r.sum[h] * mine[h] + st[4 * lane + 2 + h] * theirs[h];
      r.shift[h] = most, r.limit[h] = most;
    }
#pragma unroll
    for (int d = 0; d < DH / 8; d++)
#pragma unroll
      for (int e = 0; e < 4; e++) r.o[d][e] = r.o[d][e] * mine[e / 2] + from[(4 * d + e) * 32 + lane] * theirs[e / 2];
  }
};

// joinCluster stores a block's partial result r, which the first WARPS warps have, combines those of the blocks of its
// cluster, and stores the result. The blocks of a cluster have the SPLITS splits of the same rows. All threads call it. The
// bits are those of flashJoin.
template <int SPLITS, class T, int B, int DH, int WARPS> DEV void joinCluster(const AttentionArgs<B>& a, SplitPart<DH, 16 * WARPS>& room, const FlashRows<T, B, DH>& r, const SplitBlock<T, B, WARPS>& b) {
  constexpr u32 rows = 16 * WARPS, chunks = DH / 4;
  SplitPart<DH, 16 * WARPS>& part = ownPart(room, b.split);
  const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (warp < WARPS)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const u32 row = warp * 16 + lane / 4 + 8 * h;
#pragma unroll
      for (int d = 0; d < DH / 8; d++) *(Pack<f32, 2>*)&part.sums[row][8 * d + lane % 4 * 2] = Pack<f32, 2>{{r.o[d][2 * h], r.o[d][2 * h + 1]}};
      if (lane % 4 == 0) part.best[row] = Pack<f32, 2>{{r.shifted(h), r.sum[h]}};
    }
  meetCluster();
#ifdef __CUDA_ARCH__
  const u32 first = (warp * SPLITS + b.split) * 32 + lane, step = SPLITS * 256;
#else
  __syncthreads();
  const u32 first = b.split + 1 == SPLITS ? threadIdx.x : rows * chunks, step = 256;  // the last block joins all rows
#endif
  for (u32 i = first; i < rows * chunks && b.first + i / chunks < b.rows; i += step) {
    const u32 row = i / chunks, d = i % chunks * 4;
    Pack<f32, 2> best[SPLITS];
    Pack<f32, 4> sums[SPLITS];
#pragma unroll
    for (u32 s = 0; s < SPLITS; s++) {
      const SplitPart<DH, 16 * WARPS>& of = partOf(part, b.split, s);
      best[s] = of.best[row], sums[s] = *(const Pack<f32, 4>*)&of.sums[row][d];
    }
    f32 most = -bitsAs<f32>(0x7f800000u), sum = 0, o[4] = {0, 0, 0, 0};
#pragma unroll
    for (u32 s = 0; s < SPLITS; s++) most = fmaxf(most, best[s].v[0]);
#pragma unroll
    for (u32 s = 0; s < SPLITS; s++) {
      const f32 down = downBy(best[s].v[0], most);
      sum += best[s].v[1] * down;
#pragma unroll
      for (int e = 0; e < 4; e++) o[e] += sums[s].v[e] * down;
    }
    storeFour(a, b.of, b.kv, b.first + row, d, o, sum);
  }
  meetCluster();  // no block ends while others read its part
}

// prefetchLine starts to load 128 bytes of global memory into the L2 cache.
DEV void prefetchLine(const void* p) {
#ifdef __CUDA_ARCH__
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
#endif
}

// prefetch loads a block's keys and values into the L2 cache. It accesses no other memory, so the kernel calls it before
// the previous kernel has ended.
template <class T, int DH, int B, int WARPS> DEV void prefetch(const AttentionArgs<B>& a, const SplitBlock<T, B, WARPS>& b) {
  constexpr int lines = DH * (int)sizeof(T) / 128;  // of a row
  for (int i = threadIdx.x; i < (b.keys - b.from) * lines; i += 256) {
    const i64 row = b.from + i / lines;
    prefetchLine(b.k + row * a.sk[0] + i % lines * 64);
    prefetchLine(b.v + row * a.sv[0] + i % lines * 64);
  }
}

// CLUSTER is the number of splits if the blocks of a cluster have them, and otherwise 1.
template <class T, int B, int DH, int WARPS, int STEPS, int CLUSTER> DEV void flashSplit(const FlashSplitArgs<B>& args) {
  __shared__ int odd;
  if (!args.a.lengths) prefetch<T, DH>(args.a, SplitBlock<T, B, WARPS>(args.a, args.s));
  settle();
  const SplitBlock<T, B, WARPS> b(args.a, args.s);
  const Splitting<T, B, DH, WARPS, STEPS> x(args, b);
  if (threadIdx.x == 0) odd = 0;
  int j = b.from + 16 * x.group;
#pragma unroll
  for (int s = 0; s < STEPS - 1; s++) x.bring(j + s * x.stride, s);
  const FlashQueries<T, B, DH> q(args.a, b);
  FlashRows<T, B, DH> r(args.a, b);
#pragma unroll
  for (int h = 0; h < 2; h++) r.seen[h] = r.seen[h] < b.keys ? r.seen[h] : b.keys;
  int at = 0, free = STEPS - 1;  // positions of this step's data, and of the previous step's, which can be overwritten
  for (int block = b.from; block < b.keys; block += x.stride, j += x.stride) {
    x.bring(j + (STEPS - 1) * x.stride, free);
    awaitCopies<STEPS - 1>();
    x.meet();
    f32 s[2][4], down[2];
    u32 keys[DH / 16][4], values[DH / 16][4];
    x.keys(keys, at);
    x.values(values, at);  // reads the values before the weights are computed
    x.scores(s, q, keys);
    if (j + 16 <= b.clear ? r.template weigh<false>(s, j, down) : r.template weigh<true>(s, j, down)) r.scaleDown(down);
    bool finite = true;
    if (hides(args.a) && args.a.tq > 1 && block + x.stride > b.clear) {
      // A weight of zero cancels a value only if the value is finite.
      __syncthreads();
      if (!x.finite(at)) odd = 1;
      __syncthreads();
      finite = !odd;
    }
    if (finite) x.sums(r, s, values);
    else x.oneByOne(r, s, j, at);
    x.meet();
    free = at;
    at = at + 1 < STEPS ? at + 1 : 0;
  }
  awaitCopies();
  r.total();
  x.join(r);
  if constexpr (CLUSTER > 1) return joinCluster<CLUSTER>(args.a, x.room.told.part, r, b);
  if (x.group > 0) return;
  if (args.s.splits > 1) keepRows<16 * WARPS>(args.s, r, b);
  else r.store(args.a, b);
}
