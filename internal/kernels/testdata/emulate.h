// Runs kernels on a CPU, one block at a time. Threads are contexts that switch at synchronisation points. Odd blocks
// run their threads in reverse order, so that a missing barrier causes a wrong result.
#include <sys/mman.h>
#include <setjmp.h>
#include <ucontext.h>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#define __device__
#define __global__
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __cluster_dims__(...)
struct Index { unsigned x; };
static Index threadIdx, blockIdx, blockDim = {256}, gridDim;
static const int mostThreads = 384;  // threads of a block
static jmp_buf home, places[mostThreads];
static bool ended[mostThreads];
static int current;
static unsigned long long emulatedTurn;  // number of times that a thread continued, over all threads
static void __syncthreads() {
  if (!_setjmp(places[current])) _longjmp(home, 1);
}
static int __syncthreads_or(int x) {
  static int of[mostThreads];
  of[current] = x != 0;
  __syncthreads();
  int any = 0;
  for (unsigned t = 0; t < blockDim.x; t++) any |= of[t];
  __syncthreads();
  return any;
}
static void __syncwarp() {}  // lanes continue together anyway
static unsigned long long atomicCAS(unsigned long long* p, unsigned long long want, unsigned long long v) {
  unsigned long long old = *p;
  if (old == want) *p = v;
  return old;
}
// Each reading of the clock advances it by 1 µs.
static unsigned long long emulatedNanoseconds() {
  static unsigned long long now;
  return now += 1000;
}
