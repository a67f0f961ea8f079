// Chains of elementwise operations in one pass. The links are generated code: a structure with a function links<V>,
// which computes one piece.

template <int N, int C, int R> struct ChainArgs {
  u64 out, in[N];
  u64 value[C];                  // the links' constants
  i64 total;                     // number of pieces of V elements
  i64 n[R];                      // extents; the last one counts pieces
  i64 so[R], si[N][R];           // strides in elements
};

template <class L, int N, int C, int R, int V, bool DENSE, class I> DEV void chain(const ChainArgs<N, C, R>& a) {
  const I step = (I)gridDim.x * blockDim.x, total = (I)a.total;
  for (I i = (I)blockIdx.x * blockDim.x + threadIdx.x; i < total; i += step) {
    i64 at[N + 1] = {0}, stride[N];
    place<N, R, V, DENSE>(i, a.n, a.si, a.so, at);
#pragma unroll
    for (int o = 0; o < N; o++) stride[o] = a.si[o][R - 1];
    L::template links<V, DENSE>(a.out, a.in, a.value, at, stride);
  }
}
