// Data of a thread of the FlashAttention kernels. A warp has 16 rows, which are queries of all heads that use one key
// head. A lane has two of them, row lane/4 and the one 8 rows later. Of each row it has the elements that the layout of
// matrix products assigns to it.

// FlashBlock is the part of a block: 128 rows of a key head.
template <class T, int B> struct FlashBlock {
  u32 rows, first, kv;
  Sequences<T> of;
  const T *k, *v;
  int keys, clear;  // number of keys that at least one row sees; number of keys that every row sees that sees any

  // Grids and rows fit into 32 bits, and 64-bit quotients take long.
  __device__ __forceinline__ FlashBlock(const AttentionArgs<B>& a) : FlashBlock(a, number(), (u32)(a.tq * a.share), (u32)(a.tq * a.share + 127) / 128, (u32)a.heads / (u32)a.share) {}
  __device__ __forceinline__ FlashBlock(const AttentionArgs<B>& a, u32 n, u32 rows, u32 tiles, u32 kvs)
      : rows(rows), first((tiles - 1 - n % tiles) * 128),  // blocks whose rows see the most keys begin first
        kv(n / tiles % kvs), of(a, n / tiles / kvs) {
    k = of.k + kv * a.sk[1], v = of.v + kv * a.sv[1];
    keysOfMany(a, of, first / (u32)a.share, (first + 127 < rows ? first + 127 : rows - 1) / (u32)a.share, keys, clear);
  }

  // number returns the number of the block. The compiler cannot see that two calls return the same value, so it
  // recomputes values that depend on it after a loop instead of keeping them in registers.
  DEV u32 number() {
#ifdef __CUDA_ARCH__
    u32 n;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(n));
    return n;
#else
    return blockIdx.x;
#endif
  }

  // row returns the thread's first row.
  __device__ __forceinline__ u32 row() const { return first + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4; }

  // asTold computes the rows one by one, according to the definition of attention.
  __device__ __forceinline__ void asTold(const AttentionArgs<B>& a) const {
    for (u32 r = first; r < first + 128 && r < rows; r++) {
      const QueryRow<B> is(a, kv, r);
      attend<T, 1>(a, of, is.query, is.head);
      __syncthreads();
    }
  }
};

// signsOf returns a mask that inverts the signs of a pair of queries if the scale is negative.
template <int B> DEV u32 signsOf(const AttentionArgs<B>& a) { return a.scale < 0 ? 0x80008000u : 0; }

// downBy returns the factor by which sums with the shift own must be scaled down for the larger shift most.
DEV f32 downBy(f32 own, f32 most) { return own == -bitsAs<f32>(0x7f800000u) ? 0 : exp2Of(own - most); }

// FlashQueries holds a lane's part of its warp's queries, as an operand of matrix products.
template <class T, int B, int DH> struct FlashQueries {
  u32 q[DH / 16][4];

  template <class Block> __device__ __forceinline__ FlashQueries(const AttentionArgs<B>& a, const Block& b) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const auto r = b.row() + 8 * h;
      const QueryRow<B> is(a, b.kv, r);
      const T* at = b.of.q + is.query * a.sq[0] + is.head * a.sq[1] + threadIdx.x % 4 * 2;
#pragma unroll
      for (int c = 0; c < DH / 16; c++) {
        q[c][h] = r < b.rows ? *(const u32*)(at + 16 * c) ^ signsOf(a) : 0;
        q[c][h + 2] = r < b.rows ? *(const u32*)(at + 16 * c + 8) ^ signsOf(a) : 0;
      }
    }
  }
};

template <class T, int B, int DH> struct FlashRows {
  f32 scale;    // scale of scores as exponents of 2; the queries contain a negative sign
  int seen[2];  // numbers of keys
  f32 o[DH / 8][4], sum[2];
  f32 shift[2], limit[2];  // shift of exponents; limit of scores that need no larger shift

  template <class Block> __device__ __forceinline__ FlashRows(const AttentionArgs<B>& a, const Block& b) {
    scale = (f32)(a.scale * 1.4426950408889634);
    scale = scale < 0 ? -scale : scale;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const auto r = b.row() + 8 * h;
      const QueryRow<B> is(a, b.kv, r);
      seen[h] = r < b.rows ? (int)keysOf(a, b.of, is.query) : 0;
      if (r < b.rows) checkLength(a, b.of, is.query);
      limit[h] = -bitsAs<f32>(0x7f800000u), shift[h] = 0, sum[h] = 0;
    }
#pragma unroll
    for (int d = 0; d < DH / 8; d++)
#pragma unroll
      for (int e = 0; e < 4; e++) o[d][e] = 0;
  }

  // weigh computes weights from the scores of 8·N keys from key j on. MASKED: not all rows see all of these keys. It
  // returns true, for the whole warp, if the earlier sums must be multiplied by down.
  template <bool MASKED, int N> __device__ __forceinline__ bool weigh(f32 (&s)[N][4], int j, f32 (&down)[2]) {
    const f32 inf = bitsAs<f32>(0x7f800000u);
    int sees[2];  // counted from the thread's first column
#pragma unroll
    for (int h = 0; h < 2; h++) sees[h] = seen[h] - j - (int)(threadIdx.x % 4 * 2);
    if (MASKED)
#pragma unroll
      for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
          if (n * 8 + e % 2 >= sees[e / 2]) s[n][e] = -inf;
    f32 most[2] = {-inf, -inf};
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
      for (int h = 0; h < 2; h++) most[h] = fmaxf(most[h], fmaxf(s[n][2 * h], s[n][2 * h + 1]));
    const bool more = someOfWarp(!(most[0] <= limit[0] && most[1] <= limit[1]));
    if (more) raise(most, down);
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        s[n][e] = MASKED && n * 8 + e % 2 >= sees[e / 2] ? 0 : exp2Of(s[n][e] * scale - shift[e / 2]);
        sum[e / 2] += s[n][e];
      }
    return more;
  }

  // raise changes the shift of a row to its largest score, but only if that exceeds the limit. In most tiles one of a
  // warp's rows has a larger score than before, but after the first tile scores are rarely much larger. Up to the limit
  // weights are at most 2^8, which f16 can represent (FlashAttention-4).
  __device__ __forceinline__ void raise(f32 (&most)[2], f32 (&down)[2]) {
    const f32 inf = bitsAs<f32>(0x7f800000u);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      most[h] = fmaxf(most[h], ofLane(most[h], 1));
      most[h] = fmaxf(most[h], ofLane(most[h], 2));
      down[h] = 1;
      if (!(most[h] > limit[h])) continue;
      const f32 next = most[h] * scale;
      down[h] = limit[h] == -inf ? 0 : exp2Of(shift[h] - next);
      shift[h] = next, limit[h] = (next + 8) / scale;
      sum[h] *= down[h];
    }
  }

  // shifted returns the shift of a row; minus infinity if the row saw no keys.
  __device__ __forceinline__ f32 shifted(int h) const { return limit[h] == -bitsAs<f32>(0x7f800000u) ? limit[h] : shift[h]; }

  __device__ __forceinline__ void scaleDown(const f32 (&down)[2]) {
#pragma unroll
    for (int d = 0; d < DH / 8; d++)
#pragma unroll
      for (int e = 0; e < 4; e++) o[d][e] *= down[e / 2];
  }

  // total adds the sums of weights that different lanes have for the same row.
  __device__ __forceinline__ void total() {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      sum[h] += ofLane(sum[h], 1);
      sum[h] += ofLane(sum[h], 2);
    }
  }

  // store must be called after total.
  template <class Block> __device__ __forceinline__ void store(const AttentionArgs<B>& a, const Block& b) const {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const auto r = b.row() + 8 * h;
      if (r >= b.rows) continue;
      const QueryRow<B> is(a, b.kv, r);
      T* to = b.of.out + is.query * a.so[0] + is.head * a.so[1] + threadIdx.x % 4 * 2;
#pragma unroll
      for (int d = 0; d < DH / 8; d++) *(u32*)(to + 8 * d) = seen[h] > 0 ? pair<T>(o[d][2 * h] / sum[h], o[d][2 * h + 1] / sum[h]) : 0;
    }
  }
};

// operand converts the weights of 16 keys to an operand, which is multiplied with the values of these keys.
template <class T> DEV void operand(u32 (&w)[4], const f32 (&s)[4], const f32 (&t)[4]) {
  w[0] = pair<T>(s[0], s[1]), w[1] = pair<T>(s[2], s[3]);
  w[2] = pair<T>(t[0], t[1]), w[3] = pair<T>(t[2], t[3]);
}

// FlashWhole is a block that processes all keys.
template <class T, int B, int DH> struct FlashWhole : FlashBlock<T, B> {
  typedef AttentionArgs<B> Args;
  __device__ __forceinline__ FlashWhole(const Args& a) : FlashBlock<T, B>(a) {}
  DEV const AttentionArgs<B>& attention(const Args& a) { return a; }
  __device__ __forceinline__ void narrow(FlashRows<T, B, DH>&) const {}
  __device__ __forceinline__ void keep(const Args& a, const FlashRows<T, B, DH>& r) const { r.store(a, *this); }
  __device__ __forceinline__ void asTold(const Args& a, const FlashRows<T, B, DH>&) const { FlashBlock<T, B>::asTold(a); }
};
