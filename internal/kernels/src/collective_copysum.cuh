// Sums of what copy engines carry: engines push the parts of members' operands into
// staging memory of the member that adds them up, piece by piece, and a word for
// each piece says that it is there. Words are raised by kernels of one block behind
// the copies, and are zeros again when members meet before the next copies (see
// moveMeet), so that they need no numbers.

enum { piecesMost = 8 };

struct PieceArgs {
  Team team;
  u64 flags[teamMost];     // of each member: a word for each piece from each member
  u64 src[teamMost], dst;  // each member's block: here its own lies where it was, others' in staging; the sum
  i64 run;                 // bytes of a block
  i64 first, pieces;       // those of this launch
  i64 ends[piecesMost];    // where pieces end, in cells of 16 bytes as the blocks lie
};

DEV u64 pieceFlag(const PieceArgs& a, u32 at, i64 piece, u32 by) { return a.flags[at] + (piece * teamMost + by) * 4; }

// raisePieces tells all peers that pieces for them are there: copies on the stream
// before it are done.
template <int W> DEV void raisePieces(const PieceArgs& a) {
  const u32 q = threadIdx.x, me = (u32)a.team.rank;
  if (q >= W || q == me) return;
  for (i64 k = a.first; k < a.first + a.pieces; k++) release32(pieceFlag(a, q, k, me), 1);
}

// awaitPiece waits until a piece has come from all members. The launch has no number
// of its own: it tells of that of the meeting before it.
template <int W> DEV bool awaitPiece(const PieceArgs& a, Patience& w, i64 piece) {
  const u32 q = threadIdx.x, me = (u32)a.team.rank;
  bool here = true;
  if (q < W && q != me) {
    const u64 at = pieceFlag(a, me, piece, q);
    while (here && acquire32(at) == 0) here = !waited(w, a.team, q, controlOf(a.team)->begun);
  }
  return __syncthreads_and(here);
}

// sumPieces adds up pieces as they come. All blocks begin at equal distances from
// multiples of 16; VD is what the distance of the destination from that is a
// multiple of.
template <class T, class F, bool Avg, int W, int VD, bool Full, int U> DEV void sumPieces(const PieceArgs& a) {
  follow();
  const u32 me = (u32)a.team.rank, step = gridDim.x * blockDim.x;
  Patience w = {0, 0};
  for (i64 p = a.first; p < a.first + a.pieces; p++) {
    if (!awaitPiece<W>(a, w, p)) return;
    const u32 begin = p ? (u32)a.ends[p - 1] : 0, total = (u32)a.ends[p];
    for (u32 i = begin + blockIdx.x * blockDim.x + threadIdx.x; i < total; i += U * step) {
      Pack<u64, 2> v[U][W];
      Cell c[U];
#pragma unroll
      for (int k = 0; k < U; k++) {
        c[k].count = 0;
        if (i + k * step >= total) continue;
        c[k] = cellAt<Full>(i + k * step, 0, a.run, 0, a.src[me]);
#pragma unroll
        for (int q = 0; q < W; q++) {
          if (!Full) v[k][q] = {};
          loadBytes<16, 16>(v[k][q], a.src[q] + c[k].at, c[k].count);
        }
      }
#pragma unroll
      for (int k = 0; k < U; k++) {
        if (c[k].count <= 0) continue;
        Pack<u64, 2> sum;
        fold<T, F, Avg, W, 16>(sum, v[k]);
        storeBytes<16, VD>(a.dst + c[k].at, sum, c[k].count);
      }
    }
  }
}
