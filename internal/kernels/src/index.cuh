// Kernels that count, sort and select elements along an axis.

template <int B> struct AlongArgs {
  u64 out, in, by;               // by: indices
  i64 n, m, rows;                // number of elements of a row of in, and of a row of out; number of rows
  i64 so, si, sb;                // strides along the axis
  u64 start; i64 first;          // of iota
  u64 fault, tag;
  i64 e[B], bo[B], bi[B], bb[B]; // extents and strides of the rows' dimensions
};

// RowPlace holds the offsets of a row in each operand, in elements.
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

// Counted<A> returns the number at index at of a row that counts from start, rounded once to type T.
template <class T, class A> struct Counted { DEV T of(u64 start, i64 at) { return Num<T>::cast(bitsAs<f64>(start) + (f64)at); } };
template <class T> struct Counted<T, i64> { DEV T of(u64 start, i64 at) { return Num<T>::put(add((i64)start, at)); } };

template <class T, int B> DEV void iota(const AlongArgs<B>& a) {
  const i64 step = (i64)gridDim.x * 256, all = a.rows * a.m;
  for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < all; i += step)
    ((T*)a.out)[RowPlace(a, i / a.m).out + i % a.m * a.so] = Counted<T, typename Num<T>::Acc>::of(a.start, a.first + i % a.m);
}

// precedes reports whether element a, at index i of a row, comes before b, at index j: by value, ascending if UP, and
// then by index. NaN is the largest value.
template <bool UP, class A> DEV bool precedes(A a, i64 i, A b, i64 j) {
  const bool less = a < b || (a == a && b != b), more = b < a || (b == b && a != a);
  return (UP ? less : more) || (!less && !more && i < j);
}

// sorted has one thread for each element of a row, which counts the elements that precede it. The result contains the
// first of the sorted elements, or their indices.
template <class T, bool UP, bool VALUES, int B> DEV void sorted(const AlongArgs<B>& a) {
  typedef typename Num<T>::Acc A;
  __shared__ A some[256];
  const i64 tiles = (a.n + 255) / 256, own = blockIdx.x % tiles * 256 + threadIdx.x;
  const RowPlace at(a, blockIdx.x / tiles);
  const T* in = (const T*)a.in + at.in;
  const A v = own < a.n ? Num<T>::get(in[own * a.si]) : (A)0;
  i64 before = 0;
  for (i64 j = 0; j < a.n; j += 256) {
    __syncthreads();
    if (j + threadIdx.x < a.n) some[threadIdx.x] = Num<T>::get(in[(j + threadIdx.x) * a.si]);
    __syncthreads();
    const int n = a.n - j < 256 ? (int)(a.n - j) : 256;
    for (int k = 0; k < n; k++) before += precedes<UP>(some[k], j + k, v, own);
  }
  if (own >= a.n || before >= a.m) return;
  if (VALUES) ((T*)a.out)[at.out + before * a.so] = in[own * a.si];
  else ((i32*)a.out)[at.out + before * a.so] = (i32)own;
}

// takeAlong copies elements of type E by indices of type ID. An index outside the row is a fault, and its element of
// the result is 0.
template <class E, class ID, int B> DEV void takeAlong(const AlongArgs<B>& a) {
  const i64 step = (i64)gridDim.x * 256, all = a.rows * a.m;
  for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < all; i += step) {
    const RowPlace at(a, i / a.m);
    const i64 k = i % a.m, from = ((const ID*)a.by)[at.by + k * a.sb];
    const bool there = from >= 0 && from < a.n;
    if (!there) fault(a.fault, faultIndex, a.tag, (u64)from, (u64)a.n, (u64)i);
    ((E*)a.out)[at.out + k * a.so] = there ? ((const E*)a.in)[at.in + from * a.si] : (E)0;
  }
}

struct BincountArgs { u64 out, ids; i64 so, n; };

// bincount has a block for each count.
template <class ID> DEV void bincount(const BincountArgs& a) {
  i64 count = 0;
  for (i64 i = threadIdx.x; i < a.n; i += 256) count += ((const ID*)a.ids)[i] == (i64)blockIdx.x;
  count = fold256<FoldSum>(count);
  if (threadIdx.x == 0) ((i32*)a.out)[blockIdx.x * a.so] = (i32)count;
}

struct IndexAddArgs {
  u64 out, in, ids, fault, tag;
  i64 n, width, rows, first, of; // the result contains the rows first..first+rows-1 of a tensor of `of` rows
  i64 so0, so1, tiles;           // tiles: number of blocks for the columns of a row
};

// noRows writes zeros to the result, whose elements have type E.
template <class E> DEV void noRows(const IndexAddArgs& a) {
  const i64 step = (i64)gridDim.x * 256, all = a.rows * a.width;
  for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < all; i += step) ((E*)a.out)[i / a.width * a.so0 + i % a.width * a.so1] = (E)0;
}

// indexAdd has blocks for each row of the operand, which is dense, and for the row's id. The blocks of the first row
// with an id add all rows with that id, in order. An id outside the result is a fault; rows with id -1 are ignored.
template <class T, class ID> DEV void indexAdd(const IndexAddArgs& a) {
  typedef typename Num<T>::Acc A;
  __shared__ u8 same[256];
  const ID* ids = (const ID*)a.ids;
  const i64 own = blockIdx.x / a.tiles, column = blockIdx.x % a.tiles * 1024 + threadIdx.x;
  const i64 id = ids[own], row = id - a.first;
  if ((id < -1 || id >= a.of) && threadIdx.x == 0) fault(a.fault, faultAdded, a.tag, (u64)id, (u64)a.of, (u64)own);
  if (id < 0 || row < 0 || row >= a.rows) return;
  for (i64 j = 0; j < own; j += 256) {
    const i64 at = j + threadIdx.x;
    if (__syncthreads_or(at < own && ids[at] == id)) return;
  }
  A sum[4] = {};
  for (i64 j = own; j < a.n; j += 256) {
    const i64 at = j + threadIdx.x;
    const bool is = at < a.n && ids[at] == id;
    same[threadIdx.x] = is;
    if (!__syncthreads_or(is)) continue;
    for (int k = 0; k < 256; k++) {
      if (!same[k]) continue;
      const T* in = (const T*)a.in + (j + k) * a.width;
#pragma unroll
      for (int c = 0; c < 4; c++)
        if (column + 256 * c < a.width) sum[c] = add(sum[c], (A)Num<T>::get(in[column + 256 * c]));
    }
    __syncthreads();
  }
  T* out = (T*)a.out + row * a.so0;
#pragma unroll
  for (int c = 0; c < 4; c++)
    if (column + 256 * c < a.width) out[(column + 256 * c) * a.so1] = Num<T>::put(sum[c]);
}
