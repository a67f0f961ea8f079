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
// linears, or more than ROWS rows. LOOP: the grid has as many blocks as run at once, and each computes the columns of
// several blocks, gridDim.x blocks apart.
//
// A weight of type f8e4m3 has scales, and so may x. A turn then has 128 columns, which are the same number of bytes of
// w: the elements of w are converted to x's type, the products of a turn are added up, and the sum is multiplied by the
// scales of its row of x and its row of w. HALF: bf16 elements of x are converted to f16 instead, because GPUs from sm_89
// on convert f8e4m3 to f16 by one instruction for two elements, but to bf16 by four. A row of a turn is multiplied by the
// power of two that brings its largest element close to f16's largest. Elements of at least 2^-30 times the largest one
// are converted exactly. The error of others is at most 2^-39 times the largest one.
//
// If w is constant, the kernel begins to read it before the previous kernel has ended, provided that it is launched
// with programmatic dependent launch. LATE: the next kernel may begin only when all reads of w are in flight; this is
// for blocks of which a multiprocessor holds only one.

enum { skinnyStore, skinnyRelu, skinnySiluMul };

// SkinnyScale holds scales. The scale of an element is that of its row, divided by a power of two, and of its turn.
struct SkinnyScale {
  u64 at;
  i64 shift;      // binary logarithm of the number of rows that share a scale
  i64 row, turn;  // strides; 0 if all rows, or all columns of a row, share a scale

  __device__ __forceinline__ const f32* of(i64 i, int j) const { return (const f32*)at + ((i >> shift) * row + j * turn); }
};

struct SkinnyPart {
  u64 out, w, up;
  u64 bias;         // 0 for none
  i64 n;            // rows of w, and of up
  i64 om, wn, upn;  // strides from row to row; rows have no gaps
  i64 first;        // the part's first block
  SkinnyScale sw, sup;
};

enum { skinnyParts = 3 };  // largest number of parts

struct SkinnyArgs {
  u64 x;
  i64 m, k;
  i64 xm;        // stride from row to row
  i64 constant;  // not 0: no earlier kernel that may still be running writes a weight
  i64 slices;    // number of slices of ROWS rows
  SkinnyScale sx;
  SkinnyPart part[skinnyParts];
};

// skinnyPart returns the part of a block; the block's number does not count slices.
template <bool SEVERAL> DEV SkinnyPart skinnyPart(const SkinnyArgs& a, i64 block) {
  if constexpr (!SEVERAL) return a.part[0];
  return block < a.part[1].first ? a.part[0] : block < a.part[2].first ? a.part[1] : a.part[2];
}

// widen converts four numbers of type f8e4m3 to T, two in each word. GPUs from sm_89 on convert to f16 themselves. For
// others, it moves exponent and mantissa to their places in T, where they stand for a number that is too small by a power
// of two, and multiplies by that power, which is exact. This does not convert NaN: bits 7, 15, 23 and 31 of nan are set
// for numbers that are NaN.
template <class T> DEV void widen(u32 (&to)[2], u32 four, u32& nan) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#pragma unroll
  for (int i = 0; i < 2; i++) {
    u32 half;
    asm("{ .reg .b16 lo, hi; mov.b32 {lo, hi}, %1; cvt.rn.f16x2.e4m3x2 %0, lo; }" : "=r"(half) : "r"(i ? four >> 16 : four));
    if constexpr (IsBF16<T>::yes) {
      f32 x, y;
      asm("{ .reg .b16 lo, hi; mov.b32 {lo, hi}, %2; cvt.f32.f16 %0, lo; cvt.f32.f16 %1, hi; }" : "=f"(x), "=f"(y) : "r"(half));
      half = pair<T>(x, y);
    }
    to[i] = half;
  }
#else
  constexpr int shift = IsBF16<T>::yes ? 4 : 1;
  const u32 pairs[2] = {(four & 0xff) << 8 | (four & 0xff00) << 16, (four >> 8 & 0xff00) | (four & 0xff000000)};
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const u32 small = (pairs[i] & 0x80008000u) | (pairs[i] & 0x7f007f00u) >> shift;
#ifdef __CUDA_ARCH__
    if constexpr (IsBF16<T>::yes) asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(to[i]) : "r"(small), "r"(0x7b807b80u), "r"(0x80008000u));
    else asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(to[i]) : "r"(small), "r"(0x5c005c00u));
#else
    T lo, hi;
    lo.bits = (u16)small, hi.bits = (u16)(small >> 16);
    const f32 by = IsBF16<T>::yes ? 0x1p120f : 0x1p8f;
    to[i] = pair<T>(Num<T>::get(lo) * by, Num<T>::get(hi) * by);
#endif
  }
  nan |= ((four & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u;
#endif
}

// SkinnyTurn holds the data that a warp loads for a turn, in rows of 16-byte pieces: eight for w, and XP for x. The pieces
// are permuted within a row, so that the pieces of eight rows are in different banks.
template <int ROWS, int TILES, int XP> struct SkinnyTurn {
  Pack<u32, 4> w[TILES * 8 * 8], x[ROWS * XP];

  DEV int at(int row, int piece) { return row * 8 + (piece ^ row % 8); }
  DEV int atX(int row, int piece) { return row * XP + (piece ^ row % 8); }
};

// SkinnyScaledTurn also holds the scales of the rows.
template <int ROWS, int TILES, int XP> struct SkinnyScaledTurn : SkinnyTurn<ROWS, TILES, XP> {
  alignas(128) f32 ofW[TILES * 8];
  f32 ofX[ROWS];
};

template <bool FIRST, class A, class B> struct Choice { typedef A Type; };
template <class A, class B> struct Choice<false, A, B> { typedef B Type; };

// SkinnyRoom is the block's dynamic shared memory: a ring of turns for each warp, and their sums. The sums have separate
// memory if the block then goes on to other rows of w (LOOP), whose turns are already being loaded.
template <class Turn, int ROWS, int TILES, int WARPS, int STEPS, bool LOOP> union SkinnyRoom {
  Turn turns[WARPS][STEPS];
  f32 sums[WARPS][ROWS][TILES * 8 + 8];
};
template <class Turn, int ROWS, int TILES, int WARPS, int STEPS> union SkinnyRoom<Turn, ROWS, TILES, WARPS, STEPS, true> {
  struct {
    Turn turns[WARPS][STEPS];
    f32 sums[WARPS][ROWS][TILES * 8 + 8];
  };
};

template <class T, class W, bool HALF, int ROWS, int TILES, int WARPS, int STEPS, int EPILOGUE, bool SEVERAL, bool LOOP> struct Skinny {
  static constexpr bool scaled = sizeof(W) == 1;
  typedef typename Choice<HALF, f16, T>::Type X;  // type of the operands of tensor cores
  static constexpr int turn = 128 / sizeof(W);  // columns of a turn
  static constexpr int pieces = turn / 8;       // of a row of x
  static constexpr int rows = HALF ? 4 : ROWS;  // largest number of rows of x
  typedef typename Choice<scaled, SkinnyScaledTurn<ROWS, TILES, pieces>, SkinnyTurn<ROWS, TILES, pieces>>::Type Turn;
  typedef SkinnyRoom<Turn, ROWS, TILES, WARPS, STEPS, LOOP> Room;
  static constexpr bool gated = EPILOGUE == skinnySiluMul;
  static constexpr int columns = (gated ? TILES / 2 : TILES) * 8;  // columns of the result
  // groups of rows; each group is an operand of tensor cores
  static constexpr int groups = (ROWS + 15) / 16;
  // turned: two tiles of w are the first operand of tensor cores, which has 16 rows, and x is the second one, which has 8
  static constexpr bool turned = scaled && ROWS == 8;
  static constexpr int results = turned ? TILES / 2 : groups * TILES;  // of tensor cores
  typedef f32 Sums[results][4];
  static_assert(!scaled || TILES <= 4, "a lane loads one scale");
  static_assert(!turned || TILES % 2 == 0, "two tiles are an operand");
  static_assert(!HALF || (scaled && IsBF16<T>::yes), "without scales a turn has no factor");
  static_assert(!gated || TILES % 2 == 0, "half of the tiles are factors of the other half");
  const SkinnyArgs& a;
  const i64 slice, block;  // index of the group of x's rows; index of the block within the group
  const SkinnyPart p;
  Room& room;
  i64 from;                 // first column of the result that the block loads weights for
  int lane, warp, m, n, k;  // n: number of columns of the result from column from on
  // With scales: the addresses of what the lane loads for the next turn, and the strides of scales from turn to turn.
  const W* ofW[scaled ? TILES * 2 : 1];
  const T* ofX[scaled ? rows * pieces / 32 : 1];
  const f32 *scaleOfW, *scaleOfX;
  i64 scaleW, scaleX;

  __device__ __forceinline__ Skinny(const SkinnyArgs& a)
      : a(a), slice(SEVERAL ? blockIdx.x % a.slices : 0), block(SEVERAL ? blockIdx.x / a.slices : blockIdx.x), p(skinnyPart<SEVERAL>(a, block)), room(roomOf<Room>()), from((block - p.first) * columns), lane(threadIdx.x % 32), warp(sameForWarp(threadIdx.x / 32)), m((int)(SEVERAL ? least(a.m - slice * ROWS, (i64)ROWS) : a.m)), n((int)(p.n - from)), k((int)a.k) {
    if constexpr (scaled) locate();
  }

  // locate finds the addresses of the first turn. Rows that do not exist are replaced by the first one: their products are
  // not stored.
  __device__ __forceinline__ void locate() {
#pragma unroll
    for (int j = 0; j < TILES * 2; j++) {
      const int at = j * 4 + lane / 8, row = at % columns;
      const bool second = gated && at >= columns;
      ofW[j] = (const W*)(second ? p.up : p.w) + (from + (row < n ? row : 0)) * (second ? p.upn : p.wn) + column(0) + lane % 8 * 16;
    }
#pragma unroll
    for (int j = 0; j < rows * pieces / 32; j++) {
      const int row = j * (32 / pieces) + lane / pieces;
      ofX[j] = (const T*)a.x + (slice * ROWS + (row < m ? row : 0)) * a.xm + column(0) + lane % pieces * 8;
    }
    const bool second = gated && lane >= columns;
    const i64 row = from + (lane % columns < n ? lane % columns : 0);
    scaleOfW = second ? p.sup.of(row, warp) : p.sw.of(row, warp), scaleW = WARPS * (second ? p.sup.turn : p.sw.turn);
    scaleOfX = a.sx.of(slice * ROWS + (lane < m ? lane : 0), warp), scaleX = WARPS * a.sx.turn;
  }

  // column returns the first column of a turn.
  __device__ __forceinline__ int column(int i) const { return (i * WARPS + warp) * turn; }

  // weights starts to load a turn's part of w for the given step, with zeros outside of w. Calls are in the order of turns. If gated, the second half of
  // the rows belongs to the weight up. A lane loads 16 bytes of every fourth row.
  __device__ __forceinline__ void weights(int i, int step) {
    Turn& to = room.turns[warp][step];
    const int col = column(i) + lane % 8 * (16 / (int)sizeof(W)), row = lane / 8;
    if constexpr (scaled) {
      Pack<u32, 4>* const at[] = {&to.w[to.at(row, lane % 8)], &to.w[to.at(row + 4, lane % 8)]};
#pragma unroll
      for (int j = 0; j < TILES * 2; j++) copy16(spotOf(at[j % 2] + j / 2 * 64), ofW[j], col < k), ofW[j] += WARPS * turn;
      if (lane < TILES * 8) copyFew<4>(spotOf(&to.ofW[lane]), scaleOfW, column(i) < k);
      scaleOfW += scaleW;
      return;
    }
    const W* w = (const W*)p.w + (from + row) * p.wn + col;
    const W* up = gated ? (const W*)p.up + (from + row) * p.upn + col : w;
#pragma unroll
    for (int i = 0; i < TILES * 8; i += 4) {
      const bool there = i % columns + row < n && col < k;
      copy16(spotOf(&to.w[to.at(i + row, lane % 8)]), there ? i < columns ? w + i * p.wn : up + (i - columns) * p.upn : (const W*)p.w, there);
    }
  }

  // input does the same for x.
  __device__ __forceinline__ void input(int i, int step) {
    Turn& to = room.turns[warp][step];
    const int col = column(i) + lane % pieces * 8, row = lane / pieces;
    if constexpr (scaled) {
#pragma unroll
      for (int j = 0; j < rows * pieces / 32; j++) {
        if (j * (32 / pieces) < m) copy16(spotOf(&to.x[to.atX(j * (32 / pieces) + row, lane % pieces)]), ofX[j], col < k);
        ofX[j] += WARPS * turn;
      }
      if (lane < m) copyFew<4>(spotOf(&to.ofX[lane]), scaleOfX, column(i) < k);
      scaleOfX += scaleX;
      return;
    }
#pragma unroll
    for (int i = 0; i < ROWS; i += 32 / pieces) {
      const bool there = i + row < m && col < k;
      copy16(spotOf(&to.x[to.atX(i + row, lane % pieces)]), there ? (const T*)a.x + (slice * ROWS + i + row) * a.xm + col : (const T*)a.x, there);
    }
  }

  // halve converts a turn's part of x to f16, and multiplies the scales by the inverses of its factors. Factors are at
  // most 2^101, so that their inverses times scales are normal numbers.
  __device__ __forceinline__ void halve(int step) const {
    Turn& t = room.turns[warp][step];
#pragma unroll 1
    for (int row = 0; row < m; row++) {
      Pack<u32, 2>& four = ((Pack<u32, 2>*)&t.x[t.atX(row, lane / 2)])[lane % 2];
      const Pack<u32, 2> x = four;
      u32 exponent = 0;
#pragma unroll
      for (int i = 0; i < 4; i++) exponent = larger<u32>(exponent, i % 2 ? x.v[i / 2] & 0x7fff0000u : x.v[i / 2] << 16 & 0x7fff0000u);
      exponent = mostOfWarp(exponent) >> 23;
      exponent = exponent < 40 ? 40 : exponent > 254 ? 254 : exponent;
      const f32 by = bitsAs<f32>((268 - exponent) << 23);
#pragma unroll
      for (int i = 0; i < 2; i++) four.v[i] = pair<f16>(mul(bitsAs<f32>(x.v[i] << 16), by), mul(bitsAs<f32>(x.v[i] & 0xffff0000u), by));
      if (lane == 0) t.ofX[row] = mul(t.ofX[row], bitsAs<f32>((exponent - 14) << 23));
    }
    meetWarp();
  }

  // multiplyScaled adds a turn's products, multiplied by their scales, to c. A lane's elements of a matrix of tensor cores
  // are four successive columns of x and of w, instead of two pairs. nan: see widen; for each tile.
  __device__ __forceinline__ void multiplyScaled(Sums& c, u32 (&nan)[TILES], int step) const {
    const Turn& t = room.turns[warp][step];
    Sums sums;
    clear(sums);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      u32 x[groups][4][4], w[TILES][4];
#pragma unroll
      for (int r = 0; r < TILES; r++) fourTiles<false>(w[r], &t.w[t.at(lane % 8, half * 4 + lane / 8)] + r * 64);
#pragma unroll
      for (int g = 0; g < groups; g++)
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
          for (int h = 0; h < (turned ? 1 : 2); h++) {
            const Pack<u32, 2> four = ((const Pack<u32, 2>*)(&t.x[t.atX(lane / 4, i * 2 + lane % 4 / 2)] + (g * 2 + h) * 8 * pieces + half * 8))[lane % 2];
            x[g][i][h] = four.v[0], x[g][i][2 + h] = four.v[1];
          }
#pragma unroll
      for (int r = 0; r < TILES; r += turned ? 2 : 1)
#pragma unroll
        for (int i = 0; i < 4; i++) {
          u32 wide[2], second[2];
          widen<X>(wide, w[r][i], nan[r]);
          if constexpr (turned) {
            widen<X>(second, w[r + 1][i], nan[r + 1]);
            const u32 both[4] = {wide[0], second[0], wide[1], second[1]};
            product<X>(sums[r / 2], both, x[0][i][0], x[0][i][2]);
          } else
#pragma unroll
            for (int g = 0; g < groups; g++) product<X>(sums[g * TILES + r], x[g][i], wide[0], wide[1]);
        }
    }
#pragma unroll
    for (int s = 0; s < results; s++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const f32 ofX = t.ofX[rowOf(s, e)], ofW = t.ofW[columnOf(s, e)];
        c[s][e] = fusedAdd(c[s][e], sums[s][e], mul(ofX, ofW));
      }
  }

  DEV void clear(Sums& c) {
#pragma unroll
    for (int i = 0; i < results * 4; i++) c[i / 4][i % 4] = 0;
  }

  // rowOf and columnOf return the row of x and the row of w of element e of a lane's result s of tensor cores.
  __device__ __forceinline__ int rowOf(int s, int e) const { return turned ? lane % 4 * 2 + e % 2 : s / TILES * 16 + e / 2 * 8 + lane / 4; }
  __device__ __forceinline__ int columnOf(int s, int e) const { return turned ? s * 16 + e / 2 * 8 + lane / 4 : s % TILES * 8 + lane % 4 * 2 + e % 2; }

  // advance makes the block load weights for the next columns of the result that it computes.
  __device__ __forceinline__ void advance() {
    const i64 step = (i64)gridDim.x * columns;
    from += step;
    n -= (int)step;
  }

  // spoil makes the sums of weights that have a NaN NaN.
  __device__ __forceinline__ void spoil(Sums& c, const u32 (&nan)[TILES]) const {
    u32 some = 0, bad[TILES];
#pragma unroll
    for (int r = 0; r < TILES; r++) some |= nan[r], bad[r] = nan[r] ? 0x7fff7fffu : 0;
    if (!someOfWarp(some)) return;
    const u32 one = IsBF16<X>::yes ? 0x3f803f80u : 0x3c003c00u, ones[4] = {one, one, one, one};
#pragma unroll
    for (int s = 0; s < results; s++)
      if constexpr (turned) {
        const u32 both[4] = {bad[s * 2], bad[s * 2 + 1], 0, 0};
        product<X>(c[s], both, one, one);
      } else
        product<X>(c[s], ones, bad[s % TILES], 0);
  }

  // multiply adds a turn's products to c. With eight rows, half of an operand is zero.
  __device__ __forceinline__ void multiply(Sums& c, int step) const {
    const Turn& t = room.turns[warp][step];
    u32 x[groups][4][4];
#pragma unroll
    for (int g = 0; g < groups; g++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        if constexpr (ROWS >= 16) fourTiles<false>(x[g][i], &t.x[t.atX(g * 16 + lane % 16, 2 * i + lane / 16)]);
        else if (i % 2 == 0) {
          u32 four[4];
          fourTiles<false>(four, &t.x[t.atX(lane % 8, 2 * i + lane / 8)]);
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
        for (int i = 0; i < 4; i++) product<T>(c[g * TILES + r], x[g][i], w[i / 2][i % 2 * 2], w[i / 2][i % 2 * 2 + 1]);
    }
  }

  // tell stores the warp's sums for the block.
  __device__ __forceinline__ void tell(const Sums& c) const {
#pragma unroll
    for (int s = 0; s < results; s++)
#pragma unroll
      for (int e = 0; e < 4; e++)
        if (ROWS >= 16 || turned || e < 2) room.sums[warp][rowOf(s, e)][columnOf(s, e)] = c[s][e];
  }

  // sum returns the product of a row of x with the block's weight row at, plus the bias if there is one.
  __device__ __forceinline__ f32 sum(int row, int at, u64 bias, i64 column) const {
    f32 s = room.sums[0][row][at];
#pragma unroll
    for (int w = 1; w < WARPS; w++) s += room.sums[w][row][at];
    return Num<T>::get(Num<T>::put(bias ? add(s, Num<T>::get(((const T*)bias)[column])) : s));
  }

  // store applies the epilogue to columns first.. of the result, of which n exist, and rounds as if each of its operations
  // were a separate kernel.
  __device__ __forceinline__ void store(i64 first, int n) const {
    for (int i = threadIdx.x; i < m * columns; i += WARPS * 32) {
      const int row = i / columns, at = i % columns;
      if (at >= n) continue;
      const i64 column = first + at;
      f32 v = sum(row, at, p.bias, column);
      if constexpr (gated) v = mul(Num<T>::get(Num<T>::put(silu(v))), sum(row, at + columns, 0, column));
      if constexpr (EPILOGUE == skinnyRelu) v = most(v, 0.f);
      ((T*)p.out)[(slice * ROWS + row) * p.om + column] = Num<T>::put(v);
    }
  }
};

template <class T, class W, bool HALF, int ROWS, int TILES, int WARPS, int STEPS, bool LATE, int EPILOGUE, bool SEVERAL, bool LOOP> DEV void skinny(const SkinnyArgs& a) {
  if constexpr (!LATE) let();
  if (!a.constant) settle();
  typedef Skinny<T, W, HALF, ROWS, TILES, WARPS, STEPS, EPILOGUE, SEVERAL, LOOP> Linear;
  Linear b(a);
  const int turns = (b.k + b.turn * WARPS - 1) / (b.turn * WARPS);
  int at = 0, free = STEPS - 1, next = 0;  // next: the turn whose weights are loaded next
  i64 first = b.from;
  int n = b.n;
#pragma unroll
  for (int s = 0; s < STEPS - 1; s++, next++) {
    if (LOOP && next == turns) b.advance(), next = 0;
    b.weights(next, s), endCopies();
  }
  if (a.constant) settle();
#pragma unroll
  for (int s = 0; s < STEPS - 1; s++) b.input(LOOP ? s % turns : s, s), endCopies();
  do {
    typename Linear::Sums c;
    b.clear(c);
    u32 nan[TILES];
#pragma unroll
    for (int r = 0; r < TILES; r++) nan[r] = 0;
    for (int turn = 0; turn < turns; turn++) {
      if (LATE && turn + STEPS >= turns) let();  // all reads of w are in flight
      if (LOOP && next == turns) b.advance(), next = 0;
      b.weights(next, free), b.input(next, free), endCopies(), next++;
      awaitCopies<STEPS - 1>();
      meetWarp();
      if constexpr (HALF) b.halve(at);
      if constexpr (Linear::scaled) b.multiplyScaled(c, nan, at);
      else b.multiply(c, at);
      meetWarp();
      free = at;
      at = at + 1 < STEPS ? at + 1 : 0;
    }
    if (!LOOP) awaitCopies();
    if constexpr (Linear::scaled) b.spoil(c, nan);
    __syncthreads();
    b.tell(c);
    __syncthreads();
    b.store(first, n);
    const i64 step = (i64)gridDim.x * Linear::columns;
    first += step, n -= (int)step;
  } while (LOOP && n > 0);
  if (LOOP) awaitCopies();
}
