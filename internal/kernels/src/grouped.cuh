// Linears of groups of rows, each group with the weight of one expert.

struct GroupedArgs {
  u64 out, x, w, counts, fault, tag;
  i64 wide, sc;                    // wide: counts are i64, else i32; sc: their stride
  i64 rows, n, k;                  // rows of x; columns of the result; contracted columns
  // number of experts; the first expert with weights here, and the number of experts with weights here; number of tiles
  // of 64 columns
  i64 experts, first, own, cols;
  i64 so[2], sx[2], sw[3];
};

// GroupedBlock is the part of a block: rows from..to-1 of one expert, and 64 columns. Rows beyond the sum of the counts
// have no expert.
struct GroupedBlock {
  i64 from, to, col, expert;       // expert: index among the experts with weights here; -1 for none

  // The first block reports an invalid count. An invalid count is replaced by the nearest valid one.
  __device__ __forceinline__ GroupedBlock(const GroupedArgs& a) {
    i64 tile = blockIdx.x / a.cols, begin = 0;
    from = to = 0, col = blockIdx.x % a.cols * 64, expert = -1;
    for (i64 e = 0; e <= a.experts; e++) {
      const i64 left = a.rows - begin;
      i64 n = left;
      if (e < a.experts) {
        n = a.wide ? ((const i64*)a.counts)[e * a.sc] : ((const i32*)a.counts)[e * a.sc];
        if ((n < 0 || n > left) && blockIdx.x == 0 && threadIdx.x == 0) fault(a.fault, faultGroups, a.tag, (u64)n, (u64)a.rows, (u64)e);
        n = n < 0 ? 0 : n > left ? left : n;
      }
      const i64 tiles = (n + 63) / 64;
      if (tile >= 0 && tile < tiles) {
        from = begin + tile * 64, to = from + 64 < begin + n ? from + 64 : begin + n;
        expert = e < a.experts && e >= a.first && e < a.first + a.own ? e - a.first : -1;
      }
      tile -= tiles, begin += n;
    }
  }
};

// 256 threads compute a tile of 64x64, 4x4 results each, adding in the order of k.
template <class T> DEV void grouped(const GroupedArgs& a) {
  typedef typename Num<T>::Acc A;
  const int D = 8;
  __shared__ A xs[D][64 + 1], ws[D][64 + 1];
  const GroupedBlock b(a);
  if (b.from >= b.to) return;
  const T *x = (const T*)a.x + b.from * a.sx[0], *w = (const T*)a.w + (b.expert < 0 ? 0 : b.expert) * a.sw[0] + b.col * a.sw[1];
  const i64 rows = b.to - b.from, cols = a.n - b.col, depth = b.expert < 0 ? 0 : a.k;
  const int c = threadIdx.x % 16, r = threadIdx.x / 16;
  A sum[4][4];
#pragma unroll
  for (int i = 0; i < 16; i++) sum[i / 4][i % 4] = (A)0;
  for (i64 k0 = 0; k0 < depth; k0 += D) {
    __syncthreads();
    for (int i = threadIdx.x; i < 64 * D; i += 256) {
      const int p = i / D, k = i % D;
      xs[k][p] = p < rows && k0 + k < depth ? Num<T>::get(x[p * a.sx[0] + (k0 + k) * a.sx[1]]) : (A)0;
      ws[k][p] = p < cols && k0 + k < depth ? Num<T>::get(w[p * a.sw[1] + (k0 + k) * a.sw[2]]) : (A)0;
    }
    __syncthreads();
    const int ks = depth - k0 < D ? (int)(depth - k0) : D;
    for (int k = 0; k < ks; k++)
#pragma unroll
      for (int i = 0; i < 16; i++) sum[i / 4][i % 4] = fusedAdd(sum[i / 4][i % 4], xs[k][r + 16 * (i / 4)], ws[k][c + 16 * (i % 4)]);
  }
#pragma unroll
  for (int i = 0; i < 16; i++) {
    const i64 p = r + 16 * (i / 4), q = c + 16 * (i % 4);
    if (p < rows && q < cols) ((T*)a.out)[(b.from + p) * a.so[0] + (b.col + q) * a.so[1]] = Num<T>::put(sum[i / 4][i % 4]);
  }
}
