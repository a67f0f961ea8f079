// Gradients of rms_norm. The order of operations depends only on the length and the number of rows.

template <class A> struct Pair { A a, b; };
struct FoldPair { template <class A> DEV A of(A x, A y) { return A{x.a + y.a, x.b + y.b}; } };

// foldAll returns the fold of all threads' values to every thread. Its only barriers are two, because a call writes
// all or few only when all threads have read what the previous call wrote.
template <class F, class A> DEV A foldAll(A v) {
  __shared__ A all[256], few[32];
  all[threadIdx.x] = v;
  __syncthreads();
  if (threadIdx.x < 32) {
    v = all[threadIdx.x];
#pragma unroll
    for (int k = 1; k < 8; k++) v = F::of(v, all[threadIdx.x + 32 * k]);
    few[threadIdx.x] = v;
  }
  __syncthreads();
  A x[8];
#pragma unroll
  for (int k = 0; k < 8; k++) {
    x[k] = few[4 * k];
#pragma unroll
    for (int j = 1; j < 4; j++) x[k] = F::of(x[k], few[4 * k + j]);
  }
#pragma unroll
  for (int half = 4; half > 0; half /= 2)
#pragma unroll
    for (int k = 0; k < half; k++) x[k] = F::of(x[k], x[k + half]);
  return x[0];
}

// eachPlace calls f with the arguments of Row::at for each element of the thread's part of a row.
template <int V, int W, class F> DEV void eachPlace(i64 n, F f) {
  if constexpr (W > 0) {
#pragma unroll
    for (int w = 0; w < W; w++) {
      const i64 j = (threadIdx.x + 256 * w) * V;
      if (j >= n) break;
#pragma unroll
      for (int v = 0; v < V; v++) f(w, v, j + v);
    }
  } else {
    for (i64 j = threadIdx.x * V; j < n; j += 256 * V)
      for (i64 k = j; k < j + V && k < n; k++) f(0, 0, k);
  }
}

template <int B> struct NormGradArgs {
  u64 out, x, w, dy;
  f64 eps;
  i64 n, rows;                          // elements of a row, number of rows
  i64 per;                              // of normDW: rows of a block
  i64 so, sx, sw, sdy;                  // strides along the row
  i64 e[B], ro[B], rx[B], rdy[B];       // extents and strides of the rows' dimensions
};

// gradRow sets the addresses of row t, less the address of the result if out is nullptr.
template <class T, int B> DEV void gradRow(const NormGradArgs<B>& a, i64 t, T** out, const T** x, const T** dy) {
  T* o = (T*)a.out;
  *x = (const T*)a.x;
  *dy = (const T*)a.dy;
#pragma unroll
  for (int d = B - 1; d >= 0; d--) {
    const i64 i = d ? t % a.e[d] : t;
    t /= a.e[d];
    if (out) o += i * a.ro[d];
    *x += i * a.rx[d];
    *dy += i * a.rdy[d];
  }
  if (out) *out = o;
}

// normDX computes a row of rms_norm_dx: r·(g - x·r·m), where g = dy·w and m is the mean of g·x·r.
template <class T, int B, int V, int W> DEV void normDX(const NormGradArgs<B>& a) {
  typedef typename Num<T>::Acc A;
  T* out;
  const T *x, *dy;
  gradRow<T, B>(a, blockIdx.x, &out, &x, &dy);
  const Row<T, V, W> rx(x, a.n, a.sx), rdy(dy, a.n, a.sdy), rw((const T*)a.w, a.n, a.sw);
  Pair<A> sums = {0, 0};
  eachPlace<V, W>(a.n, [&](int w, int v, i64 k) {
    const A one = rx.at(w, v, k);
    sums.a += one * one;
    sums.b += rdy.at(w, v, k) * rw.at(w, v, k) * one;
  });
  sums = foldAll<FoldPair>(sums);
  const A root = (A)1 / sqrtOf(sums.a / (A)a.n + (A)a.eps), mean = sums.b / (A)a.n * root;
  Pack<T, V> y;
  eachPlace<V, W>(a.n, [&](int w, int v, i64 k) {
    const A d = root * (rdy.at(w, v, k) * rw.at(w, v, k) - rx.at(w, v, k) * root * mean);
    if constexpr (W > 0) {
      y.v[v] = Num<T>::put(d);
      if (v == V - 1) *(Pack<T, V>*)(out + k - v) = y;
    } else out[k * a.so] = Num<T>::put(d);
  });
}

// rowRoot returns 1/√(mean x² + eps) of a row to every thread.
template <class T, int V, int W, class A> DEV A rowRoot(const Row<T, V, W>& row, i64 n, A eps) {
  A squares = 0;
  eachPlace<V, W>(n, [&](int w, int v, i64 k) {
    const A x = row.at(w, v, k);
    squares += x * x;
  });
  return (A)1 / sqrtOf(foldAll<FoldSum>(squares) / (A)n + eps);
}

#define NORM_ROWS 512

// normDW computes a row of the parts of rms_norm_dw: the sum of dy·x·r over at most NORM_ROWS rows. If W is not 0, each
// thread adds its columns in registers, and loads the next row while the block computes r of a row. If W is 0, the
// block first computes r of all its rows.
template <class T, int B, int V, int W> DEV void normDW(const NormGradArgs<B>& a) {
  typedef typename Num<T>::Acc A;
  const i64 lo = blockIdx.x * a.per, hi = lo + a.per < a.rows ? lo + a.per : a.rows;
  A* out = (A*)a.out + blockIdx.x * a.n;
  const T *x, *dy;
  if constexpr (W > 0) {
    A sums[W][V] = {};
    gradRow<T, B>(a, lo, nullptr, &x, &dy);
    Row<T, V, W> rx(x, lo < hi ? a.n : 0, 1), rdy(dy, lo < hi ? a.n : 0, 1);
    for (i64 i = lo; i < hi; i++) {
      if (i + 1 < hi) gradRow<T, B>(a, i + 1, nullptr, &x, &dy);
      const Row<T, V, W> nextX(x, i + 1 < hi ? a.n : 0, 1), nextDY(dy, i + 1 < hi ? a.n : 0, 1);
      const A root = rowRoot(rx, a.n, (A)a.eps);
      eachPlace<V, W>(a.n, [&](int w, int v, i64 k) { sums[w][v] += rdy.at(w, v, k) * (rx.at(w, v, k) * root); });
      rx = nextX;
      rdy = nextDY;
    }
    eachPlace<V, W>(a.n, [&](int w, int v, i64 k) { out[k] = sums[w][v]; });
  } else {
    __shared__ A roots[NORM_ROWS];
    for (i64 i = lo; i < hi; i++) {
      gradRow<T, B>(a, i, nullptr, &x, &dy);
      const A root = rowRoot(Row<T, V, 0>(x, a.n, a.sx), a.n, (A)a.eps);
      if (threadIdx.x == 0) roots[i - lo] = root;
    }
    __syncthreads();
    eachPlace<V, 0>(a.n, [&](int, int, i64 k) {
      A sum = 0;
      for (i64 i = lo; i < hi; i++) {
        gradRow<T, B>(a, i, nullptr, &x, &dy);
        sum += Num<T>::get(dy[k * a.sdy]) * (Num<T>::get(x[k * a.sx]) * roots[i - lo]);
      }
      out[k] = sum;
    });
  }
}
