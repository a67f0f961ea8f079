// Gradients of attention on Hopper's tensor cores. They are computed as by the kernels of flash_grad, but operands are
// multiplied directly from shared memory (FlashAttention-3; Shah et al., 2024; arXiv 2407.08608). A block has 128 queries
// of one query head, or 128 keys of one key head: its own tiles. It iterates over tiles of 64 rows of the other operands.
// Two warpgroups have 64 of the block's queries or keys each; while one computes weights, the other multiplies. A third
// warpgroup loads tiles as far ahead as shared memory permits.

// A GradStage holds 64 rows of two operands, and of lse and delta where the rows are queries.
template <int DH> struct GradStage {
  HopperTile<DH, 64> x, y;
};

template <int DH> struct GradHopperRoom {
  static constexpr int stages = 3;
  HopperTile<DH, 128> x, y;  // the block's own tiles: queries and gradients of results, or keys and values
  GradStage<DH> stage[stages];
  f32 lse[stages][64], delta[stages][64];
};

struct GradGates {
  Gate own;              // opens when the block's own tiles are loaded
  Gate full[3], free[3];  // of a stage: opens when it is loaded, and when both warpgroups have finished with it

  __device__ __forceinline__ void make() {
    own.make(128);
    for (int i = 0; i < 3; i++) full[i].make(128), free[i].make(8);
  }
  // leave signals that the warp has finished with a stage.
  __device__ __forceinline__ void leave(int at) {
    if (threadIdx.x % 32 == 0) free[at].arrive();
  }
};

// gradPiece returns the address of the thread's first piece of a tile that begins at row x.
template <class T> DEV const T* gradPiece(const T* x, i64 stride) { return x + threadIdx.x % 128 / 8 * stride + threadIdx.x % 8 * 8; }

// gradFirst starts to compute the products of the warpgroup's 64 rows of an own tile and the rows of another tile.
template <class T, int DH> DEV void gradFirst(f32 (&s)[8][4], Corner own, Corner tile) {
#pragma unroll
  for (int c = 0; c < DH / 16; c++) scoreProduct<T, 64>(s, own + c / 4 * 1024 + c % 4 * 2, tile + c / 4 * 512 + c % 4 * 2, c > 0);
  endProducts();
}

// gradSecond starts to add the rows of a tile, multiplied by weights.
template <class T, int DH> DEV void gradSecond(f32 (&o)[DH / 8][4], const u32 (&w)[4][4], Corner tile) {
#pragma unroll
  for (int n = 0; n < 4; n++) sumProduct<T, DH, 512>(o, w[n], tile + n * 128);
  endProducts();
}

// gradWeights rounds weights to an operand.
template <class T> DEV void gradWeights(u32 (&w)[4][4], const f32 (&s)[8][4]) {
#pragma unroll
  for (int n = 0; n < 4; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) w[n][i] = pair<T>(s[2 * n + i / 2][i % 2 * 2], s[2 * n + i / 2][i % 2 * 2 + 1]);
}

template <int N> DEV void gradZero(f32 (&o)[N][4]) {
#pragma unroll
  for (int d = 0; d < N; d++)
#pragma unroll
    for (int e = 0; e < 4; e++) o[d][e] = 0;
}

// GradQueries is the part of a block of flashLSEHopper and flashDQHopper: 128 queries of a query head. The blocks whose
// queries see the most keys begin first.
template <class T, int B> struct GradQueries {
  u32 first, head;
  GradOperands<T> of;
  int keys;  // largest number of keys that one of the queries sees
  __device__ __forceinline__ GradQueries(const GradArgs<B>& a) : GradQueries(a, (u32)(a.tq + 127) / 128) {}
  __device__ __forceinline__ GradQueries(const GradArgs<B>& a, u32 tiles) : GradQueries(a, tiles, gridDim.x / tiles) {}
  __device__ __forceinline__ GradQueries(const GradArgs<B>& a, u32 tiles, u32 groups)
      : first((tiles - 1 - blockIdx.x / groups) * 128), head(blockIdx.x % groups % (u32)a.heads), of(a, blockIdx.x % groups / (u32)a.heads) {
    const u32 kv = head / (u32)a.share;
    of.q += first * a.sq[0] + head * a.sq[1], of.dy += first * a.sy[0] + head * a.sy[1];
    of.k += kv * a.sk[1], of.v += kv * a.sv[1];
    of.lse += head * a.sl[1], of.delta += head * a.sd[1];
    keys = (int)gradSees(a, first + 127 < a.tq ? first + 127 : a.tq - 1);
  }
  // row returns the thread's first query; its other query is 8 queries later.
  __device__ __forceinline__ u32 row() const { return first + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4; }
};

template <class T, int B, int DH> struct GradLSE {
  GradGates& gates;
  const f32 scale;
  Corner q, k;
  Turn<3> turn;
  int seen[2];
  f32 top[2], sum[2];

  // multiply starts to compute the scores of 128 keys in a stage.
  __device__ __forceinline__ void multiply(f32 (&s)[16][4], int at) {
#pragma unroll
    for (int c = 0; c < DH / 16; c++) scoreProduct<T, 128>(s, q + c / 4 * 1024 + c % 4 * 2, k + at * (sizeof(HopperTile<DH, 128>) / 16) + c / 4 * 1024 + c % 4 * 2, c > 0);
    endProducts();
  }

  // once adds the next 128 keys, which not all queries see.
  __device__ __forceinline__ void once(int j) {
    f32 s[16][4];
    gates.full[turn.at].pass(turn.odd);
    publish();
    beginProducts();
    multiply(s, turn.at);
    awaitProducts<0>();
    hold(s);
    gates.leave(turn.at);
    turn.next();
    add<true>(s, j);
  }

  // twice adds the next 256 keys, which all queries see. The second half is multiplied while the first is added.
  __device__ __forceinline__ void twice(int j) {
    f32 s[16][4], t[16][4];
    const int at = turn.at;
    gates.full[at].pass(turn.odd);
    turn.next();
    gates.full[turn.at].pass(turn.odd);
    publish();
    beginProducts();
    multiply(s, at);
    multiply(t, turn.at);
    awaitProducts<1>();
    hold(s);
    gates.leave(at);
    add<false>(s, j);
    awaitProducts<0>();
    hold(t);
    gates.leave(turn.at);
    turn.next();
    add<false>(t, j + 128);
  }

  // add adds the exponentials of scores of 128 keys from key j on. MASKED: not all queries see all of these keys.
  template <bool MASKED> __device__ __forceinline__ void add(f32 (&s)[16][4], int j) {
    const f32 inf = bitsAs<f32>(0x7f800000u);
    const int col = j + threadIdx.x % 4 * 2;
    f32 most[2] = {top[0], top[1]};
#pragma unroll
    for (int n = 0; n < 16; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        s[n][e] = MASKED && col + n * 8 + e % 2 >= seen[e / 2] ? -inf : s[n][e] * scale;
        most[e / 2] = fmaxf(most[e / 2], s[n][e]);
      }
#pragma unroll
    for (int h = 0; h < 2; h++) {  // every query sees the first key, so the result is finite
      most[h] = fmaxf(most[h], ofLane(most[h], 1));
      most[h] = fmaxf(most[h], ofLane(most[h], 2));
      sum[h] *= exp2Of(top[h] - most[h]);
      top[h] = most[h];
    }
#pragma unroll
    for (int n = 0; n < 16; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) sum[e / 2] += exp2Of(s[n][e] - top[e / 2]);
  }
};

template <class T, int B, int DH> DEV void flashLSEHopper(const GradArgs<B>& a) {
  struct Room { HopperTile<DH, 128> q, k[3]; };
  const f32 inf = bitsAs<f32>(0x7f800000u), scale = (f32)(a.scale * 1.4426950408889634);
  __shared__ GradGates gates;
  Room& room = roomOf<Room>();
  if (threadIdx.x == 0) gates.make();
  __syncthreads();
  const GradQueries<T, B> b(a);
  if (threadIdx.x >= 256) {
    Turn<3> turn = {};
    registers<false, 40>();
    const T *q = gradPiece(b.of.q, a.sq[0]), *k = gradPiece(b.of.k, a.sk[0]);
    room.q.load(q, a.sq[0], (int)(a.tq - b.first));
    gates.own.arriveCopied();
#pragma unroll 1
    for (int j = 0; j < b.keys; j += 128, turn.next()) {
      gates.free[turn.at].pass(turn.odd ^ 1);
      room.k[turn.at].load(k, a.sk[0], b.keys - j);
      gates.full[turn.at].arriveCopied();
    }
    endCopies();
    awaitCopies();
    return;
  }
  registers<true, 232>();
  GradLSE<T, B, DH> g = {gates, scale, cornerOf(room.q.panel[0].at + threadIdx.x / 128 * 512), cornerOf(room.k)};
#pragma unroll
  for (int h = 0; h < 2; h++) g.seen[h] = b.row() + 8 * h < a.tq ? (int)gradSees(a, b.row() + 8 * h) : 1, g.top[h] = -inf, g.sum[h] = 0;
  const i64 all = gradSees(a, b.first + threadIdx.x / 128 * 64);
  const int clear = (int)sameForWarp(all < a.tk ? all : a.tk) / 128 * 128;  // every query of the warpgroup sees these keys
  gates.own.pass(0);
  int j = 0;
#pragma unroll 1
  for (; j + 256 <= clear; j += 256) g.twice(j);
#pragma unroll 1
  for (; j < b.keys; j += 128) g.once(j);
  const GradQueries<T, B> again(a);
#pragma unroll
  for (int h = 0; h < 2; h++) {
    g.sum[h] += ofLane(g.sum[h], 1);
    g.sum[h] += ofLane(g.sum[h], 2);
    const u32 r = again.row() + 8 * h;
    if (r < a.tq && threadIdx.x % 4 == 0) ((f32*)a.out)[again.of.out + r * a.so[0] + again.head * a.so[1]] = g.top[h] * 0.69314718055994531f + logOf(g.sum[h]);
  }
}

template <class T, int B, int DH> struct GradDQ {
  GradGates& gates;
  const f32 scale;
  Corner q, dy, stages;
  Turn<3> turn;
  int seen[2];
  f32 lse[2], delta[2], s[8][4], dp[8][4], o[DH / 8][4];
  u32 w[4][4];

  // step adds 64 keys from key j on. MASKED: not all queries see all of these keys. The last product is in progress when
  // step returns; the next step waits for it, and then leaves its stage.
  template <bool MASKED> __device__ __forceinline__ void step(int j) {
    const Corner at = stages + turn.at * (sizeof(GradStage<DH>) / 16);
    gates.full[turn.at].pass(turn.odd);
    publish();
    beginProducts();
    gradFirst<T, DH>(s, q, at);
    gradFirst<T, DH>(dp, dy, at + sizeof(HopperTile<DH, 64>) / 16);
    awaitProducts<1>();
    hold(s);
    hold(o);
    if (j > 0) gates.leave(turn.before());
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        s[n][e] = exp2Of(s[n][e] * scale - lse[e / 2]);
        if (MASKED && j + (int)(threadIdx.x % 4 * 2) + n * 8 + e % 2 >= seen[e / 2]) s[n][e] = 0;
      }
    awaitProducts<0>();
    hold(dp);
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) s[n][e] *= dp[n][e] - delta[e / 2];
    gradWeights<T>(w, s);
    hold(o);
    beginProducts();
    gradSecond<T, DH>(o, w, at);
    turn.next();
  }
};

template <class T, int B, int DH> DEV void flashDQHopper(const GradArgs<B>& a) {
  __shared__ GradGates gates;
  GradHopperRoom<DH>& room = roomOf<GradHopperRoom<DH>>();
  if (threadIdx.x == 0) gates.make();
  __syncthreads();
  if (threadIdx.x >= 256) {
    const GradQueries<T, B> b(a);
    registers<false, 40>();
    const T *q = gradPiece(b.of.q, a.sq[0]), *dy = gradPiece(b.of.dy, a.sy[0]), *k = gradPiece(b.of.k, a.sk[0]), *v = gradPiece(b.of.v, a.sv[0]);
    room.x.load(q, a.sq[0], (int)(a.tq - b.first));
    room.y.load(dy, a.sy[0], (int)(a.tq - b.first));
    gates.own.arriveCopied();
    Turn<3> turn = {};
#pragma unroll 1
    for (int j = 0; j < b.keys; j += 64, turn.next()) {
      gates.free[turn.at].pass(turn.odd ^ 1);
      room.stage[turn.at].x.load(k, a.sk[0], b.keys - j);
      room.stage[turn.at].y.load(v, a.sv[0], b.keys - j);
      gates.full[turn.at].arriveCopied();
    }
    endCopies();
    awaitCopies();
    return;
  }
  const GradQueries<T, B> b(a);
  registers<true, 232>();
  const int group = threadIdx.x / 128;
  GradDQ<T, B, DH> g = {gates, (f32)(a.scale * 1.4426950408889634), cornerOf(room.x.panel[0].at + group * 512), cornerOf(room.y.panel[0].at + group * 512), cornerOf(room.stage)};
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const u32 r = b.row() + 8 * h;
    const bool there = r < a.tq;
    g.seen[h] = there ? (int)gradSees(a, r) : 0;
    g.lse[h] = there ? b.of.lse[r * a.sl[0]] * 1.4426950408889634f : 0;
    g.delta[h] = there ? b.of.delta[r * a.sd[0]] : 0;
  }
  gradZero(g.o);
  const i64 all = gradSees(a, b.first + group * 64);
  const int clear = (int)sameForWarp(all < b.keys ? all : b.keys) / 64 * 64;  // every query of the warpgroup sees these keys
  gates.own.pass(0);
  int j = 0;
#pragma unroll 1
  for (; j < clear; j += 64) g.template step<false>(j);
#pragma unroll 1
  for (; j < b.keys; j += 64) g.template step<true>(j);
  awaitProducts<0>();
  hold(g.o);
  const GradQueries<T, B> again(a);
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const u32 r = again.row() + 8 * h;
    if (r >= a.tq) continue;
    T* to = (T*)a.out + again.of.out + r * a.so[0] + again.head * a.so[1] + threadIdx.x % 4 * 2;
#pragma unroll
    for (int d = 0; d < DH / 8; d++) *(u32*)(to + 8 * d) = pair<T>(g.o[d][2 * h] * (f32)a.scale, g.o[d][2 * h + 1] * (f32)a.scale);
  }
}

// GradKeys is the part of a block of flashDKVHopper: 128 keys of a key head, and a part of the query heads that use it.
// The blocks of the keys that most queries see begin first.
template <class T, int B> struct GradKeys {
  u32 group, part, kv;  // part: number of the part among those of all key heads
  int first, from, past;  // from: a multiple of 64; queries before it see no key of the block. past: tk - tq if queries see different numbers of keys
  GradOperands<T> of;
  __device__ __forceinline__ GradKeys(const FlashGradArgs<B>& x) : GradKeys(x, gridDim.x / ((u32)(x.a.tk + 127) / 128)) {}
  __device__ __forceinline__ GradKeys(const FlashGradArgs<B>& x, u32 groups) : GradKeys(x, groups, (u32)(x.a.heads / x.a.share)) {}
  __device__ __forceinline__ GradKeys(const FlashGradArgs<B>& x, u32 groups, u32 some)
      : group(blockIdx.x % groups), part(group % some), kv(part / (u32)x.parts.parts), first((int)(blockIdx.x / groups * 128)), from(0), past((int)(x.a.tk - x.a.tq)), of(x.a, group / some) {
    if (x.a.causal && first > past) from = (first - past) / 64 * 64;
    of.k += first * x.a.sk[0] + kv * x.a.sk[1], of.v += first * x.a.sv[0] + kv * x.a.sv[1];
  }
};

template <class T, int B, int DH> struct GradDKV {
  GradHopperRoom<DH>& room;
  GradGates& gates;
  const f32 scale;
  Corner k, v, stages;
  int key;  // the thread's first key; its other key is 8 keys later
  Turn<3> turn;
  f32 s[8][4], dp[8][4], dk[DH / 8][4], dv[DH / 8][4];
  u32 w[4][4], x[4][4];

  // step adds 64 queries. MASKED: not all queries see all keys of the block; the thread's first key is seen from query
  // number sees of the tile on. If products of dk and dv were still in progress when step returns, as in GradDQ, the
  // assembler would compute all products one by one.
  template <bool MASKED> __device__ __forceinline__ void step(int sees) {
    const Corner at = stages + turn.at * (sizeof(GradStage<DH>) / 16), gradients = at + sizeof(HopperTile<DH, 64>) / 16;
    gates.full[turn.at].pass(turn.odd);
    publish();
    beginProducts();
    gradFirst<T, DH>(s, k, at);
    gradFirst<T, DH>(dp, v, gradients);
    awaitProducts<1>();
    hold(s);
    const int col = threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < 8; n++) {
      const Pack<f32, 2> lse = *(const Pack<f32, 2>*)&room.lse[turn.at][n * 8 + col];
#pragma unroll
      for (int e = 0; e < 4; e++) {
        s[n][e] = exp2Of(s[n][e] * scale - lse.v[e % 2] * 1.4426950408889634f);
        if (MASKED && n * 8 + col + e % 2 < sees + e / 2 * 8) s[n][e] = 0;
      }
    }
    gradWeights<T>(w, s);
    hold(dv);
    beginProducts();
    gradSecond<T, DH>(dv, w, gradients);
    awaitProducts<1>();
    hold(dp);
#pragma unroll
    for (int n = 0; n < 8; n++) {
      const Pack<f32, 2> delta = *(const Pack<f32, 2>*)&room.delta[turn.at][n * 8 + col];
#pragma unroll
      for (int e = 0; e < 4; e++) s[n][e] *= dp[n][e] - delta.v[e % 2];
    }
    gradWeights<T>(x, s);
    hold(dk);
    beginProducts();
    gradSecond<T, DH>(dk, x, at);
    awaitProducts<0>();
    hold(dv);
    hold(dk);
    gates.leave(turn.at);
    turn.next();
  }
};

template <class T, int B, int DH> DEV void flashDKVHopper(const FlashGradArgs<B>& args) {
  const GradArgs<B>& a = args.a;  // share: number of query heads of a part
  __shared__ GradGates gates;
  GradHopperRoom<DH>& room = roomOf<GradHopperRoom<DH>>();
  if (threadIdx.x == 0) gates.make();
  __syncthreads();
  if (threadIdx.x >= 256) {
    const GradKeys<T, B> b(args);
    registers<false, 40>();
    const T *k = gradPiece(b.of.k, a.sk[0]), *v = gradPiece(b.of.v, a.sv[0]);
    room.x.load(k, a.sk[0], (int)a.tk - b.first);
    room.y.load(v, a.sv[0], (int)a.tk - b.first);
    gates.own.arriveCopied();
    const bool second = threadIdx.x % 128 >= 64;
    const int r = threadIdx.x % 64;
    Turn<3> turn = {};
#pragma unroll 1
    for (u32 head = b.part * (u32)a.share; head < (b.part + 1) * (u32)a.share; head++) {
      const T* q = gradPiece(b.of.q + b.from * a.sq[0] + head * a.sq[1], a.sq[0]);
      const T* dy = gradPiece(b.of.dy + b.from * a.sy[0] + head * a.sy[1], a.sy[0]);
      const i64 step = second ? a.sd[0] : a.sl[0];
      const f32* row = second ? b.of.delta + head * a.sd[1] : b.of.lse + head * a.sl[1];
#pragma unroll 1
      for (int i = b.from; i < (int)a.tq; i += 64, turn.next()) {
        const bool there = i + r < (int)a.tq;
        gates.free[turn.at].pass(turn.odd ^ 1);
        room.stage[turn.at].x.load(q, a.sq[0], (int)a.tq - i);
        room.stage[turn.at].y.load(dy, a.sy[0], (int)a.tq - i);
        copyFew<4>(spotOf(second ? &room.delta[turn.at][r] : &room.lse[turn.at][r]), there ? row + (i + r) * step : row, there);
        gates.full[turn.at].arriveCopied();
      }
    }
    endCopies();
    awaitCopies();
    return;
  }
  const GradKeys<T, B> b(args);
  registers<true, 232>();
  const int group = threadIdx.x / 128, rows = (int)a.tq;
  GradDKV<T, B, DH> g = {room, gates, (f32)(a.scale * 1.4426950408889634), cornerOf(room.x.panel[0].at + group * 512), cornerOf(room.y.panel[0].at + group * 512), cornerOf(room.stage), b.first + (int)(threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4)};
  gradZero(g.dk), gradZero(g.dv);
  // Query i sees key j if j <= i + past. The warpgroup's last key is seen from query last on.
  const int last = a.causal ? b.first + group * 64 + 63 - b.past : 0;
  gates.own.pass(0);
#pragma unroll 1
  for (u32 head = 0; head < (u32)a.share; head++) {
    int i = b.from;
#pragma unroll 1
    for (; i < rows && i < last; i += 64) g.template step<true>(g.key - b.past - i);
#pragma unroll 1
    for (; i < rows; i += 64) g.template step<false>(0);
  }
  awaitProducts<0>();
  hold(g.dk);
  hold(g.dv);
  const GradKeys<T, B> again(args);
  const u32 parts = (u32)args.parts.parts, groups = gridDim.x / ((u32)(a.tk + 127) / 128);
  const int keys = (int)a.tk;
  const i64 whole = (i64)(groups / parts) * keys * DH;  // elements of dk
  f32* sums = (f32*)args.parts.sums + (again.part % parts * 2 * whole + (i64)(again.group / parts) * keys * DH);
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int j = g.key + 8 * h;
    if (j >= keys) continue;
    const int at = threadIdx.x % 4 * 2;
    T* to = (T*)a.out + again.of.out + j * a.so[0] + again.kv * a.so[1] + at;
#pragma unroll
    for (int d = 0; d < DH / 8; d++) {
      const f32 x[2] = {g.dk[d][2 * h] * (f32)a.scale, g.dk[d][2 * h + 1] * (f32)a.scale};
      if (parts == 1) {
        *(u32*)(to + 8 * d) = pair<T>(x[0], x[1]);
        *(u32*)(to + a.both + 8 * d) = pair<T>(g.dv[d][2 * h], g.dv[d][2 * h + 1]);
      } else {
        *(Pack<f32, 2>*)(sums + (i64)j * DH + at + 8 * d) = {x[0], x[1]};
        *(Pack<f32, 2>*)(sums + whole + (i64)j * DH + at + 8 * d) = {g.dv[d][2 * h], g.dv[d][2 * h + 1]};
      }
    }
  }
}
