// What counts, orders and takes elements along an axis.

template <int B> struct AlongArgs {
  u64 out, in, by;               // by: indices
  i64 n, m, rows;                // elements of a row of in, of out; rows
  i64 so, si, sb;                // strides along the axis
  u64 start; i64 first;          // of iota
  u64 fault, tag;
  i64 e[B], bo[B], bi[B], bb[B]; // row by row
};

// RowPlace is where a row of each operand begins, in elements.
struct RowPlace {
  i64 out, in, by;
  template <int B> __device__ __forceinline__ RowPlace(const AlongArgs<B>& a, i64 t) : out(0), in(0), by(0) {
#pragma unroll
    for (int d = B - 1; d >= 0; d--) {
      const i64 x = d ? t % a.e[d] : t;
      t /= a.e[d];
      out += x * a.bo[d];
      in += x * a.bi[d];
      by += x * a.bb[d];
    }
  }
};

// Counted<A> is the number that is at from start in a row of type T, rounded once.
template <class T, class A> struct Counted { DEV T of(u64 start, i64 at) { return Num<T>::cast(bitsAs<f64>(start) + (f64)at); } };
template <class T> struct Counted<T, i64> { DEV T of(u64 start, i64 at) { return Num<T>::put(add((i64)start, at)); } };

template <class T, int B> DEV void iota(const AlongArgs<B>& a) {
  const i64 step = (i64)gridDim.x * 256, all = a.rows * a.m;
  for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < all; i += step)
    ((T*)a.out)[RowPlace(a, i / a.m).out + i % a.m * a.so] = Counted<T, typename Num<T>::Acc>::of(a.start, a.first + i % a.m);
}
