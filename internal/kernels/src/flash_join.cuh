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
