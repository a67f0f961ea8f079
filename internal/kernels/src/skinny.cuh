// out = x·wᵀ for x of 1 to 32 rows: a GEMM whose time is that of reading w. A block has TILES times eight rows of w and
// all columns. Its warps process the columns cyclically, 64 at a time; such a group of columns is called a turn. Each
// warp loads its part of w and x to shared memory STEPS-1 turns ahead, and only for itself. At the end the block adds
// the sums of its warps in their order. The bits therefore depend only on k and WARPS. A row of the result has the same
// bits with and without other rows, and no bit depends on the number of tiles, steps or multiprocessors.
//
// Several linears of one x can be computed by one grid. Each has a separate weight and result. A block has rows of only
// one weight, and the results have the same bits as in separate launches. For skinnySiluMul the result is silu(x·wᵀ)
// times x·upᵀ. If x has more than ROWS rows, ROWS is 32, each block has ROWS of them, and blocks with the same rows of
// a weight have consecutive numbers. The bits of a row do not depend on the number of rows. SEVERAL: there are several
// linears, or more than ROWS rows.
//
// If w is constant, the kernel begins to read it before the previous kernel has ended, provided that it is launched
// with programmatic dependent launch. LATE: the next kernel may begin only when all reads of w are in flight; this is
// for blocks of which a multiprocessor holds only one.

enum { skinnyStore, skinnyRelu, skinnySiluMul };

struct SkinnyPart {
  u64 out, w, up;
  u64 bias;         // 0 for none
  i64 n;            // rows of w, and of up
  i64 om, wn, upn;  // strides from row to row; rows have no gaps
  i64 first;        // the part's first block
};

enum { skinnyParts = 3 };  // largest number of parts

struct SkinnyArgs {
  u64 x;
  i64 m, k;
  i64 xm;        // stride from row to row
  i64 constant;  // not 0: no earlier kernel that may still be running writes a weight
  i64 slices;    // number of slices of ROWS rows
  SkinnyPart part[skinnyParts];
};

// skinnyPart returns the part of a block; the block's number does not count slices.
template <bool SEVERAL> DEV SkinnyPart skinnyPart(const SkinnyArgs& a, i64 block) {
  if constexpr (!SEVERAL) return a.part[0];
  return block < a.part[1].first ? a.part[0] : block < a.part[2].first ? a.part[1] : a.part[2];
}

// let permits the next kernel on the stream to begin early, after all blocks of this kernel have called let. The next
// kernel must itself wait for the end of this kernel.
DEV void let() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// SkinnyTurn holds the data that a warp loads for a turn, in rows of eight pieces of 16 bytes. The pieces are permuted
// within a row, so that the pieces of eight rows are in different banks.
template <int ROWS, int TILES> struct SkinnyTurn {
  Pack<u32, 4> w[TILES * 8 * 8], x[ROWS * 8];

  DEV int at(int row, int piece) { return row * 8 + (piece ^ row % 8); }
};

// SkinnyRoom is the block's dynamic shared memory: a ring of turns for each warp and, at the end, their sums.
template <int ROWS, int TILES, int WARPS, int STEPS> union SkinnyRoom {
  SkinnyTurn<ROWS, TILES> turns[WARPS][STEPS];
  f32 sums[WARPS][ROWS][TILES * 8 + 8];
};

template <class T, int ROWS, int TILES, int WARPS, int STEPS, int EPILOGUE, bool SEVERAL> struct Skinny {
  static constexpr bool gated = EPILOGUE == skinnySiluMul;
  static constexpr int columns = (gated ? TILES / 2 : TILES) * 8;  // columns of the result
  // groups of rows; each group is an operand of tensor cores
  static constexpr int groups = (ROWS + 15) / 16;
  static_assert(!gated || TILES % 2 == 0, "half of the tiles are factors of the other half");
  const SkinnyArgs& a;
  const i64 slice, block;  // index of the group of x's rows; index of the block within the group
  const SkinnyPart p;
  SkinnyRoom<ROWS, TILES, WARPS, STEPS>& room;
  i64 from;                 // the block's first column of the result
  int lane, warp, m, n, k;  // n: number of columns of the result from column from on

  __device__ __forceinline__ Skinny(const SkinnyArgs& a)
      : a(a), slice(SEVERAL ? blockIdx.x % a.slices : 0), block(SEVERAL ? blockIdx.x / a.slices : blockIdx.x), p(skinnyPart<SEVERAL>(a, block)), room(roomOf<SkinnyRoom<ROWS, TILES, WARPS, STEPS>>()), from((block - p.first) * columns), lane(threadIdx.x % 32), warp(sameForWarp(threadIdx.x / 32)), m((int)(SEVERAL ? least(a.m - slice * ROWS, (i64)ROWS) : a.m)), n((int)(p.n - from)), k((int)a.k) {}

  // column returns the column at which the lane's part of a turn begins; a lane loads 16 bytes of every fourth row.
  __device__ __forceinline__ int column(int turn) const { return (turn * WARPS + warp) * 64 + lane % 8 * 8; }

  // weights starts to load a turn's part of w for the given step, with zeros outside of w. If gated, the second half of
  // the rows belongs to the weight up.
  __device__ __forceinline__ void weights(int turn, int step) const {
    SkinnyTurn<ROWS, TILES>& to = room.turns[warp][step];
    const int col = column(turn), row = lane / 8;
    const T* w = (const T*)p.w + (from + row) * p.wn + col;
    const T* up = gated ? (const T*)p.up + (from + row) * p.upn + col : w;
#pragma unroll
    for (int i = 0; i < TILES * 8; i += 4) {
      const bool there = i % columns + row < n && col < k;
      copy16(spotOf(&to.w[to.at(i + row, lane % 8)]), there ? i < columns ? w + i * p.wn : up + (i - columns) * p.upn : (const T*)p.w, there);
    }
  }

  // input does the same for x.
  __device__ __forceinline__ void input(int turn, int step) const {
    SkinnyTurn<ROWS, TILES>& to = room.turns[warp][step];
    const int col = column(turn), row = lane / 8;
#pragma unroll
    for (int i = 0; i < ROWS; i += 4) {
      const bool there = i + row < m && col < k;
      copy16(spotOf(&to.x[to.at(i + row, lane % 8)]), there ? (const T*)a.x + (slice * ROWS + i + row) * a.xm + col : (const T*)a.x, there);
    }
  }

  // multiply adds a turn's products to c. With eight rows, half of an operand is zero.
  __device__ __forceinline__ void multiply(f32 (&c)[groups][TILES][4], int step) const {
    const SkinnyTurn<ROWS, TILES>& t = room.turns[warp][step];
    u32 x[groups][4][4];
#pragma unroll
    for (int g = 0; g < groups; g++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        if constexpr (ROWS >= 16) fourTiles<false>(x[g][i], &t.x[t.at(g * 16 + lane % 16, 2 * i + lane / 16)]);
        else if (i % 2 == 0) {
          u32 four[4];
          fourTiles<false>(four, &t.x[t.at(lane % 8, 2 * i + lane / 8)]);
#pragma unroll
          for (int h = 0; h < 2; h++) x[g][i + h][0] = four[2 * h], x[g][i + h][2] = four[2 * h + 1], x[g][i + h][1] = x[g][i + h][3] = 0;
        }
      }
#pragma unroll
    for (int r = 0; r < TILES; r++) {
      u32 w[2][4];
#pragma unroll
      for (int h = 0; h < 2; h++) fourTiles<false>(w[h], &t.w[t.at(r * 8 + lane % 8, 4 * h + lane / 8)]);
#pragma unroll
      for (int g = 0; g < groups; g++)
#pragma unroll
        for (int i = 0; i < 4; i++) product<T>(c[g][r], x[g][i], w[i / 2][i % 2 * 2], w[i / 2][i % 2 * 2 + 1]);
    }
  }

  // tell stores the warp's sums for the block.
  __device__ __forceinline__ void tell(const f32 (&c)[groups][TILES][4]) const {
#pragma unroll
    for (int r = 0; r < TILES; r++)
#pragma unroll
      for (int h = 0; h < ROWS / 8; h++) *(Pack<f32, 2>*)&room.sums[warp][h * 8 + lane / 4][r * 8 + lane % 4 * 2] = Pack<f32, 2>{{c[h / 2][r][h % 2 * 2], c[h / 2][r][h % 2 * 2 + 1]}};
  }

  // sum returns the product of a row of x with the block's weight row at, plus the bias if there is one.
  __device__ __forceinline__ f32 sum(int row, int at, u64 bias, i64 column) const {
    f32 s = room.sums[0][row][at];
#pragma unroll
    for (int w = 1; w < WARPS; w++) s += room.sums[w][row][at];
    return Num<T>::get(Num<T>::put(bias ? add(s, Num<T>::get(((const T*)bias)[column])) : s));
  }

  // store applies the epilogue, which rounds as if each of its operations were a separate kernel.
  __device__ __forceinline__ void store() const {
    for (int i = threadIdx.x; i < m * columns; i += WARPS * 32) {
      const int row = i / columns, at = i % columns;
      if (at >= n) continue;
      const i64 column = from + at;
      f32 v = sum(row, at, p.bias, column);
      if constexpr (gated) v = mul(Num<T>::get(Num<T>::put(silu(v))), sum(row, at + columns, 0, column));
      if constexpr (EPILOGUE == skinnyRelu) v = most(v, 0.f);
      ((T*)p.out)[(slice * ROWS + row) * p.om + column] = Num<T>::put(v);
    }
  }
};

template <class T, int ROWS, int TILES, int WARPS, int STEPS, bool LATE, int EPILOGUE, bool SEVERAL> DEV void skinny(const SkinnyArgs& a) {
  if constexpr (!LATE) let();
  if (!a.constant) settle();
  const Skinny<T, ROWS, TILES, WARPS, STEPS, EPILOGUE, SEVERAL> b(a);
#pragma unroll
  for (int s = 0; s < STEPS - 1; s++) b.weights(s, s), endCopies();
  if (a.constant) settle();
#pragma unroll
  for (int s = 0; s < STEPS - 1; s++) b.input(s, s), endCopies();
  f32 c[b.groups][TILES][4];
#pragma unroll
  for (int i = 0; i < b.groups * TILES * 4; i++) c[i / 4 / TILES][i / 4 % TILES][i % 4] = 0;
  const int turns = (b.k + 64 * WARPS - 1) / (64 * WARPS);
  int at = 0, free = STEPS - 1;
  for (int turn = 0; turn < turns; turn++) {
    if (LATE && turn + STEPS >= turns) let();  // all reads of w are in flight
    b.weights(turn + STEPS - 1, free), b.input(turn + STEPS - 1, free), endCopies();
    awaitCopies<STEPS - 1>();
    meetWarp();
    b.multiply(c, at);
    meetWarp();
    free = at;
    at = at + 1 < STEPS ? at + 1 : 0;
  }
  awaitCopies();
  __syncthreads();
  b.tell(c);
  __syncthreads();
  b.store();
}
