// Sums, maxima, minima and means over axes. The order of operations depends on the number of elements, their type and
// the number of threads G per result. It does not depend on addresses or on the machine.

template <int K, int R> struct AxesArgs {
  u64 out, in;
  u64 first;                     // the result for no elements
  i64 divide;                    // for the last pass of a mean: the number of elements; otherwise 0
  i64 outs, count;               // number of results; number of elements that are reduced to each result
  i64 per, parts;                // number of elements of a part of a result; number of parts of a result
  i64 n[K], so[K], si[K];        // the axes that remain
  i64 m[R], sm[R];               // the reduced axes
};

template <class A> DEV A divided(A a, i64 by) { return by ? a / (A)by : a; }

// G threads fold each part of each result into one TO. Each thread has V partial folds. VEC: the V elements are loaded
// with one access.
template <class F, class TO, class TI, int K, int R, int G, int V, bool VEC> DEV void axes(const AxesArgs<K, R>& a) {
  typedef typename Num<TI>::Acc A;
  const i64 id = (i64)blockIdx.x * (256 / G) + threadIdx.x / G;
  const int lane = threadIdx.x % G;
  const bool live = id < a.outs * a.parts;
  const i64 part = live ? id / a.outs : 0;
  const TI* in = (const TI*)a.in;
  TO* out = (TO*)a.out + part * a.outs * (a.parts > 1);
  i64 rest = live ? id - part * a.outs : 0;
#pragma unroll
  for (int d = K - 1; d >= 0; d--) {
    const i64 x = d ? rest % a.n[d] : rest;
    rest /= a.n[d];
    in += x * a.si[d];
    out += x * a.so[d];
  }
  const i64 lo = part * a.per, hi = lo + a.per < a.count ? lo + a.per : a.count;
  A acc[V];
#pragma unroll
  for (int v = 0; v < V; v++) acc[v] = Const<A>::of(a.first);
  if (live)
    for (i64 j = lo + lane * V; j < hi; j += G * V) {
      if (VEC && j + V <= hi) {
        const Pack<TI, V> x = *(const Pack<TI, V>*)(in + j);
#pragma unroll
        for (int v = 0; v < V; v++) acc[v] = F::of(acc[v], Num<TI>::get(x.v[v]));
        continue;
      }
#pragma unroll
      for (int v = 0; v < V; v++) {
        if (j + v >= hi) break;
        i64 left = j + v, at = 0;
#pragma unroll
        for (int d = R - 1; d >= 0; d--) {
          const i64 x = d ? left % a.m[d] : left;
          if (d) left /= a.m[d];
          at += x * a.sm[d];
        }
        acc[v] = F::of(acc[v], Num<TI>::get(in[at]));
      }
    }
#pragma unroll
  for (int v = 1; v < V; v++) acc[0] = F::of(acc[0], acc[v]);
  if (G > 1) {
    __shared__ A all[256];
    all[threadIdx.x] = acc[0];
    for (int half = G / 2; half > 0; half /= 2) {
      __syncthreads();
      if (lane < half) all[threadIdx.x] = F::of(all[threadIdx.x], all[threadIdx.x + half]);
    }
    acc[0] = all[threadIdx.x];
  }
  if (live && lane == 0) *out = Num<TO>::put(divided(acc[0], a.divide));
}
