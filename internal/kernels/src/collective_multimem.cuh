// All_reduce of sums that NVLink switches compute. The members' staging memory is mapped to one multicast address. A
// load from it returns the sum of the values of all members at that offset, and a store to it stores the value in all
// members' memory. The switches determine the order and the rounding of the additions.

struct MultimemArgs {
  ReduceArgs reduce;  // data: each member's staging memory; share: in packs
  u64 all;            // the multicast address, for multimem instructions only
};

// sumOfAll returns the sum of the packs of T that all members have at an address. Devices before sm_90 lack multicast
// memory.
#ifdef __CUDA_ARCH__
#if __CUDA_ARCH__ >= 900
#define LOAD_SUM(form) \
  asm volatile("multimem.ld_reduce.relaxed.sys.global.add" form " {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at) : "memory")
#else
#define LOAD_SUM(form) v = Line{0, 0, 0, 0}
#endif
DEV Line sumOfAll(u64 at, f32) { Line v; LOAD_SUM(".v4.f32"); return v; }
DEV Line sumOfAll(u64 at, f16) { Line v; LOAD_SUM(".acc::f32.v4.f16x2"); return v; }
DEV Line sumOfAll(u64 at, bf16) { Line v; LOAD_SUM(".acc::f32.v4.bf16x2"); return v; }
#undef LOAD_SUM
#else
template <class T> DEV Line sumOfAll(u64 at, T) {
  Pack<T, 16 / sizeof(T)> sum;
  for (int v = 0; v < 16 / sizeof(T); v++) {
    f32 a = 0;
    for (int q = teamMost - 1; q >= 0; q--)
      if (const T* part = (const T*)emulatedPart(at, q)) a += Num<T>::get(part[v]);
    sum.v[v] = Num<T>::put(a);
  }
  return bitsAs<Line>(sum);
}
#endif

// giveAll stores a pack of any type in all members' memory.
DEV void giveAll(u64 at, Line v) {
#ifdef __CUDA_ARCH__
#if __CUDA_ARCH__ >= 900
  asm volatile("multimem.st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
#endif
#else
  for (int q = 0; q < teamMost; q++)
    if (Line* part = (Line*)emulatedPart(at, q)) *part = v;
#endif
}

// meetAcross is meet for memory that one side accesses by its unicast address and the other by its multicast address.
// Accesses by different addresses are ordered only by a proxy fence.
template <int W> DEV void meetAcross(Patience& p, const ReduceArgs& a, i64 slot, u32 e) {
#ifdef __CUDA_ARCH__
  asm volatile("fence.proxy.alias;" ::: "memory");
#endif
  meet<W>(p, a, slot, e);
#ifdef __CUDA_ARCH__
  asm volatile("fence.proxy.alias;" ::: "memory");
#endif
}

// ofShares calls use for each pack of all members' shares that the thread copies.
template <int W, class Use> DEV void ofShares(const ReduceArgs& a, i64 total, Use use) {
  for (int q = 0; q < W; q++) {
    const i64 first = q * a.share, last = first + a.share < total ? first + a.share : total;
    for (i64 i = first + (i64)blockIdx.x * blockDim.x + threadIdx.x; i < last; i += (i64)gridDim.x * blockDim.x) use(i);
  }
}

// Each member copies its operand to its staging memory, reduces its share for all members, and copies the results of
// all members from its staging memory. Blocks with the same number process the same packs of each share, so a block
// only uses data of blocks with the same number. The second meeting ensures that staging memory is not overwritten
// while a member reads it.
template <class T, int W, int U, bool A> DEV void reduceMultimem(const MultimemArgs& m) {
  const ReduceArgs& a = m.reduce;
  const u32 r = (u32)a.team.rank, e = begin(a.team, lastEpoch(a.team));
  constexpr int V = 16 / sizeof(T);
  const i64 total = (a.count + V - 1) / V, step = (i64)gridDim.x * blockDim.x;
  const i64 first = r * a.share, last = first + a.share < total ? first + a.share : total;
  Patience p = {0, 0};
  ofShares<W>(a, total, [&](i64 i) { storeLine(a.data[r] + i * 16, loadCut<Line, T, A>(a.in[r], i, a.count)); });
  meetAcross<W>(p, a, 0, e);
  for (i64 i = first + (i64)blockIdx.x * blockDim.x + threadIdx.x; i < last; i += U * step) {
    Line y[U];
#pragma unroll
    for (int u = 0; u < U; u++)
      if (i + u * step < last) y[u] = sumOfAll(m.all + (i + u * step) * 16, T());
#pragma unroll
    for (int u = 0; u < U; u++)
      if (i + u * step < last) giveAll(m.all + (i + u * step) * 16, y[u]);
  }
  meetAcross<W>(p, a, blocksMost, e);
  ofShares<W>(a, total, [&](i64 i) { storeCut<Line, T, A>(a.out[r], i, a.count, look(a.data[r] + i * 16)); });
  end(a.team, e);
}
