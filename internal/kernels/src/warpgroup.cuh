// Warpgroup-level operations of Hopper, sm_90a: products on tensor cores that read an operand directly from shared
// memory and run asynchronously. Operands and results must not be accessed until the product was awaited. Layouts are
// those of the PTX ISA, wgmma. On a CPU, where these sources are tested, a product is complete when its function
// returns.

// A Panel is ROWS rows of 64 elements in shared memory, aligned to 1024 bytes, in the layout that wgmma reads: piece c
// of 16 bytes of row r is at position c ^ r%8.
template <int ROWS> struct Panel {
  Pack<u32, 4> at[ROWS * 8];
};

// publish makes the thread's writes to shared memory visible to products.
DEV void publish() {
#ifdef __CUDA_ARCH__
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// beginProducts must precede products that use registers which threads have changed.
DEV void beginProducts() {
#ifdef __CUDA_ARCH__
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

DEV void endProducts() {
#ifdef __CUDA_ARCH__
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

// awaitProducts waits for all groups except the LEFT groups that were ended last.
template <int LEFT> DEV void awaitProducts() {
#ifdef __CUDA_ARCH__
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
#endif
}

// hold prevents the compiler from moving uses of c across this point.
template <int N> DEV void hold(f32 (&c)[N][4]) {
#ifdef __CUDA_ARCH__
#pragma unroll
  for (int n = 0; n < N; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) asm volatile("" : "+f"(c[n][e])::"memory");
#endif
}

// registers changes the number of registers of each thread of a warpgroup to COUNT. If MORE is set, it waits until
// other warpgroups have released enough; otherwise it releases registers.
template <bool MORE, int COUNT> DEV void registers() {
#ifdef __CUDA_ARCH__
  if constexpr (MORE) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
  else asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
#endif
}

// A Gate in shared memory (an mbarrier) opens each time that the number of arrivals reaches the number for which it was
// made. Arriving threads do not wait.
#ifdef __CUDA_ARCH__
struct Gate {
  u64 state;
  __device__ __forceinline__ void make(u32 arrivals) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(spotOf(this)), "r"(arrivals) : "memory"); }
  __device__ __forceinline__ void arrive() { asm volatile("{ .reg .b64 t; mbarrier.arrive.shared::cta.b64 t, [%0]; }" ::"r"(spotOf(this)) : "memory"); }
  // arriveCopied makes the thread arrive when the copies that it has started are complete.
  __device__ __forceinline__ void arriveCopied() { asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(spotOf(this)) : "memory"); }
  // ask reports whether pass would return without waiting. The answer has a long latency, so callers ask early.
  __device__ __forceinline__ bool ask(u32 odd) {
    u32 open;
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }" : "=r"(open) : "r"(spotOf(this)), "r"(odd) : "memory");
    return open;
  }
  // pass waits for the gate to open for the first, third, fifth, … time if odd is 0, else for the second, fourth, …
  // time. A wait with odd 1 before the first opening returns immediately.
  __device__ __forceinline__ void pass(u32 odd) {
    u32 open;
    do asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }" : "=r"(open) : "r"(spotOf(this)), "r"(odd) : "memory");
    while (!open);
  }
};
#else
struct Gate {
  u32 of, came, opened;
  u64 since;
  void make(u32 arrivals) { *this = Gate{arrivals, 0, 0, 0}; }
  void arrive() {
    if (++came == of) came = 0, opened++, since = emulatedTurn;
  }
  void arriveCopied() { arrive(); }
  bool ask(u32) { return false; }
  void pass(u32 odd) { // every waiting thread observes in the same turn that the gate is open
    while (((opened - (since == emulatedTurn && opened > 0)) & 1) == odd) __syncthreads();
  }
};
#endif

// A Turn iterates cyclically over N places. odd is the parity with which to wait at the gate of the current place.
template <int N> struct Turn {
  int at;
  u32 odd;
  __device__ __forceinline__ void next() {
    if (++at == N) at = 0, odd ^= 1;
  }
  __device__ __forceinline__ int before() const { return at == 0 ? N - 1 : at - 1; }
};

// A Corner is the address of a matrix in shared memory in units of 16 bytes; it is equal in all lanes.
typedef Spot Corner;

DEV Corner cornerOf(const void* x) { return sameForWarp(spotOf(x) >> 4); }

#ifndef __CUDA_ARCH__
// inPanel returns an element of the matrix at a corner. It computes the same address as the hardware.
template <class T> static f32 inPanel(Corner at, int row, int col) {
  const u64 x = at * 16 + row * 128 + col * 2;
  return Num<T>::get(*(const T*)(x ^ (x >> 7 & 7) << 4));
}
#else
// A matrix's descriptor has the corner in bits 0 to 13, the distance between panels in bits 16 to 29, and the size of 8
// rows in bits 32 to 45, all in units of 16 bytes; bits 62 and 63 select the permutation of pieces. The first operands
// of the instruction are the 32 or 64 numbers of c.
#define GROUP_FOUR(n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define GROUP_C64 GROUP_FOUR(0), GROUP_FOUR(1), GROUP_FOUR(2), GROUP_FOUR(3), GROUP_FOUR(4), GROUP_FOUR(5), GROUP_FOUR(6), GROUP_FOUR(7)
#define GROUP_C128                                                                                                  \
  GROUP_C64, GROUP_FOUR(8), GROUP_FOUR(9), GROUP_FOUR(10), GROUP_FOUR(11), GROUP_FOUR(12), GROUP_FOUR(13), GROUP_FOUR(14), \
      GROUP_FOUR(15)
#define GROUP_N64                                                                                                   \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                   \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define GROUP_N128                                                                                                  \
  GROUP_N64 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                       \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define GROUP_WGMMA(n, type) "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" GROUP_N##n "}, "
#define GROUP_MATRIX(name, at) ".reg .b64 " name "; mov.b64 " name ", {" at ", 0x40000040}; "
#define GROUP_SCORES(n, type, first, second, third)                                                       \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, " third ", 0; " GROUP_MATRIX("a", first) GROUP_MATRIX("b", second) \
               GROUP_WGMMA(n, type) "a, b, p, 1, 1, 0, 0; }"                                              \
               : GROUP_C##n                                                                               \
               : "r"(a), "r"(b), "r"((int)adds))
#define GROUP_SUMS(n, type, first, rest)                                                                  \
  asm volatile("{ " GROUP_MATRIX("b", first) GROUP_WGMMA(n, type) "{" rest "}, b, 1, 1, 1, 1; }"          \
               : GROUP_C##n                                                                               \
               : "r"(b + (APART << 16)), "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]))
#endif

// scoreProduct sets c, which is 64×N over the warpgroup, to a·bᵀ, or adds a·bᵀ to it. a is 64 rows of a panel and b is
// N rows of another panel, with the 16 columns at the given corners.
template <class T, int N> DEV void scoreProduct(f32 (&c)[N / 8][4], Corner a, Corner b, bool adds) {
#ifdef __CUDA_ARCH__
  if constexpr (N == 64 && IsBF16<T>::yes) GROUP_SCORES(64, "bf16", "%32", "%33", "%34");
  else if constexpr (N == 64) GROUP_SCORES(64, "f16", "%32", "%33", "%34");
  else if constexpr (IsBF16<T>::yes) GROUP_SCORES(128, "bf16", "%64", "%65", "%66");
  else GROUP_SCORES(128, "f16", "%64", "%65", "%66");
#else
  for (int n = 0; n < N / 8; n++)
    for (int e = 0; e < 4; e++) {
      f32 sum = adds ? c[n][e] : 0;
      for (int k = 0; k < 16; k++) sum += inPanel<T>(a, threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4 + e / 2 * 8, k) * inPanel<T>(b, n * 8 + threadIdx.x % 4 * 2 + e % 2, k);
      c[n][e] = sum;
    }
  __syncthreads();
#endif
}

// sumProduct adds a·b to c, which is 64×N over the warpgroup. b is 16 rows of panels, beginning at the given corner.
// Successive panels are APART·16 bytes apart.
template <class T, int N, int APART> DEV void sumProduct(f32 (&c)[N / 8][4], const u32 (&a)[4], Corner b) {
#ifdef __CUDA_ARCH__
  if constexpr (N == 64 && IsBF16<T>::yes) GROUP_SUMS(64, "bf16", "%32", "%33, %34, %35, %36");
  else if constexpr (N == 64) GROUP_SUMS(64, "f16", "%32", "%33, %34, %35, %36");
  else if constexpr (IsBF16<T>::yes) GROUP_SUMS(128, "bf16", "%64", "%65, %66, %67, %68");
  else GROUP_SUMS(128, "f16", "%64", "%65, %66, %67, %68");
#else
  for (int i = 0; i < 4; i++) spoken[threadIdx.x][i] = a[i];
  __syncthreads();
  const int warp = threadIdx.x & ~31, lane = threadIdx.x & 31;
  for (int n = 0; n < N / 8; n++)
    for (int e = 0; e < 4; e++) {
      const int row = lane / 4 + e / 2 * 8, col = n * 8 + lane % 4 * 2 + e % 2;
      for (int k = 0; k < 16; k++) {
        T x;
        x.bits = (u16)(spoken[warp + row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2] >> k % 2 * 16);
        c[n][e] += Num<T>::get(x) * inPanel<T>(b + col / 64 * APART, k, col % 64);
      }
    }
  __syncthreads();
#endif
}
