// Every kernel source begins with this file. It includes nothing, because no headers of a toolkit are available when
// these sources are compiled.
#define DEV static __device__ __forceinline__
#define KERNEL extern "C" __global__ void __launch_bounds__(256)
#define KERNEL_OF(threads, residents) extern "C" __global__ void __launch_bounds__(threads, residents)

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;
typedef float f32;
typedef double f64;

struct f8e4m3 { u8 bits; };
struct f8e5m2 { u8 bits; };
struct f16 { u16 bits; };
struct bf16 { u16 bits; };

// Pack is V elements that move as one access; V·sizeof(T) is at most 16.
template <class T, int V> struct alignas(sizeof(T) * V) Pack { T v[V]; };

template <class To, class From> DEV To bitsAs(From x) {
  static_assert(sizeof(To) == sizeof(From), "both types must have the same size");
  To y;
  memcpy(&y, &x, sizeof y);
  return y;
}

DEV f32 fromBF16(bf16 x) { return bitsAs<f32>((u32)x.bits << 16); }

DEV bf16 toBF16(f32 x) {
  bf16 y;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#else
  u32 u = bitsAs<u32>(x);
  // Add half a unit of the last place that is kept, less one bit if that place is even.
  y.bits = x != x ? (u16)(u >> 16 | 0x40) : (u16)((u + 0x7fff + (u >> 16 & 1)) >> 16);
#endif
  return y;
}

DEV f32 fromF16(f16 x) {
#if defined(__CUDA_ARCH__)
  f32 y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
#else
  u32 sign = (u32)(x.bits & 0x8000) << 16, mag = x.bits & 0x7fff;
  if (mag >= 0x7c00) return bitsAs<f32>(sign | 0x7f800000 | (mag & 0x3ff) << 13);
  if (mag < 0x400) return bitsAs<f32>(sign | bitsAs<u32>((f32)mag * 5.9604644775390625e-8f));  // subnormal: mag · 2^-24
  return bitsAs<f32>(sign | ((mag << 13) + (112u << 23)));
#endif
}

DEV f16 toF16(f32 x) {
  f16 y;
#if defined(__CUDA_ARCH__)
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#else
  u32 u = bitsAs<u32>(x), mag = u & 0x7fffffff;
  u16 sign = (u16)(u >> 16 & 0x8000);
  if (mag > 0x7f800000) y.bits = sign | 0x7e00;
  else if (mag >= 0x477ff000) y.bits = sign | 0x7c00;  // 65520 rounds to infinity
  else if (mag < 0x38800000)  // below 2^-14: after adding 1/2, the last places count units of 2^-24
    y.bits = sign | (u16)(bitsAs<u32>(bitsAs<f32>(mag) + 0.5f) - 0x3f000000);
  else y.bits = sign | (u16)((mag - (112u << 23) + 0xfff + (mag >> 13 & 1)) >> 13);
#endif
  return y;
}

// 8-bit formats with M bits of mantissa and exponent bias B. OVER is the code for values that are too large.
template <int M, int B, u32 OVER> DEV f32 fromF8(u8 x) {
  const u32 sign = (u32)(x & 0x80) << 24, mag = x & 0x7f;
  if (mag >= OVER) return bitsAs<f32>(mag == OVER && OVER != 0x7f ? sign | 0x7f800000 : sign | 0x7fffffff);
  if (mag < 1 << M) return bitsAs<f32>(sign | bitsAs<u32>((f32)mag * bitsAs<f32>((u32)(128 - B - M) << 23)));
  return bitsAs<f32>(sign | ((mag << (23 - M)) + ((u32)(127 - B) << 23)));
}

template <int M, int B, u32 OVER> DEV u8 toF8(f32 x) {
  const u32 u = bitsAs<u32>(x), mag = u & 0x7fffffff, shift = 23 - M, unit = (u32)(128 - B + shift) << 23;
  u32 code;
  if (mag > 0x7f800000) code = 0x7f;
  else if (mag < (u32)(128 - B) << 23) code = bitsAs<u32>(bitsAs<f32>(mag) + bitsAs<f32>(unit)) - unit;
  else {
    code = ((mag + ((1u << (shift - 1)) - 1) + (mag >> shift & 1)) >> shift) - ((u32)(127 - B) << M);
    code = code < OVER ? code : OVER;
  }
  return (u8)((u >> 24 & 0x80) | code);
}

DEV f32 fromF8(f8e4m3 x) { return fromF8<3, 7, 0x7f>(x.bits); }
DEV f32 fromF8(f8e5m2 x) { return fromF8<2, 15, 0x7c>(x.bits); }

// oddF32 rounds to odd: the last bit of an inexact result is set. Rounding the result again, to fewer bits, then equals
// a single rounding.
DEV f32 oddF32(f64 v) {
  f32 f = (f32)v;
  if ((f64)f == v || v != v) return f;
  u32 u = bitsAs<u32>(f);
  f64 got = f < 0 ? -(f64)f : (f64)f, want = v < 0 ? -v : v;
  if (got > want) u--;
  return bitsAs<f32>(u | 1);
}

// oddF64 does the same for an integer, which may have up to 10 bits too many.
DEV f64 oddF64(i64 v) {
  const i64 exact = (i64)1 << 53, lost = 1023;
  if ((-exact <= v && v <= exact) || (v & lost) == 0) return (f64)v;
  return (f64)((v & ~lost) | (lost + 1));
}

// saturate rounds to the nearest integer, ties to even; NaN gives 0.
DEV i64 saturate(f64 v) {
  f64 r = rint(v);
  if (r != r) return 0;
  if (r >= 9223372036854775808.0) return 0x7fffffffffffffffLL;
  if (r < -9223372036854775808.0) return -0x7fffffffffffffffLL - 1;
  return (i64)r;
}

// Num<T> describes arithmetic on T. Acc is the accumulator type and Fn the type in which functions are computed. get
// converts to Acc, put rounds once (integers wrap), and cast also saturates.
template <class T> struct Num;

template <> struct Num<f32> {
  typedef f32 Acc;
  typedef f64 Fn;
  DEV f32 get(f32 x) { return x; }
  DEV f32 put(f32 a) { return a; }
  template <class A> DEV f32 cast(A a) { return (f32)a; }
};
template <> struct Num<f64> {
  typedef f64 Acc;
  typedef f64 Fn;
  DEV f64 get(f64 x) { return x; }
  DEV f64 put(f64 a) { return a; }
  template <class A> DEV f64 cast(A a) { return (f64)a; }
};
template <> struct Num<f16> {
  typedef f32 Acc;
  typedef f32 Fn;
  DEV f32 get(f16 x) { return fromF16(x); }
  DEV f16 put(f32 a) { return toF16(a); }
  DEV f16 cast(f32 a) { return toF16(a); }
  DEV f16 cast(f64 a) { return toF16(oddF32(a)); }
  DEV f16 cast(i64 a) { return toF16(oddF32(oddF64(a))); }
};
template <> struct Num<bf16> {
  typedef f32 Acc;
  typedef f32 Fn;
  DEV f32 get(bf16 x) { return fromBF16(x); }
  DEV bf16 put(f32 a) { return toBF16(a); }
  DEV bf16 cast(f32 a) { return toBF16(a); }
  DEV bf16 cast(f64 a) { return toBF16(oddF32(a)); }
  DEV bf16 cast(i64 a) { return toBF16(oddF32(oddF64(a))); }
};
template <> struct Num<f8e4m3> {
  typedef f32 Acc;
  typedef f32 Fn;
  DEV f32 get(f8e4m3 x) { return fromF8(x); }
  DEV f8e4m3 put(f32 a) { return {toF8<3, 7, 0x7f>(a)}; }
  DEV f8e4m3 cast(f32 a) { return put(a); }
  DEV f8e4m3 cast(f64 a) { return put(oddF32(a)); }
  DEV f8e4m3 cast(i64 a) { return put(oddF32(oddF64(a))); }
};
template <> struct Num<f8e5m2> {
  typedef f32 Acc;
  typedef f32 Fn;
  DEV f32 get(f8e5m2 x) { return fromF8(x); }
  DEV f8e5m2 put(f32 a) { return {toF8<2, 15, 0x7c>(a)}; }
  DEV f8e5m2 cast(f32 a) { return put(a); }
  DEV f8e5m2 cast(f64 a) { return put(oddF32(a)); }
  DEV f8e5m2 cast(i64 a) { return put(oddF32(oddF64(a))); }
};
template <> struct Num<i64> {
  typedef i64 Acc;
  DEV i64 get(i64 x) { return x; }
  DEV i64 put(i64 a) { return a; }
  DEV i64 cast(i64 a) { return a; }
  DEV i64 cast(f64 a) { return saturate(a); }
};
template <> struct Num<i32> {
  typedef i64 Acc;
  DEV i64 get(i32 x) { return x; }
  DEV i32 put(i64 a) { return (i32)(u32)(u64)a; }
  DEV i32 cast(i64 a) { return a > 0x7fffffff ? 0x7fffffff : a < -0x7fffffffLL - 1 ? (i32)0x80000000 : (i32)a; }
  DEV i32 cast(f64 a) { return cast(saturate(a)); }
};

// These unsigned types are for bits that are only moved.
template <> struct Num<u8> { typedef u8 Acc; DEV u8 get(u8 x) { return x; } DEV u8 put(u8 a) { return a; } };
template <> struct Num<u16> { typedef u16 Acc; DEV u16 get(u16 x) { return x; } DEV u16 put(u16 a) { return a; } };
template <> struct Num<u32> { typedef u32 Acc; DEV u32 get(u32 x) { return x; } DEV u32 put(u32 a) { return a; } };
template <> struct Num<u64> { typedef u64 Acc; DEV u64 get(u64 x) { return x; } DEV u64 put(u64 a) { return a; } };

// Arithmetic on accumulators; integers wrap.
template <class A> DEV A add(A a, A b) { return a + b; }
template <class A> DEV A sub(A a, A b) { return a - b; }
template <class A> DEV A mul(A a, A b) { return a * b; }
template <class A> DEV A neg(A a) { return -a; }
#if defined(__CUDA_ARCH__)
// mul is never fused with a following addition: each product is rounded separately, also in a chain.
DEV f32 mul(f32 a, f32 b) { return __fmul_rn(a, b); }
DEV f64 mul(f64 a, f64 b) { return __dmul_rn(a, b); }
#endif
DEV i64 add(i64 a, i64 b) { return (i64)((u64)a + (u64)b); }
DEV i64 sub(i64 a, i64 b) { return (i64)((u64)a - (u64)b); }
DEV i64 mul(i64 a, i64 b) { return (i64)((u64)a * (u64)b); }
DEV i64 neg(i64 a) { return (i64)(0 - (u64)a); }

// most and least return NaN if an operand is NaN, and order -0 below +0.
template <class A> DEV A most(A a, A b) {
  if (a != a || b != b) return a + b;
  return a > b ? a : b > a ? b : a == (A)0 ? a + b : a;
}
template <class A> DEV A least(A a, A b) {
  if (a != a || b != b) return a + b;
  return a < b ? a : b < a ? b : a == (A)0 ? -(-a + -b) : a;
}
DEV i64 most(i64 a, i64 b) { return a > b ? a : b; }
DEV i64 least(i64 a, i64 b) { return a < b ? a : b; }

// A kernel may begin when all blocks of the previous kernel on its stream have ended or permit it, although their
// writes need not be visible yet. settle waits until they are visible. Before it, the kernel must not access memory.
DEV void settle() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// let permits the next kernel on the stream to begin early, after all blocks of this kernel have called let. The next
// kernel must itself wait for the end of this kernel.
DEV void let() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// letIfSmall calls let if the grid leaves multiprocessors of a large GPU free. The next kernel can then load constant
// weights there. With 256 blocks or more, kernels take longer if the next one begins while they run.
DEV void letIfSmall() {
  if (gridDim.x <= 128) let();
}

// Folds are the associative operations of sums, maxima and minima.
struct FoldSum { template <class A> DEV A of(A a, A b) { return add(a, b); } };
struct FoldMax { template <class A> DEV A of(A a, A b) { return most(a, b); } };
struct FoldMin { template <class A> DEV A of(A a, A b) { return least(a, b); } };

// Const<A> converts a constant from 64 bits.
template <class A> struct Const { DEV A of(u64 bits) { return (A)bitsAs<f64>(bits); } };
template <> struct Const<i64> { DEV i64 of(u64 bits) { return (i64)bits; } };
template <> struct Const<u8> { DEV u8 of(u64 bits) { return (u8)bits; } };
template <> struct Const<u16> { DEV u16 of(u64 bits) { return (u16)bits; } };
template <> struct Const<u32> { DEV u32 of(u64 bits) { return (u32)bits; } };
template <> struct Const<u64> { DEV u64 of(u64 bits) { return bits; } };
