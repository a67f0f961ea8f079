// All-reduce and reduce-scatter for few multiprocessors, when others are to be
// left to what runs beside. A link takes long to answer, and what threads can have
// under way in registers does not fill it then. So loads go to shared memory, S
// stages of U packs of all members for each thread ahead of what it adds up. No
// thread looks at what others loaded: nothing but its own loads is waited for.

// fetchLine begins a copy to shared memory.
DEV void fetchLine(Line* to, u64 from) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  u32 at;
  asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }" : "=r"(at) : "l"(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
#else
  *to = loadLine(from);
#endif
}

// endFetch closes a batch of copies; awaitFetch waits for all but the last N
// batches of the thread.
DEV void endFetch() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

template <int N> DEV void awaitFetch() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

// Walk goes through a block's chunks: those of a bale lie together, G of them, and the
// block has every so-manieth bale.
template <int G> struct Walk {
  i64 at, step, jump;  // bytes: where a chunk lies, from one to the next, from the last of a bale to the first of the next
  u32 chunk;           // of its bale
  __device__ __forceinline__ void next() {
    chunk++;
    const bool over = G == 1 || chunk == G;
    at += over ? jump : step;
    if (over) chunk = 0;
  }
};

// Steps is what a block does of bales of G = 2W chunks, one after another: in each of
// split periods it adds up every bales, the first of which goes by way of host memory;
// then reads times it brings half a bale of the period before, of one member after
// another. Behind them come the bales that are left.
template <int G> struct Steps {
  u32 split, every, bales, reads;
  u32 period, adds, read;  // in which period; chunks that are left to add up in it; half bales read in it
  __device__ __forceinline__ Steps(const ReduceArgs& a, u32 bales, u32 reads) : split((u32)a.split), every((u32)a.writers), bales(bales), reads(reads), period(0), adds(0), read(0) { enter(); }
  __device__ __forceinline__ void enter() { adds = (period < split ? every : period == split ? bales - split * every : 0) * G; }
  __device__ __forceinline__ bool hosted() const { return period < split && adds > (every - 1) * G; }
  __device__ __forceinline__ u32 all() const { return bales * G + split * reads; }
  __device__ __forceinline__ void next() {
    if (adds > 0) adds--;
    else read++;
    if (adds > 0 || (period > 0 && read < reads)) return;
    period++, read = 0;
    enter();
  }
};

// baleFlag is where a block tells others of its k-th bale by way of host memory.
DEV i64 baleFlag(u32 k, u32 block, u32 blocks) { return 2 * blocksMost + (i64)k * blocks + block; }

// readBales puts in its place what others have added up and written to their host
// memory: bales of split turns of each of so many blocks, every writers-th turn. A
// thread has some bales under way, in what shared memory it has for sums.
template <int W, int U, int S, int N, int G> DEV void readBales(Patience& p, const ReduceArgs& a, u32 blocks, u32 e) {
  constexpr int lines = G * U, deep = S * U * W / lines;
  static_assert(deep > 0, "shared memory has room for a bale");
  constexpr i64 bale = (i64)lines * N;
  const u32 r = (u32)a.team.rank;
  const i64 all = a.split * blocks * (W - 1), n = blockIdx.x < all ? (all - blockIdx.x + a.readers - 1) / a.readers : 0;
  Line* mine = meetingRoom() + threadIdx.x / 32 * (S * U * W * 32) + laneOf();
  const auto numberOf = [&](i64 i) { return (blockIdx.x + i * a.readers) / (W - 1); };
  const auto memberOf = [&](i64 i) { return (r + 1 + (u32)((blockIdx.x + i * a.readers) % (W - 1))) % W; };
  const auto fetch = [&](i64 i, int d) {
    const i64 k = numberOf(i);
    const u32 q = memberOf(i);
    if (laneOf() == 0) waitFlag(p, a.team, flagAt(a, r, q, 2 * blocksMost + k, e), q, e);
    __syncwarp();
#pragma unroll
    for (int u = 0; u < lines; u++) fetchLine(mine + (d * lines + u) * 32, a.host[q] + (k * bale + u * N + threadIdx.x) * 16);
  };
#pragma unroll
  for (int d = 0; d < deep; d++) {
    if (d < n) fetch(d, d);
    endFetch();
  }
  for (i64 i = 0; i < n; i += deep) {
#pragma unroll
    for (int d = 0; d < deep; d++) {
      if (i + d >= n) break;
      awaitFetch<deep - 1>();
      const i64 k = numberOf(i + d);
      const u64 to = a.out[r] + (memberOf(i + d) * a.share + (k / blocks * a.writers * blocks + k % blocks) * bale + threadIdx.x) * 16;
      Line v[lines];
#pragma unroll
      for (int u = 0; u < lines; u++) v[u] = mine[(d * lines + u) * 32];
#pragma unroll
      for (int u = 0; u < lines; u++) storeLine(to + u * N * 16, v[u]);
      if (i + d + deep < n) fetch(i + d + deep, d);
      endFetch();
    }
  }
}

// reduceFew adds up a share of all members' operands, in chunks of U packs for each
// of N threads. All: the member's share of one result, that all get; else the
// operands begin with what is for this member, who alone gets it. What is left
// behind whole bales is too little to be worth more than a plain loop. With bales of
// more than one chunk, results of the first of each writers of a block's bales, split
// times, reach others by way of host memory, where readers blocks of the grid, its
// first, read those of the others; all do if readers is 0.
template <class F, class T, int W, int U, int S, int N, bool All, int G> DEV void reduceFew(const ReduceArgs& a) {
  constexpr int V = 16 / sizeof(T), to = All ? W : 1;
  constexpr i64 chunk = (i64)U * N, bale = chunk * G;
  const Team& t = a.team;
  const u32 r = (u32)t.rank, e = begin(t, lastEpoch(t)), aside = G > 1 ? (u32)a.readers : 0, blocks = gridDim.x - aside, block = blockIdx.x - aside;
  Patience p = {0, 0};
  meet<W>(p, a, 0, e);
  if (blockIdx.x < aside) {
    readBales<W, U, S, N, G>(p, a, blocks, e);
    meet<W>(p, a, blocksMost, e);
    end(t, e);
    return;
  }
  const i64 whole = a.count / V, total = (a.count + V - 1) / V, first = All ? r * a.share : 0, last = first + a.share;
  const i64 packs = (last < whole ? last : whole) - first, bales = packs > 0 ? packs / bale : 0;
  Steps<G> given(a, block < bales ? (u32)((bales - block + blocks - 1) / blocks) : 0, G > 1 && aside == 0 ? 2 * (W - 1) : 0), taken = given;
  const u32 n = given.all();
  Line* mine = meetingRoom() + threadIdx.x / 32 * (S * U * W * 32) + laneOf();
  Walk<G> in = {(first + block * bale + threadIdx.x) * 16, chunk * 16, (blocks * bale - (G - 1) * chunk) * 16, 0}, out = in;
  u64 aboard = a.host[r] + (block * bale + threadIdx.x) * 16;  // where the next bale by way of host memory goes
  u64 from[W], into[to];  // of the members, by turns: warps begin with different ones
  u32 place[W];
#pragma unroll
  for (int k = 0; k < W; k++) {
    const u32 q = (turnOf(t) + k) % W;
    from[k] = a.in[q], place[k] = q * 32;
    if (All) into[k] = a.out[q];
  }
  if (!All) into[0] = a.out[r];
  // Half a bale of another member is as many packs as a chunk of all.
  const auto memberOf = [&](const Steps<G>& x) { return (r + 1 + x.read / 2) % W; };
  const auto halfAt = [&](const Steps<G>& x) { return (i64)(x.read % 2) * W * U * N + threadIdx.x; };
  const auto fetch = [&](int s) {
    Line* to = mine + s * U * W * 32;
    if (G > 1 && given.adds == 0) {
      const u32 q = memberOf(given), k = given.period - 1;
      if (laneOf() == 0 && given.read % 2 == 0) waitFlag(p, t, flagAt(a, r, q, baleFlag(k, block, blocks), e), q, e);
      __syncwarp();
      const u64 at = a.host[q] + (((i64)k * blocks + block) * bale + halfAt(given)) * 16;
#pragma unroll
      for (int i = 0; i < W * U; i++) fetchLine(to + i * 32, at + i * N * 16);
    } else {
#pragma unroll
      for (int k = 0; k < W; k++)
#pragma unroll
        for (int u = 0; u < U; u++) fetchLine(to + u * W * 32 + place[k], from[k] + in.at + u * N * 16);
      in.next();
    }
    if (G > 1) given.next();
  };
#pragma unroll
  for (int s = 0; s < S; s++) {
    if (s < n) fetch(s);
    endFetch();
  }
  for (u32 k = 0; k < n; k += S) {
#pragma unroll
    for (int s = 0; s < S; s++) {
      if (k + s >= n) break;
      awaitFetch<S - 1>();
      if (G > 1 && taken.adds == 0) {
        const u64 at = a.out[r] + (memberOf(taken) * a.share + ((i64)(taken.period - 1) * taken.every * blocks + block) * bale + halfAt(taken)) * 16;
        Line v[W * U];
#pragma unroll
        for (int i = 0; i < W * U; i++) v[i] = mine[(s * U * W + i) * 32];
#pragma unroll
        for (int i = 0; i < W * U; i++) storeLine(at + i * N * 16, v[i]);
        if (k + s + S < n) fetch(s);
        endFetch();
        taken.next();
        continue;
      }
      Line sum[U];
#pragma unroll
      for (int u = 0; u < U; u++) {
        Line x[W];
#pragma unroll
        for (int q = 0; q < W; q++) x[q] = mine[((s * U + u) * W + q) * 32];
        sum[u] = fold<F, T, W>(x);
      }
      if (k + s + S < n) fetch(s);
      endFetch();
      const bool hosted = G > 1 && taken.hosted();
      if (hosted) {
#pragma unroll
        for (int u = 0; u < U; u++) storeLine(a.out[r] + out.at + u * N * 16, sum[u]), storeLine(aboard + (out.chunk * chunk + u * N) * 16, sum[u]);
      } else {
#pragma unroll
        for (int d = 0; d < to; d++)
#pragma unroll
          for (int u = 0; u < U; u++) storeLine(into[d] + out.at + u * N * 16, sum[u]);
      }
      out.next();
      if (G == 1) continue;
      if (hosted && out.chunk == 0) {
        const u32 q = laneOf(), told = taken.period;
        __syncthreads();
        if (threadIdx.x / 32 == told % (N / 32) && q < W && q != r) release32(flagAt(a, q, r, baleFlag(told, block, blocks), e), e);
        aboard += blocks * bale * 16;
      }
      taken.next();
    }
  }
  const i64 rest = last < total ? last : total;
  for (i64 i = first + bales * bale + block * N + threadIdx.x; i < rest; i += blocks * N) {
    Line x[W];
#pragma unroll
    for (int q = 0; q < W; q++) x[q] = loadCut<Line, T, true>(a.in[q], i, a.count);
    const Line y = fold<F, T, W>(x);
#pragma unroll
    for (int d = 0; d < to; d++) storeCut<Line, T, true>(a.out[(r + d) % W], i, a.count, y);
  }
  meet<W>(p, a, blocksMost, e);
  end(t, e);
}
