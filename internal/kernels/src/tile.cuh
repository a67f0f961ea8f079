// Copies between a layout that is contiguous along one dimension and a layout that is contiguous along another one, by
// square tiles in shared memory.

template <int B> struct TileArgs {
  u64 out, in;
  i64 rows, cols;                // consecutive rows are contiguous in out, and consecutive columns in in
  i64 outRow, inCol;             // strides: out is contiguous along cols, in along rows
  i64 tileRows, tileCols;        // number of tiles of T×T
  i64 n[B], so[B], si[B];        // extents and strides of the batch dimensions
};

template <class E, int B, int T> DEV void tile(const TileArgs<B>& a) {
  __shared__ E cell[T][T + 4 / sizeof(E) + (sizeof(E) > 4)];
  i64 t = blockIdx.x;
  const i64 c0 = t % a.tileCols * T;
  t /= a.tileCols;
  const i64 r0 = t % a.tileRows * T;
  t /= a.tileRows;
  const E* in = (const E*)a.in;
  E* out = (E*)a.out;
#pragma unroll
  for (int d = B - 1; d >= 0; d--) {
    const i64 x = d ? t % a.n[d] : t;
    t /= a.n[d];
    in += x * a.si[d];
    out += x * a.so[d];
  }
  const int x = threadIdx.x % T, y = threadIdx.x / T, step = 256 / T;
  for (int k = y; k < T; k += step)
    if (r0 + x < a.rows && c0 + k < a.cols) cell[k][x] = in[(c0 + k) * a.inCol + r0 + x];
  __syncthreads();
  for (int k = y; k < T; k += step)
    if (r0 + k < a.rows && c0 + x < a.cols) out[(r0 + k) * a.outRow + c0 + x] = cell[x][k];
}
