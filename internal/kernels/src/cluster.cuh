// Thread block clusters: blocks that run at the same time and read each other's shared memory. Hopper and later GPUs have
// them. On a CPU the blocks of a cluster run one after another.

// meetCluster waits until all threads of the cluster have called it. It makes their earlier writes to shared memory visible
// to the other blocks. It is a template because kernels without clusters do not use it.
template <int = 0> DEV void meetCluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;\n  barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

// ownPart returns the block's part of the data that a cluster shares. rank is the index of the block within its cluster.
template <class A> DEV A& ownPart(A& part, u32 rank) {
#ifdef __CUDA_ARCH__
  return part;
#else
  static A parts[8];
  return parts[rank];
#endif
}

// partOf returns the part of the block with index other. own is the part of the block with index rank, which calls partOf.
template <class A> DEV const A& partOf(const A& own, u32 rank, u32 other) {
#ifdef __CUDA_ARCH__
  u64 at = (u64)&own;
#if __CUDA_ARCH__ >= 900
  asm("mapa.u64 %0, %1, %2;" : "=l"(at) : "l"((u64)&own), "r"(other));
#endif
  return *(const A*)at;
#else
  return (&own)[(i64)other - rank];
#endif
}
