// Chains of elementwise operations in one pass, with N operands and M results. The links are generated code: a
// structure with a function piece<V>, which computes one piece of every result.

template <int N, int M, int C, int R> struct ChainArgs {
  u64 out[M], in[N];
  u64 value[C];                  // the links' constants
  i64 total;                     // number of pieces of V elements
  i64 n[R];                      // extents; the last one counts pieces
  i64 so[M][R], si[N][R];        // strides in elements
};

template <class L, int N, int M, int C, int R, int V, bool DENSE, class I> DEV void chain(const ChainArgs<N, M, C, R>& a) {
  const I step = (I)gridDim.x * blockDim.x, total = (I)a.total;
  for (I i = (I)blockIdx.x * blockDim.x + threadIdx.x; i < total; i += step) {
    i64 at[N + M] = {0}, stride[N];
    place<N, M, R, V, DENSE>(i, a.n, a.si, a.so, at);
#pragma unroll
    for (int o = 0; o < N; o++) stride[o] = a.si[o][R - 1];
    L::template piece<V, DENSE>(a.out, a.in, a.value, at, stride);
  }
}
