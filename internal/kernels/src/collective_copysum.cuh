// Sums of blocks that come to staging memory by copy engines, but for a part at
// their end that other members' kernels store there.
//
// Words say what is there: the number of the meeting before, raised by kernels of one
// block behind the copies. The last copy to a member is not waited for like that:
// its staging memory holds a word that data hardly ever is, and is looked at until
// it holds others. Copies may write in any order, but never half of an aligned word.
// Data that is that word is waited for by the flag. Who has added up puts it back.

enum { copiedByEngine, copiedByKernel, copiedWays };

struct CopiedArgs {
  Team team;
  u64 flags[teamMost], flagHalf;  // of each member: two halves of words for each way and member by whom
  u64 src[teamMost], dst;         // of sums, each member's block: its own where it lies, others' in staging; the sum
  i64 run;                        // bytes of a block
  i64 cells[copiedWays];          // where the blocks' parts end, in cells of 16 bytes as the blocks lie
  u64 to, way;                    // of flags, whose to raise, a bit each, and for which way
};

// Launches here have no number of their own: it is that of the meeting before.
DEV u32 meetingOf(const CopiedArgs& a) { return *(volatile u32*)&controlOf(a.team)->begun; }

DEV u64 copiedFlag(const CopiedArgs& a, u32 at, u64 way, u32 by, u32 e) { return a.flags[at] + (e & 1) * a.flagHalf + (way * teamMost + by) * 4; }

// raiseCopied tells members that something for them is there: what the stream did
// before is done.
template <int W> DEV void raiseCopied(const CopiedArgs& a) {
  const u32 q = threadIdx.x, e = meetingOf(a);
  if (q < W && a.to >> q & 1) release32(copiedFlag(a, q, a.way, (u32)a.team.rank, e), e);
}

// awaitCopied has a block wait for members, a bit each.
template <int W> DEV bool awaitCopied(const CopiedArgs& a, Patience& w, u64 way, u32 members, u32 e) {
  const u32 q = threadIdx.x;
  bool here = true;
  if (q < W && members >> q & 1)
    while (here && acquire32(copiedFlag(a, (u32)a.team.rank, way, q, e)) != e) here = !waited(w, a.team, q, e);
  return __syncthreads_and(here);
}

// unwritten is a NaN in types of 32 bits, and half of it in those of 16, that no
// arithmetic makes.
enum : u32 { unwritten = 0xfff5a5fb };

DEV bool fresh(Line v) { return v.x == unwritten || v.y == unwritten || v.z == unwritten || v.w == unwritten; }

// watch looks at a line until it is written, and seldom at the flag, which is one for
// all threads.
DEV Line watch(const CopiedArgs& a, Patience& w, u64 at, Line v, u32 from, u32 e) {
  for (u32 n = 1; fresh(v); n++) {
    if (n % 16 == 0 && acquire32(copiedFlag(a, (u32)a.team.rank, copiedByEngine, from, e)) == e) return look(at);
    if (waited(w, a.team, from, e)) break;
#ifdef __CUDA_ARCH__
    asm volatile("nanosleep.u32 100;");
#endif
    v = look(at);
  }
  return v;
}

// sumCells adds up cells from first up to last. Watched: those of member from are
// looked at until they are there; PutBack: they are unwritten then.
template <class T, class F, bool Avg, int W, int VD, bool Full, bool PutBack, bool Watched, int U> DEV void sumCells(const CopiedArgs& a, Patience& w, u32 first, u32 last, u32 from, u32 e) {
  const u32 me = (u32)a.team.rank, step = gridDim.x * blockDim.x;
  for (u32 i = first + blockIdx.x * blockDim.x + threadIdx.x; i < last; i += U * step) {
    Pack<u64, 2> v[U][W];
    Cell c[U];
#pragma unroll
    for (int k = 0; k < U; k++) {
      c[k].count = 0;
      if (i + k * step >= last) continue;
      c[k] = cellAt<Full>(i + k * step, 0, a.run, 0, a.src[me]);
#pragma unroll
      for (int q = 0; q < W; q++) {
        if (!Full) v[k][q] = {};
        if (Watched && q == from) v[k][q] = bitsAs<Pack<u64, 2>>(look(a.src[q] + c[k].at));
        else loadBytes<16, 16>(v[k][q], a.src[q] + c[k].at, c[k].count);
      }
    }
#pragma unroll
    for (int k = 0; k < U; k++) {
      if (c[k].count <= 0) continue;
#pragma unroll
      for (int q = 0; q < W; q++) {
        if (q != from) continue;
        if (Watched) v[k][q] = bitsAs<Pack<u64, 2>>(watch(a, w, a.src[q] + c[k].at, bitsAs<Line>(v[k][q]), from, e));
        if (PutBack) storeLine(a.src[q] + c[k].at, Line{unwritten, unwritten, unwritten, unwritten});
      }
      Pack<u64, 2> sum;
      fold<T, F, Avg, W, 16>(sum, v[k]);
      storeBytes<16, VD>(a.dst + c[k].at, sum, c[k].count);
    }
  }
}

// sumCopied adds up blocks as they come, what kernels store first. All begin at equal
// distances from multiples of 16; VD is what the distance of the destination from
// that is a multiple of. Members push to the one behind them first and to the one
// before them last.
template <class T, class F, bool Avg, int W, int VD, bool Full, bool Watched, int U> DEV void sumCopied(const CopiedArgs& a) {
  follow();
  const u32 me = (u32)a.team.rank, e = meetingOf(a), from = (me + 1) % W, others = ((1u << W) - 1) & ~(1u << me);
  const u32 engines = (u32)a.cells[copiedByEngine], all = (u32)a.cells[copiedByKernel];
  Patience w = {0, 0};
  if (engines < all) {
    if (!awaitCopied<W>(a, w, copiedByKernel, others, e)) return;
    sumCells<T, F, Avg, W, VD, Full, Watched, false, U>(a, w, engines, all, from, e);
  }
  if (!awaitCopied<W>(a, w, copiedByEngine, Watched ? others & ~(1u << from) : others, e)) return;
  sumCells<T, F, Avg, W, VD, Full, Watched, Watched, U>(a, w, 0, engines, from, e);
}
