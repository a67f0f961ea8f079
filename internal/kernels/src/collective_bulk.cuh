// All-reduce and reduce-scatter for few multiprocessors, whose threads only add up: what moves is
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
  emulatedLoad([=] {
    memcpy(to, (const void*)from, bytes);
    g->bytes -= bytes;
    passGate(g);
  });
#endif
}

DEV void storeBulk(u64 to, const Line* from, u32 bytes) {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(sharedAt(from)), "r"(bytes) : "memory");
#else
  emulatedStore((void*)to, from, bytes);
#endif
}

DEV void closeBulk() {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#else
  emulatedBatch();
#endif
}

// awaitRead waits until all but the thread's last N batches have left shared memory,
// awaitBulk until they are where they belong.
template <int N> DEV void awaitRead() {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
#else
  emulatedAwait(N, false);
#endif
}

template <int N> DEV void awaitBulk() {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory");
#else
  emulatedAwait(N, true);
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
// for what passes through, with their gates.
template <int W, int B, int S, int R> struct BulkRoom {
  enum { lines = B / 16 };
  Gate full[S], added[S], empty[S], pushed[R], read[R];
  DEV Line* lined(BulkRoom* at) { return (Line*)at + (sizeof(BulkRoom) + 127) / 128 * 8; }
  DEV Line* tile(BulkRoom* at, u32 stage, u32 q) { return lined(at) + (stage * W + q) * lines; }
  DEV Line* passing(BulkRoom* at) { return lined(at) + S * W * lines; }
};

// tilesOf is how many whole tiles member q's share has.
template <class T, int B> DEV i64 tilesOf(const ReduceArgs& a, u32 q) {
  const i64 whole = a.count / (16 / (i64)sizeof(T)), first = q * a.share, last = first + a.share < whole ? first + a.share : whole;
  return last > first ? (last - first) * 16 / B : 0;
}

// A block has every gridDim.x-th tile of each share. The first ones of those, as many
// for every block, are pushed; the results of some after them reach the others by way
// of host memory.
DEV u32 pushedOf(const ReduceArgs& a) { return (u32)(a.split / gridDim.x); }
DEV u32 hostedOf(const ReduceArgs& a) { return (u32)(a.writers / gridDim.x); }
DEV i64 tileOf(u32 k) { return blockIdx.x + (i64)k * gridDim.x; }

// Turns is the order in which a block adds up its tiles: those that are pushed are
// spread among those that are read where they lie, some of which come before, and
// those that go by way of host memory among these, some of which come after.
struct Turns {
  u32 all, pushed, hosted, lag;
  u32 turn, ofPushed, ofHosted, pushes, hosts;  // that have been, and how far the next ones are
  u32 tile;
  bool isPushed, isHosted;

  template <class T, int B> static __device__ __forceinline__ Turns of(const ReduceArgs& a) {
    Turns t = {};
    const i64 tiles = tilesOf<T, B>(a, (u32)a.team.rank);
    t.all = blockIdx.x < tiles ? (u32)((tiles - blockIdx.x + gridDim.x - 1) / gridDim.x) : 0;
    t.pushed = pushedOf(a), t.hosted = hostedOf(a);
    t.lag = t.all - t.pushed < bulkLag ? t.all - t.pushed : bulkLag;
    t.turn = ~0u;
    return t;
  }

  // next goes to the next turn: false if there is none.
  __device__ __forceinline__ bool next() {
    if (++turn >= all) return false;
    isPushed = isHosted = false;
    if (turn >= lag && (ofPushed += pushed) >= all - lag) {
      ofPushed -= all - lag;
      isPushed = true, tile = pushes++;
      return true;
    }
    ofHosted += 8 * hosted;
    if (hosts < hosted && ofHosted >= 7 * (all - pushed)) {
      ofHosted -= 7 * (all - pushed);
      isHosted = true, tile = pushed + hosts++;
      return true;
    }
    tile = pushed + hosted + turn - pushes - hosts;
    return true;
  }
};

// bulkFlag is which of its flags a block raises for its k-th tile: one for so many
// that are pushed, hostFlag that for the k-th whose result lies in host memory.
DEV i64 bulkFlag(u32 k, u32 together) { return blockIdx.x + (i64)(k / together) * gridDim.x; }
DEV i64 hostFlag(const ReduceArgs& a, u32 k, u32 together) { return blockIdx.x + (i64)((pushedOf(a) + together - 1) / together + k) * gridDim.x; }

// passTiles has a warp copy n tiles by way of R of shared memory, loads some tiles
// ahead. from and to are asked by one thread, stored is called by all once the store
// of a tile has begun.
template <int B, int R, class From, class To, class Stored> DEV void passTiles(Line* ring, Gate* gates, u32 n, const From& from, const To& to, const Stored& stored) {
  constexpr u32 D = R / 2, lines = B / 16;
  for (u32 i = 0; i < n + D; i++) {
    if (i < n && laneOf() == 0) {
      const u64 at = from(i);
      if (i >= R) awaitRead<R - D - 1>();
      arriveExpecting(gates + i % R, B);
      loadBulk(ring + i % R * lines, at, B, gates + i % R);
    }
    if (i < D || i - D >= n) continue;
    const u32 k = i - D;
    if (laneOf() == 0) {
      awaitGate(gates + k % R, k / R & 1);
      storeBulk(to(k), ring + k % R * lines, B);
      closeBulk();
    }
    stored(k);
  }
  if (laneOf() == 0) awaitBulk<0>();
  orderBulk();
  __syncwarp();
}

// pushTiles has a warp push the block's tiles of other members' shares, and tell of so
// many together, those before once these are under way.
template <int W, int B, int S, int R, int Together> DEV void pushTiles(const ReduceArgs& a, BulkRoom<W, B, S, R>* room, u32 e) {
  constexpr u32 batch = Together * (W - 1);
  const u32 r = (u32)a.team.rank, tiles = pushedOf(a), n = tiles * (W - 1);
  u32 told = 0;
  const auto tell = [&]() {
    if (laneOf() < W && laneOf() != r) release32(flagAt(a, laneOf(), r, bulkFlag(told * Together, Together), e), e);
    told++;
  };
  const auto memberAt = [&](u32 i) { return (r + 1 + (i % (W - 1) + blockIdx.x) % (W - 1)) % W; };
  passTiles<B, R>(
      room->passing(room), room->pushed, n, [&](u32 i) { return a.in[r] + memberAt(i) * a.share * 16 + tileOf(i / (W - 1)) * B; },
      [&](u32 i) { return a.data[memberAt(i)] + (r * a.split + tileOf(i / (W - 1))) * B; },
      [&](u32 k) {
        if ((k + 1) % batch != 0 || k < batch) return;
        if (laneOf() == 0) awaitBulk<batch>();
        orderBulk();
        __syncwarp();
        tell();
      });
  while (told * Together < tiles) tell();
}

// readTiles has a warp bring results that others have put into host memory.
template <int W, int B, int S, int R, int Together> DEV void readTiles(Patience& p, const ReduceArgs& a, BulkRoom<W, B, S, R>* room, u32 e) {
  const u32 r = (u32)a.team.rank;
  const auto memberAt = [&](u32 i) { return (r + 1 + (i % (W - 1) + blockIdx.x) % (W - 1)) % W; };
  passTiles<B, R>(
      room->passing(room), room->read, hostedOf(a) * (W - 1),
      [&](u32 i) {
        const u32 q = memberAt(i), k = i / (W - 1);
        waitFlag(p, a.team, flagAt(a, r, q, hostFlag(a, k, Together), e), q, e);
        orderBulk();
        return a.host[q] + tileOf(k) * B;
      },
      [&](u32 i) { return a.out[r] + memberAt(i) * a.share * 16 + tileOf(pushedOf(a) + i / (W - 1)) * B; }, [](u32) {});
}

// loadTiles has a warp bring what is to be added up, as stages become empty.
template <class T, int W, int B, int S, int R, int Together> DEV void loadTiles(Patience& p, const ReduceArgs& a, BulkRoom<W, B, S, R>* room, u32 e) {
  typedef BulkRoom<W, B, S, R> Room;
  const u32 r = (u32)a.team.rank, q = laneOf();
  const bool far = q < W && q != r;
  const i64 enter = a.slots - 2 * blocksMost + blockIdx.x;
  if (far) release32(flagAt(a, q, r, enter, e), e);
  bool entered = false;
  for (Turns t = Turns::of<T, B>(a); t.next();) {
    const u32 stage = t.turn % S;
    const i64 c = tileOf(t.tile);
    awaitGate(&room->empty[stage], (t.turn / S & 1) ^ 1);
    if (far && t.isPushed) waitFlag(p, a.team, flagAt(a, r, q, bulkFlag(t.tile, Together), e), q, e);
    if (far && !t.isPushed && !entered) waitFlag(p, a.team, flagAt(a, r, q, enter, e), q, e);
    entered = entered || !t.isPushed;
    orderBulk();
    if (q == 0) arriveExpecting(&room->full[stage], W * B);
    __syncwarp();
    if (q < W) loadBulk(Room::tile(room, stage, q), far && t.isPushed ? a.data[r] + (q * a.split + c) * B : a.in[q] + r * a.share * 16 + c * B, B, &room->full[stage]);
    __syncwarp();
  }
  if (far && !entered) waitFlag(p, a.team, flagAt(a, r, q, enter, e), q, e);
}

// addTiles adds up each stage's tiles into the first of them.
template <class F, class T, int W, int B, int S, int R, int N> DEV void addTiles(const ReduceArgs& a, BulkRoom<W, B, S, R>* room, u32 thread) {
  typedef BulkRoom<W, B, S, R> Room;
  const u32 n = Turns::of<T, B>(a).all;
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

// storeTiles has a warp store sums to all members, or to this one and to host memory,
// of which it tells when two more are under way. Unless All, to this one alone.
template <class T, int W, int B, int S, int R, int Together, bool All> DEV void storeTiles(const ReduceArgs& a, BulkRoom<W, B, S, R>* room, u32 e) {
  typedef BulkRoom<W, B, S, R> Room;
  const u32 r = (u32)a.team.rank, q = laneOf();
  u32 recent = 0, told = 0;
  const auto tell = [&]() {
    if (q < W && q != r) release32(flagAt(a, q, r, hostFlag(a, told, Together), e), e);
    told++;
  };
  Turns t = Turns::of<T, B>(a);
  while (t.next()) {
    const u32 stage = t.turn % S;
    awaitGate(&room->added[stage], t.turn / S & 1);
    const u64 at = (All ? r * a.share * 16 : 0) + tileOf(t.tile) * B;
    if (q == 0 || All && q < W && !t.isHosted) storeBulk(a.out[(r + q) % W] + at, Room::tile(room, stage, 0), B);
    if (q == 1 && t.isHosted) storeBulk(a.host[r] + tileOf(t.tile - t.pushed) * B, Room::tile(room, stage, 0), B);
    closeBulk();
    awaitRead<1>();
    __syncwarp();
    if (q == 0 && t.turn > 0) arrive(&room->empty[(t.turn - 1) % S]);
    recent = recent << 1 | t.isHosted;
    if (recent & 4) {
      awaitBulk<2>();
      orderBulk();
      __syncwarp();
      tell();
    }
  }
  awaitBulk<0>();
  orderBulk();
  __syncwarp();
  while (told < t.hosts) tell();
}

// reduceBulk: N threads add up. Tiles of each share before split are pushed, and the
// results of as many as writers behind them go by way of host memory. All: all members
// get all shares, else each its own, which is of whole packs.
template <class F, class T, int W, int B, int S, int R, int Together, int N, bool All> DEV void reduceBulk(const ReduceArgs& a) {
  typedef BulkRoom<W, B, S, R> Room;
  const Team& t = a.team;
  const u32 r = (u32)t.rank, e = begin(t, lastEpoch(t)), warp = threadIdx.x / 32;
  Room* room = (Room*)meetingRoom();
  Patience p = {0, 0};
  if (threadIdx.x == 0) {
    for (int s = 0; s < S; s++) makeGate(&room->full[s], 1), makeGate(&room->added[s], N / 32), makeGate(&room->empty[s], 1);
    for (int s = 0; s < R; s++) makeGate(&room->pushed[s], 1), makeGate(&room->read[s], 1);
    orderBulk();
  }
  __syncthreads();
  if (warp == 0) loadTiles<T, W, B, S, R, Together>(p, a, room, e);
  else if (warp == 1) pushTiles<W, B, S, R, Together>(a, room, e), readTiles<W, B, S, R, Together>(p, a, room, e);
  else if (warp == 2) storeTiles<T, W, B, S, R, Together, All>(a, room, e);
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
      if (!All) storeLine(a.out[r] + (i - r * a.share) * 16, y);
#pragma unroll
      for (int d = 0; All && d < W; d++) storeCut<Line, T, true>(a.out[(r + d) % W], i, a.count, y);
    }
  meet<W>(p, a, a.slots - blocksMost, e);
  end(t, e);
}
