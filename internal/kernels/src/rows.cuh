// Operations along rows: a block of 256 threads computes a row, and folds in an order that depends only on the row's
// length.

// fold256 returns the fold of all threads' values to every thread.
template <class F, class A> DEV A fold256(A v) {
  __shared__ A all[256];
  __syncthreads();
  all[threadIdx.x] = v;
  for (int half = 128; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) all[threadIdx.x] = F::of(all[threadIdx.x], all[threadIdx.x + half]);
  }
  __syncthreads();
  return all[0];
}

template <int B> struct RowArgs {
  u64 out, in, weight, bias;
  f64 eps;
  i64 n;                         // elements of a row
  i64 so1, si1, sw, sb;          // strides along the row
  i64 e[B], so[B], si[B];        // extents and strides of the rows' dimensions
};

template <class T, int B> DEV void rowOf(const RowArgs<B>& a, T** out, const T** in) {
  i64 t = blockIdx.x;
  *out = (T*)a.out;
  *in = (const T*)a.in;
#pragma unroll
  for (int d = B - 1; d >= 0; d--) {
    const i64 x = d ? t % a.e[d] : t;
    t /= a.e[d];
    *out += x * a.so[d];
    *in += x * a.si[d];
  }
}

// Row is a thread's part of a row: packs of V elements that are 256 packs apart. If W is not 0, W packs are loaded by
// wide accesses and held in registers. If W is 0, elements are read one by one each time, in the same order.
template <class T, int V, int W> struct Row {
  typedef typename Num<T>::Acc A;
  const T* in;
  i64 n, stride;
  Pack<T, V> held[W ? W : 1];

  __device__ __forceinline__ Row(const T* in, i64 n, i64 stride) : in(in), n(n), stride(stride) {
#pragma unroll
    for (int w = 0; w < W; w++) {
      const i64 j = (threadIdx.x + 256 * w) * V;
      if (j < n) held[w] = *(const Pack<T, V>*)(in + j);
    }
  }

  // at returns the element of index k, which is element v of the thread's pack w.
  __device__ __forceinline__ A at(int w, int v, i64 k) const {
    if constexpr (W > 0) return Num<T>::get(held[w].v[v]);
    else return Num<T>::get(in[k * stride]);
  }

  // each calls f with each element.
  template <class F> __device__ __forceinline__ void each(F f) const {
    if constexpr (W > 0) {
#pragma unroll
      for (int w = 0; w < W; w++) {
        if ((threadIdx.x + 256 * w) * V >= n) break;
#pragma unroll
        for (int v = 0; v < V; v++) f(Num<T>::get(held[w].v[v]));
      }
    } else {
      for (i64 j = threadIdx.x * V; j < n; j += 256 * V)
        for (i64 k = j; k < j + V && k < n; k++) f(Num<T>::get(in[k * stride]));
    }
  }

  // map writes f of each element and its index.
  template <class F> __device__ __forceinline__ void map(T* out, i64 step, F f) const {
    if constexpr (W > 0) {
#pragma unroll
      for (int w = 0; w < W; w++) {
        const i64 j = (threadIdx.x + 256 * w) * V;
        if (j >= n) break;
        Pack<T, V> y;
#pragma unroll
        for (int v = 0; v < V; v++) y.v[v] = Num<T>::put(f(j + v, Num<T>::get(held[w].v[v])));
        *(Pack<T, V>*)(out + j) = y;
      }
    } else {
      for (i64 j = threadIdx.x * V; j < n; j += 256 * V)
        for (i64 k = j; k < j + V && k < n; k++) out[k * step] = Num<T>::put(f(k, Num<T>::get(in[k * stride])));
    }
  }
};

template <class T, int B, int V, int W> DEV void softmax(const RowArgs<B>& a) {
  typedef typename Num<T>::Acc A;
  T* out;
  const T* in;
  rowOf<T, B>(a, &out, &in);
  const Row<T, V, W> row(in, a.n, a.si1);
  A top = Const<A>::of(0xfff0000000000000ULL);  // -infinity
  row.each([&](A x) { top = most(top, x); });
  top = fold256<FoldMax>(top);
  A sum = 0;
  row.each([&](A x) { sum += expOf(x - top); });
  sum = fold256<FoldSum>(sum);
  row.map(out, a.so1, [&](i64, A x) { return expOf(x - top) / sum; });
}

// norm is layer_norm if CENTRED, else rms_norm.
template <class T, int B, bool CENTRED, int V, int W> DEV void norm(const RowArgs<B>& a) {
  typedef typename Num<T>::Acc A;
  T* out;
  const T* in;
  rowOf<T, B>(a, &out, &in);
  const Row<T, V, W> row(in, a.n, a.si1);
  A mean = 0;
  if (CENTRED) {
    row.each([&](A x) { mean += x; });
    mean = fold256<FoldSum>(mean) / (A)a.n;
  }
  A squares = 0;
  row.each([&](A x) { squares += (x - mean) * (x - mean); });
  const A root = (A)1 / sqrtOf(fold256<FoldSum>(squares) / (A)a.n + (A)a.eps);
  const T *weight = (const T*)a.weight, *bias = (const T*)a.bias;
  row.map(out, a.so1, [&](i64 j, A x) {
    const A y = (x - mean) * root * Num<T>::get(weight[j * a.sw]);
    return CENTRED ? y + Num<T>::get(bias[j * a.sb]) : y;
  });
}
