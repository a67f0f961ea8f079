// Blocks that members store where they belong, but for their last bytes, which go by
// way of host memory: over a bus that is no part of the links between devices.

struct MoveHostArgs {
  MoveArgs move;                 // run: bytes of a block that are stored
  u64 give[teamMost];            // in this member's host memory: where the rest of the block for each member begins
  u64 take[teamMost];            // in each member's: where that of its block for this one does
  u64 put[teamMost];             // in this member's own memory: where that belongs
  u64 flags[teamMost], half;     // of each member: two halves of words
  i64 rest, writers, readers;    // bytes of a block; blocks of the grid that write to host memory, and those behind them that read there
};

// The rest of a block moves in chunks: restRows packs of each thread of a block of
// the grid, with a flag for each chunk.
enum { restRows = 4 };

DEV i64 restChunk() { return (i64)blockDim.x * restRows * 16; }
DEV i64 restAt(i64 c, int u) { return c * restChunk() + (i64)(u * blockDim.x + threadIdx.x) * 16; }

// restFlag is where member by tells member at that chunk c of so many is in host
// memory.
DEV u64 restFlag(const MoveHostArgs& a, u32 at, u32 by, i64 c, i64 chunks, u32 e) { return a.flags[at] + (e & 1) * a.half + (by * chunks + c) * 4; }

template <int W> DEV u32 membersOf(u64 set) {
  u32 n = 0;
#pragma unroll
  for (int q = 0; q < W; q++) n += (u32)(set >> q & 1);
  return n;
}

// memberOf is the k-th of a set, by turns from the one behind this on.
template <int W> DEV u32 memberOf(u64 set, u32 me, u32 k) {
#pragma unroll
  for (int i = 1; i < W; i++) {
    const u32 q = (me + i) % W;
    if (set >> q & 1 && k-- == 0) return q;
  }
  return me;
}

// writeRest writes the rest of what goes to each member to host memory, and puts that
// of what stays in its place: blocks that store would come to it before their stores, and
// all links would wait. Once: what goes to all is one.
template <int W, int VS, int VD, bool Once> DEV void writeRest(const MoveHostArgs& a, u32 e) {
  const MoveArgs& m = a.move;
  const u32 me = (u32)m.team.rank, q = threadIdx.x;
  const u64 set = m.to | m.own << me;
  const i64 parts = Once && set ? 1 : membersOf<W>(set), chunks = (a.rest + restChunk() - 1) / restChunk();
  for (i64 k = blockIdx.x; k < chunks * parts; k += a.writers) {
    const i64 c = k / parts;
    const u32 p = memberOf<W>(set, me, (u32)(k % parts));
    const bool far = p != me, near = Once ? m.own != 0 : p == me;
    Pack<u64, 2> v[restRows] = {};
#pragma unroll
    for (int u = 0; u < restRows; u++)
      if (restAt(c, u) < a.rest) loadBytes<16, VS>(v[u], m.src[p] + m.run + restAt(c, u), a.rest - restAt(c, u));
#pragma unroll
    for (int u = 0; u < restRows; u++) {
      const i64 at = restAt(c, u);
      if (far && at < a.rest) storeLine(a.give[p] + at, bitsAs<Line>(v[u]));
      if (near && at < a.rest) storeBytes<16, VD>(a.put[me] + at, v[u], a.rest - at);
    }
    __syncthreads();
    if (far && q < W && (Once ? m.to >> q & 1 : q == p)) release32(restFlag(a, q, me, c, chunks, e), e);
  }
}

// readRest puts what the others have written there in its place.
template <int W, int VD> DEV void readRest(Patience& w, const MoveHostArgs& a, u32 e) {
  const MoveArgs& m = a.move;
  const u32 me = (u32)m.team.rank;
  const i64 parts = membersOf<W>(m.from), chunks = (a.rest + restChunk() - 1) / restChunk();
  for (i64 k = blockIdx.x - a.writers; k < chunks * parts; k += a.readers) {
    const i64 c = k / parts;
    const u32 q = memberOf<W>(m.from, me, (u32)(k % parts));
    if (threadIdx.x == 0) waitFlag(w, m.team, restFlag(a, me, q, c, chunks, e), q, e);
    __syncthreads();
    Pack<u64, 2> v[restRows];
#pragma unroll
    for (int u = 0; u < restRows; u++)
      if (restAt(c, u) < a.rest) v[u] = bitsAs<Pack<u64, 2>>(loadLine(a.take[q] + restAt(c, u)));
#pragma unroll
    for (int u = 0; u < restRows; u++)
      if (restAt(c, u) < a.rest) storeBytes<16, VD>(a.put[q] + restAt(c, u), v[u], a.rest - restAt(c, u));
  }
}

// movePush of the first bytes of blocks by some blocks of the grid, while others
// see to the rest. Those wait for nobody to begin: host memory is the member's own,
// and read by its peers in this launch alone, which does not end before all blocks
// of all members have met, readers too; where what is read there belongs nobody else
// writes.
template <int W, int VS, bool Full, bool Same, int U, int HS, int HD, bool Once> DEV void movePushHost(const MoveHostArgs& a) {
  const MoveArgs& m = a.move;
  const u32 e = begin(m.team, lastEpoch(m.team)), writers = (u32)a.writers, aside = writers + (u32)a.readers;
  Patience w = {0, 0};
  bool here = true;
  if (blockIdx.x < writers) writeRest<W, HS, HD, Once>(a, e);
  else if (blockIdx.x < aside) readRest<W, HD>(w, a, e);
  else if ((here = meetBlocks<W>(m, w, flagEntered, e))) storeBlocks<W, 0, VS, Full, Same, U>(m, aside);
  __syncthreads();
  if (here) meetBlocks<W>(m, w, flagDone, e);
  end(m.team, e);
}
