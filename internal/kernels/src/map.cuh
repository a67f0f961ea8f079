// Elementwise operations on N operands of any strides, and reductions of N
// operands elementwise. The first operand may have a type of its own, which is
// computed in what the others are.

#define CONSTANTS 2

template <int N, int R> struct MapArgs {
  u64 out, in[N ? N : 1];
  u64 value[CONSTANTS];          // the op's constants
  i64 total;                     // packs of V elements
  i64 n[R];                      // extents; the last one in packs
  i64 so[R], si[N ? N : 1][R];   // strides in elements
};

// An op has of(x, c), from operands and constants, and finish, which makes the result. Those of the language are
// generated from package pointwise.
struct Finish {
  template <class TO, class A> DEV TO finish(A a) { return Num<TO>::put(a); }
};
struct OpSame : Finish { template <class A> DEV A of(const A* x, const A*) { return x[0]; } };
struct OpCast {
  template <class A> DEV A of(const A* x, const A*) { return x[0]; }
  template <class TO, class A> DEV TO finish(A a) { return Num<TO>::cast(a); }
};

// Functions of the two types that functions are computed in.
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

// quotient is a/b where b is of a usual size: in f32 within two units of the last
// place, without the cases that a division takes apart.
DEV f64 quotient(f64 a, f64 b) { return a / b; }
DEV f32 quotient(f32 a, f32 b) {
#if defined(__CUDA_ARCH__)
  return __fdividef(a, b);
#else
  return a / b;
#endif
}

// exp2Of is 2^x; what is below the least normal number is 0.
DEV f32 exp2Of(f32 x) {
#if defined(__CUDA_ARCH__)
  f32 y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return exp2f(x);
#endif
}

// upper is the normal distribution beyond s ≥ 0. In f32 it is t·2^(P(t) - s²·log2(e)/2)
// with t = 1/(1 + 0.22·s), and P interpolated at Chebyshev's nodes for s up to
// 14: within 6·2^-24, and where it is small within some 2^-19 of itself. Hence
// no branch, and a third of erfcf's instructions.
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

// gelu is x·Φ(x), by the tail that is not the larger part, which keeps its digits.
template <class M> DEV M gelu(M v) {
  const M q = upper(v < 0 ? -v : v);
  return mul(v, v > 0 ? 1 - q : q);
}
// silu is x·σ(x). The exponential of a number that is not positive does not overflow.
template <class M> DEV M silu(M v) {
  const M e = expOf(v > 0 ? -v : v);
  return quotient(v > 0 ? v : v * e, 1 + e);
}

// geluTanh is gelu with a polynomial in the place of the error function: (1 + tanh(u))/2 is σ(2u), which keeps the
// digits of the lower tail.
template <class M> DEV M geluTanh(M v) {
  const M u = mul(v, (M)1.5957691216057308 + (M)0.071354816272600248 * v * v);
  return v / (1 + expOf(-u));
}

// Reductions of N operands in their order.
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

// load reads V elements at p, stride apart: 1, which it is where they are DENSE, or 0
// for one element repeated.
template <class T, int V, bool DENSE> DEV Pack<T, V> load(const T* p, i64 stride) {
  if (V == 1 || DENSE || stride) return *(const Pack<T, V>*)p;
  const T one = *p;
  Pack<T, V> x;
#pragma unroll
  for (int v = 0; v < V; v++) x.v[v] = one;
  return x;
}

// place adds to at where piece i of V elements begins in each of N operands and
// in the result, which is last.
template <int N, int R, int V, bool DENSE, class I> DEV void place(I i, const i64* n, const i64 (*si)[R], const i64* so, i64* at) {
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
    at[N] += DENSE && d == R - 1 ? k : k * so[d];
  }
}

// DENSE: along the last dimension all strides are 1.
template <class F, class TO, class T0, class TI, int N, int R, int V, bool DENSE, class I> DEV void map(const MapArgs<N, R>& a) {
  typedef typename Num<TI>::Acc A;
  A c[CONSTANTS];
#pragma unroll
  for (int k = 0; k < CONSTANTS; k++) c[k] = Const<A>::of(a.value[k]);
  const I step = (I)gridDim.x * blockDim.x, total = (I)a.total;
  for (I i = (I)blockIdx.x * blockDim.x + threadIdx.x; i < total; i += step) {
    i64 at[N + 1] = {0};
    place<N, R, V, DENSE>(i, a.n, a.si, a.so, at);
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
