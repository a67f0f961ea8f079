// Designs that were slower than skinny.cuh. Their sums are in other orders, so their bits differ.

// A: weights straight to registers; 16 rows of w a block; columns permuted so that a lane's 16 bytes are operands.
DEV Pack<u32, 4> load16(const void* p) {
  Pack<u32, 4> v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.v[0]), "=r"(v.v[1]), "=r"(v.v[2]), "=r"(v.v[3]) : "l"(p));
  return v;
}
template <int U> struct RegBatch { Pack<u32, 4> w[U][2][2]; };
struct DesignArgs { u64 out, x, w, bias, residual; i64 m, n, k, om, xm, wn, rm, constant; };

template <class T, int ROWS, int U, int WARPS> DEV void regs(const DesignArgs& a) {
  __shared__ f32 sums[WARPS][ROWS][20];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4, k = (int)a.k;
  const int n0 = blockIdx.x * 16, turns = (k + 64 * WARPS * U - 1) / (64 * WARPS * U);
  const T* w = (const T*)a.w + (i64)(n0 + g) * a.wn + c * 8;
  const T* x = (const T*)a.x + (i64)g * a.xm + c * 8;
  let();
  RegBatch<U> now, next;
  auto load = [&](RegBatch<U>& b, int turn) {
#pragma unroll
    for (int u = 0; u < U; u++)
#pragma unroll
      for (int h = 0; h < 2; h++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
          const int col = ((turn * U + u) * WARPS + warp) * 64 + h * 32;
          b.w[u][h][r] = col < k ? load16(w + (i64)r * 8 * a.wn + col) : Pack<u32, 4>{};
        }
  };
  if (!a.constant) settle();
  load(now, 0);
  if (a.constant) settle();
  f32 acc[ROWS / 8][4] = {};
  for (int turn = 0; turn < turns; turn++) {
    Pack<u32, 4> xs[U][2][ROWS / 8];
#pragma unroll
    for (int u = 0; u < U; u++)
#pragma unroll
      for (int h = 0; h < 2; h++)
#pragma unroll
        for (int q = 0; q < ROWS / 8; q++) {
          const int col = ((turn * U + u) * WARPS + warp) * 64 + h * 32;
          xs[u][h][q] = col < k && g + 8 * q < a.m ? *(const Pack<u32, 4>*)(x + (i64)8 * q * a.xm + col) : Pack<u32, 4>{};
        }
    load(next, turn + 1);
#pragma unroll
    for (int u = 0; u < U; u++)
#pragma unroll
      for (int h = 0; h < 2; h++)
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
          const u32 wa[4] = {now.w[u][h][0].v[e], now.w[u][h][1].v[e], now.w[u][h][0].v[e + 1], now.w[u][h][1].v[e + 1]};
#pragma unroll
          for (int q = 0; q < ROWS / 8; q++) product<T>(acc[q], wa, xs[u][h][q].v[e], xs[u][h][q].v[e + 1]);
        }
    now = next;
  }
#pragma unroll
  for (int q = 0; q < ROWS / 8; q++)
#pragma unroll
    for (int e = 0; e < 4; e++) sums[warp][q * 8 + c * 2 + e % 2][g + e / 2 * 8] = acc[q][e];
  __syncthreads();
  for (int i = threadIdx.x; i < (int)a.m * 16; i += WARPS * 32) {
    f32 s = 0;
#pragma unroll
    for (int v = 0; v < WARPS; v++) s += sums[v][i / 16][i % 16];
    ((T*)a.out)[(i64)(i / 16) * a.om + n0 + i % 16] = Num<T>::put(s);
  }
}

// C: bulk copies of 1 KiB of a row by a warp that does nothing else; eight warps share each stage's columns.
DEV void barInit(u32 b, u32 n) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(b), "r"(n) : "memory"); }
DEV void barExpect(u32 b, u32 n) { asm volatile("{ .reg .b64 t; mbarrier.arrive.expect_tx.shared::cta.b64 t, [%0], %1; }" ::"r"(b), "r"(n) : "memory"); }
DEV void barArrive(u32 b) { asm volatile("{ .reg .b64 t; mbarrier.arrive.shared::cta.b64 t, [%0]; }" ::"r"(b) : "memory"); }
DEV void barWait(u32 b, u32 parity) {
  u32 open;
  int polls = 0;
  do {
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }" : "=r"(open) : "r"(b), "r"(parity) : "memory");
    if (!open && ++polls > (1 << 22)) asm volatile("trap;");
  } while (!open);
}
DEV void bulk(u32 to, const void* from, u32 bytes, u32 b) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes), "r"(b) : "memory");
}
template <int ROWS, int TILES, int STEPS> union BulkRoom {
  struct { u8 w[STEPS][TILES * 16][1040], x[STEPS][ROWS][1040]; u64 full[STEPS], empty[STEPS]; } t;
  f32 sums[8][ROWS][TILES * 16 + 4];
};
template <class T, int ROWS, int TILES, int STEPS> DEV void bulked(const DesignArgs& a) {
  BulkRoom<ROWS, TILES, STEPS>& room = roomOf<BulkRoom<ROWS, TILES, STEPS>>();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, m = (int)a.m;
  const int n0 = blockIdx.x * TILES * 16, turns = (int)a.k / 512;
  let();
  if (threadIdx.x == 0) {
    for (int s = 0; s < STEPS; s++) barInit(spotOf(&room.t.full[s]), 1), barInit(spotOf(&room.t.empty[s]), 8);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  for (int i = threadIdx.x; i < STEPS * ROWS * 65; i += 288) ((Pack<u32, 4>*)room.t.x)[i] = Pack<u32, 4>{};
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  f32 c[TILES][ROWS / 8][4] = {};
  if (warp == 8) {
    auto begin = [&](int turn) {
      if (lane == 0) barExpect(spotOf(&room.t.full[turn % STEPS]), (TILES * 16 + m) * 1024);
      __syncwarp();
    };
    auto weights = [&](int turn) {
      for (int r = lane; r < TILES * 16; r += 32) bulk(spotOf(room.t.w[turn % STEPS][r]), (const T*)a.w + (i64)(n0 + r) * a.wn + turn * 512, 1024, spotOf(&room.t.full[turn % STEPS]));
    };
    auto input = [&](int turn) {
      if (lane < m) bulk(spotOf(room.t.x[turn % STEPS][lane]), (const T*)a.x + (i64)lane * a.xm + turn * 512, 1024, spotOf(&room.t.full[turn % STEPS]));
    };
    if (!a.constant) settle();
    for (int s = 0; s < STEPS && s < turns; s++) begin(s), weights(s);
    if (a.constant) settle();
    for (int s = 0; s < STEPS && s < turns; s++) input(s);
    for (int t = STEPS; t < turns; t++) {
      barWait(spotOf(&room.t.empty[t % STEPS]), (t / STEPS - 1) & 1);
      begin(t), weights(t), input(t);
    }
  } else {
    settle();
    for (int t = 0; t < turns; t++) {
      const int s = t % STEPS;
      barWait(spotOf(&room.t.full[s]), t / STEPS & 1);
      const u8 *w = room.t.w[s][0] + warp * 128, *x = room.t.x[s][0] + warp * 128;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        u32 xs[4];
        if (ROWS == 16 || i % 2 == 0) fourTiles<false>(xs, (const Pack<u32, 4>*)(ROWS == 16 ? x + (lane / 16 * 8 + lane % 8) * 1040 + i * 32 + lane / 8 % 2 * 16 : x + lane % 8 * 1040 + i * 32 + lane / 8 * 16));
        static_assert(ROWS == 8 || ROWS == 16, "");
        u32 keep[2];
        if (ROWS == 8 && i % 2 == 0) keep[0] = xs[2], keep[1] = xs[3];
#pragma unroll
        for (int r = 0; r < TILES; r++) {
          u32 ws[4];
          fourTiles<false>(ws, (const Pack<u32, 4>*)(w + (r * 16 + lane % 16) * 1040 + i * 32 + lane / 16 * 16));
          product<T>(c[r][0], ws, xs[0], xs[1]);
          if constexpr (ROWS == 16) product<T>(c[r][1], ws, xs[2], xs[3]);
        }
        if (ROWS == 8 && i % 2 == 0) {
          i++;
#pragma unroll
          for (int r = 0; r < TILES; r++) {
            u32 ws[4];
            fourTiles<false>(ws, (const Pack<u32, 4>*)(w + (r * 16 + lane % 16) * 1040 + i * 32 + lane / 16 * 16));
            product<T>(c[r][0], ws, keep[0], keep[1]);
          }
        }
      }
      __syncwarp();
      if (lane == 0) barArrive(spotOf(&room.t.empty[s]));
    }
  }
  __syncthreads();
  if (warp < 8) {
#pragma unroll
    for (int r = 0; r < TILES; r++)
#pragma unroll
      for (int q = 0; q < ROWS / 8; q++)
#pragma unroll
        for (int e = 0; e < 4; e++) room.sums[warp][q * 8 + lane % 4 * 2 + e % 2][r * 16 + lane / 4 + e / 2 * 8] = c[r][q][e];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < m * TILES * 16; i += 288) {
    const int row = i / (TILES * 16), at = i % (TILES * 16);
    f32 s = 0;
#pragma unroll
    for (int v = 0; v < 8; v++) s += room.sums[v][row][at];
    ((T*)a.out)[(i64)row * a.om + n0 + at] = Num<T>::put(s);
  }
}
