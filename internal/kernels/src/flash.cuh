// Attention on tensor cores, in one pass over keys and values: FlashAttention-2 (Dao, 2023; arXiv 2307.08691). The
// partial results of a warp are scaled down whenever a much larger score occurs. Keys and values are loaded 64 at a
// time. Values are loaded while scores are computed, and the next keys are loaded while values are added.

// Tile holds 64 rows of DH elements in shared memory. Rows are padded by 16 bytes, so that 8 of them are in different
// banks.
template <int DH> struct Tile {
  static constexpr int chunks = DH / 8, row = chunks + 1;
  Pack<u32, 4> at[64 * row];

  // load starts to load rows from..from+63. Rows from n on are set to zero.
  template <class T> __device__ __forceinline__ void load(const T* x, i64 stride, int from, int n) {
#pragma unroll
    for (int c = threadIdx.x; c < 64 * chunks; c += 256) {
      const int r = from + c / chunks;
      copy16(spotOf(&at[c / chunks * row + c % chunks]), x + (r < n ? r * stride : 0) + c % chunks * 8, r < n);
    }
    endCopies();
  }

  // finite reports whether all values in the thread's part of the rows are finite.
  template <class T> __device__ __forceinline__ bool finite() const {
    u32 odd = 0;
#pragma unroll
    for (int c = threadIdx.x; c < 64 * chunks; c += 256) odd |= oddBits<T>(at[c / chunks * row + c % chunks]);
    return odd == 0;
  }
};

// flashStep processes a tile. MASKED: not all rows see all of its keys. It returns false if a value that some rows do
// not see is not finite, because a weight of zero only cancels finite values.
template <bool MASKED, class T, int B, int DH> DEV bool flashStep(const AttentionArgs<B>& a, const FlashBlock<T, B>& b, const FlashQueries<T, B, DH>& of, FlashRows<T, B, DH>& r, Tile<DH>& ks, Tile<DH>& vs, int& odd, int j) {
  const int lane = threadIdx.x % 32;
  awaitCopies();
  __syncthreads();
  vs.load(b.v, a.sv[0], j, b.keys);
  f32 s[8][4];
#pragma unroll
  for (int n = 0; n < 8; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) s[n][e] = 0;
#pragma unroll
  for (int c = 0; c < DH / 16; c++)
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
      u32 x[4];
      fourTiles<false>(x, &ks.at[(n * 8 + lane / 16 * 8 + lane % 8) * ks.row + 2 * c + lane / 8 % 2]);
      product<T>(s[n], of.q[c], x[0], x[1]);
      product<T>(s[n + 1], of.q[c], x[2], x[3]);
    }
  awaitCopies();
  __syncthreads();
  if (j + 64 < b.keys) ks.load(b.k, a.sk[0], j + 64, b.keys);
  if (MASKED && hides(a)) {
    if (!vs.template finite<T>()) odd = 1;
    __syncthreads();
    if (odd) return false;
  }
  f32 down[2];
  if (r.template weigh<MASKED>(s, j, down)) r.scaleDown(down);
#pragma unroll
  for (int n = 0; n < 4; n++) {
    u32 w[4];
    operand<T>(w, s[2 * n], s[2 * n + 1]);
#pragma unroll
    for (int d = 0; d < DH / 8; d += 2) {
      u32 x[4];
      fourTiles<true>(x, &vs.at[(n * 16 + lane % 16) * vs.row + d + lane / 16]);
      product<T>(r.o[d], w, x[0], x[1]);
      product<T>(r.o[d + 1], w, x[2], x[3]);
    }
  }
  return true;
}

template <class T, int B, int DH, class Block = FlashWhole<T, B, DH>> DEV void flash(const typename Block::Args& args) {
  const AttentionArgs<B>& a = Block::attention(args);
  const Block b(args);
  __shared__ Tile<DH> ks, vs;
  __shared__ int odd;
  if (threadIdx.x == 0) odd = 0;
  ks.load(b.k, a.sk[0], 0, b.keys);
  const FlashQueries<T, B, DH> q(a, b);
  FlashRows<T, B, DH> r(a, b);
  __syncthreads();
  int j = 0;
  bool good = true;
  for (; j + 64 <= b.clear; j += 64) flashStep<false>(a, b, q, r, ks, vs, odd, j);
  for (; good && j < b.keys; j += 64) good = flashStep<true>(a, b, q, r, ks, vs, odd, j);
  awaitCopies();
  const Block again(args);
  r.total();
  if (good) again.keep(args, r);
  else again.asTold(args, r);
}
