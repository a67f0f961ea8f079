// All-reduce whose data is moved by each multiprocessor's bulk copies: from global
// to shared memory and from there to all peers, in chunks that stay in shared
// memory until the peers' parts have come and all are added up. One thread of a
// group keeps copies under way and never waits for one it has just begun, so few
// multiprocessors fill a link.

enum { bulkThreads = 128, bulkAdders = 96 };  // a group: a warp that moves, of which one thread does, and three that add up

// One shot in chunks of U packs for each thread that adds up, 2^a.stages of them
// in shared memory for each group.
template <class F, class T, int W, int U, bool> DEV void reduceBulk(const ReduceArgs& a) {
  constexpr u32 chunk = bulkAdders * U;
  constexpr u32 behind = 2;  // batches of stores under way
  const Team& t = a.team;
  const u32 r = (u32)t.rank, last = lastEpoch(t), groups = blockDim.x / bulkThreads, group = threadIdx.x / bulkThreads, thread = threadIdx.x % bulkThreads;
  const u32 log = (u32)a.stages, stages = 1 << log, mask = stages - 1;
  const i64 total = a.share;
  Gate* full = (Gate*)meetingRoom() + group * 2 * stages;
  Gate* empty = full + stages;
  Line* room = meetingRoom() + groups * stages + group * stages * chunk;
  if (thread == 0)
    for (u32 s = 0; s < stages; s++) openGate(full + s, 1), openGate(empty + s, bulkAdders / 32);
  gatesOpened();
  const u32 e = begin(t, last);
  const u64 half = (e & 1) * a.half;
  const u32 chunks = (u32)((total + chunk - 1) / chunk), first = group * gridDim.x + blockIdx.x, many = groups * gridDim.x;
  const u32 n = first < chunks ? (chunks - first + many - 1) / many : 0;
  const auto packOf = [&](u32 k) { return (i64)(first + k * many) * chunk; };
  if (thread == 0) {
    const auto bytesOf = [&](u32 k) { return (u32)(16 * (total - packOf(k) < chunk ? total - packOf(k) : chunk)); };
    const auto loadNumber = [&](u32 k) { bulkLoad(room + (k & mask) * chunk, a.in[r] + packOf(k) * 16, bytesOf(k), full + (k & mask)); };
    for (u32 k = 0; k < stages && k < n; k++) loadNumber(k);
    for (u32 k = 0; k < n + behind; k++) {
      if (k < n) {
        passGate(full + (k & mask), k >> log);
#pragma unroll
        for (u32 d = 1; d < W; d++) bulkStore(a.data[(r + d) % W] + half + (r * total + packOf(k)) * 16, room + (k & mask) * chunk, bytesOf(k));
      }
      bulkMark();
      if (k >= behind) {
        bulkWait<behind>();
#pragma unroll
        for (u32 d = 1; d < W; d++) release32(flagAt(a, (r + d) % W, r, first + (k - behind) * many, e), e);
      }
      const u32 old = k - stages / 2;  // its stores are over: more are behind it than may be under way
      if (k >= stages / 2 && old + stages < n) {
        passGate(empty + (old & mask), old >> log);
        loadNumber(old + stages);
      }
    }
  }
  if (thread >= 32) {
    Patience p = {0, 0};
    for (u32 k = 0; k < n; k++) {
      const Line* own = room + (k & mask) * chunk;
      if (laneOf() < W && laneOf() != r) waitFlag(p, t, flagAt(a, r, laneOf(), first + k * many, e), laneOf(), e);
      passGate(full + (k & mask), k >> log);
      __syncwarp();
      Line x[U][W];
#pragma unroll
      for (int u = 0; u < U; u++) {
        const u32 at = u * bulkAdders + thread - 32;
        const i64 i = packOf(k) + at;
#pragma unroll
        for (int q = 0; q < W; q++)
          if (i < total) x[u][q] = q == r ? own[at] : look(a.data[r] + half + (q * total + i) * 16);
      }
      __syncwarp();
      if (laneOf() == 0) arrive(empty + (k & mask), bulkAdders / 32);
#pragma unroll
      for (int u = 0; u < U; u++) {
        const i64 i = packOf(k) + u * bulkAdders + thread - 32;
        if (i < total) storePack<T, true>(a.out[r], i, a.count, fold<F, T, W>(x[u]));
      }
    }
  }
  end(t, e);
}
