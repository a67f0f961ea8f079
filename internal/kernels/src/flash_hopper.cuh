// Attention on Hopper's tensor cores. It works like flash, but queries, keys and values are multiplied directly from
// shared memory (FlashAttention-3; Shah et al., 2024; arXiv 2407.08608). Two warpgroups have 64 rows each, and
// alternate: while one computes weights, the other multiplies. Within a warpgroup, the scores of the next KEYS keys are
// multiplied together with the values of the current keys, and the next weights are computed while these products are
// in progress. A third warpgroup loads queries, keys and values as far ahead as shared memory permits.

// HopperTile holds KEYS rows of DH elements in panels.
template <int DH, int KEYS> struct HopperTile {
  static constexpr int panels = DH / 64, rows = 16;  // rows: number of rows of a panel that a warpgroup loads at once
  Panel<KEYS> panel[panels];

  // load starts to load KEYS rows. Rows from n on are set to zero. at is the address of the thread's first piece, and
  // is advanced to that of the next tile.
  template <class T> __device__ __forceinline__ void load(const T*& at, i64 stride, int n) {
    const int r = threadIdx.x % 128 / 8, c = threadIdx.x % 8;
    Spot to = spotOf(panel[0].at + r * 8 + (c ^ r % 8));
    const i64 skip = rows * stride;
    if (n >= KEYS) {
      // so that the address of a copy does not depend on the previous one
      const T* x[4] = {at, at + skip, at + 2 * skip, at + 3 * skip};
#pragma unroll
      for (int i = 0; i < KEYS; i += 4 * rows)
#pragma unroll
        for (int j = 0; j < 4; j++, to += rows * 128) row(to, x[j], true), x[j] += 4 * skip;
      at = x[0];
      return;
    }
    const T* some = at - r * stride;  // any valid address
#pragma unroll 1
    for (int i = r; i < KEYS; i += rows, at += skip, to += rows * 128) row(to, i < n ? at : some, i < n);
  }

  template <class T> __device__ __forceinline__ void row(Spot to, const T* from, bool there) {
#pragma unroll
    for (int p = 0; p < panels; p++) copy16(to + p * (KEYS * 128), from + p * 64, there);
  }

  // finite reports whether all values in the thread's part of the rows are finite.
  template <class T> __device__ __forceinline__ bool finite() const {
    u32 odd = 0;
#pragma unroll 4
    for (int i = threadIdx.x % 128; i < KEYS * panels * 8; i += 128) odd |= oddBits<T>(panel[0].at[i]);
    return odd == 0;
  }
};

template <int DH, int KEYS> struct HopperRoom {
  HopperTile<DH, KEYS> k[2], v[3];
  Panel<128> q[DH / 64];
};

struct HopperGates {
  Gate q;            // opens when the queries are loaded
  Gate next[2];      // opens when the warpgroup may multiply
  Gate k[2], v[3];   // open when a tile is loaded
  Gate kFree[2], vFree[3];
  Gate end;          // opens when both warpgroups that compute have finished
  int odd;           // set if a value is not finite; a weight of zero does not cancel such a value

  __device__ __forceinline__ void make() {
    q.make(128);
    for (int i = 0; i < 2; i++) next[i].make(4);
    for (int i = 0; i < 2; i++) k[i].make(128), kFree[i].make(8);
    for (int i = 0; i < 3; i++) v[i].make(128), vFree[i].make(8);
    end.make(256), odd = 0;
  }
};

// hopperQueries starts to load a block's rows of queries, with zeros for rows that do not exist.
template <class T, int B, int DH, int KEYS> __device__ __forceinline__ void hopperQueries(const AttentionArgs<B>& a, const FlashBlock<T, B>& b, HopperRoom<DH, KEYS>& room, HopperGates& gates) {
  const int c = threadIdx.x % 8, share = (int)a.share;
  const u32 signs = signsOf(a);
  int row = threadIdx.x % 128 / 8;
  QueryRow<B> is(a, b.kv, b.first + row);
  const i64 end = (b.kv + 1) * a.share;
#pragma unroll 1
  for (; row < 128; row += 16) {
    const bool there = b.first + row < b.rows;
    const T* from = there ? b.of.q + is.query * a.sq[0] + is.head * a.sq[1] + c * 8 : b.of.q;
#pragma unroll
    for (int p = 0; p < DH / 64; p++) {
      Pack<u32, 4>& to = room.q[p].at[row * 8 + (c ^ row % 8)];
      copy16(spotOf(&to), there ? from + p * 64 : from, there);
    }
    is.query += 16 / share, is.head += 16 % share;
    if (is.head >= end) is.query++, is.head -= share;
  }
  if (!signs) return gates.q.arriveCopied();
  endCopies();
  awaitCopies();
  for (int p = 0; p < DH / 64; p++)  // the pieces that this thread has loaded
    for (row = threadIdx.x % 128 / 8; row < 128; row += 16)
      for (int w = 0; w < 4; w++) room.q[p].at[row * 8 + (c ^ row % 8)].v[w] ^= signs;
  gates.q.arrive();
}

// hopperBrings is the loop of the third warpgroup, which loads keys and values.
template <class T, int B, int DH, int KEYS> __device__ __forceinline__ void hopperBrings(const AttentionArgs<B>& a, const FlashBlock<T, B>& b, HopperRoom<DH, KEYS>& room, HopperGates& gates) {
  const int row = threadIdx.x % 128 / 8, column = threadIdx.x % 8 * 8;
  const T* k = b.k + row * a.sk[0] + column;
  const T* v = b.v + row * a.sv[0] + column;
  Turn<2> keys = {};
  Turn<3> values = {};
#pragma unroll 1
  for (int j = 0; j == 0 || j < b.keys; j += KEYS) {
    gates.kFree[keys.at].pass(keys.odd ^ 1);
    room.k[keys.at].load(k, a.sk[0], b.keys - j);
    gates.k[keys.at].arriveCopied();
    keys.next();
    gates.vFree[values.at].pass(values.odd ^ 1);
    room.v[values.at].load(v, a.sv[0], b.keys - j);
    gates.v[values.at].arriveCopied();
    values.next();
  }
  endCopies();  // awaitCopies waits for groups, which gates do not create
  awaitCopies();
}

template <class T, int B, int DH, int KEYS> struct Hopper {
  const AttentionArgs<B>& a;
  const FlashBlock<T, B>& b;
  FlashRows<T, B, DH>& r;
  HopperRoom<DH, KEYS>& room;
  HopperGates& gates;
  Corner queries, keys, sums;  // positions of the first tiles, and of the warpgroup's queries
  Turn<2> k;
  Turn<3> v;
  u32 turn;
  bool grew;  // whether scores grew so much that sums must be multiplied by down
  f32 s[KEYS / 8][4];
  f32 down[2];
  u32 w[KEYS / 16][4];  // weights of the tile whose values are being added

  __device__ __forceinline__ Hopper(const AttentionArgs<B>& a, const FlashBlock<T, B>& b, FlashRows<T, B, DH>& r, HopperRoom<DH, KEYS>& room, HopperGates& gates) : a(a), b(b), r(r), room(room), gates(gates), k{}, v{}, turn(group() ^ 1) {
    queries = cornerOf(room.q[0].at + group() * 512), keys = cornerOf(room.k), sums = cornerOf(room.v);
  }

  DEV int group() { return threadIdx.x / 128; }

  // left signals at a gate that the warp has finished.
  __device__ __forceinline__ void left(Gate& g) {
    if (threadIdx.x % 32 == 0) g.arrive();
  }

  // hides checks a tile for values that some rows do not see and that are not finite, because a weight of zero only
  // cancels finite values.
  __device__ __forceinline__ void hides(int t) {
    if (!::hides(a) || (t + 1) * KEYS <= b.clear) return;
    if (!room.v[v.before()].template finite<T>()) gates.odd = 1;
    __syncwarp();
  }

  // scores starts to multiply the queries with a tile of keys.
  __device__ __forceinline__ void scores() {
    const Corner to = keys + k.at * (sizeof(room.k[0]) / 16);
#pragma unroll
    for (int c = 0; c < DH / 16; c++) scoreProduct<T, KEYS>(s, queries + c / 4 * 1024 + c % 4 * 2, to + c / 4 * (KEYS * 8) + c % 4 * 2, c > 0);
    endProducts();
  }

  // scored is called after the wait for scores.
  __device__ __forceinline__ void scored() {
    hold(s);
    left(gates.kFree[k.at]);
    k.next();
  }

  // values starts to add a tile of values.
  __device__ __forceinline__ void values() {
    const Corner from = sums + v.at * (sizeof(room.v[0]) / 16);
#pragma unroll
    for (int n = 0; n < KEYS / 16; n++) sumProduct<T, DH, KEYS * 8>(r.o, w[n], from + n * 128);
    endProducts();
    v.next();
  }

  // added waits for the sums of the tile before t, and prepares the weights of tile t.
  __device__ __forceinline__ void added(int t) {
    awaitProducts<0>();
    hold(r.o);
    if (t > 0) left(gates.vFree[v.before()]);
    if (grew) r.scaleDown(down);
#pragma unroll
    for (int n = 0; n < KEYS / 16; n++) operand<T>(w[n], s[2 * n], s[2 * n + 1]);
    hold(r.o);
  }

  template <bool MASKED> __device__ __forceinline__ void first() {
    gates.q.pass(0);
    gates.k[k.at].pass(k.odd);
    publish();
    beginProducts();
    scores();
    awaitProducts<0>();
    scored();
    grew = r.template weigh<MASKED>(s, 0, down);
  }

  // step starts to add the values of tile t, and computes the weights of the next tile. MASKED: not all rows see all
  // keys of that tile. The wait for the sums is in the next step: if it were at the end of this step, the assembler
  // would move it before the computation of the weights. Everything possible is done before the warpgroup's turn to
  // multiply, because the tensor cores are idle between turns.
  template <bool MASKED> __device__ __forceinline__ void step(int t) {
    const bool keysThere = gates.k[k.at].ask(k.odd), valuesThere = gates.v[v.at].ask(v.odd);
    added(t);
    if (!keysThere) gates.k[k.at].pass(k.odd);
    if (!valuesThere) gates.v[v.at].pass(v.odd);
    publish();
    gates.next[group()].pass(turn);
    turn ^= 1;
    beginProducts();
    scores();
    left(gates.next[group() ^ 1]);  // starting the scores takes as long as starting the values here
    values();
    if (MASKED) hides(t);
    awaitProducts<1>();
    scored();
    grew = r.template weigh<MASKED>(s, (t + 1) * KEYS, down);
  }

  __device__ __forceinline__ void last(int t) {
    added(t);
    gates.v[v.at].pass(v.odd);
    publish();
    beginProducts();
    values();
    hides(t);
    awaitProducts<0>();
    hold(r.o);
  }
};

// FlashPart is one of several blocks between which the keys are split.
template <class T, int B, int DH> struct FlashPart : FlashBlock<T, B> {
  typedef FlashSplitArgs<B> Args;
  u32 split, place;
  int from;  // the first of its keys; keys of scores are counted from it

  __device__ __forceinline__ FlashPart(const Args& x) : FlashBlock<T, B>(x.a, this->number() / (u32)x.s.splits, (u32)x.s.rows, (u32)x.s.units, (u32)x.s.kvs), split(this->number() % (u32)x.s.splits) {
    const u32 unit = this->number() / (u32)x.s.splits, units = (u32)x.s.units;
    place = unit / units * units + this->first / 128;
    from = (int)(split * x.s.length);
    this->k += from * x.a.sk[0], this->v += from * x.a.sv[0];
    this->keys = within(this->keys, (int)x.s.length), this->clear = within(this->clear, this->keys);
  }
  DEV const AttentionArgs<B>& attention(const Args& x) { return x.a; }

  __device__ __forceinline__ int within(int keys, int most) const {
    keys -= from;
    return keys < 0 ? 0 : keys < most ? keys : most;
  }
  __device__ __forceinline__ void narrow(FlashRows<T, B, DH>& r) const {
#pragma unroll
    for (int h = 0; h < 2; h++) r.seen[h] = within(r.seen[h], this->keys);
  }
  // keep stores the partial result. The last block of the unit joins the results of all its blocks.
  __device__ __forceinline__ void keep(const Args& x, const FlashRows<T, B, DH>& r) const {
    keepRows<128>(x.s, r, *this);
    if (arrivedLast<256>(x.s, place)) joinRows<128>(x, r, *this, split);
  }

  __device__ __forceinline__ void asTold(const Args& x, const FlashRows<T, B, DH>& r) const {
    for (u32 row = this->first; row < this->first + 128 && row < this->rows; row++) {
      const QueryRow<B> is(x.a, this->kv, row);
      const i64 at = ((i64)place * x.s.splits + split) * 128 + row - this->first;
      attend<T, 1>(x.a, this->of, is.query, is.head, from, from + x.s.length, [&](i64 d, f32 o, f32 top, f32 sum, bool) {
        ((f32*)x.s.part)[at * DH + d] = o;
        if (d == 0) ((Pack<f32, 2>*)x.s.best)[at] = Pack<f32, 2>{{top * 1.4426950408889634f, sum}};
      });
      __syncthreads();
    }
    if (arrivedLast<256>(x.s, place)) joinRows<128>(x, r, *this, (u32)x.s.splits);
  }
};

template <class T, int B, int DH, int KEYS, class Block> DEV void flashHopper(const typename Block::Args& args) {
  const AttentionArgs<B>& a = Block::attention(args);
  __shared__ HopperGates gates;
  HopperRoom<DH, KEYS>& room = roomOf<HopperRoom<DH, KEYS>>();
  if (threadIdx.x == 0) gates.make();
  __syncthreads();
  if (threadIdx.x >= 256) {
    const Block b(args);
    hopperQueries<T, B, DH, KEYS>(a, b, room, gates);
    registers<false, 40>();
    hopperBrings<T, B, DH, KEYS>(a, b, room, gates);
    return;
  }
  const Block b(args);
  FlashRows<T, B, DH> r(a, b);
  b.narrow(r);
  registers<true, 232>();
  Hopper<T, B, DH, KEYS> h(a, b, r, room, gates);
  if (KEYS <= b.clear) h.template first<false>();
  else h.template first<true>();
  int t = 0;
  for (; (t + 2) * KEYS <= b.clear; t++) h.template step<false>(t);
  for (; (t + 1) * KEYS < b.keys; t++) h.template step<true>(t);
  h.last(t);
  gates.end.arrive();
  gates.end.pass(0);
  const Block again(args);
  r.total();
  if (!gates.odd) again.keep(args, r);
  else again.asTold(args, r);
}
