// movePush and reducePull by the multiprocessors' bulk copies, for blocks that lie
// together at multiples of 16 bytes: through rings of chunks in shared memory,
// kept going by one thread of a block, so that few multiprocessors fill a link.

enum { bulkUnit = 4096, bulkRoom = 192 << 10 };

// Deal is what a block moves: chunk c of the block for the k-th member is number
// c·peers + k of all, or, where all get the same, c.
struct Deal { u32 me, set, peers, chunks; };

template <int W, bool Same> DEV Deal dealOf(const MoveArgs& a, u32 chunk) {
  Deal d = {(u32)a.team.rank, (u32)a.to, 0, 0};
  if (a.own) d.set |= 1u << d.me;
#pragma unroll
  for (int q = 0; q < W; q++) d.peers += d.set >> q & 1;
  d.chunks = d.peers ? (u32)((a.run + chunk - 1) / chunk) * (Same ? 1 : d.peers) : 0;
  return d;
}

// peerOf is the k-th member behind this one that gets something.
template <int W> DEV u32 peerOf(const Deal& d, u32 k) {
  u32 p = d.me;
  for (;;) {
    p = p + 1 == W ? 0 : p + 1;
    if (d.set >> p & 1 && k-- == 0) return p;
  }
}

// A chunk has U units. Half of the ring may be on its way out while the other
// half comes in.
template <int W, bool Same, int U> DEV void moveBulk(const MoveArgs& a) {
  constexpr u32 chunk = bulkUnit * U, stages = bulkRoom / chunk, behind = stages / 2;
  const u32 e = begin(a.team, lastEpoch(a.team));
  Gate* full = (Gate*)meetingRoom();
  const u64 room = (u64)(meetingRoom() + (stages + 1) / 2);
  if (threadIdx.x == 0)
    for (u32 s = 0; s < stages; s++) openGate(full + s, 1);
  gatesOpened();
  Patience w = {0, 0};
  if (meetBlocks<W>(a, w, flagEntered, e)) {
    const Deal d = dealOf<W, Same>(a, chunk);
    if (threadIdx.x == 0 && blockIdx.x < d.chunks) {
      const u32 n = (d.chunks - blockIdx.x + gridDim.x - 1) / gridDim.x;
      const auto load = [&](u32 k) {
        const u32 number = blockIdx.x + k * gridDim.x, c = Same ? number : number / d.peers, p = peerOf<W>(d, Same ? 0 : number - c * d.peers);
        const u64 at = (u64)c * chunk;
        bulkLoad((Line*)(room + k % stages * chunk), a.src[p] + at, (u32)((u64)a.run - at < chunk ? (u64)a.run - at : chunk), full + k % stages);
      };
      for (u32 k = 0; k < stages && k < n; k++) load(k);
      for (u32 k = 0; k < n; k++) {
        const u32 number = blockIdx.x + k * gridDim.x, c = Same ? number : number / d.peers;
        const u64 at = (u64)c * chunk;
        const u32 bytes = (u32)((u64)a.run - at < chunk ? (u64)a.run - at : chunk);
        const Line* from = (const Line*)(room + k % stages * chunk);
        passGate(full + k % stages, k / stages);
        if (Same) {
#pragma unroll
          for (int q = 1; q <= W; q++) {
            const u32 p = (d.me + q) % W;
            if (d.set >> p & 1) bulkStore(a.dst[p] + at, from, bytes);
          }
        } else {
          bulkStore(a.dst[peerOf<W>(d, number - c * d.peers)] + at, from, bytes);
        }
        bulkMark();
        if (k < behind) continue;
        bulkRead<behind>();
        if (k - behind + stages < n) load(k - behind + stages);
      }
      bulkWait<0>();
    }
    __syncthreads();
    meetBlocks<W>(a, w, flagDone, e);
  }
  end(a.team, e);
}

// reduceBulk has one thread load all members' chunks, half a unit U times each,
// and the other warps reduce them.
template <class T, class F, bool Avg, int W, int U> DEV void reduceBulk(const MoveArgs& a) {
  constexpr u32 chunk = bulkUnit / 2 * U, stages = bulkRoom / (chunk * W);
  const u32 e = begin(a.team, lastEpoch(a.team)), me = (u32)a.team.rank, adders = blockDim.x / 32 - 1;
  Gate *full = (Gate*)meetingRoom(), *empty = full + stages;
  const u64 room = (u64)(meetingRoom() + stages);
  if (threadIdx.x == 0)
    for (u32 s = 0; s < stages; s++) openGate(full + s, W), openGate(empty + s, adders);
  gatesOpened();
  Patience w = {0, 0};
  if (meetBlocks<W>(a, w, flagEntered, e)) {
    const u32 chunks = a.own ? (u32)((a.run + chunk - 1) / chunk) : 0;
    const u32 n = blockIdx.x < chunks ? (chunks - blockIdx.x + gridDim.x - 1) / gridDim.x : 0;
    const auto bytesOf = [&](u64 at) { return (u32)((u64)a.run - at < chunk ? (u64)a.run - at : chunk); };
    if (threadIdx.x == 0) {
      for (u32 k = 0; k < n; k++) {
        const u32 s = k % stages;
        const u64 at = (u64)(blockIdx.x + k * gridDim.x) * chunk;
        if (k >= stages) passGate(empty + s, k / stages - 1);
#pragma unroll
        for (int q = 1; q <= W; q++) {
          const u32 p = (me + q) % W;
          bulkLoad((Line*)(room + (u64)(s * W + p) * chunk), a.src[p] + at, bytesOf(at), full + s, W);
        }
      }
    } else if (threadIdx.x >= 32) {
      for (u32 k = 0; k < n; k++) {
        const u32 s = k % stages;
        const u64 at = (u64)(blockIdx.x + k * gridDim.x) * chunk;
        const u32 bytes = bytesOf(at);
        passGate(full + s, k / stages);
        for (u32 i = (threadIdx.x - 32) * 16; i < bytes; i += adders * 32 * 16) {
          Pack<u64, 2> x[W], sum;
#pragma unroll
          for (int q = 0; q < W; q++) x[q] = *(const Pack<u64, 2>*)(room + (u64)(s * W + q) * chunk + i);
          fold<T, F, Avg, W, 16>(sum, x);
          *(Pack<u64, 2>*)(a.dst[me] + at + i) = sum;
        }
        __syncwarp();
        if (laneOf() == 0) arrive(empty + s, adders);
      }
    }
    __syncthreads();
    meetBlocks<W>(a, w, flagDone, e);
  }
  end(a.team, e);
}
