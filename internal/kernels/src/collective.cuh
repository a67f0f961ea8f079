// Teams: kernels in which the members of a team wait for each other. Each member launches the same grid on its own
// device, and can access the memory of the other members.
//
// A launch of a team has the same number, called epoch, on all members. It is stored in each member's control memory,
// in one word for every block of the largest grid, and each launch advances all words. A launch that is replayed in a
// graph therefore needs nothing from the host. 0 is never an epoch, because memory that contains flags is initially
// zero. After the largest number the epochs continue with 2, which is even like the 0 that it replaces.
//
// Memory can be reused safely because no launch ends on a member before all members have begun it. A member that writes
// for epoch e+2 therefore knows that its peers have finished epoch e. If memory has two halves that are used
// alternately, no other synchronization is necessary, in any layout. A kernel whose data exchange does not ensure that
// all members have begun must ensure it otherwise (see meet in collective_reduce.cuh and meetBlocks in
// collective_move.cuh).
enum { teamMost = 8, blocksMost = 256, regionsMost = 112 };

struct Region { u64 at, half; };  // two halves of this size in bytes

struct Control {
  u32 epoch[blocksMost];
  u64 claimed;                    // if not 0, this member has reported a timeout
  u32 begun, regions;             // the epoch of the most recent launch; the number of regions
  Region region[regionsMost];     // the regions that contain both flags and data
  u64 looked, aborted;            // the time when this member last read the abort word; whether the abort word was not 0
};

struct Team {
  u64 members, rank;
  u64 control[teamMost];
  u64 abort;                      // address of a word in host memory, the same for all members; if the word is not 0, all waits end
  u64 record;                     // address in host memory at which this member reports a timeout
  u64 timeout, tag;               // nanoseconds
};

// Line is the data of one access.
struct alignas(16) Line { u32 x, y, z, w; };

DEV void push(u64 at, Line v) {
#ifdef __CUDA_ARCH__
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
#else
  *(Line*)at = v;
#endif
}

DEV Line look(u64 at) {
#ifdef __CUDA_ARCH__
  Line v;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at) : "memory");
  return v;
#else
  return *(const Line*)at;
#endif
}

DEV void release32(u64 at, u32 v) {
#ifdef __CUDA_ARCH__
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(v) : "memory");
#else
  *(volatile u32*)at = v;
#endif
}

DEV u32 acquire32(u64 at) {
#ifdef __CUDA_ARCH__
  u32 v;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(at) : "memory");
  return v;
#else
  return *(const volatile u32*)at;
#endif
}

// follow waits for the previous kernel on the stream, which may still be running, and permits the next one to begin
// early. A launch must not access memory before this call.
DEV void follow() {
  let();
  settle();
}

DEV Control* controlOf(const Team& t) { return (Control*)t.control[t.rank]; }

// When epochs wrap around, memory may still contain flags from 2^32 launches ago with the same number. The last
// launches before that therefore clear each half while no other member can write to it. Block 0 clears. Until it has
// signalled to the other members that it is in this epoch, they are in this epoch or in the previous one. The previous
// one uses the other half or has ended.
DEV void clearHalves(const Team& t, u32 parity) {
  const Control* c = controlOf(t);
  for (u32 r = 0; r < c->regions; r++) {
    const u64 at = c->region[r].at + parity * c->region[r].half;
    for (u64 i = threadIdx.x * 16; i < c->region[r].half; i += blockDim.x * 16) push(at + i, Line{0, 0, 0, 0});
  }
#ifdef __CUDA_ARCH__
  asm volatile("fence.acq_rel.sys;" ::: "memory");
#endif
  __syncthreads();
}

// lastEpoch returns the epoch of the last launch, and begin that of this launch. They are separate so that loads of the
// input can be in flight between them. After begin, block 0 must push something to every peer, since no peer's launch
// ends without it.
DEV u32 lastEpoch(const Team& t) {
  follow();
  return *(volatile u32*)&controlOf(t)->epoch[blockIdx.x];
}

DEV u32 begin(const Team& t, u32 last) {
  const u32 e = last == 0xffffffff ? 2 : last + 1;
  if (blockIdx.x == 0) {
    if (threadIdx.x == 0) *(volatile u32*)&controlOf(t)->begun = e;
    if (e == 2 || e == 0xffffffff) clearHalves(t, (e + 1) & 1);
  }
  return e;
}

// end finishes the launch. All threads of all blocks call it when they have finished epoch e.
DEV void end(const Team& t, u32 e) {
  __syncthreads();
  Control* c = controlOf(t);
  for (u32 i = blockIdx.x + threadIdx.x * gridDim.x; i < blocksMost; i += gridDim.x * blockDim.x) c->epoch[i] = e;
}

// Patience limits the waits of a thread in a launch. The thread occasionally reads the clock and the abort word.
struct Patience {
  u32 looks;
  u64 began;
};

// aborted reports whether all waits must end. The abort word is in host memory. If all threads of a launch read it,
// this takes nearly a millisecond, and delays the awaited data. Therefore one thread reads it for all threads of a
// member, every lookApart nanoseconds.
enum : u64 { lookApart = 20000 };

DEV bool aborted(const Team& t, u64 now) {
  Control* c = controlOf(t);
  if (acquire64(&c->aborted)) return true;
  const u64 last = *(volatile u64*)&c->looked;
  if (now - last < lookApart || atomicCAS(&c->looked, last, now) != last || !acquire64((const u64*)t.abort)) return false;
  release64(&c->aborted, 1);
  return true;
}

// giveUp ends a wait that has timed out. It reports the peer for which this thread waits, once per launch, and ends all
// other waits.
DEV bool giveUp(Patience& p, const Team& t, u32 peer, u32 e) {
  const u64 now = nanoseconds();
  if (aborted(t, now)) return true;
  if (now - p.began <= t.timeout) return false;
  if (atomicCAS(&controlOf(t)->claimed, (u64)0, (u64)1) == 0) {
    Fault* f = (Fault*)t.record;
    f->tag = t.tag;
    f->word[0] = e;
    f->word[1] = peer;
    f->word[2] = now - p.began;
    release64(&f->kind, faultTimeout | faultReady);
  }
  release64((u64*)t.abort, 1);
  return true;
}

// leads returns true for one of the active threads of a warp.
DEV bool leads() {
#ifdef __CUDA_ARCH__
  return (int)(threadIdx.x % 32) + 1 == __ffs(__activemask());
#else
  return true;
#endif
}

// waited counts a poll that found nothing. It returns true if the awaited data will not arrive, because a wait has
// timed out or was aborted. The launch then continues with whatever data is present, since the world has ended. All
// later waits of the launch check the abort word without delay.
DEV bool waited(Patience& p, const Team& t, u32 peer, u32 e) {
#ifndef __CUDA_ARCH__
  emulatedYield();
#endif
  if ((++p.looks & 511) != 0) return false;
  if (p.began == 0) p.began = nanoseconds();
  if (!leads() || !giveUp(p, t, peer, e)) return false;
  p.looks--;
  return true;
}

DEV bool allOfWarp(bool x) { return __all_sync(0xffffffff, x); }

// waitFlag waits until the word is e. Afterwards, everything that was written before the word is visible.
DEV void waitFlag(Patience& p, const Team& t, u64 at, u32 peer, u32 e) {
  while (acquire32(at) != e)
    if (waited(p, t, peer, e)) return;
}

// loadLine and storeLine access whole lines of global memory, with the device's usual memory order.
DEV Line loadLine(u64 at) {
#ifdef __CUDA_ARCH__
  Line v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at) : "memory");
  return v;
#else
  return *(const Line*)at;
#endif
}

DEV void storeLine(u64 at, Line v) {
#ifdef __CUDA_ARCH__
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
#else
  *(Line*)at = v;
#endif
}

// meetingRoom returns the block's dynamic shared memory.
DEV Line* meetingRoom() {
#ifdef __CUDA_ARCH__
  extern __shared__ Line meetingShared[];
  return meetingShared;
#else
  return (Line*)emulatedRoom();
#endif
}

// Half is the data of a line that also contains two epochs: half of its bytes.
struct alignas(8) Half { u32 lo, hi; };

DEV void loadWhole(u64 at, Line& x) { x = loadLine(at); }
DEV void loadWhole(u64 at, Half& x) { x = *(const Half*)at; }
DEV void storeWhole(u64 at, Line x) { storeLine(at, x); }
DEV void storeWhole(u64 at, Half x) { *(Half*)at = x; }

// Elements are moved in packs, which are lines or halves of lines. With V elements in a pack, pack i consists of the
// elements i·V to i·V + V - 1. The last pack may be partial. A: the array begins at a multiple of a pack's size.
template <class R, class T, bool A> DEV R loadCut(u64 at, i64 i, i64 count) {
  constexpr int V = sizeof(R) / sizeof(T);
  const T* p = (const T*)at + i * V;
  if (A && (i + 1) * V <= count) {
    R whole;
    loadWhole((u64)p, whole);
    return whole;
  }
  Pack<T, V> x;
#pragma unroll
  for (int v = 0; v < V; v++) {
    x.v[v] = T{};
    if (i * V + v < count) x.v[v] = p[v];
  }
  return bitsAs<R>(x);
}

template <class R, class T, bool A> DEV void storeCut(u64 at, i64 i, i64 count, R y) {
  constexpr int V = sizeof(R) / sizeof(T);
  T* p = (T*)at + i * V;
  if (A && (i + 1) * V <= count) {
    storeWhole((u64)p, y);
    return;
  }
  const Pack<T, V> x = bitsAs<Pack<T, V>>(y);
#pragma unroll
  for (int v = 0; v < V; v++)
    if (i * V + v < count) p[v] = x.v[v];
}

// A Sheet is an LL128 line: R lines of each of the 32 threads of a warp. It consists of 4·R segments of 128 bytes. Each
// segment is written by one instruction, and its last 4 bytes are the epoch. NVLink and the devices' memory do not
// split a segment that one instruction of a warp writes and another reads: a reader that sees the epoch also sees the
// other 124 bytes. The epochs take the place of data, which the last thread of each group of 8 moves to its last row. A
// sheet therefore carries 32·R - 4 packs.
template <int R> struct Sheet {
  static const int packs = 32 * R - 4, bytes = 512 * R;
  Line row[R];
};

// Warps of a launch are numbered block by block: consecutive numbers belong to different blocks.
DEV i64 warpOf() { return (i64)(threadIdx.x / 32) * gridDim.x + blockIdx.x; }
DEV i64 warpsOf() { return (i64)(blockDim.x / 32) * gridDim.x; }

// turnOf returns the first of the members to which a warp stores, if it stores to all members. With this order, each
// multiprocessor stores to all members at any time, and each member receives data from all multiprocessors.
DEV u32 turnOf(const Team& t) { return (u32)t.rank + threadIdx.x / 32 + blockIdx.x; }

// peerOf returns the k-th peer to which the warp stores.
template <int W> DEV u32 peerOf(const Team& t, int k) { return ((u32)t.rank + 1 + (threadIdx.x / 32 + blockIdx.x + k) % (W - 1)) % W; }

DEV u32 laneOf() { return threadIdx.x % 32; }
DEV bool sealing() { return threadIdx.x % 8 == 7; }

// packIn returns the index of the pack in the given row of the thread. A thread that stores an epoch has no pack in its
// last row.
template <int R> DEV u32 packIn(int row) {
  const u32 l = laneOf();
  return row < R - 1 ? row * 32 + l : row * 32 + l / 8 * 7 + l % 8;
}

template <class T, bool A, int R> DEV Sheet<R> loadSheet(u64 at, i64 first, i64 count) {
  Sheet<R> s;
#pragma unroll
  for (int i = 0; i < R; i++) {
    s.row[i] = Line{0, 0, 0, 0};
    if (i < R - 1 || !sealing()) s.row[i] = loadCut<Line, T, A>(at, first + packIn<R>(i), count);
  }
  return s;
}

template <class T, bool A, int R> DEV void storeSheet(u64 at, i64 first, i64 count, const Sheet<R>& s) {
#pragma unroll
  for (int i = 0; i < R; i++)
    if (i < R - 1 || !sealing()) storeCut<Line, T, A>(at, first + packIn<R>(i), count, s.row[i]);
}

template <int R> DEV void seal(Sheet<R>& s, u32 e) {
  if (!sealing()) return;
  Line& last = s.row[R - 1];
  last = Line{0, 0, 0, e};
  if (R > 1) last.x = s.row[0].w, s.row[0].w = e;
  if (R > 2) last.y = s.row[R > 2 ? 1 : 0].w, s.row[R > 2 ? 1 : 0].w = e;
  if (R > 3) last.z = s.row[R > 3 ? 2 : 0].w, s.row[R > 3 ? 2 : 0].w = e;
}

template <int R> DEV void unseal(Sheet<R>& s) {
  if (!sealing()) return;
  const Line& last = s.row[R - 1];
  if (R > 1) s.row[0].w = last.x;
  if (R > 2) s.row[R > 2 ? 1 : 0].w = last.y;
  if (R > 3) s.row[R > 3 ? 2 : 0].w = last.z;
}

// inTurn orders the threads of a warp on a CPU that emulates them, because the CPU has no instructions of 32 threads.
// Threads for which now is true reach the next statements first.
DEV void inTurn(bool now) {
#ifndef __CUDA_ARCH__
  if (now) __syncwarp();
#endif
}

template <int R> DEV void pushSheet(u64 at, const Sheet<R>& s) {
  inTurn(sealing());
#pragma unroll
  for (int i = 0; i < R; i++) push(at + i * 512 + laneOf() * 16, s.row[i]);
  inTurn(!sealing());
}

template <int R> DEV Sheet<R> lookSheet(u64 at) {
  Sheet<R> s;
  inTurn(!sealing());
#pragma unroll
  for (int i = 0; i < R; i++) s.row[i] = look(at + i * 512 + laneOf() * 16);
  inTurn(sealing());
  return s;
}

// sealed reports whether all segments contain the epoch. The result is the same in all threads of the warp.
template <int R> DEV bool sealed(const Sheet<R>& s, u32 e) {
  bool there = true;
#pragma unroll
  for (int i = 0; i < R; i++) there = there && s.row[i].w == e;
  return allOfWarp(there || !sealing());
}

// awaitSheet polls a sheet until it is sealed, and then unseals it. On a timeout all threads of the warp stop waiting.
template <int R> DEV void awaitSheet(Patience& p, const Team& t, u64 at, Sheet<R>& s, u32 peer, u32 e) {
  while (!sealed(s, e)) {
    if (!allOfWarp(!waited(p, t, peer, e))) break;
    s = lookSheet<R>(at);
  }
  unseal(s);
}

// awaitSheets waits for a sheet of each peer in a set and unseals them. The sheet of member q is at at + q · apart.
// Each poll reads all sheets that have not arrived, so that a single poll finds all that have arrived in the meantime.
template <int W, int R> DEV void awaitSheets(Patience& p, const Team& t, u64 at, i64 apart, Sheet<R>* s, u32 e, u32 set = (1u << W) - 1) {
  set &= ~(1u << (u32)t.rank);
  for (;;) {
    u32 late = W, missing = 0;
#pragma unroll
    for (int q = W - 1; q >= 0; q--)
      if (set >> q & 1 && !sealed(s[q], e)) late = q, missing |= 1u << q;
    if (late == W || !allOfWarp(!waited(p, t, late, e))) break;
#pragma unroll
    for (int q = 0; q < W; q++)
      if (missing >> q & 1) s[q] = lookSheet<R>(at + q * apart);
  }
#pragma unroll
  for (int q = 0; q < W; q++)
    if (set >> q & 1) unseal(s[q]);
}
