// A copy of bytes by a small number of blocks. Each thread has U accesses in flight, which hides the long latency of a
// peer's memory.

struct TransferArgs {
  u64 out, in;
  i64 total;  // number of accesses
  i64 rest;   // number of bytes after the last access
};

// T is the type of one access; both addresses are multiples of its size.
template <class T, int U> DEV void transfer(const TransferArgs& a) {
  const T* const in = (const T*)a.in;
  T* const out = (T*)a.out;
  const i64 step = (i64)gridDim.x * blockDim.x, first = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  for (i64 i = first; i < a.total; i += U * step) {
    T x[U];
#pragma unroll
    for (int u = 0; u < U; u++)
      if (i + u * step < a.total) x[u] = in[i + u * step];
#pragma unroll
    for (int u = 0; u < U; u++)
      if (i + u * step < a.total) out[i + u * step] = x[u];
  }
  for (i64 i = first; i < a.rest; i += step) ((u8*)(out + a.total))[i] = ((const u8*)(in + a.total))[i];
}
