// Scales of blocks and values divided by them, in one launch.

struct ScaleAndQuantizeArgs {
  u64 out, in, scales;
  f64 most;                      // as in ScalesArgs
  i64 rows, columns, wide;       // size of the operand, and number of blocks in a row
  i64 so, si;                    // strides from row to row
  i64 ss[2];                     // strides of scales
};

// Blocks are 128 elements of a row. 16 lanes compute the scale of a block, and keep its elements in registers.
template <class O, class T> DEV void scaleAndQuantize(const ScaleAndQuantizeArgs& a) {
  const i64 block = (i64)blockIdx.x * 16 + threadIdx.x / 16, row = block / a.wide, col = block % a.wide;
  const i64 at = col * 128 + threadIdx.x % 16 * 8;
  const bool there = row < a.rows, mine = there && at < a.columns;
  Pack<T, 8> x = {};
  if (mine) x = *(const Pack<T, 8>*)((const T*)a.in + row * a.si + at);
  f32 top = 0;
#pragma unroll
  for (int v = 0; v < 8; v++) {
    const f32 y = Num<T>::get(x.v[v]);
    top = most(top, y < 0 ? -y : y);
  }
#pragma unroll
  for (int away = 8; away > 0; away /= 2) top = most(top, ofLane(top, away));
  const f32 scale = most((f32)(top / (f32)a.most), 1e-12f), limit = largestOf((O*)0);
  if (there && threadIdx.x % 16 == 0) ((f32*)a.scales)[row * a.ss[0] + col * a.ss[1]] = scale;
  Pack<O, 8> y;
#pragma unroll
  for (int v = 0; v < 8; v++) {
    const f32 q = Num<T>::get(x.v[v]) / scale;
    y.v[v] = Num<O>::cast(q > limit ? limit : q < -limit ? -limit : q);
  }
  if (mine) *(Pack<O, 8>*)((O*)a.out + row * a.so + at) = y;
}
