// Warp-level operations from sm_80 on: products of small matrices on tensor cores, loads of their operands, and
// exchange of data between lanes. The layouts of fragments are those of the PTX ISA, mma.m16n8k16 and ldmatrix. On a
// CPU, where these sources are tested, a barrier synchronises all lanes.

template <class T> struct IsBF16 { static constexpr bool yes = false; };
template <> struct IsBF16<bf16> { static constexpr bool yes = true; };

// oddBits returns a nonzero value if a pair contains a number that is not finite: adding 1 to an exponent with all bits
// set carries into the sign bit.
template <class T> DEV u32 oddBits(u32 x) {
  return IsBF16<T>::yes ? (x & 0x7f807f80u) + 0x00800080u & 0x80008000u : (x & 0x7c007c00u) + 0x04000400u & 0x80008000u;
}
template <class T> DEV u32 oddBits(const Pack<u32, 4>& x) { return oddBits<T>(x.v[0]) | oddBits<T>(x.v[1]) | oddBits<T>(x.v[2]) | oddBits<T>(x.v[3]); }

// Spot is an address in shared memory.
#ifdef __CUDA_ARCH__
typedef u32 Spot;
#else
typedef u64 Spot;
#endif

DEV Spot spotOf(const void* x) {
#ifdef __CUDA_ARCH__
  return (Spot)__cvta_generic_to_shared(x);  // CUDA provides this address for variables
#else
  return (Spot)x;
#endif
}

// meetWarp makes the writes of a warp's lanes to shared memory visible to the whole warp.
DEV void meetWarp() {
#ifdef __CUDA_ARCH__
  __syncwarp();
#else
  __syncthreads();
#endif
}

// meetThreads is like __syncthreads for some of the block's warps, with COUNT threads in total. place is the number of
// the barrier, 1 to 15.
DEV void meetThreads(int place, int count) {
#ifdef __CUDA_ARCH__
  asm volatile("bar.sync %0, %1;" ::"r"(place), "r"(count) : "memory");
#else
  __syncthreads();
#endif
}

// roomOf returns the block's dynamic shared memory, which is aligned to 1 KiB. Copies to shared memory that is not
// aligned to 32 bytes would read twice as much from the L2 cache.
template <class R> DEV R& roomOf() {
#ifdef __CUDA_ARCH__
  alignas(1024) extern __shared__ Pack<u32, 4> sharedRoom[];
  return *(R*)sharedRoom;
#else
  alignas(1024) static R room;
  return room;
#endif
}

// copy16 starts to copy 16 bytes to shared memory. If there is false, it writes zeros.
DEV void copy16(Spot to, const void* from, bool there) {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
#else
  *(Pack<u32, 4>*)to = there ? *(const Pack<u32, 4>*)from : Pack<u32, 4>{};
#endif
}

// copyFew starts to copy N bytes, 4 or 8, to shared memory. If there is false, it writes zeros.
template <int N> DEV void copyFew(Spot to, const void* from, bool there) {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(N), "r"(there ? N : 0) : "memory");
#else
  for (int i = 0; i < N / 4; i++) ((u32*)to)[i] = there ? ((const u32*)from)[i] : 0;
#endif
}

DEV void endCopies() {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// awaitCopies waits for the copies that the thread has started, except the LEFT groups that were ended last.
template <int LEFT = 0> DEV void awaitCopies() {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#endif
}

template <class A> DEV A larger(A a, A b) { return a > b ? a : b; }

#ifdef __CUDA_ARCH__

template <class A> DEV A ofLane(A v, int away) { return __shfl_xor_sync(0xffffffffu, v, away); }

// sameForWarp returns x, which must be equal in all lanes, in a form that shows this to the compiler.
template <class A> DEV A sameForWarp(A x) { return __shfl_sync(0xffffffffu, x, 0); }

// someOfWarp reports whether x is true in some lane, so that warps can skip work that no lane needs. It may always
// return true.
DEV bool someOfWarp(bool x) { return !__all_sync(0xffffffffu, !x); }

// mostOfWarp returns the largest x of all lanes.
template <class A> DEV A mostOfWarp(A x) {
  u32 most;
  asm("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(most) : "r"(x));
  return most;
}

#else

static bool someOfWarp(bool) { return true; }

template <class A> static A sameForWarp(A x) { return x; }

static u32 spoken[256][7];

template <class A> static A ofLane(A v, int away) {
  spoken[threadIdx.x][0] = bitsAs<u32>(v);
  __syncthreads();
  A w = bitsAs<A>(spoken[threadIdx.x ^ away][0]);
  __syncthreads();
  return w;
}

template <class A> static A mostOfWarp(A x) {
  for (int away = 16; away > 0; away /= 2) {
    const A other = ofLane(x, away);
    x = larger(x, other);
  }
  return x;
}
#endif

// fourTiles reads four matrices of 8 rows of 8 elements. Lane l passes the address of row l%8 of matrix l/8. It gets
// two elements of each matrix: elements 2·(l%4) and 2·(l%4)+1 of row l/4 or, if TURNED, of column l/4.
template <bool TURNED> DEV void fourTiles(u32 (&r)[4], const Pack<u32, 4>* row) {
#ifdef __CUDA_ARCH__
  const Spot at = spotOf(row);
  if constexpr (TURNED) asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
  else asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
#else
  static const u16* rows[256];
  rows[threadIdx.x] = (const u16*)row;
  __syncthreads();
  const int warp = threadIdx.x & ~31, lane = threadIdx.x & 31;
  for (int m = 0; m < 4; m++)
    for (int h = r[m] = 0; h < 2; h++) {
      const int a = lane / 4, b = lane % 4 * 2 + h;
      r[m] |= (u32)(TURNED ? rows[warp + 8 * m + b][a] : rows[warp + 8 * m + a][b]) << 16 * h;
    }
  __syncthreads();
#endif
}

// pair rounds two numbers and packs them; lo is in the low bits.
template <class T> DEV u32 pair(f32 lo, f32 hi) {
#ifdef __CUDA_ARCH__
  u32 r;
  if constexpr (IsBF16<T>::yes) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
#else
  return (u32)Num<T>::put(lo).bits | (u32)Num<T>::put(hi).bits << 16;
#endif
}

// product adds a·b to c: 16×16 by 16×8.
template <class T> DEV void product(f32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#ifdef __CUDA_ARCH__
  if constexpr (IsBF16<T>::yes)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  u32* mine = spoken[threadIdx.x];
  for (int i = 0; i < 4; i++) mine[i] = a[i];
  mine[4] = b0, mine[5] = b1;
  __syncthreads();
  const int warp = threadIdx.x & ~31, lane = threadIdx.x & 31;
  for (int e = 0; e < 4; e++) {
    const int row = lane / 4 + e / 2 * 8, col = lane % 4 * 2 + e % 2;
    f32 sum = 0;
    for (int k = 0; k < 16; k++) {
      T x, y;
      x.bits = (u16)(spoken[warp + row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2] >> k % 2 * 16);
      y.bits = (u16)(spoken[warp + col * 4 + k % 8 / 2][4 + k / 8] >> k % 2 * 16);
      sum += Num<T>::get(x) * Num<T>::get(y);
    }
    c[e] += sum;
  }
  __syncthreads();
#endif
}
