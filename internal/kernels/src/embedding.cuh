// Selection of rows of a table by ids.

template <int B> struct EmbeddingArgs {
  u64 out, ids, table, fault, tag;
  i64 width, rows, first, of;    // this table contains the rows first..first+rows-1 of a table of `of` rows
  i64 so1, st0, st1;             // strides of out along the row, and of the table
  i64 e[B], so[B], si[B];        // extents and strides of the ids' dimensions
};

// A block copies one row. An id outside 0 to of-1 is a fault, and its row of the result is zeros.
template <class E, class ID, int B> DEV void embedding(const EmbeddingArgs<B>& a) {
  i64 t = blockIdx.x;
  E* out = (E*)a.out;
  const ID* ids = (const ID*)a.ids;
#pragma unroll
  for (int d = B - 1; d >= 0; d--) {
    const i64 x = d ? t % a.e[d] : t;
    t /= a.e[d];
    out += x * a.so[d];
    ids += x * a.si[d];
  }
  const i64 id = *ids, row = id - a.first;
  if ((id < 0 || id >= a.of) && threadIdx.x == 0) fault(a.fault, faultRange, a.tag, (u64)id, (u64)a.of, blockIdx.x);
  const bool here = id >= 0 && id < a.of && row >= 0 && row < a.rows;
  const E* from = (const E*)a.table + (here ? row : 0) * a.st0;
  for (i64 j = threadIdx.x; j < a.width; j += 256) out[j * a.so1] = here ? from[j * a.st1] : (E)0;
}
