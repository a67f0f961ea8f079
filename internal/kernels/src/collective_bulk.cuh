// All-reduce for few multiprocessors, whose threads only add up: what moves is
// moved by a multiprocessor's engine for bulk copies, in tiles of B bytes, to
// shared memory and from it. A part of each share is pushed to its owner's staging
// memory, the rest is read where it lies: a link carries more of both than of loads
// alone. Four roles, each of warps of their own, in step by gates in shared memory:
// one pushes, one loads what is to be added up, many add up, one stores.

// Gate opens when so many have arrived and all bytes they expect have come, and
// closes behind them: each opening is a phase, and waits name its parity.
#ifdef __CUDA_ARCH__
typedef u64 Gate;
#else
struct alignas(8) Gate { u32 bytes; u8 count, left; u16 phase; };

DEV void passGate(Gate* g) {
  if (g->left == 0 && g->bytes == 0) g->phase++, g->left = g->count;
}
#endif

DEV u32 sharedAt(const void* p) {
#ifdef __CUDA_ARCH__
  u32 at;
  asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }" : "=r"(at) : "l"(p));
  return at;
#else
  return 0;
#endif
}

DEV void makeGate(Gate* g, u32 count) {
#ifdef __CUDA_ARCH__
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(sharedAt(g)), "r"(count) : "memory");
#else
  *g = Gate{0, (u8)count, (u8)count, 0};
#endif
}

DEV void arrive(Gate* g) {
#ifdef __CUDA_ARCH__
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(sharedAt(g)) : "memory");
#else
  g->left--;
  passGate(g);
#endif
}

DEV void arriveExpecting(Gate* g, u32 bytes) {
#ifdef __CUDA_ARCH__
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(sharedAt(g)), "r"(bytes) : "memory");
#else
  g->left--, g->bytes += bytes;
  passGate(g);
#endif
}

// awaitGate waits until the gate's phase of that parity is over. It needs no bound:
// what arrives is this block's own, and a copy that has begun ends.
DEV void awaitGate(Gate* g, u32 parity) {
#ifdef __CUDA_ARCH__
  u32 open;
  do {
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(open) : "r"(sharedAt(g)), "r"(parity) : "memory");
  } while (!open);
#else
  while ((g->phase & 1) == parity) emulatedYield();
#endif
}

// loadBulk begins a copy to shared memory that the gate expects, storeBulk one from
// there: one of those that closeBulk makes a batch.
DEV void loadBulk(Line* to, u64 from, u32 bytes, Gate* g) {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(sharedAt(to)), "l"(from), "r"(bytes), "r"(sharedAt(g)) : "memory");
#else
  memcpy(to, (const void*)from, bytes);
  g->bytes -= bytes;
  passGate(g);
#endif
}

DEV void storeBulk(u64 to, const Line* from, u32 bytes) {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(sharedAt(from)), "r"(bytes) : "memory");
#else
  memcpy((void*)to, from, bytes);
#endif
}

DEV void closeBulk() {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}

// awaitRead waits until all but the thread's last N batches have left shared memory,
// awaitBulk until they are where they belong.
template <int N> DEV void awaitRead() {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
#endif
}

template <int N> DEV void awaitBulk() {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory");
#endif
}

// orderBulk keeps bulk copies and the threads' own accesses on either side of it in
// order.
DEV void orderBulk() {
#ifdef __CUDA_ARCH__
  asm volatile("fence.proxy.async;" ::: "memory");
#endif
}

// bulkAside is how many threads do not add up.
enum { bulkAside = 96, bulkLag = 12 };

// BulkRoom is a block's shared memory: S stages of a tile of each member, and R tiles
// for what is pushed, a gate for each.
template <int W, int B, int S, int R> struct BulkRoom {
  enum { lines = B / 16 };
  Gate full[S], added[S], empty[S], fetched[R];
  DEV Line* lined(BulkRoom* at) { return (Line*)at + (sizeof(BulkRoom) + 127) / 128 * 8; }
  DEV Line* tile(BulkRoom* at, u32 stage, u32 q) { return lined(at) + (stage * W + q) * lines; }
  DEV Line* pushed(BulkRoom* at, u32 slot) { return lined(at) + (S * W + slot) * lines; }
};

// tilesOf is how many whole tiles member q's share has.
template <class T, int B> DEV i64 tilesOf(const ReduceArgs& a, u32 q) {
  const i64 whole = a.count / (16 / (i64)sizeof(T)), first = q * a.share, last = first + a.share < whole ? first + a.share : whole;
  return last > first ? (last - first) * 16 / B : 0;
}

// ofBlock is how many of so many tiles are this block's: every gridDim.x-th.
DEV u32 ofBlock(i64 tiles) { return blockIdx.x < tiles ? (u32)((tiles - blockIdx.x + gridDim.x - 1) / gridDim.x) : 0; }

// Turns is the order in which a block adds up its tiles: those that are pushed, the
// first ones, are spread among those that are read where they lie, some of which come
// before.
struct Turns {
  u32 all, pushed, lag;
  // before is how many pushed ones come before turn i.
  __device__ __forceinline__ u32 before(u32 i) const { return i < lag || pushed == 0 ? 0 : (u32)((u64)(i - lag) * pushed / (all - lag)); }
  __device__ __forceinline__ bool isPushed(u32 i) const { return before(i + 1) > before(i); }
  // tile is which of the block's tiles comes at turn i.
  __device__ __forceinline__ u32 tile(u32 i) const { return isPushed(i) ? before(i) : pushed + i - before(i); }
};

template <class T, int B> DEV Turns turnsOf(const ReduceArgs& a) {
  Turns s;
  s.all = ofBlock(tilesOf<T, B>(a, (u32)a.team.rank)), s.pushed = ofBlock(a.split);
  s.lag = s.all - s.pushed < bulkLag ? s.all - s.pushed : bulkLag;
  return s;
}

// bulkFlag is which of its flags a block raises for its k-th tile: one for so many.
DEV i64 bulkFlag(u32 k, u32 together) { return blockIdx.x + (i64)(k / together) * gridDim.x; }

// pushTiles has a warp push the block's tiles of other members' shares, and tell of so
// many together, those before once these are under way. Loads are D tiles ahead.
template <int W, int B, int S, int R, int Together> DEV void pushTiles(const ReduceArgs& a, BulkRoom<W, B, S, R>* room, u32 e) {
  typedef BulkRoom<W, B, S, R> Room;
  constexpr u32 D = R / 2, batch = Together * (W - 1);
  const u32 r = (u32)a.team.rank, tiles = ofBlock(a.split), n = tiles * (W - 1);
  const auto tell = [&](u32 group) {
    orderBulk();
    __syncwarp();
    if (laneOf() < W && laneOf() != r) release32(flagAt(a, laneOf(), r, bulkFlag(group * Together, Together), e), e);
    __syncwarp();
  };
  const auto memberAt = [&](u32 i) { return (r + 1 + (i % (W - 1) + blockIdx.x) % (W - 1)) % W; };
  const auto tileAt = [&](u32 i) { return blockIdx.x + (i64)(i / (W - 1)) * gridDim.x; };
  for (u32 i = 0; i < n + D; i++) {
    if (i < n && laneOf() == 0) {
      if (i >= R) awaitRead<R - D - 1>();
      arriveExpecting(&room->fetched[i % R], B);
      loadBulk(Room::pushed(room, i % R), a.in[r] + memberAt(i) * a.share * 16 + tileAt(i) * B, B, &room->fetched[i % R]);
    }
    if (i < D || i - D >= n) continue;
    const u32 k = i - D;
    if (laneOf() == 0) {
      awaitGate(&room->fetched[k % R], k / R & 1);
      storeBulk(a.data[memberAt(k)] + (r * a.split + tileAt(k)) * B, Room::pushed(room, k % R), B);
      closeBulk();
    }
    if ((k + 1) % batch == 0 && k >= batch) {
      if (laneOf() == 0) awaitBulk<batch>();
      tell(k / batch - 1);
    }
  }
  if (n == 0) return;
  if (laneOf() == 0) awaitBulk<0>();
  const u32 groups = (tiles + Together - 1) / Together, told = n / batch > 0 ? n / batch - 1 : 0;
  for (u32 g = told; g < groups; g++) tell(g);
}

// loadTiles has a warp bring what is to be added up, as stages become empty.
template <class T, int W, int B, int S, int R, int Together> DEV void loadTiles(Patience& p, const ReduceArgs& a, BulkRoom<W, B, S, R>* room, u32 e) {
  typedef BulkRoom<W, B, S, R> Room;
  const u32 r = (u32)a.team.rank, q = laneOf();
  const bool far = q < W && q != r;
  const i64 enter = a.slots - 2 * blocksMost + blockIdx.x;
  if (far) release32(flagAt(a, q, r, enter, e), e);
  const Turns turns = turnsOf<T, B>(a);
  bool entered = false;
  for (u32 i = 0; i < turns.all; i++) {
    const u32 stage = i % S;
    const bool pushed = turns.isPushed(i);
    const i64 k = turns.tile(i), c = blockIdx.x + k * gridDim.x;
    awaitGate(&room->empty[stage], (i / S & 1) ^ 1);
    if (far && pushed) waitFlag(p, a.team, flagAt(a, r, q, bulkFlag((u32)k, Together), e), q, e);
    if (far && !pushed && !entered) waitFlag(p, a.team, flagAt(a, r, q, enter, e), q, e);
    entered = entered || !pushed;
    orderBulk();
    if (q == 0) arriveExpecting(&room->full[stage], W * B);
    __syncwarp();
    if (q < W) loadBulk(Room::tile(room, stage, q), pushed && q != r ? a.data[r] + (q * a.split + c) * B : a.in[q] + r * a.share * 16 + c * B, B, &room->full[stage]);
    __syncwarp();
  }
  if (far && !entered) waitFlag(p, a.team, flagAt(a, r, q, enter, e), q, e);
}

// addTiles adds up each stage's tiles into the first of them.
template <class F, class T, int W, int B, int S, int R, int N> DEV void addTiles(const ReduceArgs& a, BulkRoom<W, B, S, R>* room, u32 thread) {
  typedef BulkRoom<W, B, S, R> Room;
  const u32 n = turnsOf<T, B>(a).all;
  for (u32 i = 0; i < n; i++) {
    const u32 stage = i % S;
    awaitGate(&room->full[stage], i / S & 1);
    Line* at = Room::tile(room, stage, 0) + thread;
#pragma unroll
    for (int u = 0; u < Room::lines / N; u++) {
      Line x[W];
#pragma unroll
      for (int q = 0; q < W; q++) x[q] = at[q * Room::lines + u * N];
      at[u * N] = fold<F, T, W>(x);
    }
    orderBulk();
    __syncwarp();
    if (laneOf() == 0) arrive(&room->added[stage]);
  }
}

// storeTiles has a warp store sums to all members.
template <class T, int W, int B, int S, int R> DEV void storeTiles(const ReduceArgs& a, BulkRoom<W, B, S, R>* room) {
  typedef BulkRoom<W, B, S, R> Room;
  const u32 r = (u32)a.team.rank, q = laneOf();
  const Turns turns = turnsOf<T, B>(a);
  for (u32 i = 0; i < turns.all; i++) {
    const u32 stage = i % S;
    awaitGate(&room->added[stage], i / S & 1);
    const i64 c = blockIdx.x + (i64)turns.tile(i) * gridDim.x;
    if (q < W) {
      storeBulk(a.out[(r + 1 + q) % W] + r * a.share * 16 + c * B, Room::tile(room, stage, 0), B);
      closeBulk();
      awaitRead<1>();
    }
    __syncwarp();
    if (q == 0 && i > 0) arrive(&room->empty[(i - 1) % S]);
  }
  awaitBulk<0>();
  orderBulk();
}

// reduceBulk: N threads add up. Before split, tiles of each share are pushed.
template <class F, class T, int W, int B, int S, int R, int Together, int N> DEV void reduceBulk(const ReduceArgs& a) {
  typedef BulkRoom<W, B, S, R> Room;
  const Team& t = a.team;
  const u32 r = (u32)t.rank, e = begin(t, lastEpoch(t)), warp = threadIdx.x / 32;
  Room* room = (Room*)meetingRoom();
  Patience p = {0, 0};
  if (threadIdx.x == 0) {
    for (int s = 0; s < S; s++) makeGate(&room->full[s], 1), makeGate(&room->added[s], N / 32), makeGate(&room->empty[s], 1);
    for (int s = 0; s < R; s++) makeGate(&room->fetched[s], 1);
    orderBulk();
  }
  __syncthreads();
  if (warp == 0) loadTiles<T, W, B, S, R, Together>(p, a, room, e);
  else if (warp == 1) pushTiles<W, B, S, R, Together>(a, room, e);
  else if (warp == 2) storeTiles<T, W, B, S, R>(a, room);
  else addTiles<F, T, W, B, S, R, N>(a, room, threadIdx.x - bulkAside);
  __syncthreads();
  constexpr int V = 16 / sizeof(T);
  const i64 total = (a.count + V - 1) / V, tiles = tilesOf<T, B>(a, r), rest = (r + 1) * a.share < total ? (r + 1) * a.share : total;
  if (blockIdx.x == tiles % gridDim.x)
    for (i64 i = r * a.share + tiles * (B / 16) + threadIdx.x; i < rest; i += blockDim.x) {
      Line x[W];
#pragma unroll
      for (int q = 0; q < W; q++) x[q] = loadCut<Line, T, true>(a.in[q], i, a.count);
      const Line y = fold<F, T, W>(x);
#pragma unroll
      for (int d = 0; d < W; d++) storeCut<Line, T, true>(a.out[(r + d) % W], i, a.count, y);
    }
  meet<W>(p, a, a.slots - blocksMost, e);
  end(t, e);
}
