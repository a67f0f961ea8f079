// Attention by the tensor cores of Hopper: that of flash, but queries, keys and values are multiplied
// where they are in shared memory, the scores of the next KEYS keys beside the sums of these
// keys' values, and the next weights are computed while those sums are under way
// (FlashAttention-3, within a warpgroup; Shah et al., 2024; arXiv 2407.08608). Keys and
// values are brought a tile ahead.

template <int DH, int KEYS> struct HopperTile {
  static constexpr int chunks = DH / 8, rows = 256 / chunks;  // that the block brings at once
  Panel<KEYS> panel[DH / 64];

  DEV int place(int r, int c) { return c / 8 * (KEYS * 8) + r * 8 + (c % 8 ^ r % 8); }

  // load begins to bring KEYS rows, zeros for those from the nth on: at is where the thread's
  // first piece is, next where that of the next tile will be.
  template <class T> __device__ __forceinline__ void load(const T*& at, i64 stride, int n) {
    const int r = threadIdx.x / chunks, c = threadIdx.x % chunks;
    Spot to = spotOf(panel[0].at + place(r, c));
    if (n >= KEYS) {
#pragma unroll
      for (int i = 0; i < KEYS; i += rows, at += rows * stride) copy16(to + i * 128, at, true);
      return;
    }
    const T* some = at - r * stride;  // which is there
#pragma unroll 1
    for (int i = r; i < KEYS; i += rows, at += rows * stride, to += rows * 128) copy16(to, i < n ? at : some, i < n);
  }

  // finite reports whether the thread finds nothing else among its part of the rows.
  template <class T> __device__ __forceinline__ bool finite() const {
    bool all = true;
    for (int i = threadIdx.x; i < KEYS * chunks; i += 256) all = all && finiteIn<T>(panel[0].at[i]);
    return all;
  }
};

template <int DH, int KEYS> struct HopperRoom {
  HopperTile<DH, KEYS> k[2], v[2];
  Panel<128> q[DH / 64];
};

// hopperRoom is the block's dynamic shared memory.
template <class R> DEV R& hopperRoom() {
#ifdef __CUDA_ARCH__
  extern __shared__ Pack<u32, 4> hopperShared[];
  return *(R*)(((u64)hopperShared + 1023) & ~1023ull);
#else
  alignas(1024) static R room;
  return room;
#endif
}

template <class T, int B, int DH, int KEYS> struct Hopper {
  const AttentionArgs<B>& a;
  const FlashBlock<T, B>& b;
  FlashRows<T, B, DH>& r;
  HopperRoom<DH, KEYS>& room;
  int& odd;
  const T *k, *v;  // where the thread's first pieces of the next tiles are
  f32 s[KEYS / 8][4];
  f32 down[2];
  u32 w[KEYS / 16][4];  // weights of the tile whose values are added up

  __device__ __forceinline__ Hopper(const AttentionArgs<B>& a, const FlashBlock<T, B>& b, FlashRows<T, B, DH>& r, HopperRoom<DH, KEYS>& room, int& odd) : a(a), b(b), r(r), room(room), odd(odd) {
    constexpr int chunks = HopperTile<DH, KEYS>::chunks;
    k = b.k + threadIdx.x / chunks * a.sk[0] + threadIdx.x % chunks * 8;
    v = b.v + threadIdx.x / chunks * a.sv[0] + threadIdx.x % chunks * 8;
  }

  // keep puts the queries into shared memory.
  __device__ __forceinline__ void keep() {
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
    for (int c = 0; c < DH / 8; c++)
#pragma unroll
      for (int h = 0; h < 2; h++) ((u32*)&room.q[c / 8].at[(row + 8 * h) * 8 + (c % 8 ^ row % 8)])[threadIdx.x % 4] = r.q[c / 2][h + c % 2 * 2];
  }

  // bringKeys and bringValues begin to bring tile t, if there is one.
  __device__ __forceinline__ void bringKeys(int t) {
    if (t * KEYS < b.keys) room.k[t % 2].load(k, a.sk[0], b.keys - t * KEYS);
  }
  __device__ __forceinline__ void bringValues(int t) {
    if (t * KEYS < b.keys) room.v[t % 2].load(v, a.sv[0], b.keys - t * KEYS);
  }

  // meet waits for what was brought, but for the LEFT last groups, and for all who read what will be
  // overwritten.
  template <int LEFT = 0> __device__ __forceinline__ void meet() {
    awaitCopies<LEFT>();
    publish();
    __syncthreads();
  }

  // hides reports whether values of tile t that are hidden from some rows are not all finite:
  // a weight of zero hides only what is.
  __device__ __forceinline__ bool hides(int t) {
    if (!a.causal || (t + 1) * KEYS <= b.clear) return false;
    if (!room.v[t % 2].template finite<T>()) odd = 1;
    __syncthreads();
    return odd;
  }

  __device__ __forceinline__ void scores(int t) {
    const Corner q = cornerOf(room.q[0].at + threadIdx.x / 128 * 512), k = cornerOf(room.k[t % 2].panel[0].at);
#pragma unroll
    for (int c = 0; c < DH / 16; c++) scoreProduct<T, KEYS>(s, q + c / 4 * 1024 + c % 4 * 2, k + c / 4 * (KEYS * 8) + c % 4 * 2, c > 0);
    endProducts();
  }

  __device__ __forceinline__ void values(int t) {
    const Corner v = cornerOf(room.v[t % 2].panel[0].at);
#pragma unroll
    for (int n = 0; n < KEYS / 16; n++) sumProduct<T, DH, KEYS * 8>(r.o, w[n], v + n * 128);
    endProducts();
  }

  // added waits for the sums of a tile, and has the weights of the next ready.
  __device__ __forceinline__ void added() {
    awaitProducts<0>();
    hold(r.o);
    if (!__all_sync(0xffffffffu, down[0] == 1 && down[1] == 1)) r.scaleDown(down);
#pragma unroll
    for (int n = 0; n < KEYS / 16; n++) operand<T>(w[n], s[2 * n], s[2 * n + 1]);
    hold(r.o);
  }

  template <bool MASKED> __device__ __forceinline__ void first() {
    beginProducts();
    scores(0);
    awaitProducts<0>();
    hold(s);
    r.template weigh<MASKED>(s, 0, down);
  }

  // step begins to add up the values of tile t and makes the weights of the next, of which not all
  // rows see all if MASKED. It is false where hides is true. The wait for the sums is the
  // next step's: the assembler would have it before the weights were it behind them here.
  template <bool MASKED> __device__ __forceinline__ bool step(int t) {
    added();
    meet();
    if (MASKED && hides(t)) return false;
    bringKeys(t + 2);
    bringValues(t + 1);
    endCopies();
    beginProducts();
    scores(t + 1);
    values(t);
    awaitProducts<1>();
    hold(s);
    r.template weigh<MASKED>(s, (t + 1) * KEYS, down);
    return true;
  }

  __device__ __forceinline__ bool last(int t) {
    added();
    meet();
    if (hides(t)) return false;
    beginProducts();
    values(t);
    awaitProducts<0>();
    hold(r.o);
    return true;
  }
};

template <class T, int B, int DH, int KEYS> DEV void flashHopper(const AttentionArgs<B>& a) {
  const FlashBlock<T, B> b(a);
  __shared__ int odd;
  if (threadIdx.x == 0) odd = 0;
  HopperRoom<DH, KEYS>& room = hopperRoom<HopperRoom<DH, KEYS>>();
  FlashRows<T, B, DH> r(a, b);
  Hopper<T, B, DH, KEYS> h(a, b, r, room, odd);
  h.bringKeys(0);
  endCopies();
  h.bringKeys(1);
  h.bringValues(0);
  endCopies();
  h.keep();
  h.template meet<1>();
  if (KEYS <= b.clear) h.template first<false>();
  else h.template first<true>();
  int t = 0;
  bool good = true;
  for (; (t + 2) * KEYS <= b.clear; t++) h.template step<false>(t);
  for (; good && (t + 1) * KEYS < b.keys; t++) good = h.template step<true>(t);
  if (good) good = h.last(t);
  awaitCopies();
  const FlashBlock<T, B> again(a);
  if (good) r.store(a, again);
  else again.asTold(a);
}
