// All_reduce in the order of the members, rounded once: every algorithm returns the same bits on every member.

struct ReduceArgs {
  Team team;
  u64 in[teamMost], out[teamMost];  // by member; only the member's own addresses if data and flags share memory
  u64 data[teamMost], half;         // by member: two halves for pushed data, or staging memory
  u64 flags[teamMost], flagHalf;    // by member: two halves of flags, for data that contains no flags
  i64 count, share, slots;          // number of elements; number of packs or sheets that each member reduces; number of flags of a member
  // of each member: host memory, for the packs from split on or, in some algorithms, for the packs before split
  u64 host[teamMost];
  i64 split, writers, readers;      // split: in packs; number of blocks that write to host memory; number of blocks that read data of peers from it
  i64 group;                        // number of chunks that a block pushes before it raises the flags of these chunks
  // hostHalf: bytes of a half of host memory, 0 if it is not divided; calm: 1 if one thread of a warp polls first
  i64 hostHalf, calm;
};

struct RedSum : FoldSum { template <class A> DEV A done(A a, int) { return a; } };
struct RedMax : FoldMax { template <class A> DEV A done(A a, int) { return a; } };
struct RedMin : FoldMin { template <class A> DEV A done(A a, int) { return a; } };
struct RedAvg : FoldSum { template <class A> DEV A done(A a, int n) { return a / (A)n; } };

// fold reduces one value of each member. A value is a pack, whose bits are some elements.
template <class F, class T, int W, class L> DEV L fold(const L* x) {
  constexpr int V = sizeof(L) / sizeof(T);
  Pack<T, V> y;
#pragma unroll
  for (int v = 0; v < V; v++) {
    typename Num<T>::Acc a = Num<T>::get(bitsAs<Pack<T, V>>(x[0]).v[v]);
#pragma unroll
    for (int q = 1; q < W; q++) a = F::of(a, Num<T>::get(bitsAs<Pack<T, V>>(x[q]).v[v]));
    y.v[v] = Num<T>::put(F::done(a, W));
  }
  return bitsAs<L>(y);
}

template <class F, class T, int W, int R> DEV Sheet<R> foldSheets(const Sheet<R>* x) {
  Sheet<R> y;
#pragma unroll
  for (int i = 0; i < R; i++) {
    Line row[W];
#pragma unroll
    for (int q = 0; q < W; q++) row[q] = x[q].row[i];
    y.row[i] = fold<F, T, W>(row);
  }
  return y;
}

// isOf reports whether both halves of a line contain epoch e.
DEV bool isOf(Line l, u32 e) { return l.y == e && l.w == e; }

// awaitHalves waits for a line of each peer, in the same way as awaitSheets.
template <int W> DEV void awaitHalves(Patience& p, const Team& t, u64 at, i64 apart, Line* l, u32 e) {
  const u32 r = (u32)t.rank;
  for (;;) {
    u32 late = W;
#pragma unroll
    for (int q = W - 1; q >= 0; q--)
      if (q != r && !isOf(l[q], e)) late = q;
    if (late == W || waited(p, t, late, e)) return;
#pragma unroll
    for (int q = 0; q < W; q++)
      if (q != r && !isOf(l[q], e)) l[q] = look(at + q * apart);
  }
}

// One shot with an epoch in each half of a line: every member pushes its operand to all other members, and reduces all
// operands. Each thread has U half lines in flight.
template <class F, class T, int W, int U, bool A> DEV void reduceLL(const ReduceArgs& a) {
  const Team& t = a.team;
  const u32 r = (u32)t.rank, last = lastEpoch(t);
  const i64 step = (i64)gridDim.x * blockDim.x, units = a.share;
  i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  Half v[U];
#pragma unroll
  for (int u = 0; u < U; u++) v[u] = loadCut<Half, T, A>(a.in[r], i + u * step, a.count);
  const u32 e = begin(t, last);
  const u64 half = (e & 1) * a.half;
  Patience p = {0, 0};
  while (i < units) {
#pragma unroll
    for (int k = 1; k < W; k++) {
      const u32 q = (r + k) % W;
#pragma unroll
      for (int u = 0; u < U; u++)
        if (i + u * step < units) push(a.data[q] + half + (r * units + i + u * step) * 16, Line{v[u].lo, e, v[u].hi, e});
    }
    Line g[U][W];
#pragma unroll
    for (int u = 0; u < U; u++)
#pragma unroll
      for (int q = 0; q < W; q++)
        if (q != r && i + u * step < units) g[u][q] = look(a.data[r] + half + (q * units + i + u * step) * 16);
#pragma unroll
    for (int u = 0; u < U; u++) {
      if (i + u * step >= units) continue;
      awaitHalves<W>(p, t, a.data[r] + half + (i + u * step) * 16, units * 16, g[u], e);
      Half x[W];
#pragma unroll
      for (int q = 0; q < W; q++) x[q] = q == r ? v[u] : Half{g[u][q].x, g[u][q].z};
      storeCut<Half, T, A>(a.out[r], i + u * step, a.count, fold<F, T, W>(x));
    }
    i += U * step;
    if (i < units)
#pragma unroll
      for (int u = 0; u < U; u++) v[u] = loadCut<Half, T, A>(a.in[r], i + u * step, a.count);
  }
  end(t, e);
}

// Two shots with the same lines: each member reduces its share and pushes the result to all other members. In memory,
// the data of the second shot follows that of the first.
template <class F, class T, int W, int U, bool A> DEV void reduceLL2(const ReduceArgs& a) {
  const Team& t = a.team;
  const u32 r = (u32)t.rank, last = lastEpoch(t);
  const i64 step = (i64)gridDim.x * blockDim.x, share = a.share;
  const u32 e = begin(t, last);
  const u64 first = (e & 1) * a.half, second = first + W * share * 16;
  Patience p = {0, 0};
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < share; i += step) {
    Half v[W];
#pragma unroll
    for (int q = 0; q < W; q++) v[q] = loadCut<Half, T, A>(a.in[r], q * share + i, a.count);
#pragma unroll
    for (int k = 0; k < W; k++)
      if (k != r) push(a.data[k] + first + (r * share + i) * 16, Line{v[k].lo, e, v[k].hi, e});
    Line g[W];
#pragma unroll
    for (int q = 0; q < W; q++)
      if (q != r) g[q] = look(a.data[r] + first + (q * share + i) * 16);
    awaitHalves<W>(p, t, a.data[r] + first + i * 16, share * 16, g, e);
#pragma unroll
    for (int q = 0; q < W; q++)
      if (q != r) v[q] = Half{g[q].x, g[q].z};
    const Half y = fold<F, T, W>(v);
#pragma unroll
    for (int k = 1; k < W; k++) push(a.data[(r + k) % W] + second + (r * share + i) * 16, Line{y.lo, e, y.hi, e});
    storeCut<Half, T, A>(a.out[r], r * share + i, a.count, y);
#pragma unroll
    for (int q = 0; q < W; q++)
      if (q != r) g[q] = look(a.data[r] + second + (q * share + i) * 16);
    awaitHalves<W>(p, t, a.data[r] + second + i * 16, share * 16, g, e);
#pragma unroll
    for (int q = 0; q < W; q++)
      if (q != r) storeCut<Half, T, A>(a.out[r], q * share + i, a.count, Half{g[q].x, g[q].z});
  }
  end(t, e);
}

// pushToAll pushes a sheet to the same offset at all peers. Few: there are few sheets, so that all warps may begin with
// the same peer, which is cheaper to compute.
template <int W, int R, bool Few> DEV void pushToAll(const ReduceArgs& a, u64 off, Sheet<R> s, u32 e) {
  seal(s, e);
#pragma unroll
  for (int k = 0; k < W - 1; k++) pushSheet<R>(a.data[Few ? ((u32)a.team.rank + 1 + k) % W : peerOf<W>(a.team, k)] + off, s);
}

// One shot in LL128 lines with an epoch in each 128 bytes. A warp pushes its next sheet before it waits for the
// previous one.
template <class F, class T, int W, int R, bool A> DEV void reduceLL128(const ReduceArgs& a) {
  typedef Sheet<R> S;
  const Team& t = a.team;
  const u32 r = (u32)t.rank, last = lastEpoch(t);
  const i64 sheets = a.share;
  i64 i = warpOf();
  S own = loadSheet<T, A, R>(a.in[r], i * S::packs, a.count);
  const u32 e = begin(t, last);
  const u64 half = (e & 1) * a.half;
  Patience p = {0, 0};
  if (i < sheets) pushToAll<W, R, true>(a, half + (r * sheets + i) * S::bytes, own, e);
  while (i < sheets) {
    S x[W];
#pragma unroll
    for (int q = 0; q < W; q++) {
      x[q] = own;
      if (q != r) x[q] = lookSheet<R>(a.data[r] + half + (q * sheets + i) * S::bytes);
    }
    const i64 next = i + warpsOf();
    if (next < sheets) {
      own = loadSheet<T, A, R>(a.in[r], next * S::packs, a.count);
      pushToAll<W, R, true>(a, half + (r * sheets + next) * S::bytes, own, e);
    }
    awaitSheets<W, R>(p, t, a.data[r] + half + i * S::bytes, sheets * S::bytes, x, e);
    storeSheet<T, A, R>(a.out[r], i * S::packs, a.count, foldSheets<F, T, W, R>(x));
    i = next;
  }
  end(t, e);
}

// Spread pushes sheet i of each peer's share to that peer, in the order in which the warp stores to the peers, and
// returns the member's own sheet. The loads come first, because they do not depend on the epoch.
template <class T, bool A, int W, int R> struct Spread {
  Sheet<R> x[W];
  __device__ __forceinline__ void load(const ReduceArgs& a, i64 i) {
#pragma unroll
    for (int k = 0; k < W; k++) x[k] = loadSheet<T, A, R>(a.in[a.team.rank], ((turnOf(a.team) + k) % W * a.share + i) * Sheet<R>::packs, a.count);
  }
  __device__ __forceinline__ Sheet<R> push(const ReduceArgs& a, u64 off, i64 i, u32 e) {
    const u32 r = (u32)a.team.rank;
    Sheet<R> own = x[0];
#pragma unroll
    for (int k = 0; k < W; k++) {
      const u32 q = (turnOf(a.team) + k) % W;
      if (q == r) {
        own = x[k];
        continue;
      }
      seal(x[k], e);
      pushSheet<R>(a.data[q] + off + (r * a.share + i) * Sheet<R>::bytes, x[k]);
    }
    return own;
  }
};

// Two shots in LL128 lines: a warp processes sheet i of each share. It pushes its next sheets before it waits for the
// results of sheets i.
template <class F, class T, int W, int R, bool A> DEV void reduceLL128x2(const ReduceArgs& a) {
  typedef Sheet<R> S;
  const Team& t = a.team;
  const u32 r = (u32)t.rank, last = lastEpoch(t);
  const i64 share = a.share;
  i64 i = warpOf();
  Spread<T, A, W, R> given;
  given.load(a, i);
  const u32 e = begin(t, last);
  const u64 first = (e & 1) * a.half, second = first + W * share * S::bytes;
  Patience p = {0, 0};
  S own;
  if (i < share) own = given.push(a, first, i, e);
  while (i < share) {
    S x[W];
#pragma unroll
    for (int q = 0; q < W; q++) {
      x[q] = own;
      if (q != r) x[q] = lookSheet<R>(a.data[r] + first + (q * share + i) * S::bytes);
    }
    awaitSheets<W, R>(p, t, a.data[r] + first + i * S::bytes, share * S::bytes, x, e);
    S y = foldSheets<F, T, W, R>(x);
    storeSheet<T, A, R>(a.out[r], (r * share + i) * S::packs, a.count, y);
    pushToAll<W, R, false>(a, second + (r * share + i) * S::bytes, y, e);
    const i64 next = i + warpsOf();
    if (next < share) {
      given.load(a, next);
      own = given.push(a, first, next, e);
    }
    S got[W];
    const u64 at = a.data[r] + second + i * S::bytes;
    const i64 apart = share * S::bytes;
    if (W * R <= 8) {  // registers suffice for both
#pragma unroll
      for (int q = 0; q < W; q++)
        if (q != r) got[q] = lookSheet<R>(at + q * apart);
      awaitSheets<W, R>(p, t, at, apart, got, e);
    }
#pragma unroll
    for (int q = 0; q < W; q++) {
      if (q == r) continue;
      if (W * R > 8) {
        got[q] = lookSheet<R>(at + q * apart);
        awaitSheet(p, t, at + q * apart, got[q], q, e);
      }
      storeSheet<T, A, R>(a.out[r], (q * share + i) * S::packs, a.count, got[q]);
    }
    i = next;
  }
  end(t, e);
}

// flagAt returns the address, at member, of a flag with which member q signals.
DEV u64 flagAt(const ReduceArgs& a, u32 member, u32 q, i64 slot, u32 e) {
  return a.flags[member] + (e & 1) * a.flagHalf + (q * a.slots + slot) * 4;
}

// meet synchronizes the blocks with the same number of all members. Afterwards, everything that these blocks wrote
// before is visible to all threads of the block.
template <int W> DEV void meet(Patience& p, const ReduceArgs& a, i64 slot, u32 e) {
  const u32 r = (u32)a.team.rank, q = threadIdx.x;
  __syncthreads();
  if (q < W && q != r) {
    release32(flagAt(a, q, r, slot + blockIdx.x, e), e);
    waitFlag(p, a.team, flagAt(a, r, q, slot + blockIdx.x, e), q, e);
  }
  __syncthreads();
}

// IntoAll stores the reduced pack i in the results of all members.
struct IntoAll {
  template <class T, int W> static __device__ __forceinline__ void put(const ReduceArgs& a, i64 i, Line y) {
    const u32 turn = turnOf(a.team);
#pragma unroll
    for (int k = 0; k < W; k++) storeCut<Line, T, true>(a.out[(turn + k) % W], i, a.count, y);
  }
};

// IntoHost stores the reduced pack i in this member's result, and in host memory for the other members.
struct IntoHost {
  template <class T, int W> static __device__ __forceinline__ void put(const ReduceArgs& a, i64 i, Line y) {
    const u32 r = (u32)a.team.rank;
    storeLine(a.host[r] + (i - r * a.share) * 16, y);
    storeCut<Line, T, true>(a.out[r], i, a.count, y);
  }
};

// IntoOwn stores the reduced pack i only in this member's result. The share consists of whole packs.
struct IntoOwn {
  template <class T, int W> static __device__ __forceinline__ void put(const ReduceArgs& a, i64 i, Line y) {
    const u32 r = (u32)a.team.rank;
    storeLine(a.out[r] + (i - r * a.share) * 16, y);
  }
};

// ByStaging and ByHost return the address at which a member stores pack i of an owner's share until the owner reduces
// the pack. The address is in the owner's staging memory, or in the member's own host memory.
struct ByStaging {
  static __device__ __forceinline__ u64 at(const ReduceArgs& a, u32 from, u32 owner, i64 i) { return a.data[owner] + (from * a.share + i) * 16; }
  static __device__ __forceinline__ Line load(u64 at) { return look(at); }
};
struct ByHost {
  static __device__ __forceinline__ u64 at(const ReduceArgs& a, u32 from, u32 owner, i64 i) { return a.host[from] + (owner * a.split + i) * 16; }
  static __device__ __forceinline__ Line load(u64 at) { return loadLine(at); }
};

// pushChunk sends chunk c of each peer's share, U packs for each thread.
template <class T, int W, int U, class Way> DEV void pushChunk(const ReduceArgs& a, i64 c, i64 total) {
  const u32 r = (u32)a.team.rank;
#pragma unroll
  for (int k = 0; k < W - 1; k++) {
    const u32 q = peerOf<W>(a.team, k);
    Line v[U];
#pragma unroll
    for (int u = 0; u < U; u++) {
      const i64 i = (c * U + u) * blockDim.x + threadIdx.x;
      if (i < a.share && q * a.share + i < total) v[u] = loadCut<Line, T, true>(a.in[r], q * a.share + i, a.count);
    }
#pragma unroll
    for (int u = 0; u < U; u++) {
      const i64 i = (c * U + u) * blockDim.x + threadIdx.x;
      if (i < a.share && q * a.share + i < total) storeLine(Way::at(a, r, q, i), v[u]);
    }
  }
}

// foldChunk reduces chunk c of the member's share, as many packs at a time as registers permit.
template <class F, class T, int W, int U, class Way, class Into> DEV void foldChunk(const ReduceArgs& a, i64 c, i64 total) {
  const u32 r = (u32)a.team.rank;
  constexpr int together = U < 4 / W + 1 ? U : 4 / W + 1;
#pragma unroll
  for (int u0 = 0; u0 < U; u0 += together) {
    Line x[together][W];
#pragma unroll
    for (int u = 0; u < together; u++) {
      const i64 i = (c * U + u0 + u) * blockDim.x + threadIdx.x;
      if (u0 + u < U && i < a.share && r * a.share + i < total)
#pragma unroll
        for (int q = 0; q < W; q++)
          x[u][q] = q == r ? loadCut<Line, T, true>(a.in[r], r * a.share + i, a.count) : Way::load(Way::at(a, q, r, i));
    }
#pragma unroll
    for (int u = 0; u < together; u++) {
      const i64 i = (c * U + u0 + u) * blockDim.x + threadIdx.x;
      if (u0 + u < U && i < a.share && r * a.share + i < total) Into::template put<T, W>(a, r * a.share + i, fold<F, T, W>(x[u]));
    }
  }
}

// awaitChunks waits until all peers have sent their parts of n chunks: c, c + step, …
template <int W> DEV void awaitChunks(Patience& p, const ReduceArgs& a, i64 c, i64 step, i64 n, u32 e) {
  const u32 r = (u32)a.team.rank, q = threadIdx.x % W, at = threadIdx.x / W, together = blockDim.x / W;
  for (i64 k = at; k < n && at < together; k += together)
    if (q != r) waitFlag(p, a.team, flagAt(a, r, q, c + k * step, e), q, e);
  __syncthreads();
}

// tellChunks raises the chunks' flags at all peers, after the data that the block's threads have written.
template <int W> DEV void tellChunks(const ReduceArgs& a, i64 c, i64 step, i64 n, u32 e) {
  const u32 r = (u32)a.team.rank, q = threadIdx.x % W, at = threadIdx.x / W, together = blockDim.x / W;
  __syncthreads();
  for (i64 k = at; k < n && at < together; k += together)
    if (q != r) release32(flagAt(a, q, r, c + k * step, e), e);
}

template <int W> DEV void awaitChunk(Patience& p, const ReduceArgs& a, i64 c, u32 e) { awaitChunks<W>(p, a, c, 0, 1, e); }
template <int W> DEV void tellAll(const ReduceArgs& a, i64 c, u32 e) { tellChunks<W>(a, c, 0, 1, e); }

// pushChunks runs both phases with the blocks from first on. The first phase processes the chunks from pushed on, and
// the second those from folded on; other blocks process the earlier chunks. A block pushes a group of its chunks and
// raises their flags, which waits until the data has arrived. The block then reduces the previous group.
template <class F, class T, int W, int U, class Into> DEV void pushChunks(Patience& p, const ReduceArgs& a, i64 total, u32 first, i64 pushed, i64 folded, u32 e) {
  const i64 chunk = (i64)blockDim.x * U, step = gridDim.x - first, begin = pushed + blockIdx.x - first;
  const i64 mine = ((a.share + chunk - 1) / chunk - begin + step - 1) / step;
  for (i64 sent = 0, done = 0; done < mine;) {
    const i64 there = sent;
    sent = mine - sent < a.group ? mine : sent + a.group;
    for (i64 k = there; k < sent; k++) pushChunk<T, W, U, ByStaging>(a, begin + k * step, total);
    if (sent > there) tellChunks<W>(a, begin + there * step, step, sent - there, e);
    while (done < there && begin + done * step < folded) done++;
    if (done < there) awaitChunks<W>(p, a, begin + done * step, step, there - done, e);
    for (; done < there; done++) foldChunk<F, T, W, U, ByStaging, Into>(a, begin + done * step, total);
  }
}

// Two shots through staging memory, in chunks of U packs for each thread of a block. While the peers' parts of a chunk
// are in flight, the next chunk is pushed. Results are written directly to their destination.
template <class F, class T, int W, int U> DEV void reducePush(const ReduceArgs& a) {
  const u32 e = begin(a.team, lastEpoch(a.team));
  constexpr int V = 16 / sizeof(T);
  Patience p = {0, 0};
  pushChunks<F, T, W, U, IntoAll>(p, a, (a.count + V - 1) / V, 0, 0, 0, e);
  meet<W>(p, a, a.slots - blocksMost, e);
  end(a.team, e);
}

// Only the first shot: members keep the share that they have reduced. The meeting at the end ensures that staging
// memory is not overwritten while a member reads it.
template <class F, class T, int W, int U> DEV void reduceScatterPush(const ReduceArgs& a) {
  const u32 e = begin(a.team, lastEpoch(a.team));
  Patience p = {0, 0};
  pushChunks<F, T, W, U, IntoOwn>(p, a, a.share * W, 0, 0, 0, e);
  meet<W>(p, a, a.slots - blocksMost, e);
  end(a.team, e);
}

// reduceScatterPush with the chunks before split transferred through host memory. Some blocks write these chunks to
// host memory, and some reduce them from there, with the same flags as without host memory. The meeting at the end also
// ensures that a member's host memory is not overwritten while another member reads it.
template <class F, class T, int W, int U> DEV void reduceScatterHost(const ReduceArgs& a) {
  const u32 e = begin(a.team, lastEpoch(a.team));
  const i64 total = a.share * W, chunks = a.split / ((i64)blockDim.x * U);
  const u32 writers = (u32)a.writers, aside = writers + (u32)a.readers;
  Patience p = {0, 0};
  if (blockIdx.x < writers) {
    for (i64 c = blockIdx.x; c < chunks; c += writers) {
      pushChunk<T, W, U, ByHost>(a, c, total);
      tellAll<W>(a, c, e);
    }
  } else if (blockIdx.x < aside) {
    for (i64 c = blockIdx.x - writers; c < chunks; c += a.readers) {
      awaitChunk<W>(p, a, c, e);
      foldChunk<F, T, W, U, ByHost, IntoOwn>(a, c, total);
    }
  } else {
    pushChunks<F, T, W, U, IntoOwn>(p, a, total, aside, chunks, chunks, e);
  }
  meet<W>(p, a, a.slots - blocksMost, e);
  end(a.team, e);
}

// hostRows is the number of packs that a thread has in flight through host memory.
enum { hostRows = 2 };

// writeHost writes the packs from split on to host memory in chunks, and raises a flag after each chunk. The flags of
// these chunks precede the flags of the meeting at the end.
template <class T> DEV void writeHost(const ReduceArgs& a, i64 total, u32 e) {
  const u32 r = (u32)a.team.rank, peer = 1 - r;
  const i64 chunk = (i64)blockDim.x * hostRows, chunks = (total - a.split + chunk - 1) / chunk;
  for (i64 c = blockIdx.x; c < chunks; c += a.writers) {
    Line v[hostRows];
#pragma unroll
    for (int u = 0; u < hostRows; u++) {
      const i64 i = a.split + c * chunk + u * blockDim.x + threadIdx.x;
      if (i < total) v[u] = loadCut<Line, T, true>(a.in[r], i, a.count);
    }
#pragma unroll
    for (int u = 0; u < hostRows; u++) {
      const i64 i = c * chunk + u * blockDim.x + threadIdx.x;
      if (a.split + i < total) storeLine(a.host[r] + (e & 1) * a.hostHalf + i * 16, v[u]);
    }
    __syncthreads();
    if (threadIdx.x == 0) release32(flagAt(a, peer, r, a.slots - blocksMost - chunks + c, e), e);
  }
}

// readHost reduces the packs that the peer has written to its host memory.
template <class F, class T> DEV void readHost(Patience& p, const ReduceArgs& a, i64 total, u32 e) {
  const u32 r = (u32)a.team.rank, peer = 1 - r;
  const i64 chunk = (i64)blockDim.x * hostRows, chunks = (total - a.split + chunk - 1) / chunk;
  for (i64 c = blockIdx.x - a.writers; c < chunks; c += a.readers) {
    if (threadIdx.x == 0) waitFlag(p, a.team, flagAt(a, r, peer, a.slots - blocksMost - chunks + c, e), peer, e);
    __syncthreads();
    Line x[hostRows][2];
#pragma unroll
    for (int u = 0; u < hostRows; u++) {
      const i64 i = c * chunk + u * blockDim.x + threadIdx.x;
      if (a.split + i < total) {
        x[u][1] = loadLine(a.host[peer] + (e & 1) * a.hostHalf + i * 16);
        x[u][0] = loadCut<Line, T, true>(a.in[r], a.split + i, a.count);
      }
    }
#pragma unroll
    for (int u = 0; u < hostRows; u++) {
      const i64 i = a.split + c * chunk + u * blockDim.x + threadIdx.x;
      const Line ordered[2] = {r == 0 ? x[u][0] : x[u][1], r == 0 ? x[u][1] : x[u][0]};
      if (i < total) storeCut<Line, T, true>(a.out[r], i, a.count, fold<F, T, 2>(ordered));
    }
  }
}

// reducePush of the packs before split by two members, while the other packs are exchanged through host memory in one
// shot. The bus to the host does not share bandwidth with the link.
template <class F, class T, int W, int U> DEV void reduceHost(const ReduceArgs& a) {
  static_assert(W == 2, "one shot sends as little data as two shots only between two members");
  const u32 e = begin(a.team, lastEpoch(a.team));
  constexpr int V = 16 / sizeof(T);
  const i64 total = (a.count + V - 1) / V, aside = a.writers + a.readers;
  Patience p = {0, 0};
  if (blockIdx.x < a.writers) writeHost<T>(a, total, e);
  else if (blockIdx.x < aside) readHost<F, T>(p, a, total, e);
  else pushChunks<F, T, W, U, IntoAll>(p, a, a.split, (u32)aside, 0, 0, e);
  meet<W>(p, a, a.slots - blocksMost, e);
  end(a.team, e);
}

// resultsToHost reduces the chunks before split, writes the results to host memory, and raises their flags. These
// precede the flags of the meeting at the end.
template <class F, class T, int W, int U> DEV void resultsToHost(Patience& p, const ReduceArgs& a, i64 total, i64 chunks, u32 e) {
  for (i64 c = blockIdx.x; c < chunks; c += a.writers) {
    awaitChunk<W>(p, a, c, e);
    foldChunk<F, T, W, U, ByStaging, IntoHost>(a, c, total);
    tellAll<W>(a, a.slots - blocksMost - chunks + c, e);
  }
}

// resultsFromHost reads the results that the peers have written to their host memory.
template <class T, int W, int U> DEV void resultsFromHost(Patience& p, const ReduceArgs& a, i64 total, i64 chunks, u32 e) {
  const u32 r = (u32)a.team.rank;
  for (i64 k = blockIdx.x - a.writers; k < chunks * (W - 1); k += a.readers) {
    const i64 c = k / (W - 1);
    const u32 q = (r + 1 + (u32)(k % (W - 1))) % W;
    if (threadIdx.x == 0) waitFlag(p, a.team, flagAt(a, r, q, a.slots - blocksMost - chunks + c, e), q, e);
    __syncthreads();
    Line v[U];
#pragma unroll
    for (int u = 0; u < U; u++) {
      const i64 i = (c * U + u) * blockDim.x + threadIdx.x;
      if (i < a.share && q * a.share + i < total) v[u] = loadLine(a.host[q] + i * 16);
    }
#pragma unroll
    for (int u = 0; u < U; u++) {
      const i64 i = (c * U + u) * blockDim.x + threadIdx.x;
      if (i < a.share && q * a.share + i < total) storeCut<Line, T, true>(a.out[r], q * a.share + i, a.count, v[u]);
    }
  }
}

// reducePush by any number of members. The results of the first chunks are sent to the other members through host
// memory.
template <class F, class T, int W, int U> DEV void reduceResults(const ReduceArgs& a) {
  const u32 e = begin(a.team, lastEpoch(a.team));
  constexpr int V = 16 / sizeof(T);
  const i64 total = (a.count + V - 1) / V, chunks = a.split / ((i64)blockDim.x * U);
  const u32 writers = (u32)a.writers, aside = writers + (u32)a.readers;
  Patience p = {0, 0};
  if (blockIdx.x < writers) resultsToHost<F, T, W, U>(p, a, total, chunks, e);
  else if (blockIdx.x < aside) resultsFromHost<T, W, U>(p, a, total, chunks, e);
  else pushChunks<F, T, W, U, IntoAll>(p, a, total, aside, 0, chunks, e);
  meet<W>(p, a, a.slots - blocksMost, e);
  end(a.team, e);
}

// Each member reads its share from all members, and writes the result to all.
template <class F, class T, int W, int U> DEV void reducePull(const ReduceArgs& a) {
  const Team& t = a.team;
  const u32 r = (u32)t.rank, e = begin(t, lastEpoch(t));
  constexpr int V = 16 / sizeof(T);
  const i64 total = (a.count + V - 1) / V, lo = r * a.share, hi = lo + a.share < total ? lo + a.share : total;
  const i64 step = (i64)gridDim.x * blockDim.x;
  Patience p = {0, 0};
  meet<W>(p, a, 0, e);
  for (i64 i = lo + (i64)blockIdx.x * blockDim.x + threadIdx.x; i < hi; i += U * step) {
    Line x[U][W];
#pragma unroll
    for (int u = 0; u < U; u++)
#pragma unroll
      for (int q = 0; q < W; q++)
        if (i + u * step < hi) x[u][q] = loadCut<Line, T, true>(a.in[q], i + u * step, a.count);
#pragma unroll
    for (int u = 0; u < U; u++)
      if (i + u * step < hi) IntoAll::put<T, W>(a, i + u * step, fold<F, T, W>(x[u]));
  }
  meet<W>(p, a, blocksMost, e);
  end(t, e);
}
