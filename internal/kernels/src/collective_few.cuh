// All_reduce and reduce_scatter on few multiprocessors, which leave the others to concurrent kernels. Links have a
// long latency. With few multiprocessors, the loads that threads can have in flight in registers do not fill a link.
// Therefore each thread loads data to shared memory, S stages ahead. A stage has U packs of each member. No thread
// reads data that other threads have loaded, so each thread waits only for its own loads.

// fetchLine starts an asynchronous copy to shared memory.
DEV void fetchLine(Line* to, u64 from) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  u32 at;
  asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }" : "=r"(at) : "l"(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
#else
  *to = loadLine(from);
#endif
}

// endFetch ends a group of copies; awaitFetch waits for all groups of the thread except the last N.
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

// Walk iterates over a block's chunks. A bale is a tile of G contiguous chunks. Bales are distributed cyclically over
// the blocks.
template <int G> struct Walk {
  // in bytes: offset of the current chunk; distance to the next chunk; distance from the last chunk of a bale to the
  // first of the next bale
  i64 at, step, jump;
  u32 chunk;           // index within its bale
  __device__ __forceinline__ void next() {
    chunk++;
    const bool over = G == 1 || chunk == G;
    at += over ? jump : step;
    if (over) chunk = 0;
  }
};

// baleFlag returns the index of the flag with which a block signals to the other members that its k-th bale in host
// memory is complete.
DEV i64 baleFlag(u32 k, u32 block, u32 blocks) { return 2 * blocksMost + (i64)k * blocks + block; }

// readBales reads results that other members have written to their host memory, and stores them in this member's
// result. Each block that reduces writes split bales there: every writers-th of its bales.
template <int W, int U, int N, int G> DEV void readBales(Patience& p, const ReduceArgs& a, u32 blocks, u32 e) {
  const u32 r = (u32)a.team.rank;
  constexpr i64 bale = (i64)G * U * N;
  const i64 bales = a.split * blocks;
  for (i64 i = blockIdx.x; i < bales * (W - 1); i += a.readers) {
    const i64 k = i / (W - 1);
    const u32 q = (r + 1 + (u32)(i % (W - 1))) % W;
    if (threadIdx.x == 0) waitFlag(p, a.team, flagAt(a, r, q, 2 * blocksMost + k, e), q, e);
    __syncthreads();
    const u64 from = a.host[q] + (k * bale + threadIdx.x) * 16;
    const u64 to = a.out[r] + (q * a.share + (k / blocks * a.writers * blocks + k % blocks) * bale + threadIdx.x) * 16;
    Line v[G * U];
#pragma unroll
    for (int u = 0; u < G * U; u++) v[u] = loadLine(from + u * N * 16);
#pragma unroll
    for (int u = 0; u < G * U; u++) storeLine(to + u * N * 16, v[u]);
  }
}

// reduceFew reduces all members' operands in chunks of U packs for each of N threads. All: each member reduces its
// share of one result and stores it to all members. Otherwise the operands begin with the data for this member, and
// only this member gets the result. A simple loop processes the elements after the last whole bale. If bales have
// several chunks, a part of the results goes to the other members through host memory: every writers-th bale of a
// block, up to split bales. The first readers blocks of the grid read such bales of the other members.
template <class F, class T, int W, int U, int S, int N, bool All, int G> DEV void reduceFew(const ReduceArgs& a) {
  constexpr int V = 16 / sizeof(T), to = All ? W : 1;
  constexpr i64 chunk = (i64)U * N, bale = chunk * G;
  const Team& t = a.team;
  const u32 r = (u32)t.rank, e = begin(t, lastEpoch(t)), aside = G > 1 ? (u32)a.readers : 0, blocks = gridDim.x - aside, block = blockIdx.x - aside;
  Patience p = {0, 0};
  meet<W>(p, a, 0, e);
  if (blockIdx.x < aside) {
    readBales<W, U, N, G>(p, a, blocks, e);
    meet<W>(p, a, blocksMost, e);
    end(t, e);
    return;
  }
  const i64 whole = a.count / V, total = (a.count + V - 1) / V, first = All ? r * a.share : 0, last = first + a.share;
  const i64 packs = (last < whole ? last : whole) - first, bales = packs > 0 ? packs / bale : 0;
  const u32 n = block < bales ? (u32)((bales - block + blocks - 1) / blocks) * G : 0;
  Line* mine = meetingRoom() + threadIdx.x / 32 * (S * U * W * 32) + laneOf();
  Walk<G> in = {(first + block * bale + threadIdx.x) * 16, chunk * 16, (blocks * bale - (G - 1) * chunk) * 16, 0}, out = in;
  u64 aboard = a.host[r] + (block * bale + threadIdx.x) * 16;  // destination of the next bale that goes through host memory
  // bales since the last one in host memory; number of bales in host memory that were signalled
  u32 turn = 0, told = 0;
  u64 from[W], into[to];  // by member, rotated: warps begin with different members
  u32 place[W];
#pragma unroll
  for (int k = 0; k < W; k++) {
    const u32 q = (turnOf(t) + k) % W;
    from[k] = a.in[q], place[k] = q * 32;
    if (All) into[k] = a.out[q];
  }
  if (!All) into[0] = a.out[r];
  const auto fetch = [&](int s) {
#pragma unroll
    for (int k = 0; k < W; k++)
#pragma unroll
      for (int u = 0; u < U; u++) fetchLine(mine + (s * U + u) * W * 32 + place[k], from[k] + in.at + u * N * 16);
    in.next();
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
      const bool hosted = G > 1 && turn == 0 && told < a.split;
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
      if (G == 1 || out.chunk != 0) continue;
      if (hosted) {
        __syncthreads();
        const u32 q = laneOf();
        if (threadIdx.x / 32 == told % (N / 32) && q < W && q != r) release32(flagAt(a, q, r, baleFlag(told, block, blocks), e), e);
        told++;
        aboard += blocks * bale * 16;
      }
      if (++turn == a.writers) turn = 0;
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
