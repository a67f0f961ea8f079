// Blocks that members store directly to their destination, except their last bytes, called the rest, which are
// transferred through host memory. The bus to the host does not share bandwidth with the links between devices.

struct MoveHostArgs {
  MoveArgs move;                 // run: bytes of a block that are stored directly
  u64 give[teamMost];            // by receiver: address in this member's host memory of the rest of the block
  u64 take[teamMost];            // by sender: address in that member's host memory of the rest of its block for this member
  u64 put[teamMost];             // by sender: destination of the rest in this member's memory
  u64 flags[teamMost], half;     // of each member: two halves of flags
  // bytes of the rest of a block; number of thread blocks that write to host memory, and of the next ones, which read
  // from it
  i64 rest, writers, readers;
};

// The rest of a block moves in chunks of restRows packs for each thread of a thread block, with one flag for each
// chunk.
enum { restRows = 4 };

DEV i64 restChunk() { return (i64)blockDim.x * restRows * 16; }
DEV i64 restAt(i64 c, int u) { return c * restChunk() + (i64)(u * blockDim.x + threadIdx.x) * 16; }

// restFlag returns the address of the flag at member at by which member by signals that chunk c is in its host memory.
DEV u64 restFlag(const MoveHostArgs& a, u32 at, u32 by, i64 c, i64 chunks, u32 e) { return a.flags[at] + (e & 1) * a.half + (by * chunks + c) * 4; }

template <int W> DEV u32 membersOf(u64 set) {
  u32 n = 0;
#pragma unroll
  for (int q = 0; q < W; q++) n += (u32)(set >> q & 1);
  return n;
}

// memberOf returns the k-th member of a set, counted cyclically from the member after this one.
template <int W> DEV u32 memberOf(u64 set, u32 me, u32 k) {
#pragma unroll
  for (int i = 1; i < W; i++) {
    const u32 q = (me + i) % W;
    if (set >> q & 1 && k-- == 0) return q;
  }
  return me;
}

// writeRest writes the rest of each receiver's block to host memory, and copies the rest of the member's own block to
// its destination. The thread blocks that store over the links do not copy that rest, because this would delay their
// stores and leave the links idle. Once: the block is the same for all members.
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

// readRest copies the data that the other members have written to their host memory to its destination.
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

// movePush of the first bytes of blocks by some thread blocks, while others transfer the rest. The latter need not wait
// for the other members before they begin: host memory belongs to the member itself, and its peers read it only in this
// launch. The launch does not end before all thread blocks of all members have synchronized, including those that read
// host memory. Nothing else writes to the destinations of the rest.
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
