// Partial results of blocks between which keys are split, and their combination by the largest score of each
// (Flash-Decoding; Dao, Haziza, Massa and Sizov, 2023).

// SplitArgs describes where the partial results of splits are stored. A unit is the rows of a block; place is its index
// in the launch.
struct SplitArgs {
  u64 part;            // if not 0: sums[place][split][row][DH] of f32
  u64 best;            // shifts and weights[place][split][row] of 2·f32
  i64 splits, length;  // number of splits; keys of a split, a multiple of 128
  i64 rows, units;     // rows and units of a key head
  i64 kvs;             // number of key heads
  i64 begin;           // the first unit of the launch
  u64 arrived;         // by place: number of splits that were stored, modulo splits; used if no separate kernel joins them
};

template <int B> struct FlashSplitArgs {
  AttentionArgs<B> a;
  SplitArgs s;
};

// keepRows stores a thread's part of ROWS rows of a block for flashJoin.
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

// arrivedLast returns true in the block that is the last to store a split of a place. The first COUNT threads of each
// block call it.
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

// joinRows combines the splits of ROWS rows of a block, and stores the result. r is the partial result of split own,
// which need not be read from memory; if there is no split own, r is not used. The bits do not depend on own.
template <int ROWS, class T, int B, int DH, class Block> DEV void joinRows(const FlashSplitArgs<B>& args, const FlashRows<T, B, DH>& r, const Block& b, u32 own) {
  const AttentionArgs<B>& a = args.a;
  const u32 splits = args.s.splits, column = threadIdx.x % 4 * 2;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const u32 row = b.row() + 8 * h;
    if (row >= b.rows) continue;
    const i64 at = (i64)b.place * splits * ROWS + row - b.first;
    const Pack<f32, 2>* best = (const Pack<f32, 2>*)args.s.best + at;
    f32 most = -bitsAs<f32>(0x7f800000u), sum = 0, o[DH / 8][2];
    for (u32 s = 0; s < splits; s++) most = fmaxf(most, best[ROWS * s].v[0]);
#pragma unroll
    for (int d = 0; d < DH / 8; d++) o[d][0] = o[d][1] = 0;
#pragma unroll 1
    for (u32 s = 0; s < splits; s++) {
      const Pack<f32, 2> x = best[ROWS * s];
      const f32 down = downBy(x.v[0], most), *part = (const f32*)args.s.part + (at + (i64)ROWS * s) * DH + column;
      Pack<f32, 2> y[DH / 8];
      sum += x.v[1] * down;
#pragma unroll
      for (int d = 0; d < DH / 8; d++) y[d] = s == own ? Pack<f32, 2>{{r.o[d][2 * h], r.o[d][2 * h + 1]}} : *(const Pack<f32, 2>*)(part + 8 * d);
#pragma unroll
      for (int d = 0; d < DH / 8; d++) o[d][0] += y[d].v[0] * down, o[d][1] += y[d].v[1] * down;
    }
    const QueryRow<B> is(a, b.kv, row);
    T* to = b.of.out + is.query * a.so[0] + is.head * a.so[1] + column;
    const bool sees = keysOf(a, b.of, is.query) > 0;
#pragma unroll
    for (int d = 0; d < DH / 8; d++) *(u32*)(to + 8 * d) = sees ? pair<T>(o[d][0] / sum, o[d][1] / sum) : 0;
  }
}

// storeFour stores elements d..d+3 of row r of a key head: the sums o divided by the sum of the weights.
template <class T, int B> DEV void storeFour(const AttentionArgs<B>& a, const Sequences<T>& of, u32 kv, u32 r, u32 d, const f32 (&o)[4], f32 sum) {
  const QueryRow<B> is(a, kv, r);
  const bool sees = keysOf(a, of, is.query) > 0;
  Pack<T, 4> to;
#pragma unroll
  for (int e = 0; e < 4; e++) to.v[e] = Num<T>::put(sees ? o[e] / sum : 0);
  *(Pack<T, 4>*)(of.out + is.query * a.so[0] + is.head * a.so[1] + d) = to;
}

// flashJoin combines the splits; each thread has four elements of a row.
template <class T, int B, int DH, int ROWS> DEV void flashJoin(const FlashSplitArgs<B>& args) {
  const AttentionArgs<B>& a = args.a;
  const u32 at = (blockIdx.x * 256 + threadIdx.x) / (DH / 4), d = threadIdx.x % (DH / 4) * 4, splits = args.s.splits;
  const u32 place = at / ROWS, unit = (u32)args.s.begin + place, units = args.s.units, r = unit % units * ROWS + at % ROWS;
  if (r >= args.s.rows) return;
  const i64 row = (i64)place * splits * ROWS + at % ROWS;
  const Pack<f32, 2>* best = (const Pack<f32, 2>*)args.s.best + row;
  const f32* part = (const f32*)args.s.part + row * DH + d;
  f32 most = -bitsAs<f32>(0x7f800000u), sum = 0, o[4] = {0, 0, 0, 0};
#pragma unroll 8
  for (u32 s = 0; s < splits; s++) most = fmaxf(most, best[ROWS * s].v[0]);
#pragma unroll 8  // so that a load does not wait for the previous one
  for (u32 s = 0; s < splits; s++) {
    const Pack<f32, 2> b = best[ROWS * s];
    const Pack<f32, 4> x = *(const Pack<f32, 4>*)(part + (i64)ROWS * DH * s);
    const f32 down = downBy(b.v[0], most);
    sum += b.v[1] * down;
#pragma unroll
    for (int e = 0; e < 4; e++) o[e] += x.v[e] * down;
  }
  storeFour(a, Sequences<T>(a, unit / units / (u32)args.s.kvs), unit / units % (u32)args.s.kvs, r, d, o, sum);
}
