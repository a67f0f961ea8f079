// All-reduce, in the order of the members, rounded once: the same bits on every
// member, by every algorithm.

struct ReduceArgs {
  Team team;
  u64 in[teamMost], out[teamMost];  // of each member; its own alone where flags lie among the data
  u64 data[teamMost], half;         // of each member: two halves that data is pushed to, or staging
  u64 flags[teamMost], flagHalf;    // of each member: two halves of words, where data has no flags
  i64 count, share, slots;          // elements; packs or sheets that each member adds up; flags of a member
  u64 host[teamMost];               // of each member: host memory, for what lies behind split or, of others, before it
  i64 split, writers, readers;      // packs; blocks that write there, and that read what peers wrote
  i64 group;                        // chunks that a block pushes before it tells of them
  i64 hostHalf, calm;               // bytes of a half of host memory, 0 where it has none; 1: one thread of a warp looks first
};

struct RedSum : FoldSum { template <class A> DEV A done(A a, int) { return a; } };
struct RedMax : FoldMax { template <class A> DEV A done(A a, int) { return a; } };
struct RedMin : FoldMin { template <class A> DEV A done(A a, int) { return a; } };
struct RedAvg : FoldSum { template <class A> DEV A done(A a, int n) { return a / (A)n; } };

// fold adds up what the members have, each as bits of some elements.
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

// isOf reports whether both halves of a line are of epoch e.
DEV bool isOf(Line l, u32 e) { return l.y == e && l.w == e; }

// awaitHalves waits for a line of each peer, as awaitSheets does.
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

// One shot, an epoch in each half of a line: everybody pushes all to all, and
// adds up all. U halves of a thread are under way at once.
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

// Two shots of the same lines: each member adds up its share and pushes the
// result to all. What is pushed second lies behind what is pushed first.
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

// pushToAll pushes a sheet to the same place at all peers. Of few sheets, all warps
// may begin with the same one: it takes less to know which.
template <int W, int R, bool Few> DEV void pushToAll(const ReduceArgs& a, u64 off, Sheet<R> s, u32 e) {
  seal(s, e);
#pragma unroll
  for (int k = 0; k < W - 1; k++) pushSheet<R>(a.data[Few ? ((u32)a.team.rank + 1 + k) % W : peerOf<W>(a.team, k)] + off, s);
}

// One shot in sheets: an epoch in each 128 bytes. A warp pushes a sheet before it
// waits for the one before.
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

// Spread pushes sheet i of each peer's part to it, as the warp visits them, and
// returns its own. Loads come first, whatever epoch it is.
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

// Two shots in sheets: sheet i of each share. The next ones are pushed before the
// results of these are waited for.
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
    if (W * R <= 8) {  // as registers allow
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

// flagAt is where member q tells member of something.
DEV u64 flagAt(const ReduceArgs& a, u32 member, u32 q, i64 slot, u32 e) {
  return a.flags[member] + (e & 1) * a.flagHalf + (q * a.slots + slot) * 4;
}

// meet has each block wait for the blocks of the same number of all members;
// what they wrote before is then seen by all of the block.
template <int W> DEV void meet(Patience& p, const ReduceArgs& a, i64 slot, u32 e) {
  const u32 r = (u32)a.team.rank, q = threadIdx.x;
  __syncthreads();
  if (q < W && q != r) {
    release32(flagAt(a, q, r, slot + blockIdx.x, e), e);
    waitFlag(p, a.team, flagAt(a, r, q, slot + blockIdx.x, e), q, e);
  }
  __syncthreads();
}

// IntoAll writes pack i, added up, to all members.
struct IntoAll {
  template <class T, int W> static __device__ __forceinline__ void put(const ReduceArgs& a, i64 i, Line y) {
    const u32 turn = turnOf(a.team);
#pragma unroll
    for (int k = 0; k < W; k++) storeCut<Line, T, true>(a.out[(turn + k) % W], i, a.count, y);
  }
};

// IntoHost writes it to this member, and to host memory for the others.
struct IntoHost {
  template <class T, int W> static __device__ __forceinline__ void put(const ReduceArgs& a, i64 i, Line y) {
    const u32 r = (u32)a.team.rank;
    storeLine(a.host[r] + (i - r * a.share) * 16, y);
    storeCut<Line, T, true>(a.out[r], i, a.count, y);
  }
};

// IntoOwn writes it to this member alone: the share, in whole packs.
struct IntoOwn {
  template <class T, int W> static __device__ __forceinline__ void put(const ReduceArgs& a, i64 i, Line y) {
    const u32 r = (u32)a.team.rank;
    storeLine(a.out[r] + (i - r * a.share) * 16, y);
  }
};

// ByStaging and ByHost are ways on which pack i of what a member has for an owner
// lies in between: the owner's staging memory, or the member's host memory.
struct ByStaging {
  static __device__ __forceinline__ u64 at(const ReduceArgs& a, u32 from, u32 owner, i64 i) { return a.data[owner] + (from * a.share + i) * 16; }
  static __device__ __forceinline__ Line load(u64 at) { return look(at); }
};
struct ByHost {
  static __device__ __forceinline__ u64 at(const ReduceArgs& a, u32 from, u32 owner, i64 i) { return a.host[from] + (owner * a.split + i) * 16; }
  static __device__ __forceinline__ Line load(u64 at) { return loadLine(at); }
};

// pushChunk sends the parts of the peers' shares that chunk c is on their way, U
// packs a thread.
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

// foldChunk adds up chunk c of the member's share, as many packs at once as
// registers allow.
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

// awaitChunks waits until all peers have pushed their parts of n chunks, c and on by
// step.
template <int W> DEV void awaitChunks(Patience& p, const ReduceArgs& a, i64 c, i64 step, i64 n, u32 e) {
  const u32 r = (u32)a.team.rank, q = threadIdx.x % W, at = threadIdx.x / W, together = blockDim.x / W;
  for (i64 k = at; k < n && at < together; k += together)
    if (q != r) waitFlag(p, a.team, flagAt(a, r, q, c + k * step, e), q, e);
  __syncthreads();
}

// tellChunks raises their flags at all peers, for what the block's threads wrote before.
template <int W> DEV void tellChunks(const ReduceArgs& a, i64 c, i64 step, i64 n, u32 e) {
  const u32 r = (u32)a.team.rank, q = threadIdx.x % W, at = threadIdx.x / W, together = blockDim.x / W;
  __syncthreads();
  for (i64 k = at; k < n && at < together; k += together)
    if (q != r) release32(flagAt(a, q, r, c + k * step, e), e);
}

template <int W> DEV void awaitChunk(Patience& p, const ReduceArgs& a, i64 c, u32 e) { awaitChunks<W>(p, a, c, 0, 1, e); }
template <int W> DEV void tellAll(const ReduceArgs& a, i64 c, u32 e) { tellChunks<W>(a, c, 0, 1, e); }

// pushChunks is the two shots, by blocks first and up: one of chunks from pushed on,
// the other of those from folded on; those before are for other blocks. A block pushes
// a group of its chunks, tells of them, which takes until they are there, and adds up
// the group before.
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

// Two shots through staging memory, in chunks of U packs for each thread of a
// block: while the peers' part of a chunk is under way the next one is pushed.
// Results go straight to where they belong.
template <class F, class T, int W, int U> DEV void reducePush(const ReduceArgs& a) {
  const u32 e = begin(a.team, lastEpoch(a.team));
  constexpr int V = 16 / sizeof(T);
  Patience p = {0, 0};
  pushChunks<F, T, W, U, IntoAll>(p, a, (a.count + V - 1) / V, 0, 0, 0, e);
  meet<W>(p, a, a.slots - blocksMost, e);
  end(a.team, e);
}

// The first shot alone: members keep what they add up. That all meet at the end
// keeps staging memory from being written while somebody reads it.
template <class F, class T, int W, int U> DEV void reduceScatterPush(const ReduceArgs& a) {
  const u32 e = begin(a.team, lastEpoch(a.team));
  Patience p = {0, 0};
  pushChunks<F, T, W, U, IntoOwn>(p, a, a.share * W, 0, 0, 0, e);
  meet<W>(p, a, a.slots - blocksMost, e);
  end(a.team, e);
}

// reduceScatterPush in which the first chunks, those before split, go by way of host
// memory: some blocks write them there, and some add them up from there. Flags are
// those of the same chunks. That all meet at the end keeps a member's host memory,
// too, from being written anew while somebody reads it.
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

// hostRows is how many packs a thread has under way by host memory.
enum { hostRows = 2 };

// writeHost writes chunks of what lies behind split to host memory, a flag behind
// each. Flags of these chunks come before those in which all meet.
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

// readHost adds up what the peer has written there.
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

// reducePush of the packs before split by two members, while the rest goes by way
// of host memory: one shot, over a bus that is no part of the link.
template <class F, class T, int W, int U> DEV void reduceHost(const ReduceArgs& a) {
  static_assert(W == 2, "one shot sends no more than two do between two members only");
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

// resultsToHost adds up the chunks before split, writes them to host memory, and
// says so in the flags before those in which all meet.
template <class F, class T, int W, int U> DEV void resultsToHost(Patience& p, const ReduceArgs& a, i64 total, i64 chunks, u32 e) {
  for (i64 c = blockIdx.x; c < chunks; c += a.writers) {
    awaitChunk<W>(p, a, c, e);
    foldChunk<F, T, W, U, ByStaging, IntoHost>(a, c, total);
    tellAll<W>(a, a.slots - blocksMost - chunks + c, e);
  }
}

// resultsFromHost reads what the peers have written there.
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

// reducePush by any number of members, in which results of the first chunks reach
// the others by way of host memory.
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

// Each member reads its share from all, and writes the sum to all.
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
