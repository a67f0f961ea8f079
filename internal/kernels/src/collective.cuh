// Teams: kernels in which the members of a team meet. Each member launches the
// same grid on its own device; they reach each other's memory.
//
// Launches of a team are numbered alike on all members: the number, the epoch,
// lies in each member's control memory, a word for every block of the largest
// grid, and each launch advances all of them. So a launch that is replayed within
// a graph needs nothing of the host. 0 is never an epoch: memory that flags lie
// in begins as zeros. After the last one comes 2, as even as the 0 it stands for.
//
// What makes reuse of memory safe: no launch ends on a member before all members
// have begun it. So a member that writes for epoch e+2 knows that its peers are
// done with epoch e: memory in two halves, used by turns, needs no other
// handshake, however launches lay it out. Kernels whose data does not bring that
// about have to (see meetAll).
enum { teamMost = 8, blocksMost = 256, regionsMost = 16 };

struct Region { u64 at, half; };  // two halves of so many bytes

struct Control {
  u32 epoch[blocksMost];
  u64 claimed;                    // not 0: this member has told why it gave up
  u32 begun, regions;             // the last epoch begun; how many regions there are
  Region region[regionsMost];     // those in which flags lie among the data
};

struct Team {
  u64 members, rank;
  u64 control[teamMost];
  u64 abort;                      // a word for all, in host memory: not 0 ends every wait
  u64 record;                     // where this member tells why it gave up, in host memory
  u64 timeout, tag;               // nanoseconds
};

// Line is what one access moves.
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

// A launch may begin before the one before it on the stream has ended, and lets
// the next one do so; until here it has touched nothing.
DEV void follow() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

DEV Control* controlOf(const Team& t) { return (Control*)t.control[t.rank]; }

// Where numbers wrap, flags of the same number may be left from 2^32 launches
// ago. So at the end of the numbers each half is cleared while nobody can write
// to it: the other members are in this epoch or the one before, which use the
// other half or are over. Every block clears all, so that none goes on before.
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

// begin returns the epoch of this launch. Every block must then push something
// to every peer.
DEV u32 begin(const Team& t) {
  follow();
  Control* c = controlOf(t);
  u32 e = *(volatile u32*)&c->epoch[blockIdx.x] + 1;
  if (e == 0) e = 2;
  if (blockIdx.x == 0 && threadIdx.x == 0) *(volatile u32*)&c->begun = e;
  if (e == 2 || e == 0xffffffff) clearHalves(t, (e + 1) & 1);
  return e;
}

// end closes the launch: all threads of all blocks call it, done with e.
DEV void end(const Team& t, u32 e) {
  __syncthreads();
  Control* c = controlOf(t);
  for (u32 i = blockIdx.x + threadIdx.x * gridDim.x; i < blocksMost; i += gridDim.x * blockDim.x) c->epoch[i] = e;
}

// Patience bounds a wait: now and then it looks at the clock and at the word
// that ends all waits.
struct Patience {
  u32 looks;
  u64 began;
};

// A wait that runs out of time tells whom it waited for, once a launch, and ends
// all others.
DEV bool giveUp(Patience& p, const Team& t, u32 peer, u32 e) {
  if (acquire64((const u64*)t.abort)) return true;
  const u64 now = nanoseconds();
  if (p.began == 0) p.began = now;
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

// waited counts a look that saw nothing; true: there is nothing to wait for any
// more.
DEV bool waited(Patience& p, const Team& t, u32 peer, u32 e) {
#ifndef __CUDA_ARCH__
  emulatedYield();
#endif
  return (++p.looks & 511) == 0 && giveUp(p, t, peer, e);
}
