// What blocks that share keys leave, and what puts it together by the largest score of each (Flash-Decoding; Dao,
// Haziza, Massa and Sizov, 2023).

// SplitArgs says where what splits have of a unit, the rows of a block, is kept.
struct SplitArgs {
  u64 part;            // where not 0: sums[place][split][row][DH] of f32
  u64 best;            // shifts and weights[place][split][row] of 2·f32
  i64 splits, length;  // keys of a split, a multiple of 128
  i64 rows, units;     // of a head of keys
  i64 kvs;             // heads of keys
  i64 begin;           // the launch's first unit
  u64 arrived;         // where not 0: of each place, how many of its splits are kept, modulo splits
};

template <int B> struct FlashSplitArgs {
  AttentionArgs<B> a;
  SplitArgs s;
};

// keepRows stores for flashJoin what a thread has of ROWS rows of a block.
template <int ROWS, class T, int B, int DH, class Block> DEV void keepRows(const SplitArgs& s, const FlashRows<T, B, DH>& r, const Block& b) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    if (b.row() + 8 * h >= b.rows) continue;
    const i64 at = ((i64)b.place * s.splits + b.split) * ROWS + b.row() + 8 * h - b.first;
    f32* to = (f32*)s.part + at * DH + lane % 4 * 2;
#pragma unroll
    for (int d = 0; d < DH / 8; d++) *(Pack<f32, 2>*)(to + 8 * d) = Pack<f32, 2>{{r.o[d][2 * h], r.o[d][2 * h + 1]}};
    if (lane % 4 == 0) ((Pack<f32, 2>*)s.best)[at] = Pack<f32, 2>{{r.shifted(h), r.sum[h]}};
  }
}

// arrivedLast reports whether all splits of a place are kept now, to the block that kept the last. Its first COUNT threads
// come here.
template <int COUNT> DEV bool arrivedLast(const SplitArgs& s, u32 place) {
  __shared__ u32 before;
  meetThreads(1, COUNT);
  u32* at = (u32*)s.arrived + place;
  if (threadIdx.x == 0) {
#ifdef __CUDA_ARCH__
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(at), "r"((u32)s.splits - 1) : "memory");
#else
    before = *at, *at = before + 1 == s.splits ? 0 : before + 1;
#endif
  }
  meetThreads(1, COUNT);
  return before + 1 == s.splits;
}

// joinRows puts together what splits have of ROWS rows of a block, by COUNT threads, with the bits of flashJoin.
template <int ROWS, int COUNT, class T, int DH, int B, class Block> DEV void joinRows(const FlashSplitArgs<B>& args, const Block& b) {
  const AttentionArgs<B>& a = args.a;
  const u32 splits = args.s.splits;
  const i64 first = (i64)b.place * splits * ROWS;
#pragma unroll 4
  for (u32 i = threadIdx.x; i < ROWS * DH / 4; i += COUNT) {
    const u32 row = i / (DH / 4), d = i % (DH / 4) * 4, r = b.first + row;
    if (r >= b.rows) continue;
    const Pack<f32, 2>* best = (const Pack<f32, 2>*)args.s.best + first + row;
    const f32* part = (const f32*)args.s.part + (first + row) * DH + d;
    f32 most = -bitsAs<f32>(0x7f800000u), sum = 0, o[4] = {0, 0, 0, 0};
#pragma unroll 4
    for (u32 s = 0; s < splits; s++) most = fmaxf(most, best[ROWS * s].v[0]);
#pragma unroll 4
    for (u32 s = 0; s < splits; s++) {
      const Pack<f32, 2> x = best[ROWS * s];
      const Pack<f32, 4> y = *(const Pack<f32, 4>*)(part + (i64)ROWS * DH * s);
      const f32 down = downBy(x.v[0], most);
      sum += x.v[1] * down;
#pragma unroll
      for (int e = 0; e < 4; e++) o[e] += y.v[e] * down;
    }
    const QueryRow<B> is(a, b.kv, r);
    const bool sees = keysOf(a, b.of, is.query) > 0;
    Pack<T, 4> to;
#pragma unroll
    for (int e = 0; e < 4; e++) to.v[e] = Num<T>::put(sees ? o[e] / sum : 0);
    *(Pack<T, 4>*)(b.of.out + is.query * a.so[0] + is.head * a.so[1] + d) = to;
  }
}

// flashJoin puts together what splits have; a thread has an element of a row.
template <class T, int B, int DH, int ROWS> DEV void flashJoin(const FlashSplitArgs<B>& args) {
  const AttentionArgs<B>& a = args.a;
  const u32 at = (blockIdx.x * 256 + threadIdx.x) / DH, d = threadIdx.x % DH, splits = args.s.splits;
  constexpr u32 rows = ROWS;
  const u32 place = at / rows, unit = (u32)args.s.begin + place, units = args.s.units, r = unit % units * rows + at % rows;
  if (r >= args.s.rows) return;
  const i64 row = (i64)place * splits * rows + at % rows;
  const Pack<f32, 2>* best = (const Pack<f32, 2>*)args.s.best + row;
  const f32* part = (const f32*)args.s.part + row * DH + d;
  f32 most = -bitsAs<f32>(0x7f800000u), sum = 0, o = 0;
#pragma unroll 8
  for (u32 s = 0; s < splits; s++) most = fmaxf(most, best[rows * s].v[0]);
#pragma unroll 8  // so that it does not wait for one after the other
  for (u32 s = 0; s < splits; s++) {
    const Pack<f32, 2> b = best[rows * s];
    const f32 down = downBy(b.v[0], most);
    sum += b.v[1] * down;
    o += part[(i64)rows * DH * s] * down;
  }
  const u32 kv = unit / units % (u32)args.s.kvs;
  const Sequences<T> of(a, unit / units / (u32)args.s.kvs);
  const QueryRow<B> is(a, kv, r);
  of.out[is.query * a.so[0] + is.head * a.so[1] + d] = Num<T>::put(keysOf(a, of, is.query) > 0 ? o / sum : 0);
}
