// All_reduce of rows, addition of a residual, and rms_norm in one launch, at the end of a layer of a model that is
// split over devices. A block processes a row. 256 of its threads add the squares in the same order as norm of
// rows.cuh, so the bits are those of three separate operations.

struct NormArgs {
  Team team;
  // the member's own memory; sum receives the rows before normalisation, unless it is 0
  u64 in, residual, weight, sum, out;
  u64 data[teamMost], half;            // by member: two halves, initially filled with unsent
  i64 rows, packs;                     // number of packs of a row
  // two halves of words in which blocks record that they have read their row; 0 if no block writes memory that another
  // block reads
  u64 read, readHalf;
  f64 eps;
};

DEV f32 rootOf(f32 x) { return sqrtf(x); }

enum { summing = 256 };  // number of threads that add squares

// rowOf returns the packs of the row in shared memory. They follow the memory that rowSquares uses.
DEV Line* rowOf() { return meetingRoom() + summing * 8 / 16; }

template <class T, int V> DEV typename Num<T>::Acc addSquares(typename Num<T>::Acc sum, const Pack<T, V>& x) {
#pragma unroll
  for (int v = 0; v < V; v++) {
    const typename Num<T>::Acc z = Num<T>::get(x.v[v]);
    sum += z * z;
  }
  return sum;
}

// rowSquares returns the sum of the squares of all elements of the row to every thread. 256 threads each add the
// squares of packs that are 256 packs apart. Then the upper half of the sums is added to the lower half, repeatedly.
// The last steps are within one warp.
template <class T> DEV typename Num<T>::Acc rowSquares(i64 packs) {
  constexpr int V = 16 / sizeof(T);
  typedef typename Num<T>::Acc A;
  A* all = (A*)meetingRoom();
  __syncthreads();
  if (threadIdx.x < summing) {
    A sum = 0;
    for (i64 j = threadIdx.x; j < packs; j += summing) sum = addSquares<T, V>(sum, bitsAs<Pack<T, V>>(rowOf()[j]));
    all[threadIdx.x] = sum;
  }
  __syncthreads();
  A x[8];
#pragma unroll
  for (int k = 0; k < 8; k++) x[k] = all[threadIdx.x % 32 + 32 * k];
#pragma unroll
  for (int half = 4; half > 0; half /= 2)
#pragma unroll
    for (int k = 0; k < half; k++) x[k] = add(x[k], x[k + half]);
#pragma unroll
  for (int half = 16; half > 0; half /= 2) x[0] = add(x[0], __shfl_down_sync(0xffffffff, x[0], half));
  return __shfl_sync(0xffffffff, x[0], 0);
}

// loadRow loads a thread's packs of a row; the packs of a thread are one block size apart.
template <int P> DEV void loadRow(u64 at, i64 first, i64 packs, Line* x) {
#pragma unroll
  for (int w = 0; w < P; w++) {
    const i64 j = threadIdx.x + blockDim.x * w;
    if (j < packs) x[w] = loadLine(at + (first + j) * 16);
  }
}

// pushRow pushes a thread's packs of a row to all peers.
template <int W, int P> DEV void pushRow(const NormArgs& a, u64 off, i64 first, Line* x) {
#pragma unroll
  for (int w = 0; w < P; w++) {
    const i64 j = threadIdx.x + blockDim.x * w;
    if (j >= a.packs) break;
    x[w] = sendable(x[w]);
#pragma unroll
    for (int k = 0; k < W - 1; k++) push(a.data[peerOf<W>(a.team, k)] + off + (first + j) * 16, x[w]);
  }
}

// addPack adds the residual to a pack of the sum. It stores the result in the row in shared memory and, unless a.sum is
// 0, in global memory.
template <class T> DEV void addPack(const NormArgs& a, i64 first, i64 j, Line sum, Line residual) {
  constexpr int V = 16 / sizeof(T);
  const Pack<T, V> s = bitsAs<Pack<T, V>>(sum), y = bitsAs<Pack<T, V>>(residual);
  Pack<T, V> z;
#pragma unroll
  for (int v = 0; v < V; v++) z.v[v] = Num<T>::put(add(Num<T>::get(s.v[v]), Num<T>::get(y.v[v])));
  rowOf()[j] = bitsAs<Line>(z);
  if (a.sum) storeLine(a.sum + (first + j) * 16, bitsAs<Line>(z));
}

// scaleRow normalises the row in shared memory.
template <class T, int P> DEV void scaleRow(const NormArgs& a, i64 first, const Line* weight) {
  constexpr int V = 16 / sizeof(T);
  typedef typename Num<T>::Acc A;
  const A root = (A)1 / rootOf(rowSquares<T>(a.packs) / (A)(a.packs * V) + (A)a.eps);
#pragma unroll
  for (int w = 0; w < P; w++) {
    const i64 j = threadIdx.x + blockDim.x * w;
    if (j >= a.packs) break;
    const Pack<T, V> x = bitsAs<Pack<T, V>>(rowOf()[j]), scale = bitsAs<Pack<T, V>>(weight[w]);
    Pack<T, V> y;
#pragma unroll
    for (int v = 0; v < V; v++) y.v[v] = Num<T>::put(Num<T>::get(x.v[v]) * root * Num<T>::get(scale.v[v]));
    storeLine(a.out + (first + j) * 16, bitsAs<Line>(y));
  }
}

// A receiver recognizes arrived data by its value (see collective_lamport.cuh). A block pushes its next row before it
// waits for the current one, so that the link is in use while rows are normalised. All blocks run concurrently. If
// blocks write memory that other blocks read, each block has only one row, and no block writes before all blocks have
// read.
template <class T, int W, int P> DEV void reduceNorm(const NormArgs& a) {
  const Team& t = a.team;
  const u32 r = (u32)t.rank, last = lastEpoch(t);
  const i64 packs = a.packs, apart = a.rows * packs * 16;
  i64 row = blockIdx.x;
  Line own[P], residual[P], weight[P];
  loadRow<P>(a.in, row * packs, packs, own);
  loadRow<P>(a.residual, row * packs, packs, residual);
  loadRow<P>(a.weight, 0, packs, weight);
  const u32 e = begin(t, last);
  const u64 half = (e & 1) * a.half, read = a.read + (e & 1) * a.readHalf, mine = half + r * apart;
  Patience p = {0, 0};
  if (a.read) {
    __syncthreads();
    if (threadIdx.x == 0) release32(read + blockIdx.x * 4, e);
  }
  pushRow<W, P>(a, mine, row * packs, own);
  if (a.read) {
    for (u32 b = threadIdx.x; b < gridDim.x; b += blockDim.x) waitFlag(p, t, read + b * 4, r, e);
    __syncthreads();
  }
  while (row < a.rows) {
    const i64 first = row * packs, next = row + gridDim.x;
    Line ahead[P];
    if (next < a.rows) {
      loadRow<P>(a.in, next * packs, packs, ahead);
      pushRow<W, P>(a, mine, next * packs, ahead);
    }
#pragma unroll
    for (int w = 0; w < P; w++) {
      const i64 j = threadIdx.x + blockDim.x * w, i = first + j;
      if (j >= packs) break;
      const u64 at = a.data[r] + half + (i - laneOf()) * 16;
      Rows<1> x[W];
#pragma unroll
      for (int q = 0; q < W; q++) x[q].row[0] = own[w];
      lookAll<W, 1>(t, at, apart, x);
      awaitAll<W, 1>(p, t, at, apart, x, e);
      clearAll<W, 1>(t, at, apart);
      addPack<T>(a, first, j, foldRows<RedSum, T, W, 1>(x).row[0], residual[w]);
    }
    if (next < a.rows) {
      loadRow<P>(a.residual, next * packs, packs, residual);
#pragma unroll
      for (int w = 0; w < P; w++) own[w] = ahead[w];
    }
    scaleRow<T, P>(a, first, weight);
    row = next;
  }
  end(t, e);
}

// addNorm computes the add and the norm after an all_reduce that has stored its sum in a.in. Members do not wait for
// each other, so the launch has no epoch.
template <class T, int P> DEV void addNorm(const NormArgs& a) {
  follow();
  const i64 packs = a.packs;
  i64 row = blockIdx.x;
  Line in[P], residual[P], weight[P];
  loadRow<P>(a.in, row * packs, packs, in);
  loadRow<P>(a.residual, row * packs, packs, residual);
  loadRow<P>(a.weight, 0, packs, weight);
  while (row < a.rows) {
    const i64 first = row * packs, next = row + gridDim.x;
#pragma unroll
    for (int w = 0; w < P; w++) {
      const i64 j = threadIdx.x + blockDim.x * w;
      if (j < packs) addPack<T>(a, first, j, in[w], residual[w]);
    }
    if (next < a.rows) {
      loadRow<P>(a.in, next * packs, packs, in);
      loadRow<P>(a.residual, next * packs, packs, residual);
    }
    scaleRow<T, P>(a, first, weight);
    row = next;
  }
}
