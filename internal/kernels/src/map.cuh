// Elementwise operations on N operands with any strides, and elementwise reductions of N operands. The first operand
// may have another type, which is computed in the accumulator type of the others.

#define CONSTANTS 2

template <int N, int R> struct MapArgs {
  u64 out, in[N ? N : 1];
  u64 value[CONSTANTS];          // the op's constants
  i64 total;                     // number of packs of V elements
  i64 n[R];                      // extents; the last one counts packs
  i64 so[R], si[N ? N : 1][R];   // strides in elements
};

// An op has two functions: of(x, c) computes the result from operands and constants, and finish converts it to the
// result type. The ops of the language are generated from package pointwise.
struct Finish {
  template <class TO, class A> DEV TO finish(A a) { return Num<TO>::put(a); }
};
struct OpSame : Finish { template <class A> DEV A of(const A* x, const A*) { return x[0]; } };
struct OpCast {
  template <class A> DEV A of(const A* x, const A*) { return x[0]; }
  template <class TO, class A> DEV TO finish(A a) { return Num<TO>::cast(a); }
};

// These are functions for the two types in which functions are computed.
#define FUNCTION(name) DEV f32 name##Of(f32 x) { return name##f(x); } DEV f64 name##Of(f64 x) { return name(x); }
FUNCTION(exp)
FUNCTION(log1p)
FUNCTION(sqrt)
FUNCTION(tanh)
FUNCTION(sin)
FUNCTION(cos)
FUNCTION(erf)
FUNCTION(log)
FUNCTION(floor)
#undef FUNCTION
DEV f32 powOf(f32 x, f32 by) { return powf(x, by); }
DEV f64 powOf(f64 x, f64 by) { return pow(x, by); }

// quotient is a/b for b of ordinary size. In f32 it is accurate to two units in the last place, and omits the special
// cases of a division.
DEV f64 quotient(f64 a, f64 b) { return a / b; }
DEV f32 quotient(f32 a, f32 b) {
#if defined(__CUDA_ARCH__)
  return __fdividef(a, b);
#else
  return a / b;
#endif
}

// exp2Of is 2^x; results below the smallest normal number are 0.
DEV f32 exp2Of(f32 x) {
#if defined(__CUDA_ARCH__)
  f32 y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return exp2f(x);
#endif
}

// upper is the upper tail of the normal distribution beyond s ≥ 0. In f32 it is t·2^(P(t) - s²·log2(e)/2) with t = 1/(1
// + 0.22·s), and P interpolated at Chebyshev nodes for s up to 14. The absolute error is at most 6·2^-24, and the
// relative error of small values about 2^-19. It has no branch, and a third of the instructions of erfcf.
DEV f64 upper(f64 s) { return erfc(s * 0.70710678118654752440) / 2; }
DEV f32 upper(f32 s) {
  const f32 t = quotient(1.f, 1.f + 0.22f * s);
  f32 p = 0.629859585f;
  p = p * t - 2.44240648f;
  p = p * t + 3.34551883f;
  p = p * t - 2.29685056f;
  p = p * t + 1.42525975f;
  p = p * t + 0.36793776f;
  p = p * t + 1.48330272f;
  p = p * t - 3.51262083f;
  return t * exp2Of(p - s * (s * 0.721347520f));
}

// gelu is x·Φ(x). It is computed from the smaller tail, which preserves precision.
template <class M> DEV M gelu(M v) {
  const M q = upper(v < 0 ? -v : v);
  return mul(v, v > 0 ? 1 - q : q);
}
// silu is x·σ(x). It only takes exponentials of numbers that are not positive, which do not overflow.
template <class M> DEV M silu(M v) {
  const M e = expOf(v > 0 ? -v : v);
  return quotient(v > 0 ? v : v * e, 1 + e);
}

// geluTanh is gelu with a polynomial instead of the error function: (1 + tanh(u))/2 is σ(2u), which preserves the
// precision of the lower tail.
template <class M> DEV M geluTanh(M v) {
  const M u = mul(v, (M)1.5957691216057308 + (M)0.071354816272600248 * v * v);
  return v / (1 + expOf(-u));
}

// OpFold reduces N operands in their order.
template <class F, int N> struct OpFold : Finish {
  template <class A> DEV A of(const A* x, const A*) {
    A a = x[0];
#pragma unroll
    for (int k = 1; k < N; k++) a = F::of(a, x[k]);
    return a;
  }
};
template <int N> struct OpAvg : Finish {
  template <class A> DEV A of(const A* x, const A* c) { return OpFold<FoldSum, N>::of(x, c) / c[0]; }
};

// load reads V elements at p. Their stride is 1 (always if DENSE), or 0 for one element repeated.
template <class T, int V, bool DENSE> DEV Pack<T, V> load(const T* p, i64 stride) {
  if (V == 1 || DENSE || stride) return *(const Pack<T, V>*)p;
  const T one = *p;
  Pack<T, V> x;
#pragma unroll
  for (int v = 0; v < V; v++) x.v[v] = one;
  return x;
}

// place adds to each entry of at the offset of piece i, of V elements, in one of the N operands, or, in the entries after
// these, in one of the M results.
template <int N, int M, int R, int V, bool DENSE, class I> DEV void place(I i, const i64* n, const i64 (*si)[R], const i64 (*so)[R], i64* at) {
#pragma unroll
  for (int d = R - 1; d >= 0; d--) {
    I x = i;
    if (d > 0) {
      const I e = (I)n[d];
      i = i / e;
      x -= i * e;
    }
    const i64 k = d == R - 1 ? (i64)x * V : (i64)x;
#pragma unroll
    for (int o = 0; o < N; o++) at[o] += DENSE && d == R - 1 ? k : k * si[o][d];
#pragma unroll
    for (int o = 0; o < M; o++) at[N + o] += DENSE && d == R - 1 ? k : k * so[o][d];
  }
}

// DENSE: all strides along the last dimension are 1.
template <class F, class TO, class T0, class TI, int N, int R, int V, bool DENSE, class I> DEV void map(const MapArgs<N, R>& a) {
  typedef typename Num<TI>::Acc A;
  A c[CONSTANTS];
#pragma unroll
  for (int k = 0; k < CONSTANTS; k++) c[k] = Const<A>::of(a.value[k]);
  const I step = (I)gridDim.x * blockDim.x, total = (I)a.total;
  for (I i = (I)blockIdx.x * blockDim.x + threadIdx.x; i < total; i += step) {
    i64 at[N + 1] = {0};
    place<N, 1, R, V, DENSE>(i, a.n, a.si, &a.so, at);
    Pack<T0, V> first;
    Pack<TI, V> in[N ? N : 1];
    if (N) first = load<T0, V, DENSE>((const T0*)a.in[0] + at[0], a.si[0][R - 1]);
#pragma unroll
    for (int o = 1; o < N; o++) in[o] = load<TI, V, DENSE>((const TI*)a.in[o] + at[o], a.si[o][R - 1]);
    Pack<TO, V> out;
#pragma unroll
    for (int v = 0; v < V; v++) {
      A x[N ? N : 1];
#pragma unroll
      for (int o = 0; o < N; o++) x[o] = o ? Num<TI>::get(in[o].v[v]) : Num<T0>::get(first.v[v]);
      out.v[v] = F::template finish<TO>(F::of(x, c));
    }
    *(Pack<TO, V>*)((TO*)a.out + at[N]) = out;
  }
}
