// Bulk copies: a multiprocessor's own engine moves stretches between global and
// shared memory, begun by one thread.

// A gate opens in turns: once so many have arrived, and the bytes that were
// announced are there. Whoever waits says which turn for, even or odd.
struct Gate { u32 turn, here; };

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
DEV u32 sharedAddress(const void* p) {
  u32 at;
  asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }" : "=r"(at) : "l"(p));
  return at;
}
#endif

DEV void openGate(Gate* g, u32 many) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(sharedAddress(g)), "r"(many) : "memory");
#else
  *g = Gate{0, 0};
#endif
}

DEV void gatesOpened() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
  __syncthreads();
}

DEV void arrive(Gate* g, u32 many) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(sharedAddress(g)) : "memory");
#elif !defined(__CUDA_ARCH__)
  if (++g->here == many) g->here = 0, g->turn++;
#endif
}

DEV void passGate(Gate* g, u32 turn) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  u32 open = 0;
  do asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                  : "=r"(open) : "r"(sharedAddress(g)), "r"(turn & 1) : "memory");
  while (!open);
#elif !defined(__CUDA_ARCH__)
  while ((g->turn & 1) == (turn & 1)) emulatedYield();
#endif
}

// bulkLoad copies to shared memory; the gate, of so many arrivals as there are
// loads for it, opens when all is there.
DEV void bulkLoad(Line* to, u64 from, u32 bytes, Gate* g, u32 many = 1) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(sharedAddress(g)), "r"(bytes) : "memory");
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(sharedAddress(to)), "l"(from), "r"(bytes),
               "r"(sharedAddress(g))
               : "memory");
#elif !defined(__CUDA_ARCH__)
  memcpy(to, (const void*)from, bytes);
  arrive(g, many);
#endif
}

DEV void bulkStore(u64 to, const Line* from, u32 bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(sharedAddress(from)), "r"(bytes) : "memory");
#elif !defined(__CUDA_ARCH__)
  memcpy((void*)to, from, bytes);
#endif
}

// bulkMark ends a batch of stores; bulkWait waits for all batches but the last N.
DEV void bulkMark() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}

template <int N> DEV void bulkWait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory");
#endif
}

// bulkRead waits until all batches but the last N have left shared memory.
template <int N> DEV void bulkRead() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
#endif
}
