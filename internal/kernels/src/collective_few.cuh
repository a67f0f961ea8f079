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

// reduceFew adds up a share of all members' operands. All: the member's share of
// one result, that all get; else the operands begin with what is for this member,
// who alone gets it.
template <class F, class T, int W, int U, int S, bool All> DEV void reduceFew(const ReduceArgs& a) {
  constexpr int V = 16 / sizeof(T);
  const Team& t = a.team;
  const u32 r = (u32)t.rank, e = begin(t, lastEpoch(t));
  const i64 whole = a.count / V, first = All ? r * a.share : 0, last = first + a.share, end16 = (last < whole ? last : whole) * 16;
  const i64 step = (i64)gridDim.x * blockDim.x * 16;
  Line* mine = meetingRoom() + threadIdx.x / 32 * (S * U * W * 32) + laneOf();
  const auto fetch = [&](int s, i64 at) {  // from at bytes on
#pragma unroll
    for (int u = 0; u < U; u++)
#pragma unroll
      for (int q = 0; q < W; q++)
        if (at + u * step < end16) fetchLine(mine + ((s * U + u) * W + q) * 32, a.in[q] + at + u * step);
    endFetch();
  };
  Patience p = {0, 0};
  meet<W>(p, a, 0, e);
  i64 at = first * 16 + ((i64)blockIdx.x * blockDim.x + threadIdx.x) * 16;
#pragma unroll
  for (int s = 0; s < S; s++) fetch(s, at + s * U * step);
  while (at < end16) {
#pragma unroll
    for (int s = 0; s < S; s++, at += U * step) {
      awaitFetch<S - 1>();
      Line sum[U];
#pragma unroll
      for (int u = 0; u < U; u++) {
        Line x[W];
#pragma unroll
        for (int q = 0; q < W; q++) x[q] = mine[((s * U + u) * W + q) * 32];
        sum[u] = fold<F, T, W>(x);
      }
      fetch(s, at + S * U * step);
#pragma unroll
      for (int k = 0; k < (All ? W : 1); k++)
#pragma unroll
        for (int u = 0; u < U; u++)
          if (at + u * step < end16) storeLine(a.out[(r + k) % W] + at + u * step, sum[u]);
    }
  }
  if (first <= whole && whole < last && whole * V < a.count && blockIdx.x == 0 && threadIdx.x == 0) {  // the last pack is cut short
    Line x[W];
#pragma unroll
    for (int q = 0; q < W; q++) x[q] = loadCut<Line, T, true>(a.in[q], whole, a.count);
    const Line y = fold<F, T, W>(x);
#pragma unroll
    for (int k = 0; k < (All ? W : 1); k++) storeCut<Line, T, true>(a.out[(r + k) % W], whole, a.count, y);
  }
  meet<W>(p, a, blocksMost, e);
  end(t, e);
}
