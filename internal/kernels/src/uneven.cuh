// Uneven collectives: one member receives rows from all members, according to counts that the kernel reads. Operands
// are [outer, held, inner], the result is [outer, room, inner]. The remaining rows of the result are set to zero.

enum { unevenMost = 64 };        // largest number of members
enum { allGather, reduceScatter, allToAll };

struct UnevenArgs {
  u64 out, fault, tag;
  i64 n, me;                     // number of members, index of this member
  i64 outer, held, room, inner;
  u64 in[unevenMost], counts[unevenMost];
};

// Shares describes the rows that the member receives: rows of member j from lo[j] on, which end before row end[j] of
// the result. In a reduction all of them end at the same row.
struct Shares {
  i64 lo[unevenMost], end[unevenMost], rows;
  u64 bad, about, number;        // the kind of the fault, 0 for none; the member and the index of the invalid count; the value
};
enum { countOutside = 1, countsDiffer, takesTooMany, getsTooMany };

// shareOf reads member j's counts and sets lo[j]. It sets end[j] to the number of rows that the member sends; share
// later replaces it by the end row. It returns the kind of fault in the counts.
template <int KIND> DEV u64 shareOf(const UnevenArgs& a, Shares& s, int j, u64& about, u64& number) {
  const i32* c = (const i32*)a.counts[j];
  const i32* mine = (const i32*)a.counts[a.me];
  const i64 most = a.held > a.room ? a.held : a.room;
  i64 gives = 0, before = 0;
  for (int k = 0; k < a.n; k++) {
    const i64 v = c[k];
    about = (u64)j << 32 | (u64)k;
    number = (u64)v;
    if (KIND != allToAll && v != mine[k]) return countsDiffer;
    if (v < 0 || v > most) return countOutside;
    if (k == a.me) before = gives;
    gives += v;
  }
  s.lo[j] = KIND == allGather ? 0 : before;
  s.end[j] = c[KIND == allGather ? j : (int)a.me];
  number = (u64)(KIND == allGather ? s.end[j] : gives);
  return (i64)number > a.held ? takesTooMany : 0;
}

// share computes s, which is the same in every block. If the counts are invalid, it sets rows to 0, and the first block
// reports the reason.
template <int KIND> DEV void share(const UnevenArgs& a, Shares& s) {
  __shared__ u64 bad[unevenMost], about[unevenMost], number[unevenMost];
  const int t = (int)threadIdx.x;
  if (t < a.n) bad[t] = shareOf<KIND>(a, s, t, about[t], number[t]);
  __syncthreads();
  if (t == 0) {
    s.bad = 0;
    s.rows = 0;
    for (int j = 0; j < a.n && !s.bad; j++) {
      if (bad[j]) s.bad = bad[j], s.about = about[j], s.number = number[j];
      s.rows = s.end[j] = KIND == reduceScatter ? s.end[j] : s.end[j] + s.rows;
    }
    if (!s.bad && s.rows > a.room) s.bad = getsTooMany, s.about = (u64)a.me << 32, s.number = (u64)s.rows;
    if (s.bad) s.rows = 0;
    if (s.bad && blockIdx.x == 0) fault(a.fault, faultCounts, a.tag, s.about, s.number, s.bad << 60 | (u64)(s.bad == getsTooMany ? a.room : a.held));
  }
  __syncthreads();
}

// unevenPiece returns piece k of the result: that of an existing row, or zero.
template <class W, class I> DEV W unevenPiece(const UnevenArgs& a, const Shares& s, I k, I total) {
  const I inner = (I)a.inner, room = (I)a.room, row = k / inner, o = row / room;
  const i64 r = (i64)(row - o * room);
  if (k >= total || r >= s.rows) return W();
  int j = 0;
  while (r >= s.end[j]) j++;
  const i64 from = s.lo[j] + r - (j ? s.end[j - 1] : 0);
  return ((const W*)a.in[j])[((i64)o * a.held + from) * a.inner + (i64)(k - row * inner)];
}

// unevenCopy moves rows in pieces of type W. A row has inner pieces. Each thread has four pieces from peers in flight.
template <int KIND, class W, class I> DEV void unevenCopy(const UnevenArgs& a) {
  __shared__ Shares s;
  share<KIND>(a, s);
  const I total = (I)(a.outer * a.room * a.inner), step = (I)gridDim.x * blockDim.x;
  W* out = (W*)a.out;
  for (I k = (I)blockIdx.x * blockDim.x + threadIdx.x; k < total; k += 4 * step) {
    const I k1 = k + step, k2 = k1 + step, k3 = k2 + step;
    const W v0 = unevenPiece<W>(a, s, k, total), v1 = unevenPiece<W>(a, s, k1, total);
    const W v2 = unevenPiece<W>(a, s, k2, total), v3 = unevenPiece<W>(a, s, k3, total);
    out[k] = v0;
    if (k1 < total) out[k1] = v1;
    if (k2 < total) out[k2] = v2;
    if (k3 < total) out[k3] = v3;
  }
}

// unevenReduce folds rows, V elements at a time, in the order of members; AVG divides by the number of members.
template <class T, class F, bool AVG, int V, class I> DEV void unevenReduce(const UnevenArgs& a) {
  typedef typename Num<T>::Acc A;
  typedef Pack<T, V> P;
  __shared__ Shares s;
  share<reduceScatter>(a, s);
  const I total = (I)(a.outer * a.room * a.inner), inner = (I)a.inner, room = (I)a.room, step = (I)gridDim.x * blockDim.x;
  for (I k = (I)blockIdx.x * blockDim.x + threadIdx.x; k < total; k += step) {
    const I row = k / inner, o = row / room;
    const i64 r = (i64)(row - o * room);
    A acc[V] = {};
    if (r < s.rows) {
      const i64 from = ((i64)o * a.held + s.lo[0] + r) * a.inner + (i64)(k - row * inner);
      for (int j = 0; j < a.n; j++) {
        const P x = ((const P*)a.in[j])[from];
#pragma unroll
        for (int v = 0; v < V; v++) acc[v] = j ? F::of(acc[v], Num<T>::get(x.v[v])) : Num<T>::get(x.v[v]);
      }
    }
    P out;
#pragma unroll
    for (int v = 0; v < V; v++) out.v[v] = Num<T>::put(AVG ? acc[v] / (A)a.n : acc[v]);
    ((P*)a.out)[k] = out;
  }
}
