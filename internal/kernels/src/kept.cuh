// Kernels of state that is kept between runs: rows written at positions, pairs rotated by the angles of positions, and
// the index of the largest element.

// PositionArgs describes dense positions, i64 if wide is set, else i32. There is one for each row, or they are the same
// for all rows and only the last dimension is stored.
struct PositionArgs {
  u64 at, wide;
  i64 count, room;               // positions in a row, which must be distinct; positions must be below room
  i64 all;                       // total number of positions
  u64 fault, tag;
};

DEV i64 positionOf(const PositionArgs& a, i64 i) { return a.wide ? ((const i64*)a.at)[i] : ((const i32*)a.at)[i]; }

// positions reports a position outside -1..room-1, and one that occurs earlier in its row. Each thread checks one
// position, and the block loads the earlier ones 256 at a time.
DEV void positions(const PositionArgs& a) {
  __shared__ i64 some[256];
  const i64 row = blockIdx.x / ((a.count + 255) / 256) * a.count, first = blockIdx.x % ((a.count + 255) / 256) * 256;
  const i64 own = first + threadIdx.x, p = own < a.count ? positionOf(a, row + own) : -1;
  if (p < -1 || p >= a.room) fault(a.fault, faultPosition, a.tag, (u64)p, (u64)a.room, (u64)(row + own));
  bool twice = false;
  for (i64 j = 0; j <= first; j += 256) {
    __syncthreads();
    some[threadIdx.x] = j + threadIdx.x < a.count ? positionOf(a, row + j + threadIdx.x) : -1;
    __syncthreads();
    const int n = own - j < 256 ? (int)(own - j) : 256;
    for (int k = 0; k < n; k++) twice |= some[k] == p;
  }
  if (twice && p != -1) fault(a.fault, faultTwice, a.tag, (u64)p, (u64)a.room, (u64)(row + own));
}

// positionsValid does the same if there are at most 256 positions in total, and returns true if all are valid and no
// fault was reported on the device. All threads of a block call it.
DEV bool positionsValid(const PositionArgs& a) {
  __shared__ i64 some[256];
  const int i = threadIdx.x;
  const i64 p = i < a.all ? positionOf(a, i) : -1;
  const bool reported = i == 0 && a.fault && acquire64((const u64*)a.fault);
  some[i] = p;
  __syncthreads();
  const bool outside = p < -1 || p >= a.room;
  if (outside) fault(a.fault, faultPosition, a.tag, (u64)p, (u64)a.room, (u64)i);
  bool twice = false;
  for (int j = p == -1 ? i : i - i % (int)a.count; j < i; j++) twice |= some[j] == p;
  if (twice) fault(a.fault, faultTwice, a.tag, (u64)p, (u64)a.room, (u64)i);
  return !__syncthreads_or(outside || twice || reported);
}

template <int B, int D> struct IndexCopyArgs {
  PositionArgs p;
  u64 out, in;
  i64 rows, so;                  // so: stride of out along the axis
  i64 pieces;                    // pieces of a row
  i64 e[B], bo[B], bi[B], bp[B]; // extents and strides of the rows' dimensions; bp counts positions
  i64 n[D], no[D], ni[D];        // within a row: extents and strides in pieces
};

// indexCopy has a warp for each row, which moves pieces of type W. An element of the tensors has SIZE bytes. It writes
// nothing if a fault was reported on the device. CHECKS: each block checks all positions, so that no separate kernel
// needs to do so.
template <class W, int SIZE, int B, int D, bool CHECKS> DEV void indexCopy(const IndexCopyArgs<B, D>& a) {
  i64 t = (i64)blockIdx.x * 8 + threadIdx.x / 32;
  if (CHECKS && !positionsValid(a.p)) return;
  if (t >= a.rows || (!CHECKS && a.p.fault && acquire64((const u64*)a.p.fault))) return;
  i64 out = 0, in = 0, at = 0;
#pragma unroll
  for (int d = B - 1; d >= 0; d--) {
    const i64 x = d ? t % a.e[d] : t;
    t /= a.e[d];
    out += x * a.bo[d];
    in += x * a.bi[d];
    at += x * a.bp[d];
  }
  const i64 p = positionOf(a.p, at);
  if (p < 0 || p >= a.p.room) return;
  W* to = (W*)(a.out + (out + p * a.so) * SIZE);
  const W* from = (const W*)(a.in + in * SIZE);
#pragma unroll 4
  for (i64 i = threadIdx.x % 32; i < a.pieces; i += 32) {
    i64 k = i, ko = 0, ki = 0;
#pragma unroll
    for (int d = D - 1; d >= 0; d--) {
      const i64 x = d ? k % a.n[d] : k;
      if (d) k /= a.n[d];
      ko += x * a.no[d];
      ki += x * a.ni[d];
    }
    to[ko] = from[ki];
  }
}

// RopePart describes one tensor of a rope.
template <int B> struct RopePart {
  u64 out, in;
  i64 heads, so[2], si[2];       // strides along heads, Dh
  i64 bo[B], bi[B];              // strides along the tokens' dimensions
  i64 rotates;                   // not 0: pairs are rotated; 0: they are copied
  i64 keeps, sp;                 // keeps is not 0: a token is stored at its position in rows, with stride sp
};

template <int B, int HALF, int PARTS> struct RopeArgs {
  u64 at, wide;                  // the positions that determine angles
  i64 tokens;
  i64 e[B], ba[B], br[B];        // extents and strides of the tokens' dimensions; ba counts positions in at, br in rows
  u64 freqs; i64 sf;             // if not 0: angles at position 1, in f32; otherwise step is used
  i64 rest;                      // elements of a head after the pairs
  f64 scale;                     // factor of sines and cosines
  PositionArgs rows;
  RopePart<B> part[PARTS];
  f64 step[HALF];
};

// rope has a block for each token of each part, which computes each angle once. V pairs move as one access. KEEPS: some
// parts are stored at positions, which each of their blocks checks.
template <class T, int B, int HALF, int PARTS, bool KEEPS, int V> DEV void rope(const RopeArgs<B, HALF, PARTS>& a) {
  typedef typename Num<T>::Acc A;
  __shared__ A sine[HALF], cosine[HALF];
  const RopePart<B>& part = a.part[PARTS > 1 ? blockIdx.x / (u32)a.tokens : 0];
  T* out = (T*)part.out;
  const T* in = (const T*)part.in;
  i64 t = PARTS > 1 ? blockIdx.x % (u32)a.tokens : blockIdx.x, at = 0, row = 0;
#pragma unroll
  for (int d = B - 1; d >= 0; d--) {
    const i64 x = d ? t % a.e[d] : t;
    t /= a.e[d];
    out += x * part.bo[d];
    in += x * part.bi[d];
    at += x * a.ba[d];
    row += x * a.br[d];
  }
  if (KEEPS && part.keeps) {
    if (!positionsValid(a.rows)) return;
    const i64 p = positionOf(a.rows, row);
    if (p < 0) return;
    out += p * part.sp;
  }
  const u32 items = (u32)part.heads * (HALF / V);
  const auto from = [&](u32 i) { return in + (i64)(i / (HALF / V)) * part.si[0] + i % (HALF / V) * V * part.si[1]; };
  Pack<T, V> p, q;  // the pairs of an item; those of the first one are loaded before the angles are computed
  const auto load = [&](u32 i) { p = *(const Pack<T, V>*)from(i), q = *(const Pack<T, V>*)(from(i) + HALF * part.si[1]); };
  if (threadIdx.x < items) load(threadIdx.x);
  if (part.rotates) {
    const i64 p = a.wide ? ((const i64*)a.at)[at] : ((const i32*)a.at)[at];
    for (int i = threadIdx.x; i < HALF; i += 256) {
      f64 s, c;
      sincos((f64)p * (a.freqs ? (f64)((const f32*)a.freqs)[i * a.sf] : a.step[i]), &s, &c);
      sine[i] = (A)(s * a.scale), cosine[i] = (A)(c * a.scale);
    }
    __syncthreads();
  }
  for (u32 i = threadIdx.x; i < items; i += 256) {
    if (i != threadIdx.x) load(i);
    const int d = i % (HALF / V) * V;
    T* y = out + (i64)(i / (HALF / V)) * part.so[0] + d * part.so[1];
    Pack<T, V> r = p, s = q;
    if (part.rotates) {
#pragma unroll
      for (int v = 0; v < V; v++) {
        const A k = Num<T>::get(p.v[v]), l = Num<T>::get(q.v[v]);
        r.v[v] = Num<T>::put(sub(mul(k, cosine[d + v]), mul(l, sine[d + v])));
        s.v[v] = Num<T>::put(add(mul(l, cosine[d + v]), mul(k, sine[d + v])));
      }
    }
    *(Pack<T, V>*)y = r;
    *(Pack<T, V>*)(y + HALF * part.so[1]) = s;
  }
  for (u32 i = threadIdx.x; i < (u32)(part.heads * a.rest); i += 256) {
    const i64 h = i / (u32)a.rest, d = 2 * HALF + i % (u32)a.rest;
    out[h * part.so[0] + d * part.so[1]] = in[h * part.si[0] + d * part.si[1]];
  }
}

// Best is the largest element and its index, -1 for none. Of equal elements the first is the best. A NaN is the best
// only if it is the very first element, because no element compares larger than it.
template <class A> struct Best { A v; i64 at; };

template <class A> DEV bool better(const Best<A>& x, const Best<A>& y) {
  if (x.at < 0 || y.at < 0) return x.at >= 0;
  if (x.v != x.v || y.v != y.v) return x.v != x.v;
  return x.v > y.v || (x.v == y.v && x.at < y.at);
}

template <int B> struct ArgmaxArgs {
  u64 out, in, parts;            // parts: Best[result][part], if there are several parts
  i64 n, per, count;             // elements of a row; of a part; number of parts
  i64 si;                        // stride along the axis
  i64 outs;
  i64 e[B], bo[B], bi[B];
};

// indexOut writes the index of result t.
template <int B> DEV void indexOut(const ArgmaxArgs<B>& a, i64 t, i64 at) {
  i32* out = (i32*)a.out;
#pragma unroll
  for (int d = B - 1; d >= 0; d--) {
    out += (d ? t % a.e[d] : t) * a.bo[d];
    t /= a.e[d];
  }
  *out = (i32)at;
}

// argmax has a block for each part of each row; V elements move as one access.
template <class T, int B, int V> DEV void argmax(const ArgmaxArgs<B>& a) {
  typedef typename Num<T>::Acc A;
  __shared__ Best<A> all[256];
  const i64 row = blockIdx.x / a.count, part = blockIdx.x % a.count;
  const T* in = (const T*)a.in;
  i64 t = row;
#pragma unroll
  for (int d = B - 1; d >= 0; d--) {
    in += (d ? t % a.e[d] : t) * a.bi[d];
    t /= a.e[d];
  }
  const i64 end = part * a.per + a.per < a.n ? part * a.per + a.per : a.n;
  Best<A> best = {(A)0, -1};
#pragma unroll 4
  for (i64 j = part * a.per + threadIdx.x * V; j < end; j += 256 * V) {
    const Pack<T, V> x = *(const Pack<T, V>*)(in + j * a.si);
#pragma unroll
    for (int v = 0; v < V; v++) {
      const Best<A> one = {Num<T>::get(x.v[v]), j + v};
      if ((one.v == one.v || one.at == 0) && better(one, best)) best = one;
    }
  }
  all[threadIdx.x] = best;
  for (int half = 128; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half && better(all[threadIdx.x + half], all[threadIdx.x])) all[threadIdx.x] = all[threadIdx.x + half];
  }
  if (threadIdx.x != 0) return;
  if (a.count == 1) indexOut(a, row, all[0].at < 0 ? 0 : all[0].at);
  else ((Best<A>*)a.parts)[blockIdx.x] = all[0];
}

// argmaxJoin has a thread for each row.
template <class A, int B> DEV void argmaxJoin(const ArgmaxArgs<B>& a) {
  const i64 row = (i64)blockIdx.x * 256 + threadIdx.x;
  if (row >= a.outs) return;
  const Best<A>* parts = (const Best<A>*)a.parts + row * a.count;
  Best<A> best = parts[0];
  for (i64 i = 1; i < a.count; i++)
    if (better(parts[i], best)) best = parts[i];
  indexOut(a, row, best.at < 0 ? 0 : best.at);
}

struct UnchangedArgs { u64 now, before; i64 bytes, size, first, argument; u64 kind, fault, tag; };

// unchanged reports an element that has changed; it counts elements from first on.
DEV void unchanged(const UnchangedArgs& a) {
  const i64 step = (i64)gridDim.x * blockDim.x;
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i * 8 < a.bytes; i += step)
    for (i64 k = i * 8; k < i * 8 + 8 && k < a.bytes; k++)
      if (((const u8*)a.now)[k] != ((const u8*)a.before)[k]) fault(a.fault, a.kind, a.tag, (u64)a.argument, (u64)(a.first + k / a.size), 0);
}
