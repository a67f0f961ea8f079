// All_reduce in which receivers recognize arrived data by its value, as in Lamport's queues. The receive memory is
// initially filled with a word that is never sent. A line has arrived when none of its words is that word. The
// algorithm does not depend on the order in which the parts of a line arrive, and uses no bytes for flags. The reader
// of a line fills the line with that word again. Peers write to the same half again two launches later, when this
// launch has ended (see collective.cuh). The memory contains no epochs, so it need not be cleared when epochs wrap
// around.
//
// In all floating-point types except f64, the word is a NaN or two NaNs. If an operand contains the word, another NaN
// is sent instead. Types in which every bit pattern is valid data cannot be sent in this way.
enum : u32 { unsent = 0xffffffff };

DEV u32 sendable(u32 w) { return w == unsent ? unsent - 1 : w; }
DEV Line sendable(Line l) { return Line{sendable(l.x), sendable(l.y), sendable(l.z), sendable(l.w)}; }
DEV bool came(Line l) { return l.x != unsent && l.y != unsent && l.z != unsent && l.w != unsent; }

// Rows holds R lines for each of the 32 threads of a warp, with packs in their natural order.
template <int R> struct Rows {
  static const int packs = 32 * R, bytes = 512 * R;
  Line row[R];
};

template <class T, bool A, int R> DEV Rows<R> loadRows(u64 at, i64 first, i64 count) {
  Rows<R> x;
#pragma unroll
  for (int i = 0; i < R; i++) x.row[i] = loadCut<Line, T, A>(at, first + i * 32 + laneOf(), count);
  return x;
}

// sendable replaces the word that is never sent. It is also applied to the member's own operand before it is added, so
// that all members add the same bits.
template <int R> DEV Rows<R> sendable(Rows<R> x) {
#pragma unroll
  for (int i = 0; i < R; i++) x.row[i] = sendable(x.row[i]);
  return x;
}

template <class T, bool A, int R> DEV void storeRows(u64 at, i64 first, i64 count, const Rows<R>& x) {
#pragma unroll
  for (int i = 0; i < R; i++) storeCut<Line, T, A>(at, first + i * 32 + laneOf(), count, x.row[i]);
}

template <int R> DEV void pushRows(u64 at, const Rows<R>& x) {
#pragma unroll
  for (int i = 0; i < R; i++) push(at + i * 512 + laneOf() * 16, x.row[i]);
}

template <int R> DEV Rows<R> lookRows(u64 at) {
  Rows<R> x;
#pragma unroll
  for (int i = 0; i < R; i++) x.row[i] = look(at + i * 512 + laneOf() * 16);
  return x;
}

// lookAll reads the rows of each peer. The rows of member q are at the address at + q · apart.
template <int W, int R> DEV void lookAll(const Team& t, u64 at, i64 apart, Rows<R>* x) {
#pragma unroll
  for (int q = 0; q < W; q++)
    if (q != (u32)t.rank) x[q] = lookRows<R>(at + q * apart);
}

// awaitOne makes one thread of a warp wait for one of its lines before all threads poll. If much data is in flight,
// polls by all threads would delay the arrival of the data in memory.
template <int W> DEV void awaitOne(Patience& p, const Team& t, u64 at, i64 apart, u32 e) {
  const u32 q = peerOf<W>(t, 0);
  if (laneOf() == 0)
    while (!came(look(at + q * apart)) && !waited(p, t, q, e)) {}
  __syncwarp();
}

// awaitAll polls the lines of all peers that have not arrived, until all lines have arrived.
template <int W, int R> DEV void awaitAll(Patience& p, const Team& t, u64 at, i64 apart, Rows<R>* x, u32 e) {
  const u32 r = (u32)t.rank;
  for (;;) {
    u32 late = W;
#pragma unroll
    for (int q = W - 1; q >= 0; q--)
#pragma unroll
      for (int i = 0; i < R; i++)
        if (q != r && !came(x[q].row[i])) late = q;
    if (late == W || waited(p, t, late, e)) return;
#pragma unroll
    for (int q = 0; q < W; q++)
#pragma unroll
      for (int i = 0; i < R; i++)
        if (q != r && !came(x[q].row[i])) x[q].row[i] = look(at + q * apart + i * 512 + laneOf() * 16);
  }
}

// clearAll fills the lines with the unsent word again, for the launch after the next one.
template <int W, int R> DEV void clearAll(const Team& t, u64 at, i64 apart) {
#pragma unroll
  for (int q = 0; q < W; q++)
#pragma unroll
    for (int i = 0; i < R; i++)
      if (q != (u32)t.rank) storeLine(at + q * apart + i * 512 + laneOf() * 16, Line{unsent, unsent, unsent, unsent});
}

template <class F, class T, int W, int R> DEV Rows<R> foldRows(const Rows<R>* x) {
  Rows<R> y;
#pragma unroll
  for (int i = 0; i < R; i++) {
    Line row[W];
#pragma unroll
    for (int q = 0; q < W; q++) row[q] = x[q].row[i];
    y.row[i] = sendable(fold<F, T, W>(row));
  }
  return y;
}

// rowsToAll pushes rows to the same offset at all peers.
template <int W, int R> DEV void rowsToAll(const ReduceArgs& a, u64 off, const Rows<R>& x) {
#pragma unroll
  for (int k = 0; k < W - 1; k++) pushRows<R>(a.data[peerOf<W>(a.team, k)] + off, x);
}

// onceFrom is a one-shot all_reduce by the blocks from first on: every member pushes its operand to all other members,
// and reduces all operands. A warp pushes its next rows before it waits for the previous ones.
template <class F, class T, int W, int R, bool A> DEV u32 onceFrom(const ReduceArgs& a, u32 first, u32 last) {
  const Team& t = a.team;
  const u32 r = (u32)t.rank;
  const i64 units = a.share, apart = units * Rows<R>::bytes, blocks = gridDim.x - first;
  i64 i = (threadIdx.x / 32) * blocks + blockIdx.x - first;
  Patience p = {0, 0};
  Rows<R> own = sendable(loadRows<T, A, R>(a.in[r], i * Rows<R>::packs, a.count));
  const u32 e = begin(t, last);
  const u64 half = (e & 1) * a.half;
  if (i < units) rowsToAll<W, R>(a, half + r * apart + i * Rows<R>::bytes, own);
  while (i < units) {
    const u64 at = a.data[r] + half + i * Rows<R>::bytes;
    Rows<R> x[W];
#pragma unroll
    for (int q = 0; q < W; q++) x[q] = own;
    lookAll<W, R>(t, at, apart, x);
    const i64 next = i + blocks * (blockDim.x / 32);
    if (next < units) {
      own = sendable(loadRows<T, A, R>(a.in[r], next * Rows<R>::packs, a.count));
      rowsToAll<W, R>(a, half + r * apart + next * Rows<R>::bytes, own);
    }
    awaitAll<W, R>(p, t, at, apart, x, e);
    storeRows<T, A, R>(a.out[r], i * Rows<R>::packs, a.count, foldRows<F, T, W, R>(x));
    clearAll<W, R>(t, at, apart);
    i = next;
  }
  return e;
}

template <class F, class T, int W, int R, bool A> DEV void reduceLamport(const ReduceArgs& a) {
  end(a.team, onceFrom<F, T, W, R, A>(a, 0, lastEpoch(a.team)));
}

// Deal pushes rows i of each peer's share to that peer, in the order in which the warp stores to the peers, and returns
// the member's own rows. The loads come first, because they do not depend on the epoch.
template <class T, bool A, int W, int R> struct Deal {
  Rows<R> x[W];
  __device__ __forceinline__ void load(const ReduceArgs& a, i64 i) {
#pragma unroll
    for (int k = 0; k < W; k++) x[k] = loadRows<T, A, R>(a.in[a.team.rank], ((turnOf(a.team) + k) % W * a.share + i) * Rows<R>::packs, a.count);
  }
  __device__ __forceinline__ Rows<R> push(const ReduceArgs& a, u64 off, i64 i) {
    const u32 r = (u32)a.team.rank;
    Rows<R> own = x[0];
#pragma unroll
    for (int k = 0; k < W; k++) {
      const u32 q = (turnOf(a.team) + k) % W;
      x[k] = sendable(x[k]);
      if (q == r) own = x[k];
      else pushRows<R>(a.data[q] + off + (r * a.share + i) * Rows<R>::bytes, x[k]);
    }
    return own;
  }
};

// Two shots: a warp processes rows i of each share. It pushes its next rows before it waits for the results of rows i.
template <class F, class T, int W, int R, bool A> DEV void reduceLamportx2(const ReduceArgs& a) {
  const Team& t = a.team;
  const u32 r = (u32)t.rank, last = lastEpoch(t);
  const i64 share = a.share, apart = share * Rows<R>::bytes;
  i64 i = warpOf();
  Deal<T, A, W, R> deal;
  deal.load(a, i);
  const u32 e = begin(t, last);
  const u64 half = (e & 1) * a.half, behind = W * apart;
  Patience p = {0, 0};
  Rows<R> own;
  if (i < share) own = deal.push(a, half, i);
  while (i < share) {
    const u64 at = a.data[r] + half + i * Rows<R>::bytes;
    Rows<R> x[W];
#pragma unroll
    for (int q = 0; q < W; q++) x[q] = own;
    if (a.calm) awaitOne<W>(p, t, at, apart, e);
    lookAll<W, R>(t, at, apart, x);
    awaitAll<W, R>(p, t, at, apart, x, e);
    const Rows<R> y = foldRows<F, T, W, R>(x);
    rowsToAll<W, R>(a, half + behind + r * apart + i * Rows<R>::bytes, y);
    storeRows<T, A, R>(a.out[r], (r * share + i) * Rows<R>::packs, a.count, y);
    clearAll<W, R>(t, at, apart);
    const i64 next = i + warpsOf();
    if (next < share) {
      deal.load(a, next);
      own = deal.push(a, half, next);
    }
    if (a.calm) awaitOne<W>(p, t, at + behind, apart, e);
    lookAll<W, R>(t, at + behind, apart, x);
    awaitAll<W, R>(p, t, at + behind, apart, x, e);
#pragma unroll
    for (int q = 0; q < W; q++)
      if (q != r) storeRows<T, A, R>(a.out[r], (q * share + i) * Rows<R>::packs, a.count, x[q]);
    clearAll<W, R>(t, at + behind, apart);
    i = next;
  }
  end(t, e);
}

// directFrom is a two-shot all_reduce by the blocks from first on, in which the second shot writes results directly to
// their destination. Rows before folded are reduced by other blocks. A warp pushes its next rows before it waits for
// the current ones.
template <class F, class T, int W, int R> DEV u32 directFrom(Patience& p, const ReduceArgs& a, u32 first, i64 folded, u32 last) {
  const Team& t = a.team;
  const u32 r = (u32)t.rank;
  const i64 share = a.share, apart = share * Rows<R>::bytes, blocks = gridDim.x - first;
  i64 i = (threadIdx.x / 32) * blocks + blockIdx.x - first;
  Deal<T, true, W, R> deal;
  deal.load(a, i);
  const u32 e = begin(t, last);
  const u64 half = (e & 1) * a.half;
  Rows<R> own;
  if (i < share) own = deal.push(a, half, i);
  while (i < share) {
    const u64 at = a.data[r] + half + i * Rows<R>::bytes;
    const i64 next = i + blocks * (blockDim.x / 32);
    Rows<R> x[W];
#pragma unroll
    for (int q = 0; q < W; q++) x[q] = own;
    if (next < share) {
      deal.load(a, next);
      own = deal.push(a, half, next);
    }
    if (i >= folded) {
      awaitOne<W>(p, t, at, apart, e);
      lookAll<W, R>(t, at, apart, x);
      awaitAll<W, R>(p, t, at, apart, x, e);
      const Rows<R> y = foldRows<F, T, W, R>(x);
#pragma unroll
      for (int k = 0; k < R; k++) IntoAll::put<T, W>(a, (r * share + i) * Rows<R>::packs + k * 32 + laneOf(), y.row[k]);
      clearAll<W, R>(t, at, apart);
    }
    i = next;
  }
  return e;
}

// rowsToHost reduces the first rows of the share, and writes the results to this member's result and to host memory for
// the other members. It raises a flag for each chunk. A chunk has as many rows as a block has warps.
template <class F, class T, int W, int R> DEV void rowsToHost(Patience& p, const ReduceArgs& a, u32 e) {
  const Team& t = a.team;
  const u32 r = (u32)t.rank;
  const i64 warps = blockDim.x / 32, apart = a.share * Rows<R>::bytes;
  for (i64 c = blockIdx.x; c < a.split; c += a.writers) {
    const i64 i = c * warps + threadIdx.x / 32, pack = i * Rows<R>::packs;
    const u64 at = a.data[r] + (e & 1) * a.half + i * Rows<R>::bytes;
    const Rows<R> own = sendable(loadRows<T, true, R>(a.in[r], r * a.share * Rows<R>::packs + pack, a.count));
    Rows<R> x[W];
#pragma unroll
    for (int q = 0; q < W; q++) x[q] = own;
    lookAll<W, R>(t, at, apart, x);
    awaitAll<W, R>(p, t, at, apart, x, e);
    const Rows<R> y = foldRows<F, T, W, R>(x);
#pragma unroll
    for (int k = 0; k < R; k++) storeLine(a.host[r] + (pack + k * 32 + laneOf()) * 16, y.row[k]);
    storeRows<T, true, R>(a.out[r], r * a.share * Rows<R>::packs + pack, a.count, y);
    clearAll<W, R>(t, at, apart);
    tellAll<W>(a, c, e);
  }
}

// rowsFromHost reads the results that the peers have written to their host memory.
template <class T, int W, int R> DEV void rowsFromHost(Patience& p, const ReduceArgs& a, u32 e) {
  const u32 r = (u32)a.team.rank;
  for (i64 k = blockIdx.x - a.writers; k < a.split * (W - 1); k += a.readers) {
    const i64 c = k / (W - 1), pack = (c * (blockDim.x / 32) + threadIdx.x / 32) * Rows<R>::packs;
    const u32 q = (r + 1 + (u32)(k % (W - 1))) % W;
    if (threadIdx.x == 0) waitFlag(p, a.team, flagAt(a, r, q, c, e), q, e);
    __syncthreads();
    Rows<R> x;
#pragma unroll
    for (int j = 0; j < R; j++) x.row[j] = loadLine(a.host[q] + (pack + j * 32 + laneOf()) * 16);
    storeRows<T, true, R>(a.out[r], q * a.share * Rows<R>::packs + pack, a.count, x);
  }
}

// Two shots in which results are written directly to their destination, except those of the first split chunks of each
// share, which are transferred through host memory.
template <class F, class T, int W, int R> DEV void reduceLamportResults(const ReduceArgs& a) {
  const u32 last = lastEpoch(a.team), writers = (u32)a.writers, aside = writers + (u32)a.readers;
  Patience p = {0, 0};
  u32 e;
  if (blockIdx.x >= aside) {
    e = directFrom<F, T, W, R>(p, a, aside, a.split * (blockDim.x / 32), last);
  } else {
    e = begin(a.team, last);
    if (blockIdx.x < writers) rowsToHost<F, T, W, R>(p, a, e);
    else rowsFromHost<T, W, R>(p, a, e);
  }
  meet<W>(p, a, a.slots - blocksMost, e);
  end(a.team, e);
}

// One shot of two members. The packs from split on are transferred through host memory as in reduceHost, but through
// two alternating halves, so that no synchronization at the end is necessary.
template <class F, class T, int W, int R> DEV void reduceLamportHost(const ReduceArgs& a) {
  static_assert(W == 2, "host memory is read by one other member");
  constexpr int V = 16 / sizeof(T);
  const i64 total = (a.count + V - 1) / V, aside = a.writers + a.readers;
  const u32 last = lastEpoch(a.team);
  if (blockIdx.x >= aside) {
    end(a.team, onceFrom<F, T, W, R, true>(a, (u32)aside, last));
    return;
  }
  const u32 e = begin(a.team, last);
  Patience p = {0, 0};
  if (blockIdx.x < a.writers) writeHost<T>(a, total, e);
  else readHost<F, T>(p, a, total, e);
  end(a.team, e);
}
