// Runs kernels of teams on a CPU. The threads of all members' blocks are contexts that switch where they wait or
// synchronize. A seed determines the order in which they continue.
#include <sys/mman.h>
#include <setjmp.h>
#include <ucontext.h>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
#define __device__
#define __global__
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(...)
struct Index { unsigned x; };
static Index threadIdx, blockIdx, blockDim, gridDim;
static void emulatedYield();
static void* emulatedRoom();
static unsigned long long emulatedPart(unsigned long long at, int member);
static void __syncthreads();
static int __syncthreads_and(int x);
static void __syncwarp();
static int __all_sync(unsigned, int x);
template <class A> static A __shfl_sync(unsigned, A v, int from);
template <class A> static A __shfl_down_sync(unsigned, A v, unsigned by);
static unsigned long long atomicCAS(unsigned long long* p, unsigned long long want, unsigned long long v) {
  unsigned long long old = *p;
  if (old == want) *p = v;
  return old;
}
static unsigned long long emulatedClock;
static unsigned long long emulatedNanoseconds() { return emulatedClock += 1000; }
