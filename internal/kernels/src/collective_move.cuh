// Collectives whose members send blocks to each other, including those that reduce the blocks at the receiver.

struct MoveArgs {
  Team team;
  // to, from: sets of members, one bit for each, without this one; own: 1 if the member also copies its own block
  u64 to, from, own;
  u64 slots[teamMost];         // by member: two halves for packs that contain flags
  u64 slotHalf;                // bytes
  u64 flags[teamMost];         // by member: two halves of flags
  u64 src[teamMost];           // by member: address of the data for that member; if members pull, address of the data in that member's memory
  u64 dst[teamMost];           // by member: address of the destination, in that member's memory if members push, else in this one's
  i64 run;                     // number of bytes that are contiguous in all blocks
  i64 n[3];                    // extents around the runs, the innermost first
  i64 ss[teamMost][3], sd[teamMost][3];  // strides of src and dst in bytes
  u64 root;                    // for spreads: the member that owns the block
};

// Kinds of flags: a block has entered a launch; it has finished the launch; a member has entered a launch in which it
// sends nothing. Waits compare for equality, which is sufficient because no member is two launches ahead, and
// successive launches use different halves. A half has space for four kinds, because the host allocates halves whose
// size is a power of two, and a half is cleared as a whole.
enum { flagEntered, flagDone, flagIdle, flagRoom = 4 };

DEV u64 flagOf(const MoveArgs& a, u32 at, u32 kind, u32 by, u32 block, u32 e) {
  return a.flags[at] + 4 * ((((u64)(e & 1) * flagRoom + kind) * teamMost + by) * blocksMost + block);
}

DEV bool awaitFlag(const MoveArgs& a, Patience& w, u32 kind, u32 by, u32 block, u32 e) {
  const u64 at = flagOf(a, (u32)a.team.rank, kind, by, block, e);
  while (acquire32(at) != e)
    if (waited(w, a.team, by, e)) return false;
  return true;
}

// meetBlocks synchronizes the blocks with the same number of all members: each raises a flag and waits for the flags of
// the others. Afterwards, everything that these blocks wrote before is visible to them. It returns false in all threads
// of the block if it timed out waiting for a member.
template <int W> DEV bool meetBlocks(const MoveArgs& a, Patience& w, u32 kind, u32 e) {
  bool here = true;
  const u32 p = threadIdx.x;
  if (p < W && p != a.team.rank) {
    release32(flagOf(a, p, kind, (u32)a.team.rank, blockIdx.x, e), e);
    here = awaitFlag(a, w, kind, p, blockIdx.x, e);
  }
  return __syncthreads_and(here);
}

// Off is the offset of a row from the first row, at the source and at the destination.
struct Off { i64 s, d; };

template <int D> DEV Off rowAt(const MoveArgs& a, u32 src, u32 dst, u32 row) {
  Off o = {0, 0};
#pragma unroll
  for (int k = 0; k < D; k++) {
    u32 x = row;
    if (k < D - 1) {
      const u32 n = (u32)a.n[k];
      row /= n;
      x -= row * n;
    }
    o.s += x * a.ss[src][k];
    o.d += x * a.sd[dst][k];
  }
  return o;
}

template <int D> DEV u32 rowsOf(const MoveArgs& a) {
  u32 n = 1;
#pragma unroll
  for (int k = 0; k < D; k++) n *= (u32)a.n[k];
  return n;
}

// Word loads and stores N bytes at an address that is a multiple of V. The last word of a row may be shorter.
template <int V> struct Word;
template <> struct Word<1> { typedef u8 T; };
template <> struct Word<2> { typedef u16 T; };
template <> struct Word<4> { typedef u32 T; };
template <> struct Word<8> { typedef u64 T; };
template <> struct Word<16> { typedef Pack<u64, 2> T; };

template <int N, int V> DEV void loadBytes(typename Word<N>::T& to, u64 at, i64 count) {
  typedef typename Word<V>::T W;
  if (count >= N) {
#pragma unroll
    for (int k = 0; k < N / V; k++) ((W*)&to)[k] = ((const W*)at)[k];
    return;
  }
#pragma unroll
  for (int k = 0; k < N; k++)
    if (k < count) ((u8*)&to)[k] = ((const u8*)at)[k];
}

template <int N, int V> DEV void storeBytes(u64 at, const typename Word<N>::T& from, i64 count) {
  typedef typename Word<V>::T W;
  if (count >= N) {
#pragma unroll
    for (int k = 0; k < N / V; k++) ((W*)at)[k] = ((const W*)&from)[k];
    return;
  }
#pragma unroll
  for (int k = 0; k < N; k++)
    if (k < count) ((u8*)at)[k] = ((const u8*)&from)[k];
}

DEV u32 packsOf(const MoveArgs& a) { return (u32)((a.run + 7) / 8); }

template <int W> DEV u64 slotOf(const MoveArgs& a, u32 at, u32 from, u32 e, u32 total, u32 pack) {
  return a.slots[at] + (e & 1) * a.slotHalf + ((u64)from * total + pack) * 16;
}

// sayIdle signals that a member that sends nothing in a launch has entered the launch.
template <int W> DEV void sayIdle(const MoveArgs& a, u32 e) {
  const u32 p = threadIdx.x;
  if (blockIdx.x == 0 && p < W && p != a.team.rank && !(a.to >> p & 1)) release32(flagOf(a, p, flagIdle, (u32)a.team.rank, 0, e), e);
}

template <int W> DEV void awaitIdle(const MoveArgs& a, Patience& w, u32 e) {
  const u32 p = threadIdx.x;
  if (blockIdx.x == 0 && p < W && p != a.team.rank && !(a.from >> p & 1)) awaitFlag(a, w, flagIdle, p, 0, e);
}

// sendLL sends each member its block in packs of 8 bytes, with the epoch stored next to each half of a pack. VS is the
// alignment of source addresses.
template <int W, int D, int VS> DEV void sendLL(const MoveArgs& a, u32 per, u32 total, u32 e) {
  for (u32 u = blockIdx.x * blockDim.x + threadIdx.x; u < total; u += gridDim.x * blockDim.x) {
    const u32 row = D ? u / per : 0, col = u - row * per;
    const i64 left = a.run - (i64)col * 8;
#pragma unroll
    for (int q = 1; q < W; q++) {
      const u32 p = ((u32)a.team.rank + q) % W;
      if (!(a.to >> p & 1)) continue;
      u64 v = 0;
      loadBytes<8, VS>(v, a.src[p] + rowAt<D>(a, p, p, row).s + (u64)col * 8, left);
      push(slotOf<W>(a, p, (u32)a.team.rank, e, total, u), Line{(u32)v, e, (u32)(v >> 32), e});
    }
  }
}

// receiveLL waits for the packs u + k·step of every member, for k < U.
template <int W, int U> DEV bool receiveLL(const MoveArgs& a, Patience& w, u32 e, u32 total, u32 u, u32 step, u64 (&v)[U][W]) {
  for (;;) {
    u32 absent = W;
#pragma unroll
    for (int k = 0; k < U; k++) {
      const u32 i = u + k * step;
#pragma unroll
      for (int q = 0; q < W; q++) {
        if (q == a.team.rank || !(a.from >> q & 1) || i >= total) continue;
        const Line x = look(slotOf<W>(a, (u32)a.team.rank, q, e, total, i));
        v[k][q] = (u64)x.z << 32 | x.x;
        if (x.y != e || x.w != e) absent = q;
      }
    }
    if (absent == W) return true;
    if (waited(w, a.team, absent, e)) return false;
  }
}

// Deep is the number U of packs of each member in flight, which is large enough to hide their latency.
template <int W> struct Deep { enum { U = W == 2 ? 4 : W <= 4 ? 2 : 1 }; };

// moveLL moves blocks through slots. No member waits for permission to send.
template <int W, int D, int VS, int VD> DEV void moveLL(const MoveArgs& a) {
  const u32 e = begin(a.team, lastEpoch(a.team)), me = (u32)a.team.rank;
  const u32 per = packsOf(a), total = per * rowsOf<D>(a), step = gridDim.x * blockDim.x, first = blockIdx.x * blockDim.x + threadIdx.x;
  Patience w = {0, 0};
  sayIdle<W>(a, e);
  sendLL<W, D, VS>(a, per, total, e);
  if (a.own)
    for (u32 u = first; u < total; u += step) {
      const u32 row = D ? u / per : 0, col = u - row * per;
      const Off o = rowAt<D>(a, me, me, row);
      u64 v;
      loadBytes<8, VS>(v, a.src[me] + o.s + (u64)col * 8, a.run - (i64)col * 8);
      storeBytes<8, VD>(a.dst[me] + o.d + (u64)col * 8, v, a.run - (i64)col * 8);
    }
  enum { U = Deep<W>::U };
  if (a.from)
    for (u32 u = first; u < total; u += U * step) {
      u64 v[U][W];
      if (!receiveLL<W, U>(a, w, e, total, u, step, v)) break;
#pragma unroll
      for (int k = 0; k < U; k++) {
        const u32 i = u + k * step;
        if (i >= total) break;
        const u32 row = D ? i / per : 0, col = i - row * per;
#pragma unroll
        for (int q = 0; q < W; q++)
          if (q != me && a.from >> q & 1)
            storeBytes<8, VD>(a.dst[q] + rowAt<D>(a, q, q, row).d + (u64)col * 8, v[k][q], a.run - (i64)col * 8);
      }
    }
  awaitIdle<W>(a, w, e);
  end(a.team, e);
}

// fold reduces B bytes of each member, in the members' order, and rounds once.
template <class T, class F, bool Avg, int W, int B> DEV void fold(typename Word<B>::T& to, const typename Word<B>::T (&x)[W]) {
  typedef typename Num<T>::Acc A;
#pragma unroll
  for (int k = 0; k < B / (int)sizeof(T); k++) {
    A sum = Num<T>::get(((const T*)&x[0])[k]);
#pragma unroll
    for (int q = 1; q < W; q++) sum = F::of(sum, Num<T>::get(((const T*)&x[q])[k]));
    if (Avg) sum = sum / (A)W;
    ((T*)&to)[k] = Num<T>::put(sum);
  }
}

// reduceLL is like moveLL, and reduces the arriving data.
template <class T, class F, bool Avg, int W, int D, int VS, int VD> DEV void reduceLL(const MoveArgs& a) {
  const u32 e = begin(a.team, lastEpoch(a.team)), me = (u32)a.team.rank;
  const u32 per = packsOf(a), total = per * rowsOf<D>(a), step = gridDim.x * blockDim.x, first = blockIdx.x * blockDim.x + threadIdx.x;
  Patience w = {0, 0};
  sayIdle<W>(a, e);
  sendLL<W, D, VS>(a, per, total, e);
  enum { U = Deep<W>::U };
  if (a.own)
    for (u32 u = first; u < total; u += U * step) {
      u64 v[U][W], mine[U];
#pragma unroll
      for (int k = 0; k < U; k++) {
        const u32 i = u + k * step, row = D ? i / per : 0, col = i - row * per;
        mine[k] = 0;
        if (i < total) loadBytes<8, VS>(mine[k], a.src[me] + rowAt<D>(a, me, me, row).s + (u64)col * 8, a.run - (i64)col * 8);
      }
      if (!receiveLL<W, U>(a, w, e, total, u, step, v)) break;
#pragma unroll
      for (int k = 0; k < U; k++) {
        const u32 i = u + k * step;
        if (i >= total) break;
        const u32 row = D ? i / per : 0, col = i - row * per;
#pragma unroll
        for (int q = 0; q < W; q++)
          if (q == me) v[k][q] = mine[k];
        u64 sum;
        fold<T, F, Avg, W, 8>(sum, v[k]);
        storeBytes<8, VD>(a.dst[me] + rowAt<D>(a, me, me, row).d + (u64)col * 8, sum, a.run - (i64)col * 8);
      }
    }
  awaitIdle<W>(a, w, e);
  end(a.team, e);
}

// sheetsOf returns the number of LL128 lines of a contiguous block with elements of type T. In the functions that
// follow, AS and AD report whether source and destination addresses are multiples of 16 bytes.
template <class T, int R> DEV i64 sheetsOf(const MoveArgs& a) {
  const i64 bytes = (i64)Sheet<R>::packs * 16;
  return (a.run + bytes - 1) / bytes;
}

template <int R> DEV u64 sheetAt(const MoveArgs& a, u32 at, u32 from, u32 e, i64 sheets, i64 i) {
  return a.slots[at] + (e & 1) * a.slotHalf + ((u64)from * sheets + i) * Sheet<R>::bytes;
}

// giveSheet pushes sheet i of each member's block to that member. If Keep is set, it also stores the sheet of this
// member's own block. Same: the block is the same for all members.
template <class T, int W, int R, bool AS, bool AD, bool Same, bool Keep> DEV void giveSheet(const MoveArgs& a, i64 i, i64 sheets, u32 e) {
  const u32 me = (u32)a.team.rank, set = (u32)a.to | (a.own ? 1u << me : 0);
  const i64 first = i * Sheet<R>::packs, count = a.run / (i64)sizeof(T);
  if (!set) return;
  Sheet<R> s;
  if (Same) {
    u32 any = 0;
    while (!(set >> any & 1)) any++;
    s = loadSheet<T, AS, R>(a.src[any], first, count);
  }
  if (Keep && a.own) {
    if (!Same) s = loadSheet<T, AS, R>(a.src[me], first, count);
    storeSheet<T, AD, R>(a.dst[me], first, count, s);
  }
  if (Same) seal(s, e);
#pragma unroll
  for (int k = 0; k < W - 1; k++) {
    const u32 q = peerOf<W>(a.team, k);
    if (!(a.to >> q & 1)) continue;
    if (!Same) {
      s = loadSheet<T, AS, R>(a.src[q], first, count);
      seal(s, e);
    }
    pushSheet<R>(sheetAt<R>(a, q, me, e, sheets, i), s);
  }
}

// moveSheets moves blocks through slots in LL128 lines. A warp pushes its next sheet before it waits for the previous
// one.
template <class T, int W, int R, bool AS, bool AD, bool Same> DEV void moveSheets(const MoveArgs& a) {
  const u32 e = begin(a.team, lastEpoch(a.team)), me = (u32)a.team.rank;
  const i64 sheets = sheetsOf<T, R>(a), count = a.run / (i64)sizeof(T);
  Patience w = {0, 0};
  sayIdle<W>(a, e);
  i64 i = warpOf();
  if (i < sheets) giveSheet<T, W, R, AS, AD, Same, true>(a, i, sheets, e);
  while (i < sheets) {
    Sheet<R> x[W];
#pragma unroll
    for (int q = 0; q < W; q++)
      if (q != me && a.from >> q & 1) x[q] = lookSheet<R>(sheetAt<R>(a, me, q, e, sheets, i));
    const i64 next = i + warpsOf();
    if (next < sheets) giveSheet<T, W, R, AS, AD, Same, true>(a, next, sheets, e);
    awaitSheets<W, R>(w, a.team, sheetAt<R>(a, me, 0, e, sheets, i), sheets * Sheet<R>::bytes, x, e, (u32)a.from);
#pragma unroll
    for (int q = 0; q < W; q++)
      if (q != me && a.from >> q & 1) storeSheet<T, AD, R>(a.dst[q], i * Sheet<R>::packs, count, x[q]);
    i = next;
  }
  awaitIdle<W>(a, w, e);
  end(a.team, e);
}

// spreadSheets broadcasts one member's block in sheets. The root sends each sheet to one other member, which sends it
// to the remaining members, so that no link carries a sheet twice. Src[root] is the source and Dst[me] the destination.
template <class T, int W, int R, bool AS, bool AD> DEV void spreadSheets(const MoveArgs& a) {
  const u32 e = begin(a.team, lastEpoch(a.team)), me = (u32)a.team.rank, root = (u32)a.root;
  const i64 sheets = sheetsOf<T, R>(a), count = a.run / (i64)sizeof(T);
  Patience w = {0, 0};
  if (blockIdx.x == 0 && threadIdx.x < W && threadIdx.x != me) release32(flagOf(a, threadIdx.x, flagIdle, me, 0, e), e);
  for (i64 i = warpOf(); i < sheets; i += warpsOf()) {
    const u32 relay = (root + 1 + (u32)(i % (W - 1))) % W, from = me == relay ? root : relay;
    const i64 first = i * Sheet<R>::packs;
    Sheet<R> s;
    if (me == root) {
      s = loadSheet<T, AS, R>(a.src[me], first, count);
    } else {
      const u64 at = sheetAt<R>(a, me, from, e, sheets, i);
      s = lookSheet<R>(at);
      awaitSheet(w, a.team, at, s, from, e);
    }
    if (me != root || a.own) storeSheet<T, AD, R>(a.dst[me], first, count, s);
    if (me != root && me != relay) continue;
    seal(s, e);
#pragma unroll
    for (int k = 1; k < W; k++) {
      const u32 q = (me + k) % W;
      if (me == root ? q == relay : q != root) pushSheet<R>(sheetAt<R>(a, q, me, e, sheets, i), s);
    }
  }
  if (blockIdx.x == 0 && threadIdx.x < W && threadIdx.x != me) awaitFlag(a, w, flagIdle, threadIdx.x, 0, e);
  end(a.team, e);
}

// foldSheets reduces one sheet of each member.
template <class T, class F, bool Avg, int W, int R> DEV Sheet<R> foldSheets(const Sheet<R> (&x)[W]) {
  Sheet<R> y;
#pragma unroll
  for (int k = 0; k < R; k++) {
    Pack<u64, 2> in[W], out;
#pragma unroll
    for (int q = 0; q < W; q++) in[q] = bitsAs<Pack<u64, 2>>(x[q].row[k]);
    fold<T, F, Avg, W, 16>(out, in);
    y.row[k] = bitsAs<Line>(out);
  }
  return y;
}

// reduceSpread is the reverse of spreadSheets. Every member sends sheet i to one of the members, which reduces it and
// sends the result to the root. Src[me] is the source and Dst[root] the destination.
template <class T, class F, bool Avg, int W, int R, bool AS, bool AD> DEV void reduceSpread(const MoveArgs& a) {
  const u32 e = begin(a.team, lastEpoch(a.team)), me = (u32)a.team.rank, root = (u32)a.root;
  const i64 sheets = sheetsOf<T, R>(a), count = a.run / (i64)sizeof(T);
  Patience w = {0, 0};
  if (blockIdx.x == 0 && threadIdx.x < W && threadIdx.x != me) release32(flagOf(a, threadIdx.x, flagIdle, me, 0, e), e);
  for (i64 i = warpOf(); i < sheets; i += warpsOf()) {
    const u32 relay = (root + 1 + (u32)(i % (W - 1))) % W;
    Sheet<R> s = loadSheet<T, AS, R>(a.src[me], i * Sheet<R>::packs, count);
    u32 to = relay;
    if (me == relay) {
      Sheet<R> x[W];
#pragma unroll
      for (int q = 0; q < W; q++) x[q] = q == me ? s : lookSheet<R>(sheetAt<R>(a, me, q, e, sheets, i));
      awaitSheets<W, R>(w, a.team, sheetAt<R>(a, me, 0, e, sheets, i), sheets * Sheet<R>::bytes, x, e);
      s = foldSheets<T, F, Avg, W, R>(x);
      to = root;
    }
    seal(s, e);
    pushSheet<R>(sheetAt<R>(a, to, me, e, sheets, i), s);
  }
  if (me == root)
    for (i64 i = warpOf(); i < sheets; i += warpsOf()) {
      const u32 relay = (root + 1 + (u32)(i % (W - 1))) % W;
      const u64 at = sheetAt<R>(a, me, relay, e, sheets, i);
      Sheet<R> s = lookSheet<R>(at);
      awaitSheet(w, a.team, at, s, relay, e);
      storeSheet<T, AD, R>(a.dst[me], i * Sheet<R>::packs, count, s);
    }
  if (blockIdx.x == 0 && threadIdx.x < W && threadIdx.x != me) awaitFlag(a, w, flagIdle, threadIdx.x, 0, e);
  end(a.team, e);
}

// reduceSheets is like moveSheets, and reduces the arriving data.
template <class T, class F, bool Avg, int W, int R, bool AS, bool AD> DEV void reduceSheets(const MoveArgs& a) {
  const u32 e = begin(a.team, lastEpoch(a.team)), me = (u32)a.team.rank;
  const i64 sheets = sheetsOf<T, R>(a), count = a.run / (i64)sizeof(T);
  Patience w = {0, 0};
  sayIdle<W>(a, e);
  i64 i = warpOf();
  if (i < sheets) giveSheet<T, W, R, AS, AD, false, false>(a, i, sheets, e);
  while (i < sheets) {
    Sheet<R> x[W];
    const i64 first = i * Sheet<R>::packs;
    if (a.own)
#pragma unroll
      for (int q = 0; q < W; q++) {
        if (q == me) x[q] = loadSheet<T, AS, R>(a.src[q], first, count);
        else x[q] = lookSheet<R>(sheetAt<R>(a, me, q, e, sheets, i));
      }
    const i64 next = i + warpsOf();
    if (next < sheets) giveSheet<T, W, R, AS, AD, false, false>(a, next, sheets, e);
    if (a.own) {
      awaitSheets<W, R>(w, a.team, sheetAt<R>(a, me, 0, e, sheets, i), sheets * Sheet<R>::bytes, x, e);
      storeSheet<T, AD, R>(a.dst[me], first, count, foldSheets<T, F, Avg, W, R>(x));
    }
    i = next;
  }
  awaitIdle<W>(a, w, e);
  end(a.team, e);
}

template <int W> DEV void moveMeet(const MoveArgs& a) {
  const u32 e = begin(a.team, lastEpoch(a.team));
  Patience w = {0, 0};
  meetBlocks<W>(a, w, flagDone, e);
  end(a.team, e);
}

// Cell is an aligned unit of 16 bytes at the far end of a link, with the bytes of a row that are in it.
struct Cell { u32 row; i64 at; i64 count; };  // at: offset of the first byte from the row's begin

// cellAt returns cell i. Full: rows begin and end at cell boundaries.
template <bool Full> DEV Cell cellAt(u32 i, u32 perRow, i64 run, u32 row, u64 begin) {
  Cell c = {row, (i64)(i - row * perRow) * 16, 16};
  if (Full) return c;
  const i64 before = (i64)(begin & 15);
  i64 lo = c.at - before, hi = lo + 16;
  if (lo < 0) lo = 0;
  if (hi > run) hi = run;
  c.at = lo, c.count = hi - lo;
  return c;
}

template <bool Full> DEV u32 cellsOf(const MoveArgs& a) { return (u32)(Full ? a.run / 16 : (a.run + 30) / 16); }

// pushCells stores U cells of a block, beginning with cell i, to the members of put.
template <bool Full, int VS, int U, class Put> DEV void pushCells(u32 i, u32 step, u32 total, u32 per, i64 run, u64 src, u64 dst, const Put& put) {
  Pack<u64, 2> v[U];
  i64 at[U];
#pragma unroll
  for (int k = 0; k < U; k++) {
    const u32 j = i + k * step;
    at[k] = -1;
    if (j >= total) continue;
    const u32 row = put.row(j, per);
    const Off o = put.off(row);
    const Cell c = cellAt<Full>(j, per, run, row, dst + o.d);
    if (Full || c.count == 16) {
      at[k] = o.d + c.at;
      loadBytes<16, VS>(v[k], src + o.s + c.at, 16);
    } else {
      for (i64 b = 0; b < c.count; b++) put.byte(o.d + c.at + b, *(const u8*)(src + o.s + c.at + b));
    }
  }
  put.packs(at, v);
}

// storePacks stores the packs that have an offset.
template <int U> DEV void storePacks(u64 to, const i64 (&at)[U], const Pack<u64, 2> (&v)[U]) {
#pragma unroll
  for (int k = 0; k < U; k++)
    if (at[k] >= 0) *(Pack<u64, 2>*)(to + at[k]) = v[k];
}

// ToOne and ToAll are destinations of cells: one member, or all members of a set. The blocks of ToAll have equal layout
// and alignment.
template <int D> struct ToOne {
  const MoveArgs& a;
  u32 p;
  __device__ __forceinline__ u32 row(u32 i, u32 per) const { return D ? i / per : 0; }
  __device__ __forceinline__ Off off(u32 row) const { return rowAt<D>(a, p, p, row); }
  __device__ __forceinline__ void byte(i64 at, u8 v) const { *(u8*)(a.dst[p] + at) = v; }
  template <int U> __device__ __forceinline__ void packs(const i64 (&at)[U], const Pack<u64, 2> (&v)[U]) const { storePacks(a.dst[p], at, v); }
};
template <int W, int D> struct ToAll {
  const MoveArgs& a;
  u32 first, set, turn;
  __device__ __forceinline__ u32 row(u32 i, u32 per) const { return D ? i / per : 0; }
  __device__ __forceinline__ Off off(u32 row) const { return rowAt<D>(a, first, first, row); }
  __device__ __forceinline__ void byte(i64 at, u8 v) const {
#pragma unroll
    for (int q = 0; q < W; q++) {
      const u32 p = (turn + q) % W;
      if (set >> p & 1) *(u8*)(a.dst[p] + at) = v;
    }
  }
  template <int U> __device__ __forceinline__ void packs(const i64 (&at)[U], const Pack<u64, 2> (&v)[U]) const {
#pragma unroll
    for (int q = 0; q < W; q++) {
      const u32 p = (turn + q) % W;
      if (set >> p & 1) storePacks(a.dst[p], at, v);
    }
  }
};

// storeBlocks stores blocks to their destinations in other members' memory, and the member's own block. Each thread
// alternates between the blocks. VS is a power of two that divides the distance between source and destination. Same:
// the block is the same for all members, and its destinations have the same layout and alignment. The first aside
// blocks of the grid do not take part.
template <int W, int D, int VS, bool Full, bool Same, int U> DEV void storeBlocks(const MoveArgs& a, u32 aside = 0) {
  const u32 set = (u32)a.to | (a.own ? 1u << (u32)a.team.rank : 0), turn = turnOf(a.team);
  const u32 per = cellsOf<Full>(a), total = per * (D ? rowsOf<D>(a) : 1), step = (gridDim.x - aside) * blockDim.x;
  u32 first = 0;
  while (set && !(set >> first & 1)) first++;
  const ToAll<W, D> all = {a, first, set, turn};
  if (!set) return;
  for (u32 i = (blockIdx.x - aside) * blockDim.x + threadIdx.x; i < total; i += U * step) {
    if (Same) {
      pushCells<Full, VS, U>(i, step, total, per, a.run, a.src[first], a.dst[first], all);
      continue;
    }
#pragma unroll 1
    for (int q = 0; q < W; q++) {
      const ToOne<D> one = {a, (turn + q) % W};
      if (set >> one.p & 1) pushCells<Full, VS, U>(i, step, total, per, a.run, a.src[one.p], a.dst[one.p], one);
    }
  }
}

// movePush stores blocks after all members have begun, and ends after all have stored theirs.
template <int W, int D, int VS, bool Full, bool Same, int U> DEV void movePush(const MoveArgs& a) {
  const u32 e = begin(a.team, lastEpoch(a.team));
  Patience w = {0, 0};
  if (meetBlocks<W>(a, w, flagEntered, e)) {
    storeBlocks<W, D, VS, Full, Same, U>(a);
    __syncthreads();
    meetBlocks<W>(a, w, flagDone, e);
  }
  end(a.team, e);
}

// reducePull loads every member's block from its memory and reduces. The blocks have equal alignment modulo 16 bytes.
// VD is a power of two that divides the difference between this alignment and that of the destination.
template <class T, class F, bool Avg, int W, int D, int VD, bool Full, int U> DEV void reducePull(const MoveArgs& a) {
  const u32 e = begin(a.team, lastEpoch(a.team)), me = (u32)a.team.rank;
  const u32 per = cellsOf<Full>(a), total = per * (D ? rowsOf<D>(a) : 1), step = gridDim.x * blockDim.x;
  Patience w = {0, 0};
  if (meetBlocks<W>(a, w, flagEntered, e)) {
    if (a.own)
      for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += U * step) {
        Pack<u64, 2> v[U][W];
        Cell c[U];
        Off o[U];
#pragma unroll
        for (int k = 0; k < U; k++) {
          const u32 j = i + k * step;
          c[k].count = 0;
          if (j >= total) continue;
          const u32 row = D ? j / per : 0;
          o[k] = rowAt<D>(a, me, me, row);
          c[k] = cellAt<Full>(j, per, a.run, row, a.src[me] + o[k].s);
#pragma unroll
          for (int q = 0; q < W; q++) {
            const u64 at = a.src[q] + rowAt<D>(a, q, q, row).s + c[k].at;
            if (!Full) v[k][q] = {};
            loadBytes<16, 16>(v[k][q], at, c[k].count);
          }
        }
#pragma unroll
        for (int k = 0; k < U; k++) {
          if (c[k].count <= 0) continue;
          Pack<u64, 2> sum;
          fold<T, F, Avg, W, 16>(sum, v[k]);
          storeBytes<16, VD>(a.dst[me] + o[k].d + c[k].at, sum, c[k].count);
        }
      }
    __syncthreads();
    meetBlocks<W>(a, w, flagDone, e);
  }
  end(a.team, e);
}
