// movePush by the multiprocessors' bulk copies, for blocks that lie together at
// multiples of 16 bytes: through a ring of chunks in shared memory, kept full by
// one thread of a block, so that few multiprocessors fill a link.

// The engine writes to chunks that stores have left: bulkBehind batches may not
// have.
enum { bulkBehind = 4 };

// Deal is what a block moves: chunk c of the block for member q is number
// c·peers + q of all, or, where all get the same, c.
struct Deal { u32 me, set, peers; i64 chunks; };

template <int W, bool Same> DEV Deal dealOf(const MoveArgs& a) {
  Deal d = {(u32)a.team.rank, (u32)a.to, 0, 0};
  if (a.own) d.set |= 1u << d.me;
#pragma unroll
  for (int q = 0; q < W; q++) d.peers += d.set >> q & 1;
  d.chunks = d.peers ? (a.run + a.chunk - 1) / a.chunk * (Same ? 1 : d.peers) : 0;
  return d;
}

// peerOf is the k-th member behind this one that gets something.
template <int W> DEV u32 peerOf(const Deal& d, u32 k) {
  for (u32 q = 1;; q++) {
    const u32 p = (d.me + q) % W;
    if (d.set >> p & 1 && k-- == 0) return p;
  }
}

template <int W, bool Same> DEV void moveBulk(const MoveArgs& a) {
  const u32 e = begin(a.team, lastEpoch(a.team)), stages = (u32)a.stages;
  const u64 chunk = (u64)a.chunk;
  Gate* full = (Gate*)meetingRoom();
  Line* room = meetingRoom() + (stages + 1) / 2;
  if (threadIdx.x == 0)
    for (u32 s = 0; s < stages; s++) openGate(full + s, 1);
  gatesOpened();
  Patience w = {0, 0};
  if (meetBlocks<W>(a, w, flagEntered, e)) {
    const Deal d = dealOf<W, Same>(a);
    if (threadIdx.x == 0 && blockIdx.x < d.chunks) {
      const u32 n = (u32)((d.chunks - blockIdx.x + gridDim.x - 1) / gridDim.x);
      const auto number = [&](u32 k) { return (u64)blockIdx.x + (u64)k * gridDim.x; };
      const auto peer = [&](u32 k) { return peerOf<W>(d, Same ? 0 : (u32)(number(k) % d.peers)); };
      const auto begins = [&](u32 k) { return (Same ? number(k) : number(k) / d.peers) * chunk; };
      const auto bytes = [&](u32 k) { return (u32)((u64)a.run - begins(k) < chunk ? (u64)a.run - begins(k) : chunk); };
      const auto load = [&](u32 k) { bulkLoad((Line*)((u64)room + k % stages * chunk), a.src[peer(k)] + begins(k), bytes(k), full + k % stages); };
      for (u32 k = 0; k < stages && k < n; k++) load(k);
      for (u32 k = 0; k < n; k++) {
        passGate(full + k % stages, k / stages);
        const Line* from = (const Line*)((u64)room + k % stages * chunk);
        if (Same) {
#pragma unroll
          for (int q = 1; q <= W; q++) {
            const u32 p = (d.me + q) % W;
            if (d.set >> p & 1) bulkStore(a.dst[p] + begins(k), from, bytes(k));
          }
        } else {
          bulkStore(a.dst[peer(k)] + begins(k), from, bytes(k));
        }
        bulkMark();
        if (k < bulkBehind) continue;
        bulkRead<bulkBehind>();
        if (k - bulkBehind + stages < n) load(k - bulkBehind + stages);
      }
      bulkWait<0>();
    }
    __syncthreads();
    meetBlocks<W>(a, w, flagDone, e);
  }
  end(a.team, e);
}
