// Operations along rows: a block of 256 threads computes a row, and folds in an
// order that depends on the row's length alone.

// fold256 gives every thread the fold of all threads' values.
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
  i64 e[B], so[B], si[B];        // row by row
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

template <class T, int B> DEV void softmax(const RowArgs<B>& a) {
  typedef typename Num<T>::Acc A;
  T* out;
  const T* in;
  rowOf<T, B>(a, &out, &in);
  A top = Const<A>::of(0xfff0000000000000ULL);  // -infinity
  for (i64 j = threadIdx.x; j < a.n; j += 256) top = most(top, Num<T>::get(in[j * a.si1]));
  top = fold256<FoldMax>(top);
  A sum = 0;
  for (i64 j = threadIdx.x; j < a.n; j += 256) sum += expOf(Num<T>::get(in[j * a.si1]) - top);
  sum = fold256<FoldSum>(sum);
  for (i64 j = threadIdx.x; j < a.n; j += 256) out[j * a.so1] = Num<T>::put(expOf(Num<T>::get(in[j * a.si1]) - top) / sum);
}

// norm is layer_norm where CENTRED, else rms_norm.
template <class T, int B, bool CENTRED> DEV void norm(const RowArgs<B>& a) {
  typedef typename Num<T>::Acc A;
  T* out;
  const T* in;
  rowOf<T, B>(a, &out, &in);
  A mean = 0;
  if (CENTRED) {
    for (i64 j = threadIdx.x; j < a.n; j += 256) mean += Num<T>::get(in[j * a.si1]);
    mean = fold256<FoldSum>(mean) / (A)a.n;
  }
  A squares = 0;
  for (i64 j = threadIdx.x; j < a.n; j += 256) {
    const A x = Num<T>::get(in[j * a.si1]) - mean;
    squares += x * x;
  }
  const A root = (A)1 / sqrtOf(fold256<FoldSum>(squares) / (A)a.n + (A)a.eps);
  for (i64 j = threadIdx.x; j < a.n; j += 256) {
    A y = (Num<T>::get(in[j * a.si1]) - mean) * root * Num<T>::get(((const T*)a.weight)[j * a.sw]);
    if (CENTRED) y += Num<T>::get(((const T*)a.bias)[j * a.sb]);
    out[j * a.so1] = Num<T>::put(y);
  }
}
