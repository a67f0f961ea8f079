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

// reduceFew adds up a share of all members' operands, in chunks of U packs for each
// of N threads. All: the member's share of one result, that all get; else the
// operands begin with what is for this member, who alone gets it. What is left
// behind whole chunks is too little to be worth more than a plain loop.
template <class F, class T, int W, int U, int S, int N, bool All> DEV void reduceFew(const ReduceArgs& a) {
  constexpr int V = 16 / sizeof(T), to = All ? W : 1;
  constexpr i64 chunk = (i64)U * N;
  const Team& t = a.team;
  const u32 r = (u32)t.rank, e = begin(t, lastEpoch(t));
  const i64 whole = a.count / V, total = (a.count + V - 1) / V, first = All ? r * a.share : 0, last = first + a.share;
  const i64 packs = (last < whole ? last : whole) - first, chunks = packs > 0 ? packs / chunk : 0;
  const u32 n = blockIdx.x < chunks ? (u32)((chunks - blockIdx.x + gridDim.x - 1) / gridDim.x) : 0;
  const i64 stride = (i64)gridDim.x * chunk * 16;
  Line* mine = meetingRoom() + threadIdx.x / 32 * (S * U * W * 32) + laneOf();
  i64 in = (first + (i64)blockIdx.x * chunk + threadIdx.x) * 16, out = in;
  const auto fetch = [&](int s) {
#pragma unroll
    for (int q = 0; q < W; q++)
#pragma unroll
      for (int u = 0; u < U; u++) fetchLine(mine + ((s * U + u) * W + q) * 32, a.in[q] + in + u * N * 16);
    in += stride;
  };
  Patience p = {0, 0};
  meet<W>(p, a, 0, e);
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
#pragma unroll
      for (int d = 0; d < to; d++)
#pragma unroll
        for (int u = 0; u < U; u++) storeLine(a.out[(r + d) % W] + out + u * N * 16, sum[u]);
      out += stride;
    }
  }
  const i64 rest = last < total ? last : total;
  if (blockIdx.x == chunks % gridDim.x)
    for (i64 i = first + chunks * chunk + threadIdx.x; i < rest; i += N) {
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
