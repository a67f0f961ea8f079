// Runs kernels that wait for each other on a CPU: all threads of all members'
// launches are contexts that take turns, in an order that a seed draws, and give
// way where they wait or meet.
#include <sys/mman.h>
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

struct Block { unsigned index, grid, threads, arrived, round; int all, result; };
struct Thread { ucontext_t context; Block* block; unsigned index; bool over; void (*run)(const unsigned long long*); const unsigned long long* args; };
static ucontext_t scheduler;
static Thread* now;

static void giveWay() { swapcontext(&now->context, &scheduler); }
static void emulatedYield() { giveWay(); }
static int __all_sync(unsigned, int);
static void __syncwarp();
static int __syncthreads_and(int yes) {
  Block* b = now->block;
  const unsigned round = b->round;
  b->all &= yes != 0;
  if (++b->arrived == b->threads) b->result = b->all, b->all = 1, b->arrived = 0, b->round++;
  while (b->round == round) giveWay();
  return b->result;
}
static void __syncthreads() { __syncthreads_and(1); }
static unsigned long long atomicCAS(unsigned long long* p, unsigned long long want, unsigned long long v) {
  unsigned long long old = *p;
  if (old == want) *p = v;
  return old;
}
// Time goes on by 1 µs each time somebody looks.
static unsigned long long emulatedNanoseconds() {
  static unsigned long long now;
  return now += 1000;
}
typedef void (*Run)(const unsigned long long*);
extern Run entries[];
